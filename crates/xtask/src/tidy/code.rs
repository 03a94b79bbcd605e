//! Rust text reduced to its code: comments and literals become spaces, line numbers stay.
//!
//! Knows just enough of the lexer for that: nested comments, raw strings, characters against lifetimes. Also finds the
//! code that only tests have.

use std::collections::BTreeSet;

use anyhow::{Context, Result};
use regex::Regex;

/// `text` with comments and the content of string and character literals blanked.
pub(super) fn only(text: &str) -> String {
    let chars: Vec<char> = text.chars().collect();
    let mut code = String::with_capacity(text.len());
    let mut at = 0;
    while at < chars.len() {
        let skipped = skipped_at(&chars, at);
        if skipped == 0 {
            code.push(chars[at]);
            at += 1;
        } else {
            let end = (at + skipped).min(chars.len());
            code.extend(chars[at..end].iter().map(|c| if *c == '\n' { '\n' } else { ' ' }));
            at = end;
        }
    }
    code
}

/// How many characters from `at` on are one comment or literal; 0 where code stands.
fn skipped_at(chars: &[char], at: usize) -> usize {
    let rest = &chars[at..];
    let after_word = at > 0 && (chars[at - 1].is_alphanumeric() || chars[at - 1] == '_');
    match rest {
        ['/', '/', ..] => rest.iter().position(|c| *c == '\n').unwrap_or(rest.len()),
        ['/', '*', ..] => block_comment(rest),
        ['"', ..] => quoted(rest, '"'),
        ['b' | 'c', '"', ..] if !after_word => 1 + quoted(&rest[1..], '"'),
        ['r', '"' | '#', ..] if !after_word => raw_string(rest, 1),
        ['b' | 'c', 'r', '"' | '#', ..] if !after_word => raw_string(rest, 2),
        ['\'', '\\', ..] | ['\'', _, '\'', ..] => quoted(rest, '\''),
        _ => 0,
    }
}

fn block_comment(rest: &[char]) -> usize {
    let (mut depth, mut at) = (0_usize, 0);
    while at < rest.len() {
        match rest[at..] {
            ['/', '*', ..] => (depth, at) = (depth + 1, at + 2),
            ['*', '/', ..] => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            break;
        }
    }
    at
}

/// The length of a literal that opens and closes with `quote`, where a backslash hides the next character.
fn quoted(rest: &[char], quote: char) -> usize {
    let mut at = 1;
    while at < rest.len() && rest[at] != quote {
        at += if rest[at] == '\\' { 2 } else { 1 };
    }
    at + 1
}

/// The length of `r"…"`, `r#"…"#` and so on; 0 where it is a raw identifier instead.
fn raw_string(rest: &[char], prefix: usize) -> usize {
    let hashes = rest[prefix..].iter().take_while(|c| **c == '#').count();
    if rest.get(prefix + hashes) != Some(&'"') {
        return 0;
    }
    let mut at = prefix + hashes + 1;
    while at < rest.len() {
        let closes = rest[at] == '"' && rest[at + 1..].iter().take_while(|c| **c == '#').count() >= hashes;
        at += 1;
        if closes {
            return at + hashes;
        }
    }
    at
}

/// Code without the items that only tests have: what follows `#[cfg(test)]`, blanked.
pub(super) fn without_tests(code: &str) -> String {
    let mut kept = code.to_owned();
    while let Some(start) = kept.find("#[cfg(test)]") {
        let end = start + item_length(&kept[start..]);
        let blank: String = kept[start..end].chars().map(|c| if c == '\n' { '\n' } else { ' ' }).collect();
        kept.replace_range(start..end, &blank);
    }
    kept
}

/// Bytes of attributes and item from the start of `code`: to the `;` or the closing brace outside of any bracket.
fn item_length(code: &str) -> usize {
    let mut depth = 0_usize;
    for (at, c) in code.char_indices() {
        match c {
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => {
                depth = depth.saturating_sub(1);
                if c == '}' && depth == 0 {
                    return at + 1;
                }
            }
            ';' if depth == 0 => return at + 1,
            _ => {}
        }
    }
    code.len()
}

/// The modules that the file declares for tests only: `#[cfg(test)] mod NAME;`.
pub(super) fn test_modules(code: &str) -> Result<BTreeSet<String>> {
    let pattern =
        Regex::new(r"#\[cfg\(test\)\]\s*(?:#\[[^\]]*\]\s*)*(?:pub(?:\([^)]*\))?\s+)?mod\s+(\w+)\s*;")
            .context("the pattern of test modules")?;
    Ok(pattern.captures_iter(code).map(|found| found[1].to_owned()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_literals_vanish_and_code_stays() {
        for (text, kept, gone) in [
            ("let a = 1; // word", "let a = 1;", "word"),
            ("/* word /* word */ word */ b", " b", "word"),
            (r#"let a = "word \" word"; b"#, "; b", "word"),
            ("let a = r#\"word \" word\"#; b", "; b", "word"),
            ("let a = br\"word\\\"; b", "; b", "word"),
            ("f::<'a>('\"', x); // word", "x", "word"),
            ("f('\\'', x); // word", "x", "word"),
            ("let url = \"http://word\"; b", "; b", "word"),
            ("r#type; keep", "r#type; keep", "word"),
            ("\"word\nword\"\nb", "\n\nb", "word"),
            ("\"word never closed", "", "word"),
        ] {
            let code = only(text);
            let squeezed: String =
                code.split(' ').filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" ");
            assert!(squeezed.contains(kept.trim()), "{text:?} became {code:?}");
            assert!(!code.contains(gone), "{text:?} became {code:?}");
            assert_eq!(code.lines().count(), text.lines().count(), "{text:?}");
        }
    }

    #[test]
    fn items_of_tests_are_blanked_and_lines_stay() {
        let code = "use a::B;\n#[cfg(test)]\nuse c::D;\n#[cfg(test)]\n#[allow(x)]\nmod tests {\n    fn f() {}\n}\nfn g() {}\n";
        let kept = without_tests(code);
        assert_eq!(kept.split_whitespace().collect::<Vec<_>>().join(" "), "use a::B; fn g() {}");
        assert_eq!(kept.lines().count(), code.lines().count());
        let declared = "#[cfg(test)]\nmod tests;\n#[cfg(test)]\npub(crate) mod golden;\nmod real;\n";
        assert_eq!(test_modules(declared).unwrap(), ["golden", "tests"].map(str::to_owned).into());
    }
}
