//! Schemas that the derive of a wire type cannot give: sets of values, options that stand beside the members of a type, and
//! forms.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::marker::PhantomData;

use izwi_core::engine::Task;
use serde_json::Value;
use utoipa::openapi::schema::{Array, ArrayBuilder, Object, ObjectBuilder, OneOfBuilder, SchemaType, Type};
use utoipa::openapi::{RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

use crate::dto::listing::{VOICE, VOICE_DELETED, VoiceRequest};
use crate::dto::speech::SpeechRequest;
use crate::dto::transcription::TranscriptionRequest;
use crate::encoding;
use crate::transcript_format::TranscriptFormat;
use crate::transcription::VAD_MS;
use crate::upload::RecordingFields;

/// Largest whole number of a field.
const MAX_WHOLE: usize = usize::MAX;

/// A text that is one of `values`.
fn one_of(values: impl IntoIterator<Item = &'static str>) -> ObjectBuilder {
    ObjectBuilder::new().schema_type(Type::String).enum_values(Some(values))
}

/// A member that may be absent or null, and is one of `values`.
fn optional(values: &[&'static str], default: &'static str, description: &str) -> Object {
    let values = values.iter().map(|value| Value::from(*value)).chain([Value::Null]);
    ObjectBuilder::new()
        .schema_type(nullable(Type::String))
        .enum_values(Some(values))
        .default(Some(default.into()))
        .description(Some(description))
        .build()
}

fn nullable(of: Type) -> SchemaType {
    SchemaType::from_iter([of, Type::Null])
}

pub(crate) fn error_type() -> Object {
    let known = [
        "invalid_request_error",
        "authentication_error",
        "permission_error",
        "rate_limit_error",
        "server_error",
    ];
    one_of(known).description(Some("Class of the error.")).build()
}

pub(crate) fn list_object() -> Object {
    one_of(["list"]).build()
}

pub(crate) fn model_object() -> Object {
    one_of(["model"]).build()
}

pub(crate) fn voice_object() -> Object {
    one_of([VOICE]).build()
}

pub(crate) fn voice_deleted_object() -> Object {
    one_of([VOICE_DELETED]).build()
}

pub(crate) fn voice_kind() -> Object {
    one_of(["audio_sample"]).description(Some("How the voice was made.")).build()
}

pub(crate) fn wanted_voice_kind() -> Object {
    optional(&["audio_sample"], "audio_sample", "How the voice is made; `prompt` is refused.")
}

pub(crate) fn ticket_object() -> Object {
    one_of(["ticket"]).build()
}

pub(crate) fn model_state() -> Object {
    let states = [
        "ready",
        "unloaded",
        "unloading",
        "loading",
        "failed",
        "restarting",
        "given_up",
        "draining",
        "stopped",
        "dead",
    ];
    one_of(states).build()
}

pub(crate) fn health_status() -> Object {
    one_of(["ok", "loading", "degraded", "draining"]).build()
}

pub(crate) fn usage_duration() -> Object {
    one_of(["duration"]).build()
}

pub(crate) fn usage_tokens() -> Object {
    one_of(["tokens"]).build()
}

pub(crate) fn asr_task() -> Object {
    one_of(["transcribe", "translate"]).build()
}

/// The tasks of a model.
pub(crate) fn tasks() -> Array {
    ArrayBuilder::new().items(one_of(Task::ALL.map(Task::name))).build()
}

pub(crate) fn priority() -> Object {
    optional(&["low", "normal", "high"], "normal", "Which of several waiting requests is taken first.")
}

pub(crate) fn stream_format() -> Object {
    let description = "Form of the body: the bytes of the audio, or server-sent events with base64.";
    optional(&["audio", "sse"], "audio", description)
}

pub(crate) fn speech_format() -> Object {
    let names: Vec<_> = encoding::http_formats().map(|(format, _)| format.name).collect();
    optional(&names, encoding::HTTP_DEFAULT, "Format of the audio.")
}

/// Every rate that a format has; not each format has each.
pub(crate) fn speech_sample_rate() -> Object {
    let rates = encoding::http_formats().flat_map(|(format, _)| format.sample_rates_hz.iter().copied());
    let values = rates.collect::<BTreeSet<u32>>().into_iter().map(Value::from).chain([Value::Null]);
    ObjectBuilder::new()
        .schema_type(nullable(Type::Integer))
        .enum_values(Some(values))
        .description(Some(
            "Samples per second of the encoded audio, if the format has it; the model's own rate without it.",
        ))
        .build()
}

/// From the lowest bit rate of a format to the highest of another.
pub(crate) fn speech_bit_rate() -> Object {
    let ranges = || encoding::http_formats().filter_map(|(format, _)| format.bit_rates.clone());
    ObjectBuilder::new()
        .schema_type(nullable(Type::Integer))
        .minimum(ranges().map(|range| *range.start()).min())
        .maximum(ranges().map(|range| *range.end()).max())
        .description(Some("Bits per second of a lossy format, within its range."))
        .build()
}

pub(crate) fn transcript_format() -> Object {
    let description = "Form of the answer. With `stream` only `json` and `text`.";
    optional(&TranscriptFormat::names(), "json", description)
}

pub(crate) fn granularities() -> Array {
    let mut list = ArrayBuilder::new()
        .items(one_of(["word", "segment"]))
        .description(Some("Times to compute. `word` needs `response_format` `verbose_json`."))
        .build();
    list.schema_type = nullable(Type::Array);
    list
}

pub(crate) fn include() -> Array {
    let mut list = ArrayBuilder::new()
        .items(one_of(["logprobs"]))
        .description(Some("What the answer has beside the text. `logprobs` needs `response_format` `json`."))
        .build();
    list.schema_type = nullable(Type::Array);
    list
}

/// `auto`, or the parameters of the detection.
pub(crate) fn chunking_strategy() -> OneOfBuilder {
    let times = |description| whole(description).maximum(Some(*VAD_MS.end())).build();
    OneOfBuilder::new()
        .item(one_of(["auto"]))
        .item(
            ObjectBuilder::new()
                .schema_type(Type::Object)
                .property("type", one_of(["server_vad"]))
                .property(
                    "threshold",
                    number(0.0..=1.0, "Score above which a frame is speech; 0.5 without it."),
                )
                .property("prefix_padding_ms", times("Audio before speech; 300 without it."))
                .property(
                    "silence_duration_ms",
                    times("Silence that ends a stretch of speech; 200 without it."),
                )
                .required("type"),
        )
        .item(ObjectBuilder::new().schema_type(Type::Null))
        .description(Some("How speech is found in the recording. Without it as with `auto`."))
}

pub(crate) fn seed() -> Object {
    whole("Seed of all randomness.").build()
}

/// A voice: its name, or an object with its id.
pub(crate) fn voice() -> OneOfBuilder {
    let name = || ObjectBuilder::new().schema_type(Type::String);
    OneOfBuilder::new()
        .item(name())
        .item(ObjectBuilder::new().schema_type(Type::Object).property("id", name()).required("id"))
        .item(ObjectBuilder::new().schema_type(Type::Null))
        .description(Some(
            "Name of a voice, from `/v1/audio/voices`, or an object with its id. OpenAI's names are accepted; the model's \
             default without it.",
        ))
}

/// A number with its range.
fn number(range: std::ops::RangeInclusive<f64>, description: &str) -> ObjectBuilder {
    ObjectBuilder::new()
        .schema_type(nullable(Type::Number))
        .minimum(Some(*range.start()))
        .maximum(Some(*range.end()))
        .description(Some(description))
}

/// A whole number from 0.
fn whole(description: &str) -> ObjectBuilder {
    ObjectBuilder::new()
        .schema_type(nullable(Type::Integer))
        .minimum(Some(0usize))
        .maximum(Some(MAX_WHOLE))
        .description(Some(description))
}

/// The members of [`SpeechOptions`](izwi_core::engine::SpeechOptions), with the ranges that are checked.
pub(super) fn speech_options() -> Vec<(&'static str, Object)> {
    let text =
        |description| ObjectBuilder::new().schema_type(nullable(Type::String)).description(Some(description));
    vec![
        ("language", text("BCP 47 tag of the text; the voice's own without it.").build()),
        ("instructions", text("Style prompt, where the model takes one.").build()),
        (
            "speed",
            number(0.25..=4.0, "Tempo. A model that cannot change it refuses all but 1.0.")
                .default(Some(Value::from(1.0)))
                .build(),
        ),
        ("seed", seed()),
        (
            "max_tokens",
            whole("The most tokens to generate; the model's limit without it.").minimum(Some(1usize)).build(),
        ),
        (
            "non_streaming_mode",
            ObjectBuilder::new()
                .schema_type(nullable(Type::Boolean))
                .description(Some("Whether the model reads the whole text before it generates."))
                .build(),
        ),
        (
            "temperature",
            number(0.0..=2.0, "Temperature, 0 for greedy sampling; the model's own without it.").build(),
        ),
        (
            "top_p",
            number(f64::from(f32::EPSILON)..=1.0, "Nucleus (top-p) probability mass, above 0.").build(),
        ),
        ("top_k", whole("Number of candidates, 0 for all.").build()),
        (
            "repetition_penalty",
            number(0.5..=2.0, "Penalty of tokens that were generated before, 1.0 for none.").build(),
        ),
    ]
}

/// The body of `POST /v1/audio/speech`: the members of [`SpeechRequest`], and those of its options beside them.
#[derive(Debug)]
pub(crate) struct SpeechBody;

impl PartialSchema for SpeechBody {
    fn schema() -> RefOr<Schema> {
        let mut schema = SpeechRequest::schema();
        if let RefOr::T(Schema::Object(object)) = &mut schema {
            for (name, option) in speech_options() {
                object.properties.insert(name.to_owned(), option.into());
            }
        }
        schema
    }
}

impl ToSchema for SpeechBody {
    fn name() -> Cow<'static, str> {
        "SpeechRequest".into()
    }
}

/// The form of a transcription.
pub(crate) type TranscriptionForm = Form<TranscriptionRequest>;
/// The form of making a voice.
pub(crate) type VoiceForm = Form<VoiceRequest>;

/// The form of a request that carries a recording: the parts that are read, with the schemas of the same members of `F`.
#[derive(Debug)]
pub(crate) struct Form<F>(PhantomData<F>);

impl<F: RecordingFields + ToSchema> PartialSchema for Form<F> {
    fn schema() -> RefOr<Schema> {
        let RefOr::T(Schema::Object(json)) = F::schema() else { return ObjectBuilder::new().into() };
        let mut form = ObjectBuilder::new().schema_type(Type::Object);
        for (position, name) in F::FILES.iter().enumerate() {
            let file = ObjectBuilder::new()
                .schema_type(Type::String)
                .content_media_type("application/octet-stream")
                .description(Some(match position {
                    0 => "The recording, as a file: wav, flac, mp3, ogg, m4a or webm.".to_owned(),
                    _ => format!("Another name of `{}`.", F::FILES[0]),
                }));
            form = form.property(*name, file);
        }
        for name in F::TEXTS {
            if let Some(member) = json.properties.get(name.trim_end_matches("[]")) {
                form = form.property(*name, without_null(member.clone()));
            }
        }
        // One name of the recording is required; a form has only one where that can be said.
        let files = F::FILES.iter().take(usize::from(F::FILES.len() == 1)).map(|name| (*name).to_owned());
        json.required.iter().cloned().chain(files).fold(form, ObjectBuilder::required).into()
    }
}

/// The schema of a text part, which is never null.
fn without_null(mut schema: RefOr<Schema>) -> RefOr<Schema> {
    let (of, values) = match &mut schema {
        RefOr::T(Schema::Object(object)) => (&mut object.schema_type, object.enum_values.as_mut()),
        RefOr::T(Schema::Array(array)) => (&mut array.schema_type, None),
        // The text of a part is the first of several forms.
        RefOr::T(Schema::OneOf(forms)) if !forms.items.is_empty() => return forms.items.swap_remove(0),
        _ => return schema,
    };
    if let Some(values) = values {
        values.retain(|value| !value.is_null());
    }
    if let SchemaType::Array(types) = of
        && let Some(first) = types.iter().find(|of| **of != Type::Null).cloned()
    {
        *of = SchemaType::Type(first);
    }
    schema
}

impl<F: RecordingFields + ToSchema> ToSchema for Form<F> {
    fn name() -> Cow<'static, str> {
        F::name().replace("Request", "Form").into()
    }
}
