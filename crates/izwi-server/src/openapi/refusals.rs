//! The errors of each route in the document, from the errors themselves: status, code and message.

use std::collections::BTreeMap;
use std::time::Duration;

use izwi_audio::decode::DecodeError;
use izwi_core::engine::RequestId;
use serde_json::{Value, json};
use utoipa::IntoResponses;
use utoipa::openapi::{ContentBuilder, Ref, RefOr, Response, ResponseBuilder};

use crate::error::{ApiError, JOB_LIMIT, LEXICON_EXISTS, LEXICON_LIMIT, NO_JOB, NO_LEXICON, NO_RESULT};

/// Declares the errors of a kind of route as groups of errors.
macro_rules! refusals {
    ($($(#[$doc:meta])* $name:ident = $first:ident $(+ $group:ident)*;)+) => {$(
        $(#[$doc])*
        #[derive(Debug)]
        pub struct $name;

        impl IntoResponses for $name {
            fn responses() -> BTreeMap<String, RefOr<Response>> {
                let errors = [$first(), $($group()),*].concat();
                responses(&errors)
            }
        }
    )+};
}

refusals! {
    /// Errors of a speech request.
    SpeechRefusals = body + model + loading + voice + recording + generation;
    /// Errors of a transcription.
    TranscriptionRefusals = body + model + loading + recording + generation;
    /// Errors of an alignment.
    AlignmentRefusals = body + model + loading + recording + generation;
    /// Errors of making a voice.
    VoiceCreationRefusals = body + model + loading + recording + saving + generation;
    /// Errors of reading voices.
    VoiceRefusals = field + model + not_loaded + voice + internal;
    /// Errors of blending voices.
    VoiceBlendRefusals = body + model + loading + voice + internal;
    /// Errors of removing a voice.
    SavedVoiceRefusals = field + voice + internal;
    /// Errors of reading and removing lexicons.
    LexiconRefusals = field + lexicon + internal;
    /// Errors of reading and deleting jobs.
    JobRefusals = field + job + elsewhere + internal;
    /// Errors of beginning a job.
    JobCreationRefusals = body + model + loading + voice + recording + job_limit + elsewhere + generation;
    /// Errors of fetching what a job made.
    JobResultRefusals = field + job + no_result + elsewhere + internal;
    /// Errors of saving a lexicon.
    LexiconCreationRefusals = body + lexicon + lexicon_saving + internal;
    /// Errors of reading a model.
    UnknownModelRefusals = field + model;
    /// Errors of reading the page.
    PageRefusals = field + no_file;
    /// Errors of listing the catalogue.
    CatalogueRefusals = internal;
    /// Errors of pulling a model.
    PullRefusals = field + model + pulling;
    /// Errors of loading a model.
    LoadRefusals = field + model + loading;
    /// Errors of deleting a model.
    DeletionRefusals = field + model + pulling + in_use + internal;
    /// Errors of encoding a recording.
    EncodingRefusals = body + recording + internal;
    /// Errors of unloading a model.
    UnloadRefusals = field + model + in_use;
    /// Errors of a message with a request in it.
    MessageRefusals = body;
    /// Errors of opening a WebSocket.
    SessionRefusals = upgrade;
    /// Errors of a probe.
    NotReadyRefusals = not_ready;
}

fn text(text: &str) -> String {
    text.to_owned()
}

fn field() -> Vec<ApiError> {
    vec![ApiError::invalid("FIELD", "a field cannot be used; the message names it, its value and the remedy")]
}

fn body() -> Vec<ApiError> {
    vec![
        field().remove(0),
        ApiError::MalformedJson(text("REASON")),
        ApiError::MalformedForm(text("REASON")),
        ApiError::UnreadableBody(text("REASON")),
        ApiError::RequestTimeout,
        ApiError::TooLarge(text("body has more than the allowed bytes; send less")),
        ApiError::UnsupportedMediaType { found: text("'TYPE'"), supported: "application/json" },
    ]
}

fn model() -> Vec<ApiError> {
    vec![ApiError::ModelNotFound { id: text("ID"), hint: text("the message suggests others") }]
}

fn loading() -> Vec<ApiError> {
    let room =
        |may_fit_later| ApiError::NoRoom { id: text("ID"), need: 0, budget: 0, used: 0, may_fit_later };
    vec![
        ApiError::ModelLoading(text("ID")),
        ApiError::ModelUnavailable(text("ID")),
        ApiError::ModelRestarting { id: text("ID"), retry_after: Duration::from_secs(5) },
        room(true),
        room(false),
    ]
}

fn not_loaded() -> Vec<ApiError> {
    vec![ApiError::ModelNotLoaded(text("ID")), ApiError::ModelUnavailable(text("ID"))]
}

fn no_file() -> Vec<ApiError> {
    vec![ApiError::UnknownRoute(text("GET /page/FILE"))]
}

fn in_use() -> Vec<ApiError> {
    vec![
        ApiError::ModelInUse { id: text("ID"), reason: "it is a default model, or in use" },
        ApiError::ModelLoading(text("ID")),
    ]
}

fn voice() -> Vec<ApiError> {
    vec![ApiError::VoiceNotFound {
        id: text("ID"),
        model: text("MODEL"),
        hint: text("the message suggests others"),
    }]
}

fn recording() -> Vec<ApiError> {
    let audio = |error| ApiError::Audio { param: "file", error };
    vec![
        audio(DecodeError::UnknownFormat(text("REASON"))),
        audio(DecodeError::Damaged(text("REASON"))),
        audio(DecodeError::Empty),
    ]
}

fn saving() -> Vec<ApiError> {
    vec![
        ApiError::VoiceExists { message: text("a voice of this name exists") },
        ApiError::VoicesFull { message: text("the limit of saved voices is reached") },
    ]
}

fn lexicon() -> Vec<ApiError> {
    vec![ApiError::Lexicon {
        message: text("no lexicon has this name; the message suggests others"),
        code: NO_LEXICON,
    }]
}

fn job() -> Vec<ApiError> {
    vec![ApiError::Job { message: text("no job 'ID'"), code: NO_JOB }]
}

fn job_limit() -> Vec<ApiError> {
    let message = text("there are as many jobs, or bytes of them, as there may be; delete finished ones");
    vec![ApiError::Job { message, code: JOB_LIMIT }]
}

fn no_result() -> Vec<ApiError> {
    vec![ApiError::Job { message: text("job 'ID' has no result: it is running"), code: NO_RESULT }]
}

fn elsewhere() -> Vec<ApiError> {
    vec![ApiError::JobsElsewhere(
        "another server of this machine works on the jobs of this folder; ask that one",
    )]
}

fn lexicon_saving() -> Vec<ApiError> {
    vec![
        ApiError::Lexicon { message: text("a lexicon of this name exists"), code: LEXICON_EXISTS },
        ApiError::Lexicon { message: text("the limit of saved lexicons is reached"), code: LEXICON_LIMIT },
    ]
}

fn generation() -> Vec<ApiError> {
    let retry_after = Duration::from_secs(1);
    vec![
        ApiError::UpstreamRefused(text("a server of model 'ID' refuses the request")),
        ApiError::UpstreamFailed(text("a server of model 'ID' failed")),
        ApiError::UpstreamDown { message: text("the servers of model 'ID' failed"), retry_after },
        ApiError::FirstAudioTimeout(120),
        ApiError::CutOff,
        internal().remove(0),
    ]
}

fn pulling() -> Vec<ApiError> {
    vec![ApiError::PullForbidden(text("ID"))]
}

fn internal() -> Vec<ApiError> {
    vec![ApiError::Internal(RequestId::from("ID"))]
}

fn upgrade() -> Vec<ApiError> {
    vec![ApiError::UpgradeRequired(text("REASON"))]
}

fn not_ready() -> Vec<ApiError> {
    vec![ApiError::NotReady { code: "loading", reason: text("REASON") }]
}

/// Errors of every route: of access rules and limits, with or without the key.
fn common(needs_key: bool) -> Vec<ApiError> {
    let mut errors = vec![
        ApiError::CrossSite,
        ApiError::ForbiddenHost(text("HOST")),
        ApiError::ForbiddenOrigin(text("ORIGIN")),
        ApiError::overloaded("a limit of connections, requests or waiting work is reached"),
    ];
    if needs_key {
        let retry_after = Duration::from_secs(60);
        errors.extend([
            ApiError::Unauthorized,
            ApiError::TooManyWrongKeys { retry_after },
            ApiError::Draining,
        ]);
    }
    errors
}

/// Errors of the HTTP library, which have the same envelope.
const BARE: [(&str, &str); 3] = [
    ("400", "`malformed_request`: request is not valid HTTP/1.1"),
    ("414", "`uri_too_long`: path and query are too long"),
    ("431", "`headers_too_large`: request has too many or too large headers"),
];

/// The lines of a description, by status: code and message of each error.
fn lines(errors: &[ApiError]) -> BTreeMap<String, (Vec<String>, bool)> {
    let mut by_status: BTreeMap<String, (Vec<String>, bool)> = BTreeMap::new();
    for error in errors {
        let (lines, retries) = by_status.entry(error.status().as_u16().to_string()).or_default();
        lines.push(format!("`{}`: {}", error.code(), error.message()));
        *retries |= error.retry_after_s().is_some();
    }
    by_status
}

fn responses(errors: &[ApiError]) -> BTreeMap<String, RefOr<Response>> {
    let response = |(lines, _): (Vec<String>, bool)| {
        let content = ContentBuilder::new().schema(Some(Ref::from_schema_name("Error"))).build();
        ResponseBuilder::new().description(lines.join("\n\n")).content("application/json", content).build()
    };
    lines(errors).into_iter().map(|(status, lines)| (status, response(lines).into())).collect()
}

/// Reference to the error envelope.
const ENVELOPE: &str = "#/components/schemas/Error";

/// Adds the errors and headers that all routes have. A dialect whose errors have a shape of their own names it in one
/// error of each route; then all errors of the route have either shape.
pub(super) fn add_common(operation: &mut Value, needs_key: bool) {
    let shape = own_shape(operation);
    let bare = BARE.map(|(status, line)| (status.to_owned(), (vec![line.to_owned()], false)));
    for (status, (lines, _)) in lines(&common(needs_key)).into_iter().chain(bare) {
        let response = &mut operation["responses"][&status];
        let known = response["description"].as_str().map(str::to_owned);
        let description = known.into_iter().chain(lines).collect::<Vec<_>>().join("\n\n");
        *response = json!({"description": description});
    }
    let header = |description: &str, of: &str| json!({"description": description, "schema": {"type": of}});
    for (status, response) in super::object(&mut operation["responses"]) {
        if status.starts_with(['4', '5']) {
            response["content"] = json!({"application/json": {"schema": shape}});
        }
        // The HTTP library answers the last two, without an id.
        if !matches!(status.as_str(), "414" | "431") {
            response["headers"]["X-Request-Id"] = header("Id of the request in the server's log.", "string");
        }
        if matches!(status.as_str(), "429" | "503") {
            response["headers"]["Retry-After"] =
                header("Seconds after which the same may succeed.", "integer");
        }
    }
}

/// The schema of the errors of an operation: the envelope, or also the type that one of its errors names.
fn own_shape(operation: &Value) -> Value {
    let envelope = json!({"$ref": ENVELOPE});
    let responses = operation["responses"].as_object().into_iter().flatten();
    let mut named = responses
        .filter(|(status, _)| status.starts_with(['4', '5']))
        .map(|(_, response)| &response["content"]["application/json"]["schema"])
        .filter(|schema| !schema.is_null() && **schema != envelope);
    match named.next() {
        Some(own) => json!({"anyOf": [envelope, own]}),
        None => envelope.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_type_of_a_dialect_stands_beside_the_envelope() {
        let content = |name: &str| json!({"content": {"application/json": {"schema": {"$ref": name}}}});
        let mut plain = json!({"responses": {"200": content("#/x"), "404": content(ENVELOPE)}});
        add_common(&mut plain, true);
        let schema = |operation: &Value, status: &str| {
            operation["responses"][status]["content"]["application/json"]["schema"].clone()
        };
        assert_eq!(schema(&plain, "404"), json!({"$ref": ENVELOPE}));
        assert_eq!(
            (schema(&plain, "200"), schema(&plain, "401")),
            (json!({"$ref": "#/x"}), schema(&plain, "404"))
        );
        let mut dialect = json!({"responses": {"400": content("#/own"), "404": content(ENVELOPE)}});
        add_common(&mut dialect, true);
        let either = json!({"anyOf": [{"$ref": ENVELOPE}, {"$ref": "#/own"}]});
        assert_eq!((schema(&dialect, "401"), schema(&dialect, "404")), (either.clone(), either));
    }
}
