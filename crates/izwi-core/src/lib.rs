//! The engine that schedules and runs speech models.
//!
//! Owns requests, scheduling, KV block accounting and outputs. Knows no HTTP, no wire format and no terminal.
#![forbid(unsafe_code)]

pub mod engine;
