//! Texts with markup: silence between parts, and the places of words.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use izwi_core::engine::executor::simulated::{SimulatedExecutor, SimulatedModel};
use izwi_core::engine::{Engine, EngineCoreConfig, EngineCoreRequest, GenerationParams};
use izwi_types::SpokenWord;

const RATE: usize = 24_000;

fn engine(model: SimulatedModel) -> Engine {
    let config = EngineCoreConfig::default();
    let executor = SimulatedExecutor::new(&config, model);
    Engine::with_executor(config, Box::new(executor)).unwrap()
}

fn units() -> SimulatedModel {
    SimulatedModel { autoregressive: false, times_words: true, ..SimulatedModel::default() }
}

fn request(text: &str, seed: u64) -> EngineCoreRequest {
    let params = GenerationParams { seed: Some(seed), ..GenerationParams::default() };
    EngineCoreRequest::tts(text).with_params(params)
}

async fn whole(engine: &Engine, text: &str, seed: u64) -> Vec<f32> {
    engine.generate(request(text, seed)).await.unwrap().audio.samples
}

async fn streamed(engine: &Engine, text: &str, seed: u64) -> (Vec<f32>, Vec<SpokenWord>) {
    let (_, mut chunks) = engine.generate_streaming(request(text, seed)).await.unwrap();
    let (mut samples, mut words) = (Vec::new(), Vec::new());
    while let Some(chunk) = chunks.recv().await {
        assert_eq!(chunk.sample_offset, samples.len() as u64);
        assert!(chunk.notes.markup.is_empty(), "{:?}", chunk.notes);
        samples.extend(chunk.samples);
        words.extend(chunk.words);
    }
    (samples, words)
}

/// Parts with silence before each and behind the last, in samples.
async fn expected(engine: &Engine, parts: &[&str], silences: &[usize], seed: u64) -> Vec<f32> {
    let mut samples = Vec::new();
    for (index, silence) in silences.iter().enumerate() {
        samples.extend(std::iter::repeat_n(0.0, *silence));
        if let Some(part) = parts.get(index) {
            samples.extend(whole(engine, part, seed + index as u64).await);
        }
    }
    samples
}

#[tokio::test]
async fn a_pause_is_exact_silence_between_the_speech_before_and_after() {
    for model in
        [units(), SimulatedModel::default(), SimulatedModel { passes: 3, ..SimulatedModel::default() }]
    {
        let engine = engine(model);
        for (text, parts, silences) in [
            (
                "Ready. Go on <break time=\"1s\"/> or not.",
                &["Ready. Go on", "or not."][..],
                &[0, RATE, 0][..],
            ),
            (
                "[pause 37ms]One[pause: 2s]two[pause]",
                &["One", "two"],
                &[RATE * 37 / 1_000, 2 * RATE, RATE * 3 / 4],
            ),
            ("<speak>A<break strength=\"none\"/> b<break time=\"99s\"/></speak>", &["A b"], &[0, 10 * RATE]),
        ] {
            let expected = expected(&engine, parts, silences, 5).await;
            let (samples, _) = match text.contains("99s") {
                // The pause is shorter than asked for, which is told.
                true => (whole(&engine, text, 5).await, Vec::new()),
                false => streamed(&engine, text, 5).await,
            };
            assert!(samples == expected, "{text}: {} {}", samples.len(), expected.len());
            assert!(whole(&engine, text, 5).await == expected, "{text}");
        }
    }
}

#[tokio::test]
async fn words_are_timed_behind_the_silence_and_placed_in_the_written_text() {
    let engine = engine(units());
    let text = "<speak>One two.<break time=\"0.5s\"/>\n<s>Three</s> four.</speak>";
    let (samples, words) = streamed(&engine, text, 1).await;
    let told: Vec<&str> = words.iter().map(|word| &text[word.text_start..word.text_end]).collect();
    let written = ["<speak>One", " two.", "<break time=\"0.5s\"/>\n<s>Three", "</s> four.</speak>"];
    assert_eq!(told, written);
    // Each byte of a sentence sounds as long as a token, of 1920 samples.
    let starts: Vec<usize> = words.iter().map(|word| word.sample_start as usize).collect();
    let behind = 8 * 1_920 + RATE / 2;
    assert_eq!(starts, [0, 4 * 1_920, behind, behind + 6 * 1_920]);
    assert!(samples[8 * 1_920..behind].iter().all(|sample| *sample == 0.0));
}

#[tokio::test]
async fn batch_and_alone_are_the_same() {
    let engine = engine(SimulatedModel::default());
    let texts =
        ["One<break/>two<break/>three", "No pause at all, but a longer text.", "[pause 1s]x [pause 1s] y"];
    let mut alone = Vec::new();
    for text in texts {
        alone.push(whole(&engine, text, 9).await);
    }
    let together = futures::future::join_all(texts.map(|text| whole(&engine, text, 9))).await;
    assert!(together == alone);
}

#[tokio::test]
async fn a_part_that_the_model_cannot_say_is_told_as_unspoken() {
    let engine = engine(units());
    let output =
        engine.generate_streaming(request("One <break time=\"1s\"/> ☃ <break time=\"1s\"/> two", 0)).await;
    let (_, mut chunks) = output.unwrap();
    let first = chunks.recv().await.unwrap();
    assert_eq!(first.notes.unspoken, "☃");
}
