//! Runs a model in this process: weights, physical KV pool, state per sequence.
//!
//! Makes no scheduling decision.

use std::collections::HashMap;
use std::sync::Arc;

use izwi_models::error::WarmUpError;
use izwi_models::model::{BatchEntry, SequenceState, SpeechModel};
use izwi_models::warm_up;
use izwi_nn::Error;
use izwi_nn::device::{self, Device, with_autorelease_pool};
use izwi_nn::kv_pool::KvPool;
fn profile(config: &EngineCoreConfig, model: &dyn SpeechModel, device: &Device) -> ExecutorProfile {
    let info = model.info().clone();
    let geometry = config.geometry();
    let kv_block_bytes = model.kv_layout().map_or(0, |layout| layout.block_bytes(geometry.block_size));
    let states = info.state_bytes * config.running_limit(info.state_bytes);
    ExecutorProfile {
        model: config.model.clone(),
        device: device::name(device),
        precision: weight_precision(config.dtype, device),
        kv_block_bytes,
        memory_bytes: info.weight_bytes + kv_block_bytes * geometry.num_blocks + states,
        step_bytes: model.step_bytes(config.streaming_chunk_size),
        part_times: model.part_times(),
        info,
    }
}
