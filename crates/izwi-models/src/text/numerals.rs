//! Small numbers in words, ordinals, Roman numerals.

use super::rewrite::Found;
use super::words::{ONES, TENS};

/// Names of the powers of a thousand.
const THOUSANDS: [&str; 6] = ["", " thousand", " million", " billion", " trillion", " quadrillion"];

pub(super) fn roman(found: &Found<'_>) -> Option<u32> {
    let numeral = found.group(2);
    let possessive = found.after == Some('\'');
    if numeral.is_empty() || numeral.starts_with(['M', 'D']) || possessive {
        return None;
    }
    let value = |c| match c {
        'I' => 1,
        'V' => 5,
        'X' => 10,
        'L' => 50,
        'C' => 100,
        'D' => 500,
        _ => 1000,
    };
    let values: Vec<u32> = numeral.chars().map(value).collect();
    let larger_follows = |at: usize| values.get(at + 1).is_some_and(|next| *next > values[at]);
    let (minus, plus): (Vec<_>, Vec<_>) = (0..values.len()).partition(|&at| larger_follows(at));
    let sum = |places: Vec<usize>| places.into_iter().map(|at| values[at]).sum::<u32>();
    Some(sum(plus) - sum(minus))
}

pub(super) fn counted(number: &str, one: &str, many: &str) -> String {
    let single = matches!(number, "1" | "-1" | "1.0");
    format!("{number} {}", if single { one } else { many })
}

/// In words below a hundred, in digits above.
pub(super) fn ordinal(number: u32) -> String {
    if number >= 100 {
        let suffix = if number % 100 == 11 {
            "th"
        } else {
            ["th", "st", "nd", "rd"].get(number as usize % 10).unwrap_or(&"th")
        };
        return format!("{number}{suffix}");
    }
    ordinal_words(&below_hundred(number))
}

/// The ordinal of a cardinal in words.
pub(super) fn ordinal_words(words: &str) -> String {
    let at = words.rfind(['-', ' ']);
    let (head, last) = at.map_or(("", words), |at| words.split_at(at + 1));
    let last = match last {
        "one" => "first".to_owned(),
        "two" => "second".to_owned(),
        "three" => "third".to_owned(),
        "five" => "fifth".to_owned(),
        "eight" => "eighth".to_owned(),
        "nine" => "ninth".to_owned(),
        "twelve" => "twelfth".to_owned(),
        tens if tens.ends_with('y') => format!("{}ieth", tens.trim_end_matches('y')),
        other => format!("{other}th"),
    };
    format!("{head}{last}")
}

pub(super) fn below_hundred(number: u32) -> String {
    let number = number as usize % 100;
    match (number / 10, number % 10) {
        (0 | 1, _) => ONES[number].to_owned(),
        (tens, 0) => TENS[tens - 2].to_owned(),
        (tens, ones) => format!("{}-{}", TENS[tens - 2], ONES[ones]),
    }
}

pub(super) fn digit_by_digit(digits: &str) -> String {
    digits.chars().map(String::from).collect::<Vec<_>>().join(" ")
}

/// A whole number in words, as long as its powers have names.
pub(super) fn cardinal(number: u64) -> Option<String> {
    let mut groups = Vec::new();
    let mut rest = number;
    for name in THOUSANDS {
        let (hundreds, below) = (rest % 1_000 / 100, (rest % 100) as u32);
        let mut words = Vec::new();
        if hundreds > 0 {
            words.push(format!("{} hundred", ONES[hundreds as usize]));
        }
        if below > 0 || number == 0 {
            words.push(below_hundred(below));
        }
        if !words.is_empty() {
            groups.push(words.join(" ") + name);
        }
        rest /= 1_000;
        if rest == 0 {
            groups.reverse();
            return Some(groups.join(" "));
        }
    }
    None
}
