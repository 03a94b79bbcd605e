//! What a Rust file imports from its own crate: the `use` declarations and the paths written out in its code.
//!
//! Reads blanked code (see [`super::code`]); knows no other file.

use std::collections::BTreeSet;

use anyhow::{Context, Result};
use regex::Regex;

/// One name that a `use` declaration brings in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Import {
    /// The path as written, without the alias; the last segment is `*` for a glob.
    pub(super) path: Vec<String>,
    /// The name in this file.
    pub(super) name: String,
    /// Whether the declaration is `pub` in any way.
    pub(super) is_public: bool,
    /// The byte where the declaration begins.
    pub(super) at: usize,
}

/// A path that is written out where it is needed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct InlinePath {
    pub(super) path: Vec<String>,
    /// The byte where it begins.
    pub(super) at: usize,
}

/// Every `use` declaration.
pub(super) fn uses(code: &str) -> Result<Vec<Import>> {
    let pattern =
        Regex::new(r"\b(pub(?:\s*\([^)]*\))?\s+)?use\s+([^;]+);").context("the pattern of imports")?;
    let mut imports = Vec::new();
    for found in pattern.captures_iter(code) {
        let Some(whole) = found.get(0) else { continue };
        let mut leaves = Vec::new();
        leaves_of(&found[2], &[], &mut leaves);
        let is_public = found.get(1).is_some();
        imports.extend(leaves.into_iter().map(|(path, name)| Import {
            path,
            name,
            is_public,
            at: whole.start(),
        }));
    }
    Ok(imports)
}

/// The paths of a `use` tree with the name that each has here.
fn leaves_of(tree: &str, prefix: &[String], leaves: &mut Vec<(Vec<String>, String)>) {
    let tree = tree.trim();
    if let Some((head, group)) = tree.split_once('{') {
        let prefix = [prefix, &segments(head)].concat();
        let group = group.rsplit_once('}').map_or(group, |(inside, _)| inside);
        for part in parts(group) {
            leaves_of(part, &prefix, leaves);
        }
        return;
    }
    let (path, alias) = match tree.split_once(" as ") {
        Some((path, alias)) => (path, Some(alias.trim().to_owned())),
        None => (tree, None),
    };
    let mut path = [prefix, &segments(path)].concat();
    if path.len() > 1 && path.last().is_some_and(|last| last == "self") {
        path.pop();
    }
    if let Some(last) = path.last().cloned() {
        leaves.push((path, alias.unwrap_or(last)));
    }
}

fn segments(path: &str) -> Vec<String> {
    path.split("::").map(str::trim).filter(|part| !part.is_empty()).map(str::to_owned).collect()
}

/// The elements of a group; commas of inner groups do not count.
fn parts(group: &str) -> Vec<&str> {
    let (mut parts, mut depth, mut start) = (Vec::new(), 0_usize, 0);
    for (at, c) in group.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth = depth.saturating_sub(1),
            ',' if depth == 0 => {
                parts.push(&group[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&group[start..]);
    parts
}

/// Paths outside `use` declarations that begin with one of `roots`.
pub(super) fn inline_paths(code: &str, roots: &BTreeSet<String>) -> Result<Vec<InlinePath>> {
    let uses = Regex::new(r"\buse\s+[^;]+;").context("the pattern of imports")?;
    let code = uses.replace_all(code, |found: &regex::Captures<'_>| " ".repeat(found[0].len()));
    let paths = Regex::new(r"\b\w+(?:\s*::\s*\w+)+").context("the pattern of paths")?;
    let mut inline = Vec::new();
    for found in paths.find_iter(&code) {
        let before = code[..found.start()].trim_end();
        let path = segments(found.as_str());
        let is_root = path.first().is_some_and(|first| roots.contains(first));
        // `$crate::x`, `.method::<x>()` and the rest of a longer path begin elsewhere.
        if is_root && !before.ends_with(['$', '.']) && !before.ends_with("::") {
            inline.push(InlinePath { path, at: found.start() });
        }
    }
    Ok(inline)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(code: &str) -> Vec<String> {
        let line = |import: &Import| {
            let public = if import.is_public { "pub " } else { "" };
            format!("{public}{} = {}", import.name, import.path.join("::"))
        };
        uses(code).unwrap().iter().map(line).collect()
    }

    #[test]
    fn use_trees_are_taken_apart() {
        for (code, expected) in [
            ("use crate::a::B;", &["B = crate::a::B"][..]),
            (
                "pub(crate) use super::a::{self, B as C, d::{E, *}};",
                &[
                    "pub a = super::a",
                    "pub C = super::a::B",
                    "pub E = super::a::d::E",
                    "pub * = super::a::d::*",
                ],
            ),
            ("use {\n    a::B,\n    std::io,\n};", &["B = a::B", "io = std::io"]),
            ("use a::B as _;", &["_ = a::B"]),
            ("let fuse = 1; // no import", &[]),
        ] {
            assert_eq!(found(code), expected, "{code}");
        }
    }

    #[test]
    fn paths_in_code_begin_at_a_root() {
        let roots = ["crate", "super", "child"].map(str::to_owned).into();
        let code = "use crate::a::B;\nfn f() -> super::C { x::child::g(); child::h::<crate::D>(); $crate::m!() }\n\
                    pub(in crate::e) struct F;";
        let paths = inline_paths(code, &roots).unwrap();
        let paths: Vec<String> = paths.iter().map(|found| found.path.join("::")).collect();
        assert_eq!(paths, ["super::C", "child::h", "crate::D", "crate::e"]);
    }
}
