//! Voices of the simulation: packs that hold eight bytes, and the trace that every word about the manner of speaking
//! leaves in what is spoken.

use std::collections::HashMap;

use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView};

use super::mix;
use crate::engine::error::{EngineError, Result};
use crate::engine::executor::{Reference, VoiceRecording};
use crate::engine::request::EngineCoreRequest;
use crate::engine::types::GenerationParams;

const FORMAT: &str = "izwi-voice-1";
const TENSOR: &str = "speaker";

/// What identifies the checkpoint of a model of this name.
fn fingerprint(model: &str) -> String {
    format!("simulated:{model}")
}

fn digest(bytes: impl Iterator<Item = u8>) -> u64 {
    bytes.fold(0x5eed, |state, byte| mix(state, u64::from(byte)))
}

/// What is taken of a recording.
fn identity(recording: &VoiceRecording) -> u64 {
    let text = recording.text.as_deref().filter(|_| !recording.timbre_only).unwrap_or_default();
    let samples = recording.samples.iter().flat_map(|sample| sample.to_le_bytes());
    digest(samples.chain(text.bytes()))
}

/// The pack of a recording.
pub(super) fn pack(model: &str, recording: &VoiceRecording) -> Result<Vec<u8>> {
    let bytes = identity(recording).to_le_bytes();
    let failed = |error: safetensors::SafeTensorError| EngineError::Execution(error.to_string());
    let tensor = TensorView::new(Dtype::U8, vec![bytes.len()], &bytes).map_err(failed)?;
    let metadata = HashMap::from([
        ("format".to_owned(), FORMAT.to_owned()),
        ("model".to_owned(), fingerprint(model)),
        ("family".to_owned(), "simulated".to_owned()),
        ("created".to_owned(), "1970-01-01T00:00:00Z".to_owned()),
    ]);
    safetensors::serialize([(TENSOR, tensor)], Some(metadata)).map_err(failed)
}

/// What a pack holds, if it fits the model.
pub(super) fn unpack(model: &str, pack: &[u8]) -> Result<u64> {
    let refuse =
        |reason: &str| EngineError::invalid("voice", format!("the voice pack {reason}; make it anew"));
    let (_, header) = SafeTensors::read_metadata(pack).map_err(|_| refuse("is damaged"))?;
    let made_for = header.metadata().as_ref().and_then(|metadata| metadata.get("model"));
    if made_for.is_none_or(|made_for| *made_for != fingerprint(model)) {
        return Err(refuse(&format!("was made for another model than '{model}'")));
    }
    let tensors = SafeTensors::deserialize(pack).map_err(|_| refuse("is damaged"))?;
    let bytes = tensors.tensor(TENSOR).ok().and_then(|tensor| tensor.data().try_into().ok());
    Ok(u64::from_le_bytes(bytes.ok_or_else(|| refuse("lacks its speaker"))?))
}

/// A number that everything said about the manner of speaking decides, the seed aside.
pub(super) fn trace(
    model: &str,
    request: &EngineCoreRequest,
    reference: Option<&Reference>,
    params: &GenerationParams,
) -> Result<u64> {
    let speaker = match reference {
        None => None,
        Some(Reference::Recording(recording)) => Some(identity(recording)),
        Some(Reference::Pack(pack)) => Some(unpack(model, pack)?),
    };
    let GenerationParams { temperature, top_p, top_k, repetition_penalty, speed, .. } = params;
    let voice = (&request.voice, speaker, &request.language, &request.instructions, request.streams_text);
    let said = format!("{voice:?} {temperature} {top_p} {top_k} {repetition_penalty} {speed}");
    Ok(digest(said.bytes()))
}
