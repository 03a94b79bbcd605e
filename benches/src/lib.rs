//! Shared by the ASR benches: recordings with transcripts, and engines with real models.
#![forbid(unsafe_code)]

pub mod clips;
pub mod engines;
pub mod report;
