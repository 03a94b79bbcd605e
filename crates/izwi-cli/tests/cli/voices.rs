//! Voices of installed models, and samples of them.

use std::fs;

use serde_json::{Value, json};

use crate::{Izwi, pack, refused};

/// Folders of models of which only the names of the voices are read.
fn install(izwi: &Izwi) {
    fs::create_dir_all(izwi.path("models/hibari")).unwrap();
    fs::create_dir_all(izwi.path("models/kokoro-82m/voices")).unwrap();
    for name in ["bm_george", "af_heart", "ef_dora"] {
        fs::write(izwi.path("models/kokoro-82m/voices").join(format!("{name}.bin")), []).unwrap();
    }
}

#[test]
fn voices_of_every_installed_model_are_listed_without_loading_them() {
    let izwi = Izwi::alone();
    install(&izwi);
    fs::create_dir_all(izwi.path("home/voices")).unwrap();
    fs::write(izwi.path("home/voices/anna.safetensors"), pack()).unwrap();
    let voices = |more: &[&str]| {
        let output = izwi.run(&[&["voices", "--models-dir", "models"][..], more].concat());
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let listed: Vec<Value> = serde_json::from_str(&voices(&["--json"])).unwrap();
    let shown = |voice: &Value| json!([voice["name"], voice["model"], voice["language"], voice["gender"]]);
    assert_eq!(
        listed.iter().map(shown).collect::<Vec<_>>(),
        [
            json!(["heart", "hibari", "en-US", "female"]),
            json!(["af_heart", "kokoro-82m", "en-US", "female"]),
            json!(["bm_george", "kokoro-82m", "en-GB", "male"]),
            json!(["ef_dora", "kokoro-82m", "es", "female"]),
            json!(["anna", null, null, null]),
        ]
    );
    assert_eq!((&listed[0]["default"], &listed[2]["default"]), (&json!(true), &json!(false)));
    assert_eq!((&listed[0]["saved"], &listed[4]["saved"]), (&json!(false), &json!(true)));

    let table = voices(&["list"]);
    assert!(table.starts_with("VOICE") && table.lines().count() == 6, "{table}");
    assert!(
        table.contains("bm_george  en-GB     male    kokoro-82m  male voice, British English"),
        "{table}"
    );
    let names = |more: &[&str]| {
        let table = voices(more);
        let names = table.lines().skip(1).filter_map(|line| line.split(' ').next());
        names.map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(names(&["--language", "en-gb"]), ["bm_george", "anna"]);
    assert_eq!(names(&["--model", "hibari"]), ["heart"]);
    refused(&izwi.run(&["voices", "--model", "hibary"]), 1, &["hibary", "did you mean 'hibari'"]);
    refused(&izwi.run(&["voices", "--json", "rm", "anna"]), 2, &["before the name of a command"]);
}

#[test]
fn a_voice_is_tried_with_the_model_that_has_it() {
    let izwi = Izwi::alone();
    install(&izwi);
    let tried = |more: &[&str]| izwi.run(&[&["voices", "try", "--models-dir", "models"][..], more].concat());
    refused(
        &tried(&["af_hart"]),
        1,
        &["no installed model has a voice 'af_hart'", "did you mean 'af_heart'"],
    );
    refused(&tried(&["bm_george", "-o", "a"]), 2, &["'a' has no extension"]);
    // Its weights are not there: the model that is loaded is told by the error.
    for say in [
        &["voices", "try", "bm_george", "-o", "a.wav"][..],
        &["say", "Hi.", "--voice", "bm_george", "-o", "a.wav"],
    ] {
        let output = izwi.run(&[say, &["--models-dir", "models"]].concat());
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && stderr.contains("kokoro-82m"), "{stderr}");
    }

    let izwi = Izwi::with_models();
    let output = izwi.run(&["voices", "try", "heart", "-o", "heart.wav", "--no-pull"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(hound::WavReader::open(izwi.path("heart.wav")).unwrap().duration() > 24_000);
}
