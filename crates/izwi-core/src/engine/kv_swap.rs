//! Blocks of the KV cache in files: those of conversations, and of prompts that came again. They outlive their place in the
//! pool and the unloading of their model.
//!
//! Knows hashes and bytes; no tensors, queues or sequences.

use std::collections::{BTreeMap, HashSet};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use izwi_hub::BlockCache;
use sha2::{Digest, Sha256};

use super::config::EngineCoreConfig;
use super::executor::ModelExecutor;
use super::kv_cache::BlockHash;
use super::metrics::MetricsCollector;

/// Caches that this process has opened: one that is private can only be read by the process that has its key.
static OPEN: Mutex<BTreeMap<PathBuf, Arc<BlockCache>>> = Mutex::new(BTreeMap::new());

/// The content of a block that is not in the pool.
#[derive(Debug, Clone)]
pub(super) struct SwappedBlock {
    pub(super) hash: BlockHash,
    pub(super) content: Arc<[u8]>,
}

/// The files of one model's blocks.
#[derive(Debug)]
pub(super) struct KvSwap {
    files: Arc<BlockCache>,
    block_bytes: usize,
    /// Hashes of the blocks in the pool, as of the last step.
    resident: RwLock<HashSet<BlockHash>>,
    /// Set once a file could not be written.
    is_full: AtomicBool,
    metrics: MetricsCollector,
}

impl KvSwap {
    /// The files of the executor's model; `None` where the settings or the model allow none. Blocks on the disk.
    pub(super) fn open(
        config: &EngineCoreConfig,
        executor: &dyn ModelExecutor,
        metrics: MetricsCollector,
    ) -> Option<Arc<Self>> {
        let block_bytes = executor.profile().kv_block_bytes;
        if config.kv_swap_mib == 0 || !config.enable_prefix_caching || block_bytes == 0 {
            return None;
        }
        let identity = Sha256::digest(executor.block_identity()?);
        let name: String = identity.iter().take(16).map(|byte| format!("{byte:02x}")).collect();
        let folder = BlockCache::folder(config.home.clone(), &name)?;
        let files =
            open(config.home.clone(), folder, (config.kv_swap_mib as u64) << 20, config.kv_swap_private)?;
        let (resident, is_full) = (RwLock::default(), AtomicBool::new(false));
        Some(Arc::new(Self { files, block_bytes, resident, is_full, metrics }))
    }

    /// Sets the hashes of the blocks in the pool.
    pub(super) fn set_resident(&self, hashes: impl Iterator<Item = BlockHash>) {
        let mut resident = self.resident.write().unwrap_or_else(PoisonError::into_inner);
        resident.clear();
        resident.extend(hashes);
    }

    /// The blocks of a prefix that the pool does not have, as far as they are in files. Blocks on the disk.
    pub(super) fn read(&self, prefix: &[BlockHash]) -> Vec<SwappedBlock> {
        let missing: Vec<BlockHash> = {
            let resident = self.resident.read().unwrap_or_else(PoisonError::into_inner);
            let is_there = |hash: &&BlockHash| resident.contains(*hash) || self.files.has(hash.get());
            let found = prefix.iter().take_while(is_there);
            found.filter(|hash| !resident.contains(*hash)).copied().collect()
        };
        let read = |hash: BlockHash| {
            let content = self.files.read(hash.get())?;
            (content.len() == self.block_bytes).then(|| SwappedBlock { hash, content: content.into() })
        };
        missing.into_iter().map_while(read).collect()
    }

    /// Whether a block is in a file.
    pub(super) fn has(&self, hash: BlockHash) -> bool {
        self.files.has(hash.get())
    }

    /// Whether more can be written.
    pub(super) fn is_writable(&self) -> bool {
        !self.is_full.load(Ordering::Relaxed)
    }

    /// Writes the content of a block. Blocks on the disk. After a failure nothing more is written.
    pub(super) fn write(&self, hash: BlockHash, content: Vec<u8>) {
        match self.files.write(hash.get(), content) {
            Ok(()) => self.metrics.swapped(1, 0, self.files.bytes()),
            Err(error) => {
                self.is_full.store(true, Ordering::Relaxed);
                tracing::warn!(%error, "blocks of the KV cache are no longer saved");
            }
        }
    }

    /// Notes that blocks have returned to the pool.
    pub(super) fn count_restored(&self, blocks: usize) {
        if blocks > 0 {
            self.metrics.swapped(0, blocks, self.files.bytes());
        }
    }
}

fn open(home: Option<PathBuf>, folder: PathBuf, limit: u64, is_private: bool) -> Option<Arc<BlockCache>> {
    let mut caches = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(files) = caches.get(&folder).filter(|files| files.is_private() == is_private) {
        return Some(Arc::clone(files));
    }
    BlockCache::clean(home);
    match BlockCache::open(&folder, limit, is_private) {
        Ok(files) => {
            let files = Arc::new(files);
            caches.insert(folder, Arc::clone(&files));
            Some(files)
        }
        Err(error) => {
            tracing::warn!(%error, "blocks of the KV cache are not saved; make the folder writable, or set kv_swap_mib = 0");
            None
        }
    }
}
