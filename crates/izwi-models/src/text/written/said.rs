//! Words as they were said, with times or without.

use izwi_types::Word;

/// A word as it was said: with its marks, and with white space before it unless it joins the word before.
pub trait Said: Clone {
    /// Its text.
    fn text(&self) -> &str;

    /// One word in place of some: from the start of the first to the end of the last.
    fn merged(words: &[Self], text: String) -> Self;
}

impl Said for Word {
    fn text(&self) -> &str {
        &self.text
    }

    fn merged(words: &[Self], text: String) -> Self {
        let sum: f32 = words.iter().map(|word| word.probability).sum();
        Self {
            text,
            start_s: words.first().map_or(0.0, |word| word.start_s),
            end_s: words.last().map_or(0.0, |word| word.end_s),
            probability: sum / words.len().max(1) as f32,
        }
    }
}

/// Text without times.
impl Said for String {
    fn text(&self) -> &str {
        self
    }

    fn merged(_: &[Self], text: String) -> Self {
        text
    }
}
