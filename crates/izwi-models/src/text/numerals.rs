//! Numbers in words: cardinals, ordinals, years, codes, decimals, Roman numerals.

use super::words::{ONES, TENS};

/// Names of the powers of a thousand.
const THOUSANDS: [&str; 12] = [
    "",
    " thousand",
    " million",
    " billion",
    " trillion",
    " quadrillion",
    " quintillion",
    " sextillion",
    " septillion",
    " octillion",
    " nonillion",
    " decillion",
];

/// Runs of more digits are read digit by digit.
const MAX_CARDINAL_DIGITS: usize = 15;

/// The value of a Roman numeral that is written as it should be.
pub(super) fn roman(numeral: &str) -> Option<u32> {
    let value = |c| match c {
        'I' => Some(1),
        'V' => Some(5),
        'X' => Some(10),
        'L' => Some(50),
        'C' => Some(100),
        'D' => Some(500),
        'M' => Some(1000),
        _ => None,
    };
    let values = numeral.chars().map(value).collect::<Option<Vec<u32>>>()?;
    let larger_follows = |at: usize| values.get(at + 1).is_some_and(|next| *next > values[at]);
    let (minus, plus): (Vec<_>, Vec<_>) = (0..values.len()).partition(|&at| larger_follows(at));
    let sum = |places: Vec<usize>| places.into_iter().map(|at| values[at]).sum::<u32>();
    sum(plus).checked_sub(sum(minus)).filter(|&value| value > 0)
}

/// A number and what is counted, in the singular or the plural.
pub(super) fn counted(number: &str, one: &str, many: &str) -> String {
    let single = matches!(number, "1" | "-1" | "a" | "one");
    format!("{number} {}", if single { one } else { many })
}

/// The ordinal of a number in words: "twenty-first".
pub(super) fn ordinal(number: u32) -> String {
    cardinal(number.into()).map_or_else(|| number.to_string(), |words| ordinal_words(&words))
}

/// As [`ordinal`], of digits in a text: "twenty first".
pub(super) fn plain_ordinal(digits: &str) -> Option<String> {
    Some(spaced(&ordinal_words(&cardinal(digits.replace(',', "").parse().ok()?)?)))
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

/// The plural of a number in words: "nineties", "sixes".
fn plural(words: &str) -> String {
    match words.strip_suffix('y') {
        Some(stem) => format!("{stem}ies"),
        None if words.ends_with('x') => format!("{words}es"),
        None => format!("{words}s"),
    }
}

pub(super) fn below_hundred(number: u32) -> String {
    let number = number as usize % 100;
    match (number / 10, number % 10) {
        (0 | 1, _) => ONES[number].to_owned(),
        (tens, 0) => TENS[tens - 2].to_owned(),
        (tens, ones) => format!("{}-{}", TENS[tens - 2], ONES[ones]),
    }
}

/// The last two digits of a year or a code: "oh five", "twenty-five", "hundred".
fn last_two(number: u32) -> String {
    match number % 100 {
        0 => "hundred".to_owned(),
        ones @ 1..10 => format!("oh {}", below_hundred(ones)),
        two => below_hundred(two),
    }
}

/// The names of the digits among the characters.
pub(super) fn digit_names(digits: &str) -> String {
    let names = digits.chars().filter_map(|c| ONES.get(c.to_digit(10)? as usize).copied());
    names.collect::<Vec<_>>().join(" ")
}

/// A number as of a year: "nineteen oh five", "two thousand seven", "twenty twenty four".
pub(super) fn year(number: u32) -> String {
    spaced(&year_words(number))
}

/// The lexicon of the default voice has the words of plain numbers one by one.
fn spaced(words: &str) -> String {
    words.replace('-', " ")
}

fn year_words(number: u32) -> String {
    let (century, rest) = (number / 100, number % 100);
    match century {
        10..100 if century % 10 != 0 || rest >= 10 || (century == 10 && rest > 0) => {
            format!("{} {}", below_hundred(century), last_two(rest))
        }
        _ => cardinal(number.into()).unwrap_or_default(),
    }
}

/// The digits of a name, such as those of a flight or a road: "three oh four", "twenty-three oh four".
pub(super) fn code(digits: &str) -> String {
    spaced(&code_words(digits))
}

/// Several of a number: "nineteen nineties", "seven forty-sevens".
pub(super) fn several(digits: &str) -> String {
    plural(&code_words(digits))
}

fn code_words(digits: &str) -> String {
    match (digits.len(), digits.parse()) {
        (1, Ok(number)) => below_hundred(number),
        (2, Ok(number)) if number >= 10 => below_hundred(number),
        (2, Ok(number)) if number > 0 => format!("oh {}", below_hundred(number)),
        (3, Ok(number)) if number >= 100 => {
            format!("{} {}", below_hundred(number / 100), last_two(number))
        }
        (4, Ok(number)) if number >= 1000 => year_words(number),
        _ => digit_names(digits),
    }
}

/// A whole number in words, as long as its powers have names.
pub(super) fn cardinal(number: u128) -> Option<String> {
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

/// A number as it is written, `1,250.75`, in words. With zeros in front, or without end, digit by digit.
pub(super) fn number(written: &str) -> String {
    let (whole, decimals) =
        written.split_once('.').map_or((written, None), |(whole, part)| (whole, Some(part)));
    let digits = whole.replace(',', "");
    let named = digits.len() == 1 || !digits.starts_with('0');
    let short = digits.len() <= MAX_CARDINAL_DIGITS || whole.contains(',');
    let cardinal = digits.parse().ok().filter(|_| named && short).and_then(cardinal);
    let mut words = cardinal.map_or_else(|| digit_names(&digits), |words| spaced(&words));
    if let Some(decimals) = decimals {
        words = format!("{words} point {}", digit_names(decimals)).trim_start().to_owned();
    }
    words
}
