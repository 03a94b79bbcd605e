//! How long a conversation waits: from the end of what somebody says to the first sound of the answer.
//!
//! A TTS model speaks sentences to the Realtime API at the speed of speech. A pipeline answers them: the models that transcribe, find
//! the end of the turn and speak are real and share one device; the language model is scripted and takes no time, or as long as it is
//! told to. Reports a table of where the time goes, or JSON.

#![allow(clippy::print_stdout, reason = "the report is this program's output")]

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use clap::Parser;
use izwi_audio::decode::{DecodeLimits, decode};
use izwi_audio::{pcm, wav};
use izwi_benches::{clips, engines};
use izwi_core::engine::{DeviceArbiter, EngineCoreConfig, EngineCoreRequest, Precision};
use izwi_hub::Store;
use izwi_remote::{Pipeline, PipelineConfig};
use izwi_server::turns::RATE_HZ;
use izwi_server::{Recorder, Registry, RegistryConfig, ServerConfig, Slot};
use izwi_tests::{Completion, Line, Llm, Session, TestServer, base64};
use serde::Serialize;
use serde_json::{Value, json};
use tokio::time::Instant;

/// Seed, so that every run generates the same speech.
const SEED: u64 = 1;
/// Silence before each sentence, in milliseconds, and the longest time that an answer is waited for after it.
const LEAD_MS: u64 = 500;
const LONGEST_MS: u64 = 15_000;
/// Audio of a message, in milliseconds, as microphones give it.
const MESSAGE_MS: u64 = 20;
/// Samples below this, of 1, are silence: -40 dB.
const AUDIBLE: f32 = 0.01;
/// A turn that ends this much before the last audible sample ends with the sentence, in milliseconds.
const EARLY_MS: f64 = 100.0;
/// Names of the pipelines, without and with speculation, and what they answer.
const PIPELINE: &str = "pipeline";
const SPECULATING: &str = "speculating";
const ANSWER: [&str; 3] =
    ["It is half past nine in the morning. ", "You have two meetings today, ", "and the first is at ten."];

/// Measures the time from the end of speech to the first sound of an answer.
#[derive(Debug, Parser)]
struct Args {
    /// ASR model.
    #[arg(long, default_value = "whisper-base")]
    asr: String,
    /// TTS model of the answers.
    #[arg(long, default_value = "hibari")]
    tts: String,
    /// TTS model that asks.
    #[arg(long, default_value = "kokoro-82m")]
    user: String,
    /// Voices of it, which take turns.
    #[arg(long, value_delimiter = ',', default_value = "af_heart,am_michael,bf_emma,bm_george")]
    voices: Vec<String>,
    /// Sentences, from the first.
    #[arg(long, default_value_t = 20)]
    sentences: usize,
    /// Time that the language model takes before its first word, in milliseconds.
    #[arg(long, default_value_t = 0)]
    llm_ms: u64,
    /// Compute threads.
    #[arg(long, default_value_t = 2)]
    threads: usize,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Times of one answer, in milliseconds from the end of speech.
#[derive(Debug, Clone, Copy, Default)]
struct Times {
    /// Whether a turn ended before the sentence did.
    is_cut: bool,
    /// The end of the last turn.
    turn: Option<f64>,
    /// Of the transcript of the turn, where the session asks for it.
    transcript: Option<f64>,
    first_sound: f64,
}

#[derive(Debug, Serialize)]
struct Row {
    detection: &'static str,
    transcripts: bool,
    speculates: bool,
    sentences: usize,
    /// Sentences of which a turn ended before they did.
    cut: usize,
    turn_ms_p50: f64,
    transcript_ms_p50: Option<f64>,
    first_sound_ms_p50: f64,
    first_sound_ms_p95: f64,
}

/// A sentence, and where its speech ends.
struct Spoken {
    samples: Vec<f32>,
    end_ms: u64,
}

async fn speak(args: &Args) -> Result<Vec<Spoken>> {
    let engine = engines::load(&args.user, args.threads).await?;
    let text = std::fs::read_to_string(clips::root().join("benches/alignment/sentences.txt"))?;
    let mut spoken = Vec::new();
    for (index, sentence) in text.lines().filter(|line| !line.is_empty()).take(args.sentences).enumerate() {
        let voice = args.voices.get(index % args.voices.len().max(1)).context("--voices is empty")?;
        let mut params = engine.profile().default_params();
        params.seed = Some(SEED);
        let request = EngineCoreRequest::tts(sentence).with_params(params).with_voice(voice);
        let audio = engine.generate(request).await?.audio;
        let file = wav::to_bytes(&audio.samples, audio.sample_rate)?;
        let limits = DecodeLimits { max_bytes: 1 << 24, max_duration: Duration::from_secs(60) };
        let speech = decode(file, RATE_HZ, &limits)?;
        let last =
            speech.iter().rposition(|sample| sample.abs() >= AUDIBLE).context("a sentence is silent")?;
        let samples = [vec![0.0; samples(LEAD_MS)], speech[..=last].to_vec()].concat();
        let end_ms = samples.len() as u64 * 1_000 / u64::from(RATE_HZ);
        spoken.push(Spoken { samples, end_ms });
    }
    Ok(spoken)
}

/// Milliseconds as samples.
fn samples(ms: u64) -> usize {
    ms as usize * RATE_HZ as usize / 1_000
}

/// A server whose chat models are pipelines of the models.
async fn serve(args: &Args, llm: &Llm) -> Result<TestServer> {
    let recorder = Recorder::install()?;
    let device = DeviceArbiter::new();
    let registry = Registry::new(RegistryConfig {
        default_asr: Some(args.asr.clone()),
        ..RegistryConfig::new(&args.tts)
    });
    for model in [&args.asr, &args.tts, "smart-turn"] {
        let engine = engines::load_on(model, args.threads, Precision::Auto, Arc::clone(&device)).await?;
        registry.set(model, Slot::Ready(engine));
    }
    izwi_tests::provide_tls();
    for (name, speculates) in [(PIPELINE, false), (SPECULATING, true)] {
        let config = PipelineConfig { speculates, ..PipelineConfig::new(name, vec![llm.url()], "scripted") };
        let pipeline = Pipeline::connect(config, registry.engines_for_parts()).await?;
        registry.set(name, Slot::Ready(pipeline.into_engine(EngineCoreConfig::default())?));
    }
    engines::folder("silero-vad")?;
    let vad_weights = Some(Store::open(Some(engines::home()))?.vad_weights());
    TestServer::listen(ServerConfig { vad_weights, ..ServerConfig::default() }, registry, recorder).await
}

/// Says a sentence, and waits for the answer to it.
async fn ask(
    server: &TestServer,
    pipeline: &str,
    detection: &Value,
    transcripts: bool,
    spoken: &Spoken,
) -> Result<Times> {
    let mut session = Session::open(&format!("ws://{}/v1/realtime?model={pipeline}", server.address)).await?;
    session.expect("session.created").await?;
    let format = json!({"type": "audio/pcm", "rate": RATE_HZ});
    let transcription = if transcripts { json!({"language": "en"}) } else { Value::Null };
    let input = json!({"format": format, "turn_detection": detection, "transcription": transcription});
    session
        .send(json!({"type": "session.update", "session": {"type": "realtime", "audio": {"input": input}}}))
        .await?;
    session.expect("session.updated").await?;
    let begun = Instant::now();
    let end = begun + Duration::from_millis(spoken.end_ms);
    let mut times = Times::default();
    for sent in 0u64.. {
        let at = begun + Duration::from_millis((sent + 1) * MESSAGE_MS);
        ensure!(at < end + Duration::from_millis(LONGEST_MS), "no answer came");
        loop {
            let event = tokio::select! {
                event = session.frame() => event?,
                () = tokio::time::sleep_until(at) => break,
            };
            let after_ms = (begun.elapsed().as_secs_f64() - (end - begun).as_secs_f64()) * 1e3;
            match event["type"].as_str() {
                Some("input_audio_buffer.speech_stopped") if after_ms < -EARLY_MS => times.is_cut = true,
                Some("input_audio_buffer.speech_stopped") => times.turn = Some(after_ms),
                Some("conversation.item.input_audio_transcription.completed") => {
                    times.transcript = Some(after_ms);
                }
                // What answers the beginning of a sentence is cancelled where that goes on.
                Some("response.output_audio.delta") if times.turn.is_some() => {
                    return Ok(Times { first_sound: after_ms, ..times });
                }
                Some("error") => bail!("the server answers {event}"),
                _ => {}
            }
        }
        let from = samples(sent * MESSAGE_MS);
        let mut message: Vec<f32> =
            spoken.samples.iter().skip(from).take(samples(MESSAGE_MS)).copied().collect();
        message.resize(samples(MESSAGE_MS), 0.0);
        let mut bytes = Vec::new();
        pcm::write_i16_le(&message, &mut bytes);
        let audio = base64(&bytes);
        session.send(json!({"type": "input_audio_buffer.append", "audio": audio})).await?;
    }
    bail!("no answer came")
}

async fn row(
    server: &TestServer,
    detection: &'static str,
    (transcripts, speculates): (bool, bool),
    spoken: &[Spoken],
) -> Result<Row> {
    let mut all = Vec::new();
    let pipeline = if speculates { SPECULATING } else { PIPELINE };
    for one in spoken {
        all.push(ask(server, pipeline, &json!({"type": detection}), transcripts, one).await?);
    }
    let p50 = |of: &dyn Fn(&Times) -> Option<f64>| quantile(all.iter().filter_map(of).collect(), 0.5);
    let sounds: Vec<f64> = all.iter().map(|times| times.first_sound).collect();
    Ok(Row {
        detection,
        transcripts,
        speculates,
        sentences: spoken.len(),
        cut: all.iter().filter(|times| times.is_cut).count(),
        turn_ms_p50: p50(&|times| times.turn),
        transcript_ms_p50: transcripts.then(|| p50(&|times| times.transcript)),
        first_sound_ms_p50: quantile(sounds.clone(), 0.5),
        first_sound_ms_p95: quantile(sounds, 0.95),
    })
}

/// Nearest-rank quantile; 0 without values.
fn quantile(mut values: Vec<f64>, q: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    let rank = ((q * values.len() as f64).ceil() as usize).max(1) - 1;
    values.get(rank).copied().unwrap_or_default().round()
}

#[tokio::main]
async fn main() -> Result<()> {
    let args = Args::parse();
    let spoken = speak(&args).await?;
    let delay = Duration::from_millis(args.llm_ms);
    let llm = Llm::start(move |_, _| {
        let answer = ANSWER.map(Line::Text).into_iter().chain([Line::End("stop")]);
        Completion::Lines([Line::Pause(delay)].into_iter().chain(answer).collect())
    })
    .await?;
    let server = serve(&args, &llm).await.context("the server does not start")?;
    let (server_vad, semantic_vad) = ("server_vad", "semantic_vad");
    // The first answers load what is loaded once.
    for one in spoken.iter().take(2) {
        ask(&server, PIPELINE, &json!({"type": semantic_vad}), false, one).await?;
    }
    let mut rows = Vec::new();
    for asks in [(false, false), (true, false), (false, true)] {
        for detection in [server_vad, semantic_vad] {
            rows.push(row(&server, detection, asks, &spoken).await?);
        }
    }
    if args.json {
        println!("{}", serde_json::to_string_pretty(&rows)?);
        return Ok(());
    }
    println!(
        "| turns by | transcripts | speculates | sentences | cut | end of turn p50, ms | transcript p50 | first sound p50 | p95 |"
    );
    println!("|---|---|---|---:|---:|---:|---:|---:|---:|");
    for row in rows {
        let speculates = if row.speculates { "yes" } else { "no" };
        let Row { detection, sentences, cut, turn_ms_p50, first_sound_ms_p50, first_sound_ms_p95, .. } = row;
        let (transcripts, transcript) = match row.transcript_ms_p50 {
            Some(ms) => ("yes", ms.to_string()),
            None => ("no", String::new()),
        };
        println!(
            "| {detection} | {transcripts} | {speculates} | {sentences} | {cut} | {turn_ms_p50} | {transcript} | {first_sound_ms_p50} | {first_sound_ms_p95} |"
        );
    }
    Ok(())
}
