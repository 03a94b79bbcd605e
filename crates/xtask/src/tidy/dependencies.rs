//! Dependencies between our crates point one way, and some outside crates are banned from some of ours.

use anyhow::{Context, Result};
use toml::{Table, Value};

use super::Violation;
use super::tree::Tree;

const RULE: &str = "dependency";

/// Our crates, and which of them each may depend on.
const ALLOWED: &[(&str, &[&str])] = &[
    ("izwi-types", &[]),
    ("izwi-kernels", &[]),
    ("izwi-audio", &["izwi-kernels"]),
    ("izwi-cuda", &[]),
    ("izwi-metal", &["izwi-kernels", "izwi-types"]),
    ("izwi-nn", &["izwi-cuda", "izwi-kernels", "izwi-metal", "izwi-types"]),
    ("izwi-models", &["izwi-audio", "izwi-kernels", "izwi-nn", "izwi-types"]),
    ("izwi-hub", &["izwi-types"]),
    ("izwi-core", &["izwi-audio", "izwi-hub", "izwi-kernels", "izwi-models", "izwi-nn", "izwi-types"]),
    ("izwi-remote", &["izwi-audio", "izwi-core", "izwi-types"]),
    ("izwi-reading", &["izwi-audio", "izwi-core", "izwi-hub", "izwi-types"]),
    ("izwi-server", &["izwi-audio", "izwi-core", "izwi-hub", "izwi-reading", "izwi-types"]),
    ("izwi-dialects", &["izwi-audio", "izwi-core", "izwi-server", "izwi-types"]),
    (
        "izwi-cli",
        &[
            "izwi-audio",
            "izwi-core",
            "izwi-dialects",
            "izwi-hub",
            "izwi-reading",
            "izwi-remote",
            "izwi-server",
            "izwi-types",
        ],
    ),
    ("xtask", &[]),
];

/// Crates of others that a crate may not depend on, and what to do instead. `tokio` stands for `tokio-util` and the like
/// too.
const BANNED: &[(&str, &[&str], &str)] = &[
    (
        "izwi-types",
        &["candle", "tokio", "serde_json"],
        "the shared types know no tensor, no runtime and no wire format",
    ),
    (
        "izwi-audio",
        &["candle", "tokio"],
        "audio knows no tensor and no runtime: do it in izwi-models or izwi-core",
    ),
    ("izwi-kernels", &["candle", "tokio"], "kernels work on slices: do it in izwi-nn"),
    ("izwi-metal", &["candle-nn", "tokio"], "kernels know no layer and no runtime: do it in izwi-nn"),
    (
        "izwi-nn",
        &["candle-metal-kernels", "objc2", "tokio", "axum"],
        "layers know no runtime, no server and no bindings of Metal: do it in izwi-core, izwi-server or izwi-metal",
    ),
    (
        "izwi-models",
        &["tokio", "axum"],
        "models know no runtime and no server: do it in izwi-core or izwi-server",
    ),
    ("izwi-hub", &["candle", "tokio", "axum"], "the hub knows files alone: no tensor and no runtime"),
    (
        "izwi-core",
        &["candle", "axum", "hyper", "serde", "serde_json"],
        "the engine reaches tensors through izwi-models, and knows no server and no wire format",
    ),
    ("izwi-remote", &["candle", "axum"], "a client of other servers knows no tensor and no routes"),
    ("izwi-reading", &["candle", "axum"], "books are read and bound without tensors and routes"),
    ("izwi-server", &["candle"], "the server reaches models through izwi-core"),
    ("izwi-dialects", &["candle"], "dialects reach models through izwi-core"),
    ("izwi-cli", &["candle"], "the binary reaches models through izwi-core"),
];

pub(super) fn point_one_way(tree: &Tree) -> Result<Vec<Violation>> {
    let root: Table =
        tree.text("Cargo.toml").unwrap_or_default().parse().context("Cargo.toml does not parse")?;
    let shared = root.get("workspace").and_then(|workspace| workspace.get("dependencies"));
    let mut violations = Vec::new();
    for file in &tree.files {
        let folder = file.path.strip_prefix("crates/").and_then(|path| path.strip_suffix("/Cargo.toml"));
        let Some(package) = folder.filter(|folder| !folder.contains('/')) else { continue };
        let manifest: Table = file.text.parse().with_context(|| format!("{} does not parse", file.path))?;
        if allowed(package).is_none() {
            let remedy = format!(
                "'{package}' has no place yet: add it to ALLOWED in crates/xtask/src/tidy/dependencies.rs"
            );
            violations.push(Violation::new(&file.path, 1, RULE, remedy));
        }
        for (key, dependency) in dependencies(&manifest, shared) {
            if let Some(remedy) = fault(package, &dependency) {
                violations.push(Violation::new(&file.path, line_of_key(&file.text, &key), RULE, remedy));
            }
        }
    }
    Ok(violations)
}

/// Why `package` may not depend on `dependency`, if so.
fn fault(package: &str, dependency: &str) -> Option<String> {
    let banned = BANNED.iter().filter(|(name, ..)| *name == package);
    let named = |prefix: &&str| dependency == *prefix || dependency.starts_with(&format!("{prefix}-"));
    if let Some((.., remedy)) = banned.into_iter().find(|(_, prefixes, _)| prefixes.iter().any(named)) {
        return Some(format!("{package} may not depend on {dependency}: {remedy}"));
    }
    let is_ours = allowed(dependency).is_some() && package != dependency;
    let allowed = allowed(package).unwrap_or_default();
    (is_ours && !allowed.contains(&dependency)).then(|| {
        let list = if allowed.is_empty() { "none of our crates".to_owned() } else { allowed.join(", ") };
        format!("{package} may not depend on {dependency}: it may depend on {list}")
    })
}

/// Which of our crates `package` may depend on; `None` if it is not one of them.
fn allowed(package: &str) -> Option<&'static [&'static str]> {
    ALLOWED.iter().find(|(name, _)| *name == package).map(|(_, allowed)| *allowed)
}

/// Every dependency of a manifest, of any kind and for any target: (its key there, the package's name).
fn dependencies(manifest: &Table, shared: Option<&Value>) -> Vec<(String, String)> {
    let mut tables = vec![manifest];
    if let Some(Value::Table(targets)) = manifest.get("target") {
        tables.extend(targets.values().filter_map(Value::as_table));
    }
    let kinds = ["dependencies", "dev-dependencies", "build-dependencies"];
    let lists = tables.into_iter().flat_map(|table| kinds.map(|kind| table.get(kind)));
    let entries = lists.flatten().filter_map(Value::as_table).flatten();
    let renamed = |entry: &Value| Some(entry.get("package")?.as_str()?.to_owned());
    let package = |key: &String, entry: &Value| {
        renamed(entry).or_else(|| renamed(shared?.get(key)?)).unwrap_or_else(|| key.clone())
    };
    entries.map(|(key, entry)| (key.clone(), package(key, entry))).collect()
}

/// The line where a manifest has this key, from 1.
fn line_of_key(text: &str, key: &str) -> usize {
    let opens = |line: &str| {
        let line = line.trim_start();
        let entry = line.strip_prefix(key).is_some_and(|rest| rest.starts_with(['.', ' ', '=']));
        entry || (line.starts_with('[') && line.contains(&format!("dependencies.{key}]")))
    };
    text.lines().position(opens).map_or(1, |index| index + 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::found;

    #[track_caller]
    fn check(package: &str, manifest: &str, expected: &[usize]) {
        let path = format!("crates/{package}/Cargo.toml");
        let root = "[workspace.dependencies]\ntensors = { package = \"candle-core\", version = \"1\" }\n";
        let expected: Vec<String> = expected.iter().map(|line| format!("{path}:{line}")).collect();
        assert_eq!(found(point_one_way, &[("Cargo.toml", root), (&path, manifest)]), expected, "{manifest}");
    }

    #[test]
    fn no_crate_can_reach_itself() {
        let mut reached: Vec<&str> = Vec::new();
        // In this order each crate depends only on crates before it.
        for (package, allowed) in ALLOWED {
            assert!(allowed.iter().all(|dependency| reached.contains(dependency)), "{package}");
            reached.push(package);
        }
    }

    #[test]
    fn our_crates_depend_on_what_the_table_allows() {
        check("izwi-cli", "[dependencies]\nizwi-server.workspace = true\nizwi-audio = \"1\"\n", &[]);
        check("izwi-models", "[dependencies]\nserde = \"1\"\nizwi-core.workspace = true\n", &[3]);
        check("izwi-audio", "[dev-dependencies]\nizwi-models = { workspace = true }\n", &[2]);
        check(
            "izwi-core",
            "[dev-dependencies]\nizwi-core = { path = \".\", features = [\"simulated\"] }\n",
            &[],
        );
        check("izwi-core", "[target.'cfg(unix)'.dependencies.izwi-server]\nworkspace = true\n", &[1]);
        check("xtask", "[dependencies]\nanyhow = \"1\"\nizwi-audio.workspace = true\n", &[3]);
        check("izwi-new", "[dependencies]\n", &[1]);
    }

    #[test]
    fn outside_crates_stay_where_they_belong() {
        check("izwi-server", "[dependencies]\ncandle-core = \"1\"\nizwi-models.workspace = true\n", &[2, 3]);
        check(
            "izwi-nn",
            "[dependencies]\nizwi-kernels.workspace = true\nizwi-models.workspace = true\n",
            &[3],
        );
        check("izwi-types", "[dependencies]\nserde = \"1\"\nserde_json = \"1\"\n", &[3]);
        check("izwi-server", "[dependencies]\ntensors.workspace = true\n", &[2]);
        check("izwi-cli", "[dependencies]\nx = { package = \"candle-nn\", version = \"1\" }\n", &[2]);
        check(
            "izwi-models",
            "[build-dependencies]\ntokio-util = \"1\"\naxum = \"1\"\ncandle-nn = \"1\"\n",
            &[2, 3],
        );
        check("izwi-audio", "[dependencies]\ntokio = \"1\"\ncandle-core = \"1\"\n", &[2, 3]);
    }

    #[test]
    fn tests_and_benches_are_free() {
        let manifest = "[dependencies]\nizwi-cli = \"1\"\nizwi-models = \"1\"\n";
        assert_eq!(
            found(point_one_way, &[("tests/Cargo.toml", manifest), ("benches/Cargo.toml", manifest)]).len(),
            0
        );
    }
}
