//! The Qwen3-TTS family.
#![allow(dead_code)]

mod config;
mod generation;
#[cfg(test)]
mod golden;
#[cfg(test)]
mod golden_set;
mod order;
mod predictor;
mod prompt;
mod talker;
mod tokens;
