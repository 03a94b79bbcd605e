//! Models and voices.

use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::schemas;

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ModelList {
    #[schema(schema_with = schemas::list_object)]
    pub(crate) object: &'static str,
    pub(crate) data: Vec<ModelObject>,
}

/// Models that speak.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct AudioModelList {
    #[schema(schema_with = schemas::list_object)]
    pub(crate) object: &'static str,
    pub(crate) models: Vec<ModelObject>,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ModelObject {
    pub(crate) id: String,
    #[schema(schema_with = schemas::model_object)]
    pub(crate) object: &'static str,
    /// Unix time.
    pub(crate) created: u64,
    /// `izwi`; `remote` for a loaded model that other servers run.
    pub(crate) owned_by: &'static str,
    #[schema(schema_with = schemas::model_state)]
    pub(crate) state: &'static str,
    /// Whether it is used where a request names no model.
    pub(crate) default: bool,
    #[schema(schema_with = schemas::tasks)]
    pub(crate) tasks: Vec<&'static str>,
    /// Hz; unknown until it was loaded.
    pub(crate) sample_rate: Option<u32>,
    /// Languages it transcribes, once it was loaded.
    pub(crate) languages: Vec<String>,
    /// Whether it translates speech to English; unknown until it was loaded.
    pub(crate) translates: Option<bool>,
    /// Whether it aligns a text with a recording; unknown until it was loaded.
    pub(crate) aligns_text: Option<bool>,
    /// Whether it clones the voice of a recording; unknown until it was loaded.
    pub(crate) clones_voices: Option<bool>,
}

/// A model whose files were removed.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ModelDeleted {
    pub(crate) id: String,
    #[schema(schema_with = schemas::model_object)]
    pub(crate) object: &'static str,
    pub(crate) deleted: bool,
}

#[derive(Debug, Serialize, ToSchema)]
pub struct VoiceList {
    #[schema(schema_with = schemas::list_object)]
    pub(crate) object: &'static str,
    pub voices: Vec<VoiceObject>,
}

#[derive(Debug, Serialize, ToSchema)]
pub struct VoiceObject {
    pub id: String,
    #[schema(schema_with = schemas::voice_object)]
    pub(crate) object: &'static str,
    /// Always `audio_sample`: how it was made.
    #[serde(rename = "type")]
    #[schema(schema_with = schemas::voice_kind)]
    pub(crate) kind: &'static str,
    pub name: String,
    /// Unix time at which it was saved; of a model's own voice, at which the server was started.
    pub(crate) created_at: u64,
    /// BCP 47 tag; `mul` for a voice that speaks every language of its model, `None` for a saved voice, which supports all languages of its model.
    pub language: Option<String>,
    /// `None` where it is not known.
    #[schema(schema_with = schemas::gender)]
    pub gender: Option<&'static str>,
    pub description: String,
    /// The model it belongs to, or the model that made it, if known.
    pub(crate) model: Option<String>,
    pub(crate) default: bool,
    /// `izwi` for a model's own voice, `user` for a saved one.
    pub owned_by: &'static str,
    /// Models that accept it, as far as known.
    pub models: Vec<String>,
    /// Transcript of the recording it was made of.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(crate) text: Option<String>,
}

/// A voice that was removed.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct VoiceDeleted {
    pub(crate) id: String,
    #[schema(schema_with = schemas::voice_deleted_object)]
    pub(crate) object: &'static str,
    pub(crate) deleted: bool,
}

/// `POST /v1/audio/voices`. Members that are not listed are ignored.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(expecting = "a JSON object")]
pub(crate) struct VoiceRequest {
    /// Name of the voice.
    #[schema(value_type = String, min_length = 1, max_length = 64, pattern = "^[a-z0-9][a-z0-9._-]*$")]
    pub(crate) name: Option<String>,
    /// A model that clones voices; the default model without it.
    pub(crate) model: Option<String>,
    /// The recording, as base64 or a `data:` URL. Required, unless `audio_sample` is given.
    #[schema(format = "base64-audio")]
    pub(crate) ref_audio: Option<String>,
    /// Another name of `ref_audio`.
    #[schema(format = "base64-audio")]
    pub(crate) audio_sample: Option<String>,
    /// What is spoken in the recording.
    pub(crate) ref_text: Option<String>,
    /// Another name of `ref_text`.
    pub(crate) text: Option<String>,
    /// Whether only the timbre of the recording is used, and not its prosody.
    #[schema(default = false)]
    pub(crate) x_vector_only_mode: Option<bool>,
    /// Whether a saved voice of the same name is replaced.
    #[schema(default = false)]
    pub(crate) overwrite: Option<bool>,
    #[serde(rename = "type")]
    #[schema(schema_with = schemas::wanted_voice_kind)]
    pub(crate) kind: Option<String>,
    /// Refused: voices are made of recordings only.
    #[schema(max_length = 0)]
    pub(crate) prompt: Option<String>,
    /// Refused, as `prompt`.
    #[schema(max_length = 0)]
    pub(crate) script_hint: Option<String>,
}

/// Query of the voice routes.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct VoiceQuery {
    /// An installed model whose voices are meant.
    pub model: Option<String>,
}
