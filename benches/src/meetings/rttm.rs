//! Files of the format Rich Transcription Time Marked.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context, Result};
use izwi_core::engine::Segment;

/// A stretch in which one speaker speaks, in seconds.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Turn {
    pub(crate) start_s: f64,
    pub(crate) end_s: f64,
    pub(crate) speaker: String,
}

impl Turn {
    /// A turn of a model.
    pub(crate) fn of(segment: &Segment) -> Option<Self> {
        let speaker = segment.speaker?.to_string();
        Some(Self { start_s: segment.start_s, end_s: segment.end_s, speaker })
    }
}

/// The speakers, each once.
pub(crate) fn speakers(turns: &[Turn]) -> Vec<&str> {
    let mut names: Vec<&str> = turns.iter().map(|turn| &*turn.speaker).collect();
    names.sort_unstable();
    names.dedup();
    names
}

/// The turns of the recording `name` as a file.
pub(crate) fn written(name: &str, turns: &[Turn]) -> String {
    let mut text = String::new();
    for Turn { start_s, end_s, speaker } in turns {
        let length_s = end_s - start_s;
        // Writing to a string cannot fail.
        let _ = writeln!(text, "SPEAKER {name} 1 {start_s:.3} {length_s:.3} <NA> <NA> {speaker} <NA> <NA>");
    }
    text
}

/// The turns of a file.
///
/// # Errors
/// It is unreadable, or a line of a speaker has no times or no name.
pub(crate) fn read(path: &Path) -> Result<Vec<Turn>> {
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let lines = text.lines().filter(|line| line.starts_with("SPEAKER "));
    let turn = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let number = |at: usize| fields.get(at)?.parse::<f64>().ok();
        let (start_s, length_s) = (number(3)?, number(4)?);
        let speaker = (*fields.get(7)?).to_owned();
        Some(Turn { start_s, end_s: start_s + length_s, speaker })
    };
    lines.map(|line| turn(line).with_context(|| format!("{}: '{line}' is no turn", path.display()))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_can_be_read() {
        let turn = |start_s, end_s, speaker: &str| Turn { start_s, end_s, speaker: speaker.to_owned() };
        let turns = vec![turn(0.5, 2.0, "b"), turn(1.0, 1.25, "a")];
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m.rttm");
        std::fs::write(&path, written("m", &turns)).unwrap();
        assert_eq!(read(&path).unwrap(), turns);
        assert_eq!(speakers(&turns), ["a", "b"]);
        std::fs::write(&path, "SPEAKER m 1 x 2\n").unwrap();
        assert!(read(&path).is_err());
    }
}
