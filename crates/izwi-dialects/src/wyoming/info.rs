//! The answer to `describe`: each loaded model is a program, the default one first. Loads no model.
//!
//! Source: `info.py` of the package `wyoming` 1.10.2.

use std::collections::BTreeSet;

use bytes::Bytes;
use izwi_core::engine::{Engine, Task};
use izwi_server::dto::listing::VoiceObject;
use izwi_server::routes::voices;
use izwi_server::{ApiError, AppState};
use serde::Serialize;

use super::event::event;

#[derive(Debug, Default, Serialize)]
struct Info {
    asr: Vec<AsrProgram>,
    tts: Vec<TtsProgram>,
    handle: [(); 0],
    intent: [(); 0],
    wake: [(); 0],
    mic: [(); 0],
    snd: [(); 0],
}

#[derive(Debug, Serialize)]
struct Artifact {
    name: String,
    attribution: Attribution,
    installed: bool,
    description: String,
    version: &'static str,
}

#[derive(Debug, Serialize)]
struct Attribution {
    name: &'static str,
    url: &'static str,
}

#[derive(Debug, Serialize)]
struct AsrProgram {
    #[serde(flatten)]
    artifact: Artifact,
    models: Vec<AsrModel>,
    supports_transcript_streaming: bool,
    /// The end of a recording is told, not detected.
    requires_external_vad: bool,
}

#[derive(Debug, Serialize)]
struct AsrModel {
    #[serde(flatten)]
    artifact: Artifact,
    languages: Vec<String>,
}

#[derive(Debug, Serialize)]
struct TtsProgram {
    #[serde(flatten)]
    artifact: Artifact,
    voices: Vec<TtsVoice>,
    supports_synthesize_streaming: bool,
}

#[derive(Debug, Serialize)]
struct TtsVoice {
    #[serde(flatten)]
    artifact: Artifact,
    languages: Vec<String>,
    speakers: Option<()>,
}

impl Artifact {
    fn new(name: &str, description: String) -> Self {
        Self {
            name: name.to_owned(),
            attribution: Attribution { name: "Izwi", url: "" },
            installed: true,
            description,
            version: env!("CARGO_PKG_VERSION"),
        }
    }
}

/// The event `info`. Waits for default models that are being loaded.
pub(super) async fn describe(state: AppState) -> Result<Bytes, ApiError> {
    let registry = state.registry();
    let mut info = Info::default();
    for engine in loaded(&state, Task::Asr, registry.default_asr()).await {
        info.asr.push(asr_program(&engine));
    }
    let speakers = loaded(&state, Task::Tts, Some(registry.default_tts())).await;
    let saved = match state.voices() {
        Some(store) => voices::saved(store, &speakers).await?,
        None => Vec::new(),
    };
    info.tts.extend(speakers.iter().map(|engine| tts_program(engine, &saved)));
    Ok(event("info", &info, &[]))
}

/// The engines with a task, the default one first.
async fn loaded(state: &AppState, task: Task, default: Option<&str>) -> Vec<Engine> {
    let mut engines = Vec::new();
    if let Some(default) = default
        && let Ok(lease) = state.lease(Some(default), task).await
    {
        engines.push(Engine::clone(&lease));
    }
    for (id, slot) in state.registry().snapshot() {
        if let Ok(engine) = slot.readiness(&id)
            && engine.profile().info.tasks.contains(&task)
            && Some(id.as_str()) != default
        {
            engines.push(engine.clone());
        }
    }
    engines
}

fn asr_program(engine: &Engine) -> AsrProgram {
    let (model, info) = (&engine.profile().model, &engine.profile().info);
    AsrProgram {
        artifact: Artifact::new(model, format!("speech to text by {model}")),
        models: vec![AsrModel {
            artifact: Artifact::new(model, model.clone()),
            languages: info.languages.clone(),
        }],
        supports_transcript_streaming: true,
        requires_external_vad: true,
    }
}

fn tts_program(engine: &Engine, saved: &[VoiceObject]) -> TtsProgram {
    let (model, info) = (&engine.profile().model, &engine.profile().info);
    let own = info.voices.iter().map(|voice| TtsVoice {
        artifact: Artifact::new(&voice.id, described(&voice.id, &voice.description)),
        languages: vec![voice.language.clone()],
        speakers: None,
    });
    // A saved voice speaks every language of its model.
    let languages: BTreeSet<&String> = info.voices.iter().map(|voice| &voice.language).collect();
    let saved = saved.iter().filter(|voice| voice.models.contains(model)).map(|voice| TtsVoice {
        artifact: Artifact::new(&voice.id, described(&voice.id, &voice.description)),
        languages: languages.iter().map(|language| (*language).clone()).collect(),
        speakers: None,
    });
    TtsProgram {
        artifact: Artifact::new(model, format!("text to speech by {model}")),
        voices: own.chain(saved).collect(),
        supports_synthesize_streaming: true,
    }
}

/// What a list of voices shows: clients show the description alone.
fn described(name: &str, description: &str) -> String {
    if description.is_empty() { name.to_owned() } else { format!("{name}: {description}") }
}
