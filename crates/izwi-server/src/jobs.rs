//! Long pieces of work that outlive their request and the process: each a folder with what was asked, what is done of it, and its
//! result.
//!
//! One process at a time works in the folder of jobs, on one job at a time. Whatever ends the process, the next one goes on at the
//! parts that are done. Knows no request and no model: the worker does the jobs.

pub(crate) mod intake;
mod job;
pub(crate) mod record;

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use izwi_core::engine::RequestId;
use izwi_hub::{IoError, WorkError, WorkFolder, create_private_folder};
use izwi_types::{excerpt, format_bytes, suggest};
use tokio::sync::Notify;

use crate::config::ServerConfig;
use crate::error::{ApiError, JOB_LIMIT, NO_JOB};
use crate::metrics;
pub(crate) use job::{Job, Snapshot};
pub(crate) use record::{Kind, Made, Status};

use record::{Failure, Record};

/// Of the folder of a job whose request is being received.
const INCOMING: &str = "incoming";
const DAY_S: u64 = 86_400;

/// The jobs of a server.
#[derive(Debug)]
pub(crate) struct Jobs {
    config: Limits,
    opened: Mutex<Option<Arc<Opened>>>,
    /// A job was added.
    pub(crate) added: Notify,
}

#[derive(Debug, Clone)]
struct Limits {
    folder: Option<PathBuf>,
    count: usize,
    bytes: u64,
    upload_bytes: u64,
    keep: Duration,
}

/// The folder of jobs, which this process holds.
#[derive(Debug)]
struct Opened {
    folder: WorkFolder,
    jobs: Mutex<BTreeMap<String, Arc<Job>>>,
    /// The number of the last job.
    numbers: AtomicU64,
    /// Requests that are being received, and their bytes.
    incoming: AtomicU64,
    incoming_bytes: AtomicU64,
}

impl Jobs {
    pub(crate) fn new(config: &ServerConfig) -> Self {
        let config = Limits {
            folder: config.jobs.clone(),
            count: config.max_jobs,
            bytes: config.max_jobs_bytes,
            upload_bytes: config.max_job_bytes,
            keep: Duration::from_secs(config.jobs_keep_days.saturating_mul(DAY_S)),
        };
        Self { config, opened: Mutex::new(None), added: Notify::new() }
    }

    /// The folder, opened now if no other process holds it. Blocks on the disk.
    fn opened(&self) -> Result<Arc<Opened>, ApiError> {
        let mut opened = lock(&self.opened);
        if let Some(opened) = &*opened {
            return Ok(Arc::clone(opened));
        }
        let Some(folder) = self.config.folder.clone() else {
            let message =
                "this server has no folder for jobs, and takes none; ask one that `izwi serve` runs";
            return Err(ApiError::invalid("type", message));
        };
        let folder = WorkFolder::open(folder).map_err(|error| match error {
            WorkError::Busy(folder) => {
                let message = "another server of this machine works on the jobs of this folder; ask that one";
                tracing::debug!(folder = %folder.display(), "another server works on the jobs");
                ApiError::JobsElsewhere(message)
            }
            WorkError::Io(error) => internal(&error),
        })?;
        let jobs = Mutex::new(read_all(&folder).map_err(|error| internal(&error))?);
        let numbers = lock(&jobs).values().map(|job| job.number()).max().unwrap_or_default().into();
        let (incoming, incoming_bytes) = (AtomicU64::new(0), AtomicU64::new(0));
        let now = Arc::new(Opened { folder, jobs, numbers, incoming, incoming_bytes });
        now.measure();
        *opened = Some(Arc::clone(&now));
        Ok(now)
    }

    /// All jobs, the newest first. Blocks on the disk.
    pub(crate) fn list(&self) -> Result<Vec<Arc<Job>>, ApiError> {
        if self.config.folder.is_none() {
            return Ok(Vec::new());
        }
        let opened = self.opened()?;
        let mut jobs: Vec<_> = lock(&opened.jobs).values().cloned().collect();
        jobs.sort_by_key(|job| std::cmp::Reverse(job.number()));
        Ok(jobs)
    }

    /// A job. Blocks on the disk.
    ///
    /// # Errors
    /// There is none of this id.
    pub(crate) fn find(&self, id: &str) -> Result<Arc<Job>, ApiError> {
        let known = |jobs: &BTreeMap<String, Arc<Job>>| {
            jobs.get(id).cloned().ok_or_else(|| {
                let hint = suggest(id, "jobs", jobs.keys().map(String::as_str));
                ApiError::Job { message: format!("no job '{}'; {hint}", excerpt(id)), code: NO_JOB }
            })
        };
        match self.config.folder {
            Some(_) => known(&lock(&self.opened()?.jobs)),
            None => known(&BTreeMap::new()),
        }
    }

    /// Whether a job waits or is worked on.
    pub(crate) fn is_active(&self) -> bool {
        let opened = lock(&self.opened).clone();
        opened.is_some_and(|opened| lock(&opened.jobs).values().any(|job| !job.status().is_final()))
    }

    /// Stops and removes a job, and waits until its work has ended.
    ///
    /// # Errors
    /// There is none of this id, or its files cannot be removed.
    pub(crate) async fn remove(self: &Arc<Self>, id: String) -> Result<(), ApiError> {
        let job = self.blocking({
            let id = id.clone();
            move |jobs| jobs.find(&id)
        });
        let job = job.await?;
        job.stop();
        if job.status() == Status::Running {
            // The worker leaves it as it is once it has stopped.
            let _ = job.watch().wait_for(|state| state.record.status != Status::Running).await;
        }
        self.blocking(move |jobs| jobs.forget(&job)).await
    }

    /// Runs `work` where it may block.
    pub(crate) async fn blocking<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&Self) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let jobs = Arc::clone(self);
        let done = tokio::task::spawn_blocking(move || work(&jobs)).await;
        done.unwrap_or_else(|panic| Err(internal(&panic)))
    }

    fn forget(&self, job: &Job) -> Result<(), ApiError> {
        let opened = self.opened()?;
        lock(&opened.jobs).remove(&job.id);
        let removed = job.remove().map_err(|error| internal(&error));
        opened.measure();
        removed
    }

    /// Removes finished jobs that were kept long enough. Blocks on the disk.
    pub(crate) fn expire(&self, now_unix_s: u64) {
        let Ok(opened) = self.opened() else { return };
        let keep_s = self.config.keep.as_secs();
        if keep_s == 0 {
            return;
        }
        let is_old = |job: &&Arc<Job>| {
            let finished = job.snapshot().record.finished_unix_s;
            finished.is_some_and(|finished| now_unix_s.saturating_sub(finished) >= keep_s)
        };
        let old: Vec<_> = lock(&opened.jobs).values().filter(is_old).cloned().collect();
        for job in old {
            tracing::info!(job = job.id, "a finished job was kept long enough and is removed");
            if let Err(error) = self.forget(&job) {
                tracing::warn!(job = job.id, %error, "a job cannot be removed");
            }
        }
    }

    /// The job that waits longest. Blocks on the disk.
    pub(crate) fn next(&self) -> Option<Arc<Job>> {
        let opened = self.opened().ok()?;
        let jobs = lock(&opened.jobs);
        let waiting = jobs.values().filter(|job| job.status() == Status::Queued && !job.is_stopped());
        waiting.min_by_key(|job| job.number()).cloned()
    }

    /// Stops the work on all jobs, which go on in the next process.
    pub(crate) fn stop_all(&self) {
        let Some(opened) = lock(&self.opened).clone() else { return };
        for job in lock(&opened.jobs).values() {
            job.stop();
            if job.status() == Status::Running {
                job.requeue();
            }
        }
    }

    /// Refuses work beyond the bytes that all jobs may take.
    pub(crate) fn check_room(&self, more: u64) -> Result<(), ApiError> {
        let opened = self.opened()?;
        let used = opened.bytes();
        if used.saturating_add(more) <= self.config.bytes {
            return Ok(());
        }
        let (used, limit) = (format_bytes(used), format_bytes(self.config.bytes));
        let message = format!(
            "jobs take {used} of {limit}; delete finished ones, or raise max_jobs_bytes in the settings"
        );
        Err(ApiError::Job { message, code: JOB_LIMIT })
    }

    pub(crate) fn measure(&self) {
        if let Some(opened) = lock(&self.opened).clone() {
            opened.measure();
        }
    }
}

impl Opened {
    /// Bytes of all jobs and of what is being received.
    fn bytes(&self) -> u64 {
        let jobs: u64 = lock(&self.jobs).values().map(|job| job.bytes()).sum();
        jobs.saturating_add(self.incoming_bytes.load(Ordering::Relaxed))
    }

    /// Tells the metrics how many jobs there are of each status.
    fn measure(&self) {
        let jobs = lock(&self.jobs);
        for status in Status::ALL.into_iter().filter(|status| *status != Status::Cancelled) {
            metrics::set_jobs(status.name(), jobs.values().filter(|job| job.status() == status).count());
        }
    }
}

/// The jobs in the folder. What a request that was cut off left is removed; what cannot be read is a failed job.
fn read_all(folder: &WorkFolder) -> Result<BTreeMap<String, Arc<Job>>, IoError> {
    let mut jobs = BTreeMap::new();
    let entries = fs::read_dir(folder.path()).map_err(IoError::at("read", folder.path()))?;
    for entry in entries.flatten() {
        let path = entry.path();
        if !path.is_dir() {
            continue;
        }
        if path.extension().is_some_and(|extension| extension == INCOMING) {
            fs::remove_dir_all(&path).map_err(IoError::at("remove", &path))?;
            continue;
        }
        let Ok(id) = entry.file_name().into_string() else { continue };
        let job = Job::load(id.clone(), path.clone()).unwrap_or_else(|reason| {
            tracing::error!(job = id, folder = %path.display(), reason, "the folder of a job is damaged");
            Job::new(id.clone(), path, damaged(reason))
        });
        jobs.insert(id, Arc::new(job));
    }
    Ok(jobs)
}

/// The state of a job whose folder cannot be read.
fn damaged(reason: String) -> Record {
    let message = format!("the files of this job are damaged: {reason}; delete it and send it again");
    Record {
        number: 0,
        kind: Kind::Speech,
        model: String::new(),
        created_unix_s: 0,
        finished_unix_s: None,
        status: Status::Failed,
        done: 0.0,
        total: None,
        error: Some(Failure { code: "damaged_job".to_owned(), message }),
        result: None,
    }
}

/// The folder of a job's parts cannot be opened. What an attempt before left to do may hold it for a moment.
pub(crate) fn no_parts(error: WorkError) -> ApiError {
    match error {
        WorkError::Busy(_) => ApiError::overloaded("an attempt before still writes; try again later"),
        WorkError::Io(error) => internal(&error),
    }
}

pub(crate) fn internal(error: &dyn std::fmt::Display) -> ApiError {
    ApiError::internal(&error.to_string(), &RequestId::random())
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // No method leaves what is behind it half changed.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
