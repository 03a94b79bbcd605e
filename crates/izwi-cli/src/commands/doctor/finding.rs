//! The result of one check.

use serde::Serialize;

/// Severity of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Verdict {
    /// No problem.
    Ok,
    /// Synthesis works; something else does not, or is slow.
    Warning,
    /// Prevents synthesis.
    Broken,
}

/// The result of one check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Finding {
    pub(super) subject: &'static str,
    pub(super) verdict: Verdict,
    pub(super) detail: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) remedy: Option<String>,
}

impl Finding {
    pub(super) fn ok(subject: &'static str, detail: impl Into<String>) -> Self {
        Self { subject, verdict: Verdict::Ok, detail: detail.into(), remedy: None }
    }

    pub(super) fn warning(
        subject: &'static str,
        detail: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self { subject, verdict: Verdict::Warning, detail: detail.into(), remedy: Some(remedy.into()) }
    }

    pub(super) fn broken(
        subject: &'static str,
        detail: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self { subject, verdict: Verdict::Broken, detail: detail.into(), remedy: Some(remedy.into()) }
    }
}
