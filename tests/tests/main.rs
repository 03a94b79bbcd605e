//! The end-to-end tests, one module for each subject.

// Says to the lints that all of this is test code.
#![cfg(test)]

mod access;
mod chat;
mod disconnects;
mod lfm2_audio;
mod lifecycle;
mod malformed;
mod metrics;
mod openai;
mod qwen3_tts;
mod speech;
mod streaming;
mod transcriptions;
mod uploads;
mod voices;
mod whisper;
