//! Sessions of dialects for fuzz targets, as [`izwi_server::fuzzing`] has those of the server.

use izwi_server::AppState;
use izwi_server::fuzzing::{Step, of};

use crate::{elevenlabs, realtime};

/// Runs a session of ElevenLabs with several contexts. Returns the text frames that were sent.
pub async fn elevenlabs(state: &AppState, steps: &[Step<'_>]) -> Vec<String> {
    match elevenlabs::opening() {
        Ok(opening) => of::<elevenlabs::Stream>(state, opening, steps).await,
        Err(_) => Vec::new(),
    }
}

/// As [`elevenlabs`], of the Realtime API.
pub async fn realtime(state: &AppState, steps: &[Step<'_>]) -> Vec<String> {
    of::<realtime::Session>(state, Default::default(), steps).await
}
