//! Who speaks when, by a tiny network with random weights: what is told is arbitrary, how it is told is not.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::path::Path;
use std::time::Duration;

use izwi_core::engine::{Engine, EngineCoreConfig, EngineCoreRequest, EngineError, Segment, Task};

const MODEL: &str = "tiny-speakers";

/// An engine, and the folder of its model.
fn engine() -> (Engine, tempfile::TempDir) {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/parakeet/sortformer");
    let home = tempfile::tempdir().unwrap();
    let models = home.path().join("mine");
    for folder in [models.join(MODEL), home.path().join("manifests")] {
        std::fs::create_dir_all(folder).unwrap();
    }
    for file in ["model_config.yaml", "model.safetensors"] {
        std::fs::copy(golden.join(file), models.join(MODEL).join(file)).unwrap();
    }
    let manifest = format!(
        "name = \"{MODEL}\"\nfamily = \"sortformer\"\ndescription = \"who speaks when\"\ntask = [\"diarize\"]\n\
         licence = \"MIT\"\nlanguages = [\"en\"]\n[[sources]]\nkind = \"hub\"\nrepo = \"a/b\"\nrevision = \"{:0>40}\"\n\
         [[sources.files]]\npath = \"b.nemo\"\ntarget = \"model.safetensors\"\nconvert = \"nemo\"\ntrust = \"first-use\"\n",
        "1"
    );
    std::fs::write(home.path().join("manifests").join(format!("{MODEL}.toml")), manifest).unwrap();
    let config = EngineCoreConfig {
        model: MODEL.to_owned(),
        home: Some(home.path().to_path_buf()),
        models_dir: Some(models),
        num_threads: 1,
        ..EngineCoreConfig::default()
    };
    (Engine::new(config).unwrap(), home)
}

/// Bursts of noise as a WAV file.
fn bursts(seconds: f64, rate_hz: u32) -> Vec<u8> {
    let mut state = 1u32;
    let samples: Vec<f32> = (0..(seconds * f64::from(rate_hz)) as usize)
        .map(|n| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let is_loud = (n / (rate_hz as usize / 3)).is_multiple_of(2);
            (state >> 8) as f32 / (1 << 24) as f32 * if is_loud { 0.8 } else { 0.01 } - 0.4
        })
        .collect();
    izwi_audio::wav::to_bytes(&samples, rate_hz).unwrap()
}

fn silence(samples: usize) -> Vec<u8> {
    izwi_audio::wav::to_bytes(&vec![0.0; samples], 16_000).unwrap()
}

async fn turns(engine: &Engine, file: Vec<u8>) -> (Vec<Segment>, Duration) {
    let output = engine.generate(EngineCoreRequest::diarization(file)).await.unwrap();
    assert_eq!((output.task_type, output.text.as_deref()), (Task::Diarize, Some("")));
    (output.transcript.unwrap().segments, output.stats.audio_duration)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn turns_of_a_recording_are_told_while_it_is_heard() {
    let (engine, _folder) = engine();
    // Two pieces and a half.
    let file = bursts(70.0, 16_000);
    let (whole, duration) = turns(&engine, file.clone()).await;
    assert_eq!(duration, Duration::from_secs(70));
    assert!(!whole.is_empty() && whole.is_sorted_by_key(|turn| turn.start_s));
    for turn in &whole {
        assert!(turn.start_s >= 0.0 && turn.start_s < turn.end_s && turn.end_s <= 70.1, "{turn:?}");
        assert!(turn.speaker.is_some_and(|speaker| speaker < 4) && turn.text.is_empty(), "{turn:?}");
    }
    let request = EngineCoreRequest::diarization(file.clone()).with_streaming(true);
    let (_, mut chunks) = engine.generate_streaming(request).await.unwrap();
    let (mut streamed, mut early) = (Vec::new(), 0);
    while let Some(chunk) = chunks.recv().await {
        streamed.extend(chunk.segments);
        early += usize::from(chunk.stats.is_none());
    }
    assert_eq!(streamed, whole);
    assert!(early > 0, "turns leave before the end");
    // Beside others it is the same.
    let (together, other) = tokio::join!(turns(&engine, file), turns(&engine, bursts(30.0, 16_000)));
    assert_eq!((together.0, other.1), (whole, Duration::from_secs(30)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silence_scraps_and_high_rates_are_taken() {
    let (engine, _folder) = engine();
    for (file, ms) in [
        (silence(32_000), 2_000),
        (silence(480), 30),
        (silence(1), 0),
        (bursts(0.03, 96_000), 30),
        (bursts(3.0, 96_000), 3_000),
    ] {
        let (turns, duration) = turns(&engine, file).await;
        assert_eq!(duration.as_millis(), ms);
        let end_s = duration.as_secs_f64() + 0.08;
        assert!(turns.iter().all(|turn| turn.end_s <= end_s), "{ms}: {turns:?}");
    }
}

#[tokio::test]
async fn what_is_no_recording_is_refused() {
    let (engine, _folder) = engine();
    let refused = |request| async { engine.generate(request).await.unwrap_err() };
    let error = refused(EngineCoreRequest::diarization(Vec::new())).await;
    assert!(error.to_string().contains("audio is empty"), "{error}");
    let error = refused(EngineCoreRequest::diarization(b"no audio".to_vec())).await;
    assert!(matches!(error, EngineError::Audio(_)), "{error}");
    let error = refused(EngineCoreRequest::asr(silence(16_000))).await;
    assert!(matches!(error, EngineError::UnsupportedTask { task: "asr", .. }), "{error}");
    let options =
        izwi_core::engine::TranscriptionOptions { language: Some("en".to_owned()), ..Default::default() };
    let error = refused(EngineCoreRequest::diarization(silence(16_000)).with_transcription(options)).await;
    assert!(error.to_string().contains("does not take a language"), "{error}");
}
