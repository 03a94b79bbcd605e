//! Conversations of the simulation: turns become a prompt, and generated tokens become text and audio frames.

use izwi_types::{Emission, Message, Turn};

use super::mix;

/// Start of a user's and of a model's turn.
const USER: u64 = 1 << 60;
const MODEL: u64 = 1 << 61;
/// Samples per token of a recording.
const SAMPLES_PER_TOKEN: usize = 1_600;
/// One of this many generated tokens is text.
const TEXT_EVERY: usize = 3;

/// The prompt of a conversation, and the length of its last turn.
pub(super) fn prompt(turns: &[Turn]) -> (Vec<u64>, usize) {
    let mut prompt = Vec::new();
    let mut last = 0;
    for turn in turns {
        let start = prompt.len();
        match turn {
            Turn::User(messages) => {
                prompt.push(USER);
                messages.iter().for_each(|message| append(message, &mut prompt));
            }
            Turn::Model(emissions) => {
                prompt.push(MODEL);
                prompt.extend(emissions.iter().map(key));
            }
            Turn::Told(text) => {
                prompt.push(MODEL);
                prompt.extend(text.bytes().map(u64::from));
            }
        }
        last = prompt.len() - start;
    }
    prompt.push(MODEL);
    (prompt, last)
}

fn append(message: &Message, prompt: &mut Vec<u64>) {
    match message {
        Message::Text(text) => prompt.extend(text.bytes().map(u64::from)),
        Message::Recording(samples) => prompt.extend(
            samples
                .chunks(SAMPLES_PER_TOKEN)
                .map(|part| part.iter().fold(1, |key, sample| mix(key, u64::from(sample.to_bits())))),
        ),
        Message::Result { output, .. } => prompt.extend(output.bytes().map(u64::from)),
    }
}

/// The emission of a generated token, given the hash of all tokens up to it.
pub(super) fn emission(state: u64, index: usize) -> Emission {
    if index.is_multiple_of(TEXT_EVERY) {
        Emission::Token(state as u32)
    } else {
        Emission::Frame([state as u32, (state >> 32) as u32].into())
    }
}

/// The prompt token of an emission.
pub(super) fn key(emission: &Emission) -> u64 {
    match emission {
        Emission::Token(id) => u64::from(*id),
        Emission::Frame(codes) => codes.iter().fold(2, |key, &code| mix(key, u64::from(code))),
        Emission::Said(text) => text.bytes().fold(3, |key, byte| mix(key, u64::from(byte))),
        Emission::Call(call) => call.arguments.bytes().fold(4, |key, byte| mix(key, u64::from(byte))),
    }
}

/// What answers consist of.
const WORDS: [&str; 32] = [
    "the", "keeper", "and", "a", "lamp", "went", "home", "by", "evening", "with", "some", "bread", "for",
    "her", "quiet", "boat", "in", "that", "harbor", "while", "rain", "came", "over", "our", "street", "of",
    "lights", "so", "we", "wait", "here", "today",
];

/// The text of a token.
pub(super) fn word(id: u32) -> String {
    format!("{} ", WORDS[id as usize % WORDS.len()])
}
