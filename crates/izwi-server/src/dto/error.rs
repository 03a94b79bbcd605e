//! The error envelope.

use serde::Serialize;
use utoipa::ToSchema;

use crate::openapi;

/// The body of every response that is an error.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Error)]
pub(crate) struct ErrorEnvelope {
    #[schema(inline)]
    pub(crate) error: ErrorBody,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ErrorBody {
    /// What is wrong, with the value and the remedy.
    #[schema(max_length = 1000)]
    pub(crate) message: String,
    /// Class of the error.
    #[serde(rename = "type")]
    #[schema(schema_with = openapi::error_type)]
    pub(crate) kind: &'static str,
    /// The field it is about, by its wire name.
    pub(crate) param: Option<String>,
    /// Stable name of the error, for programs.
    pub(crate) code: &'static str,
}
