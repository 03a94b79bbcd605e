//! Destinations of results: files that appear whole or not at all, and standard output.
//!
//! Decides the format of audio. Knows no engine.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use clap::builder::{PossibleValuesParser, TypedValueParser};
use izwi_audio::encode::{self, Encoder, EncoderConfig, FORMATS, Format};

use crate::audio_file::AudioFile;
use crate::failure;
use crate::output;
use crate::pending_file::{PendingFile, is_special};

/// Format where neither `--format` nor an extension names one: of standard output, devices and pipes.
const DEFAULT_FORMAT: &Format = &encode::WAV;
/// The file without `-o`, without its extension.
const DEFAULT_FILE: &str = "izwi";

/// Destination of audio, and its format.
#[derive(Debug, Clone)]
pub(crate) enum Target {
    /// A file.
    File(PathBuf, &'static Format),
    /// Standard output.
    Stdout(&'static Format),
    /// None: the audio is only played.
    None,
}

/// The inputs of [`Target::choose`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct TargetOptions<'a> {
    /// The path after `-o`.
    pub(crate) output: Option<&'a Path>,
    /// The format of `--format`.
    pub(crate) format: Option<&'static Format>,
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
    /// The options contradict each other, or name no format, or one that is not supported.
    pub(crate) fn choose(options: TargetOptions<'_>) -> Result<Self> {
        let default = options.format.unwrap_or(DEFAULT_FORMAT);
        match options.output {
            Some(path) if path == Path::new("-") => match options {
                TargetOptions { json: true, .. } => {
                    Err(failure::usage("-o - and --json both write to standard output", "give -o a file"))
                }
                TargetOptions { stdout_is_terminal: true, .. } => Err(failure::usage(
                    "standard output is a terminal, which cannot play audio",
                    "pipe it into a program, give -o a file, or use --play",
                )),
                _ => Ok(Self::Stdout(default)),
            },
            Some(path) if is_special(path) => Ok(Self::File(path.to_path_buf(), default)),
            Some(path) => Ok(Self::File(path.to_path_buf(), file_format(path, options.format)?)),
            None if options.play => Ok(Self::None),
            None if options.stdout_is_terminal || options.json => {
                let extension = default.extensions.first().unwrap_or(&default.name);
                Ok(Self::File(PathBuf::from(DEFAULT_FILE).with_extension(extension), default))
            }
            None => Err(failure::usage(
                "standard output is not a terminal, and no destination of the audio is given",
                "add -o FILE, -o - for standard output, or --play",
            )),
        }
    }

    /// The file at a path, which is not `-`, and its format.
    ///
    /// # Errors
    /// The extension names no format, or one that is not supported.
    pub(crate) fn file(path: &Path) -> Result<(PathBuf, &'static Format)> {
        let format = if is_special(path) { DEFAULT_FORMAT } else { file_format(path, None)? };
        Ok((path.to_path_buf(), format))
    }

    /// The name in reports.
    pub(crate) fn label(&self) -> String {
        match self {
            Self::File(path, _) => path.display().to_string(),
            Self::Stdout(_) => "standard output".to_owned(),
            Self::None => "played".to_owned(),
        }
    }
}

/// The format of a file: that of `--format`, else that of its extension, which must not contradict.
///
/// # Errors
/// Neither names one, or they name two.
fn file_format(path: &Path, asked: Option<&'static Format>) -> Result<&'static Format> {
    let extension = path.extension().map(|extension| extension.to_string_lossy().to_lowercase());
    let own = extension.as_deref().and_then(Format::by_extension);
    let shown = path.display();
    match (own, asked, extension) {
        (Some(own), Some(asked), _) if own.name != asked.name => Err(failure::usage(
            format!("'{shown}' is a name of {}, and --format asks for {}", own.name, asked.name),
            "leave --format out, or change the extension",
        )),
        (Some(format), _, _) | (None, Some(format), _) => Ok(format),
        (None, None, Some(extension)) => Err(failure::usage(
            format!("'{shown}' asks for {extension}, which is not supported"),
            format!("name a file with one of the extensions {}, or add --format", supported_extensions()),
        )),
        (None, None, None) => Err(failure::usage(
            format!("'{shown}' has no extension that names a format"),
            format!("add one of {}, or --format", supported_extensions()),
        )),
    }
}

/// Reads the value of `--format`.
pub(crate) fn format_parser() -> impl TypedValueParser<Value = &'static Format> {
    let names = FORMATS.iter().map(|format| format.name);
    PossibleValuesParser::new(names).map(|name| Format::by_name(&name).unwrap_or(DEFAULT_FORMAT))
}

fn supported_extensions() -> String {
    let extensions = FORMATS.iter().flat_map(|format| format.extensions);
    extensions.map(|extension| format!(".{extension}")).collect::<Vec<_>>().join(", ")
}

/// Checks that a file can be written, before anything is computed.
///
/// # Errors
/// The folder is missing or read-only, or the path is a folder.
pub(crate) fn check_file(path: &Path) -> Result<()> {
    PendingFile::begin(path).map(drop)
}

/// Writes a whole audio file: it appears complete, or not at all.
///
/// # Errors
/// The file cannot be written, or the format cannot hold the audio.
pub(crate) fn write_audio(
    path: &Path,
    format: &'static Format,
    samples: &[f32],
    sample_rate_hz: u32,
) -> Result<()> {
    let mut file = AudioFile::create(path, format, sample_rate_hz)?;
    file.write(samples)?;
    file.finish()
}

/// Writes a whole file: it appears complete, or not at all.
///
/// # Errors
/// The file cannot be written.
pub(crate) fn write_bytes(path: &Path, bytes: &[u8]) -> Result<()> {
    let cannot = || format!("cannot write {}", path.display());
    let pending = PendingFile::begin(path)?;
    pending.open().and_then(|mut file| file.write_all(bytes)).with_context(cannot)?;
    pending.keep().with_context(cannot)
}

/// Writes a whole audio file to standard output.
///
/// # Errors
/// It was closed, or the format cannot hold the audio.
pub(crate) fn write_stdout(format: &Format, samples: &[f32], sample_rate_hz: u32) -> Result<()> {
    output::write_bytes(&format.encode_all(samples, sample_rate_hz)?)
}

/// Audio of unknown length on standard output.
#[derive(Debug)]
pub(crate) struct StdoutStream(Box<dyn Encoder>);

impl StdoutStream {
    /// Starts the stream and writes its header.
    ///
    /// # Errors
    /// Standard output was closed.
    pub(crate) fn start(format: &Format, sample_rate_hz: u32) -> Result<Self> {
        let config = EncoderConfig::streamed(sample_rate_hz);
        let mut stream = Self(format.encoder(&config)?);
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
    use std::fs;

    use super::*;

    fn chosen(output: Option<&str>, play: bool, json: bool, stdout_is_terminal: bool) -> Result<Target> {
        let output = output.map(Path::new);
        Target::choose(TargetOptions { output, format: None, play, json, stdout_is_terminal })
    }

    /// What was chosen, in words.
    fn shown(target: &Target) -> String {
        match target {
            Target::File(path, format) => format!("{} {}", path.display(), format.name),
            Target::Stdout(format) => format!("- {}", format.name),
            Target::None => "none".to_owned(),
        }
    }

    #[test]
    fn the_target_follows_the_options() {
        for (output, play, json, terminal, expected) in [
            (None, false, false, true, "izwi.wav wav"),
            (None, false, true, false, "izwi.wav wav"),
            (None, true, false, false, "none"),
            (Some("-"), false, false, false, "- wav"),
            (Some("a.WAV"), true, false, true, "a.WAV wav"),
            (Some("a.b.ogg"), false, false, false, "a.b.ogg opus"),
        ] {
            assert_eq!(shown(&chosen(output, play, json, terminal).unwrap()), expected, "{output:?}");
        }
    }

    #[test]
    fn the_format_is_that_of_the_flag_or_of_the_extension() {
        let with = |format: &str, output: Option<&str>| {
            let (output, format) = (output.map(Path::new), Format::by_name(format));
            assert!(format.is_some());
            let options = TargetOptions {
                output,
                format,
                play: false,
                json: false,
                stdout_is_terminal: output.is_none(),
            };
            Target::choose(options)
        };
        for (format, output, expected) in [
            ("mp3", None, "izwi.mp3 mp3"),
            ("pcm", None, "izwi.pcm pcm"),
            ("flac", Some("-"), "- flac"),
            ("mp3", Some("plain"), "plain mp3"),
            ("opus", Some("a.ogg"), "a.ogg opus"),
            ("mp3", Some("a.v2"), "a.v2 mp3"),
        ] {
            assert_eq!(shown(&with(format, output).unwrap()), expected);
        }
        let error = with("mp3", Some("a.wav")).unwrap_err().to_string();
        assert_eq!(error, "'a.wav' is a name of wav, and --format asks for mp3");
    }

    #[test]
    fn contradicting_options_are_refused_with_a_remedy() {
        for (output, json, terminal, part) in [
            (None, false, false, "no destination of the audio"),
            (Some("-"), true, false, "both write"),
            (Some("-"), false, true, "is a terminal"),
            (Some("a.aac"), false, false, "asks for aac"),
            (Some("plain"), false, false, "has no extension"),
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
        write_audio(&path, &encode::WAV, &[0.0; 24], 24_000).unwrap();
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
        write_audio(Path::new("/dev/null"), &encode::WAV, &[0.0; 24], 24_000).unwrap();
        assert!(is_special(Path::new("/dev/null")));

        let folder = tempfile::tempdir().unwrap();
        let (real, link) = (folder.path().join("real.wav"), folder.path().join("link.wav"));
        fs::write(&real, "old").unwrap();
        std::os::unix::fs::symlink(&real, &link).unwrap();
        write_audio(&link, &encode::WAV, &[0.0; 24], 24_000).unwrap();
        assert!(link.is_symlink());
        assert_eq!(fs::read(&real).unwrap().len(), 92);
    }
}
