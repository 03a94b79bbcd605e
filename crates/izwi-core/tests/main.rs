//! The engine through its public interface, one module for each subject.

// Says to the lints that all of this is test code.
#![cfg(test)]

mod disturbed;
mod engine_admission;
mod engine_chat;
mod engine_devices;
mod engine_diarization;
mod engine_failures;
mod engine_loop;
mod engine_markup;
mod engine_notes;
mod engine_pauses;
mod engine_replicas;
mod engine_simulation;
mod engine_text;
mod engine_turns;
mod engine_virtual_time;
mod engine_voices;
mod examples;
mod real_voice;

use std::time::Duration;

use izwi_core::engine::{Engine, Placement, ReplicaStatus};

/// Waits until `condition` holds.
async fn soon(what: &str, condition: impl Fn() -> bool) {
    for _ in 0..2_000 {
        if condition() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("never: {what}");
}

/// The replicas of an engine on several devices.
fn states(engine: &Engine) -> Vec<ReplicaStatus> {
    match engine.placement() {
        Placement::Replicated(replicas) => replicas,
        other => panic!("{other:?}"),
    }
}
