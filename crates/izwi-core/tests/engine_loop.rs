//! The handle's promises: streaming, back-pressure, aborts, failures, overload, pausing, draining, ending.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use izwi_core::engine::executor::StepPlan;
use izwi_core::engine::executor::simulated::{SimulatedExecutor, SimulatedModel, natural_length};
use izwi_core::engine::{
    Engine, EngineCoreConfig, EngineCoreRequest, EngineError, EngineState, FinishReason, GenerationParams,
    MemoryBudget, RequestId, StreamingOutput,
};

use crate::soon;

fn engine_with(config: EngineCoreConfig, model: SimulatedModel) -> Engine {
    let executor = SimulatedExecutor::new(&config, model);
    Engine::with_executor(config, Box::new(executor)).unwrap()
}

fn engine(model: SimulatedModel) -> Engine {
    engine_with(EngineCoreConfig::default(), model)
}

/// A gate that lets a step pass for every permit.
fn gated(
    config: EngineCoreConfig,
    autoregressive: bool,
) -> (Engine, std::sync::mpsc::Sender<()>, Arc<AtomicU64>) {
    let (open, gate) = std::sync::mpsc::channel::<()>();
    let steps = Arc::new(AtomicU64::new(0));
    let counter = Arc::clone(&steps);
    let script = Box::new(move |_: &StepPlan| {
        // A gate whose owner has gone lets everything through.
        let _ = gate.recv();
        counter.fetch_add(1, Ordering::SeqCst);
        None
    });
    let model = SimulatedModel { autoregressive, script: Some(script), ..Default::default() };
    (engine_with(config, model), open, steps)
}

const TEXT: &str = "One sentence. Another sentence. A third sentence. The last sentence.";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_first_chunk_leaves_before_the_second_unit_is_computed() {
    let (engine, open, steps) = gated(EngineCoreConfig::default(), false);
    // The time of a generation does not count that of the warm-up, the time to the first audio does.
    engine.ready().await.unwrap();
    let (_, mut chunks) = engine.generate_streaming(EngineCoreRequest::tts(TEXT)).await.unwrap();
    open.send(()).unwrap();
    let first = chunks.recv().await.unwrap();
    assert_eq!((first.sequence, first.samples.len(), first.is_final), (0, 4_800, false));
    assert_eq!(steps.load(Ordering::SeqCst), 1, "no later unit was computed yet");
    drop(open);
    let mut samples = first.samples.len();
    let mut last = None;
    while let Some(chunk) = chunks.recv().await {
        assert_eq!(chunk.sample_offset, samples as u64);
        samples += chunk.samples.len();
        assert!(chunk.is_final || chunk.samples.len() == 4_800);
        last = Some(chunk);
    }
    let stats = last.unwrap().stats.unwrap();
    assert_eq!(stats.finish_reason, FinishReason::Stop);
    assert_eq!(stats.samples, samples as u64);
    assert!(stats.time_to_first_audio.unwrap() <= stats.generation_time);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streamed_and_whole_results_are_the_same_samples() {
    let engine = engine(SimulatedModel::default());
    let request = || {
        let params = GenerationParams { seed: Some(7), ..Default::default() };
        EngineCoreRequest::tts(TEXT).with_params(params)
    };
    let whole = engine.generate(request()).await.unwrap();
    assert_eq!(whole.stats.generated_tokens, natural_length(TEXT));
    for chunk_samples in [1_000, 1_920, 4_800, 1 << 20] {
        let (_, mut chunks) =
            engine.generate_streaming(request().with_chunk_samples(chunk_samples)).await.unwrap();
        let mut samples = Vec::new();
        while let Some(chunk) = chunks.recv().await {
            samples.extend(chunk.samples);
        }
        assert_eq!(samples, whole.audio.samples);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_leaves_is_aborted_within_one_step() {
    let (engine, open, steps) = gated(EngineCoreConfig::default(), true);
    let (_, chunks) = engine.generate_streaming(EngineCoreRequest::tts(TEXT)).await.unwrap();
    open.send(()).unwrap();
    open.send(()).unwrap();
    soon("two steps", || steps.load(Ordering::SeqCst) == 2).await;
    drop(chunks);
    drop(open);
    soon("the blocks come back", || engine.kv_cache_stats().used_blocks == 0 && engine.status().running == 0)
        .await;
    assert!(steps.load(Ordering::SeqCst) <= 3, "at most the step in flight ran on");
    assert_eq!(engine.check_invariants().await.unwrap(), Ok(()));
    assert_eq!(engine.metrics().await.total_requests, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dropped_generate_future_aborts_its_request() {
    let (engine, open, _) = gated(EngineCoreConfig::default(), true);
    let call = tokio::spawn({
        let engine = engine.clone();
        async move { engine.generate(EngineCoreRequest::tts(TEXT)).await }
    });
    soon("it runs", || engine.status().running == 1 || engine.status().pending == 1).await;
    call.abort();
    let _ = call.await;
    drop(open);
    soon("it is gone", || engine.status().running == 0 && engine.status().pending == 0).await;
    assert_eq!(engine.kv_cache_stats().used_blocks, 0);
}

#[tokio::test]
async fn a_first_request_that_is_dropped_as_it_is_added_does_not_stay() {
    let (engine, open, _) = gated(EngineCoreConfig::default(), true);
    engine.ready().await.unwrap();
    let is_added = async {
        while engine.status().pending + engine.status().running == 0 {
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        biased;
        () = is_added => {}
        _ = engine.generate(EngineCoreRequest::tts(TEXT)) => panic!("it was added before"),
    }
    drop(open);
    soon("the queue to be empty", || engine.status().pending + engine.status().running == 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_does_not_read_pauses_itself_alone_and_is_dropped_in_the_end() {
    let config = EngineCoreConfig {
        stream_buffer_chunks: 1,
        slow_client_timeout: Duration::from_millis(300),
        ..Default::default()
    };
    let engine = engine_with(config, SimulatedModel::default());
    let (_, stalled) = engine.generate_streaming(EngineCoreRequest::tts(TEXT)).await.unwrap();
    for _ in 0..5 {
        let output = engine.generate(EngineCoreRequest::tts(TEXT)).await.unwrap();
        assert_eq!(output.stats.finish_reason, FinishReason::Stop);
    }
    soon("the stalled one is dropped", || engine.status().running == 0).await;
    assert_eq!(engine.kv_cache_stats().used_blocks, 0);
    drop(stalled);
}

/// One of the readers of a crowded engine: it takes the first chunk of its stream and no other.
async fn stopped_reader(engine: &Engine) -> tokio::sync::mpsc::Receiver<StreamingOutput> {
    let (_, mut chunks) = engine.generate_streaming(EngineCoreRequest::tts(TEXT)).await.unwrap();
    chunks.recv().await.unwrap();
    chunks
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_that_stop_keep_nobody_else_from_being_served() {
    // As many as a step takes, of a model with large states.
    let config = EngineCoreConfig { stream_buffer_chunks: 1, ..Default::default() };
    let engine = engine_with(config, SimulatedModel { state_bytes: 4 << 20, ..Default::default() });
    let mut stopped = Vec::new();
    for _ in 0..8 {
        stopped.push(stopped_reader(&engine).await);
    }
    soon("all are paused", || engine.status().running == 8).await;
    let ninth = tokio::time::timeout(Duration::from_secs(20), engine.generate(EngineCoreRequest::tts(TEXT)));
    let output = ninth.await.expect("the ninth is served").unwrap();
    assert_eq!(output.stats.finish_reason, FinishReason::Stop);
    assert_eq!(engine.status().running, 8, "the others wait for their readers");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_slower_than_real_time_is_dropped_although_it_takes_a_chunk_now_and_then() {
    let config = EngineCoreConfig {
        stream_buffer_chunks: 1,
        slow_client_timeout: Duration::from_millis(500),
        ..Default::default()
    };
    // 23 tokens of 80 ms.
    let engine = engine_with(config, SimulatedModel::default());
    let (_, mut chunks) = engine.generate_streaming(EngineCoreRequest::tts("x".repeat(22))).await.unwrap();
    let mut is_final = false;
    while let Some(chunk) = chunks.recv().await {
        is_final = chunk.is_final;
        tokio::time::sleep(Duration::from_millis(400)).await;
    }
    assert!(!is_final, "it was dropped");
    assert_eq!(engine.kv_cache_stats().used_blocks, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_reader_gets_everything_in_order() {
    let config = EngineCoreConfig { stream_buffer_chunks: 1, ..Default::default() };
    let engine = engine_with(config, SimulatedModel { autoregressive: false, ..Default::default() });
    let (_, mut chunks) = engine.generate_streaming(EngineCoreRequest::tts(TEXT)).await.unwrap();
    let (mut sequence, mut finals) = (0, 0);
    while let Some(chunk) = chunks.recv().await {
        assert_eq!(chunk.sequence, sequence);
        sequence += 1;
        finals += u32::from(chunk.is_final);
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(finals, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn too_many_waiting_requests_are_turned_away() {
    let config = EngineCoreConfig { max_waiting_requests: 2, ..Default::default() };
    let engine = engine_with(config, SimulatedModel::default());
    for _ in 0..2 {
        engine.add_request(EngineCoreRequest::tts(TEXT)).await.unwrap();
    }
    let error = engine.add_request(EngineCoreRequest::tts(TEXT)).await.unwrap_err();
    assert!(matches!(error, EngineError::Overloaded { waiting: 2, .. }), "{error}");
    assert_eq!(engine.status().pending, 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_that_cannot_be_are_refused_by_field() {
    let engine = engine(SimulatedModel::default());
    let with = |params: GenerationParams| EngineCoreRequest::tts(TEXT).with_params(params);
    let default = GenerationParams::default;
    let cases = [
        ("input", EngineCoreRequest::tts("  \n")),
        ("input", EngineCoreRequest::tts("x".repeat(70_000))),
        ("input", EngineCoreRequest::tts("x".repeat(5_000))),
        ("voice", EngineCoreRequest::tts(TEXT).with_voice("nobody")),
        ("speed", with(GenerationParams { speed: 9.0, ..default() })),
        ("speed", with(GenerationParams { speed: f32::NAN, ..default() })),
        ("temperature", with(GenerationParams { temperature: f32::INFINITY, ..default() })),
        ("max_tokens", with(GenerationParams { max_tokens: 0, ..default() })),
        ("chunk_samples", EngineCoreRequest::tts(TEXT).with_chunk_samples(0)),
    ];
    for (expected, request) in cases {
        match engine.generate(request).await {
            Err(EngineError::InvalidRequest { param, message }) => assert_eq!(param, expected, "{message}"),
            other => panic!("{expected}: {other:?}"),
        }
    }
    let error = engine.generate(EngineCoreRequest::asr("UklGRg==")).await.unwrap_err();
    assert!(matches!(error, EngineError::UnsupportedTask { task: "asr", .. }));
    let id = RequestId::from("twice");
    engine.pause().unwrap();
    engine.add_request(EngineCoreRequest::tts(TEXT).with_id(id.clone())).await.unwrap();
    let error = engine.add_request(EngineCoreRequest::tts(TEXT).with_id(id)).await.unwrap_err();
    assert!(matches!(error, EngineError::DuplicateId(_)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_paused_engine_keeps_its_requests() {
    let engine = engine(SimulatedModel::default());
    engine.pause().unwrap();
    let call = || {
        let engine = engine.clone();
        tokio::spawn(async move { engine.generate(EngineCoreRequest::tts(TEXT)).await })
    };
    let first = call();
    soon("the first is queued", || engine.status().pending == 1).await;
    let counts = || (engine.status().pending, engine.status().running);
    assert_eq!(counts(), (1, 0));
    assert!(engine.step().await.unwrap().is_empty());
    assert_eq!(counts(), (0, 1));
    let second = call();
    soon("the second is queued", || engine.status().pending == 1).await;
    assert_eq!(engine.status().steps, 1, "a new request does not resume it");
    engine.resume().unwrap();
    for call in [first, second] {
        assert_eq!(call.await.unwrap().unwrap().stats.finish_reason, FinishReason::Stop);
    }
    soon("they are done", || engine.status().running == 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn draining_finishes_the_present_and_refuses_the_new() {
    let (engine, open, _) = gated(EngineCoreConfig::default(), true);
    let (_, mut chunks) = engine.generate_streaming(EngineCoreRequest::tts(TEXT)).await.unwrap();
    // Polled once, the command is sent: it is handled when the first step ends, and seen when the second does.
    let mut draining = std::pin::pin!(engine.drain());
    assert!(futures::poll!(&mut draining).is_pending());
    open.send(()).unwrap();
    open.send(()).unwrap();
    soon("it drains", || engine.status().state == EngineState::Draining).await;
    drop(open);
    let error = engine.generate(EngineCoreRequest::tts(TEXT)).await.unwrap_err();
    assert_eq!(error, EngineError::Draining);
    let mut finished = false;
    while let Some(chunk) = chunks.recv().await {
        finished |= chunk.is_final;
    }
    assert!(finished);
    draining.await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stopping_cancels_what_is_left_and_ends_run() {
    let (engine, open, _) = gated(EngineCoreConfig::default(), true);
    let running = tokio::spawn({
        let engine = engine.clone();
        async move { engine.run().await }
    });
    let call = tokio::spawn({
        let engine = engine.clone();
        async move { engine.generate(EngineCoreRequest::tts(TEXT)).await }
    });
    soon("it runs", || engine.status().pending + engine.status().running == 1).await;
    engine.stop();
    drop(open);
    running.await.unwrap().unwrap();
    assert_eq!(call.await.unwrap().unwrap_err(), EngineError::Aborted);
    assert!(matches!(engine.generate(EngineCoreRequest::tts(TEXT)).await, Err(EngineError::Stopped(_))));
    assert!(engine.drain().await.is_err());
    assert_eq!(engine.status().state, EngineState::Stopped);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_loop_ends_when_nobody_can_reach_it_but_finishes_what_is_heard() {
    let alive = Arc::new(());
    let token = Arc::downgrade(&alive);
    let script = Box::new(move |_: &StepPlan| {
        let _ = &alive;
        None
    });
    let engine = engine(SimulatedModel { script: Some(script), ..Default::default() });
    let (_, mut chunks) = engine.generate_streaming(EngineCoreRequest::tts(TEXT)).await.unwrap();
    drop(engine);
    let mut finished = false;
    while let Some(chunk) = chunks.recv().await {
        finished |= chunk.is_final;
    }
    assert!(finished, "a stream outlives the handle that began it");
    soon("the executor is dropped", || token.upgrade().is_none()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_step_in_flight_delays_an_abort_by_no_more_than_itself() {
    let (engine, open, steps) = gated(EngineCoreConfig::default(), true);
    let id = RequestId::from("to-abort");
    let (_, mut chunks) =
        engine.generate_streaming(EngineCoreRequest::tts(TEXT).with_id(id.clone())).await.unwrap();
    soon("it runs", || engine.status().running + engine.status().pending == 1).await;
    let abort = tokio::spawn({
        let engine = engine.clone();
        async move { engine.abort_request(&id).await }
    });
    tokio::time::sleep(Duration::from_millis(50)).await;
    open.send(()).unwrap();
    assert!(abort.await.unwrap().unwrap());
    let last = chunks.recv().await.unwrap();
    assert_eq!(last.stats.unwrap().finish_reason, FinishReason::Cancelled);
    assert!(steps.load(Ordering::SeqCst) <= 1);
    assert_eq!(engine.check_invariants().await.unwrap(), Ok(()));
    assert_eq!(engine.kv_cache_stats().used_blocks, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_engine_warms_up_before_it_is_ready() {
    let model = SimulatedModel { warm_up_time: Duration::from_millis(200), ..Default::default() };
    let engine = engine(model);
    assert_eq!(engine.status().state, EngineState::Starting);
    let output = engine.generate(EngineCoreRequest::tts(TEXT)).await.unwrap();
    assert_eq!(output.stats.finish_reason, FinishReason::Stop);
    engine.ready().await.unwrap();
}

#[test]
fn an_engine_outside_a_runtime_is_an_error() {
    let config = EngineCoreConfig::default();
    let executor = SimulatedExecutor::new(&config, SimulatedModel::default());
    let error = Engine::with_executor(config, Box::new(executor)).unwrap_err();
    assert!(error.to_string().contains("tokio runtime"));
}

/// A silent recording of `seconds`, as a WAV file.
fn recording(seconds: usize) -> Vec<u8> {
    let spec = hound::WavSpec {
        channels: 1,
        sample_rate: 24_000,
        bits_per_sample: 16,
        sample_format: hound::SampleFormat::Int,
    };
    let mut file = std::io::Cursor::new(Vec::new());
    let mut writer = hound::WavWriter::new(&mut file, spec).unwrap();
    for _ in 0..seconds * 24_000 {
        writer.write_sample(0i16).unwrap();
    }
    writer.finalize().unwrap();
    file.into_inner()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transcript_grows_pass_by_pass_and_is_the_same_whole() {
    let engine = engine(SimulatedModel { transcribes: true, ..Default::default() });
    let whole = engine.generate(EngineCoreRequest::asr(recording(3))).await.unwrap();
    assert_eq!(whole.text.as_deref(), Some("word0 word1 word2"));
    assert_eq!(whole.stats.audio_duration, Duration::from_secs(3));
    assert!(whole.rtf() > 0.0);
    let transcript = whole.transcript.unwrap();
    assert_eq!((transcript.segments.len(), transcript.language.as_deref()), (3, Some("en")));

    let (_, mut pieces) = engine.generate_streaming(EngineCoreRequest::asr(recording(3))).await.unwrap();
    let (mut text, mut segments, mut seen) = (String::new(), Vec::new(), Vec::new());
    while let Some(piece) = pieces.recv().await {
        text.push_str(piece.text.as_deref().unwrap_or_default());
        seen.push((piece.sequence, piece.segments.len(), piece.is_final));
        segments.extend(piece.segments);
    }
    assert_eq!(seen, [(0, 1, false), (1, 1, false), (2, 1, false), (3, 0, true)]);
    assert_eq!((text.as_str(), segments), (" word0 word1 word2", transcript.segments));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn recordings_that_cannot_be_heard_are_refused() {
    let config = EngineCoreConfig { max_audio_duration: Duration::from_secs(2), ..Default::default() };
    let engine = engine_with(config, SimulatedModel { transcribes: true, ..Default::default() });
    for (audio, complaint) in [
        (EngineCoreRequest::asr(""), "audio is empty"),
        (EngineCoreRequest::asr("n*t base64"), "not base64"),
        (EngineCoreRequest::asr(recording(3)), "longer than 2 s"),
        (EngineCoreRequest::asr(recording(0)), "no samples"),
    ] {
        let error = engine.generate(audio).await.unwrap_err().to_string();
        assert!(error.contains(complaint), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn more_audio_than_may_be_open_at_once_is_turned_away_until_some_is_done() {
    let config = EngineCoreConfig {
        max_audio_duration: Duration::from_secs(3),
        memory: MemoryBudget::new(Some(6 * 4 * 24_000)),
        ..Default::default()
    };
    let engine = engine_with(config, SimulatedModel { transcribes: true, ..Default::default() });
    let id = engine.add_request(EngineCoreRequest::asr(recording(3))).await.unwrap();
    let error = engine.add_request(EngineCoreRequest::asr(recording(3))).await.unwrap_err();
    assert!(matches!(error, EngineError::MemoryFull(_)), "{error}");
    engine.add_request(EngineCoreRequest::asr(recording(2))).await.unwrap();
    assert!(engine.abort_request(&id).await.unwrap());
    engine.add_request(EngineCoreRequest::asr(recording(3))).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_runaway_is_cut_and_says_so_whole_and_streamed() {
    let engine = engine(SimulatedModel { watchdog: Some(3), ..Default::default() });
    let whole = engine.generate(EngineCoreRequest::tts(TEXT)).await.unwrap();
    assert_eq!(whole.stats.finish_reason, FinishReason::RunawayTrimmed);
    assert_eq!((whole.stats.generated_tokens, whole.audio.samples.len()), (3, 3 * 1_920));
    let (_, mut chunks) = engine.generate_streaming(EngineCoreRequest::tts(TEXT)).await.unwrap();
    let mut last = None;
    while let Some(chunk) = chunks.recv().await {
        last = chunk.stats;
    }
    assert_eq!(last.unwrap().finish_reason, FinishReason::RunawayTrimmed);
    // One token is where this text ends by itself.
    let short = engine.generate(EngineCoreRequest::tts("x".repeat(23))).await.unwrap();
    assert_eq!(short.stats.finish_reason, FinishReason::Stop);
    assert_eq!(engine.check_invariants().await.unwrap(), Ok(()));
    assert_eq!(engine.kv_cache_stats().used_blocks, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_spoken_over_ends_as_interrupted() {
    let (engine, open, _) = gated(EngineCoreConfig::default(), true);
    let id = RequestId::from("spoken-over");
    let (_, mut chunks) =
        engine.generate_streaming(EngineCoreRequest::tts(TEXT).with_id(id.clone())).await.unwrap();
    soon("it runs", || engine.status().running + engine.status().pending == 1).await;
    let interrupt = tokio::spawn({
        let engine = engine.clone();
        async move { engine.interrupt_request(&id).await }
    });
    tokio::time::sleep(Duration::from_millis(50)).await;
    open.send(()).unwrap();
    assert!(interrupt.await.unwrap().unwrap());
    let mut last = None;
    while let Some(chunk) = chunks.recv().await {
        last = chunk.stats;
    }
    assert_eq!(last.unwrap().finish_reason, FinishReason::Interrupted);
    assert_eq!(engine.kv_cache_stats().used_blocks, 0);
}
