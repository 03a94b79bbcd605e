//! Pages of Markdown: their links lead to files and headings that exist, and the book has every page of `docs/`.

use std::collections::BTreeSet;

use anyhow::Result;

use super::Violation;
use super::tree::{Tree, has_extension};
use crate::markdown::{anchors, links, resolved};

const SUMMARY: &str = "docs/SUMMARY.md";

pub(super) fn links_resolve(tree: &Tree) -> Result<Vec<Violation>> {
    let mut violations = Vec::new();
    for file in tree.files.iter().filter(|file| has_extension(&file.path, "md")) {
        for link in links(&file.text) {
            let mut violate =
                |remedy: String| violations.push(Violation::new(&file.path, link.line, "link", remedy));
            let Some(target) = resolved(&file.path, &link.path).filter(|target| exists(tree, target)) else {
                violate(format!("'{}' does not exist", link.path));
                continue;
            };
            let Some(anchor) = &link.anchor else {
                continue;
            };
            let headings = tree.text(&target).map(anchors).unwrap_or_default();
            if !headings.contains(anchor) {
                violate(format!("{target} has no heading '#{anchor}'"));
            }
        }
    }
    Ok(violations)
}

/// Whether the tree has a file or a folder of this path.
fn exists(tree: &Tree, path: &str) -> bool {
    tree.files
        .iter()
        .any(|file| file.path.strip_prefix(path).is_some_and(|rest| rest.is_empty() || rest.starts_with('/')))
}

pub(super) fn book_is_complete(tree: &Tree) -> Result<Vec<Violation>> {
    let Some(summary) = tree.text(SUMMARY) else {
        return Ok(Vec::new());
    };
    let listed: BTreeSet<String> =
        links(summary).iter().filter_map(|link| resolved(SUMMARY, &link.path)).collect();
    let pages = tree.files.iter().filter(|file| {
        let name = file.path.strip_prefix("docs/");
        name.is_some_and(|name| !name.contains('/') && has_extension(name, "md")) && file.path != SUMMARY
    });
    let missing = pages.filter(|page| !listed.contains(&page.path));
    Ok(missing.map(|page| Violation::new(&page.path, 1, "book", format!("list it in {SUMMARY}"))).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::found;

    #[test]
    fn links_lead_to_files_folders_and_headings() {
        let files = [
            ("README.md", "[a](docs/a.md#one)\n[b](docs/a.md#two)\n[c](docs/b.md)\n[d](docs/x)\n[e](../y)\n"),
            ("docs/a.md", "# One\n[x](x/y.toml)\n[self](#one)\n[no](#none)\n"),
            ("docs/x/y.toml", ""),
        ];
        assert_eq!(
            found(links_resolve, &files),
            ["README.md:2", "README.md:3", "README.md:5", "docs/a.md:4"]
        );
    }

    #[test]
    fn a_page_that_the_summary_has_not_is_found() {
        let files =
            [("docs/SUMMARY.md", "- [A](a.md)\n"), ("docs/a.md", ""), ("docs/b.md", ""), ("docs/c/d.md", "")];
        assert_eq!(found(book_is_complete, &files), ["docs/b.md:1"]);
    }
}
