//! Code examples in `docs/extending.md`: copied from marked regions of source files that the tests compile.
//!
//! The page has a line `<!-- example: PATH#NAME -->` before each code block; the source has the region between the lines
//! `// example: NAME` and `// end of example`.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

const PAGE: &str = "extending.md";

/// Writes the page with current examples into the folder `out`.
pub(crate) fn write(root: &Path, out: &Path) -> Result<()> {
    let read =
        |path: &Path| fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()));
    let page = read(&root.join("docs").join(PAGE))?;
    let filled = fill(&page, |path| read(&root.join(path)))?;
    fs::write(out.join(PAGE), filled).with_context(|| format!("cannot write {PAGE}"))
}

/// The page with the code block after each marker replaced by its region.
fn fill(page: &str, read: impl Fn(&str) -> Result<String>) -> Result<String> {
    let mut filled = String::new();
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        filled.push_str(line);
        filled.push('\n');
        let Some(source) = line.strip_prefix("<!-- example: ").and_then(|rest| rest.strip_suffix(" -->"))
        else {
            continue;
        };
        let (path, name) = source.split_once('#').with_context(|| format!("'{source}' is not PATH#NAME"))?;
        let region = region(&read(path)?, name).with_context(|| format!("{path} has no example '{name}'"))?;
        filled.push_str(&format!("```rust\n{region}```\n"));
        if lines.clone().next() == Some("```rust") {
            lines.by_ref().skip(1).find(|line| *line == "```").context("a code block does not end")?;
        }
    }
    Ok(filled)
}

/// The lines of a region, without their common indentation.
fn region(source: &str, name: &str) -> Option<String> {
    let start = format!("// example: {name}");
    let mut lines = source.lines().skip_while(|line| line.trim() != start).skip(1).peekable();
    lines.peek()?;
    let lines: Vec<&str> = lines.take_while(|line| line.trim() != "// end of example").collect();
    let indents =
        lines.iter().filter(|line| !line.trim().is_empty()).map(|line| line.len() - line.trim_start().len());
    let indent = indents.min()?;
    Some(lines.iter().map(|line| format!("{}\n", line.get(indent..).unwrap_or_default())).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: &str =
        "fn a() {}\n    // example: two\n    fn b() {\n        c();\n\n    }\n    // end of example\n";

    #[test]
    fn blocks_are_replaced_and_new_ones_inserted() {
        let expected = "# A\n\n<!-- example: x.rs#two -->\n```rust\nfn b() {\n    c();\n\n}\n```\n\nrest\n";
        let read = |_: &str| Ok(SOURCE.to_owned());
        assert_eq!(fill("# A\n\n<!-- example: x.rs#two -->\n\nrest\n", read).unwrap(), expected);
        let stale = "# A\n\n<!-- example: x.rs#two -->\n```rust\nold\n```\n\nrest\n";
        assert_eq!(fill(stale, read).unwrap(), expected);
        assert_eq!(fill(expected, read).unwrap(), expected);
    }

    #[test]
    fn a_missing_region_is_named() {
        let error = fill("<!-- example: x.rs#three -->\n", |_| Ok(SOURCE.to_owned())).unwrap_err();
        assert!(error.to_string().contains("three"), "{error}");
    }
}
