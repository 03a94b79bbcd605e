//! Turns of speakers as Rich Transcription Time Marked, which scoring tools read.

use std::fmt::Write as _;

use izwi_core::engine::Segment;

/// The turns of the recording `name`. Fields are separated by white space, so that names have none.
pub(crate) fn render(name: &str, turns: &[Segment]) -> String {
    let (mut text, file) = (String::new(), one_word(name));
    for turn in turns {
        let Some(speaker) = turn.speaker else { continue };
        let label = turn.speaker_name.as_deref().map_or_else(|| format!("speaker_{speaker}"), one_word);
        let (start, length) = (turn.start_s, turn.end_s - turn.start_s);
        // Writing to a string cannot fail.
        let _ = writeln!(text, "SPEAKER {file} 1 {start:.3} {length:.3} <NA> <NA> {label} <NA> <NA>");
    }
    text
}

fn one_word(name: &str) -> String {
    name.replace(char::is_whitespace, "_")
}
