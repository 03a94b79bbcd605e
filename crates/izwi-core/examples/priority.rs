//! An urgent message overtakes a normal one that came first. Needs the default model.

use izwi_core::engine::{Engine, EngineCoreConfig, EngineCoreRequest, Priority, SchedulingPolicy};

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let config = EngineCoreConfig {
        scheduling_policy: SchedulingPolicy::Priority,
        max_batch_size: 1,
        ..EngineCoreConfig::default()
    };
    let engine = Engine::new(config)?;

    let normal = EngineCoreRequest::tts("Normal message.").with_priority(Priority::Normal);
    let urgent = EngineCoreRequest::tts("Urgent message!").with_priority(Priority::High);
    let normal_id = engine.add_request(normal).await?;
    let urgent_id = engine.add_request(urgent).await?;

    let mut order = Vec::new();
    while order.len() < 2 {
        order.extend(engine.step().await?.into_iter().map(|output| output.request_id));
    }
    anyhow::ensure!(order == [urgent_id, normal_id], "the urgent message did not come first");
    print("the urgent message came first");
    Ok(())
}

#[allow(clippy::print_stdout, reason = "an example prints its result")]
fn print(line: &str) {
    println!("{line}");
}
