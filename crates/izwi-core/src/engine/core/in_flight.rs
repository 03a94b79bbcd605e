//! An in-flight step: the executor moves to a blocking thread with its plan and returns with the results.
//! In simulated time it moves to a task, which waits for as long as the executor says that the step takes.
//!
//! Must not know queues or sessions.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::{JoinError, JoinHandle};
use tokio::time::{Instant, timeout, timeout_at};

use crate::engine::executor::{
    ExecutorError, ItemResult, ModelExecutor, SimulatedTime, StepPlan, with_yields,
};
use crate::engine::qos::arbiter::{Member, SharedTurn, TurnRequest, TurnTimes};
use crate::engine::qos::cost::StepShape;
use crate::engine::scheduler::ScheduleResult;
use crate::engine::types::{FinishReason, SequenceId};
use izwi_types::StepOutput;

/// The least time after which a step hangs, and how many times as long as expected it takes at least then.
const MAX_STEP: (Duration, u32) = (Duration::from_secs(300), 8);

/// A step being executed.
pub(super) struct InFlightStep {
    pub(super) schedule: Arc<ScheduleResult>,
    /// The longest time that it was expected to take.
    predicted: Duration,
    handle: JoinHandle<(Executed, StepTimes)>,
}

/// The executor and what came of its step, or why its thread was lost.
pub(super) type Executed = std::result::Result<(Box<dyn ModelExecutor>, Outcome), String>;

/// Where the time of a step went.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct StepTimes {
    /// Waiting for the device.
    pub(super) waited: Duration,
    /// Executing.
    pub(super) executed: Duration,
    /// Between two of its yield points at most.
    pub(super) longest_piece: Duration,
}

/// The end of a step, or that its task was lost.
pub(super) type Joined = std::result::Result<(Executed, StepTimes), JoinError>;

pub(super) enum Outcome {
    Results(Vec<ItemResult>),
    Failed(ExecutorError),
    Panicked(String),
}

/// An executed step.
pub(super) struct Returned {
    /// How much later it ended than was expected at the latest.
    pub(super) late: Duration,
    pub(super) schedule: Arc<ScheduleResult>,
    pub(super) times: StepTimes,
    /// Why there is none, if its thread was lost.
    pub(super) executor: std::result::Result<Box<dyn ModelExecutor>, String>,
    /// One result per item of the schedule.
    pub(super) results: Vec<ItemResult>,
    /// Whether the step failed, not single items of it: one of them may be the reason.
    pub(super) failed: bool,
    pub(super) panicked: bool,
}

/// One sequence's result, after queues and block accounting are updated.
pub(super) struct CompletedItem {
    pub(super) sequence: SequenceId,
    pub(super) result: ItemResult,
    pub(super) finish: Option<FinishReason>,
}

impl InFlightStep {
    /// Executes a plan as soon as the device is granted.
    pub(super) fn launch(
        executor: Box<dyn ModelExecutor>,
        plan: StepPlan,
        device: Arc<Member>,
        request: TurnRequest,
    ) -> Self {
        let (schedule, predicted) = (Arc::clone(&plan.schedule), request.predicted);
        let handle = tokio::spawn(async move {
            let ready_at = Instant::now();
            let turn = device.turn(request).await;
            let started_at = Instant::now();
            let turn = SharedTurn::new(&device, turn);
            let limit = MAX_STEP.0.max(predicted * MAX_STEP.1);
            let executed = within(limit, &turn, execute(executor, plan, turn.clone())).await;
            let took = started_at.elapsed();
            let TurnTimes { rested, longest_piece } = turn.end();
            let times = StepTimes {
                waited: started_at - ready_at + rested,
                executed: took.saturating_sub(rested),
                longest_piece,
            };
            (executed, times)
        });
        Self { schedule, predicted, handle }
    }

    /// Waits for the end of the step. Cancel-safe.
    pub(super) async fn ended(&mut self) -> Joined {
        (&mut self.handle).await
    }

    /// The results.
    pub(super) fn returned(self, joined: Joined) -> Returned {
        let expected = self.schedule.batch_size();
        let fail = |message: String| vec![Err(ExecutorError(message)); expected];
        let (joined, times) = joined.unwrap_or_else(|lost| (Err(lost.to_string()), StepTimes::default()));
        let panicked = matches!(joined, Ok((_, Outcome::Panicked(_))));
        let (executor, results, failed) = match joined {
            Ok((executor, Outcome::Results(results))) if results.len() == expected => {
                (Ok(executor), results, false)
            }
            Ok((executor, Outcome::Results(results))) => {
                let message = format!("executor returned {} of {expected} results", results.len());
                (Ok(executor), fail(message), false)
            }
            Ok((executor, Outcome::Failed(error))) => (Ok(executor), fail(error.0), true),
            Ok((executor, Outcome::Panicked(text))) => {
                (Ok(executor), fail(format!("executor panicked: {text}")), true)
            }
            Err(lost) => (Err(lost.clone()), fail(format!("executor thread was lost: {lost}")), false),
        };
        // Nothing was expected of the first steps.
        let late = match self.predicted.is_zero() {
            true => times.waited,
            false => (times.waited + times.executed).saturating_sub(self.predicted),
        };
        Returned { late, schedule: self.schedule, times, executor, results, failed, panicked }
    }
}

/// Executes a plan on the blocking pool; in simulated time within this task, which then waits. It gives its turn up at its
/// yield points while others are more urgent.
async fn execute(mut executor: Box<dyn ModelExecutor>, plan: StepPlan, turn: SharedTurn) -> Executed {
    if let Some(SimulatedTime { time, pieces }) = executor.simulated_time(&plan) {
        let done = run(executor, &plan);
        let begun = Instant::now();
        for piece in 1..=pieces {
            turn.yield_point().await;
            // Timers count whole milliseconds: each piece rounded by itself would make the step longer.
            tokio::time::sleep_until(
                begun + turn.rested() + time.mul_f64(f64::from(piece) / f64::from(pieces)),
            )
            .await;
        }
        return Ok(done);
    }
    let device = executor.profile().device.clone();
    let run = move || with_yields(&device, move || turn.block_at_yield_point(), || run(executor, &plan));
    tokio::task::spawn_blocking(run).await.map_err(|lost| lost.to_string())
}

/// The result of a step, unless it hangs: it has had the device for `limit`. Its thread cannot be stopped, and the other
/// engines of the device go on.
async fn within(limit: Duration, turn: &SharedTurn, execute: impl Future<Output = Executed>) -> Executed {
    let begun = Instant::now();
    tokio::pin!(execute);
    loop {
        let until = begun + limit + turn.rested();
        match timeout_at(until, &mut execute).await {
            Ok(executed) => return executed,
            Err(_) if until < begun + limit + turn.rested() => {}
            Err(_) => return Err(hangs(limit)),
        }
    }
}

fn hangs(limit: Duration) -> String {
    format!("a step did not end within {} s", limit.as_secs())
}

fn run(mut executor: Box<dyn ModelExecutor>, plan: &StepPlan) -> (Box<dyn ModelExecutor>, Outcome) {
    let run = std::panic::catch_unwind(AssertUnwindSafe(|| executor.execute(plan)));
    let outcome = match run {
        Ok(Ok(results)) => {
            Outcome::Results(results.into_iter().map(|item| item.and_then(check_finite)).collect())
        }
        Ok(Err(error)) => Outcome::Failed(error),
        Err(panic) => Outcome::Panicked(panic_text(&*panic)),
    };
    (executor, outcome)
}

/// Refuses samples that are no numbers: written to a file they would be silence.
fn check_finite(output: StepOutput) -> ItemResult {
    match output.samples.iter().all(|sample| sample.is_finite()) {
        true => Ok(output),
        false => Err(ExecutorError("the model computed samples that are no finite numbers".to_owned())),
    }
}

/// The executor, and the work and the time of each step of its warm-up.
type WarmUp = (Box<dyn ModelExecutor>, std::result::Result<Vec<(StepShape, Duration)>, ExecutorError>);

/// Warms up an executor, each step in a turn of its own.
pub(super) async fn warm_up(
    mut executor: Box<dyn ModelExecutor>,
    device: Arc<Member>,
) -> std::result::Result<WarmUp, String> {
    let (mut steps, mut predicted) = (Vec::new(), Duration::ZERO);
    loop {
        let turn = device.turn(TurnRequest { predicted, is_checked: true, ..TurnRequest::default() }).await;
        let started_at = Instant::now();
        let step = tokio::task::spawn_blocking(move || {
            let run = std::panic::catch_unwind(AssertUnwindSafe(|| executor.initialize()));
            let result = run.unwrap_or_else(|panic| Err(ExecutorError(panic_text(&*panic))));
            (executor, result)
        });
        let ended = timeout(MAX_STEP.0, step).await.map_err(|_| hangs(MAX_STEP.0))?;
        let (returned, result) = ended.map_err(|lost| lost.to_string())?;
        executor = returned;
        match result {
            Ok(Some(shape)) => {
                let schedule = Arc::new(ScheduleResult { shape, ..ScheduleResult::default() });
                let plan = StepPlan { schedule, ..StepPlan::default() };
                if let Some(simulated) = executor.simulated_time(&plan) {
                    tokio::time::sleep(simulated.time).await;
                }
                predicted = started_at.elapsed();
                steps.push((shape, predicted));
            }
            Ok(None) => return Ok((executor, Ok(steps))),
            Err(error) => return Ok((executor, Err(error))),
        }
        drop(turn);
    }
}

/// The message of a panic.
pub(super) fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".to_owned())
}
