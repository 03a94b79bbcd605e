//! Voices to clone, as clients send them, and their validation.
//!
//! Must not know tensors or files: a voice pack is bytes for its model.

use std::sync::Arc;

use izwi_hub::MAX_PACK_BYTES;
use izwi_types::{Task, excerpt};

use super::{AudioInput, EngineCoreRequest};
use crate::engine::error::{EngineError, Result};
use crate::engine::executor::ExecutorProfile;

/// The most characters of a reference recording's transcript: more than a minute of fast speech.
pub const MAX_REFERENCE_CHARS: usize = 2_000;

/// An encoded recording of a voice to clone.
#[derive(Debug, Clone, PartialEq)]
pub struct ReferenceAudio {
    /// The recording.
    pub audio: AudioInput,
    /// Its transcript. Without it only the timbre is cloned.
    pub text: Option<String>,
    /// Clone the timbre only, even if `text` is given.
    pub timbre_only: bool,
}

/// A voice to clone, before decoding.
#[derive(Debug, Clone, PartialEq)]
pub enum VoiceInput {
    /// A recording.
    Recording(ReferenceAudio),
    /// A voice pack, made by [`Engine::make_voice`](crate::engine::Engine::make_voice).
    Pack(Arc<[u8]>),
}

impl VoiceInput {
    /// Its request field.
    fn param(&self) -> &'static str {
        match self {
            Self::Recording(_) => "ref_audio",
            Self::Pack(_) => "voice",
        }
    }
}

impl ReferenceAudio {
    /// Validates the recording before it is decoded.
    pub(super) fn check(&self, profile: &ExecutorProfile) -> Result<()> {
        if !profile.info.clones_voices {
            return Err(no_cloning("ref_audio", profile));
        }
        if self.audio.is_empty() {
            let message = "ref_audio is empty; send a recording of the voice as base64";
            return Err(EngineError::invalid("ref_audio", message));
        }
        if self.text.as_ref().is_some_and(|text| text.chars().nth(MAX_REFERENCE_CHARS).is_some()) {
            let message = format!(
                "ref_text has more than {MAX_REFERENCE_CHARS} characters; send only the transcript of ref_audio"
            );
            return Err(EngineError::invalid("ref_text", message));
        }
        Ok(())
    }

    /// Its transcript; blank text counts as none.
    pub(super) fn transcript(&self) -> Option<String> {
        self.text.as_deref().map(str::trim).filter(|text| !text.is_empty()).map(str::to_owned)
    }
}

/// Validates the voice input of a request against the model and the other fields.
pub(super) fn check(request: &EngineCoreRequest, profile: &ExecutorProfile) -> Result<()> {
    let Some(reference) = &request.reference else { return Ok(()) };
    let param = reference.param();
    if request.task_type != Task::Tts {
        return Err(EngineError::invalid(
            param,
            format!("{param} is for speech synthesis only; leave it out"),
        ));
    }
    match reference {
        VoiceInput::Recording(recording) => recording.check(profile)?,
        VoiceInput::Pack(pack) => {
            if !profile.info.clones_voices {
                return Err(no_cloning(param, profile));
            }
            check_pack_size(pack)?;
        }
    }
    if let Some(voice) = &request.voice {
        let voice = excerpt(voice);
        let message = format!("voice '{voice}' and a voice to clone are both given; leave one out");
        return Err(EngineError::invalid(param, message));
    }
    Ok(())
}

/// Rejects packs that are larger than any model writes.
pub(super) fn check_pack_size(pack: &[u8]) -> Result<()> {
    if pack.len() > MAX_PACK_BYTES {
        let message = format!("the voice pack has more than {MAX_PACK_BYTES} bytes; make a new one");
        return Err(EngineError::invalid("voice", message));
    }
    Ok(())
}

/// The error of a model without voice cloning.
pub(super) fn no_cloning(param: &str, profile: &ExecutorProfile) -> EngineError {
    let message = format!(
        "model '{}' does not support voice cloning; leave {param} out or choose a model that does",
        profile.model
    );
    EngineError::invalid(param, message)
}
