//! The request for a job, as JSON or as a form whose file goes to the disk as it comes.

use axum::extract::{FromRequest as _, Multipart, Request};
use axum::http::header;
use izwi_types::excerpt;
use serde_json::{Map, Value};

use crate::dto::job::JobType;
use crate::dto::speech::SpeechRequest;
use crate::dto::transcription::TranscriptionRequest;
use crate::error::ApiError;
use crate::extract::{ContentType, parse_json, parse_with_options_telling, required};
use crate::ignored::IgnoredFields;
use crate::jobs::intake::NewJob;
use crate::jobs::record::{Asked, Kind};
use crate::state::AppState;
use crate::upload::{MAX_PARTS, RecordingFields as _, UploadMemory, collect, form_error, read_large_json};

/// The part of a form that is the file, and the one that says what to do.
const FILE: &str = "file";
const TYPE: &str = "type";
/// The most bytes of a text part.
const MAX_TEXT_BYTES: usize = 256 << 10;
const MAX_REFERENCE_BYTES: usize = 4 << 20;
/// How long a request with a file may take to come, while it goes on.
const UPLOAD_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(6 * 3_600);
/// Fields of a speech request that are text; those of a form are otherwise JSON.
const TEXTS: [&str; 12] = [
    "model",
    "input",
    "input_format",
    "voice",
    "response_format",
    "stream_format",
    "priority",
    "ref_audio",
    "ref_text",
    "language",
    "instructions",
    "name",
];

/// A job that was received and is not queued yet.
#[derive(Debug)]
pub(crate) struct Received {
    pub(crate) new: NewJob,
    pub(crate) asked: Asked,
    pub(crate) ignored: IgnoredFields,
}

/// Reads the request.
///
/// # Errors
/// It cannot be read, is too large, or there is no room for it.
pub(crate) async fn receive(request: Request, state: &AppState) -> Result<Received, ApiError> {
    let content_type = ContentType::of(&request);
    if content_type.is_json() {
        let (_, upload) = read_large_json(request, state).await?;
        let new = NewJob::begin(state.jobs(), upload.bytes.len() as u64).await?;
        let (asked, ignored) = of_json(&upload.bytes)?;
        return Ok(Received { new, asked, ignored });
    }
    if !content_type.is_form() {
        return Err(content_type.refused("multipart/form-data or application/json"));
    }
    let read = tokio::time::timeout(UPLOAD_TIMEOUT, of_form(request, state));
    read.await.map_err(|_| ApiError::RequestTimeout)?
}

fn kind(name: Option<&str>) -> Result<Kind, ApiError> {
    let name = required(TYPE, name)?;
    Kind::ALL.into_iter().find(|kind| kind.name() == name).ok_or_else(|| {
        let name = excerpt(name);
        ApiError::invalid(TYPE, format!("type '{name}' is unknown; use speech or transcription"))
    })
}

fn of_json(bytes: &[u8]) -> Result<(Asked, IgnoredFields), ApiError> {
    let typed: JobType = parse_json(bytes)?;
    if kind(typed.kind.as_deref())? == Kind::Transcription {
        let message = "file is missing; send a transcription as a form with the recording in file";
        return Err(ApiError::invalid(FILE, message));
    }
    let fields = serde_json::from_slice(bytes).map_err(|error| ApiError::MalformedJson(error.to_string()))?;
    of_speech(fields, None)
}

/// What a speech job is asked for.
fn of_speech(
    mut fields: Map<String, Value>,
    book: Option<String>,
) -> Result<(Asked, IgnoredFields), ApiError> {
    fields.remove(TYPE);
    let (_, mut ignored) = parse_with_options_telling::<SpeechRequest>(&json(&fields))?;
    ignored.remove("input_format");
    Ok((Asked::Speech { fields, book }, ignored))
}

/// The fields of a speech job as they are read.
pub(super) fn json(fields: &Map<String, Value>) -> Vec<u8> {
    serde_json::to_vec(fields).unwrap_or_default()
}

/// The fields of a transcription, and what nothing reads.
pub(super) fn transcription_fields(
    parts: &[(String, String)],
) -> Result<(TranscriptionRequest, IgnoredFields), ApiError> {
    let (mut fields, mut ignored) = (TranscriptionRequest::default(), IgnoredFields::default());
    let known = TranscriptionRequest::texts();
    for (at, (name, text)) in parts.iter().enumerate() {
        let Some(part) = known.iter().find(|part| part.name == name) else {
            ignored.add(name);
            continue;
        };
        if !part.repeats && parts[..at].iter().any(|(other, _)| other == name) {
            return Err(twice(name));
        }
        fields.take_text(name, text.clone())?;
    }
    Ok((fields, ignored))
}

fn twice(name: &str) -> ApiError {
    ApiError::invalid(name, format!("{} is given more than once; send one", excerpt(name)))
}

async fn of_form(request: Request, state: &AppState) -> Result<Received, ApiError> {
    let length = request.headers().get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok());
    let length = length.and_then(|length| length.parse().ok()).unwrap_or(0);
    let mut new = NewJob::begin(state.jobs(), length).await?;
    let mut memory = UploadMemory::new(state, 0);
    let mut form = Multipart::from_request(request, state)
        .await
        .map_err(|_| ApiError::MalformedForm("its content type has no boundary".to_owned()))?;
    let (mut parts, mut file, mut count) = (Vec::<(String, String)>::new(), None, 0);
    while let Some(mut field) = form.next_field().await.map_err(|error| form_error(&error, usize::MAX))? {
        count += 1;
        if count > MAX_PARTS {
            return Err(ApiError::MalformedForm(format!("it has more than {MAX_PARTS} parts")));
        }
        let Some(name) = field.name().map(str::to_owned) else {
            return Err(ApiError::MalformedForm(format!("part {count} has no name")));
        };
        if name != FILE {
            let limit = match &*name {
                "input" => state.config().max_upload_bytes,
                name if name.starts_with("known_speaker_references") => MAX_REFERENCE_BYTES,
                _ => MAX_TEXT_BYTES,
            };
            let bytes = collect(&mut field, None, limit, usize::MAX).await?;
            memory.take(bytes.len())?;
            let text = String::from_utf8(bytes.into())
                .map_err(|_| ApiError::invalid(&name, format!("{} is not UTF-8 text", excerpt(&name))))?;
            parts.push((name, text));
            continue;
        }
        if file.is_some() {
            return Err(twice(FILE));
        }
        file = Some(field.file_name().unwrap_or("book").to_owned());
        let mut upload = new.receive();
        while let Some(chunk) = field.chunk().await.map_err(|error| form_error(&error, usize::MAX))? {
            new.count(chunk.len())?;
            upload.write(chunk).await?;
        }
        upload.finish().await?;
    }
    let (asked, ignored) = of_parts(parts, file)?;
    Ok(Received { new, asked, ignored })
}

/// What the text parts of a form and the name of its file ask for.
fn of_parts(parts: Vec<(String, String)>, file: Option<String>) -> Result<(Asked, IgnoredFields), ApiError> {
    let typed = parts.iter().find(|(name, _)| name == TYPE).map(|(_, text)| text.as_str());
    let kind = kind(typed)?;
    let parts: Vec<_> = parts.into_iter().filter(|(name, _)| name != TYPE).collect();
    if kind == Kind::Transcription {
        if file.is_none() {
            return Err(ApiError::invalid(
                FILE,
                "file is missing; send the recording as a file of this form",
            ));
        }
        let (_, ignored) = transcription_fields(&parts)?;
        return Ok((Asked::Transcription { parts }, ignored));
    }
    let mut fields = Map::new();
    for (name, text) in parts {
        let value = match TEXTS.contains(&&*name) {
            true => Value::String(text),
            false => serde_json::from_str(&text).unwrap_or(Value::String(text)),
        };
        if fields.insert(name.clone(), value).is_some() {
            return Err(twice(&name));
        }
    }
    of_speech(fields, file)
}

#[cfg(test)]
mod tests {
    use super::*;

    type Parts<'a> = &'a [(&'a str, &'a str)];

    fn parts(parts: Parts<'_>) -> Vec<(String, String)> {
        parts.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect()
    }

    #[test]
    fn a_form_and_json_ask_for_the_same() {
        let json = br#"{"type":"speech","input":"12","speed":1.5,"lexicons":["a"],"what":1}"#;
        let form =
            [("type", "speech"), ("input", "12"), ("speed", "1.5"), ("lexicons", "[\"a\"]"), ("what", "1")];
        assert_eq!(of_json(json).unwrap(), of_parts(parts(&form), None).unwrap());
        let (Asked::Speech { fields, book: None }, ignored) = of_json(json).unwrap() else { panic!() };
        assert_eq!((fields.contains_key("type"), &fields["input"]), (false, &Value::from("12")));
        assert_eq!(ignored.headers()["x-ignored-fields"], "what");
    }

    #[test]
    fn what_no_job_can_do_is_refused_by_name() {
        for (json, param) in [
            (r#"{"input":"a"}"#, Some("type")),
            (r#"{"type":"music"}"#, Some("type")),
            (r#"{"type":"transcription"}"#, Some("file")),
            (r#"{"type":"speech","speed":"fast"}"#, Some("speed")),
            (r#"{"type":7}"#, Some("type")),
            ("[]", None),
        ] {
            assert_eq!(of_json(json.as_bytes()).unwrap_err().param(), param, "{json}");
        }
        let cases: [(Parts<'_>, Option<&str>, &str); 5] = [
            (&[("model", "m")], Some("a.wav"), "type"),
            (&[("type", "transcription")], None, "file"),
            (&[("type", "transcription"), ("temperature", "hot")], Some("a.wav"), "temperature"),
            (&[("type", "transcription"), ("model", "a"), ("model", "b")], Some("a.wav"), "model"),
            (&[("type", "speech"), ("speed", "fast")], None, "speed"),
        ];
        for (given, file, param) in cases {
            let error = of_parts(parts(given), file.map(str::to_owned)).unwrap_err();
            assert_eq!(error.param(), Some(param), "{error}");
        }
    }
}
