//! Model families on candle.
//!
//! Owns text front ends (`text`), the architectures (`families`) and what an executor needs to run any of them
//! ([`model::SpeechModel`]). Knows no request, no scheduler, no file download and no async runtime.
#![forbid(unsafe_code)]

pub mod error;
pub mod families;
pub mod model;
mod overlap;
mod portions;
mod regions;
pub mod text;
mod watchdog;
