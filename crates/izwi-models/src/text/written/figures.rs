//! Inverse normalisation of English: amounts of money, measures, percentages, times, dates, years and numbers in figures.
//!
//! Numbers below ten stay words where they only count something. What can be read in two ways stays as it was said.

use super::cursor::Cursor;
use super::numbers::{
    amount, and_a_half, below_hundred, cardinal, decade, digit, is_number, ordinal, pair, run_end,
    side_by_side, small, tens, year,
};
use crate::text::words::MONTHS;

/// What the words at the start of a run become.
#[derive(Debug, PartialEq)]
pub(super) struct Figures {
    /// Words that it stands for.
    pub(super) words: usize,
    /// `None` where they stay as they are.
    pub(super) text: Option<String>,
}

/// Words after which a time of day is said, and not a number.
const BEFORE_TIMES: [&str; 10] =
    ["at", "by", "until", "till", "around", "before", "after", "since", "from", "about"];
/// Words before the number of something.
const BEFORE_NAMES: [&str; 14] = [
    "chapter",
    "page",
    "room",
    "section",
    "flight",
    "version",
    "episode",
    "gate",
    "platform",
    "route",
    "highway",
    "channel",
    "apartment",
    "suite",
];
/// Words before a month that is a verb elsewhere.
const BEFORE_MONTHS: [&str; 9] = ["in", "of", "since", "until", "by", "from", "before", "after", "during"];
/// Units with a symbol: how they begin, and the symbol.
const UNITS: [(&[&str], &str); 48] = [
    (&["kilometers", "per", "hour"], " km/h"),
    (&["kilometres", "per", "hour"], " km/h"),
    (&["miles", "per", "hour"], " mph"),
    (&["meters", "per", "second"], " m/s"),
    (&["metres", "per", "second"], " m/s"),
    (&["degrees", "celsius"], " °C"),
    (&["degrees", "fahrenheit"], " °F"),
    (&["kilowatt", "hours"], " kWh"),
    (&["percent"], "%"),
    (&["per", "cent"], "%"),
    (&["kilometers"], " km"),
    (&["kilometres"], " km"),
    (&["kilometer"], " km"),
    (&["kilometre"], " km"),
    (&["centimeters"], " cm"),
    (&["centimetres"], " cm"),
    (&["millimeters"], " mm"),
    (&["millimetres"], " mm"),
    (&["meters"], " m"),
    (&["metres"], " m"),
    (&["kilograms"], " kg"),
    (&["kilogram"], " kg"),
    (&["kilos"], " kg"),
    (&["grams"], " g"),
    (&["milligrams"], " mg"),
    (&["milliliters"], " ml"),
    (&["millilitres"], " ml"),
    (&["liters"], " l"),
    (&["litres"], " l"),
    (&["kilobytes"], " kB"),
    (&["megabytes"], " MB"),
    (&["gigabytes"], " GB"),
    (&["terabytes"], " TB"),
    (&["hertz"], " Hz"),
    (&["kilohertz"], " kHz"),
    (&["megahertz"], " MHz"),
    (&["gigahertz"], " GHz"),
    (&["watts"], " W"),
    (&["kilowatts"], " kW"),
    (&["megawatts"], " MW"),
    (&["volts"], " V"),
    // These have figures before them, and stay words.
    (&["degrees"], " degrees"),
    (&["miles"], " miles"),
    (&["feet"], " feet"),
    (&["inches"], " inches"),
    (&["ounces"], " ounces"),
    (&["pounds"], " pounds"),
    (&["cents"], " cents"),
];
/// Currencies with a symbol in front: their names, it, and the names of a hundredth.
const CURRENCIES: [([&str; 2], &str, [&str; 2]); 3] = [
    (["dollar", "dollars"], "$", ["cent", "cents"]),
    (["euro", "euros"], "€", ["cent", "cents"]),
    (["pound", "pounds"], "£", ["penny", "pence"]),
];

/// A text and the place behind the words that it stands for.
type Found = Option<(String, usize)>;

/// What the first words become, behind the word `before`, which is bare and in lower case, and empty after a mark. `None`
/// where they have no number.
pub(super) fn figures(cursor: &Cursor, before: &str) -> Option<Figures> {
    let key = cursor.key(0)?;
    let text = if let Some(month) = month(key) {
        date(cursor, month, before)
    } else if matches!(key, "half" | "quarter") {
        part_of_hour(cursor)
    } else if key == "minus" {
        let is_difference = is_number(before) || before.ends_with(|c: char| c.is_ascii_digit());
        let number = || measured(cursor, 1).or_else(|| counted(cursor, 1, before));
        if is_difference { None } else { number().map(|(text, end)| (format!("-{text}"), end)) }
    } else if key == "a" || is_number(key) || key == "oh" || ordinal(cursor, 0).is_some() {
        return number(cursor, before);
    } else {
        None
    };
    found(cursor, text)
}

/// What stands for whole words.
fn found(cursor: &Cursor, text: Found) -> Option<Figures> {
    let (text, end) = text?;
    Some(Figures { words: cursor.words(end)?, text: Some(text) })
}

/// What a run becomes that begins with a number.
fn number(cursor: &Cursor, before: &str) -> Option<Figures> {
    if let Some((day, end)) = ordinal(cursor, 0) {
        return found(cursor, ordinal_in_figures(cursor, before, day, end));
    }
    if let Some(text) = time(cursor, before) {
        return found(cursor, Some(text));
    }
    let millions = || and_a_half(cursor, 0).filter(|(text, _)| text.ends_with("illion"));
    if let Some(text) = measured(cursor, 0).or_else(millions) {
        return found(cursor, Some(text));
    }
    if BEFORE_NAMES.contains(&before) {
        let whole = amount(cursor, 0).filter(|(_, end)| run_end(cursor, *end) == *end);
        return found(cursor, whole.or_else(|| Some(side_by_side(cursor, 0)).filter(|(_, end)| *end > 0)));
    }
    let digits = run_end(cursor, 0);
    if digits >= 4 && (0..digits).all(|at| cursor.key(at).and_then(digit).is_some()) {
        return found(cursor, Some(side_by_side(cursor, 0)));
    }
    if cursor.key(0) == Some("oh") {
        return None;
    }
    let century = cursor.key(0).and_then(|key| small(key).filter(|value| *value > 12).or_else(|| tens(key)));
    if let (Some(century), Some(decade)) = (century, cursor.key(1).and_then(decade)) {
        return found(cursor, Some((format!("{century}{decade}s"), 2)));
    }
    if let Some((year, end)) = year(cursor, 0).filter(|(_, end)| !follows(cursor, *end)) {
        return found(cursor, Some((year.to_string(), end)));
    }
    let text = counted(cursor, 0, before);
    if text.is_none() && digits > 1 {
        // What can be read in two ways stays, all of it.
        let words = (1..=digits).rev().find_map(|end| cursor.words(end))?;
        return Some(Figures { words, text: None });
    }
    found(cursor, text)
}

/// Whether another number follows, so that what is before it can be read in two ways.
fn follows(cursor: &Cursor, end: usize) -> bool {
    cursor.key(end).is_some_and(is_number)
}

/// A number that counts something: from ten on, with decimals, or one of a range that goes beyond.
fn counted(cursor: &Cursor, at: usize, before: &str) -> Found {
    let (text, end) = amount(cursor, at).filter(|(_, end)| !follows(cursor, *end))?;
    let whole = cardinal(cursor, at)?;
    let is_large = whole.value >= 10 || text.contains('.') || text.contains(' ');
    if cursor.key(at) == Some("a") && (end == at + 2 || text.ends_with(char::is_alphabetic)) {
        return None;
    }
    let next = cursor.key(end);
    let minutes = whole.value < 30 && whole.value.is_multiple_of(5);
    let is_time = next == Some("past") || next == Some("to") && minutes && BEFORE_TIMES.contains(&before);
    if is_time && hour(cursor, end + 1).is_some() {
        return None;
    }
    let is_range = || {
        let last = below_hundred(cursor, end + 1).filter(|_| matches!(next, Some("to" | "or")));
        last.is_some_and(|(last, _)| last >= 10)
    };
    (is_large || is_range()).then_some((text, end))
}

/// A number with its unit or currency.
fn measured(cursor: &Cursor, at: usize) -> Found {
    let candidates = [and_a_half(cursor, at), amount(cursor, at)];
    candidates.into_iter().flatten().find_map(|(figures, end)| {
        let key = cursor.key(end)?;
        if let Some((_, symbol, parts)) = CURRENCIES.iter().find(|(names, ..)| names.contains(&key)) {
            let is_whole = figures.chars().all(|c| c.is_ascii_digit() || c == ',');
            match hundredths(cursor, end + 1, parts).filter(|_| is_whole) {
                Some((value, end)) => return Some((format!("{symbol}{figures}.{value:02}"), end)),
                // Pounds may be a weight.
                None if *symbol != "£" => return Some((format!("{symbol}{figures}"), end + 1)),
                None => {}
            }
        }
        let (symbol, end) =
            UNITS.iter().find_map(|(words, symbol)| Some((*symbol, cursor.after(end, words)?)))?;
        Some((format!("{figures}{symbol}"), end))
    })
}

/// `and fifty cents` behind an amount of money.
fn hundredths(cursor: &Cursor, at: usize, names: &[&str; 2]) -> Option<(u64, usize)> {
    let start = cursor.after(at, &["and"]).unwrap_or(at);
    let (value, end) = below_hundred(cursor, start)?;
    cursor.key(end).is_some_and(|key| names.contains(&key)).then_some((value, end + 1))
}

/// `a.m.` or `p.m.`.
fn half_of_day(cursor: &Cursor, at: usize) -> Option<(&'static str, usize)> {
    let half = |key: &str| match key {
        "a" => Some("a.m."),
        "p" => Some("p.m."),
        _ => None,
    };
    match cursor.key(at)? {
        "am" | "a.m." => Some(("a.m.", at + 1)),
        "pm" | "p.m." => Some(("p.m.", at + 1)),
        key => Some((half(key).filter(|_| cursor.key(at + 1) == Some("m"))?, at + 2)),
    }
}

/// An hour of a clock with twelve.
fn hour(cursor: &Cursor, at: usize) -> Option<u64> {
    cursor.key(at).and_then(small).filter(|hour| (1..=12).contains(hour))
}

/// A time of day, told by what is before or after it.
fn time(cursor: &Cursor, before: &str) -> Found {
    let hour = hour(cursor, 0)?;
    if let Some((half, end)) = half_of_day(cursor, 1) {
        return Some((format!("{hour} {half}"), end));
    }
    if cursor.key(1) == Some("o'clock") {
        return Some((format!("{hour} o'clock"), 2));
    }
    let (minutes, end) = pair(cursor, 1).filter(|(minutes, _)| *minutes < 60)?;
    let clock = format!("{hour}:{minutes:02}");
    if let Some((half, end)) = half_of_day(cursor, end) {
        return Some((format!("{clock} {half}"), end));
    }
    let part = |part| cursor.after(end, &["in", "the", part]).is_some();
    let is_told = BEFORE_TIMES.contains(&before) && !follows(cursor, end) && measured(cursor, 1).is_none();
    let is_time = is_told || ["morning", "afternoon", "evening"].into_iter().any(part);
    is_time.then_some((clock, end))
}

/// `half past three p m`.
fn part_of_hour(cursor: &Cursor) -> Found {
    let (is_before, minutes) = match (cursor.key(0)?, cursor.key(1)?) {
        ("half", "past") => (false, 30),
        ("quarter", "past") => (false, 15),
        ("quarter", "to") => (true, 45),
        _ => return None,
    };
    let said = hour(cursor, 2)?;
    let (half, end) = half_of_day(cursor, 3)?;
    let hour = if is_before { (said + 10) % 12 + 1 } else { said };
    Some((format!("{hour}:{minutes} {half}"), end))
}

/// The name of a month.
fn month(key: &str) -> Option<&'static str> {
    MONTHS.into_iter().find(|month| month.eq_ignore_ascii_case(key))
}

/// A date that begins with its month.
fn date(cursor: &Cursor, month: &str, before: &str) -> Found {
    let is_word = matches!(month, "March" | "May");
    let start = if cursor.key(1) == Some("the") { 2 } else { 1 };
    if let Some((day, end)) = ordinal(cursor, start).filter(|(day, _)| (1..=31).contains(day)) {
        let text = match year(cursor, end) {
            Some((year, end)) => (format!("{month} {day}, {year}"), end),
            None => (format!("{month} {day}"), end),
        };
        return Some(text);
    }
    if is_word && !BEFORE_MONTHS.contains(&before) {
        return None;
    }
    if let Some((year, end)) = year(cursor, 1).filter(|(_, end)| !follows(cursor, *end)) {
        return Some((format!("{month} {year}"), end));
    }
    let (day, end) = below_hundred(cursor, 1).filter(|(day, _)| (1..=31).contains(day))?;
    if let Some((year, end)) = year(cursor, end) {
        return Some((format!("{month} {day}, {year}"), end));
    }
    (!is_word && !follows(cursor, end)).then(|| (format!("{month} {day}"), end))
}

/// `21st`, or a date that begins with its day. Ordinals below ten stay words elsewhere.
fn ordinal_in_figures(cursor: &Cursor, before: &str, value: u64, end: usize) -> Found {
    let suffix = match (value % 100, value % 10) {
        (11..=13, _) => "th",
        (_, 1) => "st",
        (_, 2) => "nd",
        (_, 3) => "rd",
        _ => "th",
    };
    let start = if cursor.key(end) == Some("of") { end + 1 } else { end };
    if let Some(month) = cursor.key(start).and_then(month).filter(|_| (1..=31).contains(&value)) {
        let of = if start > end { "of " } else { "" };
        return Some(match year(cursor, start + 1) {
            Some((year, end)) => (format!("{value}{suffix} {of}{month} {year}"), end),
            None => (format!("{value}{suffix} {of}{month}"), start + 1),
        });
    }
    // A twenty second wait.
    let is_duration = before == "a" && value % 10 == 2;
    (value >= 10 && !is_duration).then(|| (format!("{value}{suffix}"), end))
}
