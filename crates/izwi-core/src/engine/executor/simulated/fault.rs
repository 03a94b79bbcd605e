//! Failures that a script injects into steps.

use crate::engine::executor::StepPlan;
use crate::engine::types::SequenceId;

/// A failure to inject into a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The whole step fails.
    Step,
    /// This sequence fails.
    Sequence(SequenceId),
    /// The samples of this sequence are no numbers.
    NonFinite(SequenceId),
    /// The executor panics.
    Panic,
    /// The device gives up the step.
    Device,
}

/// Returns the failure to inject into a step. May block, to keep a step in flight.
pub type Script = Box<dyn FnMut(&StepPlan) -> Option<Fault> + Send>;
