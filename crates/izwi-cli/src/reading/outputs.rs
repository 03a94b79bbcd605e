//! Where a book goes: one file, or a folder with a file for each chapter.

use std::path::{Path, PathBuf};

use anyhow::Result;
use izwi_audio::encode::{Format, MP3};
use izwi_reading::OutputFile;

use crate::pending_file::is_special;
use crate::sink::{self, Target};
use crate::{failure, output};

/// The longest name of a chapter's file, in characters, without number and extension.
const MAX_NAME_CHARS: usize = 80;

/// The files of a book.
#[derive(Debug)]
pub(crate) struct Outputs {
    pub(crate) bound: izwi_reading::Outputs,
    /// The folder of the journal.
    pub(crate) work: PathBuf,
}

impl Outputs {
    /// Chooses the files. Makes the folder that `path` names with a `/` at its end.
    ///
    /// # Errors
    /// The name has no format, or nothing can be written there.
    pub(crate) fn choose(path: &Path, format: Option<&'static Format>, chapters: &[String]) -> Result<Self> {
        if is_special(path) || path == Path::new("-") {
            return Err(failure::usage(
                format!("'{}' is no file: a book is bound at its end", path.display()),
                "name a file or a folder after -o",
            ));
        }
        if !path.is_dir() && !path.to_string_lossy().ends_with(std::path::is_separator) {
            let stdout_is_terminal = output::stdout_is_terminal();
            let options = sink::TargetOptions {
                output: Some(path),
                format,
                play: false,
                json: false,
                stdout_is_terminal,
            };
            let Target::File(file, format) = Target::choose(options)? else {
                return Err(failure::usage("no file is named", "name a file or a folder after -o"));
            };
            sink::check_file(&file)?;
            let mut work = file.clone().into_os_string();
            work.push(".izwi-read");
            let files = vec![OutputFile { path: file, chapters: 0..chapters.len() }];
            let bound = izwi_reading::Outputs {
                files,
                format,
                output_rate_hz: None,
                bit_rate: None,
                is_folder: false,
            };
            return Ok(Self { bound, work: work.into() });
        }
        let format = format.unwrap_or(&MP3);
        let extension = format.extensions.first().unwrap_or(&format.name);
        let digits = chapters.len().to_string().len().max(2);
        let file = |(index, title): (usize, &String)| OutputFile {
            path: path.join(format!("{:0digits$} {}.{extension}", index + 1, safe(title))),
            chapters: index..index + 1,
        };
        let files = chapters.iter().enumerate().map(file).collect();
        let bound =
            izwi_reading::Outputs { files, format, output_rate_hz: None, bit_rate: None, is_folder: true };
        Ok(Self { bound, work: path.join(".izwi-read") })
    }

    /// The only file.
    pub(crate) fn single(&self) -> Option<&Path> {
        self.bound.files.first().filter(|_| !self.bound.is_folder).map(|file| &*file.path)
    }
}

/// A title as a name that every file system takes.
fn safe(title: &str) -> String {
    let allowed = |c: char| match c {
        '/' | '\\' | ':' | '*' | '?' | '"' | '<' | '>' | '|' => ' ',
        c if c.is_control() => ' ',
        c => c,
    };
    let spaced: String = title.chars().map(allowed).collect();
    let words: Vec<&str> = spaced.split_whitespace().collect();
    // Of four bytes each in UTF-8 as many fit as a name may have.
    let mut bytes = 0;
    let short: String = words
        .join(" ")
        .chars()
        .take(MAX_NAME_CHARS)
        .take_while(|c| {
            bytes += c.len_utf8();
            bytes <= 200
        })
        .collect();
    match short.trim_matches(['.', ' ']) {
        "" => "Chapter".to_owned(),
        name => name.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn titles_become_names_of_files() {
        assert_eq!(safe("../../etc: What?"), "etc What");
        assert_eq!(safe("a\u{1b}[2J\nb"), "a [2J b");
        assert_eq!(safe("…"), "…");
        assert_eq!(safe("?"), "Chapter");
        assert!(safe(&"漢".repeat(300)).len() <= 200);
    }

    #[test]
    fn a_folder_has_a_file_for_each_chapter() {
        let folder = tempfile::tempdir().unwrap();
        let titles = ["One".to_owned(), "Two".to_owned()];
        let outputs = Outputs::choose(&folder.path().join("new/"), None, &titles).unwrap();
        let names: Vec<_> =
            outputs.bound.files.iter().map(|file| file.path.file_name().unwrap().to_str().unwrap()).collect();
        assert_eq!(names, ["01 One.mp3", "02 Two.mp3"]);
        let outputs = Outputs::choose(&folder.path().join("a.opus"), None, &titles).unwrap();
        assert_eq!(outputs.work, folder.path().join("a.opus.izwi-read"));
        assert_eq!((outputs.bound.files.len(), outputs.bound.format.name), (1, "opus"));
        for (path, part) in
            [("a.m4b", "asks for m4b"), ("plain", "has no extension"), ("no/a.mp3", "no folder")]
        {
            let error = Outputs::choose(&folder.path().join(path), None, &titles).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
    }
}
