//! Wire types. Nothing else in the server reads or writes JSON by hand, and no wire type is used beyond the edge.

pub(crate) mod chat;
pub(crate) mod error;
pub(crate) mod listing;
pub(crate) mod session;
pub(crate) mod speech;
pub(crate) mod status;
pub(crate) mod transcription;
