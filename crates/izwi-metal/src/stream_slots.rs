//! Streaming states of the sequences of a network on Metal: slots of one buffer, so that a kernel reaches all of them.
//!
//! A slot holds the last rows of every convolution twice, for a pass to read one half and write the other, and the keys and
//! values of every window. Knows no layer.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use candle_core::{DType, MetalDevice, Result, Tensor, bail};

use crate::conv::copy_elements;
use crate::driver::empty;

/// Slots of a network's first buffer.
const FIRST_SLOTS: usize = 4;

/// The slots of a network, and the buffer that has them.
#[derive(Debug, Clone, Default)]
pub struct StreamSlots(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    buffer: Mutex<Option<Tensor>>, // [slots, elements]
    free: Mutex<Vec<usize>>,
}

/// A slot; free again once it is dropped.
#[derive(Debug)]
pub struct Slot {
    index: usize,
    owner: Arc<Shared>,
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.owner.free.lock().unwrap_or_else(PoisonError::into_inner).push(self.index);
    }
}

/// The buffer during a pass: nobody else moves it.
#[derive(Debug)]
pub struct HeldSlots<'a> {
    slots: &'a StreamSlots,
    buffer: MutexGuard<'a, Option<Tensor>>,
    elements: usize,
}

impl StreamSlots {
    /// Holds the buffer of slots of `elements` f32 each.
    pub fn hold(&self, elements: usize) -> HeldSlots<'_> {
        let buffer = self.0.buffer.lock().unwrap_or_else(PoisonError::into_inner);
        HeldSlots { slots: self, buffer, elements }
    }
}

impl HeldSlots<'_> {
    /// Takes a free slot; its elements are not set.
    ///
    /// # Errors
    /// The device is out of memory.
    pub fn take(&mut self, device: &MetalDevice) -> Result<Arc<Slot>> {
        let owner = &self.slots.0;
        if let Some(index) = owner.free.lock().unwrap_or_else(PoisonError::into_inner).pop() {
            return Ok(Arc::new(Slot { index, owner: Arc::clone(owner) }));
        }
        let old = self.buffer.take();
        let count = old.as_ref().map_or(Ok(0), |old| old.dim(0))?;
        let grown = FIRST_SLOTS.max(2 * count);
        if grown.saturating_mul(self.elements) >= u32::MAX as usize {
            bail!("stream: {grown} states of {} elements are more than a buffer holds", self.elements)
        }
        let new = empty(device, (grown, self.elements.max(1)), DType::F32)?;
        if let Some(old) = old {
            copy_elements([&old, &new], 0, 0, count * self.elements)?;
        }
        *self.buffer = Some(new);
        owner.free.lock().unwrap_or_else(PoisonError::into_inner).extend((count + 1..grown).rev());
        Ok(Arc::new(Slot { index: count, owner: Arc::clone(owner) }))
    }

    /// A free slot with the elements of another.
    ///
    /// # Errors
    /// The device is out of memory.
    pub fn copy(&mut self, device: &MetalDevice, slot: &Slot) -> Result<Arc<Slot>> {
        let copy = self.take(device)?;
        let (from, to) = (self.first(slot)? as usize, self.first(&copy)? as usize);
        copy_elements([self.buffer()?; 2], from, to, self.elements)?;
        Ok(copy)
    }

    /// The first element of a slot.
    ///
    /// # Errors
    /// It is another network's.
    pub fn first(&self, slot: &Slot) -> Result<u32> {
        if !Arc::ptr_eq(&slot.owner, &self.slots.0) {
            bail!("stream: the state belongs to another network")
        }
        Ok((slot.index * self.elements) as u32)
    }

    /// The buffer.
    ///
    /// # Errors
    /// No slot was taken.
    pub fn buffer(&self) -> Result<&Tensor> {
        match &*self.buffer {
            Some(buffer) => Ok(buffer),
            None => bail!("stream: there are no states"),
        }
    }
}
