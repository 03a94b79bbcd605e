//! An output module of Speech Dispatcher, through which screen readers speak.
//!
//! Owns the protocol of modules, what a screen reader hears of a text, and the sound that it asks for. Speech itself comes from
//! a server, as for any client. Protocol and texts are pure; the session joins them.

mod message;
mod names;
mod parameters;
mod protocol;
mod session;
mod sound;
mod speaker;
mod speech;

pub(crate) use session::serve;
pub(crate) use speaker::Speaker;

/// The name of the program of the module.
pub(crate) const MODULE: &str = "sd_izwi";
