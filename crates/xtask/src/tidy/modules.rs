//! The modules of one crate and which of them each imports from, through re-exports. Code of tests does not count.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Result;

use super::imports::{self, Import};
use super::tree::{File, Tree, line_of};

/// A module that has a file.
#[derive(Debug)]
pub(super) struct Module<'a> {
    pub(super) file: &'a File,
    /// The folder of modules it belongs to, as a path of names: `x.rs` and what lies in `x/` are one folder.
    pub(super) folder: Vec<String>,
    imports: Vec<Import>,
}

/// The modules of a crate by their paths; tests are not among them.
#[derive(Debug)]
pub(super) struct Modules<'a> {
    by_path: BTreeMap<Vec<String>, Module<'a>>,
}

/// One module imports from another.
#[derive(Debug)]
pub(super) struct Edge {
    pub(super) to: Vec<String>,
    pub(super) line: usize,
}

impl<'a> Modules<'a> {
    /// Of the files below `sources`, a path that ends with `src/`.
    pub(super) fn of(tree: &'a Tree, sources: &str) -> Result<Self> {
        let mut by_path = BTreeMap::new();
        for file in tree.rust_files() {
            let Some(inside) = file.path.strip_prefix(sources) else { continue };
            if file.product.is_empty() {
                continue;
            }
            let imports = imports::uses(&file.product)?;
            by_path.insert(path_of(inside), Module { file, folder: Vec::new(), imports });
        }
        let paths: Vec<Vec<String>> = by_path.keys().cloned().collect();
        for (path, module) in &mut by_path {
            let has_children = paths.iter().any(|other| other.len() > path.len() && other.starts_with(path));
            let is_folder = has_children || module.file.name() == "mod.rs";
            let depth = if is_folder { path.len() } else { path.len().saturating_sub(1) };
            module.folder = path[..depth].to_vec();
        }
        Ok(Self { by_path })
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&Vec<String>, &Module<'a>)> {
        self.by_path.iter()
    }

    pub(super) fn get(&self, path: &[String]) -> Option<&Module<'a>> {
        self.by_path.get(path)
    }

    /// What the module at `from` imports from other modules of the crate. A re-export that the file does not use itself
    /// is no import: an import through it leads to the module that defines the item.
    pub(super) fn imports_of(&self, from: &[String]) -> Result<Vec<Edge>> {
        let Some(module) = self.by_path.get(from) else { return Ok(Vec::new()) };
        let mut roots: BTreeSet<String> = ["crate", "super", "self"].map(str::to_owned).into();
        roots.extend(self.children(from));
        // A name of a module is followed where it is used.
        let is_module =
            |import: &Import| self.resolve(from, &import.path, 0).is_some_and(|(_, rest)| rest == 0);
        roots.extend(
            module.imports.iter().filter(|import| is_module(import)).map(|import| import.name.clone()),
        );
        let inline = imports::inline_paths(&module.file.product, &roots)?;
        let mut edges = Vec::new();
        let mut add = |path: &[String], at: usize| {
            if let Some((to, rest)) = self.resolve(from, path, 0)
                && rest > 0
                && to != from
            {
                edges.push(Edge { to, line: line_of(&module.file.product, at) });
            }
        };
        for import in &module.imports {
            if !import.is_public || is_used(&module.file.product, &import.name) {
                add(&import.path, import.at);
            }
        }
        for found in inline {
            add(&found.path, found.at);
        }
        Ok(edges)
    }

    fn children(&self, path: &[String]) -> Vec<String> {
        let below =
            self.by_path.keys().filter(|other| other.len() == path.len() + 1 && other.starts_with(path));
        below.filter_map(|other| other.last().cloned()).collect()
    }

    /// The module in which a path ends, seen from `from`, and how many names of the path lie inside that module: 0 where
    /// the path is the module itself. `None` for paths of other crates.
    fn resolve(&self, from: &[String], path: &[String], depth: usize) -> Option<(Vec<String>, usize)> {
        let first = path.first()?;
        let (mut at, mut rest) = match first.as_str() {
            "crate" => (Vec::new(), &path[1..]),
            "self" => (from.to_vec(), &path[1..]),
            "super" => (from.split_last()?.1.to_vec(), &path[1..]),
            name if self.by_path.contains_key(&joined(from, &[name.to_owned()])) => (from.to_vec(), path),
            name => {
                let import = self.by_path.get(from)?.imports.iter().find(|import| import.name == name)?;
                let is_loop = depth > 8 || import.path == path;
                let path = joined(&import.path, &path[1..]);
                return if is_loop { None } else { self.resolve(from, &path, depth + 1) };
            }
        };
        while let Some((name, inside)) = rest.split_first() {
            if name == "super" {
                at.pop();
            } else if self.by_path.contains_key(&joined(&at, std::slice::from_ref(name))) {
                at.push(name.clone());
            } else {
                break;
            }
            rest = inside;
        }
        let Some((name, inside)) = rest.split_first() else { return Some((at, 0)) };
        // Follow a re-export, or a private import of a parent, to the module that defines the item.
        let module = self.by_path.get(&at)?;
        if depth <= 8 && name != "*" && !defines(&module.file.product, name) {
            let named = module.imports.iter().filter(|import| import.name == *name);
            let globs = module.imports.iter().filter(|import| import.name == "*");
            for import in named.chain(globs) {
                let mut path = import.path.clone();
                if import.name == "*" {
                    path.pop();
                    path.push(name.clone());
                }
                path.extend_from_slice(inside);
                if let Some((to, rest)) = self.resolve(&at, &path, depth + 1)
                    && (rest == 0
                        || import.name != "*"
                        || defines(&self.by_path.get(&to)?.file.product, name))
                {
                    return Some((to, rest));
                }
            }
        }
        Some((at, rest.len()))
    }
}

/// The path of names of a file below `src/`.
fn path_of(inside: &str) -> Vec<String> {
    let path = inside.strip_suffix(".rs").unwrap_or(inside);
    let mut names: Vec<String> = path.split('/').map(str::to_owned).collect();
    let last = names.last().map(String::as_str);
    if last == Some("mod") || (names.len() == 1 && matches!(last, Some("lib" | "main"))) {
        names.pop();
    }
    names
}

fn joined(path: &[String], more: &[String]) -> Vec<String> {
    [path, more].concat()
}

/// Whether the code names `name` more often than its own import does.
fn is_used(code: &str, name: &str) -> bool {
    words(code).filter(|word| *word == name).count() > 1
}

/// Whether the code has an item of this name.
fn defines(code: &str, name: &str) -> bool {
    let kinds = ["fn", "struct", "enum", "union", "trait", "type", "const", "static", "mod", "macro_rules"];
    let pairs = words(code).zip(words(code).skip(1));
    pairs.into_iter().any(|(kind, item)| item == name && kinds.contains(&kind))
}

fn words(code: &str) -> impl Iterator<Item = &str> {
    code.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILES: [(&str, &str); 7] = [
        ("c/src/lib.rs", "pub mod a;\nmod b;\npub use b::Thing;\npub use a::inner::*;\n"),
        (
            "c/src/a/mod.rs",
            "pub mod inner;\nmod leaf;\npub use leaf::Leaf;\nuse crate::b;\nfn f() { b::go(); }\n",
        ),
        ("c/src/a/inner.rs", "use crate::Thing;\nuse super::Leaf;\npub struct Inside;\n"),
        ("c/src/a/leaf.rs", "pub struct Leaf;\n#[cfg(test)]\nmod tests { use crate::b::Thing; }\n"),
        (
            "c/src/b.rs",
            "//! x\n#[cfg(test)]\nmod golden;\nmod part;\npub struct Thing(crate::Inside);\npub fn go() {}\n",
        ),
        ("c/src/b/part.rs", "use super::Thing;\nuse std::io::Read;\n"),
        ("c/src/b/golden.rs", "use crate::a::Leaf;\n"),
    ];

    #[test]
    fn imports_lead_to_where_an_item_stands() {
        let tree = Tree::of(&FILES);
        let modules = Modules::of(&tree, "c/src/").unwrap();
        let mut found = Vec::new();
        for (path, _) in modules.iter() {
            for edge in modules.imports_of(path).unwrap() {
                found.push(format!("{} -> {}:{}", path.join("::"), edge.to.join("::"), edge.line));
            }
        }
        assert_eq!(
            found,
            ["a -> b:5", "a::inner -> b:1", "a::inner -> a::leaf:2", "b -> a::inner:5", "b::part -> b:1"]
        );
    }

    #[test]
    fn a_file_and_the_folder_of_its_name_are_one() {
        let tree = Tree::of(&FILES);
        let modules = Modules::of(&tree, "c/src/").unwrap();
        let folders: Vec<String> = modules.iter().map(|(_, module)| module.folder.join("::")).collect();
        assert_eq!(folders, ["", "a", "a", "a", "b", "b"]);
    }
}
