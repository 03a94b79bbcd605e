//! Rules for telephone numbers, fractions, scores, ranges and sums.

use super::calendar::date;
use super::numerals::{cardinal, code, counted, digit_names, number, ordinal_words};
use super::rewrite::{Found, Rule};
use super::words::{FRACTION_NOUNS, IDIOMS, RATING_WORDS, TIMES_BEFORE};

/// A number, with groups or decimals, or of four digits at most.
const PLAIN: &str = r"\d{1,3}(?:,\d{3})+|\d+\.\d+|\d{1,4}";

pub(super) fn idioms() -> Result<Vec<Rule>, regex::Error> {
    let written: Vec<String> = IDIOMS.iter().map(|[written, _]| regex::escape(written)).collect();
    Ok(vec![Rule::new(&written.join("|"), |found| {
        let [_, spoken] = IDIOMS.iter().find(|[written, _]| *written == found.group(0))?;
        let apart = found.stands_alone(".,$€£-/:#") && !found.right.starts_with(['/', '-', ':']);
        apart.then(|| (*spoken).to_owned())
    })?])
}

pub(super) fn telephone() -> Result<Vec<Rule>, regex::Error> {
    Ok(vec![
        Rule::new(
            r"(\+?)(1[-. ])?\(?\b(\d{3})\)?[-. ]\s?(\d{3})[-. ](\d{4})\b(?:,? ?(?:x|ext\.?|extension) ?(\d{1,5})\b)?",
            |found| {
                let apart = !found.before.is_some_and(|c| c.is_alphanumeric() || ".-$".contains(c))
                    && found.after != Some('-');
                let plus = if found.group(1).is_empty() { "" } else { "plus " };
                let country = if found.group(2).is_empty() { "" } else { "one, " };
                let extension = match found.group(6) {
                    "" => String::new(),
                    digits => format!(", extension {}", digit_names(digits)),
                };
                let groups = [area(found.group(3)), digit_names(found.group(4)), digit_names(found.group(5))];
                apart.then(|| format!("{plus}{country}{}{extension}", groups.join(", ")))
            },
        )?,
        Rule::new(r"\b(?:(1)-)?([2-9]\d{2})-((?:\d{1,3}-)?[A-Z]{3,}(?:-[A-Z]+)*)\b", |found| {
            let country = if found.group(1).is_empty() { "" } else { "one, " };
            let toll_free =
                matches!(found.group(2), "800" | "888" | "877" | "866" | "855" | "844" | "833" | "900");
            toll_free
                .then(|| format!("{country}{}, {}", area(found.group(2)), found.group(3).replace('-', " ")))
        })?,
        Rule::new(r"\b(\d{3})-(\d{4})\b(?:,? ?(?:x|ext\.?|extension) ?(\d{1,5})\b)?", |found| {
            let groups = [1, 2].map(|index| digit_names(found.group(index)));
            let extension = match found.group(3) {
                "" => String::new(),
                digits => format!(", extension {}", digit_names(digits)),
            };
            found.stands_alone(".-$").then(|| groups.join(", ") + &extension)
        })?,
        Rule::new(r"(?:\+|\b00)(\d{1,3})((?:[ .-]?\(?\d{1,4}\)?){2,6})", |found| {
            let groups =
                found.group(2).split(|c: char| !c.is_ascii_digit()).filter(|group| !group.is_empty());
            let groups: Vec<String> = groups.map(digit_names).collect();
            let is_number = groups.len() > 1 && !found.before.is_some_and(char::is_alphanumeric);
            is_number.then(|| format!("plus {}, {}", digit_names(found.group(1)), groups.join(", ")))
        })?,
        Rule::new(r"\b(\d{5})-(\d{4})\b", |found| {
            Some(format!("{}, {}", digit_names(found.group(1)), digit_names(found.group(2))))
        })?,
        // Numbers of cards, accounts, books: groups of digits.
        Rule::new(r"\b\d{4}(?:[ -]\d{4}){2,}\b|\b\d{1,6}(?:-\d{1,7}){2,}(?:-X)?\b", |found| {
            let groups = found.group(0).split([' ', '-']);
            let groups: Vec<String> = groups
                .map(|group| if group == "X" { group.to_owned() } else { digit_names(group) })
                .collect();
            found.stands_alone(".-/").then(|| groups.join(", "))
        })?,
    ])
}

/// An area code; those that end in two zeros are hundreds.
fn area(digits: &str) -> String {
    if digits.ends_with("00") { code(digits) } else { digit_names(digits) }
}

pub(super) fn ranges() -> Result<Vec<Rule>, regex::Error> {
    Ok(vec![
        Rule::new(r"([\d)a-z]) [-–] (\d+(?:\.\d+)?)( = )", |found| {
            Some(format!("{} minus {}{}", found.group(1), found.group(2), found.group(3)))
        })?,
        Rule::new(&format!(r"({PLAIN})%?\s?[-–]\s?({PLAIN})"), |found| {
            let apart = found.stands_alone(".-,:/") && !found.right.starts_with(['-', ':', '/']);
            let ends = !found.right.starts_with([',', '.'])
                || !found.right[1..].starts_with(|c: char| c.is_ascii_digit());
            (apart && ends).then(|| format!("{} to {}", found.group(1), found.group(2)))
        })?,
    ])
}

pub(super) fn figures() -> Result<Vec<Rule>, regex::Error> {
    Ok(vec![
        Rule::new(r"(\d+)[ -](\d{1,3})/(\d{1,3})(\s?[\u{22}″])?", |found| {
            let (upper, lower) = (found.number(2)?, found.number(3)?);
            let inches = if found.group(4).is_empty() { "" } else { " inches" };
            let is_part = upper < lower && found.stands_alone("./$-") && found.after != Some('/');
            let part = if lower == 2 { "a half".to_owned() } else { parts(upper, lower, "a")? };
            is_part.then(|| format!("{} and {part}{inches}", number(found.group(1))))
        })?,
        Rule::new(r"(\d{1,4})/(\d{1,5})", fraction)?,
        Rule::new(r"(\d[\d,.]*)\s?[x×]\s?(\d[\d,.]*)", |found| {
            let is_power = found.group(2) == "10" && found.after.is_some_and(|c| "^⁰¹²³⁴⁵⁶⁷⁸⁹⁻".contains(c));
            let is_sum = found.group(0).contains('×') && found.right.contains('=');
            let word = if is_power || is_sum { "times" } else { "by" };
            (!found.before.is_some_and(char::is_alphanumeric))
                .then(|| format!("{} {word} {}", found.group(1), found.group(2)))
        })?,
        Rule::new(r"(\d)[x×] ", |found| {
            TIMES_BEFORE.contains(&found.word_after()).then(|| format!("{} times ", found.group(1)))
        })?,
        Rule::new(r"\b(\d+(?:\.\d+)?)[eE]([+-]?)(\d{1,3})\b", |found| {
            let minus = if found.group(2) == "-" { "minus " } else { "" };
            found.stands_alone(".").then(|| {
                let power = number(found.group(3));
                format!("{} times ten to the power of {minus}{power}", number(found.group(1)))
            })
        })?,
        Rule::new(r"(\d)\+", |found| {
            let ends = !found.after.is_some_and(char::is_alphanumeric);
            ends.then(|| format!("{} plus", found.group(1)))
        })?,
        Rule::new(r"([+-])\s?([\d.])", |found| {
            let apart = !found.before.is_some_and(|c| c.is_alphanumeric() || matches!(c, '+' | '-' | ')'));
            let sign = if found.group(1) == "+" { "plus" } else { "minus" };
            let spaced = found.group(0).contains(' ') && found.group(1) == "-";
            (apart && !spaced).then(|| format!("{sign} {}", found.group(2)))
        })?,
    ])
}

fn fraction(found: &Found<'_>) -> Option<String> {
    let (upper, lower) = (found.number(1)?, found.number(2)?);
    if !found.stands_alone("./-$") || found.after == Some('/') {
        return None;
    }
    let right = found.word_after();
    let rated = found.left.trim_end().rsplit(' ').take(2).any(|word| RATING_WORDS.contains(&word));
    if rated || matches!(right, "stars" | "points") {
        return Some(format!("{} out of {}", number(found.group(1)), number(found.group(2))));
    }
    let is_part = upper > 0 && upper < lower;
    let is_measure = FRACTION_NOUNS.contains(&right) || found.after == Some('"');
    let inches = if found.after == Some('"') { " " } else { "" };
    let is_day = (1..=12).contains(&upper) && (1..=31).contains(&lower);
    if is_day
        && right != "of"
        && matches!(found.word_before(), "on" | "On" | "until" | "till" | "before" | "since")
    {
        return date(upper, lower, "");
    }
    if is_part
        && (lower <= 10 || is_measure || !is_day && matches!(lower, 12 | 16 | 20 | 32 | 50 | 64 | 100 | 1000))
    {
        return parts(upper, lower, "one").map(|part| part + inches);
    }
    let day = date(upper, lower, "").filter(|_| is_day && lower > 10);
    day.or_else(|| Some(format!("{} over {}", number(found.group(1)), number(found.group(2)))))
}

/// "three quarters", "five sixteenths"; a single part is "a third" or "one third".
fn parts(upper: u32, lower: u32, one: &str) -> Option<String> {
    let part = match lower {
        2 => "half".to_owned(),
        4 => "quarter".to_owned(),
        _ => ordinal_words(&cardinal(lower.into())?),
    };
    let count = if upper == 1 { one.to_owned() } else { cardinal(upper.into())? };
    let several = if lower == 2 { "halves".to_owned() } else { format!("{part}s") };
    Some(counted(&count, &part, &several))
}
