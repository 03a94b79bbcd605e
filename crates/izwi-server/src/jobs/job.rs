//! One job: its folder, its state as others see it, and the wish that it stops.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use izwi_hub::{IoError, folder_bytes, write_private};
use serde::de::DeserializeOwned;
use tokio::sync::watch;

use super::record::{Asked, Failure, Made, Record, Status};
use crate::metrics;

/// Files of a job's folder.
const STATE: &str = "job.json";
const REQUEST: &str = "request.json";
const UPLOAD: &str = "upload";
const RESULT: &str = "result";
/// Its folder of what is done in parts.
const PARTS: &str = "parts";
/// The largest state. A request may have a book in it.
const MAX_STATE_BYTES: u64 = 1 << 20;
const MAX_REQUEST_BYTES: u64 = 1 << 30;
/// How often the removal of a folder is tried again, and the pause before.
const REMOVALS: usize = 50;
const REMOVAL_PAUSE: Duration = Duration::from_millis(20);

/// What others see of a job.
#[derive(Debug, Clone)]
pub(crate) struct Snapshot {
    pub(crate) record: Record,
    /// Seconds until it is done, as far as they can be told.
    pub(crate) remaining_s: Option<u64>,
}

/// A job of this server.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) id: String,
    folder: PathBuf,
    /// Bytes of its folder, as far as they are counted.
    bytes: AtomicU64,
    state: watch::Sender<Snapshot>,
    stop: watch::Sender<bool>,
    /// When its work began in this process, and what was done by then.
    begun: watch::Sender<Option<(Instant, f64)>>,
}

impl Job {
    /// A job whose files are in `folder`.
    pub(crate) fn new(id: String, folder: PathBuf, record: Record) -> Self {
        let bytes = AtomicU64::new(folder_bytes(&folder));
        let state = watch::Sender::new(Snapshot { record, remaining_s: None });
        Self { id, folder, bytes, state, stop: watch::Sender::new(false), begun: watch::Sender::new(None) }
    }

    /// Reads the job of a folder.
    ///
    /// # Errors
    /// Its state cannot be read; the message says why.
    pub(crate) fn load(id: String, folder: PathBuf) -> Result<Self, String> {
        let mut record: Record = read_json(&folder.join(STATE), MAX_STATE_BYTES)?;
        if !record.status.is_final() {
            let _: Asked = read_json(&folder.join(REQUEST), MAX_REQUEST_BYTES)?;
            record.status = Status::Queued;
        }
        if record.status == Status::Completed && !folder.join(RESULT).is_file() {
            return Err("its result is gone".to_owned());
        }
        Ok(Self::new(id, folder, record))
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        self.state.borrow().clone()
    }

    /// The state, and what becomes of it.
    pub(crate) fn watch(&self) -> watch::Receiver<Snapshot> {
        self.state.subscribe()
    }

    pub(crate) fn status(&self) -> Status {
        self.state.borrow().record.status
    }

    pub(crate) fn number(&self) -> u64 {
        self.state.borrow().record.number
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Counts bytes that were added to its folder.
    pub(crate) fn add_bytes(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn upload(&self) -> PathBuf {
        self.folder.join(UPLOAD)
    }

    pub(crate) fn parts(&self) -> PathBuf {
        self.folder.join(PARTS)
    }

    pub(crate) fn result(&self) -> PathBuf {
        self.folder.join(RESULT)
    }

    /// What it was asked for.
    ///
    /// # Errors
    /// The file is damaged; the message says why.
    pub(crate) fn asked(&self) -> Result<Asked, String> {
        read_json(&self.folder.join(REQUEST), MAX_REQUEST_BYTES)
    }

    /// Tells how much is done; not kept on disk, where the parts tell it.
    pub(crate) fn progress(&self, done: f64, total: f64) {
        let begun = *self.begun.borrow();
        self.state.send_modify(|state| {
            (state.record.done, state.record.total) = (done, Some(total));
            state.remaining_s = begun.and_then(|(begun, before)| {
                let (elapsed_s, more) = (begun.elapsed().as_secs_f64(), done - before);
                (more > 0.0).then(|| (elapsed_s / more * (total - done).max(0.0)).ceil() as u64)
            });
        });
    }

    /// Begins to measure the time, after what was done before is counted.
    pub(crate) fn begin_measuring(&self) {
        let done = self.state.borrow().record.done;
        self.begun.send_replace(Some((Instant::now(), done)));
    }

    /// Sets it running. False if it is stopped already: then its folder may be gone.
    ///
    /// # Errors
    /// The state cannot be written.
    pub(crate) fn start(&self) -> Result<bool, IoError> {
        let begins = self.turn(Status::Queued, Status::Running);
        if !begins || self.is_stopped() {
            self.requeue();
            return Ok(false);
        }
        write_state(&self.folder, &self.snapshot().record).map(|()| true)
    }

    /// Takes it back into the queue if it runs.
    pub(crate) fn requeue(&self) {
        self.turn(Status::Running, Status::Queued);
    }

    /// Changes the status if it is `from`. Returns whether it was.
    fn turn(&self, from: Status, to: Status) -> bool {
        self.state.send_if_modified(|state| {
            let turns = state.record.status == from;
            if turns {
                (state.record.status, state.remaining_s) = (to, None);
            }
            turns
        })
    }

    /// Ends it, and removes all files but its result.
    ///
    /// # Errors
    /// The state cannot be written.
    pub(crate) fn finish(&self, ended: Result<Made, Failure>, unix_s: u64) -> Result<(), IoError> {
        let written = self.change(|record| {
            record.finished_unix_s = Some(unix_s);
            match ended {
                Ok(made) => {
                    record.status = Status::Completed;
                    record.done = record.total.unwrap_or(record.done);
                    record.result = Some(made);
                }
                Err(failure) => {
                    record.status = Status::Failed;
                    record.error = Some(failure);
                }
            }
        });
        self.state.send_modify(|state| state.remaining_s = None);
        // What is left is removed with the job.
        let _ = fs::remove_dir_all(self.parts());
        let _ = fs::remove_file(self.upload());
        let _ = fs::remove_file(self.folder.join(REQUEST));
        self.bytes.store(folder_bytes(&self.folder), Ordering::Relaxed);
        let record = self.snapshot().record;
        metrics::count_job(record.kind.name(), record.status.name());
        written
    }

    fn change(&self, change: impl FnOnce(&mut Record)) -> Result<(), IoError> {
        let mut record = self.snapshot().record;
        change(&mut record);
        let written = write_state(&self.folder, &record);
        self.state.send_modify(|state| state.record = record);
        written
    }

    /// Asks its work to stop.
    pub(crate) fn stop(&self) {
        self.stop.send_replace(true);
    }

    pub(crate) fn is_stopped(&self) -> bool {
        *self.stop.borrow()
    }

    /// Waits until it is asked to stop.
    pub(crate) async fn stopped(&self) {
        // The sender lives as long as this job.
        let _ = self.stop.subscribe().wait_for(|stop| *stop).await;
    }

    /// Removes its folder. Whoever watches it sees that it is cancelled.
    ///
    /// # Errors
    /// The system refuses.
    pub(crate) fn remove(&self) -> Result<(), IoError> {
        let mut removed = fs::remove_dir_all(&self.folder);
        for _ in 0..REMOVALS {
            match &removed {
                // Its work may write a last file meanwhile.
                Err(error) if error.kind() != ErrorKind::NotFound => std::thread::sleep(REMOVAL_PAUSE),
                _ => break,
            }
            removed = fs::remove_dir_all(&self.folder);
        }
        let removed = match removed {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                Err(IoError::at("remove", &self.folder)(error))
            }
            _ => Ok(()),
        };
        if !self.status().is_final() {
            let kind = self.snapshot().record.kind;
            metrics::count_job(kind.name(), Status::Cancelled.name());
            self.state.send_modify(|state| state.record.status = Status::Cancelled);
        }
        removed
    }
}

/// The file for what comes with a request, in a folder.
pub(super) fn upload_in(folder: &Path) -> PathBuf {
    folder.join(UPLOAD)
}

/// Writes what a job was asked for, and its state, into its folder.
///
/// # Errors
/// The disk is full, or the system refuses.
pub(super) fn write_new(folder: &Path, asked: &Asked, record: &Record) -> Result<(), IoError> {
    write_private(&folder.join(REQUEST), &serde_json::to_vec(asked).unwrap_or_default())?;
    write_state(folder, record)
}

fn write_state(folder: &Path, record: &Record) -> Result<(), IoError> {
    write_private(&folder.join(STATE), &serde_json::to_vec(record).unwrap_or_default())
}

fn read_json<T: DeserializeOwned>(path: &Path, max_bytes: u64) -> Result<T, String> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let file = File::open(path).map_err(|error| format!("{name} cannot be read: {error}"))?;
    let bytes = file.metadata().map_err(|error| format!("{name} cannot be read: {error}"))?.len();
    if bytes > max_bytes {
        return Err(format!("{name} has more than {max_bytes} bytes"));
    }
    serde_json::from_reader(std::io::BufReader::new(file))
        .map_err(|error| format!("{name} is damaged: {error}"))
}
