//! One round of a batch: concurrent requests from submission to the last output.

use std::time::{Duration, Instant};

use anyhow::Result;
use bytes::Bytes;
use izwi_core::engine::executor::GpuCosts;
use izwi_core::engine::{AudioInput, Engine, EngineCoreRequest, GenerationParams, RequestStats};

use crate::engine::OutputStream;
use crate::interrupt::Interrupt;

/// Twenty words after the unique start of each text.
const TEXT: &str =
    "The north wind and the sun disputed which was the stronger when a traveller came along in a warm cloak.";

/// The synthesis requests of a round.
pub(super) struct Requests {
    pub(super) count: usize,
    /// Start of their texts, unique to the round, so that no prompt is in the prefix cache.
    pub(super) text_prefix: String,
    /// Maximum number of generated tokens of each.
    pub(super) max_tokens: usize,
}

/// The measurements of a round.
#[derive(Debug, Clone, Default)]
pub(super) struct Round {
    /// From the first submission to the last sample.
    pub(super) wall: Duration,
    /// From the moment when all requests have produced audio to the end: without prefill.
    pub(super) steady: Duration,
    /// Tokens of all requests.
    pub(super) tokens: usize,
    /// Tokens of all requests in the steady part, derived from their audio.
    pub(super) steady_tokens: f64,
    /// Duration of all audio.
    pub(super) audio: Duration,
    /// Time to the first audio of each request.
    pub(super) first_audio: Vec<Duration>,
    /// Time spent in each part of the model.
    pub(super) parts: Vec<(&'static str, Duration)>,
    /// Work of own kernels of a GPU.
    pub(super) gpu_costs: GpuCosts,
    /// At each chunk that arrives, the seconds since the first submission and the real-time factor so far.
    pub(super) rtf: Vec<(f64, f64)>,
    /// Audio of the first request.
    pub(super) utterance: Option<Utterance>,
}

/// Audio of one request.
#[derive(Debug, Clone)]
pub(super) struct Utterance {
    pub(super) samples: Vec<f32>,
    pub(super) rate_hz: u32,
}

/// One request: its statistics, the number of samples that arrived at each time, and its audio, if that is kept.
struct Received {
    stats: RequestStats,
    arrivals: Vec<(Instant, usize)>,
    samples: Option<Vec<f32>>,
}

/// Runs concurrent synthesis requests.
pub(super) async fn synthesize(
    engine: &Engine,
    requests: &Requests,
    interrupt: &mut Interrupt,
) -> Result<Round> {
    let before = engine.profile().part_times.totals();
    let costs_before = GpuCosts::so_far();
    let begun = Instant::now();
    let streams = (0..requests.count).map(|index| {
        let params = GenerationParams {
            max_tokens: requests.max_tokens,
            seed: Some(index as u64),
            ..engine.profile().default_params()
        };
        let text = format!("{}, voice {index}: {TEXT}", requests.text_prefix);
        // Nobody listens: all of a batch is measured at once, also on a machine that could not play all of it.
        let request = EngineCoreRequest::tts(text).with_params(params).with_live(false);
        receive(engine, request, index == 0)
    });
    let mut received = interrupt.guard(futures::future::try_join_all(streams)).await?;
    let wall = begun.elapsed();
    let totals = engine.profile().part_times.totals().into_iter();
    let parts = totals.zip(before).map(|((name, after), (_, before))| (name, after.saturating_sub(before)));
    let tokens: usize = received.iter().map(|received| received.stats.generated_tokens).sum();
    let samples: usize = received.iter().map(|received| received.stats.samples as usize).sum();
    let all_began =
        received.iter().filter_map(|received| Some(received.arrivals.first()?.0)).max().unwrap_or(begun);
    let later = received.iter().flat_map(|received| &received.arrivals).filter(|(at, _)| *at > all_began);
    let later: usize = later.map(|(_, samples)| samples).sum();
    let rate_hz = engine.profile().info.sample_rate_hz;
    let utterance = received.first_mut().and_then(|first| first.samples.take());
    Ok(Round {
        rtf: rtf_so_far(&received, begun, rate_hz),
        utterance: utterance.map(|samples| Utterance { samples, rate_hz }),
        wall,
        steady: all_began.elapsed(),
        tokens,
        steady_tokens: tokens as f64 * later as f64 / samples.max(1) as f64,
        audio: received.iter().map(|received| received.stats.audio_duration).sum(),
        first_audio: received.iter().filter_map(|received| received.stats.time_to_first_audio).collect(),
        parts: parts.collect(),
        gpu_costs: GpuCosts::since(costs_before),
    })
}

/// Transcribes `recording`, the bytes of an audio file, `count` times concurrently.
pub(super) async fn transcribe(
    engine: &Engine,
    recording: &Bytes,
    count: usize,
    interrupt: &mut Interrupt,
) -> Result<Round> {
    let costs_before = GpuCosts::so_far();
    let begun = Instant::now();
    let request = || EngineCoreRequest::asr(AudioInput::File(recording.clone()));
    let streams = (0..count).map(|_| receive(engine, request(), false));
    let received = interrupt.guard(futures::future::try_join_all(streams)).await?;
    Ok(Round {
        wall: begun.elapsed(),
        tokens: received.iter().map(|received| received.stats.generated_tokens).sum(),
        audio: received.iter().map(|received| received.stats.audio_duration).sum(),
        gpu_costs: GpuCosts::since(costs_before),
        ..Round::default()
    })
}

/// The real-time factor of one of the requests, from `begun` until each of their chunks: (seconds, factor).
fn rtf_so_far(received: &[Received], begun: Instant, rate_hz: u32) -> Vec<(f64, f64)> {
    let mut arrivals: Vec<_> =
        received.iter().flat_map(|received| received.arrivals.iter().copied()).collect();
    arrivals.sort_by_key(|(at, _)| *at);
    let mut audio_s = 0.0;
    let so_far = arrivals.into_iter().map(|(at, samples)| {
        audio_s += samples as f64 / f64::from(rate_hz.max(1));
        let elapsed_s = at.saturating_duration_since(begun).as_secs_f64();
        (elapsed_s, elapsed_s * received.len() as f64 / audio_s)
    });
    so_far.collect()
}

async fn receive(engine: &Engine, request: EngineCoreRequest, keeps_audio: bool) -> Result<Received> {
    let mut chunks = OutputStream::start(engine, request).await?;
    let mut arrivals = Vec::new();
    let mut samples = keeps_audio.then(Vec::new);
    loop {
        let chunk = chunks.next().await?;
        if !chunk.samples.is_empty() {
            arrivals.push((Instant::now(), chunk.samples.len()));
        }
        if let Some(samples) = &mut samples {
            samples.extend_from_slice(&chunk.samples);
        }
        if let Some(stats) = chunk.stats {
            return Ok(Received { stats, arrivals, samples });
        }
    }
}

#[cfg(test)]
mod tests {
    use izwi_core::engine::EngineCoreConfig;
    use izwi_core::engine::executor::simulated::{CostCurve, SimulatedExecutor, SimulatedModel};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_machine_that_is_too_slow_to_play_a_batch_measures_it() {
        // 200 ms for a frame of 80 ms.
        let cost = CostCurve { generating: vec![Duration::from_millis(200)], ..CostCurve::default() };
        let model = SimulatedModel { length: |_, _| 100, cost: Some(cost), ..SimulatedModel::default() };
        let config = EngineCoreConfig::default();
        let executor = SimulatedExecutor::new(&config, model);
        let engine = Engine::with_executor(config, Box::new(executor)).unwrap();
        let mut interrupt = Interrupt::listen().unwrap();
        for count in [1, 8] {
            let requests = Requests { count, text_prefix: format!("Batch {count}"), max_tokens: 60 };
            let round = synthesize(&engine, &requests, &mut interrupt).await.unwrap();
            assert_eq!((round.tokens, round.first_audio.len()), (60 * count, count));
        }
    }
}
