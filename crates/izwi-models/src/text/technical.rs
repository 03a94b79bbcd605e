//! Rules for what machines and sciences write: addresses, files, paths, handles, formulas, mathematics.

use super::numerals::{code, number};
use super::rewrite::{Found, Rule};
use super::words::{EXTENSIONS, GREEK};

/// Superscripts, subscripts and their characters.
const RAISED: &str = "⁰¹²³⁴⁵⁶⁷⁸⁹⁻";
const LOWERED: &str = "₀₁₂₃₄₅₆₇₈₉";
const ORDINARY: &str = "0123456789-";

pub(super) fn technical() -> Result<Vec<Rule>, regex::Error> {
    Ok(vec![
        Rule::new(r"\b(\d{1,3})\.(\d{1,3})\.(\d{1,3})\.(\d{1,3})(?:/(\d{1,2})|:(\d{2,5}))?\b", |found| {
            let parts: Vec<String> = (1..=4).map(|group| code(found.group(group))).collect();
            let valid = (1..=4).all(|group| found.number(group).is_some_and(|part| part < 256));
            let tail = match (found.group(5), found.group(6)) {
                ("", "") => String::new(),
                ("", port) => format!(" port {}", code(port)),
                (bits, _) => format!(" slash {}", number(bits)),
            };
            (valid && found.stands_alone(".")).then(|| parts.join(" dot ") + &tail)
        })?,
        Rule::new(r"[A-Za-z]:(?:\\[\w.-]+)+\\?|(?:~|\.{1,2})?(?:/[\w.-]+){2,}/?|~/[\w.-]+", path)?,
        Rule::new(&format!(r"(?i)([\w-]+)\.({})\b", EXTENSIONS.join("|")), |found| {
            let apart = !found.before.is_some_and(|c| c.is_alphanumeric() || "\\@".contains(c))
                && !found.right.starts_with(['@', '/']);
            apart.then(|| format!("{} dot {}", name(found.group(1)), extension(found.group(2))))
        })?,
        Rule::new(&format!(r"(?i)\.({})\b", EXTENSIONS.join("|")), |found| {
            let is_first = found.before.is_none_or(|c| c == ' ' || c == '(');
            is_first.then(|| format!("dot {}", extension(found.group(1))))
        })?,
        Rule::new(r"@([A-Za-z_]\w*)", |found| {
            let apart = !found.before.is_some_and(char::is_alphanumeric);
            apart.then(|| format!("at {}", name(found.group(1))))
        })?,
        Rule::new(r"#([A-Z]{1,2}-\d)", |found| Some(format!("number {}", found.group(1))))?,
        Rule::new(r"#([A-Za-z]\w*)", |found| {
            let apart = !found.before.is_some_and(|c| c.is_alphanumeric() || c == '&');
            apart.then(|| format!("hashtag {}", camel(found.group(1))))
        })?,
        // Chemical formulas.
        Rule::new(
            &format!(
                r"\b(?:(?:Ca|Fe|Na|Mg|Cl|Al|Si|Cu|Ag|[HCNOSK])[\d{LOWERED}]{{0,2}}){{2,}}|\b[ONH][2-3{LOWERED}]"
            ),
            |found| {
                let has_digits = found.group(0).contains(|c: char| c.is_ascii_digit() || LOWERED.contains(c));
                (has_digits && found.stands_alone(".-/")).then(|| formula(found.group(0)))
            },
        )?,
        Rule::new(r"\bC(\+\+|#)", |found| {
            Some(if found.group(1) == "#" { "C sharp".to_owned() } else { "C plus plus".to_owned() })
        })?,
        Rule::new(r"\b([A-GF])([#♯♭])(?:( (?:major|minor))|\b|$)?", |found| {
            let sign = if found.group(2) == "♭" { "flat" } else { "sharp" };
            found.stands_alone("").then(|| format!("{} {sign}{}", found.group(1), found.group(3)))
        })?,
        Rule::new(r"~\s?(\$?\d)", |found| Some(format!("about {}", found.group(1))))?,
        Rule::new(r"(?:^|\s)[:;]-?[()DP|](\s|$)", |found| Some(found.group(1).to_owned()))?,
    ])
}

pub(super) fn mathematics() -> Result<Vec<Rule>, regex::Error> {
    Ok(vec![
        Rule::new(&format!(r"([{RAISED}]+)"), |found| power(found, &ordinary(found.group(1), RAISED)))?,
        Rule::new(r"([\p{L}\d)])\^([-−]?\d+|[a-z]\b)", |found| {
            Some(format!("{}{}", found.group(1), power(found, found.group(2))?))
        })?,
        Rule::new(&format!(r"([{LOWERED}]+)"), |found| {
            Some(format!(" {} ", ordinary(found.group(1), LOWERED)))
        })?,
        Rule::new(r"([√∛])\s?\(?(\d+(?:\.\d+)?|\p{L}\b)?\)?", |found| {
            let root = if found.group(1) == "√" { "square root" } else { "cube root" };
            Some(format!(" the {root} of {}", found.group(2)))
        })?,
        Rule::new(r"([\p{Greek}])", |found| {
            let (_, word) = GREEK.iter().find(|(letter, _)| found.group(1).starts_with(*letter))?;
            let is_greek = |c: Option<char>| c.is_some_and(|c| ('\u{370}'..='\u{3ff}').contains(&c));
            let space = |near: Option<char>| if near.is_some_and(char::is_alphanumeric) { " " } else { "" };
            (!is_greek(found.before) && !is_greek(found.after))
                .then(|| format!("{}{word}{}", space(found.before), space(found.after)))
        })?,
    ])
}

/// Super- or subscripts as ordinary characters.
fn ordinary(raised: &str, set: &str) -> String {
    let place = |c| set.chars().position(|raised| raised == c);
    raised.chars().filter_map(|c| ORDINARY.chars().nth(place(c)?)).collect()
}

fn power(found: &Found<'_>, exponent: &str) -> Option<String> {
    let space = if found.after.is_some_and(char::is_alphanumeric) { " " } else { "" };
    Some(match exponent {
        "2" => format!(" squared{space}"),
        "3" => format!(" cubed{space}"),
        _ => match exponent.strip_prefix(['-', '−']) {
            Some(digits) => format!(" to the power of minus {digits}{space}"),
            None => format!(" to the power of {exponent}{space}"),
        },
    })
}

fn path(found: &Found<'_>) -> Option<String> {
    if found.before.is_some_and(|c| c.is_alphanumeric() || "<:/.".contains(c)) {
        return None;
    }
    let written = found.group(0);
    let body = written.trim_end_matches('.');
    let mut spoken = String::new();
    for (at, piece) in body.split_inclusive(['/', '\\', ':', '~']).enumerate() {
        let word = piece.trim_end_matches(['/', '\\', ':', '~']);
        let word = match word
            .rsplit_once('.')
            .filter(|(stem, end)| !stem.is_empty() && EXTENSIONS.contains(&end.to_lowercase().as_str()))
        {
            Some((stem, end)) => format!("{} dot {}", name(stem), extension(end)),
            None => name(word),
        };
        let mark = match piece.chars().next_back() {
            Some('/') => " slash ",
            Some('\\') => " backslash ",
            Some(':') => " colon",
            Some('~') => "tilde",
            _ => "",
        };
        let word = if at == 0 && word.len() == 1 { word.to_uppercase() } else { word };
        spoken.push_str(&word);
        spoken.push_str(mark);
    }
    Some(spoken.trim().to_owned() + &written[body.len()..])
}

/// The end of a file's name: a word, or its letters.
fn extension(written: &str) -> String {
    let lower = written.to_lowercase();
    match lower.as_str() {
        "zip" | "doc" | "exe" | "log" | "bat" | "bin" | "gif" | "jar" | "app" | "toml" | "com" | "org"
        | "net" => lower,
        _ => lower.to_uppercase(),
    }
}

/// A name that marks join: "jane underscore doe".
fn name(written: &str) -> String {
    written.replace('_', " underscore ").replace('-', " dash ").replace('.', " dot ").trim().to_owned()
}

/// "ThrowbackThursday" as "Throwback Thursday".
fn camel(written: &str) -> String {
    let mut spoken = String::new();
    let mut last = ' ';
    for c in written.chars() {
        let starts = c.is_uppercase() && last.is_lowercase()
            || c.is_ascii_digit() != last.is_ascii_digit() && last != ' ';
        if starts {
            spoken.push(' ');
        }
        spoken.push(if c == '_' { ' ' } else { c });
        last = c;
    }
    spoken
}

/// "H2SO4" as "H two S O four".
fn formula(written: &str) -> String {
    let mut spoken: Vec<String> = Vec::new();
    let mut digits = String::new();
    for c in written.chars().chain([' ']) {
        let lowered =
            LOWERED.chars().position(|lowered| lowered == c).and_then(|at| ORDINARY.chars().nth(at));
        match lowered.unwrap_or(c) {
            digit if digit.is_ascii_digit() => digits.push(digit),
            letter => {
                if !digits.is_empty() {
                    spoken.push(number(&digits));
                    digits.clear();
                }
                spoken.push(letter.to_uppercase().to_string());
            }
        }
    }
    spoken.join(" ").trim().to_owned()
}
