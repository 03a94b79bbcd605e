//! Prepares the parts of a text with markup.
//!
//! Must not know queues or the state of the engine.

use izwi_types::{Input, InputError, ModelInfo, Prepared, SpeakInput, VoiceReference};

use crate::engine::executor::parts::{Parts, PreparedPart};
use crate::engine::executor::{Manner, RequestPreparer, Script};

/// Prepares each part of a text; `input` has the options of all.
///
/// # Errors
/// The model refuses the input, or has nothing to say of any part.
pub(super) fn prepare(
    script: Script,
    input: &SpeakInput,
    preparer: &dyn RequestPreparer,
    info: &ModelInfo,
) -> Result<Prepared, InputError> {
    let samples = |ms: u64| ((ms * u64::from(info.sample_rate_hz) + 500) / 1_000) as usize;
    let mut parts: Vec<PreparedPart> = Vec::with_capacity(script.parts.len());
    let (mut unspoken, mut refusal) = (String::new(), None);
    let mut silence_ms = 0;
    let reference = match &input.reference {
        // Its networks run once, not for each part.
        Some(VoiceReference::Recording(recording)) if script.parts.len() > 1 => {
            Some(VoiceReference::Pack(preparer.make_voice(recording)?.into()))
        }
        reference => reference.clone(),
    };
    for (index, part) in script.parts.into_iter().enumerate() {
        silence_ms += u64::from(part.silence_ms);
        let end = (part.text.len(), part.places.written(part.text.len()));
        let (Manner { rate, gain }, speed_range) = (part.manner, info.speed_range);
        let part_input = Input::Speak(SpeakInput {
            text: part.text.clone(),
            sounds: part.sounds,
            speed: speed_range.map_or(input.speed, |(low, high)| (input.speed * rate).clamp(low, high)),
            // Equal parts are not said in the same way.
            seed: input.seed.wrapping_add(index as u64),
            reference: reference.clone(),
            ..input.clone()
        });
        let left_out = match preparer.prepare(&part_input) {
            Ok(mut prepared) => {
                let left_out = std::mem::take(&mut prepared.unspoken);
                let silence = samples(std::mem::take(&mut silence_ms));
                parts.push(PreparedPart { prepared, silence, places: part.places, end, gain });
                left_out
            }
            // A part that cannot be said at all is told like the same characters within a text.
            Err(error) if error.param == "input" => {
                refusal.get_or_insert(error);
                part.text
            }
            Err(error) => return Err(error),
        };
        for character in left_out.chars().filter(|character| !character.is_whitespace()) {
            if !unspoken.contains(character) {
                unspoken.push(character);
            }
        }
    }
    if let Some(last) = parts.last_mut() {
        last.end.1 = script.end;
    }
    let silence = samples(silence_ms + u64::from(script.silence_ms));
    match Parts::prepared(parts, silence) {
        Some(prepared) => Ok(Prepared { unspoken, ..prepared }),
        None => Err(refusal.unwrap_or_else(no_words)),
    }
}

fn no_words() -> InputError {
    InputError { param: "input", message: "input has no words; send some to speak".to_owned() }
}
