//! Successful responses that have several media types.

use std::collections::BTreeMap;

use utoipa::openapi::schema::{AnyOfBuilder, ObjectBuilder, Type};
use utoipa::openapi::{Content, ContentBuilder, HeaderBuilder, Ref, RefOr, Response, ResponseBuilder};
use utoipa::{IntoResponses, ToSchema};

use crate::dto::alignment::AlignmentObject;
use crate::dto::diarized::DiarizedTranscript;
use crate::dto::schemas::TRANSCRIPT_FORMATS;
use crate::dto::speech::SpeechEvent;
use crate::dto::transcription::{TranscriptEvent, TranscriptObject};
use crate::dto::verbose_json::VerboseTranscript;
use crate::encoding;
use crate::transcript_format::TranscriptFormat;

/// Header of a response to a request with fields that nothing reads.
const IGNORED: (&str, &str, Type) = (
    "X-Ignored-Fields",
    "Fields of the request that nothing reads, percent-encoded, separated by commas.",
    Type::String,
);
/// Headers of a response with audio.
const SPEECH_HEADERS: [(&str, &str, Type); 9] = [
    IGNORED,
    (
        "X-Unspoken-Characters",
        "Characters of the text that the model cannot pronounce and leaves out, percent-encoded.",
        Type::String,
    ),
    (
        "X-Ignored-Markup",
        "Markup of the text that has no effect and is not spoken, percent-encoded, separated by commas.",
        Type::String,
    ),
    (
        "X-Foreign-Languages",
        "Codes of languages of the text that the model does not speak, separated by commas.",
        Type::String,
    ),
    (
        "X-Suggested-Model",
        "A model that speaks the first of them, installed where there is one.",
        Type::String,
    ),
    ("X-Sample-Rate", "Rate of the samples, in Hz.", Type::Integer),
    (
        "X-Prebuffer-Ms",
        "How long a player waits so that the rest plays without a gap, where it is known.",
        Type::Integer,
    ),
    ("X-Predicted-RTF", "Expected processing time over audio time, where it is known.", Type::Number),
    ("X-Predicted-First-Audio-Ms", "When the first audio was expected, where it is known.", Type::Integer),
];
/// Headers of a transcript: the statistics of a finished request are trailers of a streamed body, for clients that send `TE: trailers`.
const STATISTICS: [(&str, &str, Type); 5] = [
    IGNORED,
    ("X-RTF", "Processing time over audio time.", Type::Number),
    ("X-Audio-Duration-Seconds", "Length of the audio.", Type::Number),
    ("X-Generation-Time-Ms", "Processing time.", Type::Integer),
    ("X-Finish-Reason", "`stop`, `length`, `runaway_trimmed` or another reason.", Type::String),
];

/// Audio of `POST /v1/audio/speech`, in each of its formats.
#[derive(Debug)]
pub struct SpeechAudio;

impl IntoResponses for SpeechAudio {
    fn responses() -> BTreeMap<String, RefOr<Response>> {
        let description = "The audio, sent while it is generated. Its statistics follow as trailers, to clients that send \
                           `TE: trailers`: X-RTF, X-Audio-Duration-Seconds, X-Generation-Time-Ms, X-Finish-Reason. With \
                           `stream_format` `sse` the body is a stream of events.";
        let response = audio(description).content("text/event-stream", events::<SpeechEvent<'_>>());
        ok(with_headers(response, &SPEECH_HEADERS))
    }
}

/// What a job made, in each of its formats.
#[derive(Debug)]
pub(crate) struct JobResultBody;

impl IntoResponses for JobResultBody {
    fn responses() -> BTreeMap<String, RefOr<Response>> {
        let transcripts = TRANSCRIPT_FORMATS.iter().filter_map(|name| TranscriptFormat::parse(name));
        let response = |description: &str| {
            transcripts
                .clone()
                .map(TranscriptFormat::media_type)
                .fold(audio(description), |response, media_type| {
                    response.content(media_type, Content::default())
                })
        };
        let mut responses = ok(response("The file."));
        let part = response("The part of the file that `Range` asks for.");
        responses.insert("206".to_owned(), part.build().into());
        responses.insert(
            "304".to_owned(),
            ResponseBuilder::new().description("It has not changed.").build().into(),
        );
        responses.insert(
            "416".to_owned(),
            ResponseBuilder::new().description("The file has no such range.").build().into(),
        );
        responses
    }
}

/// Audio of `POST /v1/audio/encodings`, in each of its formats.
#[derive(Debug)]
pub struct EncodedAudio;

impl IntoResponses for EncodedAudio {
    fn responses() -> BTreeMap<String, RefOr<Response>> {
        let rate = ("X-Sample-Rate", "Rate of the samples, in Hz.", Type::Integer);
        ok(with_headers(audio("The audio."), &[IGNORED, rate]))
    }
}

/// A response with audio, in each format.
fn audio(description: &str) -> ResponseBuilder {
    let mut media_types: Vec<_> = encoding::http_formats().map(|(_, media_type)| media_type).collect();
    media_types.dedup();
    let response = ResponseBuilder::new().description(description);
    media_types
        .into_iter()
        .fold(response, |response, media_type| response.content(media_type, Content::default()))
}

/// The responses of a route whose audio is all that it answers.
pub fn audio_responses(description: &str) -> BTreeMap<String, RefOr<Response>> {
    ok(audio(description))
}

/// A transcript, in each of its formats.
#[derive(Debug)]
pub struct TranscriptBody;

impl IntoResponses for TranscriptBody {
    fn responses() -> BTreeMap<String, RefOr<Response>> {
        let description = "The transcript: JSON for `response_format` `json`, `verbose_json` and `diarized_json`, otherwise its text or \
                           subtitles. With `stream` the body is a stream of events.";
        let reference = |name| Ref::from_schema_name(name);
        // A verbose transcript has the members of the other as well.
        let json = AnyOfBuilder::new()
            .item(reference(TranscriptObject::name()))
            .item(reference(VerboseTranscript::name()))
            .item(reference(DiarizedTranscript::name()));
        let mut response = ResponseBuilder::new()
            .description(description)
            .content("application/json", ContentBuilder::new().schema(Some(json)).build());
        for media_type in ["text/plain", "application/x-subrip", "text/vtt"] {
            response = response.content(media_type, plain());
        }
        response = response.content("text/event-stream", events::<TranscriptEvent>());
        ok(with_headers(response, &STATISTICS))
    }
}

/// An alignment, in each of its formats.
#[derive(Debug)]
pub struct Alignment;

impl IntoResponses for Alignment {
    fn responses() -> BTreeMap<String, RefOr<Response>> {
        let description = "The words and their times: JSON, subtitles, or a TextGrid as plain text.";
        let json = Ref::from_schema_name(AlignmentObject::name());
        let mut response = ResponseBuilder::new()
            .description(description)
            .content("application/json", ContentBuilder::new().schema(Some(json)).build());
        for media_type in ["text/plain", "application/x-subrip", "text/vtt"] {
            response = response.content(media_type, plain());
        }
        ok(with_headers(response, &STATISTICS))
    }
}

/// A body of text.
fn plain() -> Content {
    ContentBuilder::new().schema(Some(ObjectBuilder::new().schema_type(Type::String))).build()
}

fn ok(response: ResponseBuilder) -> BTreeMap<String, RefOr<Response>> {
    BTreeMap::from([("200".to_owned(), response.build().into())])
}

fn with_headers(response: ResponseBuilder, headers: &[(&str, &str, Type)]) -> ResponseBuilder {
    headers.iter().fold(response, |response, (name, description, of)| {
        let schema = ObjectBuilder::new().schema_type(of.clone());
        let header = HeaderBuilder::new().schema(Some(schema)).description(Some(*description)).build();
        response.header(*name, header)
    })
}

/// Server-sent events. The schema is that of one event, as later versions of OpenAPI have it.
/// <https://spec.openapis.org/oas/v3.2.0.html#server-sent-event-streams>
fn events<T: ToSchema>() -> Content {
    let data = ObjectBuilder::new()
        .schema_type(Type::String)
        .content_media_type("application/json")
        .content_schema(Some(Ref::from_schema_name(T::name())));
    let schema = ObjectBuilder::new()
        .schema_type(Type::Object)
        .description(Some("One of the server-sent events; its data is one JSON object."))
        .property("data", data)
        .required("data");
    ContentBuilder::new().schema(Some(schema)).build()
}
