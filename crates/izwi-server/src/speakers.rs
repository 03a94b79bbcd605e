//! Who says what in a recording: one model tells its words, another one its speakers, side by side.

use bytes::Bytes;
use izwi_core::engine::speakers::SpeakerJoin;
use izwi_core::engine::{Engine, EngineCoreRequest, EngineOutput, Task};

use crate::error::ApiError;
use crate::registry::Lease;
use crate::state::AppState;

/// A model that tells who speaks.
#[derive(Debug)]
pub struct Speakers(pub(crate) Lease);

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
        state.lease(None, Task::Diarize).await.map(Self)
    }

    /// The request for the speakers of the recording of `request`.
    pub(crate) fn request(request: &EngineCoreRequest) -> EngineCoreRequest {
        let audio_input = request.audio_input.clone();
        let turns = EngineCoreRequest { audio_input, ..EngineCoreRequest::diarization(Bytes::new()) };
        turns.with_priority(request.priority)
    }

    /// Transcribes a recording on `engine`; each segment of the transcript has one speaker. The request asks for the times of
    /// words.
    ///
    /// # Errors
    /// As of both models; an error of `param`, the recording, is told once.
    pub async fn generate(
        &self,
        engine: &Engine,
        request: EngineCoreRequest,
        param: &'static str,
    ) -> Result<EngineOutput, ApiError> {
        let (id, turns) = (request.id.clone(), Self::request(&request));
        let refused = |engine: &Engine, error| {
            ApiError::from_engine(error, &engine.profile().model, &id).about_recording(param)
        };
        let text = async { engine.generate(request).await.map_err(|error| refused(engine, error)) };
        let turns = async { self.0.generate(turns).await.map_err(|error| refused(&self.0, error)) };
        // The one that fails first drops the other, which aborts its request.
        let (mut output, turns) = tokio::try_join!(text, turns)?;
        if let (Some(transcript), Some(turns)) = (&mut output.transcript, turns.transcript) {
            let segments = std::mem::take(&mut transcript.segments);
            transcript.segments = SpeakerJoin::whole(segments, turns.segments);
        }
        Ok(output)
    }
}
