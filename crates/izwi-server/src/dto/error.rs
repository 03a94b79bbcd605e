//! The error envelope.

use serde::Serialize;
use utoipa::ToSchema;

use super::schemas;

/// The body of every response that is an error.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Error)]
pub struct ErrorEnvelope {
    #[schema(inline)]
    pub error: ErrorBody,
}

#[derive(Debug, Serialize, ToSchema)]
pub struct ErrorBody {
    /// What is wrong, with the value and the remedy.
    #[schema(max_length = 1000)]
    pub message: String,
    /// Class of the error.
    #[serde(rename = "type")]
    #[schema(schema_with = schemas::error_type)]
    pub kind: &'static str,
    /// The field it is about, by its wire name.
    pub param: Option<String>,
    /// Stable name of the error, for programs.
    pub code: &'static str,
}
