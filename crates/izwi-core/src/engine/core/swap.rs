//! The way of KV blocks to files while the engine is idle, and back with the requests that need them.
//!
//! Must not know what blocks hold.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until};

use super::EngineCore;
use crate::engine::blocks::BlockId;
use crate::engine::kv_cache::BlockHash;
use crate::engine::kv_swap::{KvSwap, SwappedBlock};

/// An engine that was idle for so long saves blocks.
const SAVE_AFTER: Duration = Duration::from_secs(2);

/// What is on its way.
#[derive(Debug, Default)]
pub(super) struct Swapping {
    files: Option<Arc<KvSwap>>,
    /// Since when no step runs, while there may be blocks to save.
    idle_since: Option<Instant>,
    /// Whether all is saved that the last step left.
    is_saved: bool,
    /// The file that is being written.
    writing: Option<JoinHandle<()>>,
    /// Blocks that the next step fills.
    due: Vec<(BlockHash, BlockId, Arc<[u8]>)>,
    /// Blocks that the step in flight fills.
    in_flight: Vec<(BlockHash, BlockId)>,
}

impl Swapping {
    /// Notes that no step runs.
    pub(super) fn rest(&mut self) {
        if !self.is_saved {
            self.idle_since.get_or_insert_with(Instant::now);
        }
    }

    /// Waits until a block may be saved; for ever where nothing is saved. Cancel-safe.
    pub(super) async fn may_save(&mut self) {
        let Some(since) = self.idle_since.filter(|_| self.files.as_ref().is_some_and(|f| f.is_writable()))
        else {
            return std::future::pending().await;
        };
        sleep_until(since + SAVE_AFTER).await;
        if let Some(writing) = &mut self.writing {
            // A panic in it is reported where it happens; the block is not saved.
            let _ = writing.await;
            self.writing = None;
        }
    }

    /// The content for the next step.
    pub(super) fn launch(&mut self) -> Vec<(BlockId, Arc<[u8]>)> {
        (self.idle_since, self.is_saved) = (None, false);
        let due = std::mem::take(&mut self.due);
        self.in_flight = due.iter().map(|(hash, block, _)| (*hash, *block)).collect();
        due.into_iter().map(|(_, block, content)| (block, content)).collect()
    }
}

impl EngineCore {
    /// Keeps blocks in files, and takes them from there.
    pub(in crate::engine) fn with_swap(mut self, files: Option<Arc<KvSwap>>) -> Self {
        self.swapping.files = files;
        self
    }

    /// Reads the next block that is to be saved, and has it written.
    pub(super) async fn save_block(&mut self) {
        let Some(files) = self.swapping.files.clone() else { return };
        let next = std::iter::from_fn(|| self.kv.next_to_save()).find(|(hash, _)| !files.has(*hash));
        let Some((hash, block)) = next else {
            (self.swapping.idle_since, self.swapping.is_saved) = (None, true);
            return;
        };
        let Some(executor) = self.executor.take() else { return };
        let read = move || {
            let content = executor.read_block(block);
            (executor, content)
        };
        match tokio::task::spawn_blocking(read).await {
            Ok((executor, content)) => {
                self.take_back(executor);
                match content {
                    Ok(content) => {
                        let write = move || files.write(hash, content);
                        self.swapping.writing = Some(tokio::task::spawn_blocking(write));
                    }
                    Err(error) => {
                        tracing::warn!(%error, "blocks of the KV cache are not saved");
                        (self.swapping.idle_since, self.swapping.is_saved) = (None, true);
                    }
                }
            }
            Err(lost) => self.die(&format!("a block could not be read: {lost}; restart the service")),
        }
    }

    /// Gives blocks to the content that came with a request, which the next step writes.
    pub(super) fn restore(&mut self, prefix: &[BlockHash], swapped: Vec<SwappedBlock>) {
        let has = |hash| swapped.iter().any(|block| block.hash == hash);
        let restored = self.kv.restore(prefix, has);
        for SwappedBlock { hash, content } in swapped {
            let found = restored.iter().find(|(of, _)| *of == hash);
            self.swapping.due.extend(found.map(|&(hash, block)| (hash, block, content)));
        }
        if let Some(files) = &self.swapping.files {
            files.count_restored(restored.len());
        }
    }

    /// Forgets the blocks that a step that failed was to fill.
    pub(super) fn forget_restored(&mut self) {
        self.kv.forget_restored(&std::mem::take(&mut self.swapping.in_flight));
    }

    /// Tells what is in the pool.
    pub(super) fn publish_resident(&mut self) {
        if let Some(files) = &self.swapping.files
            && let Some(hashes) = self.kv.changed_hashes()
        {
            files.set_resident(hashes);
        }
    }
}
