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
    /// Languages it transcribes, once it was loaded.
    pub(crate) languages: Vec<String>,
    /// Whether it translates speech to English; unknown until it was loaded.
    pub(crate) translates: Option<bool>,
    /// Whether it clones the voice of a recording; unknown until it was loaded.
    pub(crate) clones_voices: Option<bool>,
}

#[derive(Debug, Serialize)]
pub(crate) struct VoiceList {
    pub(crate) object: &'static str,
    pub(crate) voices: Vec<VoiceObject>,
}

/// The `object` of a voice, and of one that was removed.
pub(crate) const VOICE: &str = "audio.voice";
pub(crate) const VOICE_DELETED: &str = "audio.voice.deleted";

#[derive(Debug, Serialize)]
pub(crate) struct VoiceObject {
    pub(crate) id: String,
    /// Always [`VOICE`].
    pub(crate) object: &'static str,
    /// Always `audio_sample`: how it was made.
    #[serde(rename = "type")]
    pub(crate) kind: &'static str,
    pub(crate) name: String,
    /// Unix time at which it was saved; of a model's own voice, at which the server was started.
    pub(crate) created_at: u64,
    /// BCP 47 tag; `None` for a saved voice, which supports all languages of its model.
    pub(crate) language: Option<String>,
    pub(crate) description: String,
    /// The model it belongs to, or the model that made it, if known.
    pub(crate) model: Option<String>,
    pub(crate) default: bool,
    /// `izwi` for a model's own voice, `user` for a saved one.
    pub(crate) owned_by: &'static str,
    /// Models that accept it, as far as known.
    pub(crate) models: Vec<String>,
    /// Transcript of the recording it was made of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) text: Option<String>,
}

/// A voice that was removed.
#[derive(Debug, Serialize)]
pub(crate) struct VoiceDeleted {
    pub(crate) id: String,
    pub(crate) object: &'static str,
    pub(crate) deleted: bool,
}

/// `POST /v1/audio/voices`. Members that are not listed are ignored.
#[derive(Debug, Default, Deserialize)]
#[serde(expecting = "a JSON object")]
pub(crate) struct VoiceRequest {
    pub(crate) name: Option<String>,
    pub(crate) model: Option<String>,
    pub(crate) ref_audio: Option<String>,
    pub(crate) audio_sample: Option<String>,
    pub(crate) ref_text: Option<String>,
    pub(crate) text: Option<String>,
    pub(crate) x_vector_only_mode: Option<bool>,
    pub(crate) overwrite: Option<bool>,
    #[serde(rename = "type")]
    pub(crate) kind: Option<String>,
    pub(crate) prompt: Option<String>,
    pub(crate) script_hint: Option<String>,
}

/// Query of the voice routes.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct VoiceQuery {
    pub(crate) model: Option<String>,
}
