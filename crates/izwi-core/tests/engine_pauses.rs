//! Live streams on a machine that becomes slower after it has accepted them, in virtual time: what their listeners are told.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use izwi_core::engine::executor::SimulatedTime;
use izwi_core::engine::executor::simulated::{CostCurve, SimulatedExecutor, SimulatedModel};
use izwi_core::engine::{Engine, EngineCoreConfig, EngineCoreRequest};
use tokio::time::{Instant, sleep};

use crate::disturbed::Disturbed;

/// Frames, of 80 ms each.
const FRAMES: usize = 200;

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// A machine whose steps take so many percent of their time, and the next one so many milliseconds more.
#[derive(Debug, Clone)]
struct Machine {
    percent: Arc<AtomicU32>,
    pause_ms: Arc<AtomicU32>,
}

impl Machine {
    fn time(&self, SimulatedTime { time, pieces }: SimulatedTime) -> SimulatedTime {
        let pause = ms(self.pause_ms.swap(0, Ordering::Relaxed).into());
        SimulatedTime { time: time * self.percent.load(Ordering::Relaxed) / 100 + pause, pieces }
    }
}

/// An engine that has learned its speed: 16 ms a step and 8 ms for each stream in it.
async fn engine() -> (Engine, Machine) {
    let generating = (1..=8).map(|count| ms(8 * count)).collect();
    let cost = CostCurve { fixed: ms(16), generating, prompt_token: ms(1), ..CostCurve::default() };
    let model = SimulatedModel { length: |text, _| text.len(), cost: Some(cost), ..Default::default() };
    let config = EngineCoreConfig { enable_prefix_caching: false, ..Default::default() };
    let machine = Machine { percent: Arc::new(AtomicU32::new(100)), pause_ms: Arc::default() };
    let slowed = machine.clone();
    let executor = Box::new(SimulatedExecutor::new(&config, model));
    let executor = Disturbed::slowed(executor, move |time| slowed.time(time));
    let engine = Engine::with_executor(config, Box::new(executor)).unwrap();
    engine.ready().await.unwrap();
    let speak = |_| engine.generate(EngineCoreRequest::tts("x".repeat(FRAMES)));
    for spoken in futures::future::join_all((0..4).map(speak)).await {
        spoken.unwrap();
    }
    (engine, machine)
}

#[derive(Debug, Default)]
struct Heard {
    samples: u64,
    gaps: Duration,
    /// Pauses: as told, and as heard.
    told: Vec<Duration>,
    silence: Duration,
}

/// Plays a stream at once. Silence before a pause is told is a gap.
async fn listen(engine: &Engine) -> Heard {
    let request = EngineCoreRequest::tts("x".repeat(FRAMES));
    let (_, mut chunks) = engine.generate_streaming(request).await.unwrap();
    let mut heard = Heard::default();
    let (mut end, mut is_paused): (Option<Instant>, bool) = (None, false);
    while let Some(chunk) = chunks.recv().await {
        let now = Instant::now();
        assert_eq!(chunk.sample_offset, heard.samples, "nothing is lost or comes twice");
        heard.samples += chunk.samples.len() as u64;
        let silence = end.map(|end| now.saturating_duration_since(end)).unwrap_or_default();
        if let Some(pause) = chunk.pauses {
            assert!(chunk.samples.is_empty());
            heard.told.push(pause);
            heard.gaps += silence;
            (is_paused, end) = (true, end.map(|end| end + silence));
        } else if !chunk.samples.is_empty() {
            let told = std::mem::take(&mut is_paused);
            *if told { &mut heard.silence } else { &mut heard.gaps } += silence;
            let length = Duration::from_secs_f64(chunk.samples.len() as f64 / 24_000.0);
            end = Some(end.unwrap_or(now).max(now) + length);
        }
    }
    heard
}

/// Four streams that begin 300 ms apart; the machine changes 3 s after the first.
async fn four(engine: &Engine, change: impl FnOnce()) -> Vec<Heard> {
    let listeners = (0..4).map(|index| async move {
        sleep(ms(300) * index).await;
        listen(engine).await
    });
    let changes = async {
        sleep(ms(3_000)).await;
        change();
    };
    futures::future::join(futures::future::join_all(listeners), changes).await.0
}

#[tokio::test(start_paused = true)]
async fn the_newest_stream_pauses_once_on_a_machine_that_became_too_slow_for_all() {
    let (engine, machine) = engine().await;
    // Steps of four streams take 86 ms for 80 ms of audio, and of three 72.
    let heard = four(&engine, || machine.percent.store(180, Ordering::Relaxed)).await;
    for heard in &heard {
        assert_eq!(heard.samples, 1_920 * FRAMES as u64);
        assert!(heard.gaps <= ms(100), "{heard:?}");
    }
    let [first @ .., newest] = &heard[..] else { unreachable!() };
    assert!(first.iter().all(|heard| heard.told.is_empty()), "{heard:?}");
    let [told] = newest.told[..] else { panic!("{newest:?}") };
    // It goes on once another has ended.
    assert!(newest.silence > ms(5_000), "{newest:?}");
    let error = told.as_secs_f64() / newest.silence.as_secs_f64() - 1.0;
    assert!(error.abs() < 0.4, "{newest:?}");
}

#[tokio::test(start_paused = true)]
async fn streams_that_run_out_of_audio_pause_once_and_are_ahead_then() {
    let (engine, machine) = engine().await;
    let heard = four(&engine, || machine.pause_ms.store(4_000, Ordering::Relaxed)).await;
    assert!(heard.iter().any(|heard| !heard.told.is_empty()), "{heard:?}");
    for heard in &heard {
        assert_eq!(heard.samples, 1_920 * FRAMES as u64);
        assert!(heard.told.len() <= 1 && heard.gaps <= ms(100), "{heard:?}");
        assert!(heard.silence < ms(4_500), "{heard:?}");
    }
}
