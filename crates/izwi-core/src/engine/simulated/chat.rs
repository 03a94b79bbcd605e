//! Conversations of the simulation: what was said becomes a prompt, and what is generated becomes text and frames.

use super::mix;
use crate::engine::executor::{Emission, Message, Turn};

/// Stand before what somebody said.
const USER: u64 = 1 << 60;
const MODEL: u64 = 1 << 61;
/// Samples of a recording that are one token.
const SAMPLES_PER_TOKEN: usize = 1_600;
/// Of so many generated tokens one is text.
const TEXT_EVERY: usize = 3;

/// The prompt of a conversation, and how long its last turn is.
pub(super) fn prompt(turns: &[Turn]) -> (Vec<u64>, usize) {
    let mut prompt = Vec::new();
    let mut last = 0;
    for turn in turns {
        let begins = prompt.len();
        match turn {
            Turn::User(messages) => {
                prompt.push(USER);
                messages.iter().for_each(|message| heard(message, &mut prompt));
            }
            Turn::Model(emissions) => {
                prompt.push(MODEL);
                prompt.extend(emissions.iter().map(key));
            }
        }
        last = prompt.len() - begins;
    }
    prompt.push(MODEL);
    (prompt, last)
}

fn heard(message: &Message, prompt: &mut Vec<u64>) {
    match message {
        Message::Text(text) => prompt.extend(text.bytes().map(u64::from)),
        Message::Recording(samples) => prompt.extend(
            samples
                .chunks(SAMPLES_PER_TOKEN)
                .map(|part| part.iter().fold(1, |key, sample| mix(key, u64::from(sample.to_bits())))),
        ),
    }
}

/// What a generated token is; `state` decides everything before it and itself.
pub(super) fn emission(state: u64, index: usize) -> Emission {
    if index.is_multiple_of(TEXT_EVERY) {
        Emission::Token(state as u32)
    } else {
        Emission::Frame([state as u32, (state >> 32) as u32].into())
    }
}

/// The token that stands for something said.
pub(super) fn key(emission: &Emission) -> u64 {
    match emission {
        Emission::Token(id) => u64::from(*id),
        Emission::Frame(codes) => codes.iter().fold(2, |key, &code| mix(key, u64::from(code))),
    }
}

/// A word for a token of text.
pub(super) fn word(id: u32) -> String {
    format!("w{} ", id % 1_000)
}
