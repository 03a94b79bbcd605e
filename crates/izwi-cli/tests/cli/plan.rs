//! `izwi plan`: a real model is measured, its curve is saved, and plans are made of curves.

use std::fs;
use std::path::Path;

use crate::{Izwi, refused};

/// A folder with a tiny checkpoint under the name of a model.
fn install(izwi: &Izwi) {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap().join("tests/golden");
    crate::copy(&golden.join("qwen3_tts/cv06"), &izwi.path("models").join("qwen3-tts-0.6b-customvoice"));
}

const MODEL: [&str; 4] = ["--model", "qwen3-tts-0.6b-customvoice", "--models-dir", "models"];
const EFFORT: [&str; 10] =
    ["--tokens", "20", "--rounds", "1", "--max-batch-size", "2", "--max-blocks", "256", "--dtype", "f32"];

/// Runs a plan that must succeed.
#[track_caller]
fn plan(izwi: &Izwi, more: &[&str]) -> serde_json::Value {
    let output = izwi.run(&[&["plan", "--json"], more].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Multiplies all times of a curve file.
fn slower(curve: &str, factor: f64) -> String {
    let scaled = |line: &str| {
        let time = line.split_once(" = ").filter(|(name, _)| ["seconds", "prompt_token_s"].contains(name));
        match time {
            Some((name, value)) => format!("{name} = {:?}\n", factor * value.parse::<f64>().unwrap()),
            None => format!("{line}\n"),
        }
    };
    curve.lines().map(scaled).collect()
}

#[test]
fn a_measured_machine_is_saved_and_planned_with() {
    let izwi = Izwi::alone();
    install(&izwi);
    let save = ["plan", "--save", "this.toml", "--name", "this one", "--price", "0.5"];
    let saved = izwi.run(&[&save[..], &MODEL, &EFFORT].concat());
    let told = String::from_utf8_lossy(&saved.stderr).into_owned();
    assert!(saved.status.success(), "{told}");
    assert!(told.contains("2 at once: ") && told.contains("this.toml"), "{told}");
    let curve = fs::read_to_string(izwi.path("this.toml")).unwrap();
    assert_eq!(curve.matches("[[step]]").count(), 2, "{curve}");
    assert!(curve.contains("machine = \"this one\"") && curve.contains("price_per_hour = 0.5"), "{curve}");

    // As fast as a tiny checkpoint is, scaled so that one stream takes a twentieth of its audio.
    let of = |name: &str| {
        let line = curve.lines().find_map(|line| line.strip_prefix(&format!("{name} = ")));
        line.unwrap().parse::<f64>().unwrap()
    };
    let factor = 0.05 * of("step_audio_s") / of("seconds");
    fs::write(izwi.path("fast.toml"), slower(&curve, factor)).unwrap();
    fs::write(izwi.path("slow.toml"), slower(&curve, 2.0 * factor)).unwrap();
    fs::write(izwi.path("useless.toml"), slower(&curve, 40.0 * factor)).unwrap();
    let files = ["--curve", "fast.toml", "--curve", "slow.toml", "--curve", "useless.toml"];
    let settings = ["--first-audio", "30", "--listeners"];
    let planned = |listeners: &str| plan(&izwi, &[&files[..], &settings, &[listeners]].concat());
    let (few, many) = (planned("100"), planned("10000"));
    let machines = |plan: &serde_json::Value, kind: usize, routing: &str| {
        plan["machines"][kind][routing]["machines"].as_u64().unwrap()
    };
    for routing in ["least_streams", "sessions"] {
        assert!(machines(&few, 0, routing) < machines(&many, 0, routing), "{many}");
        assert!(machines(&many, 0, routing) <= machines(&many, 1, routing), "{many}");
    }
    assert!(machines(&many, 0, "least_streams") < machines(&many, 0, "sessions"), "{many}");
    let price = many["machines"][0]["least_streams"]["price_per_hour"].as_f64().unwrap();
    assert!((price - 0.5 * machines(&many, 0, "least_streams") as f64).abs() < 1e-6, "{many}");
    assert_eq!(many["machines"][2]["streams"], 0);
    assert!(many["machines"][2]["limit"].as_str().unwrap().contains("one stream takes"), "{many}");
    let page = izwi.run(&[&["plan"], &files[..], &settings, &["10000"]].concat());
    let page = String::from_utf8(page.stdout).unwrap();
    for part in
        ["10000 listeners of qwen3-tts-0.6b-customvoice", "2000.0 streams at once", "this one", "SESSIONS"]
    {
        assert!(page.contains(part), "'{part}' is not in: {page}");
    }
}

#[test]
fn what_cannot_be_planned_is_named_with_its_remedy() {
    let izwi = Izwi::alone();
    refused(&izwi.run(&["plan"]), 2, &["--listeners"]);
    refused(&izwi.run(&["plan", "--listeners", "10"]), 1, &["'hibari' is not installed", "izwi pull hibari"]);
    refused(&izwi.run(&["plan", "--listeners", "0"]), 2, &["--listeners 0", "from 1 to"]);
    refused(&izwi.run(&["plan", "--listeners", "10", "--duty", "2"]), 2, &["--duty 2", "0.0001 to 1"]);
    let listens = ["plan", "--listeners", "10", "--model", "whisper-base"];
    refused(&izwi.run(&listens), 2, &["'whisper-base' does not speak", "TTS model"]);
    let plan = |file: &str| izwi.run(&["plan", "--listeners", "10", "--curve", file]);
    refused(&plan("no.toml"), 2, &["no.toml", "--save"]);
    fs::write(izwi.path("bad.toml"), "format = 1\nmachine = 3\n").unwrap();
    refused(&plan("bad.toml"), 2, &["bad.toml", "machine", "--save"]);
}
