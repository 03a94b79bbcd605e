//! Text as the models were trained with it: rewrites, terminal punctuation, and pieces of few tokens.
//!
//! Follows the Python package `pocket-tts` 4.0.1 (pip; `models/text_chunking.py`) to the letter. Knows no tensor.

use super::config::Config;
use super::tokenizer::TextTokenizer;

/// The most tokens of a piece, unless it has no place to cut.
pub(super) const MAX_TOKENS: usize = 50;
/// Words below which the end of a text is followed by more frames.
const FEW_WORDS: usize = 4;
/// Words below which spaces may be put before a text, and those spaces.
const PADDED_WORDS: usize = 5;
const PADDING: &str = "        ";
/// Tokens before and after a cut that tell whether it is inside a number.
const CONTEXT: usize = 8;

const TERMINAL: [char; 4] = ['.', '!', '?', '…'];
const WEAK: [char; 6] = [',', ';', ':', '-', '–', '—'];
const CLOSERS: [char; 7] = ['"', '\'', '”', '’', ')', ']', '»'];

/// A text ready for the tokenizer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PreparedText {
    pub(super) text: String,
    /// Frames after the one that the end is decided at, as the package guesses them; it generates two more.
    pub(super) frames_after_eos_guess: usize,
}

/// Whitespace as Python has it.
fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c)
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(is_space).filter(|word| !word.is_empty())
}

/// The text as the model reads it; `None` where nothing is left.
pub(super) fn prepare(text: &str, config: &Config) -> Option<PreparedText> {
    let mut text = text.trim_matches(is_space).to_owned();
    if !config.replace_characters.is_empty() {
        let rewritten: String = text.chars().map(|c| Rewritten::of(c, config)).collect();
        text = without_mark_after_end(&words(&rewritten).collect::<Vec<_>>().join(" "));
    }
    if text.is_empty() {
        return None;
    }
    text = text.replace(['\n', '\r'], " ").replace("  ", " ");
    if config.remove_semicolons {
        text = text.replace(';', ",");
    }
    let frames_after_eos_guess = if words(&text).count() <= FEW_WORDS { 3 } else { 1 };
    if config.capitalize_first_letter {
        let first = text.chars().next().filter(|first| !first.is_uppercase());
        if let Some(first) = first {
            text = first.to_uppercase().chain(text.chars().skip(1)).collect();
        }
    }
    if config.append_terminal_punctuation {
        text = with_terminal_punctuation(text);
    }
    if config.pad_with_spaces_for_short_inputs && words(&text).count() < PADDED_WORDS {
        text.insert_str(0, PADDING);
    }
    Some(PreparedText { text, frames_after_eos_guess })
}

/// What stands for a character, without a copy.
enum Rewritten<'a> {
    As(&'a str),
    Same(char),
}

impl<'a> Rewritten<'a> {
    fn of(c: char, config: &'a Config) -> Self {
        config.replace_characters.get(&c).map_or(Self::Same(c), |text| Self::As(text))
    }
}

impl<'a> FromIterator<Rewritten<'a>> for String {
    fn from_iter<I: IntoIterator<Item = Rewritten<'a>>>(parts: I) -> Self {
        let mut text = Self::new();
        for part in parts {
            match part {
                Rewritten::As(part) => text.push_str(part),
                Rewritten::Same(c) => text.push(c),
            }
        }
        text
    }
}

/// The text without the first comma, semicolon or colon after each terminal mark, and the spaces between them.
fn without_mark_after_end(text: &str) -> String {
    let mut kept = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        kept.push(c);
        rest = &rest[c.len_utf8()..];
        if TERMINAL.contains(&c)
            && let Some(after) = rest.trim_start_matches(is_space).strip_prefix([',', ';', ':'])
        {
            rest = after;
        }
    }
    kept
}

fn with_terminal_punctuation(text: String) -> String {
    let core = text.trim_end_matches(|c| CLOSERS.contains(&c) || c == ' ');
    let closers = text[core.len()..].trim_matches(is_space);
    match core.chars().next_back() {
        None => text,
        Some(last) if TERMINAL.contains(&last) => text,
        Some(last) if WEAK.contains(&last) => {
            let core = core.trim_end_matches(|c| WEAK.contains(&c) || c == ' ');
            format!("{core}.{closers}")
        }
        Some(_) => text + ".",
    }
}

/// The pieces of a text that the model speaks one after another, each to be prepared again: whole sentences of together
/// at most [`MAX_TOKENS`] tokens, and parts of sentences that are longer. `None` where nothing is left of the text.
pub(super) fn split(text: &str, config: &Config, tokenizer: &TextTokenizer) -> Option<Vec<String>> {
    let prepared = prepare(text, config)?.text;
    let tokens = tokenizer.encode(prepared.trim_matches(is_space));
    let marks = |marks: &str| tokenizer.encode(marks).into_iter().skip(1).collect::<Vec<u32>>();
    let (ends, weaker) = (marks(".!...?"), marks(",;:"));
    let mut segments: Vec<(usize, String)> = Vec::new();
    for sentence in cut(&tokens, &ends, |at| is_inside_number(&tokens, at, tokenizer)) {
        let text = tokenizer.decode(sentence);
        if sentence.len() <= MAX_TOKENS {
            segments.push((sentence.len(), text));
            continue;
        }
        let again = tokenizer.encode(text.trim_matches(is_space));
        let parts = cut(&again, &weaker, |_| false);
        if parts.len() > 1 {
            segments.extend(parts.into_iter().map(|part| (part.len(), tokenizer.decode(part))));
        } else {
            segments.push((sentence.len(), text));
        }
    }
    Some(group(segments))
}

/// Joins segments while they have together at most [`MAX_TOKENS`] tokens.
fn group(segments: Vec<(usize, String)>) -> Vec<String> {
    let mut chunks = Vec::new();
    let (mut chunk, mut size) = (String::new(), 0);
    for (tokens, segment) in segments {
        if chunk.is_empty() {
            (chunk, size) = (segment, tokens);
        } else if size + tokens > MAX_TOKENS {
            chunks.push(std::mem::replace(&mut chunk, segment));
            size = tokens;
        } else {
            chunk.push(' ');
            chunk.push_str(&segment);
            size += tokens;
        }
    }
    if !chunk.is_empty() {
        chunks.push(chunk);
    }
    chunks.iter().map(|chunk| chunk.trim_matches(is_space).to_owned()).collect()
}

/// Cuts tokens after every run of `marks`, but where `is_joined` says of the place after that it is none.
fn cut<'a>(tokens: &'a [u32], marks: &[u32], is_joined: impl Fn(usize) -> bool) -> Vec<&'a [u32]> {
    let (mut parts, mut start, mut after_mark) = (Vec::new(), 0, false);
    for (at, token) in tokens.iter().enumerate() {
        let is_mark = marks.contains(token);
        if !is_mark && after_mark && !is_joined(at) {
            parts.push(&tokens[start..at]);
            start = at;
        }
        after_mark = is_mark;
    }
    parts.push(&tokens[start..]);
    parts
}

/// Whether the place before token `at` follows the period of a decimal number.
fn is_inside_number(tokens: &[u32], at: usize, tokenizer: &TextTokenizer) -> bool {
    let before = tokenizer.decode(&tokens[at.saturating_sub(CONTEXT)..at]);
    let after = tokenizer.decode(&tokens[at..tokens.len().min(at + CONTEXT)]);
    let mut before = before.chars().rev();
    before.next() == Some('.')
        && before.next().is_some_and(char::is_numeric)
        && after.chars().next().is_some_and(char::is_numeric)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::SHAPES;
    use super::*;

    fn config() -> Config {
        Config::parse(SHAPES[0].1, false).unwrap()
    }

    #[test]
    fn marks_behind_the_end_of_a_sentence_are_dropped() {
        assert_eq!(
            without_mark_after_end("Hi? , she said.; No...: yes, no;"),
            "Hi? she said. No... yes, no;"
        );
        assert_eq!(without_mark_after_end("a.,,b"), "a.,b");
    }

    #[test]
    fn endings_get_a_period_before_or_behind_closers() {
        for (text, expected) in [
            ("He said (yes),) ", "He said (yes).)"),
            ("wait -- \"", "wait.\""),
            ("\"yes\"", "\"yes\"."),
            ("\"Go.\"", "\"Go.\""),
            ("\")", "\")"),
            ("so…", "so…"),
            ("...", "..."),
            (",", "."),
        ] {
            assert_eq!(with_terminal_punctuation(text.to_owned()), expected, "{text}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn any_text_is_split_without_loss_of_its_letters(text in any::<String>()) {
            let (config, tokenizer) = (config(), TextTokenizer::bytes(4000));
            let letters = |text: &str| text.chars().filter(|c| c.is_ascii_lowercase()).collect::<String>();
            match split(&text, &config, &tokenizer) {
                None => prop_assert_eq!(letters(&text), ""),
                Some(chunks) => {
                    let whole = prepare(&text, &config).unwrap().text;
                    prop_assert_eq!(letters(&chunks.concat()), letters(&whole));
                    chunks.iter().for_each(|chunk| drop(prepare(chunk, &config)));
                }
            }
        }
    }
}
