//! The commands, one file each: its arguments and what it does. They share what lies beside this folder and not each
//! other.

pub(crate) mod bench;
pub(crate) mod chat;
pub(crate) mod completions;
pub(crate) mod config;
pub(crate) mod docs;
pub(crate) mod doctor;
pub(crate) mod list;
pub(crate) mod pull;
pub(crate) mod rm;
pub(crate) mod say;
pub(crate) mod serve;
pub(crate) mod transcribe;
pub(crate) mod voices;
