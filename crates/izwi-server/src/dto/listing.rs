//! Models and voices.

use serde::{Deserialize, Serialize};

#[derive(Debug, Serialize)]
pub(crate) struct ModelList {
    pub(crate) object: &'static str,
    pub(crate) data: Vec<ModelObject>,
}

#[derive(Debug, Serialize)]
pub(crate) struct ModelObject {
    pub(crate) id: String,
    pub(crate) object: &'static str,
    /// Unix time.
    pub(crate) created: u64,
    pub(crate) owned_by: &'static str,
    pub(crate) state: &'static str,
    pub(crate) default: bool,
    pub(crate) tasks: Vec<&'static str>,
    pub(crate) sample_rate: Option<u32>,
    /// Languages it hears, once it was loaded.
    pub(crate) languages: Vec<String>,
    /// Whether it renders speech in English; unknown until it was loaded.
    pub(crate) translates: Option<bool>,
}

#[derive(Debug, Serialize)]
pub(crate) struct VoiceList {
    pub(crate) object: &'static str,
    pub(crate) voices: Vec<VoiceObject>,
}

#[derive(Debug, Serialize)]
pub(crate) struct VoiceObject {
    pub(crate) id: String,
    pub(crate) object: &'static str,
    pub(crate) name: String,
    pub(crate) language: String,
    pub(crate) description: String,
    pub(crate) model: String,
    pub(crate) default: bool,
}

/// Which model's voices are meant.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct VoiceQuery {
    pub(crate) model: Option<String>,
}
