//! Live streams over real sockets: the server runs in this process, and listeners come at multiples of what the machine
//! keeps, with admission and without it.
//!
//! The speech model has random weights of a published size. Listeners read at playback speed from small receive buffers,
//! after the silence that `audio.start` asks for; eight more stop after their first chunk; recordings are transcribed in
//! between if an ASR model is given, and by `--dictation` while they are spoken; `--chat` adds conversations. All models share
//! one device. Reports a table, or JSON.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::Parser;
use izwi_benches::dictation::{self, Dictated, Dictation};
use izwi_benches::engines::RandomModel;
use izwi_benches::{clips, engines};
use izwi_core::engine::{DeviceArbiter, Engine, EngineCoreConfig, Precision};
use izwi_hub::Store;
use izwi_server::{Recorder, Registry, RegistryConfig, ServerConfig, Slot};
use izwi_tests::{Form, Incoming, Session, TestServer};
use serde::Serialize;
use serde_json::json;
use tokio::task::JoinHandle;

/// Measures listeners of a server that is offered more than it can keep.
#[derive(Debug, Clone, Parser)]
struct Args {
    #[command(flatten)]
    weights: RandomModel,
    /// Model of the store that transcribes in between.
    #[arg(long)]
    asr: Option<String>,
    /// Clients of live transcription, one stream after another; with them no whole recordings are transcribed.
    #[arg(long, default_value_t = 0, requires = "asr")]
    dictation: usize,
    /// Adds a listener who converses all the time: `tiny` for a small checkpoint, or a published size with random weights.
    #[arg(long)]
    chat: Option<String>,
    /// Offered audio over what the machine keeps.
    #[arg(long, value_delimiter = ',', default_value = "0.5,1,2,4")]
    load: Vec<f64>,
    /// Seconds in which listeners of a row come.
    #[arg(long, default_value_t = 40.0)]
    seconds: f64,
    /// Frames of each utterance.
    #[arg(long, default_value_t = 50)]
    frames: usize,
    /// Seed of the arrivals.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Names of the two engines.
const ENGINES: [(&str, bool); 2] = [("with-admission", true), ("without-admission", false)];
/// Readers that stop after their first chunk.
const STALLING: usize = 8;
/// The most frames of an answer: a model with random weights ends none by itself.
const ANSWER_FRAMES: usize = 40;
/// The conversation model's name, and its small checkpoint.
const CHAT: &str = "lfm2-audio-1.5b";
const TINY_CHAT: &str = "tests/golden/lfm2_audio";
/// Time after an answer that is refused.
const PAUSE_OF_REFUSED: Duration = Duration::from_secs(1);
/// Audio that a listener keeps ahead of its player.
const AHEAD: Duration = Duration::from_millis(500);
const TEXT: &str = "The north wind and the sun disputed which was the stronger.";

#[derive(Debug, Serialize)]
struct Row {
    admission: bool,
    load: f64,
    listeners: usize,
    accepted: usize,
    refused: usize,
    underrun_streams: usize,
    underrun_s: f64,
    /// From the request to the first sound: the first chunk, and the silence that the server asks for.
    first_sound_s_p50: f64,
    first_sound_s_p99: f64,
    first_audio_ms_p50: f64,
    first_audio_ms_p99: f64,
    transcriptions: usize,
    dictated_words: usize,
    dictation_lag_ms_p50: f64,
    dictation_lag_ms_p95: f64,
    answers: usize,
    answers_refused: usize,
    answers_with_underruns: usize,
    answers_underrun_s: f64,
}

#[derive(Debug, Serialize)]
struct Report {
    /// Seconds of audio a second that the model makes at the best batch size.
    capacity: f64,
    results: Vec<Row>,
}

/// What a listener heard.
#[derive(Debug, Clone, Copy, Default)]
struct Heard {
    first_audio: Duration,
    prebuffer: Duration,
    underrun: Duration,
    audio: Duration,
}

/// How a listener reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reader {
    Fast,
    RealTime,
    /// Stops after its first chunk until then.
    Stalling(Instant),
}

async fn begin(server: &TestServer, model: &str, frames: usize, seed: u64) -> Result<Session> {
    let mut session = Session::open_small(server.address).await?;
    let config = json!({ "type": "session.config", "model": model, "max_tokens": frames, "seed": seed });
    session.send(config).await?;
    session.send(json!({ "type": "speak", "text": TEXT })).await?;
    Ok(session)
}

/// Listens to one utterance; `None` if it is refused.
async fn listen(
    server: &TestServer,
    model: &str,
    frames: usize,
    seed: u64,
    reader: Reader,
) -> Result<Option<Heard>> {
    let asked = Instant::now();
    let mut session = begin(server, model, frames, seed).await?;
    let mut heard = Heard::default();
    let mut plays_until: Option<Instant> = None;
    loop {
        match session.next().await? {
            Incoming::Frame(frame) => match frame["type"].as_str() {
                Some("audio.start") => {
                    heard.prebuffer =
                        Duration::from_millis(frame["prebuffer_ms"].as_u64().unwrap_or_default());
                }
                Some("audio.done") => return Ok(Some(heard)),
                Some("error") if frame["code"] == "overloaded" => return Ok(None),
                Some("error") => bail!("the server answers {frame}"),
                _ => {}
            },
            Incoming::Audio(bytes) => {
                let now = Instant::now();
                let length = length(&bytes);
                let end = plays_until.unwrap_or_else(|| {
                    heard.first_audio = now - asked;
                    now + heard.prebuffer
                });
                heard.underrun += now.saturating_duration_since(end);
                heard.audio += length;
                let end = end.max(now) + length;
                plays_until = Some(end);
                match reader {
                    Reader::Fast => {}
                    Reader::RealTime => {
                        if let Some(at) = end.checked_sub(AHEAD + heard.prebuffer) {
                            tokio::time::sleep_until(at.into()).await;
                        }
                    }
                    Reader::Stalling(until) => {
                        tokio::time::sleep_until(until.into()).await;
                        return Ok(None);
                    }
                }
            }
            Incoming::Closed(code) => bail!("the server closed the session with {code:?}"),
        }
    }
}

/// Seconds of audio a second, at the best of some numbers of streams at once.
async fn capacity(server: &TestServer, args: &Args) -> Result<f64> {
    let (model, _) = ENGINES[1];
    let mut best: f64 = 0.0;
    for streams in [1, 2, 4, 8] {
        let begun = Instant::now();
        let listeners = (0..streams).map(|seed| listen(server, model, args.frames, seed, Reader::Fast));
        let heard = futures::future::try_join_all(listeners).await?;
        let audio: f64 = heard.iter().flatten().map(|heard| heard.audio.as_secs_f64()).sum();
        best = best.max(audio / begun.elapsed().as_secs_f64());
    }
    Ok(best)
}

/// Times between arrivals: exponential, the same for each seed.
fn gaps(seed: u64, mean_s: f64) -> impl Iterator<Item = f64> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    std::iter::repeat_with(move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        -mean_s * ((state >> 11) as f64 / (1u64 << 53) as f64).max(1e-12).ln()
    })
}

async fn transcribe(server: Arc<TestServer>, model: String, until: Instant) -> Result<usize> {
    let mut count = 0;
    let speech = std::fs::read(clips::root().join("assets/speech/jfk.wav"))?;
    while Instant::now() < until {
        let form = Form::new().text("model", &model).file("file", &speech);
        let answer = server.post_form("/v1/audio/transcriptions", form).await?;
        ensure!(answer.status().is_success(), "a transcription ended with {}", answer.status());
        count += 1;
    }
    Ok(count)
}

/// Dictates the recordings until then, over and over.
async fn dictate(server: Arc<TestServer>, model: String, until: Instant) -> Result<Vec<f64>> {
    let (samples, _) = dictation::stream(&clips::all()?)?;
    let client = Dictation { model, latency_ms: None, samples, is_paced: true, trace: false };
    let mut lags_ms = Vec::new();
    while Instant::now() < until {
        let Dictated { lags_ms: new, revised, .. } = client.run(server.address).await?;
        ensure!(revised == 0, "{revised} turns differ from what was committed");
        lags_ms.extend(new);
    }
    Ok(lags_ms)
}

/// What came of the answers of a conversation.
#[derive(Debug, Clone, Copy, Default)]
struct Answers {
    heard: usize,
    refused: usize,
    with_underruns: usize,
    underrun: Duration,
}

/// Asks for one answer after another until then, each after the playback of the last.
async fn converse(server: Arc<TestServer>, until: Instant) -> Result<Answers> {
    let mut answers = Answers::default();
    let mut session = server.chat().await?;
    let config = json!({ "type": "session.config", "model": CHAT, "max_tokens": ANSWER_FRAMES });
    session.send(config).await?;
    session.expect("session.created").await?;
    while Instant::now() < until {
        session.send(json!({ "type": "input.text", "text": TEXT })).await?;
        let mut plays_until: Option<Instant> = None;
        let mut underrun = Duration::ZERO;
        loop {
            match session.next().await? {
                Incoming::Frame(frame) => match frame["type"].as_str() {
                    Some("turn.done") => {
                        answers.heard += 1;
                        break;
                    }
                    Some("error") if frame["code"] == "overloaded" => {
                        answers.refused += 1;
                        tokio::time::sleep(PAUSE_OF_REFUSED).await;
                        break;
                    }
                    Some("error") => bail!("the server answers {frame}"),
                    _ => {}
                },
                Incoming::Audio(bytes) => {
                    let now = Instant::now();
                    let end = plays_until.unwrap_or(now);
                    underrun += now.saturating_duration_since(end);
                    plays_until = Some(end.max(now) + length(&bytes));
                }
                Incoming::Closed(code) => bail!("the server closed the conversation with {code:?}"),
            }
        }
        answers.with_underruns += usize::from(!underrun.is_zero());
        answers.underrun += underrun;
        if let Some(end) = plays_until {
            tokio::time::sleep_until(end.into()).await;
        }
    }
    Ok(answers)
}

/// Length of 16-bit samples at 24 kHz.
fn length(bytes: &[u8]) -> Duration {
    Duration::from_secs_f64(bytes.len() as f64 / 2.0 / 24_000.0)
}

/// The clients alongside the listeners.
struct Others {
    transcriptions: Option<JoinHandle<Result<usize>>>,
    dictations: Vec<JoinHandle<Result<Vec<f64>>>>,
    conversation: Option<JoinHandle<Result<Answers>>>,
}

/// What they got.
struct Done {
    transcriptions: usize,
    /// Of each dictated word.
    lags_ms: Vec<f64>,
    answers: Answers,
}

impl Others {
    /// Starts those that `args` ask for.
    fn start(server: &Arc<TestServer>, args: &Args, until: Instant) -> Self {
        let uploads = args.asr.clone().filter(|_| args.dictation == 0);
        let transcriptions = uploads.map(|asr| tokio::spawn(transcribe(Arc::clone(server), asr, until)));
        let dictations: Vec<_> = (0..args.dictation)
            .filter_map(|_| args.asr.clone())
            .map(|asr| tokio::spawn(dictate(Arc::clone(server), asr, until)))
            .collect();
        let conversation = args.chat.is_some().then(|| tokio::spawn(converse(Arc::clone(server), until)));
        Self { transcriptions, dictations, conversation }
    }

    async fn finish(self) -> Result<Done> {
        let transcriptions = match self.transcriptions {
            Some(count) => count.await??,
            None => 0,
        };
        let mut lags_ms = Vec::new();
        for dictation in self.dictations {
            lags_ms.extend(dictation.await??);
        }
        let answers = match self.conversation {
            Some(answers) => answers.await??,
            None => Answers::default(),
        };
        Ok(Done { transcriptions, lags_ms, answers })
    }
}

async fn row(
    server: &Arc<TestServer>,
    args: &Args,
    capacity: f64,
    load: f64,
    engine: (&str, bool),
) -> Result<Row> {
    let (model, admission) = engine;
    let frame_s = 0.08;
    let mean_s = args.frames as f64 * frame_s / (load * capacity);
    let begun = Instant::now();
    let until = begun + Duration::from_secs_f64(args.seconds);
    let stalling: Vec<_> = (0..STALLING)
        .map(|index| {
            let (server, model, frames) = (Arc::clone(server), model.to_owned(), args.frames);
            tokio::spawn(async move {
                listen(&server, &model, frames, 1_000 + index as u64, Reader::Stalling(until)).await
            })
        })
        .collect();
    let others = Others::start(server, args, until);
    let (mut listeners, mut at) = (Vec::new(), begun);
    for (index, gap_s) in gaps(args.seed, mean_s).enumerate() {
        at += Duration::from_secs_f64(gap_s);
        if at > until {
            break;
        }
        tokio::time::sleep_until(at.into()).await;
        let (server, model, frames) = (Arc::clone(server), model.to_owned(), args.frames);
        listeners.push(tokio::spawn(async move {
            listen(&server, &model, frames, index as u64, Reader::RealTime).await
        }));
    }
    let mut heard = Vec::new();
    let came = listeners.len();
    for listener in listeners {
        heard.extend(listener.await??);
    }
    for listener in stalling {
        listener.await??;
    }
    let Done { transcriptions, lags_ms, answers } = others.finish().await?;
    let of = |value: fn(&Heard) -> Duration| {
        heard.iter().map(value).map(|time| time.as_secs_f64()).collect::<Vec<_>>()
    };
    let underruns = of(|heard| heard.underrun);
    let first_audio = of(|heard| heard.first_audio);
    let first_sound = of(|heard| heard.first_audio + heard.prebuffer);
    Ok(Row {
        admission,
        load,
        listeners: came,
        accepted: heard.len(),
        refused: came - heard.len(),
        underrun_streams: underruns.iter().filter(|seconds| **seconds > 0.0).count(),
        underrun_s: underruns.iter().sum(),
        first_sound_s_p50: quantile(first_sound.clone(), 0.5),
        first_sound_s_p99: quantile(first_sound, 0.99),
        first_audio_ms_p50: 1e3 * quantile(first_audio.clone(), 0.5),
        first_audio_ms_p99: 1e3 * quantile(first_audio, 0.99),
        transcriptions,
        dictated_words: lags_ms.len(),
        dictation_lag_ms_p50: quantile(lags_ms.clone(), 0.5).round(),
        dictation_lag_ms_p95: quantile(lags_ms, 0.95).round(),
        answers: answers.heard,
        answers_refused: answers.refused,
        answers_with_underruns: answers.with_underruns,
        answers_underrun_s: answers.underrun.as_secs_f64(),
    })
}

/// Nearest-rank quantile; 0 without values.
fn quantile(mut values: Vec<f64>, q: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    let rank = ((q * values.len() as f64).ceil() as usize).max(1) - 1;
    values.get(rank).copied().unwrap_or_default()
}

async fn start(args: &Args) -> Result<TestServer> {
    let recorder = Recorder::install()?;
    let device = DeviceArbiter::new();
    let (first, _) = ENGINES[0];
    let registry =
        Registry::new(RegistryConfig { default_asr: args.asr.clone(), ..RegistryConfig::new(first) });
    for (name, admission) in ENGINES {
        registry.set(name, Slot::Ready(args.weights.engine(admission, &device).await?));
    }
    if let Some(asr) = &args.asr {
        let engine =
            engines::load_on(asr, args.weights.threads, Precision::Auto, Arc::clone(&device)).await?;
        registry.set(asr, Slot::Ready(engine));
    }
    if let Some(size) = &args.chat {
        registry.set(CHAT, Slot::Ready(conversation_model(args, size, &device).await?));
    }
    let vad_weights = Some(Store::open(Some(engines::home()))?.vad_weights());
    TestServer::listen(ServerConfig { vad_weights, ..ServerConfig::default() }, registry, recorder).await
}

async fn conversation_model(args: &Args, size: &str, device: &Arc<DeviceArbiter>) -> Result<Engine> {
    if size != "tiny" {
        let weights = RandomModel { model: size.to_owned(), ..args.weights.clone() };
        return weights.engine(true, device).await;
    }
    let models = tempfile::tempdir()?;
    izwi_tests::copy(&clips::root().join(TINY_CHAT), &models.path().join(CHAT))?;
    let config = EngineCoreConfig {
        model: CHAT.to_owned(),
        models_dir: Some(models.path().to_path_buf()),
        num_threads: args.weights.threads,
        ..EngineCoreConfig::default()
    };
    let device = Arc::clone(device);
    let engine = tokio::task::spawn_blocking(move || Engine::sharing(config, &device)).await??;
    engine.ready().await?;
    Ok(engine)
}

#[tokio::main]
#[allow(clippy::print_stdout, reason = "the report is this program's output")]
async fn main() -> Result<()> {
    let args = Args::parse();
    ensure!(args.frames > 0 && args.seconds > 0.0, "--frames and --seconds must be more than 0");
    let server = Arc::new(start(&args).await.context("the server does not start")?);
    let capacity = capacity(&server, &args).await?;
    // The engine with admission learns its speed.
    for seed in 0..2 {
        listen(&server, ENGINES[0].0, args.frames, seed, Reader::Fast).await?;
    }
    let mut results = Vec::new();
    for &load in &args.load {
        for engine in ENGINES {
            results.push(row(&server, &args, capacity, load, engine).await?);
        }
    }
    let report = Report { capacity, results };
    if args.json {
        println!("{}", serde_json::to_string_pretty(&report)?);
        return Ok(());
    }
    println!("{capacity:.2} s of audio a second");
    println!(
        "| admission | load | listeners | accepted | refused | with gaps | gaps, s | first sound p50, s | p99 | first audio p50, ms | p99 | transcriptions | dictated words | lag p50, ms | p95 | answers | refused | with gaps | gaps, s |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|");
    for row in &report.results {
        println!(
            "| {} | {} | {} | {} | {} | {} | {:.2} | {:.2} | {:.2} | {:.0} | {:.0} | {} | {} | {} | {} | {} | {} | {} | {:.2} |",
            row.admission,
            row.load,
            row.listeners,
            row.accepted,
            row.refused,
            row.underrun_streams,
            row.underrun_s,
            row.first_sound_s_p50,
            row.first_sound_s_p99,
            row.first_audio_ms_p50,
            row.first_audio_ms_p99,
            row.transcriptions,
            row.dictated_words,
            row.dictation_lag_ms_p50,
            row.dictation_lag_ms_p95,
            row.answers,
            row.answers_refused,
            row.answers_with_underruns,
            row.answers_underrun_s
        );
    }
    Ok(())
}
