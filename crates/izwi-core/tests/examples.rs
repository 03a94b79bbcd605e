//! The examples run, on the real default model.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::path::{Path, PathBuf};
use std::process::Command;

fn home() -> PathBuf {
    let default = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/izwi-home");
    std::env::var_os("IZWI_HOME").map_or(default, PathBuf::from)
}

fn run(example: &str) -> String {
    let home = home();
    assert!(home.join("models").is_dir(), "no models under {}; run `cargo xtask pull`", home.display());
    // Examples lie next to the folder of the test's own executable.
    let folder = std::env::current_exe().unwrap().parent().unwrap().parent().unwrap().join("examples");
    assert!(
        folder.join(example).is_file(),
        "examples are not built; run `cargo build -p izwi-core --examples`"
    );
    let work = tempfile::tempdir().unwrap();
    let output =
        Command::new(folder.join(example)).current_dir(work.path()).env("IZWI_HOME", &home).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{example}: {text}\n{}", String::from_utf8_lossy(&output.stderr));
    if example == "basic" {
        let reader = hound::WavReader::open(work.path().join("output.wav")).unwrap();
        assert!(reader.duration() > 12_000, "more than half a second was spoken");
    }
    text
}

#[test]
fn basic_writes_a_wav() {
    assert!(run("basic").contains("RTF"));
}

#[test]
fn batch_speaks_all_three() {
    assert_eq!(run("batch").lines().count(), 3);
}

#[test]
fn priority_lets_the_urgent_one_overtake() {
    assert!(run("priority").contains("urgent message came first"));
}

#[test]
fn metrics_monitoring_sums_up() {
    assert!(run("metrics_monitoring").contains("12 requests in"));
}

#[test]
fn streaming_prints_its_chunks() {
    let text = run("streaming");
    assert!(text.contains("chunk 0: 4800 samples from 0") && text.contains("first audio after"), "{text}");
}
