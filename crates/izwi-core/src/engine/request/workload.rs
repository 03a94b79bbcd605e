//! Prepared work in the form of the scheduler.
//!
//! Must not know inputs or clients.

use std::sync::Arc;

use izwi_types::Work;

use crate::engine::config::EngineCoreConfig;
use crate::engine::error::{EngineError, Result};
use crate::engine::kv_cache::PrefixChain;
use crate::engine::scheduler::Workload;

/// The scheduler's form of prepared work, and the number of its prompt tokens. Limits `max_tokens` to the capacity of a
/// sequence.
///
/// # Errors
/// The work exceeds the configured limits.
pub(in crate::engine) fn workload(
    config: &EngineCoreConfig,
    work: &Work,
    max_tokens: usize,
) -> Result<(Workload, usize)> {
    match work {
        Work::Units(units) | Work::Encoder(units) => {
            let budget = config.max_tokens_per_step;
            if units.is_empty() || units.iter().any(|&unit| unit == 0 || unit > budget) {
                let message =
                    format!("input cannot be split into units of at most {budget} tokens; shorten it");
                return Err(EngineError::invalid("input", message));
            }
            let units = Arc::clone(units);
            Ok(match work {
                Work::Encoder(_) => (Workload::Encoder(units), 0),
                _ => (Workload::Units(Arc::clone(&units)), units.iter().sum()),
            })
        }
        &Work::Chunks { chunk, longest } => {
            let budget = config.max_tokens_per_step;
            if chunk == 0 || longest < chunk || longest > budget {
                let message = format!("a chunk of {chunk} tokens does not fit a step of {budget}");
                return Err(EngineError::invalid("chunk_ms", message));
            }
            Ok((Workload::Chunks { chunk, longest }, 0))
        }
        Work::Autoregressive { prompt, encoders, branches } => {
            let capacity = config.sequence_capacity(true);
            let prompt_tokens = prompt.len();
            if prompt_tokens == 0 || prompt_tokens >= capacity {
                let message = format!("input has {prompt_tokens} tokens; it must have 1 to {}", capacity - 1);
                return Err(EngineError::invalid("input", message));
            }
            if !(1..=config.max_tokens_per_step).contains(branches) {
                let message = format!(
                    "a search has {branches} branches, a step at most {} tokens; lower it",
                    config.max_tokens_per_step
                );
                return Err(EngineError::invalid("beam_size", message));
            }
            if !config.enable_chunked_prefill && prompt_tokens > config.max_tokens_per_step {
                let message = format!(
                    "input has {prompt_tokens} tokens, a step has at most {}; shorten it or enable chunked prefill",
                    config.max_tokens_per_step
                );
                return Err(EngineError::invalid("input", message));
            }
            let work = Workload::Autoregressive {
                prompt_tokens,
                max_tokens: max_tokens.min(capacity - prompt_tokens),
                encoders: Arc::clone(encoders),
                prefix: Arc::new(PrefixChain::of(prompt, config.block_size)),
                branches: *branches,
            };
            Ok((work, prompt_tokens))
        }
    }
}
