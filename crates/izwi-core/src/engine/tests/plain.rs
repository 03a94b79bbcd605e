//! The engine without quality of service: a plain scheduler, in virtual time.

use super::*;
use crate::engine::core::EngineCore;
use crate::engine::executor::simulated::CostCurve;
use crate::engine::metrics::MetricsCollector;
use crate::engine::qos::arbiter::TurnRequest;
use crate::engine::qos::cost::StepShape;
use crate::engine::qos::{Event, Outlook, Qos, Start};
use crate::engine::request::PreparedRequest;
use crate::engine::scheduler::{ScheduleResult, Scheduler};
use crate::engine::sequences::Sequences;

/// Everything may start, and steps have no budget.
struct Unlimited(Arc<Member>);

impl Qos for Unlimited {
    fn device(&self) -> Arc<Member> {
        Arc::clone(&self.0)
    }

    fn may_start(&mut self, _: &PreparedRequest, _: Instant, _: &Sequences) -> Result<Option<Start>> {
        Ok(None)
    }

    fn budget(&mut self, _: &mut Scheduler, _: &Sequences) {}

    fn turn(&mut self, _: &ScheduleResult, _: &Scheduler) -> TurnRequest {
        TurnRequest::default()
    }

    fn observe(&mut self, _: Event<'_>, _: &mut Scheduler, _: &mut Sequences) {}

    fn next_pause(&self, _: &Sequences) -> Option<Instant> {
        None
    }

    fn outlook(&self, _: &Scheduler, _: &Sequences) -> Outlook {
        Outlook::default()
    }

    fn learned(&self) -> (CostModel, StreamRate) {
        (CostModel::default(), StreamRate { step: StepShape::decode(1), audio_s: 0.0 })
    }
}

/// 20 ms a step, and 15 ms for each of up to eight sequences in it: eight take 140 ms for frames of 80 ms.
fn speaker() -> SimulatedModel {
    let ms = Duration::from_millis;
    let generating = (1..=8).map(|count| ms(15 * count)).collect();
    let cost = CostCurve { fixed: ms(20), generating, ..CostCurve::default() };
    SimulatedModel { length: |text, _| text.len(), cost: Some(cost), ..Default::default() }
}

fn plain(config: EngineCoreConfig) -> Engine {
    let executor = Box::new(SimulatedExecutor::new(&config, speaker()));
    let (config, profile) = (Arc::new(config), executor.profile());
    let processor = RequestProcessor::new(Arc::clone(&config), Arc::clone(&profile), executor.preparer());
    let device = DeviceArbiter::new().join();
    let (metrics, qos) = (MetricsCollector::new(&profile.model), Unlimited(Arc::clone(&device)));
    let (engine, (receiver, publish)) = Engine::handle(config, profile, processor, device, Place::Device);
    let config = Arc::clone(&engine.config);
    let core = EngineCore::new(config, executor, Box::new(qos), Instant::now(), metrics, publish);
    tokio::spawn(core.run(receiver));
    engine
}

fn request(number: usize) -> EngineCoreRequest {
    let params = GenerationParams { seed: Some(7), ..GenerationParams::default() };
    EngineCoreRequest::tts("x".repeat(40 + number)).with_params(params)
}

/// What one of several listeners at once gets: its samples and how it ended.
async fn listen(engine: &Engine, number: usize) -> Result<(Vec<f32>, FinishReason)> {
    let (_, mut chunks) = engine.generate_streaming(request(number)).await?;
    let (mut samples, mut reason) = (Vec::new(), FinishReason::Error);
    while let Some(chunk) = chunks.recv().await {
        assert_eq!(chunk.prediction, None, "nothing is promised");
        samples.extend(chunk.samples);
        reason = chunk.stats.map_or(reason, |stats| stats.finish_reason);
    }
    Ok((samples, reason))
}

#[tokio::test(start_paused = true)]
async fn without_quality_of_service_all_start_and_hear_what_they_hear_alone() {
    let engine = plain(EngineCoreConfig { max_running_requests: 64, ..Default::default() });
    engine.ready().await.unwrap();
    let heard = futures::future::join_all((0..32).map(|number| listen(&engine, number))).await;
    for (number, heard) in heard.into_iter().enumerate() {
        let alone = engine.generate(request(number)).await.unwrap();
        let (samples, reason) = heard.unwrap();
        assert_eq!(reason, FinishReason::Stop);
        assert!(samples == alone.audio.samples, "stream {number} was disturbed");
    }
    assert_eq!(engine.status().outlook.refuses_until, None);
    assert_eq!(engine.check_invariants().await.unwrap(), Ok(()));
}
