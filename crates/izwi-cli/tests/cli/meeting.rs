//! `izwi meeting`: recordings of each who takes part, one of all, minutes, and runs that are killed.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use izwi_audio::decode::{DecodeLimits, decode};

use super::diarize::refused_at_the_end;
use super::{Izwi, asr_model, refused};

const RATE_HZ: usize = 16_000;

fn clip(name: &str) -> Vec<f32> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../assets/speech").join(name);
    let limits = DecodeLimits { max_bytes: 1 << 22, max_duration: Duration::from_secs(60) };
    decode(fs::read(path).unwrap(), RATE_HZ as u32, &limits).unwrap()
}

/// Silence with recordings from these seconds on, so loud.
fn mixed(seconds: usize, clips: &[(&[f32], f64, f32)]) -> Vec<f32> {
    let mut samples = vec![0.0; seconds * RATE_HZ];
    for (clip, at_s, gain) in clips {
        let begin = (at_s * RATE_HZ as f64) as usize;
        samples[begin..].iter_mut().zip(*clip).for_each(|(sample, x)| *sample += gain * x);
    }
    samples
}

fn write(path: PathBuf, samples: &[f32]) {
    fs::write(path, izwi_audio::wav::to_bytes(samples, RATE_HZ as u32).unwrap()).unwrap();
}

/// Ann speaks, then Bob; each microphone hears the other softly, and Bob's began 2.5 s later.
fn with_tracks() -> (Izwi, String) {
    let izwi = Izwi::with_models();
    let model = asr_model(&izwi);
    let (first, second) = (clip("jfk.wav"), clip("sense_and_sensibility_01_austen_64kb-0880.wav"));
    write(izwi.path("ann.wav"), &mixed(18, &[(&first, 0.5, 1.0), (&second, 13.0, 0.15)]));
    let bob = mixed(18, &[(&first, 0.5, 0.15), (&second, 13.0, 1.0)]);
    write(izwi.path("bob.wav"), &bob[RATE_HZ * 5 / 2..]);
    (izwi, model)
}

#[test]
fn a_word_is_whose_microphone_is_loudest_and_minutes_are_written() {
    let (izwi, model) = with_tracks();
    let meeting = |more: &[&str]| {
        let mut command = izwi.command(&["meeting", "ann.wav", "bob.wav", "--model", &model, "--no-pull"]);
        command.args(more).output().unwrap()
    };
    let output = meeting(&["-o", "week.md"]);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && stderr.contains("week.md: 0:18, 2 speakers"), "{stderr}");
    assert!(!stderr.contains("nothing in common"), "{stderr}");
    let text = fs::read_to_string(izwi.path("week.md")).unwrap();
    let turns: Vec<&str> = text.lines().filter(|line| line.starts_with("**")).collect();
    let [ann, bob] = turns[..] else { panic!("not two turns: {text}") };
    assert!(ann.starts_with("**0:00 ann** ") && ann.contains("country"), "{text}");
    let lower = bob.to_lowercase();
    assert!(
        bob.starts_with("**0:1")
            && bob.contains(" bob** ")
            && lower.contains("young man")
            && !lower.contains("country"),
        "{text}"
    );
    assert!(!izwi.path("week.md.izwi-meeting").exists());

    let url = format!("http://127.0.0.1:{}/v1", super::remote::busy_language_model());
    let output = meeting(&["-o", "week.json", "--llm", &url]);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && stderr.contains("minutes come from"), "{stderr}");
    let json: serde_json::Value = serde_json::from_slice(&fs::read(izwi.path("week.json")).unwrap()).unwrap();
    assert_eq!(
        (&json["minutes"], &json["utterances"][0]["speaker"]),
        (&"Yes, of course.".into(), &"ann".into())
    );
    assert!(json["speakers"]["ann"].as_f64().unwrap() > json["speakers"]["bob"].as_f64().unwrap());

    // A language model that is not there loses nothing.
    let output = meeting(&["-o", "alone.md", "--llm", "http://127.0.0.1:1/v1", "--llm-model", "gone"]);
    refused_at_the_end(&output, &["alone.md has no minutes", "the same command asks"]);
    assert!(fs::read_to_string(izwi.path("alone.md")).unwrap().contains(" bob** "));
    let output = meeting(&["-o", "alone.md", "--llm", &url]);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && stderr.contains("2 of 2 parts were transcribed before"), "{stderr}");
    assert!(fs::read_to_string(izwi.path("alone.md")).unwrap().contains("## Minutes\n\nYes, of course.\n"));
}

#[cfg(unix)]
#[test]
fn a_run_that_is_killed_goes_on_where_it_was() {
    let (izwi, shared) = (super::diarize::with_model(), Izwi::with_models());
    let models = shared.home.clone().unwrap().join("models");
    let model = asr_model(&shared);
    fs::create_dir_all(izwi.path("home/models")).unwrap();
    for name in [model.as_str(), "silero-vad"] {
        std::os::unix::fs::symlink(models.join(name), izwi.path("home/models").join(name)).unwrap();
    }
    let speech = clip("jfk.wav");
    write(izwi.path("long.wav"), &mixed(330, &[(&speech, 5.0, 1.0), (&speech, 310.0, 1.0)]));
    let common =
        ["meeting", "long.wav", "--model", &model, "--no-pull", "--models-dir", "mine", "--dtype", "f32"];
    let mut killed = izwi.command(&[&common[..], &["-o", "a.md"]].concat()).spawn().unwrap();
    let work = izwi.path("a.md.izwi-meeting");
    let begun = Instant::now();
    let parts = || {
        let files = fs::read_dir(&work).into_iter().flatten().flatten();
        files.filter(|file| file.path().extension().is_some_and(|extension| extension == "json")).count()
    };
    while parts() == 0 {
        assert!(
            killed.try_wait().unwrap().is_none() && begun.elapsed() < Duration::from_secs(300),
            "no part"
        );
        std::thread::sleep(Duration::from_millis(5));
    }
    killed.kill().unwrap();
    killed.wait().unwrap();
    assert!(parts() > 0 && !izwi.path("a.md").exists());

    let again = izwi.run(&[&common[..], &["-o", "a.md", "--keep"]].concat());
    let stderr = String::from_utf8_lossy(&again.stderr);
    assert!(again.status.success() && stderr.contains("of 2 parts were transcribed before"), "{stderr}");
    let text = fs::read_to_string(izwi.path("a.md")).unwrap();
    assert_eq!(text.matches("country").count(), 4, "{text}");
    // What is damaged is transcribed again, and the result is that of one go.
    for file in fs::read_dir(&work).unwrap().flatten().take(2) {
        fs::write(file.path(), "{").unwrap();
    }
    let other = izwi.run(&[&common[..], &["-o", "a.md"]].concat());
    assert!(other.status.success(), "{}", String::from_utf8_lossy(&other.stderr));
    assert_eq!(fs::read_to_string(izwi.path("a.md")).unwrap(), text);
    assert!(!work.exists());
}

#[test]
fn meetings_that_cannot_be_are_refused_by_name() {
    let izwi = Izwi::alone();
    write(izwi.path("ann.wav"), &[0.0; 1_600]);
    fs::create_dir(izwi.path("other")).unwrap();
    write(izwi.path("other/ann.wav"), &[0.0; 1_600]);
    refused(&izwi.run(&["meeting", "ann.wav", "-o", "a.srt"]), 2, &["a.srt", "--speakers"]);
    refused(&izwi.run(&["meeting", "ann.wav", "-o", "no/a.md"]), 1, &["no/a.md", "create the folder"]);
    refused(&izwi.run(&["meeting", "ann.wav"]), 2, &["--output"]);
    refused(&izwi.run(&["meeting", "ann.wav", "-o", "a.md"]), 1, &["task diarize", "docs/diarization.md"]);
    let two = ["meeting", "ann.wav", "other/ann.wav", "-o", "a.md"];
    refused(
        &izwi.run(&[&two[..], &["--max-speakers", "3"]].concat()),
        2,
        &["--max-speakers", "one recording"],
    );
    refused(&izwi.run(&[&two[..], &["--llm-model", "x"]].concat()), 2, &["--llm"]);
    refused(&izwi.run(&[&two[..], &["--no-pull"]].concat()), 1, &["not installed"]);
    let shared = Izwi::with_models();
    let model = asr_model(&shared);
    for file in ["ann.wav", "other"] {
        let _ = fs::create_dir(shared.path("other"));
        let to = if file == "other" { "other/ann.wav" } else { file };
        write(shared.path(to), &[0.0; 1_600]);
    }
    let same = shared.run(&[&two[..], &["--no-pull", "--model", &model]].concat());
    refused(&same, 2, &["two recordings are called ann"]);
    let gone = shared.run(&["meeting", "gone.wav", "ann.wav", "-o", "a.md", "--no-pull", "--model", &model]);
    refused(&gone, 1, &["gone.wav"]);
    fs::write(shared.path("bad.wav"), "no audio").unwrap();
    let bad = shared.run(&["meeting", "bad.wav", "ann.wav", "-o", "a.md", "--no-pull", "--model", &model]);
    refused(&bad, 1, &["cannot read bad.wav", "audio"]);
    assert!(!shared.path("a.md").exists() && !shared.path("a.md.izwi-meeting").exists());
}
