//! Takes package archives through the client of their ecosystem, as a person would: by name and version. Which
//! registry answers is the client's own business.

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::remove;
use super::unpack::{Archive, Format};
use crate::access::Access;
use crate::digest;
use crate::error::{IoError, SourceError};
use crate::manifest::{Ecosystem, Package};
use crate::progress::ProgressSink;

const CLIENT_TIMEOUT: Duration = Duration::from_secs(60 * 60);
const POLL: Duration = Duration::from_millis(20);
/// How much of a failed client's output is shown.
const SHOWN_BYTES: i64 = 2000;

/// Brings the archive of every package into `folder`, each checked; one that is there already is kept.
pub(super) fn archives(
    ecosystem: Ecosystem,
    packages: &[Package],
    folder: &Path,
    access: &Access,
    progress: &mut dyn ProgressSink,
) -> Result<Vec<Archive>, SourceError> {
    fs::create_dir_all(folder).map_err(IoError::at("create", folder))?;
    let client = Client { ecosystem, access, folder };
    packages
        .iter()
        .map(|package| {
            let path = folder.join(&package.sha256);
            if !path.exists() || digest::of_file(&path)?.sha256 != package.sha256 {
                client.fetch(package, &path, progress)?;
            }
            let format = match ecosystem {
                Ecosystem::Pip => Format::Zip,
                Ecosystem::Npm => Format::TarGz,
            };
            Ok(Archive { name: ecosystem.id_of(package), path, format })
        })
        .collect()
}

struct Client<'a> {
    ecosystem: Ecosystem,
    access: &'a Access,
    folder: &'a Path,
}

impl Client<'_> {
    fn fetch(
        &self,
        package: &Package,
        target: &Path,
        progress: &mut dyn ProgressSink,
    ) -> Result<(), SourceError> {
        let id = self.ecosystem.id_of(package);
        progress.note(&format!("downloading {id}"));
        let landing = self.folder.join("landing");
        if landing.exists() {
            fs::remove_dir_all(&landing).map_err(IoError::at("remove", &landing))?;
        }
        fs::create_dir_all(&landing).map_err(IoError::at("create", &landing))?;
        self.run(package, &landing)?;

        let archive = only_file(&landing)?.ok_or_else(|| SourceError::Archive {
            archive: id.clone(),
            reason: "the client did not leave exactly one file".into(),
        })?;
        let found = digest::of_file(&archive)?;
        if found.sha256 != package.sha256 {
            remove(&archive)?;
            return Err(SourceError::Checksum {
                file: id,
                expected: package.sha256.clone(),
                found: found.sha256,
            });
        }
        fs::rename(&archive, target).map_err(IoError::at("rename", &archive))?;
        Ok(())
    }

    /// Tries each command until one is a working client, and lets that one download into `landing`.
    fn run(&self, package: &Package, landing: &Path) -> Result<(), SourceError> {
        let programs = match self.ecosystem {
            Ecosystem::Pip => &self.access.python,
            Ecosystem::Npm => &self.access.npm,
        };
        for program in programs {
            let mut command = Command::new(program);
            self.arguments(&mut command, package, landing);
            let Some((status, output)) = run(&mut command, &self.folder.join("client.log"))? else {
                continue;
            };
            if status.success() {
                return Ok(());
            }
            if self.ecosystem == Ecosystem::Pip && output.contains("No module named pip") {
                continue;
            }
            let what = match self.ecosystem {
                Ecosystem::Pip => "-m pip download",
                Ecosystem::Npm => "pack",
            };
            return Err(SourceError::Client { command: format!("{program} {what}"), output });
        }
        let (tried, remedy) = match self.ecosystem {
            Ecosystem::Pip => ("-m pip", "install Python with pip (e.g. the package python3-pip)"),
            Ecosystem::Npm => ("", "install Node.js, which brings npm"),
        };
        let tried: Vec<String> =
            programs.iter().map(|program| format!("{program} {tried}").trim().to_owned()).collect();
        Err(SourceError::NoClient { tried: tried.join(", "), remedy })
    }

    fn arguments(&self, command: &mut Command, package: &Package, landing: &Path) {
        let Package { name, version, .. } = package;
        match self.ecosystem {
            Ecosystem::Pip => command
                .args(["-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"])
                .args(["--no-input", "--disable-pip-version-check", "--dest"])
                .arg(landing)
                .arg(format!("{name}=={version}")),
            Ecosystem::Npm => command
                .args(["pack", "--silent", "--ignore-scripts", "--pack-destination"])
                .arg(landing)
                .arg(format!("{name}@{version}")),
        };
        // The hub's token is no business of a package client.
        command.env_remove("HF_TOKEN");
    }
}

/// Runs a command to its end, its output going to `log`; `None` if there is no such program.
fn run(command: &mut Command, log: &Path) -> Result<Option<(ExitStatus, String)>, SourceError> {
    let output = File::create(log).map_err(IoError::at("create", log))?;
    let errors = output.try_clone().map_err(IoError::at("open", log))?;
    let mut child = match command.stdin(Stdio::null()).stdout(output).stderr(errors).spawn() {
        Ok(child) => child,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(client_error(command, error.to_string())),
    };
    let deadline = Instant::now() + CLIENT_TIMEOUT;
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Ok(Some((status, end_of(log)?))),
            Ok(None) if Instant::now() < deadline => thread::sleep(POLL),
            Ok(None) => {
                // It may have ended meanwhile, which is as good.
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

/// The last lines of what a client printed.
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
