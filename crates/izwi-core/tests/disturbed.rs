//! An executor whose steps take another time, or fail after they have computed.

use std::sync::Arc;

use izwi_core::engine::executor::{
    ExecutorError, ItemResult, ModelExecutor, RequestPreparer, SimulatedTime, StepPlan,
};
use izwi_core::engine::qos::cost::StepShape;
use izwi_core::engine::{ExecutorProfile, SequenceId};

pub(crate) struct Disturbed {
    inner: Box<dyn ModelExecutor>,
    time: Box<dyn Fn(SimulatedTime) -> SimulatedTime + Send>,
    check: fn(&StepPlan) -> Result<(), ExecutorError>,
}

impl Disturbed {
    /// Steps take the time that `time` makes of their own.
    pub(crate) fn slowed(
        inner: Box<dyn ModelExecutor>,
        time: impl Fn(SimulatedTime) -> SimulatedTime + Send + 'static,
    ) -> Self {
        Self { inner, time: Box::new(time), check: |_| Ok(()) }
    }

    /// Steps fail as `check` says.
    pub(crate) fn failing(
        inner: Box<dyn ModelExecutor>,
        check: fn(&StepPlan) -> Result<(), ExecutorError>,
    ) -> Self {
        Self { inner, time: Box::new(|time| time), check }
    }
}

impl ModelExecutor for Disturbed {
    fn profile(&self) -> Arc<ExecutorProfile> {
        self.inner.profile()
    }

    fn preparer(&self) -> Arc<dyn RequestPreparer> {
        self.inner.preparer()
    }

    fn initialize(&mut self) -> Result<Option<StepShape>, ExecutorError> {
        self.inner.initialize()
    }

    fn execute(&mut self, plan: &StepPlan) -> Result<Vec<ItemResult>, ExecutorError> {
        let results = self.inner.execute(plan)?;
        (self.check)(plan)?;
        Ok(results)
    }

    fn simulated_time(&mut self, plan: &StepPlan) -> Option<SimulatedTime> {
        self.inner.simulated_time(plan).map(&self.time)
    }

    fn release(&mut self, sequences: &[SequenceId]) {
        self.inner.release(sequences);
    }

    fn shutdown(&mut self) {
        self.inner.shutdown();
    }
}
