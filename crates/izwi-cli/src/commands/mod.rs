//! The commands: arguments and behaviour, one file or folder each. A command uses no other command.

pub(crate) mod align;
pub(crate) mod bench;
pub(crate) mod chat;
pub(crate) mod completions;
pub(crate) mod config;
pub(crate) mod diarize;
pub(crate) mod dictate;
pub(crate) mod docs;
pub(crate) mod doctor;
pub(crate) mod list;
pub(crate) mod logs;
pub(crate) mod man;
pub(crate) mod mcp;
pub(crate) mod open;
pub(crate) mod plan;
pub(crate) mod pull;
pub(crate) mod read;
pub(crate) mod rm;
pub(crate) mod say;
pub(crate) mod serve;
pub(crate) mod service;
pub(crate) mod speakers;
pub(crate) mod speech_dispatcher;
pub(crate) mod status;
pub(crate) mod transcribe;
pub(crate) mod voices;
