//! From what the network writes to language and text. Source: the Python package `qwen-asr` 0.0.6.

use super::tokens::MARK;
use crate::text::spoken_words::is_space;
use izwi_types::languages;

/// Codes of the languages that the model card lists.
pub(super) const LANGUAGES: [&str; 30] = [
    "zh", "en", "yue", "ar", "de", "fr", "es", "pt", "id", "it", "ko", "ru", "th", "vi", "ja", "tr", "hi",
    "ms", "nl", "sv", "da", "fi", "pl", "cs", "tl", "fa", "el", "ro", "hu", "mk",
];
/// The name of no language, where there is no speech.
pub(super) const NONE: &str = "None";
/// Repetitions in a row that are none of the speaker's.
const REPEATS: usize = 20;
/// The longest unit that is looked for, in characters or tokens.
const LONGEST_UNIT: usize = 20;

fn trimmed(text: &str) -> &str {
    text.trim_matches(is_space)
}

/// The name of a language as prompts have it.
pub(super) fn language_name(code: &str) -> String {
    // Its second name is the one the network was trained with.
    if code == "tl" { "Filipino".to_owned() } else { languages::title_of(code) }
}

/// The name of the language, empty for none, and the text of an answer; `forced` is the name that the prompt gave.
pub(super) fn parse(raw: &str, forced: Option<&str>) -> (String, String) {
    let raw = trimmed(raw);
    if raw.is_empty() {
        return (String::new(), String::new());
    }
    let raw = without_repetitions(raw);
    if let Some(forced) = forced {
        return (forced.to_owned(), raw);
    }
    let Some((header, text)) = raw.split_once(MARK) else { return (String::new(), trimmed(&raw).to_owned()) };
    (language_of(header), trimmed(text).to_owned())
}

/// The name in the header of an answer; empty if there is no speech.
fn language_of(header: &str) -> String {
    if header.to_lowercase().contains(&format!("language {}", NONE.to_lowercase())) {
        return String::new();
    }
    let name = header.lines().find_map(|line| {
        let line = trimmed(line);
        let (word, name) = line.split_at_checked("language ".len())?;
        word.eq_ignore_ascii_case("language ").then(|| trimmed(name))
    });
    capitalised(name.unwrap_or_default())
}

/// The first letter large, the others small.
fn capitalised(name: &str) -> String {
    let mut letters = name.chars();
    let first = letters.next().into_iter().flat_map(char::to_uppercase);
    first.chain(letters.as_str().to_lowercase().chars()).collect()
}

/// A text in which what a network repeats without end occurs once.
pub(super) fn without_repetitions(text: &str) -> String {
    let characters: Vec<char> = text.chars().collect();
    let mut kept = Vec::with_capacity(characters.len());
    for run in characters.chunk_by(|a, b| a == b) {
        kept.extend(&run[..if run.len() > REPEATS { 1 } else { run.len() }]);
    }
    let (mut text, mut rest) = (String::new(), kept.as_slice());
    let mut start = 0;
    while start + 2 * REPEATS <= rest.len() {
        let (done, ahead) = rest.split_at(start);
        let Some((unit, count)) = (1..=LONGEST_UNIT).find_map(|unit| repeated(ahead, unit)) else {
            start += 1;
            continue;
        };
        text.extend(done.iter().chain(&ahead[..unit]));
        (rest, start) = (&ahead[unit * count..], 0);
    }
    text.extend(rest);
    text
}

/// How often the first `unit` items follow one another, if that is too often.
fn repeated(items: &[char], unit: usize) -> Option<(usize, usize)> {
    let first = items.get(..unit)?;
    let count = items.chunks_exact(unit).take_while(|next| *next == first).count();
    (count >= REPEATS).then_some((unit, count))
}

/// Whether tokens end with repetitions of a short unit.
pub(super) fn is_loop(tokens: &[u32]) -> bool {
    (1..=LONGEST_UNIT).any(|unit| {
        let last = tokens.len().checked_sub(unit * REPEATS).map(|start| &tokens[start..]);
        last.is_some_and(|last| last[unit..] == last[..last.len() - unit])
    })
}

/// Whether a space joins two sentences that end and begin with these characters.
pub(super) fn is_spaced(before: char, after: char) -> bool {
    // Ideographs, kana and their punctuation, full-width forms.
    let is_dense = |c: char| {
        matches!(c, '\u{3000}'..='\u{30ff}' | '\u{3400}'..='\u{9fff}' | '\u{f900}'..='\u{faff}'
            | '\u{ff00}'..='\u{ffef}' | '\u{20000}'..='\u{2ceaf}')
    };
    !(is_dense(before) || is_dense(after) || before.is_whitespace() || after.is_whitespace())
}
