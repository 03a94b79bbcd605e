//! What a program asked of the emulated GPU since the last reset, counted while it encodes. Knows nothing of execution.
//!
//! The counters belong to the process: a test that reads them runs in a process of its own, as under nextest.
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, Once};

macro_rules! counters { ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
    #[derive(Clone, Copy)]
    #[allow(non_camel_case_types)]
    pub(crate) enum Counter { $($name),* }
    const NAMES: &[&str] = &[$(stringify!($name)),*];
    /// The counters since the last [`reset`].
    #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
    pub struct Counts { $($(#[$doc])* pub $name: u64),* }
    /// The counters since the last [`reset`].
    pub fn counts() -> Counts {
        Counts { $($name: VALUES[Counter::$name as usize].load(Relaxed)),* }
    }
} }
counters!(
    /// Launches of a kernel.
    dispatches,
    /// Threads of all launches.
    threads,
    /// Bytes of the buffers that launches have bound, from each offset to the buffer's end: an upper bound of what they
    /// read and write once.
    bound_bytes,
    /// Arguments given inline.
    set_bytes,
    /// Their bytes.
    set_bytes_bytes,
    /// Copies of blit encoders.
    copies,
    /// Their bytes.
    copy_bytes,
    /// Fills of blit encoders.
    fills,
    /// Their bytes.
    fill_bytes,
    /// Buffers made without data: those that candle's pool did not have.
    buffers,
    /// Their bytes.
    buffer_bytes,
    /// Buffers made of data, which candle's pool never serves.
    uploads,
    /// Their bytes.
    upload_bytes,
    /// Buffers whose memory the CPU asked for.
    contents,
    /// Command buffers made.
    command_buffers,
    /// Command buffers committed.
    commits,
    /// Of these, those with no work in them.
    empty_commits,
    /// Waits for a command buffer that was not complete.
    waits,
    /// Compute encoders made.
    compute_encoders,
    /// Blit encoders made.
    blit_encoders,
    /// Barriers between dispatches.
    barriers,
    /// Waits for fences, at most: here nothing completes before it is waited for.
    fence_waits,
    /// Pipelines made.
    pipelines,
    /// Libraries compiled from source.
    libraries,
    /// Command buffers and encoders made outside of an autorelease pool: each is memory that a Mac never gets back.
    outside_pools,
);
static VALUES: [AtomicU64; NAMES.len()] = [const { AtomicU64::new(0) }; NAMES.len()];
static KERNELS: Mutex<BTreeMap<String, KernelCounts>> = Mutex::new(BTreeMap::new());
static ALLOCATED: AtomicU64 = AtomicU64::new(0);
static PEAK: AtomicU64 = AtomicU64::new(0);
static AT_EXIT: Once = Once::new();

/// What was asked of one kernel.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct KernelCounts {
    /// Launches.
    pub dispatches: u64,
    /// Threads of all launches.
    pub threads: u64,
    /// As in [`Counts`].
    pub bound_bytes: u64,
}

/// The kernels that were launched since the last [`reset`], by name.
pub fn kernels() -> BTreeMap<String, KernelCounts> {
    KERNELS.lock().unwrap_or_else(|e| e.into_inner()).clone()
}
/// Bytes of the buffers that exist now.
pub fn allocated_bytes() -> u64 {
    ALLOCATED.load(Relaxed)
}
/// The most bytes of buffers that existed at once since the last [`reset`].
pub fn peak_bytes() -> u64 {
    PEAK.load(Relaxed)
}
/// Sets the counters to zero and the peak to what is allocated now.
pub fn reset() {
    for v in &VALUES {
        v.store(0, Relaxed);
    }
    PEAK.store(allocated_bytes(), Relaxed);
    KERNELS.lock().unwrap_or_else(|e| e.into_inner()).clear();
}
/// A line for each counter that is not zero, then one for each kernel, most launches first.
pub fn text(label: &str) -> String {
    let mut s = format!("== {label}\n");
    for (n, v) in NAMES.iter().zip(&VALUES) {
        let v = v.load(Relaxed);
        if v > 0 {
            s += &format!("{n} {v}\n");
        }
    }
    let kernels = kernels();
    let mut kernels: Vec<_> = kernels.iter().collect();
    kernels.sort_by_key(|(_, counts)| std::cmp::Reverse(counts.dispatches));
    for (name, k) in kernels {
        s += &format!(
            "  kernel {name} {} ({} threads, {} bytes bound)\n",
            k.dispatches, k.threads, k.bound_bytes
        );
    }
    s
}
/// Appends the counters to the file that EMU_COUNTERS names, or writes them to standard error.
pub fn dump(label: &str) {
    use std::io::Write;
    let t = text(label);
    match std::env::var_os("EMU_COUNTERS") {
        Some(path) => {
            let file = std::fs::OpenOptions::new().create(true).append(true).open(path);
            let _ = file.and_then(|mut f| f.write_all(t.as_bytes()));
        }
        None => eprint!("{t}"),
    }
}

pub(crate) fn add(c: Counter, n: usize) {
    VALUES[c as usize].fetch_add(n as u64, Relaxed);
}
pub(crate) fn kernel(name: &str, threads: usize, bytes: usize) {
    add(Counter::dispatches, 1);
    add(Counter::threads, threads);
    add(Counter::bound_bytes, bytes);
    let mut kernels = KERNELS.lock().unwrap_or_else(|e| e.into_inner());
    let counts = kernels.entry(name.to_owned()).or_default();
    counts.dispatches += 1;
    counts.threads += threads as u64;
    counts.bound_bytes += bytes as u64;
}
/// A command buffer or an encoder was made; on a Mac the thread's autorelease pool owns it.
pub(crate) fn autoreleased() {
    if objc2::rc::pool_depth() == 0 {
        add(Counter::outside_pools, 1);
    }
}
pub(crate) fn allocated(bytes: usize) {
    let now = ALLOCATED.fetch_add(bytes as u64, Relaxed) + bytes as u64;
    PEAK.fetch_max(now, Relaxed);
}
pub(crate) fn freed(bytes: usize) {
    ALLOCATED.fetch_sub(bytes as u64, Relaxed);
}
extern "C" {
    fn atexit(f: extern "C" fn()) -> i32;
}
extern "C" fn at_exit() {
    dump("exit");
}
/// Called when the device is made: with EMU_COUNTERS the totals are written when the process ends.
pub(crate) fn start() {
    if std::env::var_os("EMU_COUNTERS").is_some() {
        AT_EXIT.call_once(|| unsafe {
            atexit(at_exit);
        });
    }
}
