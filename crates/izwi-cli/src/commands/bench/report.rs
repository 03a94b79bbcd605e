//! The results, as text and as JSON.

use std::collections::BTreeMap;

use izwi_core::engine::Engine;
use serde::{Deserialize, Serialize};

use super::batch::{Round, Utterance};
use super::gpu_terms::GpuTerms;
use super::machine::Machine;
use super::statistics::{median, ms, quantile};
use crate::machine::peak_memory;
use crate::output;

/// The output of `--json`.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Report {
    pub(super) machine: Machine,
    pub(super) results: Vec<Measured>,
    /// What the charts of `--html` show, for each of the results that were measured in this process.
    #[serde(skip)]
    pub(super) details: Vec<Detail>,
}

/// The course of the rounds of one result.
#[derive(Debug, Clone, Default)]
pub(super) struct Detail {
    /// For each round, the real-time factor so far over the seconds of the round.
    pub(super) rtf: Vec<Vec<(f64, f64)>>,
    pub(super) first_audio_ms: Vec<f64>,
    pub(super) utterance: Option<Utterance>,
}

impl Detail {
    /// What to keep of these rounds.
    pub(super) fn of(rounds: Vec<Round>) -> Self {
        let mut detail = Self::default();
        for round in rounds {
            detail.first_audio_ms.extend(round.first_audio.iter().map(ms));
            detail.rtf.extend(Some(round.rtf).filter(|line| !line.is_empty()));
            detail.utterance = detail.utterance.or(round.utterance);
        }
        detail
    }
}

/// The result of one batch size: medians of the rounds.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Measured {
    pub(super) model: String,
    pub(super) dtype: String,
    pub(super) batch: usize,
    pub(super) threads: usize,
    /// Of all requests together, after the prefill of the last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) frames_per_s: Option<f64>,
    /// Of all transcripts together, with their prefill.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) tokens_per_s: Option<f64>,
    /// Time to compute over time of audio of one request, prefill included. Below 1 is faster than real time.
    pub(super) rtf: f64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) ttfa_ms_p50: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) ttfa_ms_p95: Option<f64>,
    /// Bytes of weights read for a frame of one request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) bytes_per_frame: Option<f64>,
    /// Share of the measured memory bandwidth.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) bandwidth_share: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) peak_rss_bytes: Option<u64>,
    /// Milliseconds per step in each part of the model.
    #[serde(default)]
    pub(super) parts_ms: BTreeMap<String, f64>,
    /// What a step asks of a GPU with own kernels.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) gpu: Option<GpuTerms>,
}

impl Measured {
    /// Summarises the rounds of one batch size of a TTS model.
    pub(super) fn synthesis(engine: &Engine, batch: usize, rounds: &[Round], machine: &Machine) -> Self {
        let median_of = |figure: &dyn Fn(&Round) -> f64| median(rounds.iter().map(figure).collect());
        let frames_per_s =
            median_of(&|round| round.steady_tokens / round.steady.as_secs_f64().max(f64::MIN_POSITIVE));
        let mut first: Vec<f64> = rounds.iter().flat_map(|round| &round.first_audio).map(ms).collect();
        first.sort_by(f64::total_cmp);
        let bytes_per_frame = engine.profile().step_bytes as f64 / batch as f64;
        let steps = |round: &Round| (round.tokens as f64 / batch as f64).max(1.0);
        let names: Vec<&'static str> =
            rounds.first().map(|round| round.parts.iter().map(|part| part.0).collect()).unwrap_or_default();
        let mut parts_ms: BTreeMap<String, f64> = names
            .iter()
            .enumerate()
            .map(|(at, name)| ((*name).to_owned(), median_of(&|round| ms(&round.parts[at].1) / steps(round))))
            .collect();
        if !parts_ms.is_empty() {
            let known = |round: &Round| round.parts.iter().map(|part| ms(&part.1)).sum::<f64>();
            let rest = median_of(&|round| ((ms(&round.wall) - known(round)) / steps(round)).max(0.0));
            parts_ms.insert("engine and the rest".to_owned(), rest);
        }
        Self {
            frames_per_s: Some(frames_per_s),
            ttfa_ms_p50: Some(quantile(&first, 0.5)),
            ttfa_ms_p95: Some(quantile(&first, 0.95)),
            bytes_per_frame: Some(bytes_per_frame),
            bandwidth_share: Some(frames_per_s * bytes_per_frame / (machine.read_bandwidth_gb_s * 1e9)),
            parts_ms,
            ..Self::of(engine, batch, rounds)
        }
    }

    /// Summarises the rounds of one batch size of an ASR model.
    pub(super) fn transcription(engine: &Engine, batch: usize, rounds: &[Round]) -> Self {
        let rate = |round: &Round| round.tokens as f64 / round.wall.as_secs_f64().max(f64::MIN_POSITIVE);
        Self {
            tokens_per_s: Some(median(rounds.iter().map(rate).collect())),
            ..Self::of(engine, batch, rounds)
        }
    }

    /// The results of models of any task.
    fn of(engine: &Engine, batch: usize, rounds: &[Round]) -> Self {
        let (profile, config) = (engine.profile(), engine.config());
        let rtf = |round: &Round| round.wall.as_secs_f64() * batch as f64 / round.audio.as_secs_f64();
        Self {
            model: profile.model.clone(),
            dtype: profile.precision.to_string(),
            batch,
            threads: config.num_threads,
            rtf: median(rounds.iter().map(rtf).collect()),
            peak_rss_bytes: peak_memory(),
            gpu: GpuTerms::of(batch, rounds),
            ..Self::default()
        }
    }

    /// A result for tests.
    #[cfg(test)]
    pub(super) fn example(batch: usize, frames_per_s: f64) -> Self {
        Self { model: "a model".to_owned(), batch, frames_per_s: Some(frames_per_s), ..Self::default() }
    }

    /// Frames or tokens per second, with the unit.
    pub(super) fn rate(&self) -> (f64, &'static str) {
        match (self.frames_per_s, self.tokens_per_s) {
            (Some(frames), _) => (frames, "frames/s"),
            (None, tokens) => (tokens.unwrap_or_default(), "tokens/s"),
        }
    }

    /// The result as text.
    pub(super) fn page(&self) -> String {
        let (rate, unit) = self.rate();
        let mut page = format!(
            "{} {} on {} threads, {} at once: {rate:.1} {unit}, RTF {:.2}",
            self.model, self.dtype, self.threads, self.batch, self.rtf
        );
        if let (Some(p50), Some(p95)) = (self.ttfa_ms_p50, self.ttfa_ms_p95) {
            page.push_str(&format!(", first audio {p50:.0} ms (p95 {p95:.0})"));
        }
        page.push('\n');
        let parts: Vec<String> = self.parts_ms.iter().map(|(name, ms)| format!("{name} {ms:.1}")).collect();
        if !parts.is_empty() {
            page.push_str(&format!("  ms per step: {}\n", parts.join(", ")));
        }
        if let (Some(bytes), Some(share)) = (self.bytes_per_frame, self.bandwidth_share) {
            page.push_str(&format!(
                "  weights read per frame: {}; {:.0} % of the memory bandwidth\n",
                output::format_bytes(bytes as u64),
                100.0 * share
            ));
        }
        page.extend(self.gpu.as_ref().map(GpuTerms::line));
        page
    }
}

impl Report {
    /// The properties of the machine as text.
    pub(super) fn page(&self) -> String {
        // The results may come from other processes.
        let peak = self.results.iter().filter_map(|result| result.peak_rss_bytes).max();
        let memory = peak.map(|bytes| format!("; peak memory {}", output::format_bytes(bytes)));
        format!(
            "{} cores, memory read at {:.1} GB/s{}\n",
            self.machine.cores,
            self.machine.read_bandwidth_gb_s,
            memory.unwrap_or_default()
        )
    }
}
