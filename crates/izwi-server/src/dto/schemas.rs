//! Schemas of fields that the derive of a wire type cannot give: sets of values, ranges, several types. Knows no wire type; tests
//! compare what is named here with what is read.

use std::collections::BTreeSet;

use izwi_audio::encode::{FORMATS, Format};
use izwi_core::engine::Task;
use izwi_types::{Gender, OptionRow, OptionValue, VadFields};
use serde_json::Value;
use utoipa::openapi::schema::{
    Array, ArrayBuilder, KnownFormat, Object, ObjectBuilder, OneOfBuilder, SchemaFormat, SchemaType, Type,
};
use utoipa::openapi::{RefOr, Schema};

/// The most names in a list of lexicons.
const MAX_LEXICONS: usize = 16;
/// The `object` of a voice, and of one that was removed.
pub(crate) const VOICE: &str = "audio.voice";
pub(crate) const VOICE_DELETED: &str = "audio.voice.deleted";
/// The `object` of a lexicon, and of one that was removed.
pub(crate) const LEXICON: &str = "lexicon";
pub(crate) const LEXICON_DELETED: &str = "lexicon.deleted";
/// The `object` of a job, and of one that was deleted.
pub(crate) const JOB: &str = "job";
pub(crate) const JOB_DELETED: &str = "job.deleted";
/// The format of speech without a request for one.
pub(crate) const SPEECH_FORMAT: &str = "mp3";
/// Formats of a transcript.
pub(crate) const TRANSCRIPT_FORMATS: [&str; 6] =
    ["json", "text", "srt", "vtt", "verbose_json", "diarized_json"];
/// Formats of an alignment.
pub(crate) const ALIGNMENT_FORMATS: [&str; 4] = ["json", "srt", "vtt", "textgrid"];

/// Largest whole number of a field.
const MAX_WHOLE: usize = usize::MAX;

/// A text that is one of `values`.
pub(crate) fn one_of(values: impl IntoIterator<Item = &'static str>) -> ObjectBuilder {
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

pub(crate) fn nullable(of: Type) -> SchemaType {
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

pub(crate) fn catalogue_object() -> Object {
    one_of(["catalogue.model"]).build()
}

pub(crate) fn pull_state() -> Object {
    one_of(["running", "failed"]).build()
}

/// A list of names, which may be absent.
pub(crate) fn names(description: &str) -> Array {
    let name = ObjectBuilder::new().schema_type(Type::String);
    let list = ArrayBuilder::new().items(name).max_items(Some(MAX_LEXICONS)).description(Some(description));
    let mut list = list.build();
    list.schema_type = nullable(Type::Array);
    list
}

pub(crate) fn voice_object() -> Object {
    one_of([VOICE]).build()
}

pub(crate) fn lexicon_object() -> Object {
    one_of([LEXICON]).build()
}

pub(crate) fn lexicon_deleted_object() -> Object {
    one_of([LEXICON_DELETED]).build()
}

pub(crate) fn job_object() -> Object {
    one_of([JOB]).build()
}

pub(crate) fn job_deleted_object() -> Object {
    one_of([JOB_DELETED]).build()
}

pub(crate) fn job_type() -> Object {
    one_of(["speech", "transcription"]).build()
}

pub(crate) fn job_status() -> Object {
    one_of(["queued", "running", "completed", "failed", "cancelled"]).build()
}

pub(crate) fn job_unit() -> Object {
    one_of(["characters", "seconds"]).build()
}

pub(crate) fn job_event() -> Object {
    one_of(["job.progress", "job.completed", "job.failed", "job.cancelled"]).build()
}

pub(crate) fn input_format() -> Object {
    optional(&["text", "markdown", "html"], "text", "What `input` is.")
}

pub(crate) fn gender() -> Object {
    let names = Gender::ALL.map(|gender| Value::from(gender.name()));
    let values = names.into_iter().chain([Value::Null]);
    ObjectBuilder::new().schema_type(nullable(Type::String)).enum_values(Some(values)).build()
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

/// The formats that an HTTP request can ask for.
fn speech_formats() -> impl Iterator<Item = &'static Format> {
    FORMATS.iter().filter(|format| format.streams && format.media_type.is_some())
}

/// The formats of speech over HTTP.
pub fn speech_format() -> Object {
    let names: Vec<_> = speech_formats().map(|format| format.name).collect();
    optional(&names, SPEECH_FORMAT, "Format of the audio.")
}

/// Every rate that a format has; not each format has each.
pub(crate) fn speech_sample_rate() -> Object {
    let rates = speech_formats().flat_map(|format| format.sample_rates_hz.iter().copied());
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
    let ranges = || speech_formats().filter_map(|format| format.bit_rates.clone());
    ObjectBuilder::new()
        .schema_type(nullable(Type::Integer))
        .minimum(ranges().map(|range| *range.start()).min())
        .maximum(ranges().map(|range| *range.end()).max())
        .description(Some("Bits per second of a lossy format, within its range."))
        .build()
}

pub(crate) fn transcript_format() -> Object {
    let description =
        "Form of the answer. With `stream` only `json`, `text`, `verbose_json` and `diarized_json`.";
    optional(&TRANSCRIPT_FORMATS, "json", description)
}

pub(crate) fn alignment_format() -> Object {
    optional(&ALIGNMENT_FORMATS, "json", "Form of the answer.")
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
pub(crate) fn number(range: std::ops::RangeInclusive<f64>, description: &str) -> ObjectBuilder {
    ObjectBuilder::new()
        .schema_type(nullable(Type::Number))
        .minimum(Some(*range.start()))
        .maximum(Some(*range.end()))
        .description(Some(description))
}

/// A whole number from 0.
pub(crate) fn whole(description: &str) -> ObjectBuilder {
    ObjectBuilder::new()
        .schema_type(nullable(Type::Integer))
        .minimum(Some(0usize))
        .maximum(Some(MAX_WHOLE))
        .description(Some(description))
}

/// A text.
pub(crate) fn text(description: &str) -> ObjectBuilder {
    ObjectBuilder::new().schema_type(nullable(Type::String)).description(Some(description))
}

/// Yes or no.
pub(crate) fn switch(description: &str) -> ObjectBuilder {
    ObjectBuilder::new().schema_type(nullable(Type::Boolean)).description(Some(description))
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

pub(crate) fn usage_tokens() -> Object {
    one_of(["tokens"]).build()
}

/// `auto`, or the parameters of the detection.
fn chunking_strategy() -> OneOfBuilder {
    let (times_ms, thresholds) = (VadFields::TIMES_MS, VadFields::THRESHOLDS);
    let times = |description| whole(description).maximum(Some(*times_ms.end())).build();
    let thresholds = f64::from(*thresholds.start())..=f64::from(*thresholds.end());
    OneOfBuilder::new()
        .item(one_of(["auto"]))
        .item(
            ObjectBuilder::new()
                .schema_type(Type::Object)
                .property("type", one_of(["server_vad"]))
                .property(
                    "threshold",
                    number(thresholds, "Score above which a frame is speech; 0.5 without it."),
                )
                .property("prefix_padding_ms", times("Audio before speech; 300 without it."))
                .property(
                    "silence_duration_ms",
                    times("Silence that ends a stretch of speech; 200 without it."),
                )
                .required("type"),
        )
        .item(ObjectBuilder::new().schema_type(Type::Null))
}

/// An option, as its row in the table describes it.
pub(crate) fn option(row: &OptionRow<'_>) -> RefOr<Schema> {
    let description = row.description;
    match &row.value {
        OptionValue::Text(_, most) => {
            let most = Some(*most).filter(|most| *most != usize::MAX);
            text(description).max_length(most).into()
        }
        OptionValue::Switch(_) => switch(description).default(Some(Value::from(false))).into(),
        OptionValue::Number(_, range, default) => {
            let number = number(f64::from(*range.start())..=f64::from(*range.end()), description);
            match default {
                Some(default) => {
                    let format = SchemaFormat::KnownFormat(KnownFormat::Float);
                    number.format(Some(format)).default(Some(Value::from(*default))).into()
                }
                None => number.into(),
            }
        }
        OptionValue::Whole(_, range) => {
            whole(description).minimum(Some(*range.start())).maximum(Some(*range.end())).into()
        }
        OptionValue::List(_, limits) => {
            let entries = match limits.entries {
                [] => ObjectBuilder::new().schema_type(Type::String),
                entries => one_of(entries.iter().copied()),
            };
            let most = Some(limits.max_entries).filter(|most| *most != usize::MAX);
            let mut list =
                ArrayBuilder::new().items(entries).max_items(most).description(Some(description)).build();
            list.schema_type = nullable(Type::Array);
            list.into()
        }
        OptionValue::Chunking(_) => chunking_strategy().description(Some(description)).into(),
    }
}
