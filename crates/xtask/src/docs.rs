//! Generated pages of `docs/`: `izwi docs` writes them from its own flags and settings, [`figures`] from the baselines,
//! [`metal_costs`] from counts, [`compatibility`] from its tables, [`examples`] from the
//! sources; here they are written or compared. Other pages are left alone.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::steps::Steps;
use crate::{binary, compatibility, examples, figures, metal_costs};

/// Writes the pages into `docs/`.
pub(crate) fn write(root: &Path, steps: &mut Steps) -> Result<()> {
    let izwi = binary::build_izwi(root, steps)?;
    generate(root, steps, &izwi, &root.join("docs"))
}

/// Builds `izwi` and compares its pages with those in `docs/`.
pub(crate) fn check(root: &Path, steps: &mut Steps) -> Result<()> {
    let izwi = binary::build_izwi(root, steps)?;
    check_with(root, steps, &izwi)
}

/// Writes the pages into a scratch folder and fails where `docs/` differs.
pub(crate) fn check_with(root: &Path, steps: &mut Steps, izwi: &Path) -> Result<()> {
    let fresh = root.join("target/docs-check");
    if fresh.exists() {
        fs::remove_dir_all(&fresh).with_context(|| format!("cannot empty {}", fresh.display()))?;
    }
    generate(root, steps, izwi, &fresh)?;
    let stale = stale_pages(&fresh, &root.join("docs"))?;
    for page in &stale {
        eprintln!("docs/{}: generated docs: differs from what is generated", page.display());
    }
    if stale.is_empty() {
        return Ok(());
    }
    bail!("{} generated pages are stale; run `cargo xtask docs` and commit the result", stale.len());
}

fn generate(root: &Path, steps: &mut Steps, izwi: &Path, out: &Path) -> Result<()> {
    fs::create_dir_all(out).with_context(|| format!("cannot make {}", out.display()))?;
    let mut command = Command::new(izwi);
    steps.run("generated pages", command.current_dir(root).args(["docs", "--out"]).arg(out))?;
    figures::write(root, out)?;
    metal_costs::write(root, out)?;
    compatibility::write(root, out)?;
    examples::write(root, out)
}

/// Pages under `fresh` that are missing under `committed` or differ there, as paths inside `fresh`.
fn stale_pages(fresh: &Path, committed: &Path) -> Result<Vec<PathBuf>> {
    let pages = files_under(fresh)?;
    if pages.is_empty() {
        bail!("`izwi docs` wrote no page into {}", fresh.display());
    }
    let mut stale = Vec::new();
    for page in pages {
        let inside = page.strip_prefix(fresh)?.to_path_buf();
        let new = fs::read(&page).with_context(|| format!("cannot read {}", page.display()))?;
        if fs::read(committed.join(&inside)).ok() != Some(new) {
            stale.push(inside);
        }
    }
    Ok(stale)
}

/// Every file below a folder, sorted.
fn files_under(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_path_buf()];
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(&next).with_context(|| format!("cannot list {}", next.display()))? {
            let path = entry?.path();
            if path.is_dir() { folders.push(path) } else { found.push(path) }
        }
    }
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_and_different_pages_are_stale_and_others_are_not() {
        let scratch = std::env::temp_dir().join(format!("xtask-docs-{}", std::process::id()));
        let (fresh, committed) = (scratch.join("fresh"), scratch.join("docs"));
        fs::create_dir_all(fresh.join("api")).unwrap();
        fs::create_dir_all(&committed).unwrap();
        assert!(stale_pages(&fresh, &committed).is_err(), "no page at all is a fault");

        for page in ["cli.md", "config.md", "api/speech.md"] {
            fs::write(fresh.join(page), "new").unwrap();
        }
        fs::write(committed.join("cli.md"), "new").unwrap();
        fs::write(committed.join("config.md"), "old").unwrap();
        fs::write(committed.join("guide.md"), "by hand").unwrap();
        let stale = stale_pages(&fresh, &committed).unwrap();
        assert_eq!(stale, [Path::new("api/speech.md"), Path::new("config.md")]);
        fs::remove_dir_all(&scratch).unwrap();
    }
}
