//! The files of a release that its archives decide: the sums, the Homebrew formula and the installer.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use sha2::{Digest as _, Sha256};

use super::{TARGETS, version};
use crate::workspace::{read, write};

const SUMS: &str = "SHA256SUMS";

/// Writes `install.sh`, `izwi.rb` and `SHA256SUMS` into a folder that holds the archives of all platforms. `repository` is the
/// address below which `releases/` lies.
pub(crate) fn write_files(root: &Path, files: &Path, repository: &str) -> Result<()> {
    ensure!(repository.starts_with("https://"), "'{repository}' is not https; give https://HOST/OWNER/NAME");
    let repository = repository.trim_end_matches('/');
    let releases = format!("{repository}/releases");
    let installer = fill(&read(&root.join("scripts/install.sh"))?, "RELEASES", &releases);
    write(&files.join("install.sh"), &installer)?;
    let mut formula = read(&root.join("assets/packaging/izwi.rb"))?;
    for (name, value) in [("REPOSITORY", repository), ("RELEASES", &*releases), ("VERSION", &*version(root)?)]
    {
        formula = fill(&formula, name, value);
    }
    for target in TARGETS {
        let archive = files.join(format!("izwi-{target}.tgz"));
        formula = fill(&formula, &format!("SHA256_{target}"), &sha256(&archive)?);
    }
    ensure!(!formula.contains('@'), "assets/packaging/izwi.rb has a variable that nothing fills in");
    write(&files.join("izwi.rb"), &formula)?;
    write_sums(files)
}

/// Replaces the variable `@NAME@`, where it is quoted: a program may compare it in pieces.
fn fill(text: &str, name: &str, value: &str) -> String {
    text.replace(&format!("@{name}@"), value)
}

/// Writes the sum of each file in a folder, in the form of `sha256sum`.
pub(super) fn write_sums(files: &Path) -> Result<()> {
    let entries = fs::read_dir(files).with_context(|| format!("cannot list {}", files.display()))?;
    let mut names: Vec<String> = Vec::new();
    for entry in entries {
        let entry = entry?;
        if entry.file_type()?.is_file() {
            names.push(entry.file_name().to_string_lossy().into_owned());
        }
    }
    names.retain(|name| name != SUMS);
    names.sort();
    let mut list = String::new();
    for name in names {
        // Writing into a String cannot fail.
        let _ = writeln!(list, "{}  {name}", sha256(&files.join(&name))?);
    }
    write(&files.join(SUMS), &list)
}

fn sha256(file: &Path) -> Result<String> {
    let bytes = fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
    Ok(Sha256::digest(bytes).iter().fold(String::new(), |mut text, byte| {
        // Writing into a String cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_files_of_a_release_have_its_address_and_sums() {
        let files = std::env::temp_dir().join(format!("xtask-release-{}", std::process::id()));
        fs::create_dir_all(&files).unwrap();
        for target in TARGETS {
            fs::write(files.join(format!("izwi-{target}.tgz")), target).unwrap();
        }
        let root = crate::root();
        assert!(write_files(&root, &files, "http://example.com/a").is_err());
        write_files(&root, &files, "https://example.com/a/izwi/").unwrap();
        let text = |name: &str| fs::read_to_string(files.join(name)).unwrap();
        let sum = sha256(&files.join("izwi-aarch64-apple-darwin.tgz")).unwrap();
        let address = "https://example.com/a/izwi/releases";
        assert!(text(SUMS).contains(&format!("{sum}  izwi-aarch64-apple-darwin.tgz\n")));
        assert_eq!(text(SUMS).lines().count(), TARGETS.len() + 2);
        assert!(text("izwi.rb").contains(&format!("sha256 \"{sum}\"")));
        assert!(text("izwi.rb").contains(&format!("{address}/download/v{}", version(&root).unwrap())));
        let installer = text("install.sh");
        assert!(installer.contains(&format!("RELEASES=\"{address}\"")));
        assert!(installer.contains("= \"@\"\"RELEASES@\""), "what tells a copy without an address stays");
        fs::remove_dir_all(&files).unwrap();
    }

    #[test]
    fn a_sum_is_that_of_sha256sum() {
        let file = std::env::temp_dir().join(format!("xtask-sum-{}", std::process::id()));
        fs::write(&file, "abc").unwrap();
        let expected = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(sha256(&file).unwrap(), expected);
        fs::remove_file(&file).unwrap();
    }
}
