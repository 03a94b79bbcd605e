//! Voice lookup: a name means one of the model's own voices, a saved voice, or an alias for OpenAI's names.

use std::sync::Arc;

use izwi_core::engine::{Engine, ExecutorProfile, RequestId};
use izwi_hub::{SavedVoice, VoiceError, VoiceStore};
use izwi_types::{excerpt, suggest};

use crate::error::ApiError;

/// Names of OpenAI's voices. Clients send them by default, so each must resolve to some voice.
/// <https://platform.openai.com/docs/guides/text-to-speech#voice-options>
pub const OPENAI_VOICES: [&str; 13] = [
    "alloy", "ash", "ballad", "coral", "echo", "fable", "onyx", "nova", "sage", "shimmer", "verse", "marin",
    "cedar",
];

/// Names of voices that widely used servers have, and that their clients keep sending when they change to another server.
const PEER_VOICES: [&str; 55] = [
    "af",
    "af_alloy",
    "af_aoede",
    "af_bella",
    "af_heart",
    "af_jessica",
    "af_kore",
    "af_nicole",
    "af_nova",
    "af_river",
    "af_sarah",
    "af_sky",
    "am_adam",
    "am_echo",
    "am_eric",
    "am_fenrir",
    "am_liam",
    "am_michael",
    "am_onyx",
    "am_puck",
    "am_santa",
    "bf_alice",
    "bf_emma",
    "bf_isabella",
    "bf_lily",
    "bm_daniel",
    "bm_fable",
    "bm_george",
    "bm_lewis",
    "ef_dora",
    "em_alex",
    "em_santa",
    "ff_siwis",
    "hf_alpha",
    "hf_beta",
    "hm_omega",
    "hm_psi",
    "if_sara",
    "im_nicola",
    "jf_alpha",
    "jf_gongitsune",
    "jf_nezumi",
    "jf_tebukuro",
    "jm_kumo",
    "pf_dora",
    "pm_alex",
    "pm_santa",
    "zf_xiaobei",
    "zf_xiaoni",
    "zf_xiaoxiao",
    "zf_xiaoyi",
    "zm_yunjian",
    "zm_yunxi",
    "zm_yunxia",
    "zm_yunyang",
];

/// A voice for speech synthesis.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Voice {
    /// One of the model's own.
    Own(String),
    /// The model's default one, in place of a voice that other servers have.
    StandIn(String),
    /// A saved voice.
    Saved {
        /// Its name.
        name: String,
        /// A voice pack that the model accepts.
        pack: Arc<[u8]>,
        /// Whether it may continue its recording, whose text is known.
        has_text: bool,
    },
}

impl Voice {
    /// Its name for clients.
    pub(crate) fn name(&self) -> &str {
        match self {
            Self::Own(name) | Self::StandIn(name) | Self::Saved { name, .. } => name,
        }
    }
}

/// Whether `name` is one of OpenAI's names, which clients send when they want any voice.
pub(crate) fn is_alias(name: &str) -> bool {
    OPENAI_VOICES.iter().any(|alias| alias.eq_ignore_ascii_case(name))
}

/// Whether `name` is a voice of other servers, or a blend of their voices.
fn is_of_peers(name: &str) -> bool {
    let part = |part: &str| part.split('(').next().unwrap_or_default().trim().to_ascii_lowercase();
    name.split('+').all(|one| PEER_VOICES.contains(&part(one).as_str()))
}

/// The voice that one of OpenAI's names stands for: they are spread over the model's voices.
pub(crate) fn meant<'a>(alias: &str, voices: &'a [izwi_types::Voice]) -> Option<&'a izwi_types::Voice> {
    let index = OPENAI_VOICES.iter().position(|known| known.eq_ignore_ascii_case(alias))?;
    voices.get(index % voices.len().max(1))
}

/// The voice that stands for a name of other servers: the model's default.
pub(crate) fn stand_in<'a>(name: &str, voices: &'a [izwi_types::Voice]) -> Option<&'a izwi_types::Voice> {
    voices.first().filter(|_| is_of_peers(name))
}

/// Finds a voice by name: the model's own first, then saved ones, then OpenAI's names, which are spread over the model's
/// voices, then names of other servers, for which the default voice stands. Without a name the model's default; `None` if
/// the model has no voices.
pub async fn find(
    name: Option<&str>,
    engine: &Engine,
    saved: Option<&VoiceStore>,
) -> Result<Option<Voice>, ApiError> {
    let profile = engine.profile();
    if let Some(known) = own(profile, name) {
        return Ok(known);
    }
    let name = name.unwrap_or_default();
    if let Some(store) = saved
        && (profile.info.clones_voices || !is_alias(name))
        && let Some((saved, pack)) = stored(store, name).await?
    {
        if !profile.info.clones_voices {
            let message = format!(
                "voice '{}' is a saved voice, and model '{}' does not support voice cloning; choose a model that does",
                excerpt(name),
                profile.model
            );
            return Err(ApiError::invalid("voice", message));
        }
        let checked = engine.check_voice(Arc::clone(&pack)).await;
        checked.map_err(|error| ApiError::from_engine(error, &profile.model, &RequestId::random()))?;
        return Ok(Some(Voice::Saved { name: name.to_owned(), pack, has_text: saved.text.is_some() }));
    }
    let voices = &profile.info.voices;
    if is_alias(name) {
        return Ok(meant(name, voices).map(|voice| Voice::Own(voice.id.clone())));
    }
    if is_of_peers(name) {
        return Ok(stand_in(name, voices).map(|voice| Voice::StandIn(voice.id.clone())));
    }
    Err(unknown(name, profile, &saved_names(saved).await?))
}

/// The error of a name that no voice of the model and no saved voice has.
pub fn unknown(name: &str, profile: &ExecutorProfile, saved_names: &[String]) -> ApiError {
    let own = profile.info.voices.iter().map(|voice| voice.id.as_str());
    let hint = suggest(name, "voices", own.chain(saved_names.iter().map(String::as_str)));
    ApiError::VoiceNotFound { id: excerpt(name), model: profile.model.clone(), hint }
}

/// Looks a name up without the disk: the model's default, one of its own voices, or a blend of those, which the model
/// accepts or refuses.
fn own(profile: &ExecutorProfile, name: Option<&str>) -> Option<Option<Voice>> {
    match name {
        None => Some(profile.info.voices.first().map(|voice| Voice::Own(voice.id.clone()))),
        Some(name) => {
            let is_own = izwi_types::Voice::is_named(name, &profile.info.voices);
            is_own.then(|| Some(Voice::Own(name.to_owned())))
        }
    }
}

/// Names of the saved voices.
pub(crate) async fn saved_names(store: Option<&VoiceStore>) -> Result<Vec<String>, ApiError> {
    let store = store.cloned();
    let names = move || Ok(store.map(|store| store.names()).transpose()?.unwrap_or_default());
    blocking(names, "voice").await
}

/// Reads a saved voice and its pack; `None` if there is none of this name.
pub(crate) async fn stored(
    store: &VoiceStore,
    name: &str,
) -> Result<Option<(SavedVoice, Arc<[u8]>)>, ApiError> {
    let (store, name) = (store.clone(), name.to_owned());
    let read = move || match store.read(&name) {
        Ok((voice, pack)) => Ok(Some((voice, pack.into()))),
        Err(VoiceError::Unknown { .. } | VoiceError::Name { .. }) => Ok(None),
        Err(error) => Err(error),
    };
    blocking(read, "voice").await
}

/// Runs work on saved voices on a blocking thread. `param` is the field that names the voice.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, VoiceError> + Send + 'static,
    param: &str,
) -> Result<T, ApiError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result.map_err(|error| ApiError::from_voices(error, param)),
        Err(panic) => Err(ApiError::internal(&panic.to_string(), &RequestId::random())),
    }
}

#[cfg(test)]
mod tests {
    use izwi_core::engine::executor::simulated::{SimulatedExecutor, SimulatedModel};
    use izwi_core::engine::{EngineCoreConfig, ReferenceAudio};
    use izwi_hub::VoiceNotes;

    use super::*;

    fn engine(clones: bool) -> Engine {
        let config = EngineCoreConfig::default();
        let executor =
            SimulatedExecutor::new(&config, SimulatedModel { clones_voices: clones, ..Default::default() });
        Engine::with_executor(config, Box::new(executor)).unwrap()
    }

    /// A store with voices of these names, in a folder of its own.
    async fn store(test: &str, engine: &Engine, names: &[&str]) -> VoiceStore {
        let folder = std::env::temp_dir().join(format!("izwi-voices-{test}-{}", std::process::id()));
        let store = VoiceStore::at(folder);
        let audio = izwi_audio::wav::to_bytes(&[0.1; 2_400], 24_000).unwrap().into();
        let recording = ReferenceAudio { audio, text: None, timbre_only: true };
        let pack = engine.make_voice(recording).await.unwrap();
        for name in names {
            store.save(name, &pack, &VoiceNotes::default(), true).unwrap();
        }
        store
    }

    async fn found(name: &str, engine: &Engine, saved: Option<&VoiceStore>) -> Result<String, ApiError> {
        let voice = find(Some(name), engine, saved).await?.unwrap();
        let kind = if matches!(voice, Voice::Own(_)) { "own" } else { "saved" };
        Ok(format!("{kind} {}", voice.name()))
    }

    #[tokio::test]
    async fn openai_names_always_resolve_and_real_names_take_precedence() {
        let engine = engine(true);
        let store = store("order", &engine, &["one", "nova"]).await;
        for name in OPENAI_VOICES {
            assert!(found(name, &engine, None).await.unwrap().starts_with("own"));
        }
        assert_eq!(found("one", &engine, Some(&store)).await.unwrap(), "own one", "the model's own first");
        assert_eq!(found("nova", &engine, Some(&store)).await.unwrap(), "saved nova", "then saved ones");
        assert_eq!(found("alloy", &engine, Some(&store)).await.unwrap(), "own one", "then OpenAI's names");
        let plain = self::engine(false);
        assert!(found("nova", &plain, Some(&store)).await.unwrap().starts_with("own"), "a name never fails");
        let default = find(None, &engine, Some(&store)).await.unwrap();
        assert_eq!(default, Some(Voice::Own("one".to_owned())));
    }

    #[tokio::test]
    async fn the_default_voice_stands_for_those_of_other_servers() {
        let engine = engine(true);
        let store = store("peers", &engine, &["af_sky"]).await;
        for name in ["af_heart", "AF_Heart", "af_heart(2)+bm_george(1)", "af_heart + am_adam"] {
            let voice = find(Some(name), &engine, Some(&store)).await.unwrap().unwrap();
            assert_eq!(voice, Voice::StandIn("one".to_owned()), "{name}");
        }
        assert_eq!(found("af_sky", &engine, Some(&store)).await.unwrap(), "saved af_sky", "real names first");
        for name in ["af_hart", "af_heart+", "af_heart+nobody", "heart"] {
            let error = find(Some(name), &engine, Some(&store)).await.unwrap_err();
            assert_eq!(error.code(), "voice_not_found", "{name}");
        }
    }

    #[tokio::test]
    async fn an_unknown_voice_gets_suggestions_with_saved_names() {
        let engine = engine(true);
        let store = store("near", &engine, &["anna", "bella"]).await;
        let error = found("ana", &engine, Some(&store)).await.unwrap_err();
        assert_eq!((error.code(), error.param()), ("voice_not_found", Some("voice")));
        assert!(error.to_string().contains("'anna'"), "{error}");
        let error = found("../anna", &engine, Some(&store)).await.unwrap_err();
        assert_eq!(error.code(), "voice_not_found");
        let error = found("anna", &self::engine(false), Some(&store)).await.unwrap_err();
        assert!(error.to_string().contains("does not support voice cloning"), "{error}");
    }
}
