//! Readings of `say-as`: what a stretch of text is, in words that any front end reads.
//!
//! The values of `interpret-as` are those of the W3C note <https://www.w3.org/TR/ssml-sayas/> and of the common services. All but
//! single characters are English.

use std::sync::LazyLock;

use crate::text::calendar::date;
use crate::text::normalise::Normaliser;
use crate::text::numerals::{cardinal, ordinal_words};
use crate::text::words::{ONES, SYMBOLS};

/// Readings in the characters that are written, in every language.
const CHARACTERS: [&str; 7] =
    ["characters", "character", "spell-out", "verbatim", "letters", "digits", "number_digit"];
/// Readings in English words.
const ENGLISH: [&str; 10] =
    ["cardinal", "number", "ordinal", "date", "time", "telephone", "currency", "unit", "measure", "fraction"];

/// Whether there are readings of a kind.
pub(super) fn is_known(kind: &str, is_english: bool) -> bool {
    CHARACTERS.contains(&kind) || (is_english && ENGLISH.contains(&kind))
}

/// The reading of a text as something of a kind; `None` where it is no such thing.
pub(super) fn read(text: &str, kind: &str, format: &str) -> Option<String> {
    static NORMALISER: LazyLock<Option<Normaliser>> = LazyLock::new(|| {
        let compiled = Normaliser::new();
        compiled.inspect_err(|error| tracing::error!(%error, "say-as is not read")).ok()
    });
    let plain = |text: &str| Some(NORMALISER.as_ref()?.normalise(text));
    match kind {
        "digits" | "number_digit" => digits(text),
        kind if CHARACTERS.contains(&kind) => characters(text),
        "cardinal" | "number" => number(text),
        "ordinal" => {
            let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic() || c == '.');
            Some(ordinal_words(&cardinal(integer(digits)?)?))
        }
        "date" => plain(&day(text, format)?),
        "telephone" => telephone(text),
        "time" => plain(&text.replace(['.', 'h'], ":").replace(" :", ":")),
        _ => plain(text),
    }
}

/// A whole number in digits, which may be in groups.
fn integer(text: &str) -> Option<u128> {
    let digits: String =
        text.chars().filter(|c| !matches!(c, ',' | '\'' | ' ' | '\u{a0}' | '\u{202f}')).collect();
    digits.parse().ok()
}

fn number(text: &str) -> Option<String> {
    let (sign, text) = match text.strip_prefix(['-', '−']) {
        Some(text) => ("minus ", text),
        None => ("", text.trim_start_matches('+')),
    };
    let (whole, decimals) = text.split_once('.').unwrap_or((text, ""));
    let whole = cardinal(integer(whole)?)?;
    match decimals {
        "" => Some(format!("{sign}{whole}")),
        decimals => Some(format!("{sign}{whole} point {}", digits(decimals)?)),
    }
}

/// Each digit for itself; marks between them part groups.
fn digits(text: &str) -> Option<String> {
    let is_digits = !text.is_empty() && text.chars().all(|c| c.is_ascii_digit() || " -./".contains(c));
    is_digits.then(|| {
        let groups = text.split(|c: char| !c.is_ascii_digit()).filter(|group| !group.is_empty());
        groups.map(spaced).collect::<Vec<_>>().join(", ")
    })
}

fn spaced(text: &str) -> String {
    text.chars().map(String::from).collect::<Vec<_>>().join(" ")
}

/// Each letter for itself, digits and symbols by name.
fn characters(text: &str) -> Option<String> {
    let name = |c: char| match c {
        c if c.is_alphanumeric() => Some(c.to_uppercase().collect::<String>()),
        c => SYMBOLS
            .iter()
            .find(|(symbol, name)| *symbol == c && !name.is_empty())
            .map(|(_, name)| (*name).to_owned()),
    };
    let names: Vec<String> = text.chars().filter_map(name).collect();
    (!names.is_empty()).then(|| names.join(" "))
}

/// The digits in words, a comma between groups.
fn telephone(text: &str) -> Option<String> {
    let names = |group: &str| {
        let names = group.chars().filter_map(|c| ONES.get(c.to_digit(10)? as usize).copied());
        names.collect::<Vec<_>>().join(" ")
    };
    let groups = text.split(|c: char| !c.is_ascii_digit()).filter(|group| !group.is_empty());
    let groups = groups.map(names).collect::<Vec<_>>().join(", ");
    let plus = if text.starts_with('+') { "plus " } else { "" };
    (!groups.is_empty()).then(|| format!("{plus}{groups}"))
}

/// A date, whose numbers come in the order of a format such as `dmy`.
fn day(text: &str, format: &str) -> Option<String> {
    let numbers: Vec<&str> =
        text.split(|c: char| !c.is_ascii_digit()).filter(|number| !number.is_empty()).collect();
    let has_words = text.contains(char::is_alphabetic);
    let format = match (format, numbers.first().map_or(0, |number| number.len())) {
        _ if has_words => return Some(text.to_owned()),
        ("", 4) => "ymd",
        ("", _) => "mdy",
        (format, _) => format,
    };
    let named =
        |wanted: char| format.chars().position(|c| c == wanted).and_then(|at| numbers.get(at).copied());
    let (year, month, day) = (named('y'), named('m'), named('d'));
    match (year, month.map(str::parse), day.map(str::parse)) {
        (year, Some(Ok(month)), Some(Ok(day))) => date(month, day, year.unwrap_or_default()),
        (year, Some(Ok(month)), None) => {
            // The first of it without the day.
            let first = date(month, 1, year.unwrap_or_default())?;
            Some(first.replace(" first,", "").replace(" first", ""))
        }
        (Some(year), None, None) => Some(year.to_owned()),
        (_, None, Some(Ok(day))) => Some(ordinal_words(&cardinal(day.into())?)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(kind: &str, format: &str, cases: &[(&str, Option<&str>)]) {
        for (text, expected) in cases {
            assert_eq!(read(text, kind, format).as_deref(), *expected, "{text}");
        }
    }

    #[test]
    fn numbers_are_read_as_what_they_are() {
        let big = "one million two hundred three thousand four hundred five";
        check(
            "cardinal",
            "",
            &[("1984", Some("one thousand nine hundred eighty-four")), ("1,203,405", Some(big))],
        );
        check("cardinal", "", &[("-3.14", Some("minus three point 1 4")), ("x", None), ("", None)]);
        check(
            "ordinal",
            "",
            &[
                ("21", Some("twenty-first")),
                ("100th", Some("one hundredth")),
                ("1012", Some("one thousand twelfth")),
            ],
        );
        check("digits", "", &[("1984", Some("1 9 8 4")), ("12-34", Some("1 2, 3 4")), ("a1", None)]);
        check("telephone", "", &[("+44 20 79", Some("plus four four, two zero, seven nine")), ("-", None)]);
        check("currency", "", &[("€2bn", Some("two billion euros"))]);
    }

    #[test]
    fn characters_dates_and_times_are_read_one_by_one() {
        check("characters", "", &[("W3c", Some("W 3 C")), ("a#", Some("A hashtag")), ("…", None)]);
        check("date", "dmy", &[("03/05/2024", Some("May third, twenty twenty four")), ("40/05/2024", None)]);
        check(
            "date",
            "",
            &[
                ("2024-03-05", Some("March fifth, twenty twenty four")),
                ("3/5/2024", Some("March fifth, twenty twenty four")),
            ],
        );
        check("date", "my", &[("05.2024", Some("May twenty twenty four"))]);
        check("date", "md", &[("12/24", Some("December twenty-fourth"))]);
        check("time", "hms24", &[("7.30", Some("seven thirty")), ("7:30pm", Some("seven thirty P.M."))]);
        assert!(
            is_known("digits", false)
                && !is_known("date", false)
                && is_known("date", true)
                && !is_known("x", true)
        );
    }
}
