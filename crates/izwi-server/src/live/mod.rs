//! Transcription of audio while it is spoken: which part of it is transcribed next, and which words are decided.
//!
//! Common to the sessions that transcribe live. Knows samples, milliseconds and words; knows no frame and no
//! request.

mod agreement;
mod turn;
mod turns;

pub(crate) use agreement::LiveWord;
pub(crate) use turn::LiveEvent;
pub(crate) use turns::{Ask, LiveOptions, LiveTurns, Method, Window};
