//! Rules for money, measures, telephone numbers, fractions, ranges and numbers glued to letters.

use super::calendar::date;
use super::numerals::{below_hundred, counted, digit_by_digit};
use super::rewrite::{Found, Rule};
use super::words::{CURRENCIES, UNITS};

const NUMBER: &str = r"\d+(?:,\d{3})*(?:\.\d+)?";
const SCALE: &str = r"hundred|thousand|million|billion|trillion|bn\b|[kKmMbB]\b";
/// Digit runs longer than this are read digit by digit.
const MAX_CARDINAL_DIGITS: usize = 15;

/// Numbers as most of Europe writes them, as English does: groups parted by commas, a decimal point, a currency in front.
pub(super) fn continental() -> Result<Vec<Rule>, regex::Error> {
    let symbol = r"[$£€]|\b(?:EUR|USD|GBP|CHF)\s";
    Ok(vec![
        // Dots or spaces before a decimal comma can be nothing else.
        Rule::new(r"(\d{1,3}(?:\.\d{3})+|\d{1,3}(?: \d{3})+),(\d{1,2})", |found| {
            found.stands_alone(".,").then(|| format!("{}.{}", grouped(found.group(1)), found.group(2)))
        })?,
        Rule::new(r"\d{1,3}(?:'\d{3})+", |found| found.stands_alone(".,'").then(|| grouped(found.group(0))))?,
        // Money has two decimals at most, so that three digits after a dot are a group.
        Rule::new(&format!(r"({symbol})(\d{{1,3}}(?:\.\d{{3}})+)"), |found| {
            let ends = !found.after.is_some_and(|c| c.is_ascii_digit());
            ends.then(|| format!("{}{}", found.group(1), grouped(found.group(2))))
        })?,
        Rule::new(r"(\d{1,3}(?:\.\d{3})+)(\s?[€£])", |found| {
            found.stands_alone(".,").then(|| format!("{}{}", grouped(found.group(1)), found.group(2)))
        })?,
        Rule::new(&format!(r"({symbol})(\d+),(\d{{1,2}})"), |found| {
            let ends = !found.after.is_some_and(|c| c.is_ascii_digit());
            ends.then(|| format!("{}{}.{}", found.group(1), found.group(2), found.group(3)))
        })?,
        Rule::new(r"(\d+),(\d{1,2})(\s?(?:[€£%°]|[kcm]?m\b|kg\b|km/h\b))", |found| {
            let alone = !found.before.is_some_and(|c| c.is_alphanumeric() || matches!(c, '.' | ','));
            alone.then(|| format!("{}.{}{}", found.group(1), found.group(2), found.group(3)))
        })?,
        Rule::new(&format!(r"({NUMBER})\s?([$£€])"), |found| {
            let alone = !found.before.is_some_and(|c| c.is_alphanumeric() || "$£€.,".contains(c));
            let ends = !found.after.is_some_and(char::is_alphanumeric);
            (alone && ends).then(|| format!("{}{}", found.group(2), found.group(1)))
        })?,
    ])
}

/// The digits in groups parted by commas.
fn grouped(number: &str) -> String {
    number.replace(['.', ' ', '\''], ",")
}

pub(super) fn amounts() -> Result<Vec<Rule>, regex::Error> {
    let units: Vec<String> = UNITS.iter().map(|(unit, _, _)| regex::escape(unit)).collect();
    Ok(vec![
        Rule::new(&format!(r"([$£€])({NUMBER})\s?({SCALE})"), |found| {
            let (_, many) = currency(found.group(1))?;
            Some(format!("{} {} {many}", found.group(2), scale(found.group(3))))
        })?,
        Rule::new(&format!(r"({NUMBER})\s?¢"), |found| {
            let (one, many) = currency("¢")?;
            found.stands_alone(".").then(|| counted(found.group(1), one, many))
        })?,
        Rule::new(&format!(r"([¥₹₩]|\b(?:Rs\.?|USD|EUR|GBP))\s?({NUMBER})(?:\s?({SCALE}))?"), |found| {
            let (one, many) = currency(found.group(1).trim_end_matches('.'))?;
            Some(match found.group(3) {
                "" => counted(found.group(2), one, many),
                big => format!("{} {} {many}", found.group(2), scale(big)),
            })
        })?,
        Rule::new(&format!(r"(-?{NUMBER})\s?°\s?([CF]\b)?"), |found| {
            let degrees = counted(found.group(1), "degree", "degrees");
            let name = match found.group(2) {
                "C" => " Celsius",
                "F" => " Fahrenheit",
                _ => "",
            };
            found.stands_alone(".").then(|| degrees + name)
        })?,
        Rule::new(&format!(r"({NUMBER})\s?%"), |found| Some(format!("{} percent", found.group(1))))?,
        Rule::new(r#"(\d+)'(\d{1,2})(?:"|'')"#, |found| {
            Some(format!("{} foot {}", found.group(1), found.group(2)))
        })?,
        Rule::new(&format!(r"(-?{NUMBER})\s?({})\b", longest_first(units)), |found| {
            let (_, one, many) = UNITS.iter().find(|(unit, _, _)| *unit == found.group(2))?;
            found.stands_alone(".").then(|| counted(found.group(1), one, many))
        })?,
    ])
}

/// Alternatives of a pattern, so that none hides a longer one.
pub(super) fn longest_first(mut words: Vec<String>) -> String {
    words.sort_by_key(|word| std::cmp::Reverse(word.len()));
    words.join("|")
}

pub(super) fn figures() -> Result<Vec<Rule>, regex::Error> {
    Ok(vec![
        Rule::new(r"(\+?1[-. ])?\(?(\d{3})\)?[-. ](\d{3})[-.](\d{4})", |found| {
            let country = if found.group(1).is_empty() { "" } else { "1, " };
            let groups = [2, 3, 4].map(|index| digit_by_digit(found.group(index)));
            found.stands_alone(".-").then(|| format!("{country}{}", groups.join(", ")))
        })?,
        Rule::new(r"\b(\d{3})-(\d{4})\b", |found| {
            let groups = [1, 2].map(|index| digit_by_digit(found.group(index)));
            found.stands_alone(".-").then(|| groups.join(", "))
        })?,
        Rule::new(r"\d+", |found| {
            let long = found.group(0).len() > MAX_CARDINAL_DIGITS;
            long.then(|| format!(" {} ", digit_by_digit(found.group(0))))
        })?,
        Rule::new(r"(\d{1,2})/(\d{1,2})", fraction)?,
        Rule::new(r"(\d{1,4})\s?[-–]\s?(\d{1,4})", |found| {
            let apart = found.stands_alone(".-") && found.after != Some('-');
            apart.then(|| format!("{} to {}", found.group(1), found.group(2)))
        })?,
        Rule::new(r"([+-])(\d)", |found| {
            let apart = !found.before.is_some_and(|c| c.is_alphanumeric() || matches!(c, '+' | '-' | ')'));
            let sign = if found.group(1) == "+" { "plus" } else { "minus" };
            apart.then(|| format!("{sign} {}", found.group(2)))
        })?,
        Rule::new(r"'?\b(\d{0,2})(\d{2})'?s\b", plural)?,
        Rule::new(r"\b([A-G])#", |found| Some(format!("{} sharp", found.group(1))))?,
        Rule::new(r"\.(\d+)", |found| {
            let apart = !found.before.is_some_and(|c| c.is_alphanumeric() || c == '.');
            apart.then(|| format!("point {}", digit_by_digit(found.group(1))))
        })?,
        // Glued to letters, the phonemiser reads a number digit by digit.
        Rule::new(r"(\d(?:st|nd|rd|th)?)-(\p{L})", |found| {
            Some(format!("{} {}", found.group(1), found.group(2)))
        })?,
        Rule::new(r"(\p{L})-(\d)", |found| Some(format!("{} {}", found.group(1), found.group(2))))?,
        Rule::new(r"(\d)(\p{L}+)", |found| {
            let ordinal = matches!(found.group(2), "st" | "nd" | "rd" | "th");
            (!ordinal).then(|| format!("{} {}", found.group(1), found.group(2)))
        })?,
    ])
}

fn fraction(found: &Found<'_>) -> Option<String> {
    const PARTS: [&str; 9] =
        ["half", "third", "quarter", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth"];
    let (upper, lower) = (found.number(1)?, found.number(2)?);
    if !found.stands_alone("./") || found.after == Some('/') {
        return None;
    }
    if (upper, lower) == (24, 7) {
        return Some("24 7".to_owned());
    }
    if 0 < upper && upper < lower && lower <= 10 {
        let part = PARTS[lower as usize - 2];
        return Some(match (upper, part) {
            (1, part) => format!("one {part}"),
            (upper, part) => format!("{upper} {part}s"),
        });
    }
    date(upper, lower, "").or_else(|| Some(format!("{upper} slash {lower}")))
}

/// "1990s" as "nineteen nineties", "747s" as "7 forty-sevens".
fn plural(found: &Found<'_>) -> Option<String> {
    let (head, last) = (found.group(1), found.number(2)?);
    let words = match last {
        0 => "hundred".to_owned(),
        _ => below_hundred(last),
    };
    let several = match words.strip_suffix('y') {
        Some(stem) => format!("{stem}ies"),
        None if words.ends_with('x') => format!("{words}es"),
        None => format!("{words}s"),
    };
    found.stands_alone(".,").then(|| format!("{head} {several}").trim_start().to_owned())
}

fn currency(sign: &str) -> Option<(&'static str, &'static str)> {
    CURRENCIES.iter().find(|(known, _, _)| *known == sign).map(|(_, one, many)| (*one, *many))
}

fn scale(written: &str) -> &str {
    match written {
        "k" | "K" => "thousand",
        "m" | "M" => "million",
        "b" | "B" | "bn" => "billion",
        word => word,
    }
}
