//! Who says what in a recording: one model tells its words, another one its speakers, side by side.

use std::sync::Arc;

use izwi_core::engine::known_speakers::{self, KnownSpeaker, NoEmbeddings};
use izwi_core::engine::speakers::SpeakerJoin;
use izwi_core::engine::{AudioInput, Engine, EngineCoreRequest, EngineOutput, Priority, Segment, Task};

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
    /// Leases the model, for a request whose field `param` asks for speakers.
    ///
    /// # Errors
    /// None is installed, or it cannot be loaded.
    pub async fn lease(state: &AppState, param: &'static str) -> Result<Self, ApiError> {
        if !state.registry().has(Task::Diarize) {
            let message = format!(
                "{param} needs a model that tells speakers apart, and none is installed; see docs/diarization.md"
            );
            return Err(ApiError::invalid(param, message));
        }
        let engine = state.lease(None, Task::Diarize).await?;
        let known = Known { model: engine.profile().model.clone(), speakers: Vec::new() };
        Ok(Self { engine, known })
    }

    /// The same with the speakers of recordings, which the model hears one after another. Errors are about the field `param`.
    pub(crate) async fn with_known(
        mut self,
        references: Vec<Reference>,
        priority: Priority,
        param: &'static str,
    ) -> Result<Self, ApiError> {
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

impl Known {
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
