//! Samples and formats: decoding and encoding of audio files, PCM conversion, voice activity, chunking.
//!
//! Owns everything that is audio but not a model. Knows no tensor, no request and no async runtime.
#![forbid(unsafe_code)]

pub mod chunk;
pub mod decode;
pub mod encode;
pub mod opus_packets;
pub mod parts;
pub mod pcm;
pub mod pcm_format;
pub mod pcm_input;
pub mod resample;
pub mod stretch;
pub mod tempo;
pub mod vad;

pub use encode::wav;
