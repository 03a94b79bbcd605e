//! Callers that wait for a loop: for its next step, until it is drained, until it ends.

use tokio::sync::oneshot;

use crate::engine::error::Result;
use crate::engine::types::EngineOutput;

#[derive(Debug, Default)]
pub(in crate::engine) struct Waiters {
    /// Results of the current step.
    pub(in crate::engine) outputs: Vec<EngineOutput>,
    pub(in crate::engine) step: Vec<oneshot::Sender<Result<Vec<EngineOutput>>>>,
    pub(in crate::engine) drained: Vec<oneshot::Sender<()>>,
    pub(in crate::engine) end: Vec<oneshot::Sender<Result<()>>>,
}

impl Waiters {
    /// Returns the results of the current step. Callers that stopped waiting are left out.
    pub(in crate::engine) fn answer_steps(&mut self) {
        let outputs = std::mem::take(&mut self.outputs);
        for waiter in self.step.drain(..) {
            let _ = waiter.send(Ok(outputs.clone()));
        }
    }

    pub(in crate::engine) fn answer_drained(&mut self) {
        self.drained.drain(..).for_each(|waiter| _ = waiter.send(()));
    }

    /// The loop has ended as `verdict` says. It is drained no more.
    pub(in crate::engine) fn answer_end(&mut self, verdict: &Result<()>) {
        self.drained.clear();
        self.end.drain(..).for_each(|waiter| _ = waiter.send(verdict.clone()));
    }
}
