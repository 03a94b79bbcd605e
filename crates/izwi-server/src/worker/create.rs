//! A new job: received, checked, and queued.

use std::sync::Arc;

use axum::extract::Request;

use super::form::{self, Received};
use super::speech::Reading;
use super::transcription::Transcribing;
use crate::error::ApiError;
use crate::ignored::IgnoredFields;
use crate::jobs::Job;
use crate::jobs::record::Asked;
use crate::state::AppState;

/// Receives a job, checks it with its model, and queues it. Returns also what has no effect.
///
/// # Errors
/// It cannot be read or done, or there is no room for it.
pub(crate) async fn create(
    request: Request,
    state: &AppState,
) -> Result<(Arc<Job>, IgnoredFields), ApiError> {
    let Received { new, asked, mut ignored } = form::receive(request, state).await?;
    let upload = new.upload();
    let (model, more) = match &asked {
        Asked::Speech { fields, book } => {
            let book = book.as_deref().map(|name| (&*upload, name));
            let reading = Reading::new(state, fields, book).await?;
            (reading.model().to_owned(), reading.ignored)
        }
        Asked::Transcription { parts } => {
            let transcribing = Transcribing::new(state, parts, &upload).await?;
            (transcribing.model().to_owned(), transcribing.ignored)
        }
    };
    ignored.extend(more);
    state.ignored_log().note(&ignored);
    Ok((new.queue(asked, model, state.unix_s()).await?, ignored))
}
