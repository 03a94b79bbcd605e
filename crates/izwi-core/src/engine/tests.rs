//! Preparation of requests: what a caller that leaves ends, and the device while a voice is cloned. The engine as a plain
//! scheduler.

mod plain;

use std::time::Duration;

use izwi_audio::wav;

use super::executor::simulated::{SimulatedExecutor, SimulatedModel};
use super::qos::arbiter::TurnRequest;
use super::*;

fn listener(config: EngineCoreConfig) -> Engine {
    let model = SimulatedModel { transcribes: true, sample_rate: 16_000, ..Default::default() };
    let executor = SimulatedExecutor::new(&config, model);
    Engine::with_executor(config, Box::new(executor)).unwrap()
}

fn recording(seconds: usize) -> AudioInput {
    wav::to_bytes(&vec![0.1; seconds * 16_000], 16_000).unwrap().into()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_preparation_ends_when_its_caller_leaves() {
    let engine = listener(EngineCoreConfig { num_threads: 1, ..Default::default() });
    let (begun, begins) = oneshot::channel();
    let (ended, ends) = oneshot::channel();
    let preparing = tokio::spawn({
        let engine = engine.clone();
        async move {
            let work = move |_: &RequestProcessor, mut intake: AudioIntake| {
                begun.send(()).unwrap();
                // As a decoder does between packets.
                let reason = loop {
                    match intake.grow(16_000) {
                        Ok(()) => std::thread::sleep(Duration::from_millis(1)),
                        Err(reason) => break reason,
                    }
                };
                ended.send(reason).unwrap();
                Ok(())
            };
            engine.prepare(work).await
        }
    });
    begins.await.unwrap();
    assert_eq!(engine.preparing.available_permits(), 0);
    preparing.abort();
    let reason = tokio::time::timeout(Duration::from_secs(60), ends).await.unwrap().unwrap();
    assert_eq!(reason, EngineError::Aborted);
    engine.generate(EngineCoreRequest::asr(recording(1))).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn recordings_are_counted_while_they_are_decoded() {
    let second = 4 * 16_000;
    let memory = MemoryBudget::new(Some(5 * second));
    let engine = listener(EngineCoreConfig { memory: memory.clone(), ..Default::default() });
    let processor = engine.processor.clone();
    let intake = || AudioIntake::new(memory.share(), request::Abandoned::default());
    let (mut first, mut other) = (intake(), intake());
    processor.read(EngineCoreRequest::asr(recording(4)), &mut first).unwrap();
    assert_eq!(memory.recordings(), 4 * second);
    let refused = processor.read(EngineCoreRequest::asr(recording(2)), &mut other).err();
    assert_eq!(refused, Some(EngineError::MemoryFull(MemoryFull { room: 5 * second })));
    assert_eq!(memory.recordings(), 5 * second, "it was refused at its second second");
    drop((first, other));
    assert_eq!(memory.recordings(), 0);
}

#[tokio::test]
async fn keywords_of_the_settings_join_those_of_a_request() {
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    let engine = listener(EngineCoreConfig { keywords: words(&["Zemany"]), ..Default::default() });
    let options = TranscriptionOptions { keywords: words(&["Grovent"]), ..Default::default() };
    for (options, expected) in
        [(TranscriptionOptions::default(), words(&["Zemany"])), (options, words(&["Grovent", "Zemany"]))]
    {
        let mut intake = AudioIntake::new(engine.config.memory.share(), request::Abandoned::default());
        let request = EngineCoreRequest::asr(recording(1)).with_transcription(options);
        let (_, input) = engine.processor.read(request, &mut intake).unwrap();
        let izwi_types::Input::Listen(input) = input else { panic!("a recording") };
        assert_eq!(input.options.keywords, expected);
    }
}

/// An engine that is ready, with one place for preparations, and the place of another one on its device.
async fn cloner() -> (Engine, Arc<Member>) {
    let config = EngineCoreConfig { num_threads: 1, ..Default::default() };
    let executor = SimulatedExecutor::new(&config, SimulatedModel::default());
    let arbiter = DeviceArbiter::new();
    let engine = Engine::with_executor_on(config, Box::new(executor), &arbiter).unwrap();
    engine.ready().await.unwrap();
    (engine, arbiter.join())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn recordings_that_are_decoded_keep_neither_a_voice_nor_others_from_the_device() {
    let (engine, other) = cloner().await;
    let (begun, begins) = oneshot::channel();
    let (release, released) = std::sync::mpsc::channel::<()>();
    let decoding = tokio::spawn({
        let engine = engine.clone();
        async move {
            let work = move |_: &RequestProcessor, _| {
                begun.send(()).unwrap();
                released.recv().unwrap();
                Ok(())
            };
            engine.prepare(work).await
        }
    });
    begins.await.unwrap();
    assert_eq!(engine.preparing.available_permits(), 0);
    let cloned = engine.clone_voice(Duration::from_secs(1), |_| Ok("a voice"));
    let cloned = tokio::time::timeout(Duration::from_secs(60), cloned).await.expect("the device is free");
    assert_eq!(cloned, Ok("a voice"));
    let turn = other.turn(TurnRequest::default());
    drop(tokio::time::timeout(Duration::from_secs(60), turn).await.expect("the device is free"));
    release.send(()).unwrap();
    decoding.await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_voice_has_the_device_until_it_is_cloned_also_if_its_caller_leaves() {
    let (engine, other) = cloner().await;
    let (events, mut told) = tokio::sync::mpsc::unbounded_channel();
    let (begun, begins) = oneshot::channel();
    let (release, released) = std::sync::mpsc::channel::<()>();
    let cloning = tokio::spawn({
        let events = events.clone();
        async move {
            let work = move |_: &RequestProcessor| {
                begun.send(()).unwrap();
                released.recv().unwrap();
                events.send("a voice").unwrap();
                Ok(())
            };
            engine.clone_voice(Duration::from_secs(1), work).await
        }
    });
    begins.await.unwrap();
    cloning.abort();
    let next = tokio::spawn(async move {
        let _turn = other.turn(TurnRequest::default()).await;
        events.send("the next step").unwrap();
    });
    // Long enough for a step that does not wait.
    tokio::time::sleep(Duration::from_millis(50)).await;
    release.send(()).unwrap();
    tokio::time::timeout(Duration::from_secs(60), next).await.unwrap().unwrap();
    assert_eq!([told.recv().await, told.recv().await], [Some("a voice"), Some("the next step")]);
}
