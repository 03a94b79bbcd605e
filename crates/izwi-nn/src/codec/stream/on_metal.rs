//! Streaming states on Metal: slots of a buffer, and what kernels need to know of them. Knows no layer.

use std::sync::Arc;

use candle_core::{MetalDevice, Result, bail};

use super::{StreamShape, StreamState, Streams, TailPlace, WindowPlace};
use izwi_metal::window::WindowTable;
use izwi_metal::{HeldSlots, NO_STATE, SequenceTable, Slot};

/// Elements to which the parts of a slot are aligned.
const ALIGN: usize = 4;

/// State of one sequence.
#[derive(Debug, Clone)]
pub(super) struct Kept {
    slot: Arc<Slot>,
    half: usize,           // of the tails, that was written last
    positions: Vec<usize>, // seen, of each window
    bytes: usize,
}

impl Kept {
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn positions(&self, place: WindowPlace) -> usize {
        self.positions.get(place.0).copied().unwrap_or(0)
    }
}

impl StreamShape {
    /// Elements of all tails, and of those before one.
    fn tails_before(&self, place: usize) -> usize {
        let sizes = self.tails.iter().take(place).map(|(rows, channels)| rows * channels);
        sizes.map(|size| size.next_multiple_of(ALIGN)).sum()
    }

    fn windows_before(&self, place: usize) -> usize {
        let sizes = self.windows.iter().take(place).map(|(slots, width)| 2 * slots * width);
        sizes.map(|size| size.next_multiple_of(ALIGN)).sum()
    }

    fn half(&self) -> usize {
        self.tails_before(self.tails.len())
    }

    fn slot_elements(&self) -> usize {
        2 * self.half() + self.windows_before(self.windows.len())
    }
}

/// The buffer during a pass, and where the states of its sequences are.
#[derive(Debug)]
pub(super) struct Held<'a> {
    slots: HeldSlots<'a>,
    shape: &'a StreamShape,
    sequences: Vec<Sequence>,
}

/// First elements of a slot, of the half of tails to read, if any, and of the one to write.
#[derive(Debug, Clone, Copy)]
struct Sequence {
    first: usize,
    read: Option<usize>,
    write: usize,
}

impl<'a> Held<'a> {
    pub(super) fn new(
        shape: &'a StreamShape,
        states: &mut [&mut StreamState],
        device: &MetalDevice,
    ) -> Result<Self> {
        let mut slots = shape.slots.hold(shape.slot_elements());
        let mut sequences = Vec::with_capacity(states.len());
        for state in states {
            let read = match &mut state.on_metal {
                Some(kept) => {
                    slots.first(&kept.slot)?;
                    // A clone of a state shares its slot until one of them continues.
                    if Arc::strong_count(&kept.slot) > 1 {
                        kept.slot = slots.copy(device, &kept.slot)?;
                    }
                    let read = kept.half;
                    kept.half = 1 - read;
                    Some(read)
                }
                None => {
                    let positions = vec![0; shape.windows.len()];
                    let slot = slots.take(device)?;
                    state.on_metal = Some(Kept { slot, half: 0, positions, bytes: shape.bytes() });
                    None
                }
            };
            let Some(kept) = &state.on_metal else { bail!("stream: a state is missing") };
            let first = slots.first(&kept.slot)? as usize;
            let half = |half: usize| first + half * shape.half();
            sequences.push(Sequence { first, read: read.map(half), write: half(kept.half) });
        }
        Ok(Self { slots, shape, sequences })
    }
}

impl Streams<'_> {
    /// The sequences for a convolution of a stride, with the tails of `place`; none off Metal.
    ///
    /// # Errors
    /// There are no states.
    pub(crate) fn sequence_table(
        &self,
        place: Option<TailPlace>,
        stride: usize,
    ) -> Result<Option<SequenceTable>> {
        let Some(held) = &self.on_metal else { return Ok(None) };
        let mut table = SequenceTable::with_state(held.slots.buffer()?);
        for (&rows, sequence) in self.rows.iter().zip(&held.sequences) {
            let at = |half: usize| {
                place.map_or(NO_STATE, |place| (half + held.shape.tails_before(place.0)) as u32)
            };
            let read = sequence.read.map_or(NO_STATE, at);
            table.push([rows, rows.div_ceil(stride)], [read, at(sequence.write)]);
        }
        Ok(Some(table))
    }

    /// The states of an attention layer, whose positions then include the new rows; none off Metal.
    ///
    /// # Errors
    /// There are no states.
    pub(crate) fn window_table(&mut self, place: WindowPlace) -> Result<Option<WindowTable>> {
        let Some(held) = &self.on_metal else { return Ok(None) };
        let Some(&(slots, width)) = held.shape.windows.get(place.0) else {
            bail!("stream: there is no window {}", place.0)
        };
        let before = 2 * held.shape.half() + held.shape.windows_before(place.0);
        let mut sequences = Vec::with_capacity(self.rows.len());
        for ((&rows, sequence), state) in self.rows.iter().zip(&held.sequences).zip(&mut self.states) {
            let Some(positions) = state.on_metal.as_mut().and_then(|kept| kept.positions.get_mut(place.0))
            else {
                bail!("stream: a state is missing")
            };
            sequences.push([rows as u32, (sequence.first + before) as u32, *positions as u32]);
            *positions += rows;
        }
        Ok(Some(WindowTable { state: held.slots.buffer()?.clone(), sequences, slots, width }))
    }
}
