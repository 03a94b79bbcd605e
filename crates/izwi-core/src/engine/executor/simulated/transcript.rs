//! What the simulation hears: a segment for each pass.

use std::sync::Arc;

use izwi_types::{Segment, Word};

/// The turn of pass `pass`: one second, by one of two speakers.
pub(super) fn turn(pass: usize) -> Segment {
    let start_s = pass as f64;
    let speaker = Some((pass % 2) as u32);
    let embedding: [f32; 2] = if pass.is_multiple_of(2) { [1.0, 0.0] } else { [0.0, 1.0] };
    Segment {
        start_s,
        end_s: start_s + 1.0,
        speaker,
        embedding: Some(Arc::from(embedding)),
        ..Segment::default()
    }
}

/// The segment of pass `pass`: one second.
pub(super) fn segment(pass: usize, says: &[&str]) -> Segment {
    let start_s = pass as f64;
    let said = if says.is_empty() { format!("word{pass}") } else { says[pass % says.len()].to_owned() };
    let length_s = 0.5 / said.split(' ').count() as f64;
    let word = |(at, text): (usize, &str)| {
        let start_s = start_s + at as f64 * length_s;
        Word { text: format!(" {text}"), start_s, end_s: start_s + length_s, probability: 0.9 }
    };
    let words: Vec<Word> = said.split(' ').enumerate().map(word).collect();
    let text = format!(" {said}");
    let tokens = vec![pass as u32];
    Segment {
        window_start_s: start_s,
        start_s,
        end_s: start_s + 1.0,
        text,
        tokens,
        words,
        ..Segment::default()
    }
}
