//! Runs package clients, which download an archive by name and version.
//!
//! Owns the child process and the folder it runs in: files of the user's working folder must not change what it does.
//! Which registry answers is the client's business. Knows no manifest and no hash.

use std::env;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::archive::Format;
use crate::access::Access;
use crate::files::remove_folder;
use crate::io_error::IoError;
use crate::program;
use crate::room;
use crate::source_error::SourceError;

const CLIENT_TIMEOUT: Duration = Duration::from_secs(60 * 60);
const POLL: Duration = Duration::from_millis(20);
/// Ends the search of clients for the folder of a project.
const NO_PROJECT: &str = "{\"private\":true}\n";
/// How much of a failed client's output an error shows.
const SHOWN_BYTES: i64 = 2000;

/// The client of a package ecosystem.
pub(super) struct Client {
    /// The ecosystem's name in messages and in the id of a source.
    pub(super) name: &'static str,
    /// Stands between a package's name and its version.
    pub(super) version_separator: &'static str,
    /// Whether a package may be called `@scope/name`.
    pub(super) has_scopes: bool,
    /// Format of the archives.
    pub(super) format: Format,
    /// Programs to try, in order.
    pub(super) programs: fn(&Access) -> &[String],
    /// The download command as errors show it.
    pub(super) command: &'static [&'static str],
    /// Arguments that run it.
    pub(super) arguments: &'static [&'static str],
    /// Further arguments; the last takes the folder that follows it.
    pub(super) options: &'static [&'static str],
    /// The option that names the platform of an archive, if it has one.
    pub(super) platform: Option<&'static str>,
    /// Output of a program that is there without the client.
    pub(super) missing: Option<&'static str>,
    /// What to install where no program works.
    pub(super) remedy: &'static str,
}

impl Client {
    /// Downloads the archive of one package and returns its path, a file below `folder`.
    ///
    /// # Errors
    /// No client is installed, the client failed, or it did not leave exactly one file.
    pub(super) fn download(
        &self,
        access: &Access,
        wanted: &Wanted<'_>,
        folder: &Path,
    ) -> Result<PathBuf, SourceError> {
        let package = format!("{}{}{}", wanted.package, self.version_separator, wanted.version);
        let log = Log::open(folder.join("client.log"))?;
        let landing = folder.join("landing");
        let workplace = folder.join("client");
        for empty in [&landing, &workplace] {
            remove_folder(empty)?;
            fs::create_dir_all(empty).map_err(IoError::at("create", empty))?;
        }
        let job =
            Job { package: &package, platform: wanted.platform, landing: &landing, workplace: &workplace };
        self.run_first(access, &job, &log)?;
        remove_folder(&workplace)?;
        only_file(&landing)?.ok_or_else(|| SourceError::Archive {
            archive: format!("{} {package}", self.name),
            reason: "the client did not leave exactly one file".into(),
        })
    }

    /// Runs the first program that is a working client.
    fn run_first(&self, access: &Access, job: &Job<'_>, log: &Log) -> Result<(), SourceError> {
        let programs = (self.programs)(access);
        let search = env::var_os("PATH").unwrap_or_default();
        for name in programs {
            let Some(program) = program::locate(name, &search) else { continue };
            let Some((status, output)) = run(&mut self.command(&program, job)?, log)? else { continue };
            if status.success() {
                return Ok(());
            }
            if self.missing.is_some_and(|missing| output.contains(missing)) {
                continue;
            }
            if is_full(&output) || room::is_full(job.landing) {
                let full = std::io::ErrorKind::StorageFull.into();
                return Err(IoError::at("write", job.landing)(full).into());
            }
            let command = format!("{name} {}", self.command.join(" "));
            return Err(SourceError::Client { command, output });
        }
        // Without the download command itself: `python3 -I -m pip`.
        let module = self.command.split_last().map(|(_, module)| module.join(" ")).unwrap_or_default();
        let tried: Vec<String> =
            programs.iter().map(|program| format!("{program} {module}").trim().to_owned()).collect();
        Err(SourceError::NoClient { tried: tried.join(", "), remedy: self.remedy })
    }

    /// The process of one download. It runs in a folder of the store, which also has its temporary files.
    fn command(&self, program: &Path, job: &Job<'_>) -> Result<Command, IoError> {
        let absolute = |path: &Path| std::path::absolute(path).map_err(IoError::at("find", path));
        let (landing, workplace) = (absolute(job.landing)?, absolute(job.workplace)?);
        let temporary = workplace.join("tmp");
        fs::create_dir_all(&temporary).map_err(IoError::at("create", &temporary))?;
        let project = workplace.join("package.json");
        fs::write(&project, NO_PROJECT).map_err(IoError::at("write", &project))?;
        let mut command = program::isolated(program, &workplace);
        command.args(self.arguments);
        command.args(self.platform.zip(job.platform).into_iter().flat_map(|(option, name)| [option, name]));
        command.args(self.options).arg(landing).arg(job.package);
        for name in ["TMPDIR", "TEMP", "TMP"] {
            command.env(name, &temporary);
        }
        Ok(command)
    }
}

/// An archive to download.
pub(super) struct Wanted<'a> {
    pub(super) package: &'a str,
    pub(super) version: &'a str,
    /// That of the archive, if it is not this machine's.
    pub(super) platform: Option<&'a str>,
}

/// One download.
struct Job<'a> {
    /// Name and version.
    package: &'a str,
    platform: Option<&'a str>,
    /// Receives the archive.
    landing: &'a Path,
    /// The client's working folder.
    workplace: &'a Path,
}

/// Whether a client says that the disk is full.
fn is_full(output: &str) -> bool {
    ["No space left on device", "ENOSPC", "Disk quota exceeded", "EDQUOT"]
        .iter()
        .any(|sign| output.contains(sign))
}

/// The output of a client. Its file is locked, also by the client itself: one that outlives this process keeps others from
/// the folders that it writes to.
struct Log {
    path: PathBuf,
    file: File,
}

impl Log {
    /// Opens and locks the file, which may take until another client has ended.
    fn open(path: PathBuf) -> Result<Self, IoError> {
        let file =
            OpenOptions::new().append(true).create(true).open(&path).map_err(IoError::at("create", &path))?;
        // Elsewhere a lock would keep the client from writing.
        #[cfg(unix)]
        file.lock().map_err(IoError::at("lock", &path))?;
        Ok(Self { path, file })
    }

    /// Empties the file, and gives it to a client.
    fn begin(&self) -> Result<File, IoError> {
        self.file.set_len(0).map_err(IoError::at("write", &self.path))?;
        self.file.try_clone().map_err(IoError::at("open", &self.path))
    }
}

/// Runs a command to its end, with its output in `log`; `None` if there is no such program. Its input stays open and ends
/// with this process.
fn run(command: &mut Command, log: &Log) -> Result<Option<(ExitStatus, String)>, SourceError> {
    let (output, errors) = (log.begin()?, log.begin()?);
    let mut child = match command.stdin(Stdio::piped()).stdout(output).stderr(errors).spawn() {
        Ok(child) => child,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(client_error(command, error.to_string())),
    };
    // `wait` would close it.
    let _input = child.stdin.take();
    let deadline = Instant::now() + CLIENT_TIMEOUT;
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Ok(Some((status, end_of(&log.path)?))),
            Ok(None) if Instant::now() < deadline => thread::sleep(POLL),
            Ok(None) => {
                // The child may have ended meanwhile; then both calls fail harmlessly.
                let _ = child.kill();
                let _ = child.wait();
                let limit = CLIENT_TIMEOUT.as_secs();
                return Err(client_error(command, format!("stopped after {limit} s")));
            }
            Err(error) => return Err(client_error(command, error.to_string())),
        }
    }
}

fn client_error(command: &Command, output: String) -> SourceError {
    SourceError::Client { command: command.get_program().display().to_string(), output }
}

/// The last lines of a client's output.
fn end_of(log: &Path) -> Result<String, IoError> {
    let read = || {
        let mut file = File::open(log)?;
        let size = file.metadata()?.len();
        let shown = i64::try_from(size).map_or(SHOWN_BYTES, |size| size.min(SHOWN_BYTES));
        file.seek(SeekFrom::End(-shown))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).trim().to_owned())
    };
    read().map_err(IoError::at("read", log))
}

fn only_file(folder: &Path) -> Result<Option<PathBuf>, IoError> {
    let entries: Vec<PathBuf> = fs::read_dir(folder)
        .and_then(|entries| entries.map(|entry| Ok(entry?.path())).collect())
        .map_err(IoError::at("list", folder))?;
    match entries.as_slice() {
        [only] if only.is_file() => Ok(Some(only.clone())),
        _ => Ok(None),
    }
}
