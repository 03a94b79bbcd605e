//! Voices that are handed to an engine: as a recording, as a pack, and what is refused.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::time::Duration;

use izwi_core::engine::executor::simulated::{SimulatedExecutor, SimulatedModel};
use izwi_core::engine::{
    Engine, EngineCoreConfig, EngineCoreRequest, EngineError, GenerationParams, ReferenceAudio, VoiceInput,
};

fn engine_with(config: EngineCoreConfig, model: SimulatedModel) -> Engine {
    let executor = SimulatedExecutor::new(&config, model);
    Engine::with_executor(config, Box::new(executor)).unwrap()
}

fn engine(model: SimulatedModel) -> Engine {
    engine_with(EngineCoreConfig::default(), model)
}

const TEXT: &str = "One sentence. Another sentence. A third sentence. The last sentence.";

/// A tone of `seconds`, as a WAV file.
fn tone(seconds: usize) -> Vec<u8> {
    let samples: Vec<f32> = (0..seconds * 24_000).map(|at| (at as f32 * 0.05).sin() * 0.4).collect();
    izwi_audio::wav::to_bytes(&samples, 24_000).unwrap()
}

fn reference(audio: Vec<u8>, text: Option<&str>) -> ReferenceAudio {
    ReferenceAudio { audio: audio.into(), text: text.map(str::to_owned), timbre_only: false }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_voice_of_a_recording_sounds_the_same_as_its_pack_and_unlike_others() {
    let engine = engine(SimulatedModel { clones_voices: true, ..Default::default() });
    let params = GenerationParams { seed: Some(7), ..Default::default() };
    let request = || EngineCoreRequest::tts(TEXT).with_params(params.clone());
    let spoken = async |request| engine.generate(request).await.unwrap().audio.samples;
    let in_voice = |recording| request().with_reference(VoiceInput::Recording(recording));

    let own = spoken(request()).await;
    let cloned = spoken(in_voice(reference(tone(1), Some("ah")))).await;
    assert_ne!(own, cloned);
    let pack: Arc<[u8]> = engine.make_voice(reference(tone(1), Some("ah"))).await.unwrap().into();
    engine.check_voice(Arc::clone(&pack)).await.unwrap();
    assert_eq!(spoken(request().with_reference(VoiceInput::Pack(pack))).await, cloned);

    assert_ne!(spoken(in_voice(reference(tone(2), Some("ah")))).await, cloned);
    let untold = spoken(in_voice(reference(tone(1), None))).await;
    let timbre = ReferenceAudio { timbre_only: true, ..reference(tone(1), Some("ah")) };
    assert_ne!(untold, cloned);
    assert_eq!(spoken(in_voice(timbre)).await, untold, "the text is left out");
    for request in [
        request().with_streams_text(true),
        request().with_streams_text(false),
        request().with_instructions("softly"),
        request().with_language("de"),
        request().with_params(GenerationParams { top_k: 3, ..params.clone() }),
        request().with_params(GenerationParams { repetition_penalty: 1.2, ..params.clone() }),
    ] {
        assert_ne!(spoken(request.clone()).await, own, "{request:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn voices_that_cannot_be_taken_are_refused_by_field() {
    let config = EngineCoreConfig { max_reference_duration: Duration::from_secs(2), ..Default::default() };
    let cloner = engine_with(config, SimulatedModel { clones_voices: true, ..Default::default() });
    let in_voice = |recording| EngineCoreRequest::tts(TEXT).with_reference(VoiceInput::Recording(recording));
    let in_pack = |pack: &[u8]| EngineCoreRequest::tts(TEXT).with_reference(VoiceInput::Pack(pack.into()));
    let cases = [
        ("ref_audio", in_voice(reference(Vec::new(), None)), "is empty"),
        ("ref_audio", in_voice(reference(tone(3), None)), "longer than 2 s"),
        ("ref_audio", in_voice(reference(tone(1), None)).with_voice("one"), "both given"),
        ("ref_text", in_voice(reference(tone(1), Some(&"a".repeat(2_001)))), "2000 characters"),
        ("voice", in_pack(b"no pack"), "is damaged"),
        ("voice", in_pack(&[0; (16 << 20) + 1]), "bytes"),
    ];
    for (field, request, complaint) in cases {
        match cloner.generate(request).await {
            Err(EngineError::InvalidRequest { param, message }) => {
                assert_eq!(param, field, "{message}");
                assert!(message.contains(complaint), "{message}");
            }
            other => panic!("{field}, {complaint}: {other:?}"),
        }
    }
    let error = cloner.generate(in_voice(reference(b"nonsense".to_vec(), None))).await.unwrap_err();
    assert!(matches!(&error, EngineError::ReferenceAudio(_)), "{error}");

    let other = EngineCoreConfig { model: "other".to_owned(), ..Default::default() };
    let other = engine_with(other, SimulatedModel { clones_voices: true, ..Default::default() });
    let pack = cloner.make_voice(reference(tone(1), None)).await.unwrap();
    let error = other.check_voice(pack.clone().into()).await.unwrap_err().to_string();
    assert!(error.contains("another model than 'other'"), "{error}");

    let plain = engine(SimulatedModel::default());
    for refused in [
        plain.generate(in_voice(reference(tone(1), None))).await.map(drop),
        plain.generate(in_pack(&pack)).await.map(drop),
        plain.make_voice(reference(tone(1), None)).await.map(drop),
        plain.check_voice(pack.clone().into()).await,
    ] {
        let error = refused.unwrap_err();
        assert!(error.to_string().contains("does not support voice cloning"), "{error}");
    }
}
