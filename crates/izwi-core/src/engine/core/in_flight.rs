//! An in-flight step: the executor moves to a blocking thread with its plan and returns with the results.
//! In simulated time it moves to a task, which waits for as long as the executor says that the step takes.
//!
//! Must not know queues or sessions.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::Command;
use crate::engine::executor::{ExecutorError, ItemResult, ModelExecutor, StepPlan};
use crate::engine::scheduler::ScheduleResult;
use crate::engine::types::{FinishReason, SequenceId};

/// A step being executed.
pub(super) struct InFlightStep {
    pub(super) schedule: Arc<ScheduleResult>,
    started_at: Instant,
    handle: JoinHandle<(Box<dyn ModelExecutor>, Outcome)>,
}

enum Outcome {
    Results(Vec<ItemResult>),
    Failed(ExecutorError),
    Panicked(String),
}

/// An executed step.
pub(super) struct Returned {
    pub(super) schedule: Arc<ScheduleResult>,
    pub(super) duration: Duration,
    /// `None` if its thread was lost.
    pub(super) executor: Option<Box<dyn ModelExecutor>>,
    /// One result per item of the schedule.
    pub(super) results: Vec<ItemResult>,
    pub(super) panicked: bool,
}

/// One sequence's result, after queues and block accounting are updated.
pub(super) struct CompletedItem {
    pub(super) sequence: SequenceId,
    pub(super) result: ItemResult,
    pub(super) finish: Option<FinishReason>,
}

impl InFlightStep {
    /// Starts executing a plan.
    pub(super) fn launch(
        mut executor: Box<dyn ModelExecutor>,
        plan: StepPlan,
        schedule: Arc<ScheduleResult>,
    ) -> Self {
        let started_at = Instant::now();
        let handle = match executor.simulated_time(&plan) {
            Some(time) => tokio::spawn(async move {
                let done = execute(executor, &plan);
                tokio::time::sleep(time).await;
                done
            }),
            None => tokio::task::spawn_blocking(move || execute(executor, &plan)),
        };
        Self { schedule, started_at, handle }
    }

    /// Waits for the results. Returns them with the commands that arrived meanwhile.
    pub(super) async fn join(
        mut self,
        commands: &mut mpsc::UnboundedReceiver<Command>,
    ) -> (Returned, Vec<Command>) {
        let mut buffered = Vec::new();
        let joined = loop {
            tokio::select! {
                biased;
                joined = &mut self.handle => break joined,
                Some(command) = commands.recv() => buffered.push(command),
            }
        };
        let expected = self.schedule.batch_size();
        let fail = |message: String| vec![Err(ExecutorError(message)); expected];
        let (executor, results, panicked) = match joined {
            Ok((executor, Outcome::Results(results))) if results.len() == expected => {
                (Some(executor), results, false)
            }
            Ok((executor, Outcome::Results(results))) => {
                let message = format!("executor returned {} of {expected} results", results.len());
                (Some(executor), fail(message), false)
            }
            Ok((executor, Outcome::Failed(error))) => (Some(executor), fail(error.0), false),
            Ok((executor, Outcome::Panicked(text))) => {
                (Some(executor), fail(format!("executor panicked: {text}")), true)
            }
            Err(lost) => (None, fail(format!("executor thread was lost: {lost}")), true),
        };
        let duration = self.started_at.elapsed();
        (Returned { schedule: self.schedule, duration, executor, results, panicked }, buffered)
    }
}

fn execute(mut executor: Box<dyn ModelExecutor>, plan: &StepPlan) -> (Box<dyn ModelExecutor>, Outcome) {
    let run = std::panic::catch_unwind(AssertUnwindSafe(|| executor.execute(plan)));
    let outcome = match run {
        Ok(Ok(results)) => Outcome::Results(results),
        Ok(Err(error)) => Outcome::Failed(error),
        Err(panic) => Outcome::Panicked(panic_text(&*panic)),
    };
    (executor, outcome)
}

/// The message of a panic.
pub(super) fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".to_owned())
}
