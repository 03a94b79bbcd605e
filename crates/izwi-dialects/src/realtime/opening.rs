//! What the URL of a session says.

use std::sync::Arc;

use serde::Deserialize;
use serde_json::Value;
use utoipa::IntoParams;

/// What the URL says.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct Opening {
    /// Id of a model, or a name of a hosted one.
    pub(super) model: Option<String>,
    /// `transcription` for a session that transcribes.
    pub(super) intent: Option<String>,
    /// Whether the client asks for the beta of the API.
    #[serde(skip)]
    #[param(ignore)]
    pub(super) is_beta: bool,
    /// The session as a client secret sets it.
    #[serde(skip)]
    #[param(ignore)]
    pub(super) session: Option<Arc<Value>>,
}

impl Opening {
    /// The model of the URL, or else of the client secret.
    pub(super) fn named_model(&self) -> Option<&str> {
        let granted = || self.session.as_ref()?["model"].as_str();
        self.model.as_deref().or_else(granted).filter(|model| !model.is_empty())
    }
}
