//! Preparation of requests: what a caller that leaves ends.

use std::time::Duration;

use izwi_audio::wav;

use super::executor::simulated::{SimulatedExecutor, SimulatedModel};
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
                    match intake.grow(Duration::from_secs(1)) {
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
async fn open_audio_is_counted_while_it_is_decoded() {
    let limit = Duration::from_secs(5);
    let config =
        EngineCoreConfig { max_audio_duration: limit, max_open_audio_duration: limit, ..Default::default() };
    let engine = listener(config.clone());
    let processor = engine.processor.clone();
    let mut intake = AudioIntake::new(Arc::clone(&engine.open_audio), limit, request::Abandoned::default());
    processor.read(EngineCoreRequest::asr(recording(4)), &mut intake).unwrap();
    assert_eq!(engine.open_audio.available_permits(), 1);
    let mut second = AudioIntake::new(Arc::clone(&engine.open_audio), limit, request::Abandoned::default());
    let refused = processor.read(EngineCoreRequest::asr(recording(2)), &mut second).err();
    assert_eq!(refused, Some(EngineError::AudioOverload { limit }));
    assert_eq!(engine.open_audio.available_permits(), 0, "it was refused at its second second");
    drop((intake, second));
    assert_eq!(engine.open_audio.available_permits(), 5);
}
