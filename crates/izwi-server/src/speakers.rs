//! Who says what in a recording: one model tells its words, another one its speakers, side by side.

use std::collections::BTreeMap;
use std::sync::Arc;

use izwi_core::engine::known_speakers::{self, KnownSpeaker, NoEmbeddings};
use izwi_core::engine::speakers::SpeakerJoin;
use izwi_core::engine::{
    AudioInput, Engine, EngineCoreRequest, EngineOutput, Priority, RequestId, Segment, Task,
};
use izwi_hub::{SavedError, SpeakerStore};

use crate::error::ApiError;
use crate::registry::Lease;
use crate::state::AppState;

/// A model that tells who speaks, and what is known of the speakers.
#[derive(Debug)]
pub struct Speakers {
    pub(crate) engine: Lease,
    pub(crate) known: Known,
}

/// What is known of the speakers of a recording.
#[derive(Debug)]
pub(crate) struct Known {
    /// The model that hears it.
    model: String,
    speakers: Vec<KnownSpeaker>,
}

/// The name of a speaker, and a recording of the voice.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Reference {
    pub(crate) name: String,
    pub(crate) audio: AudioInput,
}

impl Speakers {
    /// Leases the model, for a request whose field `param` asks for speakers. Saved speakers are known, if the server's settings
    /// allow that and the request does not say no to it.
    ///
    /// # Errors
    /// None is installed, or it cannot be loaded; the request asks for saved speakers, and the settings do not allow it.
    pub async fn lease(
        state: &AppState,
        param: &'static str,
        saved_speakers: Option<bool>,
    ) -> Result<Self, ApiError> {
        check_saved(state, saved_speakers)?;
        Self::of(state, model(state, param).await?, saved_speakers).await
    }

    /// The same with a model that is leased already.
    ///
    /// # Errors
    /// The request asks for saved speakers, and the settings do not allow it, or they cannot be read.
    pub async fn of(state: &AppState, engine: Lease, saved_speakers: Option<bool>) -> Result<Self, ApiError> {
        check_saved(state, saved_speakers)?;
        let model = engine.profile().model.clone();
        let store = state.config().speakers.clone().filter(|_| saved_speakers != Some(false));
        let speakers = match store {
            Some(store) => saved(store, model.clone()).await?,
            None => Vec::new(),
        };
        Ok(Self { engine, known: Known { model, speakers } })
    }

    /// The same with the speakers of recordings in place of saved ones. The model hears them one after another. Errors are about the
    /// field `param`.
    pub(crate) async fn with_known(
        mut self,
        references: Vec<Reference>,
        priority: Priority,
        param: &'static str,
    ) -> Result<Self, ApiError> {
        if !references.is_empty() {
            self.known.speakers.clear();
        }
        for (at, Reference { name, audio }) in references.into_iter().enumerate() {
            let request = EngineCoreRequest::diarization(audio).with_priority(priority);
            let id = request.id.clone();
            let heard = self.engine.generate(request).await;
            let heard = heard.map_err(|error| {
                ApiError::from_engine(error, &self.engine.profile().model, &id).about_recording(param)
            })?;
            let turns = heard.transcript.unwrap_or_default().segments;
            let embedding =
                known_speakers::main_embedding(&turns).map_err(|error| self.known.refusal(error, param))?;
            let embedding = embedding.ok_or_else(|| {
                let message =
                    format!("{param}[{at}] has no speech; send some seconds in which '{name}' speaks");
                ApiError::invalid(param, message)
            })?;
            self.known.speakers.push(KnownSpeaker { name: Arc::from(name), embedding });
        }
        Ok(self)
    }

    /// Transcribes a recording on `engine`; each segment of the transcript has one speaker. The request asks for the times of
    /// words.
    ///
    /// # Errors
    /// As of both models; an error of `param`, the recording, is told once.
    pub async fn generate(
        &self,
        engine: &Engine,
        mut request: EngineCoreRequest,
        param: &'static str,
    ) -> Result<EngineOutput, ApiError> {
        let (id, turns) = (request.id.clone(), request.split_diarization());
        let refused = |engine: &Engine, error| {
            ApiError::from_engine(error, &engine.profile().model, &id).about_recording(param)
        };
        let text = async { engine.generate(request).await.map_err(|error| refused(engine, error)) };
        let turns = async { self.engine.generate(turns).await.map_err(|error| refused(&self.engine, error)) };
        // The one that fails first drops the other, which aborts its request.
        let (mut output, turns) = tokio::try_join!(text, turns)?;
        if let (Some(transcript), Some(turns)) = (&mut output.transcript, turns.transcript) {
            let segments = std::mem::take(&mut transcript.segments);
            transcript.segments = SpeakerJoin::whole(segments, self.known.name(turns.segments)?);
        }
        Ok(output)
    }
}

/// Refuses a request for saved speakers that the settings do not allow.
fn check_saved(state: &AppState, saved_speakers: Option<bool>) -> Result<(), ApiError> {
    if saved_speakers == Some(true) && state.config().speakers.is_none() {
        let message =
            "this server does not tell saved speakers; set saved_speakers in its settings, or leave it out";
        return Err(ApiError::invalid("saved_speakers", message));
    }
    Ok(())
}

/// The saved speakers with whom recordings are compared that `model` hears.
///
/// # Errors
/// One is damaged, or the folder cannot be read.
pub fn saved_speakers(store: &SpeakerStore, model: &str) -> Result<Vec<KnownSpeaker>, SavedError> {
    let of_model = store.list()?.into_iter().filter(|speaker| speaker.model == model);
    Ok(of_model
        .map(|speaker| KnownSpeaker { name: speaker.name.into(), embedding: speaker.embedding.into() })
        .collect())
}

/// As [`saved_speakers`], on a blocking thread. What is wrong with the files concerns the server, not its clients.
async fn saved(store: SpeakerStore, model: String) -> Result<Vec<KnownSpeaker>, ApiError> {
    let internal = |details: String| ApiError::internal(&details, &RequestId::random());
    match tokio::task::spawn_blocking(move || saved_speakers(&store, &model)).await {
        Ok(found) => found.map_err(|error| internal(error.to_string())),
        Err(panic) => Err(internal(panic.to_string())),
    }
}

impl Known {
    /// The names of speakers by their embeddings.
    pub(crate) fn names(&self, embeddings: &BTreeMap<u32, Arc<[f32]>>) -> BTreeMap<u32, Arc<str>> {
        known_speakers::names(embeddings, &self.speakers)
    }

    /// Gives turns the names of known speakers.
    pub(crate) fn name(&self, turns: Vec<Segment>) -> Result<Vec<Segment>, ApiError> {
        known_speakers::named(turns, &self.speakers)
            .map_err(|error| self.refusal(error, "known_speaker_references"))
    }

    fn refusal(&self, error: NoEmbeddings, param: &str) -> ApiError {
        let model = &self.model;
        let message = format!(
            "{param}: {error} ({model}); leave it out, or install another one, see docs/diarization.md"
        );
        ApiError::invalid(param, message)
    }
}

/// The default model that tells speakers apart; `None` if none is installed.
///
/// # Errors
/// It cannot be loaded.
pub async fn installed(state: &AppState) -> Result<Option<Lease>, ApiError> {
    match state.registry().has(Task::Diarize) {
        true => state.lease(None, Task::Diarize).await.map(Some),
        false => Ok(None),
    }
}

/// The same, which `param` needs.
///
/// # Errors
/// None is installed, or it cannot be loaded.
pub(crate) async fn model(state: &AppState, param: &'static str) -> Result<Lease, ApiError> {
    installed(state).await?.ok_or_else(|| {
        let message = format!(
            "{param} needs a model that tells speakers apart, and none is installed; see docs/diarization.md"
        );
        ApiError::invalid(param, message)
    })
}
