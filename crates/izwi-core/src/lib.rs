//! The heart of Izwi: the engine that schedules and runs speech models, and the store that fetches them.
//!
//! Owns requests, scheduling, KV book-keeping, delivery and model files. Knows no HTTP, no wire format and no terminal.

pub mod engine;
pub mod hub;
pub mod transcript;
