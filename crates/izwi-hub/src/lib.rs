//! The model store: what models exist, where their files come from, and what is installed.
//!
//! Owns manifests, downloads, verification, conversion to safetensors and the folders on disk. Knows no engine, no
//! tensor library, no architecture and no terminal; everything here blocks, so async callers go through their
//! blocking pool.

#![forbid(unsafe_code)]

mod access;
mod catalogue;
mod conversion;
mod ctranslate2;
mod digest;
mod error;
mod fetch;
mod manifest;
mod onnx;
mod progress;
mod pull;
mod record;
mod store;
mod voices;

pub use access::Access;
pub use conversion::ConversionError;
pub use error::{HubError, IoError, SourceError, SourceFailure};
pub use manifest::{Conversion, Ecosystem, Limits, Manifest, Package, Source, SourceFile, Task, Trust};
pub use progress::{ProgressSink, Silent};
pub use store::{ModelStatus, Store};
pub use voices::{MAX_PACK_BYTES, SavedVoice, VoiceError, VoiceNotes, VoiceStore};
