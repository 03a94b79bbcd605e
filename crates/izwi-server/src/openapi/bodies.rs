//! Bodies of requests whose members stand in more than one type: requests with their options, and forms.

use std::borrow::Cow;
use std::marker::PhantomData;

use izwi_types::TranscriptionOptions;
use serde_json::Value;
use utoipa::openapi::schema::{Object, ObjectBuilder, SchemaType, Type};
use utoipa::openapi::{RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

use crate::dto::alignment::AlignmentRequest;
use crate::dto::encoding::EncodingRequest;
use crate::dto::listing::VoiceRequest;
use crate::dto::schemas::{self, number, seed, switch, text, whole};
use crate::dto::speech::SpeechRequest;
use crate::dto::transcription::TranscriptionRequest;
use crate::upload::{RecordingFields, TextPart};

/// The members of [`SpeechOptions`](izwi_core::engine::SpeechOptions), with the ranges that are checked.
pub(super) fn speech_options() -> Vec<(&'static str, RefOr<Schema>)> {
    let lexicons = "Names of saved lexicons to use, the first ones first; without it, those for all speech and for the voice.";
    let options = vec![
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
        ("non_streaming_mode", switch("Whether the model reads the whole text before it generates.").build()),
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
    ];
    let options = options.into_iter().map(|(name, option): (_, Object)| (name, option.into()));
    options.chain([("lexicons", schemas::names(lexicons).into())]).collect()
}

/// The members of a request that its type takes from a table of options.
pub(crate) trait OptionSchemas: ToSchema {
    fn options() -> Vec<(&'static str, RefOr<Schema>)>;
}

impl OptionSchemas for SpeechRequest {
    fn options() -> Vec<(&'static str, RefOr<Schema>)> {
        speech_options()
    }
}

impl OptionSchemas for TranscriptionRequest {
    fn options() -> Vec<(&'static str, RefOr<Schema>)> {
        let mut options = TranscriptionOptions::default();
        options.rows().iter().map(|row| (row.name, schemas::option(row))).collect()
    }
}

impl OptionSchemas for AlignmentRequest {
    fn options() -> Vec<(&'static str, RefOr<Schema>)> {
        Vec::new()
    }
}

impl OptionSchemas for EncodingRequest {
    fn options() -> Vec<(&'static str, RefOr<Schema>)> {
        Vec::new()
    }
}

impl OptionSchemas for VoiceRequest {
    fn options() -> Vec<(&'static str, RefOr<Schema>)> {
        Vec::new()
    }
}

/// The JSON body of a request: the members of `F`, and its options alongside them.
#[derive(Debug)]
pub struct Body<F>(PhantomData<F>);

/// The body of `POST /v1/audio/speech`.
pub(crate) type SpeechBody = Body<SpeechRequest>;
/// The JSON body of a transcription.
pub type TranscriptionBody = Body<TranscriptionRequest>;
/// The JSON body of an alignment.
pub(crate) type AlignmentBody = Body<AlignmentRequest>;
/// The JSON body of an encoding.
pub(crate) type EncodingBody = Body<EncodingRequest>;

impl<F: OptionSchemas> PartialSchema for Body<F> {
    fn schema() -> RefOr<Schema> {
        let mut schema = F::schema();
        if let RefOr::T(Schema::Object(object)) = &mut schema {
            object
                .properties
                .extend(F::options().into_iter().map(|(name, option)| (name.to_owned(), option)));
        }
        schema
    }
}

impl<F: OptionSchemas> ToSchema for Body<F> {
    fn name() -> Cow<'static, str> {
        F::name()
    }
}

/// The form of a transcription.
pub type TranscriptionForm = Form<TranscriptionRequest>;
/// The form of an alignment.
pub(crate) type AlignmentForm = Form<AlignmentRequest>;
/// The form of an encoding.
pub(crate) type EncodingForm = Form<EncodingRequest>;
/// The form of making a voice.
pub(crate) type VoiceForm = Form<VoiceRequest>;

/// The form of a request that carries a recording: the parts that are read, with the schemas of the same members of `F`.
#[derive(Debug)]
pub struct Form<F>(PhantomData<F>);

impl<F: RecordingFields + OptionSchemas> PartialSchema for Form<F> {
    fn schema() -> RefOr<Schema> {
        let RefOr::T(Schema::Object(json)) = Body::<F>::schema() else { return ObjectBuilder::new().into() };
        let mut form = ObjectBuilder::new().schema_type(Type::Object);
        for (position, name) in F::FILES.iter().enumerate() {
            // Raw bytes have no type. <https://spec.openapis.org/oas/v3.1.1.html#considerations-for-file-uploads>
            let file = ObjectBuilder::new()
                .schema_type(SchemaType::AnyValue)
                .content_media_type("application/octet-stream")
                .description(Some(match position {
                    0 => "The recording, as a file: wav, flac, mp3, ogg, m4a or webm.".to_owned(),
                    _ => format!("Another name of `{}`.", F::FILES[0]),
                }));
            form = form.property(*name, file);
        }
        for TextPart { name, .. } in F::texts() {
            if let Some(member) = json.properties.get(name.trim_end_matches("[]")) {
                form = form.property(name, without_null(member.clone()));
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

impl<F: RecordingFields + OptionSchemas> ToSchema for Form<F> {
    fn name() -> Cow<'static, str> {
        F::name().replace("Request", "Form").into()
    }
}

/// The JSON body of a speech job: that of a speech request, with what it is.
#[derive(Debug)]
pub(crate) struct JobBody;

impl PartialSchema for JobBody {
    fn schema() -> RefOr<Schema> {
        job_schema(SpeechBody::schema(), schemas::one_of(["speech"]).build())
    }
}

impl ToSchema for JobBody {
    fn name() -> Cow<'static, str> {
        "JobRequest".into()
    }
}

/// The form of a job: that of a transcription, with what it is. One with a book takes the members of a speech request.
#[derive(Debug)]
pub(crate) struct JobForm;

impl PartialSchema for JobForm {
    fn schema() -> RefOr<Schema> {
        job_schema(TranscriptionForm::schema(), schemas::one_of(["transcription"]).build())
    }
}

impl ToSchema for JobForm {
    fn name() -> Cow<'static, str> {
        "JobForm".into()
    }
}

fn job_schema(mut schema: RefOr<Schema>, kind: Object) -> RefOr<Schema> {
    if let RefOr::T(Schema::Object(object)) = &mut schema {
        let is_speech = object.properties.contains_key("input");
        object.properties.insert("type".to_owned(), kind.into());
        object.required.push("type".to_owned());
        if is_speech {
            object.properties.insert("input_format".to_owned(), schemas::input_format().into());
        }
        for name in ["stream", "stream_format", "word_times", "first_chunk_ms", "live"] {
            object.properties.remove(name);
        }
    }
    schema
}
