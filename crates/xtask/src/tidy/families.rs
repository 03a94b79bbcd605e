//! A model family's name appears in its own folder and in the registry, nowhere else in Rust code: adding a family
//! is one folder, one registry line and one manifest.

use std::collections::BTreeSet;

use anyhow::{Context, Result};
use regex::Regex;

use super::Violation;
use super::tree::{Tree, is_in, line_of};

const HOME: &str = "crates/izwi-models/src/families/";

/// Rust files that may name a family, and why. Manifests, scripts and pages are not checked.
const EXCEPT: &[(&str, &str)] = &[
    ("crates/izwi-models/src/families/mod.rs", "the registry"),
    ("crates/izwi-models/src/families/sortformer/golden.rs", "names the golden set that it shares"),
    ("crates/izwi-core/src/engine/config.rs", "presets and the default model's id"),
    ("crates/izwi-server/src/registry/aliases.rs", "names of models of other servers"),
    ("crates/xtask/", "pulls the test model, and this rule's own tests"),
    ("crates/izwi-cli/tests/cli/book/", "runs the commands of pages, which name models"),
    ("crates/izwi-cli/tests/cli/replicas/", "serves tiny checkpoints of tests/golden"),
    ("crates/izwi-cli/tests/cli/voices.rs", "lists the voices of models whose folders it makes"),
    ("crates/izwi-cli/src/voice_list.rs", "its tests list the voices of models whose folders they make"),
    ("crates/izwi-cli/tests/cli/diarize.rs", "runs a tiny checkpoint of tests/golden"),
    ("crates/izwi-cli/tests/cli/plan.rs", "plans for a tiny checkpoint of tests/golden"),
    ("crates/izwi-core/examples/", "the engine's presets are for two families"),
    ("crates/izwi-core/tests/examples.rs", "runs them on a tiny checkpoint of tests/golden"),
    ("crates/izwi-core/tests/engine_devices.rs", "runs a tiny checkpoint of tests/golden"),
    ("crates/izwi-core/tests/engine_diarization.rs", "runs a tiny checkpoint of tests/golden"),
    ("crates/izwi-core/tests/engine_failures.rs", "runs a small network with random weights"),
    ("tests/", "end-to-end tests use a real model"),
    ("benches/", "benches use a real model"),
];

/// Names of hosted models that begin like a family, each with the folder that may name it.
const HOSTED: &[(&str, &str)] =
    &[("crates/izwi-server/src/", "whisper-1\""), ("crates/izwi-dialects/src/", "whisper-")];

pub(super) fn names_stay_home(tree: &Tree) -> Result<Vec<Violation>> {
    let mut violations = Vec::new();
    for family in families(tree) {
        let home = format!("{HOME}{family}/");
        let pattern = spelled(&family)?;
        for file in tree.rust_files() {
            if file.path.starts_with(&home) || is_in(&file.path, EXCEPT) {
                continue;
            }
            let is_hosted = |at: usize| {
                let here = |(path, name): &(&str, &str)| {
                    file.path.starts_with(path) && file.text[at..].starts_with(name)
                };
                HOSTED.iter().any(here)
            };
            for hit in pattern.find_iter(&file.text).filter(|hit| !is_hosted(hit.start())) {
                let line = line_of(&file.text, hit.start());
                let remedy =
                    format!("'{family}' is named outside {home}: ask the registry, or move this there");
                violations.push(Violation::new(&file.path, line, "family name", remedy));
            }
        }
    }
    Ok(violations)
}

/// The names of the folders in families/.
fn families(tree: &Tree) -> BTreeSet<String> {
    let inside = tree.files.iter().filter_map(|file| file.path.strip_prefix(HOME));
    inside.filter_map(|path| path.split_once('/')).map(|(family, _)| family.to_owned()).collect()
}

/// Matches the name as words in any case (`a_b`, `A-B`, `load_a_b`) and inside a camel-case name (`ABModel`).
fn spelled(family: &str) -> Result<Regex> {
    let parts: Vec<String> = family.split(['_', '-']).map(regex::escape).collect();
    let words = parts.join("[_\\- ]?");
    let camel: String = parts.iter().map(|part| capitalised(part)).collect();
    Regex::new(&format!(r"(?:\b|_)(?i:{words})(?:\b|_)|{camel}(?:[A-Z0-9_]|\b)"))
        .with_context(|| format!("the pattern for family '{family}'"))
}

fn capitalised(part: &str) -> String {
    let mut chars = part.chars();
    chars.next().map(|first| first.to_uppercase().chain(chars).collect()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::found;

    #[test]
    fn a_family_is_named_at_home_and_in_the_registry_only() {
        let text =
            "//! x\n/// Like Lark-TTS.\nlet a = \"lark_tts\";\nstruct LarkTtsModel;\nfn load_lark_tts() {}\n";
        let stranger = "crates/izwi-server/src/routes/speech.rs";
        let files = [
            ("crates/izwi-models/src/families/lark_tts/mod.rs", text),
            ("crates/izwi-models/src/families/mod.rs", text),
            ("crates/izwi-core/src/engine/config.rs", text),
            ("tests/tests/speech.rs", text),
            ("models/lark.toml", text),
            (stranger, text),
        ];
        assert_eq!(found(names_stay_home, &files), [2, 3, 4, 5].map(|line| format!("{stranger}:{line}")));
    }

    #[test]
    fn the_server_names_hosted_models_that_sound_like_a_family() {
        let text = "//! x\nconst A: &str = \"whisper-1\";\nconst B: &str = \"whisper-10\";\n";
        let listed = "crates/izwi-server/src/registry/mod.rs";
        let files = [
            ("crates/izwi-models/src/families/whisper/mod.rs", text),
            (listed, text),
            ("crates/izwi-core/src/lib.rs", text),
        ];
        let elsewhere = [2, 3].map(|line| format!("crates/izwi-core/src/lib.rs:{line}"));
        assert_eq!(
            found(names_stay_home, &files),
            [elsewhere.to_vec(), vec![format!("{listed}:3")]].concat()
        );
    }

    #[test]
    fn one_family_does_not_name_another_and_longer_words_are_free() {
        let files = [
            ("crates/izwi-models/src/families/lark/mod.rs", "//! Unlike wren.\n"),
            ("crates/izwi-models/src/families/wren/mod.rs", "//! skylark, larks, Larkspur\n"),
        ];
        assert_eq!(found(names_stay_home, &files), ["crates/izwi-models/src/families/lark/mod.rs:1"]);
    }
}
