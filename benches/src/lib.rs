//! Shared by the benches: recordings with transcripts, engines, and clients of live transcription.
#![forbid(unsafe_code)]

pub mod clips;
pub mod dictation;
pub mod engines;
pub mod report;
