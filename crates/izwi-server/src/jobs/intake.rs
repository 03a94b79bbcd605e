//! A job whose request is being received: its folder, which appears among the jobs whole or not at all.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use izwi_hub::{IoError, private_file};
use izwi_types::format_bytes;
use tokio::sync::mpsc;

use super::record::{Asked, Record};
use super::{INCOMING, Job, Jobs, Opened, Status, create_private_folder, internal, job, lock};
use crate::error::{ApiError, JOB_LIMIT};

/// Chunks of an upload that wait for the disk.
const CHUNKS: usize = 8;

/// A job that is being received. Dropped before it is queued, it leaves nothing.
#[derive(Debug)]
pub(crate) struct NewJob {
    jobs: Arc<Jobs>,
    opened: Arc<Opened>,
    id: String,
    folder: PathBuf,
    bytes: u64,
}

impl NewJob {
    /// Makes the folder.
    ///
    /// # Errors
    /// There are as many jobs as there may be, no room for `expected` bytes more, or the system refuses.
    pub(crate) async fn begin(jobs: &Arc<Jobs>, expected: u64) -> Result<Self, ApiError> {
        let own = Arc::clone(jobs);
        jobs.blocking(move |jobs| {
            let opened = jobs.opened()?;
            check_upload(jobs, expected)?;
            jobs.check_room(expected)?;
            let limit = jobs.config.count;
            let known = lock(&opened.jobs).len() as u64;
            if known + opened.incoming.fetch_add(1, Ordering::Relaxed) >= limit as u64 {
                opened.incoming.fetch_sub(1, Ordering::Relaxed);
                let message = format!(
                    "there are {known} jobs, and {limit} are allowed; delete finished ones, or raise max_jobs in the settings"
                );
                return Err(ApiError::Job { message, code: JOB_LIMIT });
            }
            let id = format!("job_{}", uuid::Uuid::new_v4().simple());
            let folder = opened.folder.file(&format!("{id}.{INCOMING}"));
            let new = Self { jobs: own, opened, id, folder, bytes: 0 };
            create_private_folder(&new.folder).map_err(|error| refused(&error))?;
            Ok(new)
        })
        .await
    }

    pub(crate) fn upload(&self) -> PathBuf {
        job::upload_in(&self.folder)
    }

    /// Begins to write the file that comes with the request.
    pub(crate) fn receive(&self) -> Upload {
        let (sender, chunks) = mpsc::channel(CHUNKS);
        let path = self.upload();
        Upload { sender, written: tokio::task::spawn_blocking(move || write(&path, chunks)) }
    }

    /// Counts bytes of the file before they are written.
    ///
    /// # Errors
    /// They are more than one job or all may have.
    pub(crate) fn count(&mut self, bytes: usize) -> Result<(), ApiError> {
        let bytes = bytes as u64;
        self.bytes += bytes;
        self.opened.incoming_bytes.fetch_add(bytes, Ordering::Relaxed);
        check_upload(&self.jobs, self.bytes)?;
        self.jobs.check_room(0)
    }

    /// Adds the job to the queue.
    ///
    /// # Errors
    /// The disk is full, or the system refuses.
    pub(crate) async fn queue(self, asked: Asked, model: String, unix_s: u64) -> Result<Arc<Job>, ApiError> {
        let jobs = Arc::clone(&self.jobs);
        jobs.blocking(move |jobs| {
            let kind = asked.kind();
            let record = Record {
                number: self.opened.numbers.fetch_add(1, Ordering::Relaxed) + 1,
                kind,
                model,
                created_unix_s: unix_s,
                finished_unix_s: None,
                status: Status::Queued,
                done: 0.0,
                total: None,
                error: None,
                result: None,
            };
            job::write_new(&self.folder, &asked, &record).map_err(|error| refused(&error))?;
            let place = self.opened.folder.file(&self.id);
            fs::rename(&self.folder, &place)
                .map_err(|error| refused(&IoError::at("write", &place)(error)))?;
            let job = Arc::new(Job::new(self.id.clone(), place, record));
            lock(&self.opened.jobs).insert(self.id.clone(), Arc::clone(&job));
            self.opened.measure();
            jobs.added.notify_one();
            Ok(job)
        })
        .await
    }
}

impl Drop for NewJob {
    fn drop(&mut self) {
        self.opened.incoming.fetch_sub(1, Ordering::Relaxed);
        self.opened.incoming_bytes.fetch_sub(self.bytes, Ordering::Relaxed);
        // The next start removes what is left. A job that is queued has another folder.
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// A file that is being received.
#[derive(Debug)]
pub(crate) struct Upload {
    sender: mpsc::Sender<Bytes>,
    written: tokio::task::JoinHandle<Result<(), IoError>>,
}

impl Upload {
    /// Passes a chunk to the disk.
    ///
    /// # Errors
    /// The disk is full, or the system refuses.
    pub(crate) async fn write(&mut self, chunk: Bytes) -> Result<(), ApiError> {
        if self.sender.send(chunk).await.is_ok() {
            return Ok(());
        }
        end(&mut self.written).await
    }

    /// Waits until all is on the disk.
    ///
    /// # Errors
    /// The disk is full, or the system refuses.
    pub(crate) async fn finish(self) -> Result<(), ApiError> {
        let Self { sender, mut written } = self;
        drop(sender);
        end(&mut written).await
    }
}

async fn end(written: &mut tokio::task::JoinHandle<Result<(), IoError>>) -> Result<(), ApiError> {
    match written.await {
        Ok(written) => written.map_err(|error| refused(&error)),
        Err(panic) => Err(internal(&panic)),
    }
}

fn write(path: &Path, mut chunks: mpsc::Receiver<Bytes>) -> Result<(), IoError> {
    let mut write = || {
        let mut file: File = private_file().create_new(true).open(path)?;
        while let Some(chunk) = chunks.blocking_recv() {
            file.write_all(&chunk)?;
        }
        file.sync_data()
    };
    write().map_err(IoError::at("write", path))
}

fn check_upload(jobs: &Jobs, bytes: u64) -> Result<(), ApiError> {
    let limit = jobs.config.upload_bytes;
    if bytes <= limit {
        return Ok(());
    }
    let limit = format_bytes(limit);
    Err(ApiError::TooLarge(format!(
        "the file has more than {limit}; send it compressed or in parts, or raise max_job_bytes in the settings"
    )))
}

/// A disk that is full is told to the client; other faults of it are not.
fn refused(error: &IoError) -> ApiError {
    match error.source.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => ApiError::Job {
            message: "the disk of the server is full; delete finished jobs".to_owned(),
            code: JOB_LIMIT,
        },
        _ => internal(error),
    }
}
