//! Speech synthesis: one request through an engine, its audio passed on in chunks.
//!
//! Knows no destination of the audio.

use anyhow::Result;
use izwi_core::engine::{Engine, EngineCoreRequest, RequestStats, StreamingOutput};

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

/// Runs a request. `on_chunk` receives each chunk; `keep` says whether all samples are returned as well.
///
/// # Errors
/// The request is refused or fails, `on_chunk` fails, or the process is interrupted.
pub(crate) async fn synthesize(
    engine: &Engine,
    request: EngineCoreRequest,
    interrupt: &mut Interrupt,
    keep: bool,
    mut on_chunk: impl AsyncFnMut(&StreamingOutput) -> Result<()>,
) -> Result<Speech> {
    let work = async {
        let mut chunks = OutputStream::start(engine, request).await?;
        let mut samples = Vec::new();
        loop {
            let chunk = chunks.next().await?;
            on_chunk(&chunk).await?;
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
