//! No import circle between files, and none between folders.
//!
//! A file may import from the modules that it lies in, which own what their parts share: such imports make no circle of files.
//! Between folders they count. `x.rs` and the files in `x/` are one folder.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Result;

use super::Violation;
use super::modules::Modules;
use super::tree::Tree;

type Path = Vec<String>;
/// What each module imports, with the line.
type Imports<'a> = BTreeMap<&'a Path, Vec<(Path, usize)>>;

/// An import inside a circle.
#[derive(Debug)]
struct Import {
    from: Path,
    to: Path,
    line: usize,
}

pub(super) fn are_untied(tree: &Tree) -> Result<Vec<Violation>> {
    let mut violations = Vec::new();
    for sources in crates(tree) {
        let modules = Modules::of(tree, &sources)?;
        for circle in circles(&modules)? {
            for import in circle {
                let Some(module) = modules.get(&import.from) else { continue };
                let remedy = format!(
                    "imports {}, which imports this module in turn: move what both need into a third module",
                    import.to.join("::")
                );
                violations.push(Violation::new(&module.file.path, import.line, "import circle", remedy));
            }
        }
    }
    Ok(violations)
}

/// The `src/` folders of the workspace.
fn crates(tree: &Tree) -> BTreeSet<String> {
    let roots = ["src/lib.rs", "src/main.rs"];
    let folder = |path: &str| roots.iter().find_map(|root| Some(format!("{}src/", path.strip_suffix(root)?)));
    tree.rust_files().filter_map(|file| folder(&file.path)).collect()
}

/// Circles of files within a folder, and of folders, each as its imports.
fn circles(modules: &Modules<'_>) -> Result<Vec<Vec<Import>>> {
    let folder = |path: &Path| modules.get(path).map(|module| &module.folder);
    let mut of_files = Imports::new();
    let mut of_folders = Imports::new();
    for (path, _) in modules.iter() {
        let edges: Vec<(Path, usize)> =
            modules.imports_of(path)?.into_iter().map(|edge| (edge.to, edge.line)).collect();
        of_files.insert(path, edges.iter().filter(|(to, _)| !path.starts_with(to)).cloned().collect());
        of_folders.insert(path, edges);
    }
    let crosses = |from: &Path, to: &Path| folder(from) != folder(to);
    let mut circles = circles_of(&of_folders, crosses);
    circles.extend(circles_of(&of_files, |from, to| !crosses(from, to)));
    Ok(circles)
}

/// The circles of a graph, each as those of its imports that count; without those that have none.
fn circles_of(imports: &Imports<'_>, counts: impl Fn(&Path, &Path) -> bool) -> Vec<Vec<Import>> {
    let reaches: BTreeMap<&Path, BTreeSet<&Path>> =
        imports.keys().map(|path| (*path, reached(path, imports))).collect();
    let reach = |from: &Path, to: &Path| reaches.get(from).is_some_and(|all| all.contains(to));
    let mut circles = Vec::new();
    let mut seen: BTreeSet<&Path> = BTreeSet::new();
    for path in imports.keys() {
        if seen.contains(path) || !reach(path, path) {
            continue;
        }
        let circle: Vec<&Path> =
            imports.keys().copied().filter(|other| reach(path, other) && reach(other, path)).collect();
        seen.extend(&circle);
        let counted: Vec<Import> = circle
            .iter()
            .flat_map(|from| imports[*from].iter().map(move |(to, line)| (*from, to, *line)))
            .filter(|(from, to, _)| circle.contains(to) && counts(from, to))
            .map(|(from, to, line)| Import { from: from.clone(), to: to.clone(), line })
            .collect();
        if !counted.is_empty() {
            circles.push(counted);
        }
    }
    circles
}

/// Every module that can be reached from `from` by one import or more.
fn reached<'a>(from: &Path, imports: &'a Imports<'_>) -> BTreeSet<&'a Path> {
    let mut reached: BTreeSet<&Path> = BTreeSet::new();
    let mut next: Vec<&Path> = imports.get(from).into_iter().flatten().map(|(to, _)| to).collect();
    while let Some(path) = next.pop() {
        if reached.insert(path) {
            next.extend(imports.get(path).into_iter().flatten().map(|(to, _)| to));
        }
    }
    reached
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::found;

    #[test]
    fn circles_of_folders_and_of_files_are_found_and_a_part_may_import_from_its_whole() {
        let files = [
            ("crates/c/src/lib.rs", "mod a;\nmod b;\nmod d;\n"),
            ("crates/c/src/a/mod.rs", "mod x;\nmod y;\npub use x::X;\n"),
            ("crates/c/src/a/x.rs", "use super::y::Y;\npub struct X(crate::b::B);\n"),
            ("crates/c/src/a/y.rs", "use super::X;\npub struct Y;\n"),
            ("crates/c/src/b/mod.rs", "//! b\nuse crate::d::D;\npub struct B;\n"),
            ("crates/c/src/d/mod.rs", "use crate::a::X;\npub struct D;\n"),
            ("crates/f/src/lib.rs", "mod whole;\n"),
            ("crates/f/src/whole/mod.rs", "mod part;\npub use part::Part;\npub struct Whole;\n"),
            ("crates/f/src/whole/part.rs", "use super::Whole;\npub struct Part;\n"),
            ("crates/e/src/lib.rs", "mod one;\nmod two;\n"),
            ("crates/e/src/one.rs", "use crate::two::Two;\npub struct One;\n"),
            ("crates/e/src/two.rs", "use crate::one::One;\npub struct Two;\n"),
        ];
        assert_eq!(
            found(are_untied, &files),
            [
                "crates/c/src/a/x.rs:1",
                "crates/c/src/a/x.rs:2",
                "crates/c/src/a/y.rs:1",
                "crates/c/src/b/mod.rs:2",
                "crates/c/src/d/mod.rs:1",
                "crates/e/src/one.rs:1",
                "crates/e/src/two.rs:1"
            ]
        );
    }

    #[test]
    fn an_import_for_tests_makes_no_circle() {
        let files = [
            ("crates/c/src/lib.rs", "mod a;\nmod b;\n"),
            ("crates/c/src/a/mod.rs", "use crate::b::B;\npub struct A;\n"),
            ("crates/c/src/b/mod.rs", "pub struct B;\n#[cfg(test)]\nmod tests {\n    use crate::a::A;\n}\n"),
        ];
        assert_eq!(found(are_untied, &files), [] as [&str; 0]);
    }
}
