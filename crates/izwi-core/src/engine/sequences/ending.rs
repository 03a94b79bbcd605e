//! The end of a session: its last chunk or its whole result, and its statistics.
//!
//! Must not know channels of other sessions.

use std::time::Duration;

use izwi_audio::chunk::{ChunkLengths, Chunker};
use izwi_types::{Emission, Task, Transcript};
use tokio::time::Instant;

use super::Delivery;
use super::session::Session;
use crate::engine::error::EngineError;
use crate::engine::metrics::MetricsCollector;
use crate::engine::types::{AudioOutput, EngineOutput, FinishReason, RequestStats, audio_duration};

impl Session {
    pub(super) fn end_stream(&mut self, stats: RequestStats, sample_rate: u32, metrics: &MetricsCollector) {
        let is_wanted = !matches!(stats.finish_reason, FinishReason::Cancelled | FinishReason::Interrupted);
        if self.plays() && stats.samples > 0 && is_wanted {
            let is_cut = stats.finish_reason == FinishReason::Error;
            metrics.stream_continuity(self.playback.underrun(), is_cut);
        }
        let rest = std::mem::replace(&mut self.chunker, Chunker::new(ChunkLengths::new(1, None))).finish();
        let emissions = self.take_emissions(stats.finish_reason);
        self.enqueue(rest, emissions, Some(stats), sample_rate, metrics);
    }

    /// The undelivered emissions: all of them, or only the decoded ones if the turn was cut off.
    fn take_emissions(&mut self, reason: FinishReason) -> Vec<(Emission, u64)> {
        match reason {
            FinishReason::Stop
            | FinishReason::Length
            | FinishReason::RunawayTrimmed
            | FinishReason::TextTimeout => self.emissions.drain(),
            FinishReason::Cancelled | FinishReason::Interrupted | FinishReason::Error => {
                self.emissions.pop_complete(u64::MAX)
            }
        }
    }

    pub(super) fn end_whole(mut self, stats: RequestStats, sample_rate: u32) -> Option<EngineOutput> {
        let emissions = self.take_emissions(stats.finish_reason);
        let emissions = emissions.into_iter().map(|(emission, _)| emission).collect();
        let transcript = (self.request.task.listens()).then_some(Transcript {
            language: self.language,
            language_probability: self.language_probability,
            segments: self.segments,
        });
        let is_heard = transcript.is_some();
        let output = EngineOutput {
            request_id: self.request.id,
            task_type: self.request.task,
            audio: AudioOutput { samples: self.collected, sample_rate },
            text: Some(if is_heard { self.text.trim().to_owned() } else { self.text })
                .filter(|text| is_heard || !text.is_empty()),
            transcript,
            emissions,
            generation_time: stats.generation_time,
            stats,
        };
        match self.client.delivery {
            Delivery::Whole(reply) => {
                let result = match output.stats.finish_reason {
                    FinishReason::Error | FinishReason::TextTimeout => {
                        Err(output.stats.error.unwrap_or_else(|| EngineError::Execution(String::new())))
                    }
                    FinishReason::Cancelled | FinishReason::Interrupted => Err(EngineError::Aborted),
                    _ => Ok(output),
                };
                // The caller may have stopped waiting.
                let _ = reply.send(result);
                None
            }
            Delivery::Step | Delivery::Stream(_) => Some(output),
        }
    }

    pub(super) fn stats(
        &self,
        finish_reason: FinishReason,
        error: Option<EngineError>,
        sample_rate: u32,
        ready_at: Instant,
    ) -> RequestStats {
        let accepted = self.client.accepted_at;
        let idle_since = self.blocked_since.or(self.waiting_since);
        let blocked = self.blocked_total + idle_since.map_or(Duration::ZERO, |since| since.elapsed());
        let samples = self.samples();
        // The only chunk of a short stream leaves with its statistics.
        let first_audio_at = self.first_audio_at.or_else(|| (samples > 0).then(Instant::now));
        RequestStats {
            finish_reason,
            error,
            seed: self.request.seed,
            prompt_tokens: self.request.prompt_tokens,
            generated_tokens: self.generated_tokens,
            samples,
            audio_duration: match self.request.task {
                Task::Asr | Task::Diarize | Task::Turn => self.request.recorded,
                Task::Tts | Task::Chat => audio_duration(samples, sample_rate),
            },
            accepted_at: accepted,
            prepare_time: self.opened_at - accepted,
            queue_time: self.first_scheduled_at.map_or_else(|| accepted.elapsed(), |at| at - accepted),
            generation_time: accepted.max(ready_at).elapsed().saturating_sub(blocked),
            time_to_first_output: self.first_output_at.map(|at| at - accepted),
            time_to_first_audio: first_audio_at.map(|at| at - accepted),
        }
    }
}
