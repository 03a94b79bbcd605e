//! Long texts, formats by name, and folders of recordings.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::{Izwi, asr_model, plain, refused, signal};

/// Longer than any test here takes.
const PATIENCE: Duration = Duration::from_secs(120);

/// The file that grows.
fn part(izwi: &Izwi) -> Option<PathBuf> {
    let entries = fs::read_dir(izwi.path("")).unwrap().map(|entry| entry.unwrap().path());
    entries.into_iter().find(|path| path.to_string_lossy().ends_with(".part"))
}

/// What is written so far.
fn part_bytes(izwi: &Izwi) -> u64 {
    part(izwi).and_then(|part| fs::metadata(part).ok()).map_or(0, |part| part.len())
}

#[test]
fn an_interrupt_ends_a_valid_file_and_tells_where() {
    let izwi = Izwi::with_models();
    let text = "It goes on and on for quite a while, and then some more. ".repeat(900);
    fs::write(izwi.path("text"), &text).unwrap();
    let input = fs::File::open(izwi.path("text")).unwrap();
    let child = izwi.command(&["say", "-o", "a.wav", "--no-pull"]).stdin(input).spawn().unwrap();
    let begun = Instant::now();
    // Some seconds of audio are written while the rest is generated.
    while part_bytes(&izwi) < 200_000 {
        assert!(begun.elapsed() < PATIENCE, "no audio is written");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(!izwi.path("a.wav").exists());
    signal(child.id(), "INT");
    let output = child.wait_with_output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(130), "{stderr}");

    let reader = hound::WavReader::open(izwi.path("a.wav")).unwrap();
    let (length, rate) = (reader.duration(), reader.spec().sample_rate);
    let samples = reader.into_samples::<i16>().map(Result::unwrap).count();
    assert_eq!(samples, length as usize, "the header says where it ends");
    let told = format!("a.wav ends after {:.2} s, at character ", f64::from(length) / f64::from(rate));
    assert!(stderr.contains(&told) && stderr.contains(&format!(" of {}: \"", text.len())), "{stderr}");
    assert!(f64::from(length) / f64::from(rate) > 3.0, "{stderr}");
    assert_eq!(part(&izwi), None, "no part is left");
}

#[test]
fn a_killed_process_leaves_audio_that_can_be_read() {
    let izwi = Izwi::with_models();
    fs::write(izwi.path("text"), "It goes on and on for quite a while. ".repeat(1_500)).unwrap();
    let input = fs::File::open(izwi.path("text")).unwrap();
    let mut child = izwi.command(&["say", "-o", "a.wav", "--no-pull"]).stdin(input).spawn().unwrap();
    let begun = Instant::now();
    while part_bytes(&izwi) < 200_000 {
        assert!(begun.elapsed() < PATIENCE, "no audio is written");
        std::thread::sleep(Duration::from_millis(5));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(!izwi.path("a.wav").exists());
    let left = fs::read(part(&izwi).unwrap()).unwrap();
    let limits =
        izwi_audio::decode::DecodeLimits { max_bytes: left.len(), max_duration: Duration::from_secs(7_200) };
    let samples = izwi_audio::decode::decode(left, 24_000, &limits).unwrap();
    assert!(samples.len() > 24_000, "{} samples", samples.len());
}

#[test]
fn a_format_is_named_by_the_flag_or_by_the_extension() {
    let izwi = Izwi::with_models();
    refused(&izwi.run(&["say", "hello", "-o", "plain"]), 2, &["'plain' has no extension", "--format"]);
    refused(&izwi.run(&["say", "hello", "-o", "a.wav", "--format", "mp3"]), 2, &["a.wav", "asks for mp3"]);
    refused(&izwi.run(&["say", "hello", "-o", "a.wav", "--format", "mp4"]), 2, &["--format", "flac"]);
    let said = izwi.run(&["say", "Hello.", "--seed", "1", "-o", "plain", "--format", "flac"]);
    assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
    let flac = fs::read(izwi.path("plain")).unwrap();
    assert_eq!(&flac[..4], b"fLaC");
    let said = izwi.run(&["say", "Hello.", "--seed", "1", "-o", "-", "--format", "flac"]);
    assert!(said.stdout == flac, "standard output has the same bytes");
}

#[test]
fn a_folder_of_recordings_is_transcribed() {
    let izwi = Izwi::with_models();
    let model = asr_model(&izwi);
    fs::create_dir(izwi.path("talks")).unwrap();
    assert!(
        izwi.run(&["say", "Good morning, everyone.", "-o", "talks/a.wav", "--seed", "1"]).status.success()
    );
    fs::write(izwi.path("talks/notes.txt"), "no recording").unwrap();
    let output = izwi.run(&["transcribe", "talks", "--model", &model, "--no-pull"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(plain(&String::from_utf8_lossy(&output.stdout)), "good morning everyone");
    fs::create_dir(izwi.path("empty")).unwrap();
    refused(&izwi.run(&["transcribe", "empty"]), 1, &["the folder empty has no recording", "help: "]);
}
