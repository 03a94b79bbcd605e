//! The configuration of a Realtime session and of a response: what clients change of it, and how they see it.
//!
//! `session.update` changes only the members it has. Knows no model.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use izwi_core::engine::{Tool, ToolChoice};
use izwi_server::extract::{check_range, non_blank};
use izwi_server::live::LiveSettings;
use izwi_types::excerpt;
use serde::{Deserialize, Deserializer};
use serde_json::{Value, json};

use super::audio_format::{AudioFormat, FormatPatch};
use super::output::{Output, OutputPatch};
use super::refusal::Refusal;
use super::tools;
use super::turn_detection::{TurnDetection, TurnDetectionPatch};

const MAX_OUTPUT_TOKENS: RangeInclusive<u64> = 1..=4_096;
/// Metadata of a response. <https://platform.openai.com/docs/api-reference/realtime-client-events/response/create>
const MAX_METADATA: usize = 16;
/// The ASR model without one of its own: an alias of the default one.
const DEFAULT_ASR: &str = "whisper-1";

/// What a session does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// The model answers.
    Realtime,
    /// What is said is transcribed.
    Transcription,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Modality {
    Audio,
    Text,
}

impl Modality {
    fn parse(param: &str, names: &[String]) -> Result<Self, Refusal> {
        match names {
            [one] if one == "audio" => Ok(Self::Audio),
            [one] if one == "text" => Ok(Self::Text),
            _ => Err(Refusal::invalid(param, format!("{param} must be [\"audio\"] or [\"text\"]"))),
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Audio => "audio",
            Self::Text => "text",
        }
    }
}

/// How what the user says is transcribed.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Transcription {
    /// As the client names it; `None` for the default one.
    pub(super) model: Option<String>,
    pub(super) settings: LiveSettings,
    /// Whether the client asked for it.
    pub(super) is_told: bool,
}

impl Transcription {
    fn new(patch: TranscriptionPatch) -> Self {
        let TranscriptionPatch { model, language, prompt, keywords } = patch;
        let keywords = keywords.unwrap_or_default();
        let settings = LiveSettings { language, prompt, keywords, ..LiveSettings::default() };
        Self { model: non_blank(model), settings, is_told: true }
    }
}

/// The configuration of a session.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct SessionConfig {
    pub(super) kind: Kind,
    pub(super) instructions: Option<String>,
    pub(super) modality: Modality,
    pub(super) max_output_tokens: Option<usize>,
    pub(super) input_format: AudioFormat,
    pub(super) output: Output,
    pub(super) turn_detection: Option<TurnDetection>,
    pub(super) tools: Vec<Tool>,
    pub(super) tool_choice: ToolChoice,
    pub(super) transcription: Option<Transcription>,
    /// As the client sent them; `None` if it did not.
    transcription_view: Option<TranscriptionPatch>,
}

/// `session` of `session.update`. Members that are not listed are ignored, as clients of the OpenAI API expect.
#[derive(Debug, Default, Deserialize)]
#[serde(expecting = "an object")]
pub(crate) struct SessionPatch {
    #[serde(rename = "type")]
    pub(super) kind: Option<String>,
    pub(super) model: Option<String>,
    instructions: Option<String>,
    output_modalities: Option<Vec<String>>,
    max_output_tokens: Option<Value>,
    audio: Option<AudioPatch>,
    tools: Option<Vec<Value>>,
    tool_choice: Option<Value>,
    prompt: Option<Value>,
    truncation: Option<Value>,
    include: Option<Vec<String>>,
    /// Whether it came in the shape of the beta.
    #[serde(skip)]
    pub(super) is_beta: bool,
}

#[derive(Debug, Default, Deserialize)]
#[serde(expecting = "an object")]
struct AudioPatch {
    input: Option<InputPatch>,
    output: Option<OutputPatch>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(expecting = "an object")]
struct InputPatch {
    format: Option<FormatPatch>,
    #[serde(default, deserialize_with = "present")]
    turn_detection: Option<Option<TurnDetectionPatch>>,
    #[serde(default, deserialize_with = "present")]
    transcription: Option<Option<TranscriptionPatch>>,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(expecting = "an object")]
pub(super) struct TranscriptionPatch {
    pub(super) model: Option<String>,
    language: Option<String>,
    prompt: Option<String>,
    keywords: Option<Vec<String>>,
}

/// `response` of `response.create`.
#[derive(Debug, Default, Deserialize)]
#[serde(expecting = "an object")]
pub(crate) struct ResponsePatch {
    instructions: Option<String>,
    output_modalities: Option<Vec<String>>,
    max_output_tokens: Option<Value>,
    audio: Option<AudioPatch>,
    metadata: Option<BTreeMap<String, String>>,
    pub(super) conversation: Option<String>,
    pub(super) input: Option<Vec<Value>>,
    tools: Option<Vec<Value>>,
    tool_choice: Option<Value>,
    prompt: Option<Value>,
}

/// What a response is generated with.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct ResponseConfig {
    pub(super) instructions: Option<String>,
    pub(super) modality: Modality,
    pub(super) max_output_tokens: Option<usize>,
    pub(super) output: Output,
    pub(super) tools: Vec<Tool>,
    pub(super) tool_choice: ToolChoice,
    metadata: Option<BTreeMap<String, String>>,
}

/// Tells null from absent.
fn present<'de, T: Deserialize<'de>, D: Deserializer<'de>>(from: D) -> Result<Option<Option<T>>, D::Error> {
    Option::<T>::deserialize(from).map(Some)
}

impl SessionConfig {
    /// A session with a model of conversations, as it is opened.
    pub(super) fn realtime() -> Self {
        Self {
            kind: Kind::Realtime,
            instructions: None,
            modality: Modality::Audio,
            max_output_tokens: None,
            input_format: AudioFormat::PCM,
            output: Output { format: AudioFormat::PCM, voice: None, speed: None },
            turn_detection: Some(TurnDetection::default()),
            tools: Vec::new(),
            tool_choice: ToolChoice::Auto,
            transcription: None,
            transcription_view: None,
        }
    }

    /// A transcription session, as it is opened; with the default model without one.
    pub(super) fn transcription(model: Option<String>) -> Self {
        let patch = TranscriptionPatch { model, ..TranscriptionPatch::default() };
        Self {
            kind: Kind::Transcription,
            transcription: Some(Transcription::new(patch.clone())),
            transcription_view: Some(patch),
            ..Self::realtime()
        }
    }

    /// The configuration with the members of `patch` in place.
    pub(super) fn patched(&self, patch: &SessionPatch) -> Result<Self, Refusal> {
        check_prompt(patch.prompt.as_ref(), "session")?;
        if let Some(truncation) = patch.truncation.as_ref().filter(|value| *value != "auto") {
            let shown = excerpt(truncation);
            return Err(Refusal::unsupported("session.truncation", &format!("it is {shown}; use \"auto\"")));
        }
        if patch.include.as_ref().is_some_and(|include| !include.is_empty()) {
            return Err(Refusal::unsupported("session.include", "there are no logprobs; leave it out"));
        }
        let kind = match patch.kind.as_deref() {
            None => self.kind,
            Some("realtime") => Kind::Realtime,
            Some("transcription") => Kind::Transcription,
            Some(other) => {
                let message = format!("session.type is '{}'; use realtime or transcription", excerpt(other));
                return Err(Refusal::invalid("session.type", message));
            }
        };
        let mut config = match kind {
            _ if kind == self.kind => self.clone(),
            Kind::Realtime => Self::realtime(),
            Kind::Transcription => Self::transcription(None),
        };
        if let Some(instructions) = &patch.instructions {
            config.instructions = non_blank(Some(instructions.clone()));
        }
        if let Some(names) = &patch.output_modalities {
            config.modality = Modality::parse("session.output_modalities", names)?;
        }
        if let Some(tokens) = &patch.max_output_tokens {
            config.max_output_tokens = max_tokens("session.max_output_tokens", tokens)?;
        }
        if let Some(tools) = &patch.tools {
            config.tools = tools::read("session", tools)?;
        }
        if let Some(choice) = &patch.tool_choice {
            config.tool_choice = tools::choice("session", choice)?;
        }
        if let Some(input) = patch.audio.as_ref().and_then(|audio| audio.input.as_ref()) {
            config.patch_input(input)?;
        }
        if let Some(output) = patch.audio.as_ref().and_then(|audio| audio.output.as_ref()) {
            config.output = output.checked("session.audio.output", config.output)?;
        }
        Ok(config)
    }

    fn patch_input(&mut self, input: &InputPatch) -> Result<(), Refusal> {
        if let Some(format) = &input.format {
            self.input_format = format.checked("session.audio.input.format", self.input_format)?;
        }
        match &input.turn_detection {
            None => {}
            Some(None) => self.turn_detection = None,
            Some(Some(patch)) => self.turn_detection = Some(patch.applied(self.turn_detection)?),
        }
        match &input.transcription {
            None => {}
            Some(None) if self.kind == Kind::Transcription => {
                let what = "a transcription session transcribes; leave it out for the default model";
                return Err(Refusal::unsupported("session.audio.input.transcription", what));
            }
            Some(None) => (self.transcription, self.transcription_view) = (None, None),
            Some(Some(patch)) => {
                let mut merged = self.transcription_view.clone().unwrap_or_default();
                merged.model = patch.model.clone().or(merged.model);
                merged.language = patch.language.clone().or(merged.language);
                merged.prompt = patch.prompt.clone().or(merged.prompt);
                merged.keywords = patch.keywords.clone().or(merged.keywords);
                self.transcription = Some(Transcription::new(merged.clone()));
                self.transcription_view = Some(merged);
            }
        }
        Ok(())
    }

    /// The session as its client sees it.
    pub(super) fn view(&self, id: &str, model: Option<&str>) -> Value {
        let turn_detection = self.turn_detection.map(TurnDetection::view);
        let transcription = self.transcription_view.as_ref().map(|patch| {
            let model = patch.model.as_deref().unwrap_or(DEFAULT_ASR);
            let mut view = json!({ "model": model, "language": patch.language, "prompt": patch.prompt });
            // The hosted API has none: a client that does not know the field may refuse it.
            if let Some(keywords) = &patch.keywords {
                view["keywords"] = json!(keywords);
            }
            view
        });
        let input = json!({
            "format": self.input_format.view(),
            "noise_reduction": null,
            "transcription": transcription,
            "turn_detection": turn_detection,
        });
        if self.kind == Kind::Transcription {
            return json!({
                "type": "transcription",
                "object": "realtime.transcription_session",
                "id": id,
                "audio": {"input": input},
                "include": null,
            });
        }
        json!({
            "type": "realtime",
            "object": "realtime.session",
            "id": id,
            "model": model,
            "instructions": self.instructions.as_deref().unwrap_or_default(),
            "output_modalities": [self.modality.name()],
            "max_output_tokens": tokens_view(self.max_output_tokens),
            "audio": {"input": input, "output": self.output.view()},
            "tools": tools::view(&self.tools),
            "tool_choice": tools::choice_view(&self.tool_choice),
            "truncation": "auto",
            "tracing": null,
            "prompt": null,
            "include": null,
        })
    }

    /// What a response without settings of its own is generated with.
    pub(super) fn response(&self) -> ResponseConfig {
        ResponseConfig {
            instructions: self.instructions.clone(),
            modality: self.modality,
            max_output_tokens: self.max_output_tokens,
            output: self.output.clone(),
            tools: self.tools.clone(),
            tool_choice: self.tool_choice.clone(),
            metadata: None,
        }
    }
}

impl ResponseConfig {
    /// The settings with those of a client in place.
    pub(super) fn patched(mut self, patch: ResponsePatch) -> Result<Self, Refusal> {
        check_prompt(patch.prompt.as_ref(), "response")?;
        if let Some(tools) = &patch.tools {
            self.tools = tools::read("response", tools)?;
        }
        if let Some(choice) = &patch.tool_choice {
            self.tool_choice = tools::choice("response", choice)?;
        }
        if let Some(metadata) = patch.metadata {
            if metadata.len() > MAX_METADATA {
                let message = format!("response.metadata has more than {MAX_METADATA} members");
                return Err(Refusal::invalid("response.metadata", message));
            }
            self.metadata = Some(metadata);
        }
        if let Some(instructions) = non_blank(patch.instructions) {
            self.instructions = Some(instructions);
        }
        if let Some(names) = &patch.output_modalities {
            self.modality = Modality::parse("response.output_modalities", names)?;
        }
        if let Some(tokens) = &patch.max_output_tokens {
            self.max_output_tokens = max_tokens("response.max_output_tokens", tokens)?;
        }
        if let Some(output) = patch.audio.and_then(|audio| audio.output) {
            self.output = output.checked("response.audio.output", self.output)?;
        }
        Ok(self)
    }

    /// A response as its client sees it, without its id and its end.
    pub(super) fn view(&self) -> Value {
        json!({
            "object": "realtime.response",
            "output_modalities": [self.modality.name()],
            "max_output_tokens": tokens_view(self.max_output_tokens),
            "audio": {"output": self.output.view()},
            "metadata": self.metadata,
        })
    }
}

/// Refuses prompt templates.
fn check_prompt(prompt: Option<&Value>, of: &str) -> Result<(), Refusal> {
    match prompt {
        Some(_) => Err(Refusal::unsupported(&format!("{of}.prompt"), "send instructions instead")),
        None => Ok(()),
    }
}

/// Reads a limit of tokens: a number, or `"inf"` for the model's own.
fn max_tokens(param: &str, value: &Value) -> Result<Option<usize>, Refusal> {
    if value == "inf" {
        return Ok(None);
    }
    let Some(tokens) = value.as_u64() else {
        let message = format!("{param} is {}; send a number or \"inf\"", excerpt(value));
        return Err(Refusal::invalid(param, message));
    };
    let tokens = check_range(param, tokens, &MAX_OUTPUT_TOKENS)?;
    Ok(usize::try_from(tokens).ok())
}

fn tokens_view(tokens: Option<usize>) -> Value {
    tokens.map_or_else(|| "inf".into(), Into::into)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn patched(config: &SessionConfig, patch: Value) -> SessionConfig {
        config.patched(&serde_json::from_value(patch).unwrap()).unwrap()
    }

    #[test]
    fn an_update_changes_only_its_members() {
        let config = SessionConfig::realtime();
        assert_eq!(patched(&config, json!({})), config);
        let vad = json!({"audio": {"input": {"turn_detection": {"type": "server_vad", "threshold": 0.7}}}});
        let changed = patched(&config, vad);
        let turns = changed.turn_detection.unwrap();
        assert_eq!((turns.options.threshold, turns.options.silence_duration_ms), (0.7, 500));
        let changed =
            patched(&changed, json!({"audio": {"input": {"turn_detection": {"create_response": false}}}}));
        let turns = changed.turn_detection.unwrap();
        assert_eq!((turns.options.threshold, turns.create_response), (0.7, false));
        let off = patched(&changed, json!({"audio": {"input": {"turn_detection": null}}}));
        assert_eq!(off.turn_detection, None);
        assert_eq!(patched(&off, json!({"instructions": "Be kind."})).turn_detection, None);
        let listening =
            json!({"audio": {"input": {"transcription": {"model": "whisper-1", "language": "en"}}}});
        let listening = patched(&off, listening);
        let later = patched(&listening, json!({"audio": {"input": {"transcription": {"prompt": "Names."}}}}));
        let shown = &later.view("s", None)["audio"]["input"]["transcription"];
        assert_eq!(*shown, json!({"model": "whisper-1", "language": "en", "prompt": "Names."}));
        let words = patched(&later, json!({"audio": {"input": {"transcription": {"keywords": ["Kumett"]}}}}));
        assert_eq!(words.view("s", None)["audio"]["input"]["transcription"]["keywords"], json!(["Kumett"]));
        let silent = patched(&later, json!({"audio": {"input": {"transcription": null}}}));
        assert_eq!(silent.transcription, None);
    }

    #[test]
    fn a_transcription_session_keeps_its_transcription() {
        let config = patched(&SessionConfig::realtime(), json!({"type": "transcription"}));
        assert_eq!(config, SessionConfig::transcription(None));
        let patch = serde_json::from_value(json!({"audio": {"input": {"transcription": null}}})).unwrap();
        let error = config.patched(&patch).unwrap_err();
        assert_eq!(error.param.as_deref(), Some("session.audio.input.transcription"));
    }
}
