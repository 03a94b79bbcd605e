//! Turns of the device in virtual time: no piece of work is put off without end, and none locks live streams out.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::time::Duration;

use izwi_core::engine::executor::simulated::{CostCurve, SimulatedExecutor, SimulatedModel};
use izwi_core::engine::{DeviceArbiter, Engine, EngineCoreConfig, EngineCoreRequest, ReferenceAudio};
use tokio::time::{Instant, sleep, sleep_until};

use crate::engine_admission::wav;

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn config() -> EngineCoreConfig {
    EngineCoreConfig { enable_prefix_caching: false, ..Default::default() }
}

fn engine_on(arbiter: &Arc<DeviceArbiter>, config: EngineCoreConfig, model: SimulatedModel) -> Engine {
    let executor = SimulatedExecutor::new(&config, model);
    Engine::with_executor_on(config, Box::new(executor), arbiter).unwrap()
}

/// A frame of 80 ms for each character, in 30 ms; a second of a recording is cloned in 50 ms.
fn speaker(prompt_token: Duration) -> SimulatedModel {
    let generating = vec![ms(30)];
    let cost = CostCurve { generating, prompt_token, cloned_second: ms(50), ..CostCurve::default() };
    let length = |text: &str, _| text.len();
    SimulatedModel { length, clones_voices: true, cost: Some(cost), ..Default::default() }
}

/// An ASR model whose encoder takes 1.7 s for each second, in one piece.
fn transcriber() -> SimulatedModel {
    let cost = CostCurve { fixed: ms(5), encoder_row: ms(1_700) / 500, ..CostCurve::default() };
    SimulatedModel {
        transcribes: true,
        sample_rate: 16_000,
        encoder_rows: 500,
        cost: Some(cost),
        ..SimulatedModel::default()
    }
}

fn speech(frames: usize) -> EngineCoreRequest {
    EngineCoreRequest::tts("a".repeat(frames))
}

/// Reads a stream as it is played, at most `ahead` of that. Returns its silence.
async fn listen(engine: Engine, request: EngineCoreRequest, ahead: Duration) -> Duration {
    let (_, mut chunks) = engine.generate_streaming(request).await.unwrap();
    let (mut gaps, mut end) = (Duration::ZERO, None::<Instant>);
    while let Some(chunk) = chunks.recv().await {
        let now = Instant::now();
        let length = Duration::from_secs_f64(chunk.samples.len() as f64 / 24_000.0);
        let played = end.unwrap_or(now);
        gaps += now.saturating_duration_since(played);
        let next = played.max(now) + length;
        end = Some(next);
        sleep_until(next.checked_sub(ahead).unwrap_or(now)).await;
    }
    gaps
}

#[tokio::test(start_paused = true)]
async fn long_encoders_beside_a_book_that_is_read_slowly_lock_no_stream_out() {
    let arbiter = DeviceArbiter::new();
    let speaks = engine_on(&arbiter, config(), speaker(ms(1)));
    let listens = engine_on(&arbiter, config(), transcriber());
    tokio::try_join!(speaks.ready(), listens.ready()).unwrap();
    speaks.generate(speech(50)).await.unwrap();
    listens.generate(EngineCoreRequest::asr(wav(1))).await.unwrap();
    let book = tokio::spawn(listen(speaks.clone(), speech(1_500), ms(200)));
    let transcribing = tokio::spawn(async move {
        for _ in 0..10 {
            listens.generate(EngineCoreRequest::asr(wav(1))).await.unwrap();
        }
    });
    for second in 0..10 {
        sleep(ms(10_000)).await;
        let begun = Instant::now();
        let accepted = speaks.generate_streaming(speech(30)).await;
        let (_, mut chunks) = accepted.unwrap_or_else(|error| panic!("after {second}0 s: {error}"));
        chunks.recv().await.unwrap();
        assert!(begun.elapsed() < ms(5_000), "{:?}", begun.elapsed());
    }
    assert!(transcribing.is_finished(), "each piece gets its turn");
    assert_eq!(book.await.unwrap(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn an_encoder_longer_than_any_stream_is_ahead_lets_streams_go_first_between_its_layers() {
    let arbiter = DeviceArbiter::new();
    let speaks = engine_on(&arbiter, config(), speaker(ms(1)));
    let mut model = transcriber();
    let cost = CostCurve { encoder_row: ms(10), pieces: 50, ..model.cost.unwrap() };
    model.cost = Some(cost);
    let listens = engine_on(&arbiter, config(), model);
    tokio::try_join!(speaks.ready(), listens.ready()).unwrap();
    speaks.generate(speech(50)).await.unwrap();
    listens.generate(EngineCoreRequest::asr(wav(1))).await.unwrap();
    let book = tokio::spawn(listen(speaks.clone(), speech(1_000), ms(200)));
    sleep(ms(3_000)).await;
    let begun = Instant::now();
    // Two of 5 s each, of a device of which the stream leaves more than half.
    for _ in 0..2 {
        listens.generate(EngineCoreRequest::asr(wav(1))).await.unwrap();
    }
    assert!(begun.elapsed() < ms(25_000), "{:?}", begun.elapsed());
    let begun = Instant::now();
    let encoder =
        tokio::spawn(async move { listens.generate(EngineCoreRequest::asr(wav(1))).await.unwrap() });
    sleep(ms(50)).await;
    let (_, mut chunks) = speaks.generate_streaming(speech(30)).await.unwrap();
    chunks.recv().await.unwrap();
    assert!(begun.elapsed() < ms(1_000), "a start waits for a piece: {:?}", begun.elapsed());
    encoder.await.unwrap();
    assert_eq!(book.await.unwrap(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn a_voice_of_a_long_recording_is_cloned_when_streams_are_far_enough_ahead() {
    let engine = engine_on(&DeviceArbiter::new(), config(), speaker(ms(1)));
    engine.ready().await.unwrap();
    engine.generate(speech(50)).await.unwrap();
    let recording = |seconds| ReferenceAudio { audio: wav(seconds).into(), text: None, timbre_only: false };
    engine.make_voice(recording(2)).await.unwrap();
    let playing = tokio::spawn(listen(engine.clone(), speech(200), ms(60_000)));
    sleep(ms(600)).await;
    // It takes 1.5 s, and 0.6 s have made less than a second of audio that is not played.
    let begun = Instant::now();
    engine.make_voice(recording(30)).await.unwrap();
    assert!(begun.elapsed() > ms(1_500), "{:?}", begun.elapsed());
    assert_eq!(playing.await.unwrap(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn a_start_that_is_longer_than_a_stream_is_ahead_blocks_no_later_one() {
    let arbiter = DeviceArbiter::new();
    let speaks = engine_on(&arbiter, config(), speaker(ms(1)));
    // A prompt of two seconds, in one piece.
    let whole = EngineCoreConfig { enable_chunked_prefill: false, ..config() };
    let chats = engine_on(&arbiter, whole, speaker(ms(20)));
    tokio::try_join!(speaks.ready(), chats.ready()).unwrap();
    speaks.generate(speech(50)).await.unwrap();
    chats.generate(speech(100)).await.unwrap();
    let book = tokio::spawn(listen(speaks.clone(), speech(1_000), ms(200)));
    sleep(ms(3_000)).await;
    for _ in 0..3 {
        let begun = Instant::now();
        let (_, mut chunks) = chats.generate_streaming(speech(100)).await.unwrap();
        let first = chunks.recv().await.unwrap();
        let told = first.prediction.unwrap().first_audio;
        // A second late at the most, and the step itself.
        assert!(begun.elapsed() < told + ms(3_500), "{:?}, told {told:?}", begun.elapsed());
        while chunks.recv().await.is_some() {}
    }
    assert!(book.await.unwrap() < ms(1_500));
}
