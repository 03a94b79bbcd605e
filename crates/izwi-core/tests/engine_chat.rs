//! Conversations through an engine: the history continues from turn to turn, and cached positions are not recomputed.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::time::Duration;

use izwi_core::engine::executor::simulated::{SimulatedExecutor, SimulatedModel};
use izwi_core::engine::{
    ChatOptions, Conversation, Emission, Engine, EngineCoreConfig, EngineCoreRequest, EngineError,
    EngineOutput, FinishReason, GenerationParams, MemoryBudget, Message, Task, Turn,
};

const BLOCK: usize = 4;
const FRAME: usize = 30;

fn config() -> EngineCoreConfig {
    EngineCoreConfig { block_size: BLOCK, max_blocks: 200, max_seq_len: 700, ..Default::default() }
}

fn engine_with(config: EngineCoreConfig, model: SimulatedModel) -> Engine {
    let executor = SimulatedExecutor::new(&config, model);
    Engine::with_executor(config, Box::new(executor)).unwrap()
}

fn conversing() -> SimulatedModel {
    SimulatedModel { chats: true, samples_per_token: FRAME, ..Default::default() }
}

fn request(conversation: &Conversation) -> EngineCoreRequest {
    let params = GenerationParams { seed: Some(3), ..Default::default() };
    EngineCoreRequest::converse(conversation.clone()).with_params(params)
}

fn text(text: &str) -> Vec<Message> {
    vec![Message::Text(text.to_owned())]
}

/// A tone of `seconds` at a rate that no model takes, as a WAV file.
fn tone(seconds: f32) -> Vec<u8> {
    let samples: Vec<f32> = (0..(seconds * 48_000.0) as usize).map(|at| (at as f32 * 0.02).sin()).collect();
    izwi_audio::wav::to_bytes(&samples, 48_000).unwrap()
}

/// One turn, entered into the conversation.
async fn answer(engine: &Engine, conversation: &mut Conversation, messages: Vec<Message>) -> EngineOutput {
    conversation.ask(messages);
    let output = engine.generate(request(conversation)).await.unwrap();
    conversation.answer(output.emissions.clone(), output.stats.prompt_tokens);
    output
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_later_turn_computes_only_what_is_new_and_says_the_same() {
    let engine = engine_with(config(), conversing());
    let plain = engine_with(EngineCoreConfig { enable_prefix_caching: false, ..config() }, conversing());
    let samples = engine.decode_message(tone(1.5).into()).await.unwrap();
    assert_eq!(samples.len(), 24_000, "at the model's input rate");
    let (mut kept, mut anew) = (Conversation::new(), Conversation::new());
    let mut known = 0;
    for messages in [vec![Message::Recording(samples)], text("And then?"), text("Tell me more of it.")] {
        let before = engine.status().kv;
        let first = answer(&engine, &mut kept, messages.clone()).await;
        let second = answer(&plain, &mut anew, messages).await;
        assert_eq!((first.task_type, first.stats.finish_reason), (Task::Chat, FinishReason::Stop));
        assert_eq!((&first.audio, &first.text), (&second.audio, &second.text));
        assert_eq!(first.emissions, second.emissions);
        let frames = first.emissions.iter().filter(|emission| matches!(emission, Emission::Frame(_))).count();
        assert_eq!(first.audio.samples.len(), frames * FRAME);
        assert_eq!(first.stats.audio_duration, first.audio.duration(), "of the generated audio");

        let now = engine.status().kv;
        let hits = (now.prefix_hits - before.prefix_hits) as usize;
        // All blocks that prompt and answer of the turn before filled; the last generated position was never computed.
        assert_eq!(hits, known / BLOCK, "of {known} positions");
        known = first.stats.prompt_tokens + first.emissions.len() - 1;
    }
    assert_eq!(plain.status().kv.prefix_hits, 0);
    assert_eq!(engine.check_invariants().await.unwrap(), Ok(()));
    assert_eq!(engine.status().kv.used_blocks, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_handed_over_when_it_was_broken_off_is_what_the_next_turn_goes_on_from() {
    let slow = SimulatedModel { step_time: Duration::from_millis(2), ..conversing() };
    let engine = engine_with(config(), slow);
    let mut conversation = Conversation::new();
    conversation.ask(text(&"a long question, ".repeat(12)));
    let (id, mut chunks) =
        engine.generate_streaming(request(&conversation).with_chunk_samples(2 * FRAME)).await.unwrap();
    let (mut emissions, mut samples) = (Vec::new(), 0);
    while emissions.len() < 12 {
        let chunk = chunks.recv().await.unwrap();
        samples += chunk.samples.len();
        emissions.extend(chunk.emissions);
        let frames = emissions.iter().filter(|emission| matches!(emission, Emission::Frame(_))).count();
        assert!(frames * FRAME <= samples, "{frames} frames in {samples} samples");
    }
    assert!(engine.interrupt_request(&id).await.unwrap());
    let last = loop {
        let chunk = chunks.recv().await.unwrap();
        if chunk.is_final {
            break chunk;
        }
    };
    let stats = last.stats.unwrap();
    assert_eq!(stats.finish_reason, FinishReason::Interrupted);
    let count = emissions.len();
    conversation.answer(emissions.clone(), stats.prompt_tokens);

    let hits = engine.status().kv.prefix_hits;
    let next = answer(&engine, &mut conversation, text("Wait!")).await;
    let reused = (engine.status().kv.prefix_hits - hits) as usize * BLOCK;
    let known = stats.prompt_tokens + count;
    assert!(reused > known - 2 * BLOCK && reused <= known, "{reused} of {known}");
    assert_eq!(conversation.turns()[1], Turn::Model(emissions.into()));
    let plain = engine_with(EngineCoreConfig { enable_prefix_caching: false, ..config() }, conversing());
    let mut again = Conversation::new();
    again.ask(text(&"a long question, ".repeat(12)));
    let Turn::Model(first) = &conversation.turns()[1] else { panic!("the model's turn") };
    again.answer(first.to_vec(), stats.prompt_tokens);
    assert_eq!(answer(&plain, &mut again, text("Wait!")).await.emissions, next.emissions);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn conversations_that_share_too_few_blocks_are_as_if_alone() {
    let tight =
        EngineCoreConfig { max_blocks: 44, chunked_prefill_threshold: 9, admission_lookahead: 0, ..config() };
    // Steps take a time, so that the conversations are answered side by side.
    let slow = SimulatedModel { step_time: Duration::from_millis(1), ..conversing() };
    let engine = engine_with(tight, slow);
    let talks = (0..6usize).map(|talk| {
        let engine = engine.clone();
        async move {
            let alone =
                engine_with(EngineCoreConfig { enable_prefix_caching: false, ..config() }, conversing());
            let (mut among, mut quiet) = (Conversation::new(), Conversation::new());
            for turn in 0..3 {
                let messages = text(&"word ".repeat(1 + (talk + turn) % 4));
                let first = answer(&engine, &mut among, messages.clone()).await;
                let second = answer(&alone, &mut quiet, messages).await;
                assert_eq!(first.emissions, second.emissions, "talk {talk}, turn {turn}");
            }
        }
    });
    futures::future::join_all(talks).await;
    assert!(engine.status().preemptions > 0, "no sequence was preempted");
    assert_eq!(engine.check_invariants().await.unwrap(), Ok(()));
    assert_eq!(engine.status().kv.used_blocks, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn turns_that_cannot_be_taken_are_refused_by_field() {
    let limited =
        EngineCoreConfig { max_turn_duration: Duration::from_secs(2), max_conversation_turns: 2, ..config() };
    let engine = engine_with(limited, conversing());
    let refused = async |request: EngineCoreRequest| match engine.generate(request).await {
        Err(EngineError::InvalidRequest { param, .. }) => param,
        other => panic!("{other:?}"),
    };
    assert_eq!(refused(EngineCoreRequest::audio_chat(None, Some("  ".to_owned()))).await, "input");
    let mut conversation = Conversation::new();
    for turn in ["a", "b", "c"] {
        assert_eq!(refused(request(&conversation)).await, "input", "no user turn");
        answer(&engine, &mut conversation, text(turn)).await;
    }
    conversation.ask(text("d"));
    assert_eq!(refused(request(&conversation)).await, "conversation");
    assert_eq!(conversation.truncate(engine.config().conversation_limits()), 2);
    engine.generate(request(&conversation)).await.unwrap();
    let chat = ChatOptions { text_temperature: Some(-1.0), conversation, ..ChatOptions::default() };
    assert_eq!(refused(EngineCoreRequest::audio_chat(None, None).with_chat(chat)).await, "text_temperature");

    assert!(engine.decode_message(tone(2.5).into()).await.is_err(), "too long");
    let mute = engine_with(config(), SimulatedModel::default());
    let error = mute.generate(EngineCoreRequest::audio_chat(None, Some("hi".to_owned()))).await.unwrap_err();
    assert!(matches!(error, EngineError::UnsupportedTask { task: "chat", .. }), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn recordings_of_all_conversations_together_are_limited() {
    let limits = EngineCoreConfig { memory: MemoryBudget::new(Some(4 * 4 * 16_000)), ..config() };
    let engine = engine_with(limits, conversing());
    let mut conversation = Conversation::new();
    for _ in 0..2 {
        conversation.ask(vec![Message::Recording(engine.decode_message(tone(1.9).into()).await.unwrap())]);
    }
    let refused = engine.decode_message(tone(1.0).into()).await.unwrap_err();
    assert!(matches!(refused, EngineError::MemoryFull(_)), "{refused}");
    drop(conversation);
    engine.decode_message(tone(1.0).into()).await.unwrap();
}
