//! Rules for times of day, durations and dates.

use super::numerals::{below_hundred, code, counted, number, ordinal, roman, several, year};
use super::rewrite::{Found, Rule};
use super::words::{BIBLE, MONTHS, YEAR_AFTER};

const MONTH: &str = "January|February|March|April|May|June|July|August|September|October|November|December|\
                     Jan|Feb|Mar|Apr|Jun|Jul|Aug|Sept|Sep|Oct|Nov|Dec";
const WEEKDAY: &str = "Mon|Tues?|Wed|Thu(?:rs?)?|Fri|Sat|Sun";
const DAYS: [&str; 7] = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"];

pub(super) fn clock() -> Result<Vec<Rule>, regex::Error> {
    Ok(vec![
        // "9-5 pm", "9:00–17:00": the dash of a span.
        Rule::new(
            r"(?i)\b(\d{1,2}(?::\d{2})?(?:\s?[ap]\.?m\b\.?)?)\s?[-–—]\s?(\d{1,2}(?::\d{2})?\s?[ap]\.?m\b|\d{1,2}:\d{2})",
            |found| {
                let apart = found.stands_alone(".-/:");
                let (from, to) = (found.group(1), found.group(2));
                apart.then(|| {
                    format!("{} to {to}", if from.contains(':') { from.to_owned() } else { hours(from) })
                })
            },
        )?,
        Rule::new(r"\b(\d{4})-(\d{2})-(\d{2})[T ](\d{2}:\d{2})(:\d{2}(?:\.\d+)?)?(Z?)\b", |found| {
            let day = date(found.number(2)?, found.number(3)?, found.group(1))?;
            let zone = if found.group(6).is_empty() { "" } else { " UTC" };
            Some(format!("{day}, {}{zone}", found.group(4)))
        })?,
        Rule::new(
            &format!(r"\b({}) (\d{{1,3}}):(\d{{1,3}})(?:[-–](\d{{1,3}}))?\b", BIBLE.join("|")),
            |found| {
                let to = if found.group(4).is_empty() {
                    String::new()
                } else {
                    format!(" to {}", number(found.group(4)))
                };
                Some(format!("{} {} {}{to}", found.group(1), number(found.group(2)), number(found.group(3))))
            },
        )?,
        Rule::new(r"\b(\d{1,3}):([0-5]\d)\.(\d+)\b", |found| {
            let seconds = number(&format!("{}.{}", found.number(2)?, found.group(3)));
            let minutes = number(found.group(1));
            found
                .stands_alone(":.")
                .then(|| format!("{} {seconds} seconds", counted(&minutes, "minute", "minutes")))
        })?,
        Rule::new(r"\b(\d{1,2}):(\d{2})(?::(\d{2}))?\s?([AaPp])\.?[Mm]\b(\.?)", time)?,
        Rule::new(r"\b(\d{1,2}):(\d{2})(?::(\d{2}))?\b", time)?,
        Rule::new(r"\b(\d{1,2})\s?([AaPp])\.?[Mm]\b(\.?)", full_hour)?,
        Rule::new(r"\b(UTC|GMT)[-−](\d)", |found| {
            Some(format!("{} minus {}", found.group(1), found.group(2)))
        })?,
        Rule::new(r"\b([012]\d)([0-5]\d) (hours|hrs)\b", |found| {
            let (hour, minute) = (found.number(1).filter(|hour| *hour < 24)?, found.number(2)?);
            let oh = if hour < 10 { "oh " } else { "" };
            let minutes = match minute {
                0 => " hundred".to_owned(),
                1..10 => format!(" oh {}", below_hundred(minute)),
                _ => format!(" {}", below_hundred(minute)),
            };
            Some(format!("{oh}{}{minutes} hours", below_hundred(hour)))
        })?,
    ])
}

pub(super) fn durations() -> Result<Vec<Rule>, regex::Error> {
    Ok(vec![
        Rule::new(r"\b(\d+)\s?h\s?(\d{1,2})(?:\s?(?:m|min)(?:\s?(\d{1,2})\s?s)?)?\b", |found| {
            let parts = [(1, "hour"), (2, "minute"), (3, "second")];
            found.stands_alone(".:").then(|| duration(found, &parts))
        })?,
        Rule::new(r"\b(\d+)\s?(?:m|min)\s?(\d{1,2})\s?s(?:ec)?\b", |found| {
            found.stands_alone(".:").then(|| duration(found, &[(1, "minute"), (2, "second")]))
        })?,
        Rule::new(r"\b(\d+):(\d{1,4})\b", |found| {
            let (left, right) = (number(found.group(1)), number(found.group(2)));
            found.stands_alone(":.").then(|| format!("{left} to {right}"))
        })?,
    ])
}

fn duration(found: &Found<'_>, parts: &[(usize, &str)]) -> String {
    let parts = parts.iter().filter(|(group, _)| !found.group(*group).is_empty());
    let named = parts.map(|(group, unit)| {
        let count = found.number(*group).unwrap_or_default().to_string();
        counted(&number(&count), unit, &format!("{unit}s"))
    });
    named.collect::<Vec<_>>().join(" ")
}

/// The start of a span that ends in a time of day.
fn hours(from: &str) -> String {
    let digits: String = from.chars().take_while(char::is_ascii_digit).collect();
    let rest = from[digits.len()..].trim();
    if rest.is_empty() { number(&digits) } else { from.to_owned() }
}

pub(super) fn dates() -> Result<Vec<Rule>, regex::Error> {
    Ok(vec![
        Rule::new(r"\b(\d{4})([-/.])(\d{1,2})([-/.])(\d{1,2})\b", |found| {
            let same = found.group(2) == found.group(4);
            let day = date(found.number(3)?, found.number(5)?, found.group(1))?;
            (same && found.stands_alone("-/.")).then_some(day)
        })?,
        Rule::new(r"\b(\d{1,2})[/-](\d{1,2})[/-](\d{4}|\d{2})\b", us_date)?,
        Rule::new(r"\b(\d{1,2})\.(\d{1,2})\.(\d{4})\b", |found| {
            let (day, month) = (found.number(1)?, found.number(2)?);
            found.stands_alone(".").then(|| date(month, day, found.group(3)))?
        })?,
        Rule::new(&format!(r"\b({WEEKDAY})\.?\s?[-–]\s?({WEEKDAY})\b\.?"), |found| {
            let stop = if found.group(0).ends_with('.') && found.after.is_none() { "." } else { "" };
            Some(format!("{} to {}{stop}", day_named(found.group(1))?, day_named(found.group(2))?))
        })?,
        Rule::new(&format!(r"\b({WEEKDAY})\.?(,? )((?:{MONTH}\b)|\d)"), |found| {
            Some(format!("{}{}{}", day_named(found.group(1))?, found.group(2), found.group(3)))
        })?,
        Rule::new(
            &format!(
                r"\b({MONTH})\.? (\d{{1,2}})(?:st|nd|rd|th)?\s?[-–]\s?(\d{{1,2}})(?:st|nd|rd|th)?\b(,? \d{{4}}\b)?"
            ),
            |found| {
                let (from, to) = (day_number(found, 2)?, day_number(found, 3)?);
                let month = month_named(found.group(1))?;
                Some(format!("{month} {} to {}{}", ordinal(from), ordinal(to), with_year(found.group(4))))
            },
        )?,
        Rule::new(&format!(r"\b({MONTH})\.? (\d{{1,2}})(?:st|nd|rd|th)?\b(,? \d{{4}}\b)?"), |found| {
            let day = day_number(found, 2)?;
            let month = month_named(found.group(1))?;
            let apart = !matches!(found.after, Some(':' | '%'));
            apart.then(|| format!("{month} {}{}", ordinal(day), with_year(found.group(3))))
        })?,
        Rule::new(
            &format!(
                r"\b(?:([Tt]he) )?(\d{{1,2}})(st|nd|rd|th)?[- ](of )?({MONTH})\b\.?(?:([-,]?) ?(\d{{4}})\b)?"
            ),
            |found| {
                let day = day_number(found, 2)?;
                let alone = !found.before.is_some_and(|c| c.is_alphanumeric() || ".,:/-".contains(c));
                let the = if found.group(1).is_empty() { "the" } else { found.group(1) };
                let month = month_named(found.group(5))?;
                let comma = if found.group(6) == "," { "," } else { "" };
                let year =
                    found.number(7).map_or_else(String::new, |number| format!("{comma} {}", year(number)));
                let stop = if found.group(0).ends_with('.') && found.after.is_none() { "." } else { "" };
                alone.then(|| format!("{the} {} of {month}{year}{stop}", ordinal(day)))
            },
        )?,
        Rule::new(&format!(r"\b({MONTH})\.?(,? \d{{4}}|-\d{{2}})\b"), |found| {
            let month = month_named(found.group(1))?;
            let apart = !found.word_before().eq_ignore_ascii_case("the");
            let year = match found.group(2).strip_prefix('-') {
                Some(short) => format!(" {}", year(century_of(short)?)),
                None => with_year(found.group(2)),
            };
            apart.then(|| format!("{month}{year}"))
        })?,
    ])
}

pub(super) fn years() -> Result<Vec<Rule>, regex::Error> {
    Ok(vec![
        Rule::new(r"\b([12]\d{3})\s?[-–]\s?([12]\d{3}|\d{2})\b", |found| {
            let (from, to) = (found.number(1)?, found.number(2)?);
            let rises = if to < 100 { to > from % 100 } else { to > from };
            let end = if to < 100 { below_hundred(to) } else { year(to) };
            (rises && found.stands_alone(".-/$")).then(|| format!("{} to {end}", year(from)))
        })?,
        Rule::new(&format!(r"\b(\d{{1,4}}) ({})", YEAR_AFTER.join("|")), |found| {
            Some(format!("{} {}", year(found.number(1)?), found.group(2)))
        })?,
        Rule::new(
            r"\b(AD|A\.D\.|c\.|b\.|CE|FY|class of|Class of|(?:[Cc]opyright )?©|[Cc]opyright|circa|ca\.) ?('?)(\d{2,4})\b",
            |found| {
                let name = match found.group(1) {
                    "ca." | "c." => "circa",
                    "b." => "born",
                    name if name.ends_with('©') => "copyright",
                    name => name,
                };
                Some(format!("{name} {}", year(found.number(3)?)))
            },
        )?,
        Rule::new(r"'?\b(\d{2,4})('?)s\b", decade)?,
        Rule::new(r"'(\d{2})\b", |found| {
            let apart = !found.before.is_some_and(char::is_alphanumeric);
            let digits = found.group(1);
            let apart = apart && !matches!(found.after, Some('\'' | '"'));
            apart.then(|| code(digits))
        })?,
        Rule::new(r"\b([IVXL]+)(th|st|nd|rd)?([ -])(century|centuries|Century)\b", |found| {
            Some(format!("{}{}{}", ordinal(roman(found.group(1))?), found.group(3), found.group(4)))
        })?,
    ])
}

/// "1990s" as "nineteen nineties", "747s" as "seven forty-sevens", "2024's" as "twenty twenty-four's".
fn decade(found: &Found<'_>) -> Option<String> {
    let (digits, is_possessive) = (found.group(1), !found.group(2).is_empty());
    let apart = !found.before.is_some_and(|c| c.is_alphanumeric() || ".,$£€".contains(c));
    let is_owner = is_possessive && !digits.ends_with('0');
    apart.then(|| if is_owner { format!("{}'s", code(digits)) } else { several(digits) })
}

fn time(found: &Found<'_>) -> Option<String> {
    let (hour, minute) = (found.number(1)?, found.number(2)?);
    let second = found.number(3);
    let apart = !found.before.is_some_and(|c| ":.$".contains(c)) && found.after != Some(':');
    if hour > 24 || minute > 59 || second.is_some_and(|second| second > 59) || !apart {
        return None;
    }
    let half = half_of_day(found.group(4), found.group(5), found.after);
    let is_short = half.is_empty() && second.is_none();
    let mut spoken = below_hundred(hour);
    match minute {
        0 if is_short && hour % 24 == 0 => return Some("midnight".to_owned()),
        0 if is_short && hour > 12 => spoken.push_str(" hundred"),
        0 if is_short && !found.right.trim_start().starts_with("o'clock") => spoken.push_str(" o'clock"),
        0 => {}
        1..10 => spoken.push_str(&format!(" oh {}", below_hundred(minute))),
        _ => spoken.push_str(&format!(" {}", below_hundred(minute))),
    }
    if let Some(second) = second {
        spoken.push_str(&format!(" and {}", counted(&below_hundred(second), "second", "seconds")));
    }
    Some(spoken + &half)
}

fn full_hour(found: &Found<'_>) -> Option<String> {
    let hour = found.number(1).filter(|hour| (1..=12).contains(hour))?;
    let apart = !found.before.is_some_and(|c| matches!(c, '.' | ',' | ':' | '$' | '£' | '€'));
    apart.then(|| below_hundred(hour) + &half_of_day(found.group(2), found.group(3), found.after))
}

/// " A.M." or " P.M."; the last full stop is left to the sentence where it ends there. Empty for neither.
fn half_of_day(letter: &str, stop: &str, after: Option<char>) -> String {
    if letter.is_empty() {
        return String::new();
    }
    let closing = if stop.is_empty() && after == Some('.') { "" } else { "." };
    format!(" {}.M{closing}", letter.to_uppercase())
}

fn us_date(found: &Found<'_>) -> Option<String> {
    let (first, second) = (found.number(1)?, found.number(2)?);
    let written = found.group(3);
    let year = if written.len() == 2 { century_of(written)?.to_string() } else { written.to_owned() };
    let (month, day) = if first <= 12 { (first, second) } else { (second, first) };
    found.stands_alone("-/.").then(|| date(month, day, &year))?
}

/// The year that two digits stand for.
fn century_of(short: &str) -> Option<u32> {
    let year: u32 = short.parse().ok()?;
    Some(year + if year > 30 { 1900 } else { 2000 })
}

/// "March third, twenty twenty-four"; `None` when there is no such day. The year may be empty.
pub(super) fn date(month: u32, day: u32, written: &str) -> Option<String> {
    let name = MONTHS.get(month.checked_sub(1)? as usize)?;
    (1..=31).contains(&day).then(|| format!("{name} {}{}", ordinal(day), with_year(&format!(", {written}"))))
}

/// ", 2024" and " 2024" with the year in words.
fn with_year(written: &str) -> String {
    let at = written.find(|c: char| c.is_ascii_digit()).unwrap_or(written.len());
    written[at..]
        .parse()
        .map_or_else(|_| String::new(), |number| format!("{}{}", &written[..at], year(number)))
}

fn day_number(found: &Found<'_>, group: usize) -> Option<u32> {
    found.number(group).filter(|day| (1..=31).contains(day))
}

fn day_named(short: &str) -> Option<&'static str> {
    DAYS.iter().copied().find(|day| day.starts_with(short.get(..3).unwrap_or(short)))
}

fn month_named(name: &str) -> Option<&'static str> {
    let start = name.get(..3)?;
    MONTHS.iter().copied().find(|month| month.starts_with(start))
}
