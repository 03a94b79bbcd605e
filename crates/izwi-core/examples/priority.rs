//! An urgent message overtakes a normal one that came first. Needs the default model.
#![allow(clippy::print_stdout, reason = "an example prints its result")]

use anyhow::Result;
use izwi_core::engine::types::Priority;
use izwi_core::engine::{Engine, EngineCoreConfig, EngineCoreRequest, SchedulingPolicy};

#[tokio::main]
async fn main() -> Result<()> {
    let config = EngineCoreConfig {
        scheduling_policy: SchedulingPolicy::Priority,
        // Otherwise a batch has both.
        max_batch_size: 1,
        ..Default::default()
    };
    let engine = Engine::new(config)?;

    // High priority request (processed first)
    let urgent = EngineCoreRequest::tts("Urgent message!").with_priority(Priority::High);

    // Normal priority
    let normal = EngineCoreRequest::tts("Normal message.").with_priority(Priority::Normal);

    let normal_id = engine.add_request(normal).await?;
    let urgent_id = engine.add_request(urgent).await?; // Will be processed first

    let mut order = Vec::new();
    while order.len() < 2 {
        order.extend(engine.step().await?.into_iter().map(|output| output.request_id));
    }
    anyhow::ensure!(order == [urgent_id, normal_id], "the urgent message did not come first");
    println!("the urgent message came first");
    Ok(())
}
