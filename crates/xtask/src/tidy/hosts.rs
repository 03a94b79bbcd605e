//! No file names the host of a package registry: packages are used by name through their clients.

use anyhow::Result;

use super::Violation;
use super::tree::Tree;

/// In parts, so that this file names none of them.
const HOSTS: &[&str] = &[
    concat!("crates", ".io"),
    concat!("pypi", ".org"),
    concat!("python", "hosted.org"),
    concat!("npm", "js.org"),
    concat!("npm", "js.com"),
    concat!("debian", ".org"),
];

pub(super) fn are_not_named(tree: &Tree) -> Result<Vec<Violation>> {
    let mut violations = Vec::new();
    for file in tree.files.iter().filter(|file| file.name() != "Cargo.lock") {
        for (index, line) in file.text.lines().enumerate() {
            let line = line.to_ascii_lowercase();
            if let Some(host) = HOSTS.iter().find(|host| line.contains(*host)) {
                let remedy =
                    format!("'{host}' is a registry's host: name the package and its client instead");
                violations.push(Violation::new(&file.path, index + 1, "registry host", remedy));
            }
        }
    }
    Ok(violations)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::found;

    #[test]
    fn hosts_are_found_anywhere_but_in_the_lock_file() {
        let named = format!("first\nhttps://INDEX.{}/x\n", HOSTS[0]);
        let files =
            [("Cargo.lock", &*named), ("scripts/get.py", &*named), ("deny.toml", "[patch.crates-io]\n")];
        assert_eq!(found(are_not_named, &files), ["scripts/get.py:2"]);
    }

    #[test]
    fn this_file_names_no_host() {
        assert_eq!(found(are_not_named, &[("hosts.rs", include_str!("hosts.rs"))]), [] as [&str; 0]);
    }
}
