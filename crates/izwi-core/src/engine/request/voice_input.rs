//! A voice that is not one of the model's own: what a client hands over, and what it must be to be taken.
//!
//! Knows no tensor and no file: a voice pack is bytes that its model reads.

use std::sync::Arc;

use super::error::{EngineError, Result};
use super::executor::ExecutorProfile;
use super::request::{AudioInput, EngineCoreRequest};
use super::types::TaskType;
use izwi_hub::MAX_PACK_BYTES;

/// The most characters of what is said in a reference recording: more than a minute of fast speech.
pub const MAX_REFERENCE_CHARS: usize = 2_000;

/// A recording of a voice to speak in.
#[derive(Debug, Clone, PartialEq)]
pub struct ReferenceRecording {
    /// The recording.
    pub audio: AudioInput,
    /// What is said in it. Without it only the timbre is taken.
    pub text: Option<String>,
    /// Take the timbre alone, whether or not the text is known.
    pub timbre_only: bool,
}

/// A voice to take in place of the model's own.
#[derive(Debug, Clone, PartialEq)]
pub enum VoiceReference {
    /// As it is in a recording.
    Recording(ReferenceRecording),
    /// As [`super::Engine::make_voice`] made it of one.
    Pack(Arc<[u8]>),
}

impl VoiceReference {
    /// The request field that carries it.
    fn param(&self) -> &'static str {
        match self {
            Self::Recording(_) => "ref_audio",
            Self::Pack(_) => "voice",
        }
    }
}

impl ReferenceRecording {
    /// Refuses what cannot be a recording of a voice, before it is decoded.
    pub(super) fn check(&self, profile: &ExecutorProfile) -> Result<()> {
        if !profile.clones_voices {
            return Err(clones_none("ref_audio", profile));
        }
        if self.audio.is_empty() {
            let message = "ref_audio is empty; send a recording of the voice as base64";
            return Err(EngineError::invalid("ref_audio", message));
        }
        if self.text.as_ref().is_some_and(|text| text.chars().nth(MAX_REFERENCE_CHARS).is_some()) {
            let message = format!(
                "ref_text has more than {MAX_REFERENCE_CHARS} characters; send what is said in ref_audio alone"
            );
            return Err(EngineError::invalid("ref_text", message));
        }
        Ok(())
    }

    /// What is said in it; blank counts as not known.
    pub(super) fn given_text(&self) -> Option<String> {
        self.text.as_deref().map(str::trim).filter(|text| !text.is_empty()).map(str::to_owned)
    }
}

/// Refuses a reference that the model or the rest of the request has no use for.
pub(super) fn check(request: &EngineCoreRequest, profile: &ExecutorProfile) -> Result<()> {
    let Some(reference) = &request.reference else { return Ok(()) };
    let param = reference.param();
    if request.task_type != TaskType::Tts {
        return Err(EngineError::invalid(param, format!("{param} is for speaking; leave it out")));
    }
    match reference {
        VoiceReference::Recording(recording) => recording.check(profile)?,
        VoiceReference::Pack(pack) => {
            if !profile.clones_voices {
                return Err(clones_none(param, profile));
            }
            check_pack_size(pack)?;
        }
    }
    if let Some(voice) = &request.voice {
        let message = format!("voice '{voice}' and a voice of one's own are both given; leave one out");
        return Err(EngineError::invalid(param, message));
    }
    Ok(())
}

/// Refuses a pack of a size that no model writes.
pub(super) fn check_pack_size(pack: &[u8]) -> Result<()> {
    if pack.len() > MAX_PACK_BYTES {
        let message = format!("the voice pack has more than {MAX_PACK_BYTES} bytes; make it anew");
        return Err(EngineError::invalid("voice", message));
    }
    Ok(())
}

/// The refusal of a model that speaks in its own voices alone.
pub(super) fn clones_none(param: &str, profile: &ExecutorProfile) -> EngineError {
    let message = format!(
        "model '{}' has voices of its own and clones none; leave {param} out or choose a model that does",
        profile.model
    );
    EngineError::invalid(param, message)
}
