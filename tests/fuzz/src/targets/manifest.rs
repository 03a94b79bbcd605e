//! Manifests of models that a user adds.

use izwi_hub::Manifest;

use crate::Target;
use crate::corpus::{file, repository};

pub(super) const TARGET: Target = Target { name: "manifest", run, seeds, max_bytes: 8 << 10 };

fn seeds() -> Vec<Vec<u8>> {
    let listed = std::fs::read_dir(repository().join("models")).unwrap().flatten();
    let names = listed.map(|entry| entry.file_name().into_string().unwrap());
    let mut manifests: Vec<String> = names.filter(|name| name.ends_with(".toml")).collect();
    manifests.sort();
    manifests
        .iter()
        .map(|name| file(&format!("models/{name}")))
        .filter(|text| text.len() <= 8 << 10)
        .collect()
}

fn run(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    // The file has to be named after the model.
    let name = text.lines().find_map(|line| line.strip_prefix("name = \"")?.strip_suffix('"'));
    let file = format!("{}.toml", name.unwrap_or("hibari"));
    if let Ok(manifest) = Manifest::parse(&file, text) {
        assert!(!manifest.sources.is_empty() && (manifest.component || !manifest.tasks.is_empty()));
        let _ = manifest.download_bytes();
    }
}
