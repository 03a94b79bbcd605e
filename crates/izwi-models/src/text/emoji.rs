//! The names of common emoji, as they are said within a sentence. Others are left to be dropped.
//!
//! Names are short forms of those in the Unicode CLDR.

use super::rewrite::{Found, Rule};

/// An emoji and its name, parted by a tab, without selectors and skin tones.
const NAMES: &str = include_str!("normalise/emoji.tsv");

/// Names emoji.
#[derive(Debug, Clone)]
pub struct EmojiNames {
    rule: Rule,
}

impl EmojiNames {
    /// Compiles the rule.
    ///
    /// # Errors
    /// The pattern is faulty.
    pub fn new() -> Result<Self, regex::Error> {
        let one = r"[\p{Extended_Pictographic}&&[^\p{ASCII}©®™]]\u{fe0f}?\p{Emoji_Modifier}?";
        let pattern = format!(r"\p{{Regional_Indicator}}{{2}}|{one}(?:\u{{200d}}{one})*");
        Ok(Self { rule: Rule::new(&pattern, named)? })
    }

    /// `text` with the names of its emoji, each of a row of equal ones once.
    pub fn name(&self, text: &str) -> String {
        if text.is_ascii() { text.to_owned() } else { self.rule.apply(text) }
    }
}

fn named(found: &Found<'_>) -> Option<String> {
    let written = found.group(0);
    if found.left.trim_end().ends_with(written) {
        return Some(String::new());
    }
    let plain: String =
        written.chars().filter(|c| !matches!(c, '\u{fe0f}' | '\u{1f3fb}'..='\u{1f3ff}')).collect();
    let name_of = |wanted: &str| {
        NAMES.lines().filter_map(|line| line.split_once('\t')).find(|(emoji, _)| *emoji == wanted)
    };
    let (_, name) = name_of(&plain).or_else(|| name_of(plain.split('\u{200d}').next()?))?;
    let after = if found.after.is_some_and(char::is_alphanumeric) { " " } else { "" };
    Some(format!(" {name}{after}"))
}
