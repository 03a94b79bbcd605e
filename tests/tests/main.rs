//! The end-to-end tests, one module per subject.

// Marks the whole crate as test code for the lints.
#![cfg(test)]

mod access;
mod access_log;
mod alignments;
mod barge_in;
mod chat;
mod clients;
mod closing;
mod connections;
mod devices;
mod diarization;
mod disconnects;
mod documentation;
mod elevenlabs;
mod ends_of_turns;
mod examples;
mod hostile;
mod installer;
mod jobs;
mod kv_swap;
mod lexicons;
mod lfm2_audio;
mod lifecycle;
mod live_text;
mod live_transcription;
mod malformed_input;
mod metrics;
mod page;
mod peers;
mod pipelines;
mod pocket_tts;
mod qwen3_tts;
mod real_kokoro;
mod real_live;
mod real_turns;
mod real_vad;
mod real_whisper;
mod real_word_times;
mod realtime;
mod remote;
mod replicas;
mod resume;
mod speech;
mod streamed_audio;
mod streaming;
mod supervision;
mod text_notes;
mod traces;
mod transcriptions;
mod uploads;
mod voices;
mod word_times;
mod wyoming;
