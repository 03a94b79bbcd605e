//! `izwi diarize`: formats and refusals, with a tiny network that a manifest of the user names.

use std::fs;
use std::path::Path;

#[cfg(unix)]
use super::asr_model;
use super::{Izwi, refused};

/// `izwi` with a model `who`, installed in a folder of the user's own.
pub(super) fn with_model() -> Izwi {
    let izwi = Izwi::alone();
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/parakeet/sortformer");
    for folder in ["home/manifests", "mine/who"] {
        fs::create_dir_all(izwi.path(folder)).unwrap();
    }
    for file in ["model_config.yaml", "model.safetensors"] {
        fs::copy(golden.join(file), izwi.path("mine/who").join(file)).unwrap();
    }
    let manifest = format!(
        "name = \"who\"\nfamily = \"sortformer\"\ndescription = \"who speaks when\"\ntask = [\"diarize\"]\n\
         licence = \"MIT\"\nlanguages = [\"en\"]\n[[sources]]\nkind = \"hub\"\nrepo = \"a/b\"\nrevision = \"{:0>40}\"\n\
         [[sources.files]]\npath = \"b.nemo\"\ntarget = \"model.safetensors\"\nconvert = \"nemo\"\ntrust = \"first-use\"\n",
        "1"
    );
    fs::write(izwi.path("home/manifests/who.toml"), manifest).unwrap();
    let samples: Vec<f32> = (0..48_000).map(|n| ((n as f32).powi(2) * 1e-4).sin() * 0.5).collect();
    fs::write(izwi.path("a.wav"), izwi_audio::wav::to_bytes(&samples, 16_000).unwrap()).unwrap();
    fs::write(izwi.path("silence.wav"), izwi_audio::wav::to_bytes(&[0.0; 480], 16_000).unwrap()).unwrap();
    izwi
}

#[test]
fn turns_are_written_in_each_format() {
    let izwi = with_model();
    let diarize = |more: &[&str]| {
        let mut command = izwi.command(&["diarize", "--models-dir", "mine", "--dtype", "f32"]);
        command.args(more).output().unwrap()
    };
    let output = diarize(&["a.wav", "-f", "json"]);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && stderr.contains("a.wav: 3.00 s, ") && stderr.contains("RTF"),
        "{stderr}"
    );
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["duration"], 3.0);
    let turns = json["segments"].as_array().unwrap().len();
    assert!(turns > 0);
    let output = diarize(&["a.wav", "-f", "rttm", "-o", "a.rttm"]);
    assert!(output.status.success() && output.stdout.is_empty());
    let rttm = fs::read_to_string(izwi.path("a.rttm")).unwrap();
    assert_eq!(rttm.lines().count(), turns);
    assert!(
        rttm.lines().all(|line| line.starts_with("SPEAKER a 1 ") && line.split(' ').count() == 10),
        "{rttm}"
    );
    let text = diarize(&["a.wav"]).stdout;
    assert_eq!(String::from_utf8(text).unwrap().lines().count(), turns);
    let output = diarize(&["silence.wav"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(String::from_utf8_lossy(&output.stderr).contains("silence.wav: 0.03 s"));
}

#[test]
fn what_cannot_be_told_is_refused() {
    let izwi = with_model();
    refused(&izwi.run(&["diarize"]), 2, &["RECORDING"]);
    refused(&izwi.run(&["diarize", "a.wav", "-f", "srt"]), 2, &["rttm"]);
    refused(&izwi.run(&["diarize", "a.wav", "--max-speakers", "33"]), 2, &["--max-speakers", "1..=32"]);
    refused(&izwi.run(&["transcribe", "a.wav", "--max-speakers", "2"]), 2, &["add --speakers"]);
    // This one tells four at most, whatever is asked.
    let bounded = ["diarize", "a.wav", "--models-dir", "mine", "--dtype", "f32", "--max-speakers", "2"];
    refused(&izwi.run(&bounded), 1, &["does not bound the number of speakers"]);
    refused(&izwi.run(&["diarize", "b.wav"]), 1, &["cannot read b.wav"]);
    refused(&izwi.run(&["diarize", "a.wav"]), 1, &["task diarize", "docs/diarization.md"]);
    refused(&izwi.run(&["diarize", "a.wav", "--model", "hibari"]), 2, &["'hibari'", "task diarize"]);
    refused(&izwi.run(&["transcribe", "a.wav", "--speakers"]), 1, &["task diarize", "docs/diarization.md"]);
    let both = ["transcribe", "a.wav", "--speakers", "--words", "-f", "json"];
    refused(&izwi.run(&both), 2, &["--words has no effect with --speakers"]);
    refused(&izwi.run(&["transcribe", "a.wav", "-f", "rttm"]), 2, &["add --speakers"]);
    fs::write(izwi.path("c.wav"), "no audio").unwrap();
    refused(&izwi.run(&["diarize", "c.wav", "--models-dir", "mine"]), 1, &["c.wav", "no supported format"]);
}

#[test]
fn speakers_are_saved_by_those_who_agree() {
    let izwi = with_model();
    let saved = |more: &[&str]| izwi.run(&[&["speakers"], more].concat());
    assert!(saved(&["list"]).stdout.is_empty());
    refused(&saved(&["add", "ann", "a.wav"]), 2, &["ann must agree", "--agreed"]);
    refused(&saved(&["add", "../ann", "a.wav", "--agreed"]), 1, &["speaker name"]);
    refused(&saved(&["add", "ann", "a.wav", "--agreed"]), 1, &["task diarize"]);
    // This model makes no embeddings.
    let add = ["add", "ann", "a.wav", "--agreed", "--models-dir", "mine", "--dtype", "f32"];
    refused(&saved(&add), 1, &["makes no speaker embeddings", "--model"]);
    let identify = ["identify", "a.wav", "--models-dir", "mine", "--dtype", "f32"];
    refused(&saved(&identify), 1, &["makes no speaker embeddings", "--model"]);
    fs::create_dir_all(izwi.path("home/speakers")).unwrap();
    let ann = r#"{"format":"izwi-speaker-1","name":"ann","model":"who","embedding":[0.5]}"#;
    fs::write(izwi.path("home/speakers/ann.json"), ann).unwrap();
    let listed = String::from_utf8(saved(&["list"]).stdout).unwrap();
    assert!(listed.contains("ann") && listed.contains("who") && !listed.contains("0.5"), "{listed}");
    let json: serde_json::Value = serde_json::from_slice(&saved(&["ls", "--json"]).stdout).unwrap();
    assert_eq!(json, serde_json::json!([{"name": "ann", "model": "who"}]));
    refused(&saved(&["rm", "bob"]), 1, &["no speaker 'bob' is saved"]);
    assert!(saved(&["rm", "ann"]).status.success() && !izwi.path("home/speakers/ann.json").exists());
}

#[test]
fn a_recording_is_told_to_be_of_the_saved_speaker_who_is_most_similar() {
    let izwi = Izwi::alone();
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/pyannote");
    super::copy(&golden, &izwi.path("mine/who"));
    fs::create_dir_all(izwi.path("home/manifests")).unwrap();
    let manifest = "name = \"who\"\nfamily = \"pyannote\"\ndescription = \"a test\"\ntask = [\"diarize\"]\nlicence = \"MIT\"\n\
        languages = [\"mul\"]\n[[sources]]\nkind = \"hub\"\nrepo = \"a/b\"\nrevision = \"main\"\n[[sources.files]]\n\
        path = \"config.yaml\"\ntarget = \"config.yaml\"\nsize = 1\n\
        sha256 = \"0000000000000000000000000000000000000000000000000000000000000000\"\n";
    fs::write(izwi.path("home/manifests/who.toml"), manifest).unwrap();
    let clip = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../assets/speech/jfk.wav");
    fs::copy(clip, izwi.path("jfk.wav")).unwrap();
    let run =
        |arguments: &[&str]| izwi.run(&[arguments, &["--models-dir", "mine", "--dtype", "f32"]].concat());
    let identify = |more: &[&str]| run(&[&["speakers", "identify", "jfk.wav"], more].concat());
    refused_at_the_end(&identify(&[]), &["of no saved speaker", "izwi speakers add"]);
    assert!(run(&["speakers", "add", "jack", "jfk.wav", "--agreed"]).status.success());
    let stored = fs::read_to_string(izwi.path("home/speakers/jack.json")).unwrap();
    let mut other: serde_json::Value = serde_json::from_str(&stored).unwrap();
    other["name"] = "eve".into();
    for x in other["embedding"].as_array_mut().unwrap() {
        *x = (-x.as_f64().unwrap()).into();
    }
    fs::write(izwi.path("home/speakers/eve.json"), other.to_string()).unwrap();
    let output = identify(&["--json"]);
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(output.status.success() && json["speaker"] == "jack", "{json}");
    assert_eq!(
        (&json["similarities"][1]["name"], json["similarities"].as_array().unwrap().len()),
        (&"eve".into(), 2)
    );
    let text = String::from_utf8(identify(&[]).stdout).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert!(
        lines[1].starts_with("jack") && lines[1].contains("1.00") && lines[1].ends_with("similar enough"),
        "{text}"
    );
    assert!(lines[2].starts_with("eve") && lines[2].contains("-1.00"), "{text}");
}

/// Checks an error after lines of results.
pub(super) fn refused_at_the_end(output: &std::process::Output, parts: &[&str]) {
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(parts.iter().all(|part| stderr.contains(part)), "{stderr}");
}

#[cfg(unix)]
#[test]
fn dictated_words_have_speakers() {
    let (izwi, shared) = (with_model(), Izwi::with_models());
    let models = shared.home.clone().unwrap().join("models");
    fs::create_dir_all(izwi.path("home/models")).unwrap();
    for name in [asr_model(&shared).as_str(), "silero-vad"] {
        std::os::unix::fs::symlink(models.join(name), izwi.path("home/models").join(name)).unwrap();
    }
    let model = asr_model(&shared);
    let dictate = ["dictate", "-", "--model", &model, "--no-pull", "--language", "en", "--speakers"];
    let output = izwi.run_with_input(
        &[&dictate[..], &["--models-dir", "mine", "--dtype", "f32"]].concat(),
        &super::sound::clip(),
    );
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let said =
        |line: &str| line.split_once(": ").filter(|(who, _)| who.len() == 1).map(|(_, text)| text.to_owned());
    let said: Option<Vec<String>> = text.lines().map(said).collect();
    let said = said.unwrap_or_else(|| panic!("a line without a speaker: {text}")).join(" ").to_lowercase();
    assert!(said.contains("americans") && said.contains("country"), "{text}");
    refused(&izwi.run_with_input(&dictate, &[]), 1, &["task diarize", "docs/diarization.md"]);
}
