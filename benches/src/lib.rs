//! Shared by the ASR benches: recordings with transcripts, and engines with real models.

pub mod clips;
pub mod engines;
pub mod report;
