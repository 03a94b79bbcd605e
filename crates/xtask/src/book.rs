//! The book: `docs/` as web pages in `target/book`, by mdBook in a Python environment of its own.
//!
//! Pages link to files outside of `docs/`. These become parts of the book: pages under "Repository", other files as they are.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::markdown::{links, resolved};
use crate::process;
use crate::steps::Steps;
use crate::venv::{self, Environment};

const MDBOOK: Environment =
    Environment { folder: "venv-book", requirements: "scripts/book/requirements.txt" };
const SUMMARY: &str = "docs/SUMMARY.md";
/// The folder of the book for files outside of `docs/`.
const OUTSIDE: &str = "repository";

/// Builds the book and prints where it begins.
pub(crate) fn build(root: &Path, steps: &mut Steps) -> Result<()> {
    let python = venv::make(root, steps, MDBOOK)?;
    let (source, out) = (root.join("target/book-source"), root.join("target/book"));
    steps.time("book source", || stage(root, &source))?;
    let mut mdbook = Command::new(python.with_file_name(format!("mdbook{}", std::env::consts::EXE_SUFFIX)));
    mdbook.arg("build").arg(&source).arg("--dest-dir").arg(&out);
    steps.run("book", &mut mdbook)?;
    println!("{}", out.join("index.html").display());
    Ok(())
}

/// Makes the folder that mdBook reads: `docs/`, with links that stay inside of it.
fn stage(root: &Path, out: &Path) -> Result<()> {
    if out.exists() {
        fs::remove_dir_all(out).with_context(|| format!("cannot empty {}", out.display()))?;
    }
    let mut git = Command::new("git");
    git.current_dir(root).args(["ls-files", "-co", "--exclude-standard", "-z", "docs"]);
    let listed =
        String::from_utf8(process::output(&mut git)?).context("git lists a path that is not UTF-8")?;
    let mut waiting: Vec<String> = listed.split_terminator('\0').map(str::to_owned).collect();
    let mut placed: BTreeSet<String> = waiting.iter().cloned().collect();
    while let Some(path) = waiting.pop() {
        let from = root.join(&path);
        ensure!(from.is_file(), "{path} is no file: let the pages link to a file");
        let to = out.join(place(&path));
        fs::create_dir_all(to.parent().unwrap_or(out))
            .with_context(|| format!("cannot make a folder for {}", to.display()))?;
        if Path::new(&path).extension().is_none_or(|extension| extension != "md") {
            fs::copy(&from, &to).with_context(|| format!("cannot copy {path}"))?;
            continue;
        }
        let page = fs::read_to_string(&from).with_context(|| format!("cannot read {path}"))?;
        let (page, targets) = moved(&path, &page);
        fs::write(&to, page).with_context(|| format!("cannot write {}", to.display()))?;
        waiting.extend(targets.into_iter().filter(|target| placed.insert(target.clone())));
    }
    list_outside(&placed, &out.join(place(SUMMARY)))
}

/// Where a file of the repository lies in the book.
fn place(path: &str) -> String {
    match path.strip_prefix("docs/") {
        Some(inside) => inside.to_owned(),
        None => format!("{OUTSIDE}/{path}"),
    }
}

/// A page with links as they are in the book, and the files that it links to.
fn moved(path: &str, page: &str) -> (String, Vec<String>) {
    let up = "../".repeat(place(path).matches('/').count());
    let (mut text, mut end, mut targets) = (String::new(), 0, Vec::new());
    for link in links(page) {
        let Some(target) = resolved(path, &link.path).filter(|target| target != path) else {
            continue;
        };
        text.push_str(&page[end..link.range.start]);
        text.push_str(&format!("{up}{}", place(&target)));
        if let Some(anchor) = link.anchor {
            // Writing into a String cannot fail.
            let _ = write!(text, "#{anchor}");
        }
        end = link.range.end;
        targets.push(target);
    }
    text.push_str(&page[end..]);
    (text, targets)
}

/// Adds the pages outside of `docs/` to the summary.
fn list_outside(placed: &BTreeSet<String>, summary: &Path) -> Result<()> {
    let mut text =
        fs::read_to_string(summary).with_context(|| format!("cannot read {}", summary.display()))?;
    text.push_str("\n# Repository\n\n");
    for path in placed.iter().filter(|path| !path.starts_with("docs/") && path.ends_with(".md")) {
        // Writing into a String cannot fail.
        let _ = writeln!(text, "- [{path}]({})", place(path));
    }
    fs::write(summary, text).with_context(|| format!("cannot write {}", summary.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_out_of_the_folder_lead_into_the_book() {
        let page = "[a](b.md#c) [map](../ARCHITECTURE.md) [toml](compatibility/x.toml) [own](#d)\n";
        let (text, targets) = moved("docs/a.md", page);
        assert_eq!(
            text,
            "[a](b.md#c) [map](repository/ARCHITECTURE.md) [toml](compatibility/x.toml) [own](#d)\n"
        );
        assert_eq!(targets, ["docs/b.md", "ARCHITECTURE.md", "docs/compatibility/x.toml"]);
        let (text, _) = moved("benches/README.md", "[a](../docs/a.md) [b](x.json)\n");
        assert_eq!(text, "[a](../../a.md) [b](../../repository/benches/x.json)\n");
    }

    #[test]
    fn the_pages_of_this_repository_are_staged() {
        let out = std::env::temp_dir().join(format!("xtask-book-{}", std::process::id()));
        stage(&crate::root(), &out).unwrap();
        let summary = fs::read_to_string(out.join("SUMMARY.md")).unwrap();
        assert!(summary.contains("(repository/ARCHITECTURE.md)"), "{summary}");
        for link in links(&summary) {
            assert!(out.join(&link.path).is_file(), "{}", link.path);
        }
        fs::remove_dir_all(&out).unwrap();
    }
}
