//! Recordings that are heard while they arrive.

use anyhow::{Context, Result, ensure};
use izwi_benches::clips;
use izwi_core::engine::{AudioStream, Engine, EngineCoreRequest, FinishReason, Segment};
use izwi_types::revise_turns;

use super::Heard;
use super::rttm::Turn;

/// How far a recording is sent ahead of what is told of it.
const AHEAD_S: f64 = 15.0;

/// Sends a recording second by second, faster than it is spoken.
pub(crate) async fn hear(engine: &Engine, samples: &[f32]) -> Result<Heard> {
    let chunk_ms =
        *engine.profile().info.chunks_ms.first().context("the model takes recordings as a whole")?;
    let audio = AudioStream::new(chunk_ms);
    let (_, mut chunks) =
        engine.generate_streaming(EngineCoreRequest::live_diarization(audio.clone())).await?;
    let rate = clips::RATE_HZ as usize;
    let mut seconds = samples.chunks(rate).peekable();
    let (mut turns, mut found, mut end) = (Vec::new(), Vec::new(), None);
    let (mut sent_s, mut heard_s) = (0.0, 0.0f64);
    while end.is_none() {
        // A few seconds wait.
        while let Some(second) = seconds.next_if(|_| sent_s < heard_s + AHEAD_S) {
            audio.append(second)?;
            sent_s += second.len() as f64 / rate as f64;
        }
        if seconds.peek().is_none() {
            audio.finish()?;
        }
        let chunk = chunks.recv().await.context("the stream was cut off")?;
        let told = chunk.segments.iter().filter(|segment| segment.is_revision());
        let until_s = told.map(|segment| segment.end_s).fold(heard_s, f64::max);
        revise_turns(&mut turns, chunk.segments);
        found.extend(turns.iter().filter_map(|turn| part(turn, heard_s, until_s)));
        heard_s = until_s;
        end = chunk.stats.map(|stats| stats.finish_reason);
    }
    ensure!(end == Some(FinishReason::Stop), "the recording was not heard to its end: {end:?}");
    let corrected = turns.iter().filter_map(Turn::of).collect();
    Ok(Heard { found, corrected: Some(corrected), length_s: samples.len() as f64 / rate as f64 })
}

/// What is told of a stretch.
fn part(turn: &Segment, start_s: f64, end_s: f64) -> Option<Turn> {
    let turn = Turn::of(turn)?;
    let turn = Turn { start_s: turn.start_s.max(start_s), end_s: turn.end_s.min(end_s), ..turn };
    (turn.end_s > turn.start_s).then_some(turn)
}
