//! The engine that schedules and runs speech models.
//!
//! Owns requests, scheduling, KV block accounting and outputs. Must not know HTTP, wire formats or the terminal.
#![forbid(unsafe_code)]

pub mod engine;
