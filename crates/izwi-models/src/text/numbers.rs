//! The last rules: whatever is still in digits, by what stands around it.

use super::numerals::{code, digit_names, number, plain_ordinal, year};
use super::rewrite::{Found, Rule};
use super::words::{CODE_BEFORE, DIGITS_BEFORE, NO_NOUNS, PEOPLE, VERSIONED, YEAR_BEFORE};

pub(super) fn numbers() -> Result<Vec<Rule>, regex::Error> {
    Ok(vec![
        Rule::new(r"(?i)\b(\d{1,3}(?:,\d{3})+|\d+)(?:st|nd|rd|th)\b", |found| plain_ordinal(found.group(1)))?,
        Rule::new(
            &format!(r"\b(v|[Vv]ersion|[Vv]er\.|{}) ?(\d+(?:\.\d+)+|\d+)\b", VERSIONED.join("|")),
            |found| {
                let name = found.group(1);
                if name == "v" && (found.word_before() == "slash" || found.before == Some('-')) {
                    return None;
                }
                // After the word itself a version is read by its numbers alone, as the lexicon of the default voice does.
                let is_bare = name.ends_with("ersion") && found.group(2).matches('.').count() > 1;
                let is_whole = !found.group(2).contains('.');
                let read = if is_whole { number } else { part };
                let parts: Vec<String> = found.group(2).split('.').map(read).collect();
                let name = if matches!(name, "v" | "ver." | "Ver.") { "version" } else { name };
                Some(format!("{name} {}", parts.join(if is_bare { " " } else { " point " })))
            },
        )?,
        Rule::new(r"\b(\p{Lu})\.(\d{3})\b", |found| {
            Some(format!("{} {}", found.group(1), code(found.group(2))))
        })?,
        Rule::new(r"\d+(?:\.\d+){2,}", |found| {
            let parts: Vec<String> = found.group(0).split('.').map(part).collect();
            Some(padded(found, &parts.join(" point ")))
        })?,
        Rule::new(r"\b(\d+(?:\.\d+)?)([kKMB]) (\p{Ll}+s)\b", |found| {
            let resolution = matches!(found.group(0).get(..2), Some("2K" | "4K" | "5K" | "8K"));
            let scale = match found.group(2) {
                "M" => "million",
                "B" => "billion",
                _ => "thousand",
            };
            (!resolution).then(|| format!("{} {scale} {}", number(found.group(1)), found.group(3)))
        })?,
        Rule::new(r"(\p{L})[-\u{2011}]?(\d+(?:\.\d+)?)", |found| {
            let digits = found.group(2);
            let words = if digits.contains('.') { number(digits) } else { code(digits) };
            let space = if found.after.is_some_and(char::is_alphanumeric) { " " } else { "" };
            Some(format!("{} {}{space}", found.group(1), words))
        })?,
        Rule::new(r"(\d+(?:\.\d+)?)[-\u{2011}]?(\p{L})(\p{L}*)", |found| {
            let digits = found.group(1);
            let glued = !found.group(0).contains(['-', '\u{2011}']);
            let words = match digits.len() {
                3.. if glued && !digits.contains('.') => code(digits),
                4 => year(found.number(1)?),
                _ => number(digits),
            };
            // A letter alone is its name.
            let letter = if glued && found.group(3).is_empty() {
                found.group(2).to_uppercase()
            } else {
                found.group(2).to_owned()
            };
            let before = if found.before.is_some_and(char::is_alphanumeric) { " " } else { "" };
            Some(format!("{before}{} {letter}{}", words, found.group(3)))
        })?,
        Rule::new(r"\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d*\.\d+", |found| {
            Some(padded(found, &number(found.group(0))))
        })?,
        Rule::new(r"\d+", |found| Some(padded(found, &whole(found))))?,
        // A stroke that has no better reading.
        Rule::new("/", |found| {
            let joins = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == ' ');
            (joins(found.before) && joins(found.after)).then(|| " slash ".to_owned())
        })?,
    ])
}

/// One number of a version.
fn part(digits: &str) -> String {
    if digits.len() > 2 { code(digits) } else { number(digits) }
}

fn padded(found: &Found<'_>, words: &str) -> String {
    let space = |near: bool| if near { " " } else { "" };
    let before = space(found.before.is_some_and(char::is_alphanumeric));
    let after = space(found.after.is_some_and(char::is_alphanumeric));
    format!("{before}{words}{after}")
}

/// A bare whole number: a year, a code or a cardinal.
fn whole(found: &Found<'_>) -> String {
    let digits = found.group(0);
    let (left, right) = (found.word_before(), found.word_after());
    let is_service = matches!(
        digits,
        "911" | "411" | "211" | "311" | "511" | "611" | "711" | "811" | "988" | "999" | "112"
    );
    let is_called = matches!(left, "call" | "Call" | "called" | "dial" | "Dial" | "dialed" | "calling");
    let said = found.left.trim_end().trim_end_matches(" is").rsplit(' ').next().unwrap_or_default();
    if (DIGITS_BEFORE.contains(&left) || DIGITS_BEFORE.contains(&said)) && digits.len() > 2
        || (is_service && is_called)
    {
        return digit_names(digits);
    }
    if [left, right].contains(&"dot")
        || (CODE_BEFORE.contains(&left.to_lowercase().as_str()) && digits.len() >= 2)
    {
        return code(digits);
    }
    match found.number(0).filter(|_| digits.len() == 4) {
        // "BWV 1007"
        Some(value) if value >= 1000 && left.len() > 1 && left.chars().all(char::is_uppercase) => year(value),
        Some(value) if is_year(value, left, right, found.after) => year(value),
        // "fifteen hundred people"
        Some(value) if (1100..2000).contains(&value) && value % 100 == 0 => year(value),
        _ => number(digits),
    }
}

fn is_year(value: u32, left: &str, right: &str, after: Option<char>) -> bool {
    let dated = YEAR_BEFORE.contains(&left.to_lowercase().as_str());
    let is_plural =
        right.len() > 3 && right.ends_with('s') && !right.ends_with("ss") && !right.ends_with("us");
    let counts = right.starts_with(char::is_lowercase)
        && after == Some(' ')
        && is_plural
        && !NO_NOUNS.contains(&right);
    let counts = counts || PEOPLE.contains(&right);
    match value {
        1100..2100 => {
            !counts
                || matches!(left.to_lowercase().as_str(), "the" | "this" | "early" | "mid" | "late" | "since")
        }
        1000..1100 => dated && !counts,
        _ => false,
    }
}
