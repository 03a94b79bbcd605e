//! Settings: their definitions, their sources, and the resolution of both to one value each.
//!
//! One row of [`table`] gives a setting its flag, its variable, its key in the file, its line in `izwi config show` and
//! its row in `docs/config.md`. Knows no command.

pub(crate) mod dictation;
mod dictation_profile;
mod field;
pub(crate) mod file;
pub(crate) mod flags;
mod key_source;
pub(crate) mod keys;
mod origin;
mod pipeline_model;
pub(crate) mod pipelines;
pub(crate) mod process;
mod ranges;
pub(crate) mod remote;
mod remote_model;
mod resolve;
mod rows;
mod server;
mod server_keys;
mod table;
mod template;
mod values;

pub(crate) use dictation_profile::Dictation;
pub(crate) use field::Section;
pub(crate) use origin::Origin;
pub(crate) use pipeline_model::PipelineModel;
pub(crate) use remote_model::RemoteModel;
pub(crate) use resolve::Resolved;
pub(crate) use server::ServerSettings;
pub(crate) use table::TABLE;
pub(crate) use values::{LogFormat, Settings};
