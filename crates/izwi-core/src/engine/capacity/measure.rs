//! Measures the cost curve of an engine that does nothing else: streams that run together, by what the engine learns of them.
//!
//! Must not know how a figure is used.

use futures::future::try_join_all;

use super::{Curve, times};
use crate::engine::qos::cost::StepShape;
use crate::engine::{Engine, EngineCoreRequest, EngineError, FinishReason, GenerationParams, RequestStats};

/// What each utterance says: long enough that its audio outlasts the steps that are measured.
const TEXT: &str =
    "The north wind and the sun disputed which was the stronger when a traveller came along in a warm cloak.";
const SHORT_TEXT: &str = "The north wind.";
/// Characters a second of a model that did not end its text by itself.
const CHARS_PER_S: f64 = 15.0;
/// Runs of a number of streams after which it counts as not reached.
const TRIES: usize = 4;

/// How long to measure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Effort {
    /// Generated tokens of each stream.
    pub tokens: usize,
    /// Runs of each number of streams.
    pub rounds: usize,
}

/// Why there is no curve.
#[derive(Debug, thiserror::Error)]
pub enum MeasureError {
    /// A request failed.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The streams were too short, or made no audio.
    #[error("the streams ended before their steps could be measured")]
    TooShort,
}

/// Measures the steps of 1, 2, 3, 4, 6, 8, 12, … streams, at most as many as a step takes. Calls `told` with each of them and its
/// time in seconds.
///
/// # Errors
/// A request fails, or the model ends its speech after a few steps.
pub async fn measure(
    engine: &Engine,
    effort: Effort,
    mut told: impl FnMut(usize, f64),
) -> Result<Curve, MeasureError> {
    let (config, profile) = (engine.config(), engine.profile());
    let short = speak(engine, format!("Short. {SHORT_TEXT}"), 0, None).await?;
    let long = speak(engine, format!("Long. {TEXT}"), 1, None).await?;
    let chars = |text: &str, before: &str| (text.len() + before.len()) as f64;
    let (few, many) = (chars(SHORT_TEXT, "Short. "), chars(TEXT, "Long. "));
    let each = (long.prompt_tokens as f64 - short.prompt_tokens as f64).max(0.0) / (many - few);
    let any = (long.prompt_tokens as f64 - each * many).max(0.0);
    let spoken_s = long.audio_duration.as_secs_f64();
    let is_whole = long.finish_reason == FinishReason::Stop && spoken_s > 0.0;
    let mut steps: Vec<(usize, f64)> = Vec::new();
    for streams in sizes(config.max_batch_size.min(config.max_running_requests)) {
        let Some(seconds) = measure_step(engine, effort, streams).await? else { break };
        // A step of more streams takes no less time.
        let seconds = steps.last().map_or(seconds, |(_, before)| seconds.max(*before));
        told(streams, seconds);
        steps.push((streams, seconds));
    }
    let (costs, rate) = engine.learned().await?;
    if steps.is_empty() || rate.audio_s <= 0.0 {
        return Err(MeasureError::TooShort);
    }
    let prompt_token = StepShape { prefill_tokens: 1, ..StepShape::default() };
    let is_unit = rate.step.decodes == 0;
    let states = config.max_state_bytes() / profile.info.state_bytes.max(1);
    Ok(Curve {
        rate,
        steps,
        prompt_token_s: if is_unit {
            0.0
        } else {
            costs.seconds(prompt_token) - costs.seconds(StepShape::default())
        },
        deviation: costs.deviation().min(0.9),
        prompt_tokens: if is_unit { (0.0, 0.0) } else { (any, each) },
        chars_per_s: if is_whole { many / spoken_s } else { CHARS_PER_S },
        sample_rate: profile.info.sample_rate_hz,
        chunk_samples: config.streaming_chunk_size,
        batch: config.max_batch_size,
        max_streams: config.max_running_requests.min(states.max(1)),
        max_first_audio_s: config.max_first_audio.as_secs_f64(),
    })
}

/// The numbers of streams to measure, up to `most`.
fn sizes(most: usize) -> Vec<usize> {
    let powers = std::iter::successors(Some(1usize), |size| size.checked_mul(2));
    let mut sizes: Vec<usize> = powers.take_while(|size| *size <= most).collect();
    sizes.extend(sizes.clone().iter().filter(|size| **size > 1).map(|size| size + size / 2));
    sizes.push(most);
    sizes.sort_unstable();
    sizes.dedup();
    sizes.retain(|size| *size <= most);
    sizes
}

/// Seconds of a step of this many streams; `None` if no more than a few steps had so many.
async fn measure_step(engine: &Engine, effort: Effort, streams: usize) -> Result<Option<f64>, MeasureError> {
    for round in 0..effort.rounds.max(1) + TRIES {
        let requests = (0..streams).map(|index| {
            let text = format!("Round {round} of {streams}, voice {index}: {TEXT}");
            speak(engine, text, index as u64, Some(effort.tokens))
        });
        try_join_all(requests).await?;
        let (costs, rate) = engine.learned().await?;
        // Sentences are learned by their tokens, of any number of streams.
        let is_unit = rate.step.decodes == 0;
        let is_seen = is_unit || costs.most_decodes() > streams + streams.div_ceil(4);
        if round + 1 >= effort.rounds && is_seen {
            return Ok(Some(costs.seconds(times(rate.step, streams))));
        }
    }
    Ok(None)
}

/// Speaks a text to its end, or to a number of generated tokens. It is no live stream, so that none is refused.
async fn speak(
    engine: &Engine,
    text: String,
    seed: u64,
    max_tokens: Option<usize>,
) -> Result<RequestStats, EngineError> {
    let mut params = GenerationParams { seed: Some(seed), ..engine.profile().default_params() };
    params.max_tokens = max_tokens.unwrap_or(params.max_tokens);
    let request = EngineCoreRequest::tts(text).with_params(params).with_live(false);
    let (_, mut chunks) = engine.generate_streaming(request).await?;
    let ended = || EngineError::Stopped("it ended while its speed was measured".to_owned());
    loop {
        let chunk = chunks.recv().await.ok_or_else(ended)?;
        let Some(stats) = chunk.stats else { continue };
        return match stats.error {
            Some(error) => Err(error),
            None => Ok(stats),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_and_many_streams_are_measured() {
        assert_eq!(sizes(1), [1]);
        assert_eq!(sizes(8), [1, 2, 3, 4, 6, 8]);
        assert_eq!(sizes(20), [1, 2, 3, 4, 6, 8, 12, 16, 20]);
    }
}
