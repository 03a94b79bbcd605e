//! The model store: which models exist, where their files come from, and what is installed.
//!
//! Owns manifests, downloads, verification, conversion to safetensors, saved voices and the folders on disk. Knows no
//! engine, no tensor library, no model architecture and no terminal. Every call blocks; async callers use their
//! blocking pool.

#![forbid(unsafe_code)]

mod access;
mod block_cache;
mod catalogue;
mod convert;
mod digest;
mod error;
mod files;
#[doc(hidden)]
pub mod fuzzing;
mod home;
mod io_error;
mod lexicons;
mod manifest;
mod program;
mod progress;
mod room;
mod rules;
mod saved;
mod source_error;
mod sources;
mod speakers;
mod store;
mod voices;
mod work_folder;

pub use access::Access;
pub use block_cache::BlockCache;
pub use convert::ConversionError;
pub use digest::sha256;
pub use error::{HubError, SourceFailure};
pub use files::{close_file, create_private_folder, folder_bytes, private_file, write_private};
pub use io_error::IoError;
pub use izwi_types::Task;
pub use lexicons::{LexiconStore, SavedLexicon};
pub use manifest::{Limits, Manifest};
pub use program::{find_pip, find_program};
pub use progress::{ProgressSink, Silent};
pub use saved::{Saved, SavedError, SavedFiles, Stamp};
pub use source_error::SourceError;
pub use sources::Source;
pub use speakers::{SavedSpeaker, SpeakerStore};
pub use store::{ModelStatus, Store};
pub use voices::{MAX_PACK_BYTES, SavedVoice, VoiceError, VoiceLimits, VoiceNotes, VoiceStore};
pub use work_folder::{WorkError, WorkFolder};
