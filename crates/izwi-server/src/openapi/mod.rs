//! The OpenAPI document, built from the route table and the wire types, and the page that shows it.
//! <https://spec.openapis.org/oas/v3.1.1.html>
//!
//! Knows no handler and no state: an annotation on each handler says what it reads and answers.

mod answers;
mod bodies;
mod page;
mod refusals;

use bytes::Bytes;
use serde_json::{Map, Value, json};
use utoipa::ToSchema;
use utoipa::openapi::{RefOr, Schema};

pub(crate) use self::answers::JobResultBody;
pub use self::answers::{Alignment, EncodedAudio, SpeechAudio, TranscriptBody, audio_responses};
pub(crate) use self::bodies::{
    AlignmentBody, AlignmentForm, EncodingBody, EncodingForm, JobBody, JobForm, SpeechBody, VoiceForm,
};
pub use self::bodies::{TranscriptionBody, TranscriptionForm};
pub use self::refusals::{
    AlignmentRefusals, CatalogueRefusals, DeletionRefusals, EncodingRefusals, JobCreationRefusals,
    JobRefusals, JobResultRefusals, LexiconCreationRefusals, LexiconRefusals, LoadRefusals, MessageRefusals,
    NotReadyRefusals, PageRefusals, PullRefusals, SavedVoiceRefusals, SessionRefusals, SpeechRefusals,
    TranscriptionRefusals, UnknownModelRefusals, UnloadRefusals, VoiceBlendRefusals, VoiceCreationRefusals,
    VoiceRefusals,
};
use crate::config::ServerConfig;
use crate::dto::alignment::AlignmentObject;
use crate::dto::diarized::DiarizedTranscript;
use crate::dto::error::ErrorEnvelope;
use crate::dto::speech::SpeechEvent;
use crate::dto::transcription::{TranscriptEvent, TranscriptObject};
use crate::dto::verbose_json::VerboseTranscript;

/// Names of the security schemes.
const SECURITY: [&str; 2] = ["bearer", "api_key"];

/// What the document says of the whole service.
const DESCRIPTION: &str = "Speech synthesis, speech recognition and spoken conversation on this machine. Fields have the \
names of the OpenAI API, so that its clients work with a changed base URL. Members that are not listed are ignored. A key \
is required on `/v1/*` only where the server has one. Every error has the same envelope. The messages of the WebSockets \
are in [docs/protocol.md](/docs/protocol.md).";

/// The document as a server of a given configuration serves it, and its page.
#[derive(Debug, Clone)]
pub(crate) struct Published {
    pub(crate) json: Bytes,
    pub(crate) page: Bytes,
    /// `Content-Security-Policy` of the page.
    pub(crate) policy: String,
}

impl Published {
    pub(crate) fn new(document: &Value) -> Self {
        let (page, policy) = page::render(document);
        // A JSON value always serializes.
        let json = serde_json::to_vec(document).unwrap_or_default();
        Self { json: json.into(), page: page.into(), policy }
    }
}

/// Completes what the annotations give: `keyed` are the routes that need the key, `open` the others.
pub(crate) fn complete(
    keyed: &utoipa::openapi::OpenApi,
    open: &utoipa::openapi::OpenApi,
    config: &ServerConfig,
) -> Value {
    let mut paths = Map::new();
    let mut schemas = event_schemas();
    for (part, needs_key) in [(keyed, true), (open, false)] {
        // The types of the document always serialize.
        let mut part = serde_json::to_value(part).unwrap_or_default();
        for (path, item) in object(&mut part["paths"]) {
            let mut item = item.take();
            for (method, operation) in object(&mut item) {
                refusals::add_common(operation, needs_key);
                operation["operationId"] = operation_id(method, path).into();
                if !needs_key {
                    operation["security"] = json!([]);
                }
            }
            paths.insert(path.clone(), item);
        }
        for (name, schema) in object(&mut part["components"]["schemas"]) {
            correct_flattened(schema);
            schemas.insert(name.clone(), schema.take());
        }
    }
    if let Some(speech) = schemas.get_mut("SpeechRequest") {
        speech["properties"]["input"]["maxLength"] = config.max_input_chars.into();
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Izwi",
            "version": env!("CARGO_PKG_VERSION"),
            "summary": "Local speech service",
            "description": DESCRIPTION,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "security": security(config.api_key.is_some()),
        "tags": tags(),
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {
                (SECURITY[0]): {"type": "http", "scheme": "bearer", "description": "`Authorization: Bearer KEY`"},
                (SECURITY[1]): {"type": "apiKey", "in": "header", "name": "X-API-Key"},
            },
        },
    })
}

/// The types that only responses with several media types name.
fn event_schemas() -> Map<String, Value> {
    fn add<T: ToSchema>(schemas: &mut Vec<(String, RefOr<Schema>)>) {
        T::schemas(schemas);
        schemas.push((T::name().into_owned(), T::schema()));
    }
    let mut schemas = Vec::new();
    add::<ErrorEnvelope>(&mut schemas);
    add::<SpeechEvent<'_>>(&mut schemas);
    add::<AlignmentObject>(&mut schemas);
    add::<DiarizedTranscript>(&mut schemas);
    add::<TranscriptEvent>(&mut schemas);
    add::<TranscriptObject>(&mut schemas);
    add::<VerboseTranscript>(&mut schemas);
    schemas
        .into_iter()
        .map(|(name, schema)| (name, serde_json::to_value(schema).unwrap_or_default()))
        .collect()
}

/// The derive says of a flattened `Option` that it may be null. The members are there, or they are not.
fn correct_flattened(schema: &mut Value) {
    for part in schema.get_mut("allOf").and_then(Value::as_array_mut).into_iter().flatten() {
        let variants = part.get("oneOf").and_then(Value::as_array).cloned().unwrap_or_default();
        if let [members, null] = &variants[..]
            && null["type"] == "null"
        {
            *part = json!({"anyOf": [members, {"type": "object"}]});
        }
    }
}

/// What a request needs where the server has a key: either of the two. Without one nothing is needed either.
fn security(has_key: bool) -> Value {
    let mut allowed: Vec<Value> = SECURITY.iter().map(|name| json!({(*name): []})).collect();
    if !has_key {
        allowed.push(json!({}));
    }
    allowed.into()
}

/// The sections of the document. An annotation names one.
fn tags() -> Value {
    json!([
        {"name": "speech", "description": "Text to speech, and its voices"},
        {"name": "transcription", "description": "Speech to text"},
        {"name": "conversation", "description": "Spoken conversation"},
        {"name": "dialects", "description": "Interfaces of other services"},
        {"name": "jobs", "description": "Long texts and recordings, after the request has ended"},
        {"name": "models", "description": "Models of this server"},
        {"name": "service", "description": "Probes, metrics and documentation; they need no key"},
    ])
}

/// `post /v1/audio/speech` as `post_v1_audio_speech`.
fn operation_id(method: &str, path: &str) -> String {
    let words = path.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    std::iter::once(method).chain(words).collect::<Vec<_>>().join("_")
}

/// The members of an object; none of anything else.
fn object(value: &mut Value) -> impl Iterator<Item = (&String, &mut Value)> {
    value.as_object_mut().into_iter().flatten()
}

#[cfg(test)]
mod tests;
