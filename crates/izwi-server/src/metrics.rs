//! The Prometheus recorder of the process, and its page.

use std::sync::OnceLock;

use izwi_core::engine::metrics::{BUCKETS, describe};
use izwi_core::engine::{MemoryBudget, Task};
use metrics::{counter, describe_counter, describe_gauge, gauge};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use sysinfo::{ProcessRefreshKind, ProcessesToUpdate, System};

/// Sets the gauge that shows whether a model is in memory, and creates the counters of its failures at zero, so that rates
/// over them include the first.
pub(crate) fn set_model_loaded(model: &str, is_loaded: bool) {
    gauge!("izwi_models_loaded", "model" => model.to_owned()).set(u8::from(is_loaded));
    counter!("izwi_engine_failures_total", "model" => model.to_owned()).increment(0);
    counter!("izwi_engine_restarts_total", "model" => model.to_owned()).increment(0);
    gauge!("izwi_model_given_up", "model" => model.to_owned()).increment(0.0);
}

/// Counts a failure of an engine, or of loading its model again; and marks the model that is given up.
pub(crate) fn count_engine_failure(model: &str, is_given_up: bool) {
    counter!("izwi_engine_failures_total", "model" => model.to_owned()).increment(1);
    gauge!("izwi_model_given_up", "model" => model.to_owned()).set(u8::from(is_given_up));
}

/// Counts a model that was loaded again after its engine had failed.
pub(crate) fn count_restart(model: &str) {
    counter!("izwi_engine_restarts_total", "model" => model.to_owned()).increment(1);
}

/// Shows how many connections are open, by place.
pub(crate) fn set_connections(place: &'static str, open: usize) {
    gauge!("izwi_connections", "place" => place).set(open as f64);
}

/// Counts connections that the server closed or refused, by reason.
pub(crate) fn count_closed_connections(reason: &'static str, count: usize) {
    counter!("izwi_connections_closed_total", "reason" => reason).increment(count as u64);
}

/// Counts what became of a session whose connection was lost, or of a request to continue one.
pub(crate) fn count_resume(outcome: &'static str) {
    counter!("izwi_session_resumes_total", "outcome" => outcome).increment(1);
}

/// Changes the number of sessions that wait for their client.
pub(crate) fn move_detached(by: f64) {
    gauge!("izwi_sessions_detached").increment(by);
}

/// Shows how many jobs there are of a status.
pub(crate) fn set_jobs(status: &'static str, count: usize) {
    gauge!("izwi_jobs", "status" => status).set(count as f64);
}

/// Counts a job that has ended.
pub(crate) fn count_job(kind: &'static str, status: &'static str) {
    counter!("izwi_jobs_ended_total", "type" => kind, "status" => status).increment(1);
}

/// Counts an interruption by the listener.
pub fn count_interrupt(task: Task) {
    counter!("izwi_interrupts_total", "task" => task.name()).increment(1);
}

/// The recorder could not be installed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the metrics recorder could not be installed: {0}")]
pub struct RecorderError(String);

/// Handle to the installed recorder.
#[derive(Clone)]
pub struct Recorder {
    handle: PrometheusHandle,
}

impl std::fmt::Debug for Recorder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Recorder").finish_non_exhaustive()
    }
}

impl Recorder {
    /// The recorder of this process, installed on the first call. The facade of `metrics` is global by design: one
    /// process has one recorder, however many servers it runs.
    ///
    /// # Errors
    /// Another recorder is installed already.
    pub fn install() -> Result<Self, RecorderError> {
        static INSTALLED: OnceLock<Result<Recorder, RecorderError>> = OnceLock::new();
        INSTALLED.get_or_init(Self::build).clone()
    }

    fn build() -> Result<Self, RecorderError> {
        let failed = |error: metrics_exporter_prometheus::BuildError| RecorderError(error.to_string());
        let mut builder = PrometheusBuilder::new();
        for (name, bounds) in BUCKETS {
            builder =
                builder.set_buckets_for_metric(Matcher::Full((*name).to_owned()), bounds).map_err(failed)?;
        }
        let handle = builder.install_recorder().map_err(failed)?;
        describe();
        describe_models();
        describe_connections();
        describe_sessions();
        describe_jobs();
        describe_process();
        Ok(Self { handle })
    }

    /// The text of `/metrics`.
    pub fn render(&self) -> String {
        measure_process();
        self.handle.render()
    }

    /// Moves recorded values into their buckets. Without it a process that is not scraped would keep every value.
    pub(crate) fn run_upkeep(&self) {
        self.handle.run_upkeep();
    }
}

fn describe_models() {
    describe_gauge!("izwi_models_loaded", "Whether the model is in memory");
    describe_counter!(
        "izwi_engine_failures_total",
        "Failures of an engine, and of loading its model again, by model"
    );
    describe_counter!(
        "izwi_engine_restarts_total",
        "Models loaded again after their engine had failed, by model"
    );
    describe_gauge!("izwi_model_given_up", "Whether the model failed repeatedly and is not loaded again");
}

fn describe_connections() {
    describe_gauge!("izwi_connections", "Open connections, by place: ordinary, or kept for probes");
    describe_counter!(
        "izwi_connections_closed_total",
        "Connections closed by the server: for another connection, after a timeout, or refused, by reason"
    );
}

fn describe_sessions() {
    describe_counter!(
        "izwi_session_resumes_total",
        "WebSocket sessions continued on a new connection, refused to continue, or expired, by outcome"
    );
    describe_gauge!(
        "izwi_sessions_detached",
        "WebSocket sessions whose connection was lost and may come back"
    );
    describe_counter!("izwi_interrupts_total", "Interruptions by listeners, by task");
}

fn describe_jobs() {
    describe_gauge!("izwi_jobs", "Jobs that are kept, by status: queued, running, completed or failed");
    describe_counter!(
        "izwi_jobs_ended_total",
        "Jobs that have ended, by type and status: completed, failed or cancelled"
    );
}

fn describe_process() {
    describe_gauge!("izwi_memory_bytes", "Memory of the budget in use, by use: models or recordings");
    describe_gauge!("izwi_memory_budget_bytes", "Memory that models and recordings may take together");
    describe_counter!("process_cpu_seconds_total", "CPU time of the process in seconds");
    describe_gauge!("process_start_time_seconds", "When the process started, in seconds since 1970");
    describe_gauge!("process_resident_memory_bytes", "Memory of the process that is in RAM, in bytes");
    describe_gauge!("process_virtual_memory_bytes", "Address space of the process in bytes");
    describe_gauge!("process_open_fds", "Open files of the process");
    describe_gauge!("process_max_fds", "Files that the process may open");
    describe_gauge!("process_threads", "Threads of the process");
}

/// Tells what models and recordings take of the memory budget.
pub(crate) fn set_memory(memory: &MemoryBudget) {
    gauge!("izwi_memory_bytes", "use" => "models").set(memory.models() as f64);
    gauge!("izwi_memory_bytes", "use" => "recordings").set(memory.recordings() as f64);
    if let Some(limit) = memory.limit() {
        gauge!("izwi_memory_budget_bytes").set(limit as f64);
    }
}

/// Reads the figures of this process; one that the system does not tell is left out.
fn measure_process() {
    let Ok(mut system) = System::new() else { return };
    let Ok(pid) = sysinfo::get_current_pid() else { return };
    let figures = ProcessRefreshKind::nothing().with_cpu().with_memory().with_tasks();
    system.refresh_processes_specifics(ProcessesToUpdate::Some(&[pid]), false, figures);
    let Some(process) = system.process(pid) else { return };
    // The system counts milliseconds.
    counter!("process_cpu_seconds_total").absolute(process.accumulated_cpu_time() / 1000);
    gauge!("process_start_time_seconds").set(process.start_time() as f64);
    gauge!("process_resident_memory_bytes").set(process.memory() as f64);
    gauge!("process_virtual_memory_bytes").set(process.virtual_memory() as f64);
    if let Some(open) = process.open_files() {
        gauge!("process_open_fds").set(open as f64);
    }
    if let Some(limit) = process.open_files_limit() {
        gauge!("process_max_fds").set(limit as f64);
    }
    if let Some(tasks) = process.tasks() {
        gauge!("process_threads").set(tasks.len() as f64);
    }
}
