//! Events of the Realtime API: what a client sends, checked for shape, and what the server sends. Knows no session.
//!
//! Names and members are those of `openai.types.realtime` of the `openai` package for Python 3.54.

use izwi_server::ApiError;
use izwi_server::dto::transcription::DurationUsage;
use izwi_server::extract::parse_json;
use izwi_server::ws::outbox::Outbox;
use izwi_server::ws::protocol::ClientMessage;
use izwi_types::{bounded, excerpt};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::beta;
use super::config::{ResponsePatch, SessionPatch};
use super::refusal::Refusal;

/// The types that clients may send.
const CLIENT_EVENTS: &str = "session.update, input_audio_buffer.append, input_audio_buffer.commit, \
    input_audio_buffer.clear, conversation.item.create, conversation.item.delete, conversation.item.retrieve, \
    conversation.item.truncate, response.create, response.cancel";
/// The most characters of a client's `event_id` that are repeated.
const MAX_EVENT_ID_CHARS: usize = 512;

/// A client's message.
#[derive(Debug)]
pub(crate) struct ClientEvent {
    pub(super) event_id: Option<String>,
    pub(super) event: Result<Event, Refusal>,
}

#[derive(Debug)]
pub(crate) enum Event {
    Update(Box<SessionPatch>),
    /// Audio in the session's input format.
    Append(Vec<u8>),
    Commit,
    Clear,
    CreateItem(Box<ItemFields>, Option<String>),
    DeleteItem(String),
    RetrieveItem(String),
    TruncateItem(Truncation),
    CreateResponse(Box<ResponsePatch>),
    CancelResponse(Option<String>),
}

/// `conversation.item.truncate`.
#[derive(Debug, Deserialize)]
pub(crate) struct Truncation {
    pub(super) item_id: String,
    pub(super) content_index: u64,
    pub(super) audio_end_ms: u64,
}

/// An item as clients create it.
#[derive(Debug, Deserialize)]
#[serde(expecting = "an object")]
pub(crate) struct ItemFields {
    pub(super) id: Option<String>,
    #[serde(rename = "type")]
    pub(super) kind: String,
    pub(super) role: Option<String>,
    pub(super) content: Option<Vec<PartFields>>,
    pub(super) call_id: Option<String>,
    pub(super) name: Option<String>,
    pub(super) arguments: Option<String>,
    pub(super) output: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(expecting = "an object")]
pub(crate) struct PartFields {
    #[serde(rename = "type")]
    pub(super) kind: Option<String>,
    pub(super) text: Option<String>,
    pub(super) audio: Option<String>,
    pub(super) transcript: Option<String>,
}

#[derive(Deserialize)]
struct Head {
    #[serde(rename = "type", default)]
    kind: Value,
    #[serde(default)]
    event_id: Value,
}

/// Settings whose shape is not known yet.
#[derive(Deserialize)]
struct Raw {
    #[serde(default)]
    session: Value,
    #[serde(default)]
    response: Value,
}

#[derive(Deserialize)]
struct UpdateFields {
    session: SessionPatch,
}

#[derive(Deserialize)]
struct AppendFields {
    audio: String,
}

#[derive(Deserialize)]
struct CreateItemFields {
    item: ItemFields,
    previous_item_id: Option<String>,
}

#[derive(Deserialize)]
struct ItemIdFields {
    item_id: String,
}

#[derive(Deserialize)]
struct CreateResponseFields {
    response: Option<ResponsePatch>,
}

#[derive(Deserialize)]
struct CancelFields {
    response_id: Option<String>,
}

/// Reads an object again, so that errors name its members by their paths.
fn parse_value<T: DeserializeOwned>(value: &Value) -> Result<T, ApiError> {
    parse_json(value.to_string().as_bytes())
}

/// Reads base64 of audio.
pub(super) fn audio_bytes(base64: &str) -> Result<Vec<u8>, Refusal> {
    let decoded = izwi_audio::decode::from_base64(base64, base64.len());
    decoded.map_err(|error| ApiError::Audio { param: "audio", error }.into())
}

impl ClientEvent {
    pub(super) fn parse(message: &ClientMessage) -> Self {
        let text = match message {
            ClientMessage::Text(text) => text.as_bytes(),
            ClientMessage::Binary(_) => {
                return Self { event_id: None, event: Err(ApiError::BinaryFrame.into()) };
            }
        };
        Self::parse_text(text)
    }

    /// The event that makes a session begin with these settings.
    pub(super) fn of_settings(settings: &Value) -> Self {
        Self::parse_text(json!({"type": "session.update", "session": settings}).to_string().as_bytes())
    }

    fn parse_text(text: &[u8]) -> Self {
        let head = match parse_json::<Head>(text) {
            Ok(head) => head,
            Err(error) => return Self { event_id: None, event: Err(error.into()) },
        };
        let event_id = head.event_id.as_str().map(|id| bounded(id, MAX_EVENT_ID_CHARS));
        let event = match head.kind.as_str() {
            Some(kind) => Event::parse(kind, text),
            None => Err(Refusal::invalid("type", "type is missing or not a string; every event needs one")),
        };
        Self { event_id, event }
    }
}

impl Event {
    /// Reads `session.update`; `kind` is the type of the session where the event implies it.
    fn update(text: &[u8], kind: Option<&str>) -> Result<Self, Refusal> {
        let raw = parse_json::<Raw>(text)?.session;
        let (mut session, is_beta) = beta::settings(raw, "session")?;
        if let (Some(kind), Some(members)) = (kind, session.as_object_mut()) {
            members.insert("type".to_owned(), kind.into());
        }
        let mut patch = parse_value::<UpdateFields>(&json!({"session": session}))?.session;
        patch.is_beta = is_beta || kind.is_some();
        Ok(Self::Update(Box::new(patch)))
    }

    fn create_response(text: &[u8]) -> Result<Self, Refusal> {
        let raw = parse_json::<Raw>(text)?.response;
        let (response, _) = beta::settings(raw, "response")?;
        let fields: CreateResponseFields = parse_value(&json!({"response": response}))?;
        Ok(Self::CreateResponse(Box::new(fields.response.unwrap_or_default())))
    }

    fn parse(kind: &str, text: &[u8]) -> Result<Self, Refusal> {
        Ok(match kind {
            "session.update" => Self::update(text, None)?,
            // Of the beta.
            "transcription_session.update" => Self::update(text, Some("transcription"))?,
            "input_audio_buffer.append" => {
                Self::Append(audio_bytes(&parse_json::<AppendFields>(text)?.audio)?)
            }
            "input_audio_buffer.commit" => Self::Commit,
            "input_audio_buffer.clear" => Self::Clear,
            "conversation.item.create" => {
                let fields: CreateItemFields = parse_json(text)?;
                Self::CreateItem(Box::new(fields.item), fields.previous_item_id)
            }
            "conversation.item.delete" => Self::DeleteItem(parse_json::<ItemIdFields>(text)?.item_id),
            "conversation.item.retrieve" => Self::RetrieveItem(parse_json::<ItemIdFields>(text)?.item_id),
            "conversation.item.truncate" => Self::TruncateItem(parse_json(text)?),
            "response.create" => Self::create_response(text)?,
            "response.cancel" => Self::CancelResponse(parse_json::<CancelFields>(text)?.response_id),
            "output_audio_buffer.clear" => {
                return Err(Refusal::unsupported("type", "output_audio_buffer.clear belongs to WebRTC"));
            }
            other => {
                let error = ApiError::UnknownFrame { kind: excerpt(other), known: CLIENT_EVENTS };
                return Err(error.into());
            }
        })
    }
}

/// An event of the server.
#[derive(Debug, Serialize)]
struct Numbered<'a> {
    pub(super) event_id: String,
    #[serde(flatten)]
    pub(super) event: ServerEvent<'a>,
}

/// Where in a response an event belongs.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct Place<'a> {
    pub(super) response_id: &'a str,
    pub(super) item_id: &'a str,
    pub(super) output_index: u8,
    pub(super) content_index: u8,
}

#[derive(Debug, Serialize)]
pub(super) struct ErrorBody<'a> {
    #[serde(flatten)]
    pub(super) refusal: &'a Refusal,
    pub(super) event_id: Option<&'a str>,
}

#[derive(Debug, Serialize)]
#[serde(tag = "type")]
pub(super) enum ServerEvent<'a> {
    #[serde(rename = "error")]
    Error { error: ErrorBody<'a> },
    #[serde(rename = "session.created")]
    SessionCreated { session: Value },
    #[serde(rename = "session.updated")]
    SessionUpdated { session: Value },
    #[serde(rename = "input_audio_buffer.committed")]
    Committed { item_id: &'a str, previous_item_id: Option<&'a str> },
    #[serde(rename = "input_audio_buffer.cleared")]
    Cleared,
    #[serde(rename = "input_audio_buffer.speech_started")]
    SpeechStarted { audio_start_ms: u64, item_id: &'a str },
    #[serde(rename = "input_audio_buffer.speech_stopped")]
    SpeechStopped { audio_end_ms: u64, item_id: &'a str },
    #[serde(rename = "conversation.item.added")]
    ItemAdded { item: Value, previous_item_id: Option<&'a str> },
    #[serde(rename = "conversation.item.done")]
    ItemDone { item: Value, previous_item_id: Option<&'a str> },
    #[serde(rename = "conversation.item.retrieved")]
    ItemRetrieved { item: Value },
    #[serde(rename = "conversation.item.deleted")]
    ItemDeleted { item_id: &'a str },
    #[serde(rename = "conversation.item.truncated")]
    ItemTruncated { item_id: &'a str, content_index: u64, audio_end_ms: u64 },
    #[serde(rename = "conversation.item.input_audio_transcription.delta")]
    TranscriptionDelta { item_id: &'a str, content_index: usize, delta: &'a str },
    #[serde(rename = "conversation.item.input_audio_transcription.completed")]
    TranscriptionCompleted {
        item_id: &'a str,
        content_index: usize,
        transcript: &'a str,
        usage: DurationUsage,
    },
    #[serde(rename = "conversation.item.input_audio_transcription.failed")]
    TranscriptionFailed { item_id: &'a str, content_index: usize, error: &'a Refusal },
    #[serde(rename = "response.created")]
    ResponseCreated { response: Value },
    #[serde(rename = "response.done")]
    ResponseDone { response: Value },
    #[serde(rename = "response.output_item.added")]
    OutputItemAdded { response_id: &'a str, output_index: u8, item: Value },
    #[serde(rename = "response.output_item.done")]
    OutputItemDone { response_id: &'a str, output_index: u8, item: Value },
    #[serde(rename = "response.content_part.added")]
    PartAdded {
        #[serde(flatten)]
        place: Place<'a>,
        part: Value,
    },
    #[serde(rename = "response.content_part.done")]
    PartDone {
        #[serde(flatten)]
        place: Place<'a>,
        part: Value,
    },
    #[serde(rename = "response.output_audio.delta")]
    AudioDelta {
        #[serde(flatten)]
        place: Place<'a>,
        delta: String,
    },
    #[serde(rename = "response.output_audio.done")]
    AudioDone {
        #[serde(flatten)]
        place: Place<'a>,
    },
    #[serde(rename = "response.output_audio_transcript.delta")]
    TranscriptDelta {
        #[serde(flatten)]
        place: Place<'a>,
        delta: &'a str,
    },
    #[serde(rename = "response.output_audio_transcript.done")]
    TranscriptDone {
        #[serde(flatten)]
        place: Place<'a>,
        transcript: &'a str,
    },
    #[serde(rename = "response.function_call_arguments.delta")]
    ArgumentsDelta {
        response_id: &'a str,
        item_id: &'a str,
        output_index: u8,
        call_id: &'a str,
        delta: &'a str,
    },
    #[serde(rename = "response.function_call_arguments.done")]
    ArgumentsDone {
        response_id: &'a str,
        item_id: &'a str,
        output_index: u8,
        call_id: &'a str,
        name: &'a str,
        arguments: &'a str,
    },
    #[serde(rename = "response.output_text.delta")]
    TextDelta {
        #[serde(flatten)]
        place: Place<'a>,
        delta: &'a str,
    },
    #[serde(rename = "response.output_text.done")]
    TextDone {
        #[serde(flatten)]
        place: Place<'a>,
        text: &'a str,
    },
}

/// A new id of an object of this kind.
pub(super) fn new_id(kind: &str) -> String {
    let random = uuid::Uuid::new_v4().simple().to_string();
    format!("{kind}_{}", &random[..20])
}

/// Sends an event to the client.
pub(super) fn emit(event: ServerEvent<'_>, out: &mut Outbox) {
    out.frame(&Numbered { event_id: new_id("event"), event });
}

/// Tells why an event of the client was refused, or what else failed.
pub(super) fn refuse(refusal: &Refusal, event_id: Option<&str>, out: &mut Outbox) {
    emit(ServerEvent::Error { error: ErrorBody { refusal, event_id } }, out);
}
