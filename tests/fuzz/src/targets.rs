//! The table of targets. A target is a file of this folder and a line of the table.

mod audio;
mod base64;
mod book;
mod config;
mod conversion;
mod front_end;
mod lexicon;
mod manifest;
mod markup;
mod model_files;
mod package;
mod requests;
mod safetensors;
mod service;
mod sessions;
mod signal;
mod voice_pack;
mod weight_cache;

use crate::Target;

/// All targets.
pub const TARGETS: &[Target] = &[
    audio::FLAC,
    audio::MATROSKA,
    audio::MP4,
    audio::MPEG,
    audio::OGG,
    audio::PCM,
    base64::TARGET,
    book::TARGET,
    config::TARGET,
    conversion::CTRANSLATE2,
    conversion::ONNX,
    front_end::TARGET,
    lexicon::TARGET,
    manifest::TARGET,
    markup::TARGET,
    model_files::CONFIGS,
    model_files::CONFIGS_IN_YAML,
    model_files::SENTENCEPIECE,
    model_files::TOKENIZERS,
    package::TARGET,
    requests::FORMS,
    requests::JSON,
    safetensors::TARGET,
    sessions::CHAT,
    sessions::ELEVENLABS,
    sessions::LIVE,
    sessions::REALTIME,
    sessions::SPEECH,
    signal::RATES,
    signal::SAMPLES,
    voice_pack::TARGET,
    weight_cache::TARGET,
];
