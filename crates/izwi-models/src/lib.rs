//! Model families on candle.
//!
//! Owns layers (`nn`), text front ends (`text`), the architectures (`families`) and what an executor needs to run
//! any of them ([`model::SpeechModel`]). Knows no request, no scheduler, no file download and no async runtime.

pub mod codec;
pub mod device;
pub mod families;
mod frame_draws;
pub mod model;
pub mod nn;
pub mod parts;
mod portions;
mod regions;
mod sampling;
pub mod text;
pub mod transcript;
mod watchdog;
