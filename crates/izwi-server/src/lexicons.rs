//! The saved lexicons of a server, for its own routes and for dialects.

use std::sync::{Mutex, PoisonError};

use izwi_core::engine::RequestId;
pub use izwi_hub::SavedLexicon;
use izwi_hub::{LexiconStore, SavedError};
use izwi_types::Lexicon;

use crate::error::ApiError;
use crate::state::AppState;

/// All lexicons, by name.
///
/// # Errors
/// One cannot be read.
pub async fn all(state: &AppState) -> Result<Vec<SavedLexicon>, ApiError> {
    with_store(state, |store| store.list()).await
}

/// The lexicon of a name.
///
/// # Errors
/// There is none, or it cannot be read.
pub async fn find(state: &AppState, name: String) -> Result<SavedLexicon, ApiError> {
    with_store(state, move |store| store.read(&name)).await
}

/// The names of all lexicons.
///
/// # Errors
/// They cannot be listed.
pub async fn names(state: &AppState) -> Result<Vec<String>, ApiError> {
    let stamps = with_store(state, |store| store.stamps()).await?;
    Ok(stamps.into_iter().map(|(name, _)| name).collect())
}

/// Saves a lexicon, in place of one with its name only where that `replaces` it. Returns what is saved.
///
/// # Errors
/// The name is invalid or taken, or there are too many.
pub async fn save(state: &AppState, saved: SavedLexicon, replaces: bool) -> Result<SavedLexicon, ApiError> {
    let save = move |store: &LexiconStore| {
        if replaces { store.replace(&saved) } else { store.save(&saved) }?;
        store.read(&saved.name)
    };
    let saved = with_store(state, save).await?;
    tracing::info!(lexicon = saved.name, entries = saved.lexicon.entries.len(), "lexicon saved");
    Ok(saved)
}

/// Changes the words of a lexicon by `change`. Returns what is saved.
///
/// # Errors
/// There is none of this name, or `change` fails.
pub async fn update(
    state: &AppState,
    name: String,
    change: impl FnOnce(&mut Lexicon) -> Result<(), ApiError> + Send + 'static,
) -> Result<SavedLexicon, ApiError> {
    let update = move |store: &LexiconStore| {
        // One change after another: none is lost.
        static CHANGES: Mutex<()> = Mutex::new(());
        let _turn = CHANGES.lock().unwrap_or_else(PoisonError::into_inner);
        let mut saved = store.read(&name)?;
        let changed = change(&mut saved.lexicon);
        Ok(match changed {
            Ok(()) => store.replace(&saved).and_then(|()| store.read(&saved.name)).map(Ok)?,
            Err(error) => Err(error),
        })
    };
    with_store(state, update).await?
}

/// Removes a lexicon.
///
/// # Errors
/// There is none of this name.
pub async fn remove(state: &AppState, name: String) -> Result<(), ApiError> {
    with_store(state, move |store| store.remove(&name)).await
}

/// Runs work on the saved lexicons on a blocking thread.
async fn with_store<T: Send + 'static>(
    state: &AppState,
    work: impl FnOnce(&LexiconStore) -> Result<T, SavedError> + Send + 'static,
) -> Result<T, ApiError> {
    let Some(store) = state.lexicons().cloned() else {
        return Err(ApiError::invalid(
            "name",
            "this server saves no lexicons; write pronunciations into the text, see docs/speaking.md",
        ));
    };
    match tokio::task::spawn_blocking(move || work(&store)).await {
        Ok(result) => result.map_err(|error| ApiError::from_lexicons(&error)),
        Err(panic) => Err(ApiError::internal(&panic.to_string(), &RequestId::random())),
    }
}
