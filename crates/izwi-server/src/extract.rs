//! Extractors that answer bad input with an [`ApiError`], and the parsing they share.

use std::fmt::Display;
use std::ops::RangeInclusive;

use axum::extract::{FromRequestParts, Request};
use axum::http::header;
use axum::http::request::Parts;
use izwi_core::engine::Priority;
use izwi_types::{bounded, excerpt};
use serde::de::DeserializeOwned;

use crate::error::ApiError;
use crate::ignored::IgnoredFields;

/// The most characters that a message repeats of what is wrong with JSON.
const MAX_JSON_ERROR_CHARS: usize = 200;

/// The `Content-Type` of a request.
#[derive(Debug)]
pub struct ContentType(Option<String>);

impl ContentType {
    /// That of a request.
    pub fn of(request: &Request) -> Self {
        let value = request.headers().get(header::CONTENT_TYPE);
        Self(value.map(|value| value.to_str().unwrap_or("(not text)").to_owned()))
    }

    /// The type without its parameters.
    fn essence(&self) -> String {
        let text = self.0.as_deref().unwrap_or_default();
        text.split(';').next().unwrap_or_default().trim().to_ascii_lowercase()
    }

    /// Whether the body is JSON.
    pub fn is_json(&self) -> bool {
        let essence = self.essence();
        essence == "application/json" || (essence.starts_with("application/") && essence.ends_with("+json"))
    }

    /// Whether it is this type, in small letters.
    pub fn is(&self, essence: &str) -> bool {
        self.essence() == essence
    }

    /// Whether the body is a form with files.
    pub fn is_form(&self) -> bool {
        self.is("multipart/form-data")
    }

    /// The error of a route that reads other types.
    pub fn refused(&self, supported: &'static str) -> ApiError {
        let found = self.0.as_deref().map_or("(none)".to_owned(), |text| format!("'{}'", excerpt(text)));
        ApiError::UnsupportedMediaType { found, supported }
    }
}

/// A text that is not blank: SDKs send an empty string for an absent member.
pub fn non_blank(text: Option<String>) -> Option<String> {
    text.filter(|text| !text.trim().is_empty())
}

/// A value that a request must have.
///
/// # Errors
/// It is missing.
pub fn required<T>(param: &str, value: Option<T>) -> Result<T, ApiError> {
    value.ok_or_else(|| ApiError::invalid(param, format!("{param} is missing; it is required")))
}

/// Refuses a value outside `range`, in the name of the field.
pub fn check_range<T: PartialOrd + Display>(
    param: &str,
    value: T,
    range: &RangeInclusive<T>,
) -> Result<T, ApiError> {
    if range.contains(&value) {
        return Ok(value);
    }
    let message = format!("{param} is {value}; it must be between {} and {}", range.start(), range.end());
    Err(ApiError::invalid(param, message))
}

/// Reads `priority`; normal without it.
pub(crate) fn parse_priority(name: Option<&str>) -> Result<Priority, ApiError> {
    let Some(name) = name else { return Ok(Priority::Normal) };
    name.parse().map_err(|message: String| ApiError::invalid("priority", message))
}

/// Reads a JSON object; the error names a member of the wrong type by its path.
pub fn parse_json<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, ApiError> {
    Ok(parse_json_telling(bytes)?.0)
}

/// As [`parse_json`], with the members that nothing reads.
pub fn parse_json_telling<T: DeserializeOwned>(bytes: &[u8]) -> Result<(T, IgnoredFields), ApiError> {
    expect_object(bytes)?;
    let mut ignored = IgnoredFields::default();
    let mut reader = serde_json::Deserializer::from_slice(bytes);
    let mut track = serde_path_to_error::Track::new();
    let tracked = serde_path_to_error::Deserializer::new(&mut reader, &mut track);
    let value = serde_ignored::deserialize(tracked, |path| ignored.add(&path.to_string()));
    let value = value.map_err(|error| {
        let error = serde_path_to_error::Error::new(track.path(), error);
        // The text of an unexpected value is part of the error.
        let path = excerpt(error.path());
        let inner = error.into_inner();
        if inner.is_data() && path != "." {
            ApiError::invalid(&path, format!("{path}: {}", shortened(&inner)))
        } else {
            ApiError::MalformedJson(shortened(&inner))
        }
    })?;
    reader.end().map_err(|error| ApiError::MalformedJson(error.to_string()))?;
    Ok((value, ignored))
}

/// What is wrong with JSON: with a long value cut, and with what was expected.
pub fn shortened(error: &serde_json::Error) -> String {
    let text = error.to_string();
    match text.rsplit_once(", expected ") {
        Some((found, expected)) if text.len() > MAX_JSON_ERROR_CHARS => {
            format!("{}, expected {}", excerpt(found), bounded(expected, MAX_JSON_ERROR_CHARS))
        }
        _ => bounded(&text, MAX_JSON_ERROR_CHARS),
    }
}

/// Refuses JSON that does not begin as an object. Serde would take an array for the members of a struct in their order.
pub(crate) fn expect_object(bytes: &[u8]) -> Result<(), ApiError> {
    match bytes.iter().find(|byte| !byte.is_ascii_whitespace()) {
        Some(b'{') => Ok(()),
        Some(_) => Err(ApiError::MalformedJson("it is not an object; send its members in { }".to_owned())),
        None => Err(ApiError::MalformedJson("it is empty; send an object".to_owned())),
    }
}

/// Fields of a request alongside which the members of its options stand in the same JSON object.
pub(crate) trait WithOptions: DeserializeOwned {
    /// The options: a table of `izwi-types`.
    type Options: DeserializeOwned;

    /// Where the options go.
    fn options_mut(&mut self) -> &mut Self::Options;
}

/// Reads fields and options from one JSON object. Two passes keep the path of a member in errors, which
/// `#[serde(flatten)]` loses.
pub(crate) fn parse_with_options<T: WithOptions>(bytes: &[u8]) -> Result<T, ApiError> {
    Ok(parse_with_options_telling(bytes)?.0)
}

/// As [`parse_with_options`], with the members that nothing reads.
pub(crate) fn parse_with_options_telling<T: WithOptions>(
    bytes: &[u8],
) -> Result<(T, IgnoredFields), ApiError> {
    let (mut fields, mut ignored): (T, _) = parse_json_telling(bytes)?;
    let (options, ignored_by_options) = parse_json_telling(bytes)?;
    *fields.options_mut() = options;
    ignored.keep_common(&ignored_by_options);
    Ok((fields, ignored))
}

/// A path parameter.
#[derive(Debug)]
pub struct ApiPath(pub String);

impl<S: Send + Sync> FromRequestParts<S> for ApiPath {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        axum::extract::Path::<String>::from_request_parts(parts, state)
            .await
            .map(|axum::extract::Path(value)| Self(value))
            .map_err(|error| ApiError::invalid("id", excerpt(&error.body_text())))
    }
}

/// Query parameters.
#[derive(Debug)]
pub struct ApiQuery<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for ApiQuery<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        axum::extract::Query::<T>::from_request_parts(parts, state)
            .await
            .map(|axum::extract::Query(value)| Self(value))
            .map_err(|error| ApiError::invalid("query", excerpt(&error.body_text())))
    }
}
