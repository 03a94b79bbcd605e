//! Bodies, queries and messages of the dialect, field by field as `elevenlabs` 2.78 has them. Members that are not listed are
//! ignored.

use std::collections::BTreeMap;

use izwi_server::dto::error::ErrorEnvelope;
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

/// A body with members that are accepted and have no effect: `ignored` names those that a request has, after a prefix.
macro_rules! body {
    (
        $(#[$attribute:meta])*
        struct $name:ident { $($(#[$of_member:meta])* $member:ident: $type:ty,)* }
        ignores $prefix:literal: $($ignored:ident),+;
    ) => {
        $(#[$attribute])*
        pub(super) struct $name {
            $($(#[$of_member])* pub(super) $member: $type,)*
            $(#[schema(value_type = Option<Object>)] $ignored: Option<IgnoredAny>,)+
        }

        impl $name {
            fn own_ignored(&self) -> impl Iterator<Item = &'static str> {
                let members = [$((concat!($prefix, stringify!($ignored)), self.$ignored.is_some())),+];
                members.into_iter().filter(|(_, is_given)| *is_given).map(|(name, _)| name)
            }
        }
    };
}

body! {
    /// `voice_settings`.
    #[derive(Debug, Default, Deserialize, ToSchema)]
    #[schema(as = ElevenLabsVoiceSettings)]
    #[serde(expecting = "an object of voice settings")]
    struct VoiceSettings {
        speed: Option<f32>,
    }
    ignores "voice_settings.": stability, similarity_boost, style, use_speaker_boost, clone_strength;
}

body! {
    /// Body of the four speech routes.
    #[derive(Debug, Default, Deserialize, ToSchema)]
    #[schema(as = ElevenLabsSpeech)]
    #[serde(expecting = "a JSON object")]
    struct SpeechRequest {
        #[schema(value_type = String, min_length = 1, pattern = r"\S")]
        text: Option<String>,
        model_id: Option<String>,
        seed: Option<u64>,
        voice_settings: Option<VoiceSettings>,
        pronunciation_dictionary_locators: Option<Vec<DictionaryLocator>>,
    }
    ignores "": language_code, previous_text, next_text, previous_request_ids, next_request_ids, use_pvc_as_ivc, apply_text_normalization,
        apply_language_text_normalization, audio_effects;
}

impl SpeechRequest {
    /// The members that have no effect, by their names.
    pub(super) fn ignored(&self) -> Vec<&'static str> {
        let settings = self.voice_settings.iter().flat_map(VoiceSettings::own_ignored);
        self.own_ignored().chain(settings).collect()
    }
}

/// Where a pronunciation dictionary is. Its version is always that of now.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[schema(as = ElevenLabsDictionaryLocator)]
#[serde(expecting = "an object with a pronunciation_dictionary_id")]
pub(super) struct DictionaryLocator {
    pub(super) pronunciation_dictionary_id: String,
}

/// A rule of a pronunciation dictionary.
#[derive(Debug, Default, Deserialize, Serialize, ToSchema)]
#[schema(as = ElevenLabsDictionaryRule)]
#[serde(default, expecting = "an object with a type and a string_to_replace")]
pub(super) struct Rule {
    /// `alias` or `phoneme`.
    #[serde(rename = "type")]
    pub(super) kind: Option<String>,
    pub(super) string_to_replace: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) alias: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) phoneme: Option<String>,
    /// `ipa`, `cmu-arpabet` or `x-sampa`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) alphabet: Option<String>,
    pub(super) case_sensitive: Option<bool>,
    pub(super) word_boundaries: Option<bool>,
}

/// A dictionary to save, of rules.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[schema(as = ElevenLabsNewDictionary)]
#[serde(expecting = "a JSON object")]
pub(super) struct NewDictionary {
    #[schema(value_type = Vec<Rule>)]
    pub(super) rules: Option<Vec<Rule>>,
    pub(super) name: Option<String>,
    pub(super) description: Option<String>,
}

/// Rules of a dictionary.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[schema(as = ElevenLabsNewRules)]
#[serde(expecting = "a JSON object")]
pub(super) struct NewRules {
    #[schema(value_type = Vec<Rule>)]
    pub(super) rules: Option<Vec<Rule>>,
}

/// A dictionary to save, of a file.
#[derive(Debug, ToSchema)]
#[schema(as = ElevenLabsDictionaryForm)]
#[expect(dead_code, reason = "the schema of a form")]
pub(super) struct DictionaryForm {
    name: String,
    description: Option<String>,
    /// A document of W3C PLS.
    file: String,
}

/// Rules to remove, by their strings.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[schema(as = ElevenLabsRemovedRules)]
#[serde(expecting = "a JSON object")]
pub(super) struct RemovedRules {
    #[schema(value_type = Vec<String>)]
    pub(super) rule_strings: Option<Vec<String>>,
}

/// Query of `GET /v1/pronunciation-dictionaries`.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct DictionariesQuery {
    pub(super) cursor: Option<String>,
    pub(super) page_size: Option<usize>,
}

#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ElevenLabsAddedDictionary)]
pub(super) struct AddedDictionary {
    pub(super) id: String,
    pub(super) name: String,
    pub(super) created_by: &'static str,
    pub(super) creation_time_unix: u64,
    pub(super) version_id: String,
    pub(super) version_rules_num: usize,
    pub(super) description: Option<String>,
    pub(super) permission_on_resource: &'static str,
}

#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ElevenLabsDictionaryRules)]
pub(super) struct DictionaryRules {
    pub(super) id: String,
    pub(super) version_id: String,
    pub(super) version_rules_num: usize,
}

#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ElevenLabsDictionary)]
pub(super) struct Dictionary {
    pub(super) id: String,
    pub(super) latest_version_id: String,
    pub(super) latest_version_rules_num: usize,
    pub(super) name: String,
    pub(super) permission_on_resource: &'static str,
    pub(super) created_by: &'static str,
    pub(super) creation_time_unix: u64,
    pub(super) archived_time_unix: Option<u64>,
    pub(super) description: Option<String>,
}

#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ElevenLabsDictionaryWithRules)]
pub(super) struct DictionaryWithRules {
    #[serde(flatten)]
    pub(super) dictionary: Dictionary,
    pub(super) rules: Vec<Rule>,
}

#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ElevenLabsDictionaries)]
pub(super) struct DictionariesPage {
    pub(super) pronunciation_dictionaries: Vec<Dictionary>,
    pub(super) next_cursor: Option<String>,
    pub(super) has_more: bool,
}

/// Query of the speech routes. `enable_logging` and `optimize_streaming_latency` have no effect.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct SpeechQuery {
    pub(super) output_format: Option<String>,
}

/// Query of the WebSockets. The other parameters of the hosted service have no effect.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct StreamQuery {
    pub(super) model_id: Option<String>,
    pub(super) output_format: Option<String>,
    /// Seconds.
    pub(super) inactivity_timeout: Option<u64>,
    pub(super) auto_mode: Option<String>,
    pub(super) seed: Option<u64>,
}

/// Query of `GET /v2/voices`.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct VoicesQuery {
    pub(super) next_page_token: Option<String>,
    pub(super) page_size: Option<usize>,
    pub(super) search: Option<String>,
}

/// `generation_config`.
#[derive(Debug, Default, Deserialize)]
#[serde(expecting = "an object with a chunk_length_schedule")]
pub(super) struct GenerationConfig {
    /// Characters.
    pub(super) chunk_length_schedule: Option<Vec<f32>>,
}

/// A message of the client on a WebSocket.
#[derive(Debug, Default, Deserialize)]
#[serde(expecting = "a JSON object")]
pub(crate) struct ClientMessage {
    pub(super) text: Option<String>,
    pub(super) voice_settings: Option<VoiceSettings>,
    #[serde(alias = "generator_config")]
    pub(super) generation_config: Option<GenerationConfig>,
    pub(super) pronunciation_dictionary_locators: Option<Vec<DictionaryLocator>>,
    pub(super) try_trigger_generation: Option<bool>,
    pub(super) flush: Option<bool>,
    #[serde(rename = "xi_api_key", alias = "xi-api-key")]
    xi_api_key: Option<String>,
    authorization: Option<String>,
    #[serde(alias = "contextId")]
    pub(super) context_id: Option<String>,
    pub(super) close_context: Option<bool>,
    pub(super) close_socket: Option<bool>,
}

impl ClientMessage {
    /// The key that it carries.
    pub(super) fn key(&self) -> Option<&str> {
        let bearer = self.authorization.as_deref();
        let bearer = bearer.map(|value| value.split_once(' ').map_or(value, |(_, token)| token.trim()));
        self.xi_api_key.as_deref().or(bearer)
    }
}

/// `alignment` over HTTP.
#[derive(Debug, Default, Clone, PartialEq, Serialize, ToSchema)]
#[schema(as = ElevenLabsCharacterSeconds)]
pub(super) struct CharacterSeconds {
    pub(super) characters: Vec<String>,
    pub(super) character_start_times_seconds: Vec<f64>,
    pub(super) character_end_times_seconds: Vec<f64>,
}

impl CharacterSeconds {
    pub(super) fn append(&mut self, mut more: Self) {
        self.characters.append(&mut more.characters);
        self.character_start_times_seconds.append(&mut more.character_start_times_seconds);
        self.character_end_times_seconds.append(&mut more.character_end_times_seconds);
    }
}

/// `alignment` on a WebSocket.
#[derive(Debug, Default, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct CharacterMs {
    pub(super) chars: Vec<String>,
    pub(super) char_start_times_ms: Vec<u64>,
    pub(super) char_durations_ms: Vec<u64>,
}

/// Body, or line, of the routes with timestamps.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ElevenLabsAudioWithTimestamps)]
pub(super) struct AudioWithTimestamps {
    pub(super) audio_base64: String,
    pub(super) alignment: Option<CharacterSeconds>,
    pub(super) normalized_alignment: Option<CharacterSeconds>,
}

impl AudioWithTimestamps {
    pub(super) fn new(audio_base64: String, alignment: Option<CharacterSeconds>) -> Self {
        Self { audio_base64, normalized_alignment: alignment.clone(), alignment }
    }
}

/// A message of the server on a WebSocket: audio, or the end of a context.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ServerMessage<'a> {
    pub(super) audio: Option<String>,
    pub(super) is_final: Option<bool>,
    pub(super) normalized_alignment: Option<&'a CharacterMs>,
    pub(super) alignment: Option<&'a CharacterMs>,
    /// Of a session with several contexts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) context_id: Option<&'a str>,
}

/// An error on a WebSocket.
#[derive(Debug, Serialize)]
pub(super) struct ErrorMessage<'a> {
    pub(super) message: String,
    pub(super) error: &'a str,
    /// The code that the socket closes with.
    pub(super) code: u16,
    pub(super) param: Option<String>,
    /// Of the context that failed, if the session continues.
    #[serde(rename = "contextId", skip_serializing_if = "Option::is_none")]
    pub(super) context_id: Option<&'a str>,
}

/// The body of an error: the ordinary one, and what clients of the dialect read.
#[derive(Debug, Serialize)]
pub(super) struct ErrorDetail {
    #[serde(flatten)]
    pub(super) envelope: ErrorEnvelope,
    pub(super) detail: Detail,
}

#[derive(Debug, Serialize)]
pub(super) struct Detail {
    pub(super) status: &'static str,
    pub(super) message: String,
    pub(super) param: Option<String>,
}

/// A voice.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ElevenLabsVoice)]
pub(super) struct Voice {
    pub(super) voice_id: String,
    pub(super) name: String,
    /// `premade` for a model's own, `cloned` for a saved one.
    pub(super) category: &'static str,
    pub(super) labels: BTreeMap<&'static str, String>,
    pub(super) description: String,
    pub(super) preview_url: Option<String>,
    pub(super) high_quality_base_model_ids: Vec<String>,
    pub(super) available_for_tiers: Vec<String>,
    pub(super) is_owner: bool,
}

#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ElevenLabsVoices)]
pub(super) struct Voices {
    pub(super) voices: Vec<Voice>,
}

#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ElevenLabsVoicesPage)]
pub(super) struct VoicesPage {
    pub(super) voices: Vec<Voice>,
    pub(super) has_more: bool,
    pub(super) total_count: usize,
    pub(super) next_page_token: Option<String>,
}

#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ElevenLabsLanguage)]
pub(super) struct Language {
    pub(super) language_id: String,
    pub(super) name: String,
}

/// A model.
#[derive(Debug, Serialize)]
pub(crate) struct Model {
    pub(super) model_id: String,
    pub(super) name: String,
    pub(super) description: String,
    pub(super) can_do_text_to_speech: bool,
    pub(super) can_do_voice_conversion: bool,
    pub(super) can_be_finetuned: bool,
    pub(super) can_use_style: bool,
    pub(super) can_use_speaker_boost: bool,
    pub(super) serves_pro_voices: bool,
    pub(super) requires_alpha_access: bool,
    pub(super) token_cost_factor: f32,
    pub(super) maximum_text_length_per_request: usize,
    pub(super) languages: Vec<Language>,
}

/// The user's subscription: no limits of its own.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ElevenLabsSubscription)]
pub(super) struct Subscription {
    pub(super) tier: &'static str,
    pub(super) status: &'static str,
    pub(super) character_count: u64,
    pub(super) character_limit: u64,
    pub(super) can_extend_character_limit: bool,
    pub(super) allowed_to_extend_character_limit: bool,
    pub(super) voice_slots_used: u64,
    pub(super) voice_limit: u64,
    pub(super) professional_voice_slots_used: u64,
    pub(super) professional_voice_limit: u64,
    pub(super) can_extend_voice_limit: bool,
    pub(super) can_use_instant_voice_cloning: bool,
    pub(super) can_use_professional_voice_cloning: bool,
}

#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ElevenLabsUser)]
pub(super) struct User {
    pub(super) user_id: &'static str,
    pub(super) workspace_id: &'static str,
    pub(super) subscription: Subscription,
    pub(super) is_new_user: bool,
    pub(super) can_use_delayed_payment_methods: bool,
    pub(super) is_onboarding_completed: bool,
    pub(super) is_onboarding_checklist_completed: bool,
    pub(super) created_at: u64,
    pub(super) seat_type: &'static str,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_without_effect_are_told() {
        let body = r#"{"text":"a","seed":1,"voice_settings":{"speed":1.1,"stability":0,"clone_strength":1},
            "previous_text":null,"next_text":"b","previous_request_ids":["x"],"next_request_ids":[],
            "use_pvc_as_ivc":true,
            "apply_language_text_normalization":false,"audio_effects":{"pan":1},"unknown":1}"#;
        let request: SpeechRequest = serde_json::from_str(body).unwrap();
        let told = [
            "next_text",
            "previous_request_ids",
            "next_request_ids",
            "use_pvc_as_ivc",
            "apply_language_text_normalization",
            "audio_effects",
            "voice_settings.stability",
            "voice_settings.clone_strength",
        ];
        assert_eq!(request.ignored(), told);
    }

    #[test]
    fn a_message_carries_the_key_under_each_name() {
        for (message, key) in [
            (r#"{"xi_api_key":"k"}"#, Some("k")),
            (r#"{"xi-api-key":"k"}"#, Some("k")),
            (r#"{"authorization":"Bearer k"}"#, Some("k")),
            (r#"{"text":" "}"#, None),
        ] {
            assert_eq!(serde_json::from_str::<ClientMessage>(message).unwrap().key(), key, "{message}");
        }
    }
}
