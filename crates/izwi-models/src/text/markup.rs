//! What is written for the eye only: Markdown marks, links, addresses, emoji, control characters.
//!
//! Runs first, on the whole text, because lines still mean something here. Knows nothing of numbers or sounds.

use super::rewrite::Rule;

/// Entities of HTML and XML, and their characters.
const ENTITIES: [(&str, &str); 8] = [
    ("amp", "&"),
    ("lt", "<"),
    ("gt", ">"),
    ("quot", "\""),
    ("apos", "'"),
    ("nbsp", " "),
    ("#39", "'"),
    ("#x27", "'"),
];

/// Ends of addresses with two letters that are said as a word.
const SPOKEN_COUNTRIES: [&str; 8] = ["at", "be", "co", "in", "is", "it", "me", "to"];

/// Turns marked-up text into plain lines.
#[derive(Debug, Clone)]
pub struct Markup {
    rules: Vec<Rule>,
}

impl Markup {
    /// Compiles the rules.
    ///
    /// # Errors
    /// A pattern is faulty.
    pub fn new() -> Result<Self, regex::Error> {
        let rules = vec![
            Rule::new(r"(?m)^[ \t]*(?:```|~~~).*$", |_| Some(String::new()))?,
            Rule::new(r"(?m)^[ \t]*(?:[-*_=][ \t]*){3,}$", |_| Some(String::new()))?,
            Rule::new(r"(?m)^[ \t]*\|?(?:[ \t]*:?-+:?[ \t]*\|)+[ \t:-]*$", |_| Some(String::new()))?,
            Rule::new(r"(?m)^[ \t]*(?:>[ \t]?)*(?:#{1,6}[ \t]+|[-*+•][ \t]+|>[ \t]?)", |_| {
                Some(String::new())
            })?,
            Rule::new(r"(?m)^[ \t]*\|(.*)\|[ \t]*$", |found| Some(found.group(1).to_owned()))?,
            Rule::new(
                r"(?i)</?(?:a|b|i|u|p|br|hr|em|strong|span|div|code|pre|h[1-6]|ul|ol|li)(?:\s[^<>]*)?/?>",
                |_| Some(" ".to_owned()),
            )?,
            Rule::new(r"&(amp|lt|gt|quot|apos|nbsp|#39|#x27);", |found| {
                ENTITIES
                    .iter()
                    .find(|(name, _)| *name == found.group(1))
                    .map(|(_, meant)| (*meant).to_owned())
            })?,
            // An address or a link between angle brackets.
            Rule::new(r"<(?:mailto:)?([^\s<>]+(?:@|://)[^\s<>]+)>", |found| Some(found.group(1).to_owned()))?,
            Rule::new(r"!?\[([^\[\]]*)\]\([^()\s]*(?:\s[^()]*)?\)", |found| Some(found.group(1).to_owned()))?,
            Rule::new(r"(?i)(?:\bmailto:)?([\w.+-]+)@([\w-]+(?:\.[\w-]+)+)", |found| {
                Some(format!("{} at {}", spoken_account(found.group(1)), spoken_host(found.group(2))))
            })?,
            Rule::new(r"(?i)\b(?:(?:https?|ftp)://|www\.)[^\s<>\u{22}“”]+", |found| {
                Some(spoken_link(found.group(0)))
            })?,
            Rule::new(
                r"(?i)\b(?:[a-z0-9-]+\.)+(?:com|org|net|edu|gov|io|dev|app|ai|co|uk|de|fr|info|biz|tv|me|ly)\b(?:[/?#][^\s<>\u{22}“”]*)?",
                |found| (found.before != Some('.')).then(|| spoken_link(found.group(0))),
            )?,
            Rule::new(r"\*{1,3}|_{2,}|~~|`+", |found| {
                let is_digit = |c: char| c.is_ascii_digit();
                let numbers = found.left.trim_end().ends_with(is_digit)
                    && found.right.trim_start().starts_with(is_digit);
                let product = found.group(0) == "*"
                    && numbers
                    && (found.before == Some(' ')) == (found.after == Some(' '));
                Some(if product { " times ".to_owned() } else { String::new() })
            })?,
            Rule::new(r"\b_|_\b", |_| Some(" ".to_owned()))?,
        ];
        Ok(Self { rules })
    }

    /// Plain lines. Line breaks are kept, they end sentences.
    pub fn strip(&self, text: &str) -> String {
        let visible: String = text.replace("\r\n", "\n").chars().filter_map(visible).collect();
        self.rules.iter().fold(visible, |text, rule| rule.apply(&text))
    }
}

/// The character itself, a space for what only separates, nothing for what is not text.
fn visible(c: char) -> Option<char> {
    match c {
        '\n' | '\r' | '\u{2028}' | '\u{2029}' | '\u{b}' | '\u{c}' | '\u{85}' => Some('\n'),
        // Soft hyphen, zero-width and direction marks, variation selectors, tags, byte-order mark.
        '\u{ad}' | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}' => None,
        '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{e0000}'..='\u{e01ef}' => None,
        _ if is_pictograph(c) => Some(' '),
        _ if c.is_control() || c.is_whitespace() => Some(' '),
        _ => Some(c),
    }
}

/// Emoji and dingbats: <https://www.unicode.org/Public/emoji/latest/emoji-data.txt>, by blocks.
fn is_pictograph(c: char) -> bool {
    let is_accidental = matches!(c, '♭' | '♮' | '♯');
    !is_accidental
        && matches!(c, '\u{1f000}'..='\u{1faff}' | '\u{2600}'..='\u{27bf}' | '\u{2b00}'..='\u{2bff}' | '\u{23e9}'..='\u{23fa}'
        | '\u{231a}' | '\u{231b}' | '\u{20e3}' | '\u{e000}'..='\u{f8ff}' | '\u{fffd}')
}

/// `anna.vale99` as "anna dot vale 99".
fn spoken_account(account: &str) -> String {
    let mut spoken = String::new();
    let mut last = ' ';
    for c in account.chars() {
        match c {
            '.' => spoken.push_str(" dot "),
            '_' => spoken.push_str(" underscore "),
            '-' => spoken.push_str(" dash "),
            '+' => spoken.push_str(" plus "),
            // A number glued to letters would be read digit by digit or as part of the word.
            _ if c.is_ascii_digit() != last.is_ascii_digit() && last.is_alphanumeric() => {
                spoken.extend([' ', c]);
            }
            _ => spoken.push(c),
        }
        last = c;
    }
    spoken
}

/// `mail.example.co.uk` as "mail dot example dot co dot UK": a country is spelled, unless its letters are a word.
fn spoken_host(host: &str) -> String {
    let country = |label: &str| label.len() == 2 && label.is_ascii() && !SPOKEN_COUNTRIES.contains(&label);
    let labels: Vec<String> = host
        .split('.')
        .enumerate()
        .map(|(at, label)| match label.to_ascii_lowercase() {
            lower if at > 0 && country(&lower) => lower.to_ascii_uppercase(),
            _ => spoken_account(label),
        })
        .collect();
    labels.join(" dot ")
}

/// `https://www.example.com/docs/` as "example dot com slash docs"; punctuation at the end belongs to the sentence.
fn spoken_link(link: &str) -> String {
    let body = link.trim_end_matches(['.', ',', ';', ':', '!', '?', ')', ']', '\'', '’', '”']);
    let tail = &link[body.len()..];
    let body = body.find("://").map_or(body, |at| &body[at + 3..]);
    let body = body.strip_prefix("www.").unwrap_or(body).trim_end_matches('/');
    let mut spoken = String::new();
    for c in body.chars() {
        match c {
            '.' => spoken.push_str(" dot "),
            '/' => spoken.push_str(" slash "),
            '-' => spoken.push_str(" dash "),
            '_' => spoken.push_str(" underscore "),
            '?' => spoken.push_str(" question mark "),
            '=' => spoken.push_str(" equals "),
            '&' => spoken.push_str(" and "),
            '#' => spoken.push_str(" hash "),
            '%' => spoken.push_str(" percent "),
            ':' => spoken.push_str(" colon "),
            _ => spoken.push(c),
        }
    }
    spoken + tail
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(written: &str, expected: &str) {
        let plain = Markup::new().unwrap().strip(written);
        let lines: Vec<String> =
            plain.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
        assert_eq!(lines.join("|"), expected, "{written}");
    }

    #[test]
    fn markdown_marks_are_dropped() {
        check("# Title\n\nSome **bold** and _soft_ `code`.", "Title||Some bold and soft code.");
        check("- one\n* two\n> three", "one|two|three");
        check("```rust\nlet x\n```", "|let x");
        check("a\n---\nb", "a||b");
        check("see [the docs](https://x.org/a) and ![a cat](c.png)", "see the docs and a cat");
        check("<b>hi</b> 3 < 4", "hi 3 < 4");
        check("2*3 stars", "2 times 3 stars");
        check("|a|b|\n|---|---|\nc", "a|b||c");
    }

    #[test]
    fn addresses_are_spoken() {
        check("See https://example.com/docs.", "See example dot com slash docs.");
        check("www.rust-lang.org, now", "rust dash lang dot org, now");
        check("Write to name@example.com!", "Write to name at example dot com!");
        check(
            "<anna.vale99@mail.example.co.uk>, bob_b+news@x-y.de.",
            "anna dot vale 99 at mail dot example dot co dot UK, bob underscore b plus news at x dash y dot DE.",
        );
        check("mailto:info@izwi.example, 24h@shop24.it", "info at izwi dot example, 24 h at shop 24 dot it");
        check("<https://example.com/a> and R&amp;D", "example dot com slash a and R&D");
        check("Try example.com or U.S. firms, e.g. this.", "Try example dot com or U.S. firms, e.g. this.");
    }

    #[test]
    fn what_is_not_text_goes() {
        check("hi 👋🏽 there ❤️ you", "hi there you");
        check("a\u{0}b\u{200d}c\u{202e}d", "a bcd");
    }
}
