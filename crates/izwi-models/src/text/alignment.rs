//! Aligns a text with the words that are spoken for it: which part of the text has been said after each spoken word.
//!
//! Knows no phonemes and no audio.

/// How far the two texts may differ in a row, in words, before the alignment continues one by one.
const MAX_DIFFERENCE: usize = 48;

/// A word as it is compared: letters and digits in lower case. Empty for punctuation alone.
fn key(word: &str) -> String {
    word.chars().filter(|c| c.is_alphanumeric()).flat_map(char::to_lowercase).collect()
}

/// For each word of `spoken`, the number of bytes of `source` that have been said at its end.
///
/// Words that occur in both texts are aligned exactly. Where normalisation replaced words (`$5` by `five dollars`), all
/// spoken words of the replacement have the end of the replaced part; words that it added have the end of the word before.
pub fn spoken_ends(source: &str, spoken: &[&str]) -> Vec<usize> {
    let start = source.as_ptr() as usize;
    let words =
        source.split_whitespace().map(|word| (key(word), word.as_ptr() as usize + word.len() - start));
    let words: Vec<(String, usize)> = words.filter(|(key, _)| !key.is_empty()).collect();
    let keys: Vec<String> = spoken.iter().map(|word| key(word)).collect();
    let said_by = |word: usize| word.checked_sub(1).map_or(0, |last| words[last].1);
    let mut ends = Vec::with_capacity(keys.len());
    let mut at = 0;
    while ends.len() < keys.len() {
        let from = ends.len();
        if keys[from].is_empty() {
            ends.push(said_by(at));
            continue;
        }
        let (skipped, replaced) = difference(&words[at..], &keys[from..]);
        // Abbreviations behind what is replaced by more or fewer words, as in `2024 Dr.`, are words of their own.
        let behind = abbreviated(&words[at..at + skipped], &keys[from..from + replaced]);
        let pairs = skipped == replaced;
        for index in 1..=replaced {
            let left = replaced - index;
            ends.push(said_by(at + if pairs { index } else { skipped - behind.min(left) }));
        }
        at += skipped;
        if replaced == 0 {
            at = (at + 1).min(words.len());
            ends.push(said_by(at));
        }
    }
    if let Some(last) = ends.last().copied() {
        ends.iter_mut().rev().take_while(|end| **end == last).for_each(|end| *end = source.trim_end().len());
    }
    ends
}

/// How many words of the text, and how many spoken ones, stand before the next pair of equal words.
fn difference(words: &[(String, usize)], keys: &[String]) -> (usize, usize) {
    let equal = |word: usize, key: usize| {
        words.get(word).zip(keys.get(key)).is_some_and(|((word, _), key)| word == key)
    };
    let within = |distance: usize| (0..=distance).map(move |skipped| (skipped, distance - skipped));
    let found = (0..=MAX_DIFFERENCE).flat_map(within).find(|&(skipped, replaced)| equal(skipped, replaced));
    // Without equal words in reach, the texts either end or continue word by word.
    let rest = (words.len(), keys.len());
    found.unwrap_or(if rest.0.max(rest.1) <= MAX_DIFFERENCE { rest } else { (rest.0.min(1), 1) })
}

/// How many words at the end of a part of the text are abbreviations of those that are spoken, with others before them in both.
fn abbreviated(words: &[(String, usize)], keys: &[String]) -> usize {
    let is_short = |(word, key): &(&(String, usize), &String)| {
        let (word, key) = (word.0.chars().next(), key.chars().next());
        word.is_some_and(char::is_alphabetic) && word == key
    };
    let most = words.len().min(keys.len()).saturating_sub(1);
    words.iter().rev().zip(keys.iter().rev()).take(most).take_while(is_short).count()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn said<'a>(source: &'a str, spoken: &str) -> Vec<&'a str> {
        let spoken: Vec<&str> = spoken.split_whitespace().collect();
        spoken_ends(source, &spoken).into_iter().map(|end| &source[..end]).collect()
    }

    #[test]
    fn equal_words_are_exact_and_a_replaced_part_is_one_word() {
        assert_eq!(
            said("Hello, big  world!", "hello big world"),
            ["Hello,", "Hello, big", "Hello, big  world!"]
        );
        assert_eq!(
            said("It costs $5 now.", "It costs five dollars now"),
            ["It", "It costs", "It costs $5", "It costs $5", "It costs $5 now."]
        );
        assert_eq!(said("Dr. Who — **left**", "Doctor Who left"), ["Dr.", "Dr. Who", "Dr. Who — **left**"]);
        assert_eq!(said("At 3:30", "At three thirty"), ["At", "At 3:30", "At 3:30"]);
        assert_eq!(said("2 x 3.", "2 times 3"), ["2", "2 x", "2 x 3."]);
        assert_eq!(said("Go 5-6 !", "Go 5 to 6"), ["Go", "Go 5-6 !", "Go 5-6 !", "Go 5-6 !"]);
        assert_eq!(said("See https://a.b/c there", "See there"), ["See", "See https://a.b/c there"]);
        assert_eq!(
            said("In 1984 Dr. Orwell", "In nineteen eighty four Doctor Orwell")[3..],
            ["In 1984", "In 1984 Dr.", "In 1984 Dr. Orwell"]
        );
        assert!(said("Anything", "").is_empty());
        let row = "23 45 67 89 21 34 56 78 91 25";
        let spoken = format!("Totals {} were low", ["twenty three"; 10].join(" "));
        let written = format!("Totals {row} were low.");
        let ends = said(&written, &spoken);
        assert_eq!(ends[20..22], [format!("Totals {row}"), format!("Totals {row} were")]);
    }

    proptest! {
        #[test]
        fn ends_grow_to_the_end_of_the_text(source in "[a-c ,.é]{0,80}", spoken in "[a-d ]{0,80}") {
            let spoken: Vec<&str> = spoken.split_whitespace().collect();
            let ends = spoken_ends(&source, &spoken);
            prop_assert_eq!(ends.len(), spoken.len());
            prop_assert!(ends.is_sorted());
            prop_assert!(ends.iter().all(|&end| source.is_char_boundary(end)));
            prop_assert!(ends.last().is_none_or(|&end| end == source.trim_end().len()));
        }
    }
}
