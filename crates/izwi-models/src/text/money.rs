//! Rules for amounts of money.

use super::numerals::{counted, number};
use super::rewrite::{Found, Rule};
use super::words::CURRENCIES;

const NUMBER: &str = r"\d+(?:,\d{3})*(?:\.\d+)?";
const SCALE: &str = r"hundred|thousand|million|billion|trillion|mn\b|bn\b|tn\b|[kKmMbBtT]\b";

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
            (ends && found.group(1) != "$").then(|| format!("{}{}", found.group(1), grouped(found.group(2))))
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

pub(super) fn money() -> Result<Vec<Rule>, regex::Error> {
    let mut signs: Vec<String> = Vec::new();
    for [sign, ..] in CURRENCIES.iter() {
        let word = sign.starts_with(char::is_alphabetic);
        signs.push(format!("{}{}", if word { r"\b" } else { "" }, regex::escape(sign)));
    }
    signs.sort_by_key(|sign| std::cmp::Reverse(sign.len()));
    let sign = signs.join("|");
    let after = signs.iter().map(|sign| sign.trim_start_matches(r"\b")).collect::<Vec<_>>().join("|");
    Ok(vec![
        Rule::new(
            &format!(
                r"([-+−]?)({sign})\s?({NUMBER})(?:\s?[-–—]\s?(?:{sign})?({NUMBER}))?(?:[\s-]?({SCALE}))?"
            ),
            |found| {
                let amount = Amount {
                    sign: found.group(2),
                    low: found.group(3),
                    high: found.group(4),
                    scale: found.group(5),
                };
                let signed = match found.group(1) {
                    "" => "",
                    _ if found.before.is_some_and(char::is_alphanumeric) => return None,
                    "+" => "plus ",
                    _ => "minus ",
                };
                Some(format!("{signed}{}", amount.read(found)?))
            },
        )?,
        Rule::new(&format!(r"({NUMBER})(?:\s?({SCALE}))?\s?({after})"), |found| {
            let amount =
                Amount { sign: found.group(3), low: found.group(1), high: "", scale: found.group(2) };
            found.stands_alone(".,$€£-/").then(|| amount.read(found))?
        })?,
    ])
}

struct Amount<'a> {
    sign: &'a str,
    low: &'a str,
    high: &'a str,
    scale: &'a str,
}

impl Amount<'_> {
    fn read(&self, found: &Found<'_>) -> Option<String> {
        let currency = CURRENCIES.iter().find(|[sign, ..]| *sign == self.sign)?;
        let [_, one, many, ..] = *currency;
        // "a $20 bill": what comes before a noun has no plural.
        let hyphened = found.after == Some('-') && found.right[1..].starts_with(char::is_alphabetic);
        let many = if (found.is_before_noun() || hyphened) && !self.low.contains('.')
            || found.is_before_noun() && !self.scale.is_empty()
        {
            one
        } else {
            many
        };
        if self.scale.is_empty() && self.high.is_empty() {
            return Some(whole(self.low, currency, many));
        }
        let scale = match self.scale {
            "" => String::new(),
            written => format!(" {}", scale(written)),
        };
        let low = number(self.low);
        let high = if self.high.is_empty() { String::new() } else { format!(" to {}", number(self.high)) };
        Some(format!("{low}{high}{scale} {many}"))
    }
}

/// An amount of a currency and of its hundredth parts: "nine dollars and ninety-nine cents".
fn whole(written: &str, [_, one, _, minor_one, minor_many]: &[&str; 5], many: &str) -> String {
    let (units, part) = written.split_once('.').unwrap_or((written, ""));
    let singular = |number: &str| number.chars().all(|c| c == '0') || number.is_empty();
    let has_minor = !minor_many.is_empty() && part.len() == 2;
    if !has_minor && !singular(part) {
        return format!("{} {many}", number(written));
    }
    let major = counted(units, one, many).replacen(units, &number(units), 1);
    let minor = part.trim_start_matches('0');
    match (singular(part), singular(units)) {
        (true, _) => major,
        (false, zero) => {
            let minor = counted(minor, minor_one, minor_many).replacen(minor, &number(minor), 1);
            if zero { minor } else { format!("{major} and {minor}") }
        }
    }
}

fn scale(written: &str) -> &str {
    match written {
        "k" | "K" => "thousand",
        "m" | "M" | "mn" => "million",
        "b" | "B" | "bn" => "billion",
        "t" | "T" | "tn" => "trillion",
        word => word,
    }
}
