//! Samples and formats: PCM conversion, WAV files, decoding of recordings, voice activity, chunking.
//!
//! Owns everything that is audio but not a model. Knows no tensor, no request and no async runtime.

pub mod chunk;
pub mod decode;
pub mod pcm;
pub mod vad;
pub mod wav;
