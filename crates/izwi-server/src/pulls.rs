//! Pulls of models while the server runs: which run, how far they are, and why the last one failed.
//!
//! A pull continues when the client that began it leaves, and ends with the process; the store resumes it later. Knows no
//! route and no wire type.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use izwi_hub::{HubError, ProgressSink, Store};

use crate::error::ApiError;

/// Pulls that may run at once.
const MAX_PULLS: usize = 2;

/// How far a pull is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Pull {
    /// The file that is downloaded.
    pub(crate) file: Option<String>,
    /// Bytes of the file that are on disk.
    pub(crate) done_bytes: u64,
    /// Bytes of the file, 0 if unknown.
    pub(crate) total_bytes: u64,
    /// A phase without a byte count, or a source that failed.
    pub(crate) note: Option<String>,
    /// Why it failed; it runs without.
    pub(crate) failure: Option<String>,
}

/// The pulls by model. Those that succeeded are forgotten.
type Jobs = Arc<Mutex<BTreeMap<String, Pull>>>;

/// The model store of a server, and the pulls from it.
#[derive(Debug)]
pub(crate) struct Pulls {
    store: Option<Store>,
    jobs: Jobs,
}

impl Pulls {
    pub(crate) fn new(store: Option<Store>) -> Self {
        Self { store, jobs: Jobs::default() }
    }

    /// The store; an error where the server has none.
    pub(crate) fn store(&self) -> Result<&Store, ApiError> {
        let message = "this server pulls no models; install one with `izwi pull` and start the server again";
        self.store.as_ref().ok_or_else(|| ApiError::invalid("model", message))
    }

    /// The pulls that run or failed last.
    pub(crate) fn jobs(&self) -> BTreeMap<String, Pull> {
        lock(&self.jobs).clone()
    }

    /// Whether a pull runs.
    pub(crate) fn is_running(&self) -> bool {
        lock(&self.jobs).values().any(|job| job.failure.is_none())
    }

    /// Begins to pull a model, and calls `installed` at its end if it succeeds. A pull that runs already continues.
    pub(crate) fn begin(
        &self,
        name: &str,
        installed: impl FnOnce(&Store) + Send + 'static,
    ) -> Result<Pull, ApiError> {
        let store = self.store()?.clone();
        let begun = {
            let mut jobs = lock(&self.jobs);
            if let Some(running) = jobs.get(name).filter(|job| job.failure.is_none()) {
                return Ok(running.clone());
            }
            if jobs.values().filter(|job| job.failure.is_none()).count() >= MAX_PULLS {
                let message = format!("{MAX_PULLS} models are being pulled already; try again later");
                return Err(ApiError::overloaded(message));
            }
            let begun = Pull::default();
            jobs.insert(name.to_owned(), begun.clone());
            begun
        };
        let (name, jobs) = (name.to_owned(), Arc::clone(&self.jobs));
        tokio::task::spawn_blocking(move || {
            let mut guard = Ends { name: name.clone(), jobs: Arc::clone(&jobs), failure: None };
            tracing::info!(model = name, "pulling a model");
            match store.pull(&name, &mut Sink { name: name.clone(), jobs }) {
                Ok(_) => {
                    tracing::info!(model = name, "model is installed");
                    installed(&store);
                    guard.failure = Some(None);
                }
                Err(error) => guard.failure = Some(Some(explained(&error))),
            }
        });
        Ok(begun)
    }
}

/// An error with its causes, in one line.
fn explained(error: &HubError) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn lock(jobs: &Jobs) -> MutexGuard<'_, BTreeMap<String, Pull>> {
    jobs.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Records the end of a pull, a panic included.
struct Ends {
    name: String,
    jobs: Jobs,
    /// `Some(None)` for success.
    failure: Option<Option<String>>,
}

impl Drop for Ends {
    fn drop(&mut self) {
        let failure = self.failure.take().unwrap_or_else(|| Some("the pull ended abnormally".to_owned()));
        let mut jobs = lock(&self.jobs);
        match failure {
            None => drop(jobs.remove(&self.name)),
            Some(reason) => {
                tracing::error!(model = self.name, reason, "model could not be pulled");
                let failed = Pull { failure: Some(reason), ..Pull::default() };
                jobs.insert(self.name.clone(), failed);
            }
        }
    }
}

/// Writes the progress of a pull into its job.
struct Sink {
    name: String,
    jobs: Jobs,
}

impl Sink {
    fn change(&self, change: impl FnOnce(&mut Pull)) {
        if let Some(job) = lock(&self.jobs).get_mut(&self.name) {
            change(job);
        }
    }
}

impl ProgressSink for Sink {
    fn start(&mut self, file: &str, total: u64) {
        let file = Some(file.to_owned());
        self.change(|job| *job = Pull { file, total_bytes: total, ..Pull::default() });
    }

    fn advance(&mut self, bytes: u64) {
        self.change(|job| job.done_bytes = job.done_bytes.saturating_add(bytes));
    }

    fn finish(&mut self) {
        self.change(|job| *job = Pull { note: job.note.take(), ..Pull::default() });
    }

    fn note(&mut self, message: &str) {
        let note = Some(message.to_owned());
        self.change(|job| job.note = note);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_counts_within_a_file_and_a_file_that_begins_again_counts_from_zero() {
        let jobs = Jobs::default();
        lock(&jobs).insert("m".to_owned(), Pull::default());
        let mut sink = Sink { name: "m".to_owned(), jobs: Arc::clone(&jobs) };
        sink.note("converting");
        sink.start("a", 10);
        sink.advance(4);
        sink.advance(3);
        let job = lock(&jobs)["m"].clone();
        assert_eq!((job.done_bytes, job.total_bytes), (7, 10));
        sink.start("a", 10);
        assert_eq!(lock(&jobs)["m"].done_bytes, 0);
        sink.finish();
        sink.note("the first source failed");
        let job = lock(&jobs)["m"].clone();
        assert_eq!((job.file, job.note.as_deref()), (None, Some("the first source failed")));
    }

    #[tokio::test]
    async fn a_pull_that_fails_is_told_and_may_be_begun_again() {
        let folder = std::env::temp_dir().join(format!("izwi-pulls-{}", std::process::id()));
        let store = Store::open(Some(folder)).unwrap();
        let pulls = Pulls::new(Some(store));
        assert!(Pulls::new(None).begin("none", |_| ()).is_err());
        for _ in 0..2 {
            let begun = pulls.begin("no-such-model", |_| panic!("it is not installed")).unwrap();
            assert_eq!(begun, Pull::default());
            while pulls.jobs()["no-such-model"].failure.is_none() {
                tokio::task::yield_now().await;
            }
            let failure = pulls.jobs()["no-such-model"].failure.clone().unwrap();
            assert!(failure.contains("unknown model 'no-such-model'"), "{failure}");
        }
    }

    #[tokio::test]
    async fn only_some_pulls_run_at_once() {
        let store = Store::open(Some(std::env::temp_dir().join("izwi-pulls-none"))).unwrap();
        let pulls = Pulls::new(Some(store));
        for name in ["a", "b"] {
            lock(&pulls.jobs).insert(name.to_owned(), Pull::default());
        }
        assert_eq!(pulls.begin("c", |_| ()).unwrap_err().code(), "overloaded");
        assert_eq!(pulls.begin("a", |_| ()).unwrap(), Pull::default(), "it runs already");
    }
}
