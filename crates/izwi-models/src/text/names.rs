//! Rules for abbreviations, titles, states and Roman numerals.

use super::measures::longest_first;
use super::numerals::{digit_names, number, ordinal, roman, year};
use super::rewrite::Rule;
use super::words::{ABBREVIATIONS, COUNTED, NO_NAMES, ORDERED, PRONOUN_BEFORE, STATES, TITLES};

const ROMAN: &str = r"(M{0,3}(?:CM|CD|D?C{0,3})(?:XC|XL|L?X{0,3})(?:IX|IV|V?I{0,3}))";

/// The number of a house, and a word of the name of its street.
const HOUSE: &str = r"\d+(?:[A-Z]|st|nd|rd|th)?";
const STREET_NAME: &str = r"(?:\p{Lu}\p{L}+|\d+(?:st|nd|rd|th))";
/// Streets after their names.
const STREETS: [(&str, &str); 8] = [
    ("Dr", "Drive"),
    ("St", "Street"),
    ("ST", "Street"),
    ("Ct", "Court"),
    ("Pl", "Place"),
    ("Sq", "Square"),
    ("Ter", "Terrace"),
    ("Cir", "Circle"),
];

pub(super) fn places() -> Result<Vec<Rule>, regex::Error> {
    let kinds = STREETS.iter().map(|(short, _)| *short).collect::<Vec<_>>().join("|");
    let states = STATES.iter().map(|[code, _]| *code).collect::<Vec<_>>().join("|");
    Ok(vec![
        Rule::new(&format!(r"(\p{{Lu}}[\p{{L}}.]+), ({states})\b(\.? \d{{5}}(?:-\d{{4}})?\b)?"), |found| {
            let [_, state] = STATES.iter().find(|[code, _]| *code == found.group(2))?;
            let zip = found.group(3).trim_start_matches(['.', ' ']);
            let zip = format!(" {}", digit_names(zip));
            let ends = found.after.is_none_or(|c| " ,.;:!?)".contains(c));
            let state = if found.after == Some('.') { state.trim_end_matches('.') } else { state };
            ends.then(|| format!("{}, {state}{}", found.group(1), zip.trim_end()))
        })?,
        Rule::new(
            &format!(
                r"({HOUSE} (?:[NSEW]\.? )?(?:{STREET_NAME} ){{1,3}})({kinds})\b(\.?)( [NSEW]{{1,2}}\b\.?)?"
            ),
            |found| {
                let (_, kind) = STREETS.iter().find(|(short, _)| *short == found.group(2))?;
                let ends = !found.group(3).is_empty() && found.after.is_none() && found.group(4).is_empty();
                let is_saint = found.group(2) == "St" && found.right.starts_with(" Louis");
                (!is_saint).then(|| {
                    format!("{}{kind}{}{}", found.group(1), if ends { "." } else { "" }, found.group(4))
                })
            },
        )?,
        Rule::new(r"(\d+) ([NSEW]|NE|NW|SE|SW)\b\.? (\p{Lu}\p{Ll}|\d)", |found| {
            Some(format!("{} {} {}", found.group(1), quarter(found.group(2))?, found.group(3)))
        })?,
    ])
}

pub(super) fn names() -> Result<Vec<Rule>, regex::Error> {
    let titles = longest_first(TITLES.iter().map(|[title, _]| regex::escape(title)).collect());
    let others = longest_first(ABBREVIATIONS.iter().map(|[short, _]| regex::escape(short)).collect());
    Ok(vec![
        Rule::new(&format!(r"\b({titles})\.? (\p{{Lu}})"), |found| {
            let [_, spoken] = TITLES.iter().find(|[title, _]| *title == found.group(1))?;
            // "Gen Z" is no general.
            let is_letter = !found.group(0).contains('.') && !found.after.is_some_and(char::is_alphabetic);
            (!is_letter).then(|| format!("{spoken} {}", found.group(2)))
        })?,
        Rule::new(&format!(r"({others})"), |found| {
            let [short, spoken] = ABBREVIATIONS.iter().find(|[short, _]| *short == found.group(1))?;
            let ends = short.ends_with('.');
            let alone = found.stands_alone(".'") && !(ends && found.after == Some('.'));
            alone.then(|| format!("{spoken}{}", if ends && found.after.is_none() { "." } else { "" }))
        })?,
        Rule::new(r"\bp\. ?(\d)", |found| Some(format!("page {}", found.group(1))))?,
        Rule::new(r"\b(No|Nos|no|nos|Num)\. ?(\d|double\b)", |found| {
            let noun = match found.group(1) {
                "No" | "Num" => "Number",
                "Nos" => "Numbers",
                "no" => "number",
                _ => "numbers",
            };
            Some(format!("{noun} {}", found.group(2)))
        })?,
        // In the style of forms: "name & no."
        Rule::new(
            r"(& |\b(?:[Ss]erial|[Pp]art|[Mm]odel|[Aa]ccount|[Pp]hone|[Tt]el\.|[Rr]ef\.) )no\.",
            |found| {
                let stop = if found.after.is_none() { "." } else { "" };
                Some(format!("{}number{stop}", found.group(1)))
            },
        )?,
        Rule::new(r"(?:#|№ ?)(\d)", |found| {
            let apart = !found.before.is_some_and(|c| c.is_alphanumeric() || c == '&');
            apart.then(|| format!("number {}", found.group(1)))
        })?,
    ])
}

pub(super) fn romans() -> Result<Vec<Rule>, regex::Error> {
    Ok(vec![
        Rule::new(&format!(r"\b(M{ROMAN})\b"), |found| {
            let written = found.group(1);
            let value = roman(written).filter(|value| written.len() > 3 && (1500..2100).contains(value));
            value.map(year)
        })?,
        Rule::new(&format!(r"\b({}) {ROMAN}\b", COUNTED.join("|")), |found| {
            let numeral = found.group(2);
            let value =
                roman(numeral).filter(|_| !numeral.starts_with(['M', 'D']) && found.after != Some('\''))?;
            Some(format!("{} {value}", found.group(1)))
        })?,
        Rule::new(&format!(r"\b({}) {ROMAN}\b", ORDERED.join("|")), |found| {
            let numeral = found.group(2);
            let value = roman(numeral).filter(|_| !numeral.starts_with(['M', 'D', 'C', 'L']))?;
            let is_short = found.after == Some('\'') && !found.right.starts_with("'s");
            let is_pronoun = numeral == "I" && (is_short || PRONOUN_BEFORE.contains(&found.word_after()));
            (!is_pronoun).then(|| format!("{} the {}", found.group(1), ordinal(value)))
        })?,
        Rule::new(
            r"\b(\p{Lu}[\p{L}]+) (II|III|IV|VI|VII|VIII|IX|XI|XII|XIII|XIV|XV|XVI|XVII|XVIII|XIX|XX)\b",
            |found| {
                let is_name =
                    !NO_NAMES.contains(&found.group(1)) && !found.group(1).chars().all(char::is_uppercase);
                let value = roman(found.group(2))?;
                is_name.then(|| format!("{} {value}", found.group(1)))
            },
        )?,
        Rule::new(r"\b(II|III|VII|VIII|XII|XIII|XIV|XVI|XVII|XVIII)\b", |found| {
            let apart = found.before == Some(' ')
                && found.stands_alone("")
                && (found.after != Some('.') || found.right == ".");
            apart.then(|| roman(found.group(1)).map(|value| value.to_string()))?
        })?,
        Rule::new(r"(\p{Lu}[\p{L}.]+) v\. (\p{Lu})", |found| {
            Some(format!("{} versus {}", found.group(1), found.group(2)))
        })?,
        Rule::new(r"^\(?(II|III|IV|VI|VII|VIII|IX|XI|XII|XIII|XIV|XV)([.):])(?:\s|$)", |found| {
            let mark = if found.group(2) == ")" { "," } else { found.group(2) };
            Some(format!("{}{mark} ", number(&roman(found.group(1))?.to_string())))
        })?,
    ])
}

fn quarter(letters: &str) -> Option<&'static str> {
    Some(match letters {
        "N" => "North",
        "S" => "South",
        "E" => "East",
        "W" => "West",
        "NE" => "Northeast",
        "NW" => "Northwest",
        "SE" => "Southeast",
        "SW" => "Southwest",
        _ => return None,
    })
}
