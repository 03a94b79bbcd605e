//! Word times of hibari against the timestamps of Whisper.
#![allow(clippy::expect_used, reason = "a test fails by panicking")]

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use izwi_core::engine::{
    Engine, EngineCoreConfig, EngineCoreRequest, SpeechOptions, SpokenWord, TranscriptionOptions,
};

fn engine(model: &str) -> Engine {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let home = std::env::var_os("IZWI_HOME").map_or(root.join("target/izwi-home"), PathBuf::from);
    let config = EngineCoreConfig {
        model: model.to_owned(),
        home: Some(home),
        admission: false,
        ..EngineCoreConfig::default()
    };
    Engine::new(config).expect("a model is missing; run `cargo xtask pull`")
}

/// Letters in lower case.
fn key(word: &str) -> String {
    word.chars().filter(|c| c.is_alphanumeric()).flat_map(char::to_lowercase).collect()
}

/// What hibari speaks at 24 kHz: samples, and words with their times in seconds.
async fn speak(hibari: &Engine, text: &str, speed: f32) -> Result<(Vec<f32>, Vec<(String, f64, f64)>)> {
    let options = SpeechOptions { speed: Some(speed), seed: Some(3), ..SpeechOptions::default() };
    let request = EngineCoreRequest::tts(text);
    let request = request.with_speech_options(&options, &hibari.profile().default_params());
    let (_, mut chunks) = hibari.generate_streaming(request).await?;
    let (mut samples, mut words) = (Vec::new(), Vec::<SpokenWord>::new());
    while let Some(chunk) = chunks.recv().await {
        samples.extend(chunk.samples);
        words.extend(chunk.words);
    }
    ensure!(words.is_sorted_by(|before, after| before.sample_end <= after.sample_start), "{words:?}");
    ensure!(words.is_sorted_by(|before, after| before.text_end == after.text_start), "{words:?}");
    ensure!(words.last().is_some_and(|last| last.sample_end <= samples.len() as u64), "{words:?}");
    let words = words.iter().map(|word| {
        let written = text[word.text_start..word.text_end].trim().to_owned();
        (written, word.sample_start as f64 / 24_000.0, word.sample_end as f64 / 24_000.0)
    });
    Ok((samples, words.collect()))
}

/// Texts in plain words, which an ASR model writes as they were written.
const TEXTS: [(&str, f32); 4] = [
    ("The quick brown fox jumps over the lazy dog, and then it sleeps under a large tree.", 1.0),
    ("My mother bought fresh bread this morning. We ate it together in the garden before the rain began.", 1.0),
    ("Nobody knew what was behind the wooden door, because the old key had been lost for years.", 1.25),
    ("Please remember to close every window before you leave the house tonight.", 0.8),
];

/// The most that half of the starts and ends may differ, in seconds. Whisper's own times are on a grid of 20 ms, and differ
/// from a phonetician's by about 50 ms.
const MEDIAN_TOLERANCE_S: f64 = 0.08;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hibari_word_times_agree_with_those_of_whisper() -> Result<()> {
    let (hibari, whisper) = (engine("hibari"), engine("whisper-base"));
    let (mut differences, mut written) = (Vec::new(), 0);
    for (text, speed) in TEXTS {
        let (samples, words) = speak(&hibari, text, speed).await?;
        ensure!(words.iter().map(|word| word.0.as_str()).eq(text.split_whitespace()), "{words:?}");
        written += words.len();
        let pcm: Vec<u8> = samples
            .iter()
            .flat_map(|sample| ((sample.clamp(-1.0, 1.0) * 32_767.0) as i16).to_le_bytes())
            .collect();
        let wav = [izwi_audio::wav::streaming_header(24_000).to_vec(), pcm].concat();
        let request = EngineCoreRequest::asr(wav);
        let options =
            TranscriptionOptions { word_timestamps: true, ..TranscriptionOptions::default() };
        let output = whisper.generate(request.with_transcription(options)).await?;
        let transcript = output.transcript.context("a transcript")?;
        let mut heard = transcript.segments.iter().flat_map(|segment| &segment.words).peekable();
        // Words that both have, in order.
        let mut rest = words.iter();
        while let Some(word) = heard.next() {
            let mut ahead = rest.clone().take(4);
            let Some(skipped) = ahead.position(|(text, _, _)| key(text) == key(&word.text)) else { continue };
            let (_, start, end) = rest.nth(skipped).context("the word")?;
            differences.push(((start - word.start_s).abs(), (end - word.end_s).abs()));
        }
    }
    ensure!(differences.len() * 10 >= written * 8, "{} of {written} words", differences.len());
    let median = |mut values: Vec<f64>| {
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    };
    let starts = median(differences.iter().map(|(start, _)| *start).collect());
    let ends = median(differences.iter().map(|(_, end)| *end).collect());
    println!("{} words: starts differ by {starts:.3} s, ends by {ends:.3} s (median)", differences.len());
    ensure!(starts <= MEDIAN_TOLERANCE_S && ends <= MEDIAN_TOLERANCE_S, "starts {starts}, ends {ends}");
    Ok(())
}
