//! Model families on candle.
//!
//! Owns text front ends (`text`), the architectures (`families`), the driver that frame-by-frame families share, and what
//! an executor needs to run any of them ([`model::SpeechModel`]). Knows no request, no scheduler, no file download and no async runtime.
#![forbid(unsafe_code)]

mod appended_audio;
mod conformer;
pub mod device_speeds;
pub mod error;
pub mod families;
mod frame_driver;
mod given_text;
mod keywords;
mod log_mel;
mod mel_encoder;
#[cfg(test)]
mod mini_engine;
pub mod model;
mod regions;
mod sequential;
pub mod text;
mod voice_pack;
pub mod warm_up;
