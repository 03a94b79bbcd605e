//! Buffers of temporaries, kept for those that come next. candle's own pool drops all that are free at each read, and each
//! dropped or new one is a commit of the set of resident buffers. Knows no tensor.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

use candle_core::metal_backend::DeviceId;
use candle_core::{DType, MetalDevice, Result};
use candle_metal_kernels::metal::Buffer;

/// Bytes of the largest one; those of encoders and of whole sentences are larger, and few.
const LARGEST: usize = 1 << 20;
/// Bytes that a device keeps, at most.
const MOST: usize = 64 << 20;
/// Buffers of one size, at most.
const MOST_OF_A_SIZE: usize = 128;

/// Those of a device, by size.
#[derive(Default)]
struct Scratch {
    buffers: HashMap<usize, Vec<Arc<Buffer>>>,
    bytes: usize,
}

fn devices() -> MutexGuard<'static, HashMap<DeviceId, Scratch>> {
    static DEVICES: LazyLock<Mutex<HashMap<DeviceId, Scratch>>> = LazyLock::new(Mutex::default);
    DEVICES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A buffer of at least `bytes` that nobody else holds; `None` where candle's pool is to serve. Commands that were encoded
/// before may still use it: those encoded later run after them.
///
/// # Errors
/// The device is out of memory.
pub(crate) fn take(device: &MetalDevice, bytes: usize) -> Result<Option<Arc<Buffer>>> {
    let size = bytes.next_power_of_two().max(256);
    if size > LARGEST {
        return Ok(None);
    }
    let mut devices = devices();
    let scratch = devices.entry(device.id()).or_default();
    let of_size = scratch.buffers.entry(size).or_default();
    if let Some(free) = of_size.iter().find(|buffer| Arc::strong_count(buffer) == 1) {
        return Ok(Some(Arc::clone(free)));
    }
    if of_size.len() == MOST_OF_A_SIZE || scratch.bytes + size > MOST {
        return Ok(None);
    }
    let buffer = device.new_private_buffer(size, DType::U8, "scratch")?;
    of_size.push(Arc::clone(&buffer));
    scratch.bytes += size;
    Ok(Some(buffer))
}

/// Frees those that nobody holds. Called after a wait.
pub(crate) fn free(device: &MetalDevice) {
    let mut devices = devices();
    let Some(scratch) = devices.get_mut(&device.id()) else { return };
    let mut unused = Vec::new();
    for (size, buffers) in &mut scratch.buffers {
        let free = buffers.extract_if(.., |buffer| Arc::strong_count(buffer) == 1).collect::<Vec<_>>();
        scratch.bytes -= size * free.len();
        unused.extend(free);
    }
    device.unregister_buffers(unused.iter().map(|buffer| &**buffer));
}
