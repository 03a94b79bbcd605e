//! Finds the words of a text in a transcript of a part of it, whatever a network heard otherwise.
//!
//! Knows no audio and no network.

use std::ops::Range;

/// Letters after the first that a transcript may come from: some minutes of speech.
const MAX_LETTERS: usize = 8192;
/// Letters of a transcript that are looked at.
const MAX_HEARD: usize = 4096;
/// Score of two equal letters, and of a letter that is changed, added or left out.
const EQUAL: i32 = 100;
const OTHER: i32 = -100;
/// Score of a letter before the first that both have: of two places that fit, the first is taken.
const SKIPPED: i32 = -1;
/// The least part of a transcript that comes from the text, as its inverse: a network may add some words to it.
const LEAST_PART: usize = 4;

/// The letters and digits of a text, in lower case.
fn letters(text: &str) -> impl Iterator<Item = char> + '_ {
    text.chars().filter(|c| c.is_alphanumeric()).flat_map(char::to_lowercase)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Begin,
    Both,
    Heard,
    Written,
}

/// The words that `transcript` comes from; empty if it comes from none of them. Both texts are compared letter by letter, since
/// networks write numbers and spaces as they like.
pub(crate) fn heard<'a>(words: impl IntoIterator<Item = &'a str>, transcript: &str) -> Range<usize> {
    let (mut written, mut word_of) = (Vec::new(), Vec::new());
    for (at, word) in words.into_iter().enumerate() {
        // A word may be as long as the text.
        written.extend(letters(word).take(MAX_LETTERS - written.len()));
        word_of.resize(written.len(), at);
        if written.len() >= MAX_LETTERS {
            break;
        }
    }
    let transcript: Vec<char> = letters(transcript).take(MAX_HEARD).collect();
    let equal = equal_letters(&written, &transcript);
    if equal.is_empty() || equal.len() * LEAST_PART < transcript.len() {
        return 0..0;
    }
    let count = word_of.last().map_or(0, |last| last + 1);
    let (mut found, mut all) = (vec![0; count], vec![0; count]);
    word_of.iter().for_each(|&word| all[word] += 1);
    equal.iter().for_each(|&letter| found[word_of[letter]] += 1);
    let is_heard = |&word: &usize| all[word] > 0 && found[word] * 2 >= all[word];
    match ((0..count).find(is_heard), (0..count).rev().find(is_heard)) {
        (Some(first), Some(last)) => first..last + 1,
        _ => 0..0,
    }
}

/// The letters of `written` that are in `heard`, by the path through both texts on which the most are equal and the fewest others
/// between them.
fn equal_letters(written: &[char], heard: &[char]) -> Vec<usize> {
    let width = written.len() + 1;
    let begin = |at: usize, column: usize| (at + column) as i32 * SKIPPED;
    let mut steps = vec![Step::Begin; width * (heard.len() + 1)];
    let mut row: Vec<i32> = (0..width).map(|column| begin(0, column)).collect();
    let mut best = (0, (0, 0));
    for (at, letter) in (1..).zip(heard) {
        let mut diagonal = row[0];
        row[0] = begin(at, 0);
        for column in 1..width {
            let both = diagonal + if written[column - 1] == *letter { EQUAL } else { OTHER };
            diagonal = row[column];
            let ways = [
                (both, Step::Both),
                (diagonal + OTHER, Step::Heard),
                (row[column - 1] + OTHER, Step::Written),
            ];
            let mut way = (begin(at, column), Step::Begin);
            for next in ways {
                way = if next.0 > way.0 { next } else { way };
            }
            (row[column], steps[at * width + column]) = way;
            if way.0 > best.0 {
                best = (way.0, (at, column));
            }
        }
    }
    let (mut equal, (mut at, mut column)) = (Vec::new(), best.1);
    loop {
        match steps[at * width + column] {
            Step::Begin => break,
            Step::Both => {
                (at, column) = (at - 1, column - 1);
                if written[column] == heard[at] {
                    equal.push(column);
                }
            }
            Step::Heard => at -= 1,
            Step::Written => column -= 1,
        }
    }
    equal.reverse();
    equal
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[track_caller]
    fn check(text: &str, transcript: &str, expected: &str) {
        let words: Vec<&str> = text.split_whitespace().collect();
        let range = heard(words.iter().copied(), transcript);
        assert_eq!(words[range].join(" "), expected, "{transcript}");
    }

    #[test]
    fn a_word_of_any_length_is_compared_as_far_as_any_text() {
        let long = "ab".repeat(MAX_LETTERS);
        assert_eq!(heard([long.as_str(), "more"], &"ab".repeat(MAX_LETTERS / 4)), 0..1);
    }

    #[test]
    fn a_transcript_is_found_where_it_comes_from() {
        let text = "It costs 5 dollars, said Ms. O'Neill. He paid, and she left. Then he came back.";
        check(text, "It costs five dollars, said Miss O'Neil.", "It costs 5 dollars, said Ms. O'Neill.");
        check(text, "said Ms O'Neill he payed and", "said Ms. O'Neill. He paid, and");
        check(text, "Then he came back. Thanks for watching.", "Then he came back.");
        check(text, "A completely unrelated remark about zoology", "");
        check(text, "", "");
        check("", "he", "");
        check("na na na yes na na na", "na na na", "na na na");
        check("你 好 世 界", "好世", "好 世");
    }

    proptest! {
        #[test]
        fn what_is_found_exists(text in "[a-c ,.é]{0,60}", transcript in "[a-dé ]{0,60}") {
            let words: Vec<&str> = text.split_whitespace().collect();
            let range = heard(words.iter().copied(), &transcript);
            prop_assert!(range.start <= range.end && range.end <= words.len());
        }

        #[test]
        fn a_part_of_a_text_of_unequal_words_is_found(from in 0..40usize, count in 2..20usize) {
            let words: Vec<String> = (0..60u64).map(|n| format!("{:06x}", izwi_nn::sampling::mix(n) >> 40)).collect();
            let part = words[from..from + count].join(" ");
            prop_assert_eq!(heard(words.iter().map(String::as_str), &part), from..from + count);
        }
    }
}
