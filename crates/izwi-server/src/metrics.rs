//! The Prometheus recorder of the process, and its page.

use std::sync::{Arc, OnceLock};

use izwi_core::engine::metrics::{BUCKETS, describe};
use metrics::{describe_gauge, gauge};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};

/// Sets the gauge that shows whether a model is in memory.
pub(crate) fn set_model_loaded(model: &str, is_loaded: bool) {
    gauge!("izwi_models_loaded", "model" => model.to_owned()).set(u8::from(is_loaded));
}

/// The recorder could not be installed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the metrics recorder could not be installed: {0}")]
pub struct RecorderError(String);

/// Handle to the installed recorder.
#[derive(Clone)]
pub struct Recorder {
    handle: PrometheusHandle,
    process: Arc<metrics_process::Collector>,
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
        describe_gauge!("izwi_models_loaded", "Whether the model is in memory");
        let process = metrics_process::Collector::default();
        process.describe();
        Ok(Self { handle, process: Arc::new(process) })
    }

    /// The text of `/metrics`.
    pub fn render(&self) -> String {
        self.process.collect();
        self.handle.render()
    }

    /// Moves recorded values into their buckets. Without it a process that is not scraped would keep every value.
    pub(crate) fn run_upkeep(&self) {
        self.handle.run_upkeep();
    }
}
