//! One round: some voices begin together and speak until each has said its tokens, or some recordings are heard at once.

use std::time::{Duration, Instant};

use anyhow::Result;
use bytes::Bytes;
use izwi_core::engine::{AudioInput, Engine, EngineCoreRequest, GenerationParams, RequestStats};

use crate::failure::Failure;
use crate::interrupt::Interrupt;

/// Twenty words behind those that keep texts apart.
const TEXT: &str =
    "The north wind and the sun disputed which was the stronger when a traveller came along in a warm cloak.";

/// Who speaks in a round.
pub(super) struct Voices {
    pub(super) number: usize,
    /// How their texts begin: no other round's do, so that no prompt is in the prefix cache.
    pub(super) texts: String,
    /// What each says, at most.
    pub(super) tokens: usize,
}

/// What a round gave.
#[derive(Debug, Clone, Default)]
pub(super) struct Round {
    /// From the first request to the last sample.
    pub(super) wall: Duration,
    /// From the moment when every voice had been heard to the end: no prompt is computed then.
    pub(super) steady: Duration,
    /// Tokens of all voices.
    pub(super) tokens: usize,
    /// Tokens of all voices in the steady part, as their audio tells.
    pub(super) steady_tokens: f64,
    /// Length of all audio.
    pub(super) audio: Duration,
    /// Time to the first audio of each voice.
    pub(super) first_audio: Vec<Duration>,
    /// Time spent in each part of the model.
    pub(super) parts: Vec<(&'static str, Duration)>,
}

/// One voice: its numbers, and how much audio it had given at which time.
struct Heard {
    stats: RequestStats,
    arrivals: Vec<(Instant, usize)>,
}

/// Speaks with all voices at once.
pub(super) async fn speak(engine: &Engine, voices: &Voices, interrupt: &mut Interrupt) -> Result<Round> {
    let before = engine.profile().part_times.totals();
    let begun = Instant::now();
    let listeners = (0..voices.number).map(|voice| {
        let params = GenerationParams {
            max_tokens: voices.tokens,
            seed: Some(voice as u64),
            ..engine.profile().default_params()
        };
        let text = format!("{}, voice {voice}: {TEXT}", voices.texts);
        listen(engine.clone(), EngineCoreRequest::tts(text).with_params(params))
    });
    let heard = tokio::select! {
        heard = futures::future::try_join_all(listeners) => heard?,
        () = interrupt.requested() => return Err(Failure::Interrupted.into()),
    };
    let wall = begun.elapsed();
    let totals = engine.profile().part_times.totals().into_iter();
    let parts = totals.zip(before).map(|((name, after), (_, before))| (name, after.saturating_sub(before)));
    let tokens: usize = heard.iter().map(|heard| heard.stats.generated_tokens).sum();
    let samples: usize = heard.iter().map(|heard| heard.stats.samples as usize).sum();
    let all_began = heard.iter().filter_map(|heard| Some(heard.arrivals.first()?.0)).max().unwrap_or(begun);
    let later = heard.iter().flat_map(|heard| &heard.arrivals).filter(|(at, _)| *at > all_began);
    let later: usize = later.map(|(_, samples)| samples).sum();
    Ok(Round {
        wall,
        steady: all_began.elapsed(),
        tokens,
        steady_tokens: tokens as f64 * later as f64 / samples.max(1) as f64,
        audio: heard.iter().map(|heard| heard.stats.audio_duration).sum(),
        first_audio: heard.iter().filter_map(|heard| heard.stats.time_to_first_audio).collect(),
        parts: parts.collect(),
    })
}

/// Listens to `recording`, the bytes of an audio file, `number` times at once.
pub(super) async fn hear(
    engine: &Engine,
    recording: &Bytes,
    number: usize,
    interrupt: &mut Interrupt,
) -> Result<Round> {
    let begun = Instant::now();
    let request = || EngineCoreRequest::asr(AudioInput::File(recording.clone()));
    let listeners = (0..number).map(|_| listen(engine.clone(), request()));
    let heard = tokio::select! {
        heard = futures::future::try_join_all(listeners) => heard?,
        () = interrupt.requested() => return Err(Failure::Interrupted.into()),
    };
    Ok(Round {
        wall: begun.elapsed(),
        tokens: heard.iter().map(|heard| heard.stats.generated_tokens).sum(),
        audio: heard.iter().map(|heard| heard.stats.audio_duration).sum(),
        ..Round::default()
    })
}

async fn listen(engine: Engine, request: EngineCoreRequest) -> Result<Heard> {
    let (_, mut chunks) = engine.generate_streaming(request).await?;
    let mut arrivals = Vec::new();
    while let Some(chunk) = chunks.recv().await {
        if !chunk.samples.is_empty() {
            arrivals.push((Instant::now(), chunk.samples.len()));
        }
        if let Some(stats) = chunk.stats {
            if let Some(error) = &stats.error {
                anyhow::bail!("the model failed: {error}");
            }
            return Ok(Heard { stats, arrivals });
        }
    }
    anyhow::bail!("the engine ended before the work did")
}
