//! Words that mean "not finished". What is merged is finished; what is not is an issue.

use anyhow::{Context, Result};
use regex::Regex;

use super::Violation;
use super::tree::{Tree, has_extension, is_in, line_of};

const EXTENSIONS: &[&str] = &["rs", "md", "py"];

const UNFINISHED: &str =
    r"\btodo!|\bunimplemented!|\bTODO\b|\bFIXME\b|(?i:\bfor now\b)|(?i:\bplaceholders?\b)|#\[ignore\b";

const EXCEPT: &[(&str, &str)] = &[("crates/xtask/src/tidy/words.rs", "lists the words")];

pub(super) fn are_finished(tree: &Tree) -> Result<Vec<Violation>> {
    let pattern = Regex::new(UNFINISHED).context("the pattern of unfinished work")?;
    let mut violations = Vec::new();
    for file in &tree.files {
        let written = EXTENSIONS.iter().any(|extension| has_extension(&file.path, extension));
        if !written || is_in(&file.path, EXCEPT) {
            continue;
        }
        for hit in pattern.find_iter(&file.text) {
            let remedy = format!("'{}': finish it, or remove it and file an issue", hit.as_str());
            violations.push(Violation::new(
                &file.path,
                line_of(&file.text, hit.start()),
                "unfinished",
                remedy,
            ));
        }
    }
    Ok(violations)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::found;

    #[test]
    fn unfinished_work_is_found_in_code_pages_and_scripts() {
        let files = [
            (
                "a.rs",
                "todo!()\nunimplemented!()\n#[ignore = \"slow\"]\n// For now it is fine\nlet todo = 1;\n",
            ),
            ("b.md", "TODO: write\na placeholder\nplaceholding TODOS\n"),
            ("c.py", "# FIXME\n"),
            ("d.html", "<input placeholder=\"text\">\n"),
            ("crates/xtask/src/tidy/words.rs", "todo!()"),
        ];
        assert_eq!(
            found(are_finished, &files),
            ["a.rs:1", "a.rs:2", "a.rs:3", "a.rs:4", "b.md:1", "b.md:2", "c.py:1"]
        );
    }
}
