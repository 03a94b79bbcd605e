//! Where turns end: pauses that cut a sentence in two, and how long a finished one waits for its answer.
//!
//! A TTS model that knows when its words are said speaks sentences; a pause is put into each, at a comma if it has one. Silence of
//! several lengths and a model that tells ends of turns find the turns of the same audio. Reports a table, or JSON.

#![allow(clippy::print_stdout, reason = "the report is this program's output")]

use std::time::Instant;

use anyhow::{Context, Result, ensure};
use clap::Parser;
use izwi_audio::decode::{DecodeLimits, decode};
use izwi_audio::vad::VadModel;
use izwi_audio::wav;
use izwi_benches::{clips, engines};
use izwi_core::engine::{Engine, EngineCoreRequest, FinishReason};
use izwi_hub::Store;
use izwi_server::turns::{RATE_HZ, TurnDetector, TurnEvent, TurnOptions};
use izwi_types::{Eagerness, TurnEnds};
use serde::Serialize;

/// Seed, so that every run generates the same audio.
const SEED: u64 = 1;
/// Silence before and after each sentence, in milliseconds.
const LEAD_MS: u64 = 500;
const TAIL_MS: u64 = 9_000;
/// Lengths of silence that end a turn.
const SILENCES_MS: [u64; 7] = [200, 250, 300, 400, 500, 700, 1_000];
/// Samples below this, of 1, are silence: -40 dB.
const AUDIBLE: f32 = 0.01;
/// How early the model ends turns.
const EAGERNESS: Eagerness = Eagerness::Auto;
/// The latest audio of a turn that the model hears, in milliseconds.
const TURN_WINDOW_MS: u64 = 8_000;

/// Measures false ends of turns and delays of true ones.
#[derive(Debug, Parser)]
struct Args {
    /// Turn model.
    #[arg(long, default_value = "smart-turn")]
    model: String,
    /// TTS model that speaks and tells when each word is said.
    #[arg(long, default_value = "kokoro-82m")]
    tts: String,
    /// Voices of it, which take turns.
    #[arg(long, value_delimiter = ',', default_value = "af_heart,am_michael,bf_emma,bm_george")]
    voices: Vec<String>,
    /// Lengths of the pauses, which take turns, in milliseconds.
    #[arg(long, value_delimiter = ',', default_value = "500,800,1200,1800")]
    pauses_ms: Vec<u64>,
    /// Sentences, from the first.
    #[arg(long, default_value_t = usize::MAX)]
    sentences: usize,
    /// Compute threads.
    #[arg(long, default_value_t = 1)]
    threads: usize,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// A sentence with a pause in it.
struct Spoken {
    /// Mono samples at 16 kHz.
    samples: Vec<f32>,
    /// Where the second part begins, and where its speech ends.
    goes_on_ms: u64,
    end_ms: u64,
}

#[derive(Debug, Serialize)]
struct Row {
    ends_by: String,
    sentences: usize,
    /// Sentences that were cut before their end.
    cut: usize,
    /// From the end of speech to the end of the turn, the time of the model included.
    median_ms: u64,
    p95_ms: u64,
    /// Time of the model for an answer.
    decision_ms: Option<f64>,
}

/// Milliseconds as samples.
fn samples(ms: u64) -> usize {
    ms as usize * RATE_HZ as usize / 1_000
}

async fn speak(engine: &Engine, text: &str, voice: &str, pause_ms: u64) -> Result<Spoken> {
    let mut params = engine.profile().default_params();
    params.seed = Some(SEED);
    let request = EngineCoreRequest::tts(text).with_params(params).with_voice(voice);
    let (_, mut chunks) = engine.generate_streaming(request).await?;
    let (mut spoken, mut words, mut end) = (Vec::new(), Vec::new(), None);
    while let Some(chunk) = chunks.recv().await {
        spoken.extend(chunk.samples);
        words.extend(chunk.words);
        end = chunk.stats.map(|stats| stats.finish_reason).or(end);
    }
    ensure!(end == Some(FinishReason::Stop), "'{text}' was not spoken to its end");
    let rate_hz = engine.profile().info.sample_rate_hz;
    let ms = |sample: u64| sample * 1_000 / u64::from(rate_hz);
    let ends_at_comma = |word: usize| text[..words[word].text_end].ends_with(',');
    let inner = 0..words.len().saturating_sub(1);
    let cut = inner.clone().find(|&word| ends_at_comma(word)).unwrap_or(inner.len() / 2);
    let cut = words.get(cut).context("a sentence has no word")?;
    let limits = DecodeLimits { max_bytes: 1 << 24, max_duration: std::time::Duration::from_secs(60) };
    let spoken = decode(wav::to_bytes(&spoken, rate_hz)?, RATE_HZ, &limits)?;
    let (first, rest) = spoken.split_at(samples(ms(cut.sample_end)).min(spoken.len()));
    // The last word is said to last until the end of the audio, some of which is silent.
    let spoken =
        rest.iter().rposition(|sample| sample.abs() >= AUDIBLE).context("a sentence ends in silence")?;
    let spoken_ms = spoken as u64 * 1_000 / u64::from(RATE_HZ);
    let silence = |ms| vec![0.0; samples(ms)];
    Ok(Spoken {
        samples: [&silence(LEAD_MS)[..], first, &silence(pause_ms), rest, &silence(TAIL_MS)].concat(),
        goes_on_ms: LEAD_MS + ms(cut.sample_end) + pause_ms,
        end_ms: LEAD_MS + ms(cut.sample_end) + pause_ms + spoken_ms,
    })
}

/// The ends of the turns in a stream, each with the time that it took to tell it.
async fn ends(
    vad: &VadModel,
    options: TurnOptions,
    turn_model: Option<&Engine>,
    stream: &[f32],
    took_ms: &mut Vec<f64>,
) -> Result<Vec<(u64, u64)>> {
    let mut detector = TurnDetector::new(vad, options);
    let (mut found, mut at) = (Vec::new(), 0);
    while at < stream.len() {
        let mut events = Vec::new();
        let (taken, pause) = detector.push_to_pause(&stream[at..], &mut events);
        at += taken;
        let mut model_ms = 0;
        if let (Some(pause), Some(turn_model)) = (pause, turn_model) {
            let start = samples(pause.start_ms.max(detector.now_ms().saturating_sub(TURN_WINDOW_MS)));
            let begun = Instant::now();
            let file = wav::to_bytes(&stream[start..at], RATE_HZ)?;
            let output = turn_model.generate(EngineCoreRequest::end_of_turn(file)).await?;
            let took = begun.elapsed().as_secs_f64() * 1e3;
            took_ms.push(took);
            let transcript = output.transcript.context("the model returned nothing")?;
            let probability = transcript.segments.iter().find_map(|segment| segment.end_of_turn);
            if probability.context("the model returned no probability")? >= EAGERNESS.threshold() {
                model_ms = took.round() as u64;
                events.extend(detector.end_in_pause(pause));
            }
        }
        let ended = events.iter().filter_map(|event| match event {
            TurnEvent::SpeechStopped { end_ms, .. } => Some((*end_ms, model_ms)),
            TurnEvent::SpeechStarted { .. } | TurnEvent::Lull { .. } | TurnEvent::Resumed => None,
        });
        found.extend(ended);
    }
    Ok(found)
}

async fn measure(
    name: String,
    vad: &VadModel,
    options: TurnOptions,
    turn_model: Option<&Engine>,
    spoken: &[Spoken],
) -> Result<Row> {
    let (mut cut, mut delays, mut took_ms) = (0, Vec::new(), Vec::new());
    for one in spoken {
        let ends = ends(vad, options, turn_model, &one.samples, &mut took_ms).await?;
        cut += usize::from(ends.iter().any(|(end_ms, _)| *end_ms <= one.goes_on_ms));
        if let Some((end_ms, model_ms)) = ends.last() {
            delays.push((end_ms + model_ms).saturating_sub(one.end_ms));
        }
    }
    delays.sort_unstable();
    took_ms.sort_by(f64::total_cmp);
    let at = |share: usize| delays.get(delays.len() * share / 100).copied().unwrap_or_default();
    Ok(Row {
        ends_by: name,
        sentences: spoken.len(),
        cut,
        median_ms: at(50),
        p95_ms: at(95),
        decision_ms: took_ms.get(took_ms.len() / 2).copied(),
    })
}

#[tokio::main]
async fn main() -> Result<()> {
    let args = Args::parse();
    let voice = engines::load(&args.tts, args.threads).await?;
    let text = std::fs::read_to_string(clips::root().join("benches/alignment/sentences.txt"))?;
    let mut spoken = Vec::new();
    for (index, sentence) in text.lines().filter(|line| !line.is_empty()).take(args.sentences).enumerate() {
        let name = args.voices.get(index % args.voices.len().max(1)).context("--voices is empty")?;
        let pause_ms =
            args.pauses_ms.get(index % args.pauses_ms.len().max(1)).context("--pauses-ms is empty")?;
        spoken.push(speak(&voice, sentence, name, *pause_ms).await?);
    }
    drop(voice);
    let turn_model = engines::load(&args.model, args.threads).await?;
    engines::folder("silero-vad")?;
    let vad = VadModel::open(&Store::open(Some(engines::home()))?.vad_weights())?;
    let mut rows = Vec::new();
    for silence_duration_ms in SILENCES_MS {
        let options = TurnOptions { silence_duration_ms, ..TurnOptions::default() };
        let name = format!("{silence_duration_ms} ms of silence");
        rows.push(measure(name, &vad, options, None, &spoken).await?);
    }
    let ends = TurnEnds { eagerness: Some(EAGERNESS), silence_ms: None };
    let options = TurnOptions::default().with_ends(ends);
    rows.push(measure(args.model.clone(), &vad, options, Some(&turn_model), &spoken).await?);
    if args.json {
        println!("{}", serde_json::to_string(&rows)?);
        return Ok(());
    }
    println!("| ends by | sentences | cut | median delay, ms | 95th percentile, ms | decision, ms |");
    println!("|---|---:|---:|---:|---:|---:|");
    for Row { ends_by, sentences, cut, median_ms, p95_ms, decision_ms } in rows {
        let decision = decision_ms.map_or(String::new(), |ms| format!("{ms:.0}"));
        println!("| {ends_by} | {sentences} | {cut} | {median_ms} | {p95_ms} | {decision} |");
    }
    Ok(())
}
