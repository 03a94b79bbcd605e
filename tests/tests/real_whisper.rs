//! The engine with real Whisper weights: transcripts do not depend on the batch, preemption or length.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::path::{Path, PathBuf};
use std::time::Duration;

use izwi_core::engine::{
    DeviceArbiter, Engine, EngineCoreConfig, EngineCoreRequest, EngineOutput, FinishReason,
    TranscriptionOptions,
};
use izwi_tests::wer::{Score, compare};

const CLIPS: [&str; 6] = [
    "jfk.wav",
    "sense_and_sensibility_01_austen_64kb-0870.wav",
    "sense_and_sensibility_01_austen_64kb-0880.wav",
    "sense_and_sensibility_01_austen_64kb-0890.wav",
    "sense_and_sensibility_01_austen_64kb-0920.wav",
    "sense_and_sensibility_01_austen_64kb-0930.wav",
];
const JFK: &str = "And so my fellow Americans, ask not what your country can do for you, ask what you can do for \
                   your country.";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn clip(name: &str) -> Vec<u8> {
    std::fs::read(root().join("assets/speech").join(name)).unwrap()
}

fn config() -> EngineCoreConfig {
    let home = std::env::var_os("IZWI_HOME").map_or(root().join("target/izwi-home"), PathBuf::from);
    EngineCoreConfig {
        model: "whisper-tiny.en".to_owned(),
        home: Some(home),
        admission: false,
        ..Default::default()
    }
}

fn engine(config: EngineCoreConfig) -> Engine {
    Engine::new(config).expect("whisper-tiny.en or whisper-base is missing; run `cargo xtask pull`")
}

/// Tokens and times of all segments.
fn segments(output: &EngineOutput) -> Vec<(Vec<u32>, String, String)> {
    let segments = &output.transcript.as_ref().unwrap().segments;
    let times = |s: &izwi_core::engine::Segment| format!("{:.3}..{:.3}", s.start_s, s.end_s);
    segments.iter().map(|s| (s.tokens.clone(), s.text.clone(), times(s))).collect()
}

/// Waits until the engine is idle and checks that all blocks are free.
async fn wait_until_idle(engine: &Engine) {
    for _ in 0..4_000 {
        let status = engine.status();
        if status.running + status.pending + status.kv.used_blocks == 0 {
            assert_eq!(engine.check_invariants().await.unwrap(), Ok(()));
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    unreachable!("the engine never rests");
}

/// A transcription of a clip that continues `beam_size` texts side by side.
fn searched(name: &str, beam_size: u64) -> EngineCoreRequest {
    let options = TranscriptionOptions { beam_size: Some(beam_size), ..TranscriptionOptions::default() };
    EngineCoreRequest::asr(clip(name)).with_transcription(options)
}

async fn check_batches(beam_size: u64, configs: &[EngineCoreConfig]) {
    let alone = engine(config());
    let mut expected = Vec::new();
    for name in CLIPS {
        let output = alone.generate(searched(name, beam_size)).await.unwrap();
        assert_eq!(output.stats.finish_reason, FinishReason::Stop);
        assert!(output.stats.audio_duration > Duration::from_secs(2), "the recording's length is known");
        expected.push(segments(&output));
    }
    for config in configs {
        let together = engine(config.clone());
        let requests = CLIPS.iter().map(|name| together.generate(searched(name, beam_size)));
        let outputs = futures::future::join_all(requests).await;
        for (output, expected) in outputs.into_iter().zip(&expected) {
            assert_eq!(segments(&output.unwrap()), *expected);
        }
        wait_until_idle(&together).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn transcripts_are_equal_alone_in_a_batch_and_preempted() {
    // Blocks for about three of them: the others are preempted repeatedly. They are too few for a search.
    let crowded = EngineCoreConfig { max_blocks: 9, chunked_prefill_threshold: 2, ..config() };
    check_batches(1, &[config(), crowded]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn transcripts_of_searches_are_equal_alone_and_in_a_batch() {
    // The fewest blocks that a search of five texts is accepted with.
    let crowded = EngineCoreConfig { max_blocks: 104, chunked_prefill_threshold: 2, ..config() };
    check_batches(5, &[config(), crowded]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_abort_in_any_step_frees_every_block() {
    let engine = engine(config());
    // The parts of the encoder hold no blocks.
    const ENCODER_STEPS: usize = 4;
    for steps in [0, 1, 3, 5, 6, 12] {
        let id = engine.add_request(EngineCoreRequest::asr(clip(CLIPS[0]))).await.unwrap();
        for _ in 0..steps {
            engine.step().await.unwrap();
        }
        assert_eq!(engine.kv_cache_stats().used_blocks > 0, steps > ENCODER_STEPS, "after {steps} steps");
        assert!(engine.abort_request(&id).await.unwrap());
        wait_until_idle(&engine).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_jfk_clip_is_transcribed_exactly() {
    let engine = engine(EngineCoreConfig { model: "whisper-base".to_owned(), ..config() });
    let options = TranscriptionOptions::default().with_words();
    let request = EngineCoreRequest::asr(clip("jfk.wav")).with_transcription(options);
    let output = engine.generate(request).await.unwrap();
    let plain = |text: &str| text.replace(',', "");
    assert_eq!(plain(output.text.as_deref().unwrap()), plain(JFK));
    let transcript = output.transcript.unwrap();
    assert_eq!(transcript.language.as_deref(), Some("en"));
    let words: Vec<_> = transcript.segments.iter().flat_map(|s| &s.words).collect();
    assert_eq!(words.len(), 22);
    assert!(words.is_sorted_by(|a, b| a.end_s <= b.end_s && a.start_s <= b.start_s));
    assert!(words.iter().all(|word| word.start_s <= word.end_s && word.end_s <= 11.1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_models_share_a_device_step_by_step() {
    let arbiter = DeviceArbiter::new();
    let asr = Engine::sharing(config(), &arbiter).unwrap();
    let voice =
        Engine::sharing(EngineCoreConfig { model: "hibari".to_owned(), ..config() }, &arbiter).unwrap();
    let text = "One sentence. Another sentence. A third sentence.";
    let requests = CLIPS.iter().map(|name| asr.generate(EngineCoreRequest::asr(clip(name))));
    let spoken = voice.generate(EngineCoreRequest::tts(text));
    let (segments, spoken) = futures::future::join(futures::future::join_all(requests), spoken).await;
    assert!(segments.iter().all(|output| !output.as_ref().unwrap().text.as_ref().unwrap().is_empty()));
    assert!(spoken.unwrap().audio.duration() > Duration::from_secs(2));
}

const RATE: u32 = 16_000;

fn samples(name: &str) -> Vec<i16> {
    let mut reader = hound::WavReader::new(std::io::Cursor::new(clip(name))).unwrap();
    assert_eq!((reader.spec().sample_rate, reader.spec().channels), (RATE, 1));
    reader.samples::<i16>().map(Result::unwrap).collect()
}

fn spec(channels: u16, bits_per_sample: u16) -> hound::WavSpec {
    let sample_format =
        if bits_per_sample == 32 { hound::SampleFormat::Float } else { hound::SampleFormat::Int };
    hound::WavSpec { channels, sample_rate: RATE, bits_per_sample, sample_format }
}

/// A WAV file with `samples` in every channel, truncated to the given bit depth.
fn wav(samples: &[i16], spec: hound::WavSpec) -> Vec<u8> {
    let mut file = std::io::Cursor::new(Vec::new());
    let mut writer = hound::WavWriter::new(&mut file, spec).unwrap();
    for &sample in samples {
        for _ in 0..spec.channels {
            match spec.bits_per_sample {
                8 => writer.write_sample((sample >> 8) as i8).unwrap(),
                24 => writer.write_sample(i32::from(sample) << 8).unwrap(),
                32 => writer.write_sample(f32::from(sample) / 32_768.0).unwrap(),
                _ => writer.write_sample(sample).unwrap(),
            }
        }
    }
    writer.finalize().unwrap();
    file.into_inner()
}

async fn text(engine: &Engine, file: Vec<u8>) -> String {
    engine.generate(EngineCoreRequest::asr(file)).await.unwrap().text.unwrap()
}

fn noise(len: usize, amplitude: f32) -> Vec<i16> {
    let mut state = 7u64;
    let mut next = move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((state >> 40) as f32 / (1u32 << 24) as f32 - 0.5) * 2.0 * amplitude
    };
    (0..len).map(|_| next() as i16).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_recording_gives_text_or_a_clear_error() {
    let engine = engine(config());
    let speech = samples("jfk.wav");
    let plain = wav(&speech, spec(1, 16));
    let expected = text(&engine, plain.clone()).await;
    for (channels, bits) in [(1, 24), (1, 32), (6, 16)] {
        assert_eq!(
            text(&engine, wav(&speech, spec(channels, bits))).await,
            expected,
            "{channels} × {bits} bit"
        );
    }
    assert!(text(&engine, wav(&speech, spec(1, 8))).await.contains("what you can do for your country"));

    // Headers with negative or excessive lengths; a file that ends within a frame.
    for claim in [0u32, u32::MAX, 1 << 30] {
        let mut lying = plain.clone();
        lying[40..44].copy_from_slice(&claim.to_le_bytes());
        assert_eq!(text(&engine, lying).await, expected, "claims {claim} bytes");
    }
    let half = text(&engine, plain[..plain.len() / 2 + 1].to_vec()).await;
    assert!(half.replace(',', "").starts_with("And so my fellow Americans"), "{half}");

    for (what, silent) in [
        ("digital silence", vec![0; 5 * RATE as usize]),
        ("soft noise", noise(5 * RATE as usize, 60.0)),
        ("loud noise", noise(5 * RATE as usize, 6_000.0)),
    ] {
        assert_eq!(text(&engine, wav(&silent, spec(1, 16))).await, "", "{what}");
    }

    let empty = wav(&[], spec(1, 16));
    for (file, complaint) in
        [(empty, "no samples"), (plain[..20].to_vec(), "damaged"), (b"not audio at all".to_vec(), "format")]
    {
        let error = engine.generate(EngineCoreRequest::asr(file)).await.unwrap_err().to_string();
        assert!(error.contains(complaint), "{error}");
    }
    wait_until_idle(&engine).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_minutes_are_transcribed_without_a_loop() {
    let engine = engine(config());
    let pause = vec![0i16; RATE as usize / 2];
    let round: Vec<i16> =
        CLIPS.iter().flat_map(|name| samples(name).into_iter().chain(pause.clone())).collect();
    let rounds = (600 * RATE as usize).div_ceil(round.len());
    let output =
        engine.generate(EngineCoreRequest::asr(wav(&round.repeat(rounds), spec(1, 16)))).await.unwrap();
    let seconds = (round.len() * rounds) as f64 / f64::from(RATE);
    assert!((output.stats.audio_duration.as_secs_f64() - seconds).abs() < 0.01);

    let segments = output.transcript.unwrap().segments;
    assert!(segments.is_sorted_by(|a, b| a.start_s <= b.start_s && a.end_s <= b.end_s));
    assert!(segments.iter().all(|s| s.start_s < s.end_s && s.end_s <= seconds));
    assert!(seconds - segments.last().unwrap().end_s < 5.0, "the end was not segments");

    let mut once = String::new();
    for name in CLIPS {
        once.push(' ');
        once.push_str(&text(&engine, clip(name)).await);
    }
    let score = compare(&once.repeat(rounds), &output.text.unwrap()).score();
    assert!(score.rate() <= 0.06, "{score:?}");
}

/// What was reference_text in a clip. Where the reader slipped ("a more a amiable") both models write what was meant.
fn reference_text(name: &str) -> String {
    let lines = std::fs::read_to_string(root().join("assets/speech/transcription.txt")).unwrap();
    let id = format!("({})", name.trim_end_matches(".wav"));
    let line = lines.lines().find(|line| line.ends_with(&id)).unwrap();
    let words = line.trim_end_matches(&id).replace("<s>", "").replace("</s>", "");
    words.replace("a more a amiable", "a more amiable")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_clips_are_transcribed_word_for_word() {
    for (model, most) in [("whisper-base", 0.011), ("whisper-tiny.en", 0.05)] {
        let engine = engine(EngineCoreConfig { model: model.to_owned(), ..config() });
        let mut scores = Vec::new();
        for name in CLIPS {
            let alignment = compare(&reference_text(name), &text(&engine, clip(name)).await);
            scores.push((alignment.score(), alignment));
        }
        let total: Score = scores.iter().map(|(score, _)| *score).sum();
        assert!(total.rate() <= most, "{model}: {total:?} {scores:?}");
    }
}
