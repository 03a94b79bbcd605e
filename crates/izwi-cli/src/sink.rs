//! Where results go: spoken audio into a file, standard output or a player, transcripts into files. Decides no format
//! but WAV and knows no engine.

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use izwi_audio::{pcm, wav};

use crate::failure;
use crate::output;

/// Where `izwi say` writes, as the user asked for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Target {
    /// A file.
    File(PathBuf),
    /// Standard output.
    Stdout,
    /// Nowhere: it is only played.
    None,
}

/// The facts that the choice of a target depends on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Request<'a> {
    /// The path after `-o`.
    pub(crate) output: Option<&'a Path>,
    /// Whether it is played.
    pub(crate) play: bool,
    /// Whether standard output carries a JSON object.
    pub(crate) json: bool,
    /// Whether standard output is a terminal.
    pub(crate) stdout_is_terminal: bool,
}

/// The file that is written when none is named.
const DEFAULT_FILE: &str = "izwi.wav";

impl Target {
    /// Chooses. Pure: the file system is asked later.
    ///
    /// # Errors
    /// What was asked for contradicts itself or cannot be.
    pub(crate) fn choose(request: Request<'_>) -> Result<Self> {
        match request.output {
            Some(path) if path == Path::new("-") => match request {
                Request { json: true, .. } => {
                    Err(failure::usage("-o - and --json both write to standard output", "give -o a file"))
                }
                Request { stdout_is_terminal: true, .. } => Err(failure::usage(
                    "standard output is a terminal, which cannot hear",
                    "pipe it into a program, give -o a file, or use --play",
                )),
                _ => Ok(Self::Stdout),
            },
            Some(path) => {
                let extension = path.extension().map(|extension| extension.to_string_lossy().to_lowercase());
                match extension.as_deref() {
                    None | Some("wav" | "wave") => Ok(Self::File(path.to_path_buf())),
                    // A name that would promise another format than the one inside.
                    Some(other) if !is_special(path) => Err(failure::usage(
                        format!("'{}' asks for {other}, and izwi say writes WAV", path.display()),
                        "name a .wav file; `izwi serve` encodes other formats",
                    )),
                    Some(_) => Ok(Self::File(path.to_path_buf())),
                }
            }
            None if request.play => Ok(Self::None),
            None if request.stdout_is_terminal || request.json => Ok(Self::File(PathBuf::from(DEFAULT_FILE))),
            None => Err(failure::usage(
                "standard output is not a terminal, and nothing says where the audio goes",
                "add -o FILE, -o - for WAV on standard output, or --play",
            )),
        }
    }

    /// How reports name it.
    pub(crate) fn label(&self) -> String {
        match self {
            Self::File(path) => path.display().to_string(),
            Self::Stdout => "standard output".to_owned(),
            Self::None => "played".to_owned(),
        }
    }
}

/// Whether something is there that is neither a file nor a folder: a device, a pipe.
fn is_special(path: &Path) -> bool {
    path.metadata().is_ok_and(|found| !found.is_file() && !found.is_dir())
}

/// Checks that a file can be written there, before anything is computed.
///
/// # Errors
/// Its folder is missing or takes no new file, or the path is a folder.
pub(crate) fn check_file(path: &Path) -> Result<()> {
    PendingFile::begin(path).map(drop)
}

/// Writes a whole WAV file: it appears complete, or not at all.
///
/// # Errors
/// The file cannot be written.
pub(crate) fn write_file(path: &Path, samples: &[f32], sample_rate_hz: u32) -> Result<()> {
    let cannot = || format!("cannot write {}", path.display());
    match PendingFile::begin(path)? {
        PendingFile::InPlace(path) => {
            write_device(&path, &wav::to_bytes(samples, sample_rate_hz)?).with_context(cannot)
        }
        PendingFile::Beside { file, place } => {
            wav::write_file(file.path(), samples, sample_rate_hz).with_context(cannot)?;
            file.persist(place).map(drop).map_err(|error| error.error).with_context(cannot)
        }
    }
}

/// Writes a whole file of any kind: it appears complete, or not at all.
///
/// # Errors
/// The file cannot be written.
pub(crate) fn write_bytes(path: &Path, bytes: &[u8]) -> Result<()> {
    let cannot = || format!("cannot write {}", path.display());
    match PendingFile::begin(path)? {
        PendingFile::InPlace(path) => write_device(&path, bytes).with_context(cannot),
        PendingFile::Beside { mut file, place } => {
            file.write_all(bytes).with_context(cannot)?;
            file.persist(place).map(drop).map_err(|error| error.error).with_context(cannot)
        }
    }
}

/// Devices and pipes cannot seek: all bytes in one go.
fn write_device(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    OpenOptions::new().write(true).open(path)?.write_all(bytes)
}

/// A file under way: written beside its place and moved there at the end.
enum PendingFile {
    Beside {
        file: tempfile::NamedTempFile,
        place: PathBuf,
    },
    /// A device or a pipe is written as it is; nothing may take its place.
    InPlace(PathBuf),
}

impl PendingFile {
    fn begin(path: &Path) -> Result<Self> {
        let cannot = || format!("cannot write {}", path.display());
        if is_special(path) {
            return Ok(Self::InPlace(path.to_path_buf()));
        }
        if path.is_dir() {
            return Err(failure::with_help(format!("{} is a folder", path.display()), "name a file in it"));
        }
        // Through a link to the file it names, so that the link stays.
        let place =
            if path.exists() { fs::canonicalize(path).with_context(cannot)? } else { path.to_path_buf() };
        if path.exists() {
            OpenOptions::new().write(true).open(&place).with_context(cannot)?;
        }
        let folder = match place.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder,
            _ => Path::new("."),
        };
        if !folder.is_dir() {
            let message = format!("cannot write {}: there is no folder {}", path.display(), folder.display());
            return Err(failure::with_help(message, "create the folder, or name another"));
        }
        let mut builder = tempfile::Builder::new();
        builder.prefix(".izwi-").suffix(".part");
        #[cfg(unix)]
        let permissions = {
            use std::os::unix::fs::PermissionsExt as _;
            // What a plainly created file gets: the umask takes its part.
            fs::Permissions::from_mode(0o666)
        };
        #[cfg(unix)]
        builder.permissions(permissions);
        let file = builder.tempfile_in(folder).with_context(cannot)?;
        Ok(Self::Beside { file, place })
    }
}

/// Writes a whole WAV to standard output.
///
/// # Errors
/// It was closed, or the audio is longer than a WAV can be.
pub(crate) fn write_stdout(samples: &[f32], sample_rate_hz: u32) -> Result<()> {
    output::write_bytes(&wav::to_bytes(samples, sample_rate_hz)?)
}

/// Begins a WAV of unknown length on standard output.
///
/// # Errors
/// It was closed.
pub(crate) fn begin_stdout_stream(sample_rate_hz: u32) -> Result<()> {
    output::write_bytes(&wav::streaming_header(sample_rate_hz))
}

/// Goes on with it.
///
/// # Errors
/// It was closed.
pub(crate) fn stream_to_stdout(samples: &[f32]) -> Result<()> {
    let mut bytes = Vec::with_capacity(samples.len() * 2);
    pcm::write_i16_le(samples, &mut bytes);
    output::write_bytes(&bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(output: Option<&str>, play: bool, json: bool, stdout_is_terminal: bool) -> Result<Target> {
        Target::choose(Request { output: output.map(Path::new), play, json, stdout_is_terminal })
    }

    #[test]
    fn the_target_is_what_was_asked_for() {
        for (output, play, json, terminal, expected) in [
            (None, false, false, true, Target::File("izwi.wav".into())),
            (None, false, true, false, Target::File("izwi.wav".into())),
            (None, true, false, false, Target::None),
            (Some("-"), false, false, false, Target::Stdout),
            (Some("a.WAV"), true, false, true, Target::File("a.WAV".into())),
            (Some("plain"), false, false, false, Target::File("plain".into())),
        ] {
            assert_eq!(chosen(output, play, json, terminal).unwrap(), expected, "{output:?}");
        }
    }

    #[test]
    fn what_cannot_be_is_refused_with_a_remedy() {
        for (output, json, terminal, part) in [
            (None, false, false, "where the audio goes"),
            (Some("-"), true, false, "both write"),
            (Some("-"), false, true, "is a terminal"),
            (Some("a.mp3"), false, false, "asks for mp3"),
        ] {
            let error = chosen(output, false, json, terminal).unwrap_err();
            assert!(error.to_string().contains(part), "{error}");
            assert!(failure::render(&error).contains("help: "), "{error}");
        }
    }

    #[test]
    fn a_file_is_replaced_whole_and_leaves_nothing_beside_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.wav");
        fs::write(&path, "old").unwrap();
        check_file(&path).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"old", "a check changes nothing");
        write_file(&path, &[0.0; 24], 24_000).unwrap();
        assert_eq!(fs::read(&path).unwrap().len(), 44 + 48);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn folders_and_missing_folders_are_named() {
        let folder = tempfile::tempdir().unwrap();
        assert!(check_file(folder.path()).unwrap_err().to_string().contains("is a folder"));
        let missing = folder.path().join("no/a.wav");
        assert!(check_file(&missing).unwrap_err().to_string().contains("no/a.wav"));
    }

    #[cfg(unix)]
    #[test]
    fn devices_are_written_and_links_followed() {
        write_file(Path::new("/dev/null"), &[0.0; 24], 24_000).unwrap();
        assert!(is_special(Path::new("/dev/null")));

        let folder = tempfile::tempdir().unwrap();
        let (real, link) = (folder.path().join("real.wav"), folder.path().join("link.wav"));
        fs::write(&real, "old").unwrap();
        std::os::unix::fs::symlink(&real, &link).unwrap();
        write_file(&link, &[0.0; 24], 24_000).unwrap();
        assert!(link.is_symlink());
        assert_eq!(fs::read(&real).unwrap().len(), 92);
    }
}
