//! Wire types. No other module derives a serde type, and no wire type is used outside the server.

pub(crate) mod alignment;
pub(crate) mod catalogue;
pub(crate) mod chat;
pub(crate) mod diarized;
pub(crate) mod diarized_segment;
pub(crate) mod encoding;
pub mod error;
pub(crate) mod job;
pub(crate) mod lexicon;
pub mod listing;
pub(crate) mod live;
pub mod schemas;
pub(crate) mod seconds;
pub(crate) mod session;
pub(crate) mod speech;
pub(crate) mod status;
pub(crate) mod ticket;
pub(crate) mod timed_segment;
pub mod transcription;
pub(crate) mod verbose_json;
