//! The recordings of the command line, and their bytes.

use std::fs::File;
use std::future::Future;
use std::io::{self, IsTerminal as _, Read};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use crate::{failure, input, output};

/// Extensions of recordings in a folder. A file that is named itself may have any.
const EXTENSIONS: [&str; 18] = [
    "aac", "aif", "aiff", "caf", "flac", "m4a", "m4b", "mka", "mkv", "mov", "mp3", "mp4", "oga", "ogg",
    "opus", "wav", "wave", "webm",
];

/// One recording.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Recording {
    /// A file, under the name the user gave it.
    File(PathBuf),
    /// Standard input.
    Stdin,
}

impl Recording {
    /// The name in reports.
    pub(super) fn name(&self) -> String {
        match self {
            Self::File(path) => path.display().to_string(),
            Self::Stdin => "standard input".to_owned(),
        }
    }

    /// The name of its transcript file, without extension.
    pub(super) fn stem(&self) -> &Path {
        match self {
            Self::File(path) => path.file_stem().map_or(path.as_path(), Path::new),
            Self::Stdin => Path::new("stdin"),
        }
    }

    /// Reads at most `max_bytes` bytes when the future is polled.
    pub(super) fn read(&self, max_bytes: usize) -> impl Future<Output = Result<Vec<u8>>> + use<> {
        let recording = self.clone();
        async move {
            let reading = tokio::task::spawn_blocking(move || match recording {
                Self::File(path) => read_file(&path, max_bytes),
                Self::Stdin => read(io::stdin().lock(), max_bytes),
            });
            reading.await.context("the reading task failed")?
        }
    }
}

fn read_file(path: &Path, max_bytes: usize) -> Result<Vec<u8>> {
    let file = File::open(path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => failure::with_help("there is no such file", "check the name"),
        _ => error.into(),
    })?;
    read(file, max_bytes)
}

fn read(recording: impl Read, max_bytes: usize) -> Result<Vec<u8>> {
    input::read_bounded(recording, max_bytes as u64)?.ok_or_else(|| {
        failure::with_help(
            format!("it has more than {}", output::format_bytes(max_bytes as u64)),
            "split it into parts, or compress it (flac, mp3, opus)",
        )
    })
}

/// The recordings of the arguments: files, the sorted recordings in folders, the sorted matches of patterns, `-` for standard
/// input.
///
/// # Errors
/// A pattern is invalid or matches nothing, a folder has no recording, or standard input is named twice or is a terminal.
pub(super) fn find(arguments: &[String]) -> Result<Vec<Recording>> {
    let mut found = Vec::new();
    for argument in arguments {
        if argument == "-" {
            if found.contains(&Recording::Stdin) {
                return Err(failure::usage("- is given twice", "standard input holds one recording"));
            }
            if io::stdin().is_terminal() {
                return Err(failure::usage(
                    "- reads standard input, which is a terminal",
                    "pipe a recording in, or name a file",
                ));
            }
            found.push(Recording::Stdin);
        } else if argument.contains(['*', '?', '[']) && !Path::new(argument).exists() {
            found.extend(matches(argument)?);
        } else if Path::new(argument).is_dir() {
            found.extend(in_folder(Path::new(argument))?);
        } else {
            found.push(Recording::File(argument.into()));
        }
    }
    Ok(found)
}

/// The sorted recordings in a folder, by their extensions; those in its subfolders are left out.
fn in_folder(folder: &Path) -> Result<Vec<Recording>> {
    let cannot = || format!("cannot read the folder {}", folder.display());
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).with_context(cannot)? {
        let path = entry.with_context(cannot)?.path();
        let extension = path.extension().map(|extension| extension.to_string_lossy().to_lowercase());
        if extension.is_some_and(|extension| EXTENSIONS.contains(&extension.as_str())) && !path.is_dir() {
            files.push(path);
        }
    }
    files.sort();
    if files.is_empty() {
        let pattern = folder.join("**/*.wav");
        return Err(failure::with_help(
            format!("the folder {} has no recording ({})", folder.display(), EXTENSIONS.join(", ")),
            format!("subfolders are not read; name them, or use a pattern such as '{}'", pattern.display()),
        ));
    }
    Ok(files.into_iter().map(Recording::File).collect())
}

/// The sorted matches of a pattern.
fn matches(pattern: &str) -> Result<Vec<Recording>> {
    let paths = glob::glob(pattern).map_err(|error| {
        failure::usage(
            format!("'{pattern}' is not a valid pattern: {error}"),
            "escape brackets as [[] and []]",
        )
    })?;
    let mut files = Vec::new();
    for path in paths {
        let path = path.with_context(|| format!("cannot search for '{pattern}'"))?;
        if !path.is_dir() {
            files.push(path);
        }
    }
    files.sort();
    if files.is_empty() {
        let help = "check the folder and the extension; * does not match subfolders, ** does";
        return Err(failure::with_help(format!("no file matches '{pattern}'"), help));
    }
    Ok(files.into_iter().map(Recording::File).collect())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn names(folder: &Path, arguments: &[&str]) -> Result<Vec<String>> {
        let inside = |argument: &&str| folder.join(argument).display().to_string();
        let found = find(&arguments.iter().map(inside).collect::<Vec<String>>())?;
        let relative = |recording: Recording| {
            let Recording::File(path) = recording else { return "-".to_owned() };
            path.strip_prefix(folder).unwrap().display().to_string()
        };
        Ok(found.into_iter().map(relative).collect())
    }

    #[test]
    fn patterns_are_expanded_in_order_and_existing_names_are_not() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["b.wav", "a.wav", "c.mp3", "odd[1].wav"] {
            fs::write(folder.path().join(name), "").unwrap();
        }
        fs::create_dir(folder.path().join("d.wav")).unwrap();
        let found = names(folder.path(), &["c.mp3", "?.wav", "no.wav", "odd[1].wav"]).unwrap();
        assert_eq!(found, ["c.mp3", "a.wav", "b.wav", "no.wav", "odd[1].wav"]);
        let error = names(folder.path(), &["*.ogg"]).unwrap_err();
        assert!(failure::render(&error).contains("*.ogg'\nhelp: "), "{error}");
        let error = names(folder.path(), &["***"]).unwrap_err();
        assert!(error.to_string().contains("is not a valid pattern"), "{error}");
    }

    #[test]
    fn folders_are_read_without_their_subfolders() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir_all(folder.path().join("talks/old.wav")).unwrap();
        for name in ["talks/b.WAV", "talks/a.mp3", "talks/notes.txt", "talks/old.wav/c.wav", "z.flac"] {
            fs::write(folder.path().join(name), "").unwrap();
        }
        let found = names(folder.path(), &["z.flac", "talks"]).unwrap();
        assert_eq!(found, ["z.flac", "talks/a.mp3", "talks/b.WAV"]);
        fs::create_dir(folder.path().join("empty")).unwrap();
        let error = failure::render(&names(folder.path(), &["empty"]).unwrap_err());
        assert!(
            error.contains("empty has no recording (aac, ") && error.contains("empty/**/*.wav"),
            "{error}"
        );
    }

    #[test]
    fn reading_is_limited_and_errors_are_specific() {
        assert_eq!(read(&b"four"[..], 4).unwrap(), b"four");
        assert!(read(&b"fives"[..], 4).unwrap_err().to_string().contains("more than 4 B"));
        let folder = tempfile::tempdir().unwrap();
        assert!(read_file(&folder.path().join("no"), 4).unwrap_err().to_string().contains("no such file"));
    }
}
