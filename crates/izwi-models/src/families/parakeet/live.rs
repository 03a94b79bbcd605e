//! Audio that is appended while it is transcribed: each chunk is computed once, when it is complete.
//!
//! A position is a row of the encoder. One more after the last row of a recording ends it.

use std::sync::Arc;

use super::config::{Config, HOP, HeadShape, SAMPLE_RATE_HZ};
use super::vocabulary::Timed;
use super::{Parakeet, Progress, ROWS_OF_STEP, Share, Source, Wants, segment};
use crate::appended_audio::{AppendedAudio, Extent};
use crate::conformer::{FRAMES_PER_ROW, FrontEnd};
use crate::keywords::Keywords;
use izwi_nn::Error;
use izwi_types::{AudioProgress, InputError, PrepareLimits, Prepared, StepOutput, Work};

/// Milliseconds of a row.
const ROW_MS: u32 = (FRAMES_PER_ROW * HOP * 1_000 / SAMPLE_RATE_HZ) as u32;

/// A recording that grows.
#[derive(Debug)]
pub(super) struct Live {
    pub(super) audio: AppendedAudio,
    /// Rows of a chunk.
    chunk: usize,
    wants: Wants,
    /// What tokens gain; `None` without keywords.
    pub(super) keywords: Option<Arc<Keywords>>,
}

/// The chunks of recordings that can grow, in milliseconds.
pub(super) fn chunks_ms(config: &Config, front_end: &FrontEnd) -> Vec<u32> {
    let grows = front_end.is_local() && !matches!(config.head, HeadShape::Ctc);
    let ms = |&rows: &usize| u32::try_from(rows).unwrap_or(u32::MAX).saturating_mul(ROW_MS);
    if grows { config.chunks.iter().map(ms).collect() } else { Vec::new() }
}

impl Parakeet {
    /// # Errors
    /// There are no such chunks.
    pub(super) fn prepare_live(
        &self,
        chunk_ms: u32,
        wants: Wants,
        keywords: &[String],
        limits: &PrepareLimits,
    ) -> Result<Prepared, InputError> {
        let known = &self.info.chunks_ms;
        let index = known.iter().position(|&known| known == chunk_ms);
        let chunk = index.and_then(|index| self.chunks.get(index)).copied().ok_or_else(|| {
            let message = format!("chunks of {chunk_ms} ms are none of {known:?} ms; use one of them");
            InputError { param: "chunk_ms", message }
        })?;
        let longest = (ROWS_OF_STEP.min(limits.max_tokens_per_step) / chunk).max(1) * chunk;
        let (audio, keywords) = (AppendedAudio::new(SAMPLE_RATE_HZ), self.vocabulary.keywords(keywords));
        Ok(Prepared::new(Work::Chunks { chunk, longest }, Arc::new(Live { audio, chunk, wants, keywords })))
    }

    /// How far a recording reaches.
    pub(super) fn progress(&self, live: &Live, extent: Extent) -> AudioProgress {
        let frames = self.front_end.ready(extent.samples, extent.is_finished);
        let positions = match extent.is_finished {
            true => self.encoder.shape().rows(frames) + 1,
            // The first row is made of one frame.
            false => frames.div_ceil(FRAMES_PER_ROW) / live.chunk * live.chunk,
        };
        AudioProgress { positions, waiting: extent.kept }
    }

    /// The share of a recording whose rows before `end` are to be known.
    pub(super) fn live_share<'a>(
        &self,
        live: &'a Live,
        progress: &'a mut Progress,
        end: usize,
    ) -> Result<Share<'a>, Error> {
        let extent = live.audio.extent();
        let is_last = extent.is_finished && end >= self.progress(live, extent).positions;
        let known = progress.begun.as_ref().map_or(0, |(stream, _)| stream.frames());
        let ready = self.front_end.ready(extent.samples, extent.is_finished);
        let wanted = (1 + FRAMES_PER_ROW * end.saturating_sub(1)).min(ready);
        let frames = known..if is_last { ready } else { wanted }.max(known);
        let span = self.front_end.span(&frames);
        let needed = self.front_end.span(&(frames.end..frames.end)).start;
        let samples = live.audio.take(span.clone(), needed);
        let samples = samples.ok_or(Error::Internal("the audio of a recording that starts again is gone"))?;
        let mel = self.front_end.part(&samples, span.start, frames);
        let piece = (mel.frames > 0).then_some((mel, live.chunk));
        Ok(Share { source: Source::Live(live), progress, piece, ends: is_last, finished: is_last })
    }

    /// The transcript of what was found: the words that do not go on, and the one that may.
    pub(super) fn live_output(
        &self,
        live: &Live,
        progress: &mut Progress,
        tokens: Vec<Timed>,
        ends: bool,
    ) -> StepOutput {
        let mut output = StepOutput::default();
        let mut words = self.words(progress, tokens, &mut output);
        let open = if ends { None } else { words.pop() };
        if !words.is_empty() {
            let segment = segment(live.wants, 0, &words);
            progress.pending.drain(..segment.tokens.len());
            output.text.clone_from(&segment.text);
            output.segments.push(segment);
        }
        output.partial = open.map_or_else(String::new, |word| word.spaced());
        output
    }
}
