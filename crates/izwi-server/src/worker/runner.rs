//! The worker: takes the jobs one after another, as long as the server runs.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;

use super::speech::Reading;
use super::transcription::Transcribing;
use crate::error::ApiError;
use crate::jobs::record::{Asked, Failure};
use crate::jobs::{Job, Jobs, Made, internal};
use crate::state::AppState;

/// Interval at which the folder is looked at: for one that another server held, and for jobs that were kept long enough.
const INTERVAL: Duration = Duration::from_secs(10);
/// The longest pause before a job is tried again, and how often it is without any progress.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
const MAX_TRIES: u32 = 20;

/// Works until the server drains.
pub(crate) async fn run(state: AppState) {
    let jobs = Arc::clone(state.jobs());
    let mut draining = state.draining();
    // The sender lives as long as the state.
    let drained = async { drop(draining.wait_for(|draining| *draining).await) };
    let work = async {
        loop {
            let now = state.unix_s();
            let next = jobs.blocking(move |jobs| {
                jobs.expire(now);
                Ok(jobs.next())
            });
            match next.await {
                Ok(Some(job)) => work_on(&state, &jobs, &job).await,
                _ => drop(tokio::time::timeout(INTERVAL, jobs.added.notified()).await),
            }
        }
    };
    let current = Arc::clone(&jobs);
    tokio::select! {
        () = work => {}
        () = drained => current.stop_all(),
    }
}

async fn work_on(state: &AppState, jobs: &Arc<Jobs>, job: &Arc<Job>) {
    match job.start() {
        Ok(true) => {}
        Ok(false) => return,
        Err(error) => tracing::warn!(job = job.id, %error, "the state of a job cannot be written"),
    }
    jobs.measure();
    tracing::info!(job = job.id, "job begins");
    let tried = AssertUnwindSafe(until_done(state, jobs, job)).catch_unwind();
    let done = tokio::select! {
        done = tried => done.unwrap_or_else(|_| Err(internal(&"the work on a job panicked"))),
        () = job.stopped() => Err(ApiError::Draining),
    };
    if job.is_stopped() {
        // It is deleted, or goes on in another process.
        job.requeue();
        return;
    }
    let (own, now) = (Arc::clone(job), state.unix_s());
    let ended = jobs.blocking(move |jobs| {
        let failure = done.as_ref().err().map(|error| Failure::from(error).code);
        let finished = own.finish(done.map_err(|error| Failure::from(&error)), now);
        jobs.measure();
        tracing::info!(job = own.id, failure, "job ends");
        finished.map_err(|error| internal(&error))
    });
    // The log has the error.
    let _ = ended.await;
}

/// Tries a job again as long as its failures may pass, with what was done before.
async fn until_done(state: &AppState, jobs: &Arc<Jobs>, job: &Arc<Job>) -> Result<Made, ApiError> {
    let (mut tries, mut reached) = (0, 0.0);
    loop {
        let error = match once(state, jobs, job).await {
            Ok(made) => return Ok(made),
            Err(error) => error,
        };
        let done = job.snapshot().record.done;
        tries = if done > reached { 0 } else { tries + 1 };
        reached = done;
        let Some(pause_s) = error.retry_after_s().filter(|_| tries < MAX_TRIES) else { return Err(error) };
        let pause_s = pause_s.max(1 << tries.min(LONGEST_PAUSE.as_secs().ilog2()));
        tracing::debug!(job = job.id, %error, "a job is tried again");
        tokio::time::sleep(Duration::from_secs(pause_s).min(LONGEST_PAUSE)).await;
    }
}

async fn once(state: &AppState, jobs: &Arc<Jobs>, job: &Arc<Job>) -> Result<Made, ApiError> {
    let own = Arc::clone(job);
    let asked = jobs.blocking(move |_| own.asked().map_err(|reason| internal(&reason))).await?;
    let upload = job.upload();
    match &asked {
        Asked::Speech { fields, book } => {
            let book = book.as_deref().map(|name| (&*upload, name));
            Reading::new(state, fields, book).await?.run(jobs, job).await
        }
        Asked::Transcription { parts } => {
            Transcribing::new(state, parts, &upload).await?.run(jobs, job).await
        }
    }
}
