//! The examples run: those of the default model with it, those of LFM2-Audio on its tiny checkpoint.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::path::{Path, PathBuf};
use std::process::Command;

use izwi_hub::Store;
use safetensors::SafeTensors;
use tempfile::TempDir;

const LFM2: &str = "lfm2-audio-1.5b";

/// The repository's model store.
fn pulled() -> PathBuf {
    let default = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/izwi-home");
    let home = std::env::var_os("IZWI_HOME").map_or(default, PathBuf::from);
    assert!(home.join("models").is_dir(), "no models under {}; run `cargo xtask pull`", home.display());
    home
}

/// A model store in `home` with a tiny checkpoint of random weights in the place of LFM2-Audio.
fn install_tiny_lfm2(home: &Path) {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/lfm2_audio");
    let folder = home.join("models").join(LFM2);
    std::fs::create_dir_all(&folder).unwrap();
    let mut files = Vec::new();
    for file in ["config.json", "tokenizer.json", "tokenizer-e351c8d8-checkpoint125.safetensors"] {
        std::fs::copy(golden.join(file), folder.join(file)).unwrap();
        files.push((file, ""));
    }
    let shards = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
        .map(|shard| std::fs::read(golden.join(shard)).unwrap());
    let tensors = shards.iter().flat_map(|shard| SafeTensors::deserialize(shard).unwrap().tensors());
    safetensors::serialize_to_file(tensors, None, &folder.join("model.safetensors")).unwrap();
    let manifest = include_str!("../../../models/lfm2-audio-1.5b.toml");
    let sha256 = manifest.lines().find_map(|line| line.strip_prefix("sha256 = ")).unwrap();
    files.push(("model.safetensors", sha256.trim_matches('"')));
    let files = files.iter().map(|(path, sha256)| {
        let size = folder.join(path).metadata().unwrap().len();
        format!(r#"{{"path": "{path}", "sha256": "", "size": {size}, "fetched_sha256": "{sha256}", "convert": null}}"#)
    });
    let files = files.collect::<Vec<_>>().join(", ");
    let store = Store::open(Some(home.to_path_buf())).unwrap();
    let source = store.manifest(LFM2).unwrap().sources[0].id();
    let record = format!(
        r#"{{"format": 1, "model": "{LFM2}", "licence": "", "licence_url": null, "source": "{source}", "files": [{files}]}}"#
    );
    std::fs::write(folder.join(".izwi.json"), record).unwrap();
    store.installed(LFM2).unwrap();
}

/// What an example prints that runs in `work` with the models in `home`.
fn run(example: &str, work: &Path, home: &Path) -> String {
    // Examples lie next to the folder of the test's own executable.
    let folder = std::env::current_exe().unwrap().parent().unwrap().parent().unwrap().join("examples");
    assert!(
        folder.join(example).is_file(),
        "examples are not built; run `cargo build -p izwi-core --examples`"
    );
    let output =
        Command::new(folder.join(example)).current_dir(work).env("IZWI_HOME", home).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{example}: {text}\n{}", String::from_utf8_lossy(&output.stderr));
    text
}

/// What an example of LFM2-Audio prints, and the folder that it ran in.
fn run_tiny(example: &str) -> (String, TempDir) {
    let work = tempfile::tempdir().unwrap();
    install_tiny_lfm2(work.path());
    (run(example, work.path(), work.path()), work)
}

#[test]
fn basic_writes_a_wav() {
    let (text, work) = run_tiny("basic");
    assert!(text.contains("RTF"), "{text}");
    let wav = hound::WavReader::open(work.path().join("output.wav")).unwrap();
    assert!(wav.duration() > 0 && wav.spec().sample_rate == 24_000);
}

#[test]
fn batch_speaks_all_three() {
    let (text, _work) = run_tiny("batch");
    assert!(text.contains("\n3 requests, ") && !text.contains(" 0.00 s of audio"), "{text}");
}

#[test]
fn metrics_monitoring_sums_up() {
    let (text, _work) = run_tiny("metrics_monitoring");
    assert!(text.contains("TTS Benchmark: 3 requests in") && text.contains("p99"), "{text}");
}

#[test]
fn tasks_speaks_transcribes_and_answers() {
    let (text, _work) = run_tiny("tasks");
    for line in ["Generated ", "Transcription: ", "Response text: ", "Response audio: "] {
        assert!(text.contains(line), "{line}: {text}");
    }
}

#[test]
fn priority_lets_the_urgent_one_overtake() {
    let work = tempfile::tempdir().unwrap();
    assert!(run("priority", work.path(), &pulled()).contains("urgent message came first"));
}

#[test]
fn streaming_prints_its_chunks() {
    let work = tempfile::tempdir().unwrap();
    let text = run("streaming", work.path(), &pulled());
    let expected = ["chunk 0: 4800 samples", "First audio after", "Final chunk received"];
    assert!(expected.iter().all(|line| text.contains(line)), "{text}");
}
