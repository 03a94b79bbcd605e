//! Long texts in pieces that a model speaks at once.

use super::sentences;

/// Cuts a text into pieces of at most `most` tokens as `tokens` counts them: whole where it fits, else between
/// sentences, and within one only where it alone is too long.
pub(crate) fn pieces(text: &str, most: usize, tokens: impl Fn(&str) -> usize) -> Vec<String> {
    if tokens(text) <= most {
        return vec![text.to_owned()];
    }
    let mut pieces: Vec<String> = Vec::new();
    let mut size = usize::MAX;
    for part in sentences::split(text).into_iter().flat_map(|sentence| shorten(sentence, most, &tokens)) {
        let tokens = tokens(part);
        match pieces.last_mut().filter(|_| size.saturating_add(tokens) < most) {
            Some(piece) => {
                piece.push(' ');
                piece.push_str(part);
                size += tokens + 1;
            }
            None => {
                pieces.push(part.to_owned());
                size = tokens;
            }
        }
    }
    pieces
}

/// Halves a text, near its middle and between words where it can, until every part is short enough.
fn shorten<'a>(text: &'a str, most: usize, tokens: &impl Fn(&str) -> usize) -> Vec<&'a str> {
    let middle = text.len() / 2;
    if tokens(text) <= most || text.chars().nth(1).is_none() {
        return vec![text];
    }
    let near = |(at, _): &(usize, char)| at.abs_diff(middle);
    let space = text.char_indices().skip(1).filter(|(_, c)| c.is_whitespace()).min_by_key(near);
    let cut = space.or_else(|| text.char_indices().skip(1).min_by_key(near)).map_or(text.len(), |(at, _)| at);
    let (front, back) = text.split_at(cut);
    let parts = [front.trim(), back.trim()].into_iter().filter(|part| !part.is_empty());
    parts.flat_map(|part| shorten(part, most, tokens)).collect()
}
