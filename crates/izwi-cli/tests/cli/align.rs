//! `izwi align`: formats and refusals.

use std::fs;

use super::{Izwi, asr_model, refused};

#[test]
fn a_text_is_aligned_with_its_recording() {
    const TEXT: &str = "The quick brown fox jumps over the lazy dog.";
    let izwi = Izwi::with_models();
    let model = asr_model(&izwi);
    assert!(izwi.run(&["say", TEXT, "-o", "a.wav", "--seed", "1"]).status.success());
    let align = |more: &[&str]| {
        let mut command = izwi.command(&["align", "a.wav", "--no-pull", "--model", &model]);
        command.args(more).output().unwrap()
    };
    let output = align(&["--text", TEXT]);
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&json["segments"][0]["text"], json["words"].as_array().unwrap().len()), (&TEXT.into(), 9));
    // With the mark that editors of Windows write.
    fs::write(izwi.path("a.txt"), format!("\u{feff}{TEXT}")).unwrap();
    let output = align(&["a.txt", "-f", "textgrid", "-o", "a.TextGrid"]);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && stderr.contains("9 words"), "{stderr}");
    let grid = fs::read_to_string(izwi.path("a.TextGrid")).unwrap();
    assert!(grid.contains("text = \"The\"") && grid.contains("text = \"quick\""), "{grid}");
    refused(&align(&["--text", "— … —"]), 1, &["no letters"]);
}

#[test]
fn what_cannot_be_aligned_is_refused() {
    let izwi = Izwi::alone();
    refused(&izwi.run(&["align", "a.wav"]), 2, &["FILE"]);
    refused(&izwi.run(&["align", "a.wav", "a.txt", "--text", "hello"]), 2, &["--text"]);
    refused(&izwi.run(&["align", "a.wav", "--text", " "]), 2, &["the text is empty"]);
    refused(&izwi.run(&["align", "a.wav", "--text", "hello"]), 1, &["cannot read a.wav"]);
}
