//! Numbers as they are said in English.

use super::cursor::Cursor;
use crate::text::words::{ONES, TENS};

/// Words for powers of a thousand.
const SCALES: [(&str, u64); 4] = [
    ("trillion", 1_000_000_000_000),
    ("billion", 1_000_000_000),
    ("million", 1_000_000),
    ("thousand", 1_000),
];
const ORDINALS: [&str; 20] = [
    "zeroth",
    "first",
    "second",
    "third",
    "fourth",
    "fifth",
    "sixth",
    "seventh",
    "eighth",
    "ninth",
    "tenth",
    "eleventh",
    "twelfth",
    "thirteenth",
    "fourteenth",
    "fifteenth",
    "sixteenth",
    "seventeenth",
    "eighteenth",
    "nineteenth",
];
/// Numbers from here on have commas.
const GROUPED: u64 = 10_000;

/// A number below twenty.
pub(super) fn small(key: &str) -> Option<u64> {
    ONES.iter().position(|word| *word == key).map(|value| value as u64)
}

/// A multiple of ten from twenty on.
pub(super) fn tens(key: &str) -> Option<u64> {
    TENS.iter().position(|word| *word == key).map(|at| 10 * (at as u64 + 2))
}

/// A digit, `oh` included.
pub(super) fn digit(key: &str) -> Option<u64> {
    small(key).filter(|value| *value < 10).or_else(|| (key == "oh").then_some(0))
}

/// Whether a word is a number by itself.
pub(super) fn is_number(key: &str) -> bool {
    small(key).or_else(|| tens(key)).is_some()
}

/// An ordinal of one word: below twenty, or a multiple of ten.
fn ordinal_word(key: &str) -> Option<u64> {
    let below = ORDINALS.iter().position(|word| *word == key).filter(|value| *value > 0);
    below.map(|value| value as u64).or_else(|| tens(&format!("{}y", key.strip_suffix("ieth")?)))
}

/// The decade of a plural such as `nineties`.
pub(super) fn decade(key: &str) -> Option<u64> {
    tens(&format!("{}y", key.strip_suffix("ies")?))
}

/// A value and the place behind it.
type Found = Option<(u64, usize)>;

/// A number of 0 to 99, read as one.
pub(super) fn below_hundred(cursor: &Cursor, at: usize) -> Found {
    let key = cursor.key(at)?;
    if let Some(value) = small(key) {
        return Some((value, at + 1));
    }
    let tens = tens(key)?;
    let ones = cursor.key(at + 1).and_then(small).filter(|ones| (1..10).contains(ones));
    Some(ones.map_or((tens, at + 1), |ones| (tens + ones, at + 2)))
}

/// Two digits after a first pair: `oh five`, `fifteen`, `ninety nine`.
pub(super) fn pair(cursor: &Cursor, at: usize) -> Found {
    if cursor.key(at)? == "oh" {
        let ones = cursor.key(at + 1).and_then(small).filter(|ones| (1..10).contains(ones))?;
        return Some((ones, at + 2));
    }
    below_hundred(cursor, at).filter(|(value, _)| *value >= 10)
}

/// An ordinal below a hundred.
pub(super) fn ordinal(cursor: &Cursor, at: usize) -> Found {
    let key = cursor.key(at)?;
    if let Some(value) = ordinal_word(key) {
        return Some((value, at + 1));
    }
    let tens = tens(key)?;
    let ones = cursor.key(at + 1).and_then(ordinal_word).filter(|ones| *ones < 10)?;
    Some((tens + ones, at + 2))
}

/// A number below ten thousand: hundreds and what is below them. `a` counts as one before `hundred` and a scale.
fn group(cursor: &Cursor, at: usize) -> Found {
    let (count, next) = match cursor.key(at)? {
        "a" => (1, at + 1),
        _ => below_hundred(cursor, at)?,
    };
    let follows = cursor.key(next);
    if count > 0 && follows == Some("hundred") {
        let rest = match cursor.key(next + 1) {
            Some("and") => below_hundred(cursor, next + 2),
            _ => below_hundred(cursor, next + 1),
        };
        let rest = rest.filter(|(rest, _)| *rest > 0);
        return Some(rest.map_or((100 * count, next + 1), |(rest, end)| (100 * count + rest, end)));
    }
    let is_counted = cursor.key(at) != Some("a") || follows.is_some_and(|key| scale(key).is_some());
    is_counted.then_some((count, next))
}

/// The power of a thousand of a word.
fn scale(key: &str) -> Option<(&'static str, u64)> {
    SCALES.into_iter().find(|(word, _)| *word == key)
}

/// A cardinal.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Cardinal {
    pub(super) value: u64,
    /// The place behind it.
    pub(super) end: usize,
    /// The word that a large round number ends with, and what it is a multiple of.
    scale: Option<(&'static str, u64)>,
}

impl Cardinal {
    /// In figures; a round number of millions keeps that word.
    pub(super) fn figures(&self) -> String {
        match self.scale.filter(|(_, scale)| *scale > 1_000) {
            Some((word, scale)) => format!("{} {word}", grouped(self.value / scale)),
            None => grouped(self.value),
        }
    }
}

/// A cardinal below a thousand trillions.
pub(super) fn cardinal(cursor: &Cursor, at: usize) -> Option<Cardinal> {
    let (first, next) = group(cursor, at)?;
    let mut found = Cardinal { value: first, end: next, scale: None };
    let named = |count: u64, next| cursor.key(next).and_then(scale).filter(|_| (1..1_000).contains(&count));
    let Some((word, mut limit)) = named(first, next) else { return Some(found) };
    found = Cardinal { value: first * limit, end: next + 1, scale: Some((word, limit)) };
    // What follows a scale is smaller than it.
    while limit > 1 {
        let start = if cursor.key(found.end) == Some("and") { found.end + 1 } else { found.end };
        let rest = group(cursor, start).filter(|(rest, _)| *rest > 0 && cursor.key(start) != Some("a"));
        let Some((rest, next)) = rest else { break };
        let (size, end) = named(rest, next).map_or((1, next), |(_, size)| (size, next + 1));
        if rest * size >= limit {
            break;
        }
        found = Cardinal { value: found.value + rest * size, end, scale: None };
        limit = size;
    }
    Some(found)
}

/// A number, perhaps with decimals: its figures and the place behind it.
pub(super) fn amount(cursor: &Cursor, at: usize) -> Option<(String, usize)> {
    let whole = cardinal(cursor, at)?;
    if whole.scale.is_some() || cursor.key(whole.end) != Some("point") {
        return Some((whole.figures(), whole.end));
    }
    let (mut digits, mut end) = (String::new(), whole.end + 1);
    while let Some(digit) = cursor.key(end).and_then(digit) {
        digits.push_str(&digit.to_string());
        end += 1;
    }
    if let (true, Some((value, next))) = (digits.is_empty(), below_hundred(cursor, end)) {
        (digits, end) = (value.to_string(), next);
    }
    if digits.is_empty() {
        return Some((whole.figures(), whole.end));
    }
    let figures = format!("{}.{digits}", grouped(whole.value));
    Some(scaled(cursor, figures, end))
}

/// `N and a half`, which is written in figures before a unit alone.
pub(super) fn and_a_half(cursor: &Cursor, at: usize) -> Option<(String, usize)> {
    let whole = cardinal(cursor, at).filter(|whole| whole.scale.is_none())?;
    let end = cursor.after(whole.end, &["and", "a", "half"])?;
    Some(scaled(cursor, format!("{}.5", grouped(whole.value)), end))
}

/// Figures with the word for millions behind them, if there is one.
fn scaled(cursor: &Cursor, figures: String, end: usize) -> (String, usize) {
    let large = cursor.key(end).filter(|key| SCALES[..3].iter().any(|(word, _)| word == key));
    match large {
        Some(word) => (format!("{figures} {word}"), end + 1),
        None => (figures, end),
    }
}

/// A year: `nineteen ninety nine`, `twenty oh five`, `two thousand and five`.
pub(super) fn year(cursor: &Cursor, at: usize) -> Found {
    let key = cursor.key(at)?;
    let century = small(key).filter(|value| *value >= 10).or_else(|| tens(key).filter(|value| *value == 20));
    if let Some(century) = century
        && let Some((rest, end)) = pair(cursor, at + 1).filter(|(rest, _)| century > 12 || *rest > 59)
    {
        return Some((100 * century + rest, end));
    }
    let whole = cardinal(cursor, at)?;
    (1_100..3_000).contains(&whole.value).then_some((whole.value, whole.end))
}

/// The end of the number words from a place on.
pub(super) fn run_end(cursor: &Cursor, mut at: usize) -> usize {
    while cursor.key(at).is_some_and(|key| is_number(key) || key == "oh") {
        at += 1;
    }
    at
}

/// The figures of a run of numbers side by side, such as `one oh one`.
pub(super) fn side_by_side(cursor: &Cursor, at: usize) -> (String, usize) {
    let (mut figures, mut end) = (String::new(), at);
    loop {
        let next = match cursor.key(end) {
            Some("oh") => Some((0, end + 1)),
            Some(_) => below_hundred(cursor, end),
            None => None,
        };
        let Some((value, next)) = next else { return (figures, end) };
        figures.push_str(&value.to_string());
        end = next;
    }
}

/// A whole number in figures.
fn grouped(value: u64) -> String {
    let digits = value.to_string();
    if value < GROUPED {
        return digits;
    }
    let mut grouped = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}
