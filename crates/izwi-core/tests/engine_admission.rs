//! Live streams in virtual time: who is accepted, that nobody who is hears a gap, and what bulk work may take.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::time::Duration;

use izwi_core::engine::executor::simulated::{CostCurve, SimulatedExecutor, SimulatedModel};
use izwi_core::engine::{
    DeviceArbiter, Engine, EngineCoreConfig, EngineCoreRequest, EngineError, Prediction,
};
use tokio::time::{Instant, sleep};

/// A hundred frames, 8 s.
const TEXT: &str =
    "A text of exactly one hundred characters, which this model speaks in a hundred frames of audio, ends";

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// 20 ms a step, `each_ms` for each stream in it, a millisecond for a token of a prompt.
fn speaker(each_ms: u64, noise: f64) -> SimulatedModel {
    let generating = (1..=8).map(|count| ms(each_ms * count)).collect();
    let cost =
        CostCurve { fixed: ms(20), generating, prompt_token: ms(1), noise, seed: 7, ..CostCurve::default() };
    SimulatedModel { length: |text, _| text.len(), cost: Some(cost), ..Default::default() }
}

fn engine_on(arbiter: &Arc<DeviceArbiter>, config: EngineCoreConfig, model: SimulatedModel) -> Engine {
    let executor = SimulatedExecutor::new(&config, model);
    Engine::with_executor_on(config, Box::new(executor), arbiter).unwrap()
}

/// An ASR engine with 500 rows of the encoder for each second, of `row` each.
fn transcriber_on(arbiter: &Arc<DeviceArbiter>, row: Duration) -> Engine {
    let cost = CostCurve { fixed: ms(5), encoder_row: row, ..CostCurve::default() };
    let model = SimulatedModel {
        transcribes: true,
        sample_rate: 16_000,
        encoder_rows: 500,
        cost: Some(cost),
        ..SimulatedModel::default()
    };
    engine_on(arbiter, EngineCoreConfig { max_tokens_per_step: 512, ..config() }, model)
}

fn config() -> EngineCoreConfig {
    EngineCoreConfig { enable_prefix_caching: false, max_first_audio: ms(2_000), ..Default::default() }
}

#[derive(Debug)]
struct Heard {
    first: Duration,
    gaps: Duration,
    prediction: Option<Prediction>,
}

/// Plays a stream at once, after the silence that it asks for.
async fn listen(engine: &Engine, request: EngineCoreRequest) -> Result<Heard, EngineError> {
    let begun = Instant::now();
    let (_, mut chunks) = engine.generate_streaming(request).await?;
    let mut heard = Heard { first: Duration::ZERO, gaps: Duration::ZERO, prediction: None };
    let mut end: Option<Instant> = None;
    while let Some(chunk) = chunks.recv().await {
        let now = Instant::now();
        let length = Duration::from_secs_f64(chunk.samples.len() as f64 / 24_000.0);
        if length.is_zero() {
            continue;
        }
        let played = end.unwrap_or_else(|| {
            (heard.first, heard.prediction) = (begun.elapsed(), chunk.prediction);
            now + chunk.prediction.map_or(Duration::ZERO, |told| told.prebuffer)
        });
        heard.gaps += now.saturating_duration_since(played);
        end = Some(played.max(now) + length);
    }
    Ok(heard)
}

fn speech() -> EngineCoreRequest {
    EngineCoreRequest::tts(TEXT)
}

/// An engine that has learned its speed.
async fn learned(model: SimulatedModel) -> Engine {
    let engine = engine_on(&DeviceArbiter::new(), config(), model);
    engine.ready().await.unwrap();
    for _ in 0..3 {
        engine.generate(speech()).await.unwrap();
    }
    engine
}

/// `count` listeners that come `gap` apart.
async fn crowd(engine: &Engine, count: u32, gap: Duration) -> Vec<Result<Heard, EngineError>> {
    let listeners = (0..count).map(|index| async move {
        sleep(gap * index).await;
        listen(engine, speech()).await
    });
    futures::future::join_all(listeners).await
}

#[tokio::test(start_paused = true)]
async fn a_stream_too_many_is_refused_and_those_accepted_hear_no_gap() {
    // Three streams take 65 ms of 80, and eight would take 140.
    let engine = learned(speaker(15, 0.0)).await;
    let outcomes = crowd(&engine, 12, ms(300)).await;
    let (heard, refused): (Vec<_>, Vec<_>) = outcomes.into_iter().partition(Result::is_ok);
    for heard in heard.iter().flatten() {
        assert_eq!(heard.gaps, Duration::ZERO, "{heard:?}");
    }
    assert!((3..=6).contains(&heard.len()), "{heard:?}");
    assert!(
        refused.iter().all(|refused| matches!(refused, Err(EngineError::Saturated { .. }))),
        "{refused:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn without_admission_the_same_crowd_waits_long() {
    let config = EngineCoreConfig { admission: false, ..config() };
    let engine = engine_on(&DeviceArbiter::new(), config, speaker(15, 0.0));
    let outcomes = crowd(&engine, 12, ms(300)).await;
    assert!(outcomes.iter().all(Result::is_ok));
    let waited =
        |heard: &Heard| heard.first + heard.gaps + heard.prediction.map_or(Duration::ZERO, |p| p.prebuffer);
    assert!(outcomes.iter().flatten().any(|heard| waited(heard) > ms(5_000)), "{outcomes:?}");
}

#[tokio::test(start_paused = true)]
async fn noise_of_steps_makes_no_gap_at_any_load() {
    for (each_ms, gap) in [(5, ms(100)), (15, ms(700)), (30, ms(1_500)), (50, ms(4_000))] {
        let engine = learned(speaker(each_ms, 0.3)).await;
        let outcomes = crowd(&engine, 40, gap).await;
        let heard: Vec<&Heard> = outcomes.iter().flatten().collect();
        assert!(!heard.is_empty());
        for heard in heard {
            assert_eq!(heard.gaps, Duration::ZERO, "{each_ms} ms: {heard:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn who_comes_back_when_told_is_accepted() {
    let engine = learned(speaker(15, 0.0)).await;
    for _ in 0..3 {
        let engine = engine.clone();
        tokio::spawn(async move { listen(&engine, speech()).await });
        sleep(ms(400)).await;
    }
    let Err(EngineError::Saturated { retry_after }) = listen(&engine, speech()).await else {
        panic!("three streams are all");
    };
    assert!(retry_after > ms(1_000), "{retry_after:?}");
    sleep(retry_after.mul_f64(0.5)).await;
    assert!(listen(&engine, speech()).await.is_err(), "half of the time is too early");
    sleep(retry_after.mul_f64(0.75)).await;
    assert_eq!(listen(&engine, speech()).await.unwrap().gaps, Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn the_first_audio_comes_when_predicted() {
    let engine = learned(speaker(12, 0.0)).await;
    for heard in crowd(&engine, 3, ms(500)).await {
        let heard = heard.unwrap();
        let predicted = heard.prediction.unwrap().first_audio;
        let error = predicted.as_secs_f64() / heard.first.as_secs_f64() - 1.0;
        assert!(error.abs() < 0.25, "{heard:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_slow_machine_plays_one_stream_without_a_gap_after_the_silence_it_tells() {
    // 110 ms for 80 ms of audio.
    let engine = learned(speaker(90, 0.1)).await;
    let heard = listen(&engine, speech()).await.unwrap();
    let told = heard.prediction.unwrap();
    assert!((1.3..1.5).contains(&told.rtf), "{told:?}");
    assert!((ms(2_000)..ms(7_000)).contains(&told.prebuffer), "{told:?}");
    assert_eq!(heard.gaps, Duration::ZERO, "{heard:?}");
}

#[tokio::test(start_paused = true)]
async fn bulk_speech_runs_in_the_time_that_streams_leave_and_gets_its_share() {
    let engine = learned(speaker(15, 0.0)).await;
    let begun = Instant::now();
    let bulk = (0..4).map(|_| engine.generate(speech()));
    let live = crowd(&engine, 30, ms(500));
    let (outputs, live) = tokio::join!(futures::future::join_all(bulk), live);
    assert!(outputs.iter().all(Result::is_ok), "bulk work is not refused");
    for heard in live.iter().flatten() {
        assert_eq!(heard.gaps, Duration::ZERO, "{heard:?}");
    }
    assert!(live.iter().flatten().count() >= 3);
    assert!(begun.elapsed() < ms(60_000), "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_transcription_on_the_same_device_interrupts_no_stream() {
    let arbiter = DeviceArbiter::new();
    let speaks = engine_on(&arbiter, config(), speaker(15, 0.0));
    // 150 ms for the encoder of each second.
    let listens = transcriber_on(&arbiter, Duration::from_micros(300));
    speaks.generate(speech()).await.unwrap();
    let text = {
        let listens = listens.clone();
        tokio::spawn(async move { listens.generate(EngineCoreRequest::asr(wav(30))).await })
    };
    for _ in 0..3 {
        let heard = listen(&speaks, speech()).await.unwrap();
        assert_eq!(heard.gaps, Duration::ZERO, "{heard:?}");
    }
    assert!(text.await.unwrap().is_ok());
}

#[tokio::test(start_paused = true)]
async fn an_idle_engine_accepts_again_when_the_streams_of_another_one_have_ended() {
    let arbiter = DeviceArbiter::new();
    let [busy, idle] = [(); 2].map(|()| engine_on(&arbiter, config(), speaker(50, 0.0)));
    for engine in [&busy, &idle] {
        engine.generate(speech()).await.unwrap();
    }
    let playing = {
        let busy = busy.clone();
        tokio::spawn(async move { listen(&busy, speech()).await })
    };
    sleep(ms(500)).await;
    for _ in 0..2 {
        let refused = listen(&idle, speech()).await;
        assert!(matches!(refused, Err(EngineError::Saturated { .. })), "{refused:?}");
        sleep(ms(100)).await;
    }
    let heard = playing.await.unwrap().unwrap();
    assert_eq!(heard.gaps, Duration::ZERO, "{heard:?}");
    assert_eq!(listen(&idle, speech()).await.unwrap().gaps, Duration::ZERO);
}

/// Six hundred frames, 48 s.
fn long_speech() -> EngineCoreRequest {
    EngineCoreRequest::tts(TEXT.repeat(6))
}

#[tokio::test(start_paused = true)]
async fn who_interrupts_the_only_stream_is_accepted_at_once() {
    // 60 ms a step.
    let engine = learned(speaker(40, 0.0)).await;
    for _ in 0..3 {
        let (id, chunks) = engine.generate_streaming(long_speech()).await.unwrap();
        sleep(ms(4_000)).await;
        assert!(engine.interrupt_request(&id).await.unwrap());
        let again = engine.generate_streaming(long_speech()).await;
        let (_, other) = again.expect("nothing else plays");
        // A client of HTTP interrupts by closing its connection.
        sleep(ms(4_000)).await;
        drop((chunks, other));
        sleep(ms(100)).await;
        assert_eq!(listen(&engine, speech()).await.unwrap().gaps, Duration::ZERO);
    }
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_is_interrupted_makes_room_for_those_of_another_engine() {
    let arbiter = DeviceArbiter::new();
    let [busy, idle] = [(); 2].map(|()| engine_on(&arbiter, config(), speaker(50, 0.0)));
    for engine in [&busy, &idle] {
        engine.generate(speech()).await.unwrap();
    }
    let (id, chunks) = busy.generate_streaming(long_speech()).await.unwrap();
    sleep(ms(4_000)).await;
    let refused = listen(&idle, speech()).await;
    assert!(matches!(refused, Err(EngineError::Saturated { .. })), "{refused:?}");
    assert!(busy.interrupt_request(&id).await.unwrap());
    drop(chunks);
    // An engine looks after the others of its device every 50 ms.
    sleep(ms(100)).await;
    assert_eq!(listen(&idle, speech()).await.unwrap().gaps, Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn audio_that_is_made_goes_on_while_a_step_waits_for_the_device() {
    let arbiter = DeviceArbiter::new();
    let cost = CostCurve { fixed: ms(3), prompt_token: Duration::from_micros(300), ..CostCurve::default() };
    let speaks = SimulatedModel {
        autoregressive: false,
        samples_per_token: 1_600,
        cost: Some(cost),
        ..SimulatedModel::default()
    };
    let speaks = engine_on(&arbiter, config(), speaks);
    let listens = transcriber_on(&arbiter, ms(10));
    tokio::try_join!(speaks.ready(), listens.ready()).unwrap();
    // Nearly seven seconds of audio are made in one step, and more than what the channel holds waits in the engine.
    let (_, mut chunks) = speaks.generate_streaming(speech()).await.unwrap();
    let mut chunk = chunks.recv().await.unwrap();
    let text = tokio::spawn(async move { listens.generate(EngineCoreRequest::asr(wav(1))).await });
    sleep(ms(20)).await;
    // The encoder has the device for five seconds, and a step waits for it.
    let waits = {
        let speaks = speaks.clone();
        tokio::spawn(async move { speaks.generate(speech()).await })
    };
    while !chunk.is_final {
        sleep(Duration::from_secs_f64(chunk.samples.len() as f64 / 24_000.0)).await;
        chunk = tokio::time::timeout(ms(10), chunks.recv()).await.expect("the next chunk is there").unwrap();
    }
    assert!(text.await.unwrap().is_ok() && waits.await.unwrap().is_ok());
}

/// A WAV file of `seconds` of silence at 16 kHz.
pub(crate) fn wav(seconds: u32) -> bytes::Bytes {
    let data = seconds * 32_000;
    let mut file = Vec::new();
    file.extend(b"RIFF");
    file.extend((36 + data).to_le_bytes());
    file.extend(b"WAVEfmt ");
    file.extend(16u32.to_le_bytes());
    file.extend([1, 0, 1, 0]);
    file.extend(16_000u32.to_le_bytes());
    file.extend(32_000u32.to_le_bytes());
    file.extend([2, 0, 16, 0]);
    file.extend(b"data");
    file.extend(data.to_le_bytes());
    file.resize(44 + data as usize, 0);
    file.into()
}
