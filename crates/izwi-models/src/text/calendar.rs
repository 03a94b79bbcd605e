//! Rules for times of day and dates.

use super::numerals::{below_hundred, ordinal};
use super::rewrite::{Found, Rule};
use super::words::MONTHS;

const MONTH: &str = "January|February|March|April|May|June|July|August|September|October|November|December|\
                     Jan|Feb|Mar|Apr|Jun|Jul|Aug|Sept|Sep|Oct|Nov|Dec";

pub(super) fn clock_and_calendar() -> Result<Vec<Rule>, regex::Error> {
    Ok(vec![
        Rule::new(r"\b(\d{1,2}):(\d{2})(?::(\d{2}))?\s?([AaPp])\.?[Mm]\b(\.?)", clock)?,
        Rule::new(r"\b(\d{1,2}):(\d{2})(?::(\d{2}))?\b", clock)?,
        Rule::new(r"\b(\d{1,2})\s?([AaPp])\.?[Mm]\b(\.?)", full_hour)?,
        Rule::new(r"\b(\d{4})-(\d{2})-(\d{2})\b", |found| {
            date(found.number(2)?, found.number(3)?, found.group(1))
        })?,
        Rule::new(r"\b(\d{1,2})/(\d{1,2})/(\d{4}|\d{2})\b", us_date)?,
    ])
}

pub(super) fn named_days() -> Result<Vec<Rule>, regex::Error> {
    Ok(vec![
        Rule::new(&format!(r"\b({MONTH})\.? (\d{{1,2}})(?:st|nd|rd|th)?\b(,? \d{{4}}\b)?"), |found| {
            let day = found.number(2).filter(|day| (1..=31).contains(day))?;
            let month = month_named(found.group(1))?;
            let apart = !matches!(found.after, Some(':' | '%'));
            apart.then(|| format!("{month} {}{}", ordinal(day), found.group(3)))
        })?,
        Rule::new(&format!(r"\b(?:the )?(\d{{1,2}}) (?:of )?({MONTH})\b\.?"), |found| {
            let day = found.number(1).filter(|day| (1..=31).contains(day))?;
            Some(format!("the {} of {}", ordinal(day), month_named(found.group(2))?))
        })?,
    ])
}

fn clock(found: &Found<'_>) -> Option<String> {
    let (hour, minute) = (found.number(1)?, found.number(2)?);
    let second = found.number(3);
    if hour > 24 || minute > 59 || second.is_some_and(|second| second > 59) {
        return None;
    }
    let half = half_of_day(found.group(4), found.group(5), found.after);
    let mut spoken = below_hundred(hour);
    match minute {
        0 if half.is_empty() && second.is_none() => spoken.push_str(" o'clock"),
        0 => {}
        1..10 => spoken.push_str(&format!(" oh {}", below_hundred(minute))),
        _ => spoken.push_str(&format!(" {}", below_hundred(minute))),
    }
    if let Some(second) = second {
        let noun = if second == 1 { "second" } else { "seconds" };
        spoken.push_str(&format!(" and {} {noun}", below_hundred(second)));
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
    let year = match found.group(3) {
        short if short.len() == 2 => {
            let century = if short.parse::<u32>().ok()? > 30 { "19" } else { "20" };
            format!("{century}{short}")
        }
        year => year.to_owned(),
    };
    let (month, day) = if first <= 12 { (first, second) } else { (second, first) };
    date(month, day, &year)
}

/// "March 3rd, 2024"; `None` when there is no such day. The year may be empty.
pub(super) fn date(month: u32, day: u32, year: &str) -> Option<String> {
    let name = MONTHS.get(month.checked_sub(1)? as usize)?;
    let year = if year.is_empty() { String::new() } else { format!(", {year}") };
    (1..=31).contains(&day).then(|| format!("{name} {}{year}", ordinal(day)))
}

fn month_named(name: &str) -> Option<&'static str> {
    let start = name.get(..3)?;
    MONTHS.iter().copied().find(|month| month.starts_with(start))
}
