//! Parity with the reference: data made by `scripts/golden/whisper.py`, weights pulled by `cargo xtask pull`.

use std::path::PathBuf;

fn workspace() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// A checkpoint folder under `$IZWI_HOME`.
pub(super) fn checkpoint_folder(name: &str) -> PathBuf {
    let home =
        std::env::var_os("IZWI_HOME").map_or_else(|| workspace().join("target/izwi-home"), PathBuf::from);
    let folder = home.join("models").join(name);
    let complete = folder.join("model.safetensors").exists() && folder.join("tokenizer.json").exists();
    assert!(complete, "{} holds no checkpoint: run `cargo xtask pull`", folder.display());
    folder
}

/// Mono samples at 16 kHz of a clip of real speech.
pub(super) fn clip(name: &str) -> Vec<f32> {
    let path = workspace().join("assets/speech").join(format!("{name}.wav"));
    let bytes = std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let data = bytes.windows(4).position(|tag| tag == b"data").unwrap();
    let samples = bytes[data + 8..].as_chunks().0.iter();
    samples.map(|bytes| f32::from(i16::from_le_bytes(*bytes)) / 32768.0).collect()
}

/// The clips, and what is said in each.
pub(super) fn clips() -> Vec<(Vec<f32>, String)> {
    let path = workspace().join("assets/speech/transcription.txt");
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let said = |line: &str| {
        let (said, name) = line.trim_end_matches(')').rsplit_once(" (").unwrap();
        let said = said.trim_start_matches("<s>").trim_end_matches("</s>").trim();
        (clip(name), said.to_owned())
    };
    text.lines().map(said).collect()
}
