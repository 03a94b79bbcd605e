//! The recordings of `assets/speech/` with their transcripts, and longer recordings built from them.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use izwi_audio::decode::{self, DecodeLimits};
use izwi_audio::wav;

/// Rate of the recordings.
pub const RATE_HZ: u32 = 16_000;
const LIMITS: DecodeLimits =
    DecodeLimits { max_bytes: 64 << 20, max_duration: std::time::Duration::from_secs(3_600) };

/// A recording.
#[derive(Debug, Clone)]
pub struct Clip {
    /// Name in reports.
    pub name: String,
    /// Path.
    pub path: PathBuf,
    /// Reference transcript.
    pub reference: String,
}

/// The repository's root.
pub fn root() -> PathBuf {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    package.parent().unwrap_or(package).to_path_buf()
}

/// The recordings of the list, in its order.
///
/// # Errors
/// One of them is missing.
pub fn all() -> Result<Vec<Clip>> {
    let folder = root().join("assets/speech");
    let list = find(&folder, "transcription.txt")?;
    let lines = std::fs::read_to_string(&list).with_context(|| format!("cannot read {}", list.display()))?;
    let mut clips = Vec::new();
    for line in lines.lines().filter(|line| !line.trim().is_empty()) {
        clips.push(sentence(&folder, line).with_context(|| format!("{}: '{line}'", list.display()))?);
    }
    Ok(clips)
}

/// The recordings of a file with a line "PATH TAB TEXT" for each.
///
/// # Errors
/// The file cannot be read, or a line has no tab.
pub fn listed(list: &Path) -> Result<Vec<Clip>> {
    let lines = std::fs::read_to_string(list).with_context(|| format!("cannot read {}", list.display()))?;
    let clip = |line: &str| {
        let (path, text) = line.split_once('\t').with_context(|| format!("no tab in '{line}'"))?;
        Ok(Clip { name: path.to_owned(), path: path.into(), reference: text.to_owned() })
    };
    lines.lines().filter(|line| !line.trim().is_empty()).map(clip).collect()
}

/// A line of the list: `<s> transcript </s> (name)`.
fn sentence(folder: &Path, line: &str) -> Result<Clip> {
    let (reference, name) = line
        .strip_prefix("<s>")
        .and_then(|rest| rest.split_once("</s>"))
        .context("this is not '<s> text </s> (name)'")?;
    let name = name.trim().trim_matches(['(', ')']);
    // The sentences of a book are numbered at the end of long names.
    let short =
        name.rsplit_once('-').map_or_else(|| name.to_owned(), |(_, number)| format!("librivox {number}"));
    Ok(Clip {
        name: short,
        path: find(folder, &format!("{name}.wav"))?,
        reference: reference.trim().to_owned(),
    })
}

/// The file of this name in the folder.
fn find(folder: &Path, name: &str) -> Result<PathBuf> {
    let path = folder.join(name);
    anyhow::ensure!(path.is_file(), "there is no {}", path.display());
    Ok(path)
}

/// The samples of a file at [`RATE_HZ`].
///
/// # Errors
/// It is not a recording.
pub fn samples(path: &Path) -> Result<Vec<f32>> {
    let file = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    decode::decode(file, RATE_HZ, &LIMITS).with_context(|| format!("cannot decode {}", path.display()))
}

/// A recording of `seconds`: the clips repeated with gaps of half a second, cut at the end.
///
/// # Errors
/// A clip cannot be read, or the file cannot be written.
pub fn joined(clips: &[Clip], seconds: usize, folder: &Path) -> Result<Clip> {
    let length = seconds * RATE_HZ as usize;
    let mut joined = Vec::with_capacity(length);
    for clip in clips.iter().cycle() {
        joined.extend(samples(&clip.path)?);
        joined.extend(vec![0.0; RATE_HZ as usize / 2]);
        if joined.len() >= length {
            break;
        }
    }
    joined.truncate(length);
    let path = folder.join(format!("{seconds}s.wav"));
    wav::write_file(&path, &joined, RATE_HZ)?;
    Ok(Clip { name: format!("{seconds} s joined"), path, reference: String::new() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_list_have_text_and_name() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("a-0870.wav"), "").unwrap();
        let clip = sentence(folder.path(), "<s> and so on </s> (a-0870)").unwrap();
        assert_eq!((clip.name.as_str(), clip.reference.as_str()), ("librivox 0870", "and so on"));
        assert!(sentence(folder.path(), "<s> and so on </s> (b)").is_err());
        assert!(sentence(folder.path(), "and so on").is_err());
    }
}
