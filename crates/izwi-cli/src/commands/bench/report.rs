//! What was measured, for people and for programs.

use std::time::Duration;

use izwi_core::engine::Engine;
use serde::{Serialize, Serializer};

use super::machine::{Machine, peak_memory};
use super::round::Round;
use crate::output;

/// What `--json` prints.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    pub(super) machine: Machine,
    pub(super) results: Vec<Measured>,
}

/// One batch size; each figure is the median of the rounds.
#[derive(Debug, Serialize)]
pub(super) struct Measured {
    pub(super) model: String,
    pub(super) dtype: String,
    pub(super) batch: usize,
    pub(super) threads: usize,
    /// Of all voices together, once every prompt is computed.
    pub(super) frames_per_s: f64,
    /// Of one voice, prompt included: time to speak over time to play. Below 1 it keeps up.
    rtf: f64,
    ttfa_ms_p50: f64,
    ttfa_ms_p95: f64,
    /// Bytes of weights read for a frame of one voice.
    bytes_per_frame: f64,
    /// Of the bandwidth that reading alone reaches.
    bandwidth_share: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    peak_rss_bytes: Option<u64>,
    /// Milliseconds a frame of all voices spends in each part.
    #[serde(serialize_with = "by_name")]
    parts_ms: Vec<Part>,
}

#[derive(Debug)]
struct Part {
    name: &'static str,
    ms: f64,
}

impl Measured {
    /// Sums up the rounds of one batch size.
    pub(super) fn new(engine: &Engine, batch: usize, rounds: Vec<Round>, machine: &Machine) -> Self {
        let (profile, config) = (engine.profile(), engine.config());
        let middle = |figure: &dyn Fn(&Round) -> f64| median(rounds.iter().map(figure).collect());
        let frames_per_s =
            middle(&|round| round.steady_tokens / round.steady.as_secs_f64().max(f64::MIN_POSITIVE));
        let mut first: Vec<f64> = rounds.iter().flat_map(|round| &round.first_audio).map(ms).collect();
        first.sort_by(f64::total_cmp);
        let bytes_per_frame = profile.step_bytes as f64 / batch as f64;
        let steps = |round: &Round| (round.tokens as f64 / batch as f64).max(1.0);
        let names: Vec<&'static str> =
            rounds.first().map(|round| round.parts.iter().map(|part| part.0).collect()).unwrap_or_default();
        let mut parts_ms: Vec<Part> = names
            .iter()
            .enumerate()
            .map(|(at, name)| Part { name, ms: middle(&|round| ms(&round.parts[at].1) / steps(round)) })
            .collect();
        if !parts_ms.is_empty() {
            let known = |round: &Round| round.parts.iter().map(|part| ms(&part.1)).sum::<f64>();
            let rest = middle(&|round| ((ms(&round.wall) - known(round)) / steps(round)).max(0.0));
            parts_ms.push(Part { name: "engine and the rest", ms: rest });
        }
        Self {
            model: profile.model.clone(),
            dtype: config.dtype.on(profile.device == "cpu").to_string(),
            batch,
            threads: config.num_threads,
            frames_per_s,
            rtf: middle(&|round| round.wall.as_secs_f64() * batch as f64 / round.audio.as_secs_f64()),
            ttfa_ms_p50: quantile(&first, 0.5),
            ttfa_ms_p95: quantile(&first, 0.95),
            bytes_per_frame,
            bandwidth_share: frames_per_s * bytes_per_frame / (machine.read_bandwidth_gb_s * 1e9),
            peak_rss_bytes: peak_memory(),
            parts_ms,
        }
    }

    /// Something that was measured.
    #[cfg(test)]
    pub(super) fn example(batch: usize, frames_per_s: f64) -> Self {
        Self {
            model: "a model".to_owned(),
            dtype: "q8".to_owned(),
            batch,
            threads: 2,
            frames_per_s,
            rtf: 1.0,
            ttfa_ms_p50: 1.0,
            ttfa_ms_p95: 1.0,
            bytes_per_frame: 1.0,
            bandwidth_share: 1.0,
            peak_rss_bytes: None,
            parts_ms: Vec::new(),
        }
    }

    /// A line for a person, with a line for each part below it.
    pub(super) fn page(&self) -> String {
        let mut page = format!(
            "{} {} on {} threads, {} at once: {:.1} frames/s, RTF {:.2}, first audio {:.0} ms (p95 {:.0})\n",
            self.model,
            self.dtype,
            self.threads,
            self.batch,
            self.frames_per_s,
            self.rtf,
            self.ttfa_ms_p50,
            self.ttfa_ms_p95
        );
        let parts: Vec<String> =
            self.parts_ms.iter().map(|part| format!("{} {:.1}", part.name, part.ms)).collect();
        if !parts.is_empty() {
            page.push_str(&format!("  ms a step: {}\n", parts.join(", ")));
        }
        page.push_str(&format!(
            "  weights read for a frame: {}; {:.0} % of the memory's bandwidth\n",
            output::bytes(self.bytes_per_frame as u64),
            100.0 * self.bandwidth_share
        ));
        page
    }
}

fn by_name<S: Serializer>(parts: &[Part], to: S) -> Result<S::Ok, S::Error> {
    to.collect_map(parts.iter().map(|part| (part.name, part.ms)))
}

impl Report {
    /// What is true of all results, for a person.
    pub(super) fn page(&self) -> String {
        let memory = peak_memory().map(|bytes| format!("; at most {} of memory", output::bytes(bytes)));
        format!(
            "{} cores, memory read at {:.1} GB/s{}\n",
            self.machine.cores,
            self.machine.read_bandwidth_gb_s,
            memory.unwrap_or_default()
        )
    }
}

fn ms(duration: &Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    quantile(&values, 0.5)
}

/// The value that the share `at` of sorted values does not exceed; 0 where there are none.
fn quantile(sorted: &[f64], at: f64) -> f64 {
    let index = (sorted.len() as f64 * at).ceil() as usize;
    sorted.get(index.saturating_sub(1)).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_values_that_occurred() {
        assert_eq!(quantile(&[1.0, 2.0, 3.0, 4.0], 0.5), 2.0);
        assert_eq!(quantile(&[1.0, 2.0, 3.0, 4.0], 0.95), 4.0);
        assert_eq!(quantile(&[], 0.5), 0.0);
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
    }
}
