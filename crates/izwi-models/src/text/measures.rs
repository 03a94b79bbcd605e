//! Rules for measures: numbers with units, degrees, percentages, coordinates.

use super::numerals::counted;
use super::rewrite::{Found, Rule};
use super::words::UNITS;

/// What a rate is per, besides the units.
const RATES: &str =
    "h|hour|s|second|minute|day|night|week|month|year|person|unit|gallon|pound|share|ounce|piece|ton";
const SCALES: &str = "(?:hundred|thousand|million|billion|trillion)";
const NUMBER: &str = r"-?\d+(?:,\d{3})*(?:\.\d+)?";

/// Alternatives of a pattern, so that none hides a longer one.
pub(super) fn longest_first(mut words: Vec<String>) -> String {
    words.sort_by_key(|word| std::cmp::Reverse(word.len()));
    words.join("|")
}

pub(super) fn degrees() -> Result<Vec<Rule>, regex::Error> {
    Ok(vec![
        Rule::new(
            r#"(\d+)°\s?(\d+(?:\.\d+)?)['′](?:\s?(\d+(?:\.\d+)?)(?:["″]|''))?\s?([NSEW])?\b"#,
            |found| {
                let mut words = counted(found.group(1), "degree", "degrees");
                words += &format!(" {}", counted(found.group(2), "minute", "minutes"));
                if !found.group(3).is_empty() {
                    words += &format!(" {}", counted(found.group(3), "second", "seconds"));
                }
                Some(words + direction(found.group(4)))
            },
        )?,
        Rule::new(&format!(r"({NUMBER})\s?°(?:\s?([CFNSEW])\b)?"), |found| {
            let adjective = found.is_before_noun() && !found.group(0).contains(['C', 'F']);
            let degrees = counted(found.group(1), "degree", if adjective { "degree" } else { "degrees" });
            let name = match found.group(2) {
                "C" => " Celsius",
                "F" => " Fahrenheit",
                letter => direction(letter),
            };
            let space =
                if name.is_empty() && found.after.is_some_and(char::is_alphanumeric) { " " } else { "" };
            (!found.before.is_some_and(|c| c.is_alphanumeric() || c == '.')).then(|| degrees + name + space)
        })?,
        Rule::new(r"°\s?([CF])\b", |found| {
            Some(format!(" degrees {}", if found.group(1) == "C" { "Celsius" } else { "Fahrenheit" }))
        })?,
        Rule::new(&format!(r"({NUMBER})\s?([%‰])"), |found| {
            let name = if found.group(2) == "%" { "percent" } else { "per thousand" };
            Some(format!("{} {name}", found.group(1)))
        })?,
    ])
}

pub(super) fn measures() -> Result<Vec<Rule>, regex::Error> {
    let unit = longest_first(UNITS.iter().map(|[unit, _, _]| regex::escape(unit)).collect());
    let power = r"(²|³|\^2|\^3)?";
    let rate = format!("{unit}|{RATES}");
    Ok(vec![
        Rule::new(r#"(\d+)['′]\s?(\d{1,2})(?:["″]|'')"#, |found| {
            Some(format!("{} foot {}", found.group(1), found.group(2)))
        })?,
        Rule::new(r#"(\d+(?:\.\d+)?)["″]"#, |found| {
            let is_quote = found.left.matches('"').count() % 2 == 1 && found.group(0).ends_with('"');
            (!is_quote && found.stands_alone(".")).then(|| counted(found.group(1), "inch", "inches"))
        })?,
        Rule::new(r"(\d+)['′] (tall|wide|long|high|deep|by|x|in|above|below|from)\b", |found| {
            Some(format!("{} {}", counted(found.group(1), "foot", "feet"), found.group(2)))
        })?,
        Rule::new(r"(\d+) ?ft\.? (\d+) ?in\b", |found| {
            let inches = counted(found.group(2), "inch", "inches");
            Some(format!("{} {inches}", counted(found.group(1), "foot", "feet")))
        })?,
        Rule::new(r"(\d+)\s?in\.( \p{Ll})", |found| {
            Some(format!("{}{}", counted(found.group(1), "inch", "inches"), found.group(2)))
        })?,
        Rule::new(
            &format!(r"({NUMBER}(?: {SCALES})?)([\s-]?)({unit})\b{power}(?:/({rate})\b{power})?(\.)?"),
            measure,
        )?,
        Rule::new(r"(\d+(?:\.\d+)?) s\b|(\d+\.\d+)s\b", |found| {
            let number = if found.group(1).is_empty() { found.group(2) } else { found.group(1) };
            Some(counted(number, "second", "seconds"))
        })?,
        Rule::new(&format!(r"(\p{{L}}) ?/({rate})\b"), |found| {
            let money = ["dollars", "dollar", "euros", "pounds", "cents"];
            let ends = |name: &&str| {
                name.strip_suffix(found.group(1)).is_some_and(|stem| found.left.ends_with(stem))
            };
            money.iter().any(ends).then(|| format!("{} per {}", found.group(1), unit_named(found.group(2)).0))
        })?,
        Rule::new(r"(\d+) ?([kKMGT]?)(bit|B|b)/s\b", |found| {
            let prefix = match found.group(2) {
                "" => "",
                "M" => "mega",
                "G" => "giga",
                "T" => "tera",
                _ => "kilo",
            };
            let noun = if found.group(3) == "B" { "bytes" } else { "bits" };
            Some(format!("{} {prefix}{noun} per second", found.group(1)))
        })?,
    ])
}

fn direction(letter: &str) -> &'static str {
    match letter {
        "N" => " north",
        "S" => " south",
        "E" => " east",
        "W" => " west",
        _ => "",
    }
}

/// The singular and the plural of a unit.
fn unit_named(unit: &str) -> (&str, &str) {
    match unit {
        "h" => ("hour", "hours"),
        "s" => ("second", "seconds"),
        _ => UNITS
            .iter()
            .find(|[known, _, _]| *known == unit)
            .map_or((unit, unit), |[_, one, many]| (*one, *many)),
    }
}

fn measure(found: &Found<'_>) -> Option<String> {
    let raised = |name: &str, power: &str| match power {
        "²" | "^2" if name.contains(" per ") => format!("{name} squared"),
        "²" | "^2" => format!("square {name}"),
        "³" | "^3" => format!("cubic {name}"),
        _ => name.to_owned(),
    };
    let (one, many) = unit_named(found.group(3));
    // "8-g" may be a name.
    let is_letter = found.group(3).len() == 1;
    let is_name = is_letter && (found.group(2) == "-" || found.after == Some('-'));
    if is_name || !found.stands_alone(".") {
        return None;
    }
    let is_fraction = found.before == Some('/');
    let many = if found.group(2) == "-" || is_fraction || found.is_before_noun() { one } else { many };
    // The stop of an abbreviation within the sentence.
    let within = match found.after {
        Some(' ') => !found.word_after().starts_with(char::is_uppercase),
        after => after.is_some(),
    };
    let stop = if found.group(7).is_empty() || within { "" } else { "." };
    let number = found.group(1);
    let name = if matches!(number, "1" | "-1") { one } else { many };
    let per = match (unit_named(found.group(5)).0, found.group(6)) {
        ("", _) => String::new(),
        ("second", "²" | "^2") => " per second squared".to_owned(),
        (unit, power) => format!(" per {}", raised(unit, power)),
    };
    Some(format!("{number} {}{per}{stop}", raised(name, found.group(4))))
}
