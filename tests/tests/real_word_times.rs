//! Word times of hibari against its audio, and against the timestamps of Whisper.
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
    let request = request.with_options(options);
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
    (
        "My mother bought fresh bread this morning. We ate it together in the garden before the rain began.",
        1.0,
    ),
    ("Nobody knew what was behind the wooden door, because the old key had been lost for years.", 1.25),
    ("Please remember to close every window before you leave the house tonight.", 0.8),
];

/// The most that half of the starts and ends may differ, in seconds, from those of Whisper, whose times are early by an offset
/// that is the same for most words.
const MEDIAN_TOLERANCE_S: f64 = 0.08;
/// The most that the offset may be.
const MAX_OFFSET_S: f64 = 0.2;

/// A pause between two words is at least so long, in seconds.
const PAUSE_S: f64 = 0.25;
/// How far the audio may begin from the start of a word after a pause.
const ONSET_TOLERANCE_S: f64 = 0.08;
/// Samples over which loudness is measured: 10 ms.
const HOP: usize = 240;

/// Whether each hop is within 35 dB of the loudest.
fn loud(samples: &[f32]) -> Vec<bool> {
    let power = |hop: &[f32]| hop.iter().map(|x| x * x).sum::<f32>() / HOP as f32;
    let powers: Vec<f32> = samples.chunks_exact(HOP).map(power).collect();
    let loudest = powers.iter().copied().fold(0.0, f32::max);
    powers.iter().map(|power| *power > loudest * 10f32.powf(-3.5)).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hibari_words_begin_where_the_audio_does() -> Result<()> {
    let hibari = engine("hibari");
    let mut pauses = 0;
    for (text, speed) in TEXTS {
        let (samples, words) = speak(&hibari, text, speed).await?;
        let loud = loud(&samples);
        let hop = |seconds: f64| (seconds * 24_000.0 / HOP as f64) as usize;
        let mut end = 0.0;
        for (word, start, next_end) in words {
            if start - end > PAUSE_S {
                pauses += 1;
                let silent = hop(end + 0.02)..hop(start - ONSET_TOLERANCE_S);
                ensure!(!loud[silent].contains(&true), "sound before '{word}' at {start}");
                let onset = hop(start - ONSET_TOLERANCE_S)..hop(start + ONSET_TOLERANCE_S);
                ensure!(loud[onset].contains(&true), "no sound when '{word}' starts at {start}");
            }
            end = next_end;
        }
    }
    ensure!(pauses >= TEXTS.len() + 3, "{pauses} pauses");
    Ok(())
}

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
        let options = TranscriptionOptions::default().with_words();
        let output = whisper.generate(request.with_transcription(options)).await?;
        let transcript = output.transcript.context("a transcript")?;
        // Words that both have, in order.
        let mut rest = words.iter();
        for word in transcript.segments.iter().flat_map(|segment| &segment.words) {
            let mut ahead = rest.clone().take(4);
            let Some(skipped) = ahead.position(|(text, _, _)| key(text) == key(&word.text)) else { continue };
            let (_, start, end) = rest.nth(skipped).context("the word")?;
            differences.push((start - word.start_s, end - word.end_s));
        }
    }
    ensure!(differences.len() * 10 >= written * 8, "{} of {written} words", differences.len());
    let median = |mut values: Vec<f64>| {
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    };
    let (starts, ends) = differences.into_iter().unzip::<_, _, Vec<f64>, Vec<f64>>();
    for (what, differences) in [("starts", starts), ("ends", ends)] {
        let offset = median(differences.clone());
        let spread = median(differences.iter().map(|difference| (difference - offset).abs()).collect());
        println!("{what}: later by {offset:.3} s than Whisper's, and by {spread:.3} s off that (medians)");
        ensure!(
            offset.abs() <= MAX_OFFSET_S && spread <= MEDIAN_TOLERANCE_S,
            "{what}: {offset} s, {spread} s"
        );
    }
    Ok(())
}
