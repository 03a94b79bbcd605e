//! Voice packs of the simulation, which hold eight bytes, and a digest of all options of a speech request.
//!
//! Must not know sequences or steps.

use std::collections::HashMap;

use izwi_types::{InputError, SpeakInput, SpeechOptions, VoiceRecording, VoiceReference};
use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView};

use super::mix;

const FORMAT: &str = "izwi-voice-1";
const TENSOR: &str = "speaker";

/// Fingerprint of a simulated checkpoint.
fn fingerprint(model: &str) -> String {
    format!("simulated:{model}")
}

fn digest(bytes: impl Iterator<Item = u8>) -> u64 {
    bytes.fold(0x5eed, |state, byte| mix(state, u64::from(byte)))
}

/// Digest of what a recording contributes to a voice.
fn identity(recording: &VoiceRecording) -> u64 {
    let text = recording.text.as_deref().filter(|_| !recording.timbre_only).unwrap_or_default();
    let samples = recording.samples.iter().flat_map(|sample| sample.to_le_bytes());
    digest(samples.chain(text.bytes()))
}

/// Makes a voice pack.
pub(super) fn pack(model: &str, recording: &VoiceRecording) -> Result<Vec<u8>, InputError> {
    let bytes = identity(recording).to_le_bytes();
    let failed =
        |error: safetensors::SafeTensorError| InputError { param: "voice", message: error.to_string() };
    let tensor = TensorView::new(Dtype::U8, vec![bytes.len()], &bytes).map_err(failed)?;
    let metadata = HashMap::from([
        ("format".to_owned(), FORMAT.to_owned()),
        ("model".to_owned(), fingerprint(model)),
        ("family".to_owned(), "simulated".to_owned()),
        ("created".to_owned(), "2026-01-01T00:00:00Z".to_owned()),
    ]);
    safetensors::serialize([(TENSOR, tensor)], Some(metadata)).map_err(failed)
}

/// Reads a voice pack of the model.
pub(super) fn unpack(model: &str, pack: &[u8]) -> Result<u64, InputError> {
    let refuse = |reason: &str| InputError {
        param: "voice",
        message: format!("the voice pack {reason}; make a new one"),
    };
    let (_, header) = SafeTensors::read_metadata(pack).map_err(|_| refuse("is damaged"))?;
    let made_for = header.metadata().as_ref().and_then(|metadata| metadata.get("model"));
    if made_for.is_none_or(|made_for| *made_for != fingerprint(model)) {
        return Err(refuse(&format!("was made for another model than '{model}'")));
    }
    let tensors = SafeTensors::deserialize(pack).map_err(|_| refuse("is damaged"))?;
    let bytes = tensors.tensor(TENSOR).ok().and_then(|tensor| tensor.data().try_into().ok());
    Ok(u64::from_le_bytes(bytes.ok_or_else(|| refuse("lacks its speaker"))?))
}

/// Digest of all options of a speech request but its text and seed.
pub(super) fn trace(model: &str, input: &SpeakInput) -> Result<u64, InputError> {
    let speaker = match &input.reference {
        None => None,
        Some(VoiceReference::Recording(recording)) => Some(identity(recording)),
        Some(VoiceReference::Pack(pack)) => Some(unpack(model, pack)?),
    };
    let SpeechOptions { language, instructions, non_streaming_mode, .. } = &input.options;
    let voice = (&input.voice, speaker, language, instructions, non_streaming_mode);
    let options = format!("{voice:?} {:?} {}", input.sampling, input.speed);
    Ok(digest(options.bytes()))
}
