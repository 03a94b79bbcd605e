//! Destinations of results: files that appear whole or not at all, and standard output.
//!
//! Encodes audio in the format of the file's extension. Knows no engine.

use std::fs::{self, OpenOptions};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use izwi_audio::encode::{self, Encoder, EncoderConfig, FORMATS, Format};

use crate::failure;
use crate::output;

/// Format of files without an extension and of standard output.
const DEFAULT_FORMAT: &Format = &encode::WAV;
/// The file of `izwi say` without `-o`.
const DEFAULT_FILE: &str = "izwi.wav";

/// Destination of the audio of `izwi say`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Target {
    /// A file.
    File(PathBuf),
    /// Standard output.
    Stdout,
    /// None: the audio is only played.
    None,
}

/// The inputs of [`Target::choose`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct TargetOptions<'a> {
    /// The path after `-o`.
    pub(crate) output: Option<&'a Path>,
    /// Whether the audio is played.
    pub(crate) play: bool,
    /// Whether standard output carries a JSON object.
    pub(crate) json: bool,
    /// Whether standard output is a terminal.
    pub(crate) stdout_is_terminal: bool,
}

impl Target {
    /// Chooses the destination. Writes nothing.
    ///
    /// # Errors
    /// The options contradict each other, or the extension of the file names an unsupported format.
    pub(crate) fn choose(options: TargetOptions<'_>) -> Result<Self> {
        match options.output {
            Some(path) if path == Path::new("-") => match options {
                TargetOptions { json: true, .. } => {
                    Err(failure::usage("-o - and --json both write to standard output", "give -o a file"))
                }
                TargetOptions { stdout_is_terminal: true, .. } => Err(failure::usage(
                    "standard output is a terminal, which cannot play audio",
                    "pipe it into a program, give -o a file, or use --play",
                )),
                _ => Ok(Self::Stdout),
            },
            Some(path) => match unsupported_extension(path) {
                Some(extension) if !is_special(path) => Err(failure::usage(
                    format!("'{}' asks for {extension}, which is not supported", path.display()),
                    format!("name a file with one of the extensions {}", supported_extensions()),
                )),
                _ => Ok(Self::File(path.to_path_buf())),
            },
            None if options.play => Ok(Self::None),
            None if options.stdout_is_terminal || options.json => Ok(Self::File(PathBuf::from(DEFAULT_FILE))),
            None => Err(failure::usage(
                "standard output is not a terminal, and no destination of the audio is given",
                "add -o FILE, -o - for WAV on standard output, or --play",
            )),
        }
    }

    /// The name in reports.
    pub(crate) fn label(&self) -> String {
        match self {
            Self::File(path) => path.display().to_string(),
            Self::Stdout => "standard output".to_owned(),
            Self::None => "played".to_owned(),
        }
    }
}

/// The extension of a path in lower case.
fn extension(path: &Path) -> Option<String> {
    path.extension().map(|extension| extension.to_string_lossy().to_lowercase())
}

fn unsupported_extension(path: &Path) -> Option<String> {
    extension(path).filter(|extension| Format::by_extension(extension).is_none())
}

fn supported_extensions() -> String {
    let extensions = FORMATS.iter().flat_map(|format| format.extensions);
    extensions.map(|extension| format!(".{extension}")).collect::<Vec<_>>().join(", ")
}

/// Whether the path is a device or a pipe.
fn is_special(path: &Path) -> bool {
    path.metadata().is_ok_and(|found| !found.is_file() && !found.is_dir())
}

/// Checks that a file can be written, before anything is computed.
///
/// # Errors
/// The folder is missing or read-only, or the path is a folder.
pub(crate) fn check_file(path: &Path) -> Result<()> {
    PendingFile::begin(path).map(drop)
}

/// Writes a whole audio file in the format of its extension: it appears complete, or not at all.
///
/// # Errors
/// The file cannot be written, or the format cannot hold the audio.
pub(crate) fn write_audio(path: &Path, samples: &[f32], sample_rate_hz: u32) -> Result<()> {
    let format = extension(path).and_then(|extension| Format::by_extension(&extension));
    let format = format.unwrap_or(DEFAULT_FORMAT);
    write_with(path, |mut file| Ok(format.write_all(samples, sample_rate_hz, &mut file)?))
}

/// Writes a whole file: it appears complete, or not at all.
///
/// # Errors
/// The file cannot be written.
pub(crate) fn write_bytes(path: &Path, bytes: &[u8]) -> Result<()> {
    write_with(path, |file| Ok(file.write_all(bytes).and_then(|()| file.flush())?))
}

fn write_with(path: &Path, write: impl FnOnce(&mut dyn Write) -> Result<()>) -> Result<()> {
    let cannot = || format!("cannot write {}", path.display());
    match PendingFile::begin(path)? {
        PendingFile::InPlace(path) => {
            let file = OpenOptions::new().write(true).open(path).with_context(cannot)?;
            write(&mut BufWriter::new(file)).with_context(cannot)
        }
        PendingFile::Temporary { file, path } => {
            write(&mut BufWriter::new(file.as_file())).with_context(cannot)?;
            file.persist(path).map(drop).map_err(|error| error.error).with_context(cannot)
        }
    }
}

/// A file that is being written.
enum PendingFile {
    /// A temporary file in the same folder, renamed to `path` at the end.
    Temporary { file: tempfile::NamedTempFile, path: PathBuf },
    /// A device or a pipe, which is not replaced.
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
        // A link stays; the file that it points to is replaced.
        let target =
            if path.exists() { fs::canonicalize(path).with_context(cannot)? } else { path.to_path_buf() };
        if path.exists() {
            OpenOptions::new().write(true).open(&target).with_context(cannot)?;
        }
        let folder = match target.parent() {
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
            // The mode of a new file, before the umask.
            fs::Permissions::from_mode(0o666)
        };
        #[cfg(unix)]
        builder.permissions(permissions);
        let file = builder.tempfile_in(folder).with_context(cannot)?;
        Ok(Self::Temporary { file, path: target })
    }
}

/// Writes a whole audio file to standard output.
///
/// # Errors
/// It was closed, or the format cannot hold the audio.
pub(crate) fn write_stdout(samples: &[f32], sample_rate_hz: u32) -> Result<()> {
    output::write_bytes(&DEFAULT_FORMAT.encode_all(samples, sample_rate_hz)?)
}

/// Audio of unknown length on standard output.
#[derive(Debug)]
pub(crate) struct StdoutStream(Box<dyn Encoder>);

impl StdoutStream {
    /// Starts the stream and writes its header.
    ///
    /// # Errors
    /// Standard output was closed.
    pub(crate) fn start(sample_rate_hz: u32) -> Result<Self> {
        let config = EncoderConfig::streamed(sample_rate_hz);
        let mut stream = Self(DEFAULT_FORMAT.encoder(&config)?);
        stream.write(&[])?;
        Ok(stream)
    }

    /// Writes more samples.
    ///
    /// # Errors
    /// Standard output was closed.
    pub(crate) fn write(&mut self, samples: &[f32]) -> Result<()> {
        output::write_bytes(&self.0.push(samples)?)
    }

    /// Writes the end of the stream.
    ///
    /// # Errors
    /// Standard output was closed.
    pub(crate) fn finish(mut self) -> Result<()> {
        output::write_bytes(&self.0.finish()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(output: Option<&str>, play: bool, json: bool, stdout_is_terminal: bool) -> Result<Target> {
        Target::choose(TargetOptions { output: output.map(Path::new), play, json, stdout_is_terminal })
    }

    #[test]
    fn the_target_follows_the_options() {
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
    fn contradicting_options_are_refused_with_a_remedy() {
        for (output, json, terminal, part) in [
            (None, false, false, "no destination of the audio"),
            (Some("-"), true, false, "both write"),
            (Some("-"), false, true, "is a terminal"),
            (Some("a.aac"), false, false, "asks for aac"),
        ] {
            let error = chosen(output, false, json, terminal).unwrap_err();
            assert!(error.to_string().contains(part), "{error}");
            assert!(failure::render(&error).contains("help: "), "{error}");
        }
    }

    #[test]
    fn a_file_is_replaced_whole_without_leftovers() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.wav");
        fs::write(&path, "old").unwrap();
        check_file(&path).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"old", "a check changes nothing");
        write_audio(&path, &[0.0; 24], 24_000).unwrap();
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
    fn devices_are_written_and_links_are_followed() {
        write_audio(Path::new("/dev/null"), &[0.0; 24], 24_000).unwrap();
        assert!(is_special(Path::new("/dev/null")));

        let folder = tempfile::tempdir().unwrap();
        let (real, link) = (folder.path().join("real.wav"), folder.path().join("link.wav"));
        fs::write(&real, "old").unwrap();
        std::os::unix::fs::symlink(&real, &link).unwrap();
        write_audio(&link, &[0.0; 24], 24_000).unwrap();
        assert!(link.is_symlink());
        assert_eq!(fs::read(&real).unwrap().len(), 92);
    }
}
