//! Speech synthesis: one request through an engine, its audio passed on in chunks.
//!
//! Knows no destination of the audio.

use anyhow::Result;
use izwi_core::engine::{Engine, EngineCoreRequest, RequestStats};
use izwi_types::TextNotes;

use crate::engine::OutputStream;
use crate::interrupt::Interrupt;

/// The result of a request.
#[derive(Debug)]
pub(crate) struct Speech {
    /// All samples, mono; empty if they were not to be kept.
    pub(crate) samples: Vec<f32>,
    /// Samples per second.
    pub(crate) sample_rate_hz: u32,
    /// Statistics of the engine.
    pub(crate) stats: RequestStats,
}

/// Runs a request. `on_notes` receives what the model says otherwise than it is written, before `on_chunk` receives each
/// chunk; `keep` says whether all samples are returned as well.
///
/// # Errors
/// The request is refused or fails, `on_chunk` fails, or the process is interrupted.
pub(crate) async fn synthesize(
    engine: &Engine,
    request: EngineCoreRequest,
    interrupt: &mut Interrupt,
    keep: bool,
    on_notes: impl FnOnce(&TextNotes),
    mut on_chunk: impl AsyncFnMut(&[f32]) -> Result<()>,
) -> Result<Speech> {
    let work = async {
        let mut chunks = OutputStream::start(engine, request).await?;
        let mut samples = Vec::new();
        let mut on_notes = Some(on_notes);
        loop {
            let chunk = chunks.next().await?;
            if let Some(on_notes) = on_notes.take() {
                on_notes(&chunk.notes);
            }
            on_chunk(&chunk.samples).await?;
            if keep {
                samples.extend_from_slice(&chunk.samples);
            }
            if let Some(stats) = chunk.stats {
                return Ok(Speech { samples, sample_rate_hz: chunk.sample_rate, stats });
            }
        }
    };
    interrupt.guard(work).await
}
