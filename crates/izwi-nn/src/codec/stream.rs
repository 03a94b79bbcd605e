//! Streaming state of sequences between chunks, and a pass over a chunk of each. Knows no layer.

use candle_core::{DType, Device, Result, Tensor, bail};

use crate::attention::window::WindowKv;
use izwi_metal::{StreamSlots, metal_device};

mod attention;
mod on_metal;

pub use attention::{MixedHeads, attend_whole};

/// Layout of a network's streaming state; each layer allocates its slot when it is loaded.
#[derive(Debug, Clone, Default)]
pub struct StreamShape {
    tails: Vec<(usize, usize)>,   // rows, channels
    windows: Vec<(usize, usize)>, // slots, width
    slots: StreamSlots,
}

/// Slot of a convolution's last input rows.
#[derive(Debug, Clone, Copy)]
pub struct TailPlace(usize);

/// Slot of an attention layer's keys and values.
#[derive(Debug, Clone, Copy)]
pub struct WindowPlace(usize);

impl StreamShape {
    /// Allocates a slot for the last `rows` rows of `channels`.
    pub fn tail(&mut self, rows: usize, channels: usize) -> TailPlace {
        self.tails.push((rows, channels));
        TailPlace(self.tails.len() - 1)
    }

    /// Allocates a slot for keys and values of `width` over a window of positions, the newest included.
    pub fn window(&mut self, window: usize, width: usize) -> WindowPlace {
        self.windows.push((window.saturating_sub(1), width));
        WindowPlace(self.windows.len() - 1)
    }

    /// Bytes of one sequence's state.
    pub fn bytes(&self) -> usize {
        let tails: usize = self.tails.iter().map(|(rows, channels)| rows * channels).sum();
        let windows: usize = self.windows.iter().map(|(slots, width)| 2 * slots * width).sum();
        (tails + windows) * size_of::<f32>()
    }
}

/// Streaming state of one sequence; empty until its first chunk.
#[derive(Debug, Clone, Default)]
pub struct StreamState {
    tails: Vec<Tensor>,
    windows: Vec<WindowKv>,
    on_metal: Option<on_metal::Kept>,
}

impl StreamState {
    /// Bytes held.
    pub fn bytes(&self) -> usize {
        if let Some(kept) = &self.on_metal {
            return kept.bytes();
        }
        let tails: usize = self.tails.iter().map(Tensor::elem_count).sum();
        tails * size_of::<f32>() + self.windows.iter().map(WindowKv::bytes).sum::<usize>()
    }

    fn prepare(&mut self, shape: &StreamShape, device: &Device) -> Result<()> {
        if self.tails.len() == shape.tails.len() && self.windows.len() == shape.windows.len() {
            return Ok(());
        }
        if !self.tails.is_empty() || !self.windows.is_empty() {
            bail!("stream: the state belongs to another network")
        }
        let tail = |&(rows, channels)| Tensor::zeros((rows, channels), DType::F32, device);
        self.tails = shape.tails.iter().map(tail).collect::<Result<_>>()?;
        let window = |&(slots, width)| WindowKv::new(slots, width, device);
        self.windows = shape.windows.iter().map(window).collect::<Result<_>>()?;
        Ok(())
    }

    /// Positions that an attention layer has seen.
    fn positions(&self, place: WindowPlace) -> usize {
        if let Some(kept) = &self.on_metal {
            return kept.positions(place);
        }
        self.windows.get(place.0).map_or(0, WindowKv::positions)
    }
}

/// One pass over new rows of several sequences. Layers read and replace their share of each state; after an error the
/// states are undefined and must be dropped.
#[derive(Debug)]
pub struct Streams<'a> {
    states: Vec<&'a mut StreamState>,
    rows: Vec<usize>,
    taps: Option<Vec<(String, Tensor)>>,
    on_metal: Option<on_metal::Held<'a>>,
}

impl<'a> Streams<'a> {
    /// A pass over `rows[i]` new rows of the `i`-th sequence.
    ///
    /// # Errors
    /// The device is out of memory, or a state is of another network.
    pub fn new(
        shape: &'a StreamShape,
        mut states: Vec<&'a mut StreamState>,
        rows: Vec<usize>,
        device: &Device,
    ) -> Result<Self> {
        if states.len() != rows.len() || rows.contains(&0) {
            bail!("stream: {} states for chunks of {rows:?} rows", states.len())
        }
        if let Some(device) = metal_device(device) {
            let held = on_metal::Held::new(shape, &mut states, device)?;
            return Ok(Self { states, rows, taps: None, on_metal: Some(held) });
        }
        for state in &mut states {
            state.prepare(shape, device)?;
        }
        Ok(Self { states, rows, taps: None, on_metal: None })
    }

    /// New rows of each sequence.
    pub fn rows(&self) -> &[usize] {
        &self.rows
    }

    /// New rows of all sequences.
    pub fn total_rows(&self) -> usize {
        self.rows.iter().sum()
    }

    /// Each row became `factor` rows.
    pub fn multiply(&mut self, factor: usize) {
        self.rows.iter_mut().for_each(|rows| *rows *= factor);
    }

    /// Every `stride` rows became one; a remainder, one.
    pub fn divide(&mut self, stride: usize) {
        self.rows.iter_mut().for_each(|rows| *rows = rows.div_ceil(stride));
    }

    /// Records the results given to [`Self::tap`] from now on.
    pub fn record(&mut self) {
        self.taps = Some(Vec::new());
    }

    /// The recorded results.
    pub fn take_taps(&mut self) -> Vec<(String, Tensor)> {
        self.taps.take().unwrap_or_default()
    }

    /// Records an intermediate result if recording is on.
    pub fn tap(&mut self, name: impl FnOnce() -> String, x: &Tensor) {
        if let Some(taps) = &mut self.taps {
            taps.push((name(), x.clone()));
        }
    }

    /// Whether results are recorded.
    pub fn is_recording(&self) -> bool {
        self.taps.is_some()
    }

    /// The keys and values of every sequence in one layer; not on Metal.
    pub(crate) fn windows(&mut self, place: WindowPlace) -> Vec<&mut WindowKv> {
        self.states.iter_mut().filter_map(|state| state.windows.get_mut(place.0)).collect()
    }

    /// Positions of the new rows in an attention layer that has not computed them yet, sequence after sequence.
    pub fn positions(&self, place: WindowPlace) -> Vec<u32> {
        let starts = self.states.iter().map(|state| state.positions(place));
        starts.zip(&self.rows).flat_map(|(start, &rows)| (start..start + rows).map(|at| at as u32)).collect()
    }

    /// Every sequence's tail in one layer, for layers that replace it themselves; not on Metal.
    pub(crate) fn tails(&mut self, place: TailPlace) -> Vec<&mut Tensor> {
        self.states.iter_mut().filter_map(|state| state.tails.get_mut(place.0)).collect()
    }

    /// `x` with each sequence's tail before its rows and zeros after them up to a multiple of `stride`, and the start row
    /// of each sequence in it. Replaces the tail by the last of these rows. Not on Metal.
    ///
    /// # Errors
    /// Shapes do not fit.
    pub(crate) fn join(
        &mut self,
        place: TailPlace,
        x: &Tensor,
        stride: usize,
    ) -> Result<(Tensor, Vec<usize>)> {
        let (total, channels) = x.dims2()?;
        if self.states.iter().any(|state| place.0 >= state.tails.len()) {
            bail!("stream: a layer without kernels for Metal")
        }
        if total != self.total_rows() {
            bail!("stream: {total} rows for chunks of {:?}", self.rows)
        }
        let mut parts = Vec::with_capacity(3 * self.rows.len());
        let mut spans = Vec::with_capacity(self.rows.len());
        let (mut from, mut to) = (0, 0);
        for (&rows, state) in self.rows.iter().zip(&self.states) {
            let tail = &state.tails[place.0];
            let missing = rows.next_multiple_of(stride) - rows;
            parts.push(tail.clone());
            parts.push(x.narrow(0, from, rows)?);
            if missing > 0 {
                parts.push(Tensor::zeros((missing, channels), DType::F32, x.device())?);
            }
            spans.push(to..to + tail.dim(0)? + rows + missing);
            from += rows;
            to += tail.dim(0)? + rows + missing;
        }
        let joined = Tensor::cat(&parts, 0)?;
        for (span, state) in spans.iter().zip(&mut self.states) {
            let tail = &mut state.tails[place.0];
            let rows = tail.dim(0)?;
            *tail = joined.narrow(0, span.end - rows, rows)?.force_contiguous()?;
        }
        Ok((joined, spans.into_iter().map(|span| span.start).collect()))
    }
}

/// Runs frames of several sequences through a network, all sequences together, at most `frames` of each per pass.
#[derive(Debug, Clone, Copy)]
pub struct Pieces<'a> {
    /// Layout of the network's state.
    pub shape: &'a StreamShape,
    /// Device of the network.
    pub device: &'a Device,
    /// Frames of one sequence in one pass.
    pub frames: usize,
}

impl Pieces<'_> {
    /// Passes the new frames of each sequence to `forward`, sequence after sequence, and returns the output rows of each
    /// sequence. `forward` returns `[rows, width]` with [`Streams::rows`] rows of each.
    ///
    /// # Errors
    /// A state is of another network, or as `forward`.
    pub fn run<F>(
        &self,
        batch: &mut [(&mut StreamState, &[F])],
        forward: impl Fn(&[&F], &mut Streams<'_>) -> Result<Tensor>,
    ) -> Result<Vec<Vec<f32>>> {
        let mut answers = vec![Vec::new(); batch.len()];
        let longest = batch.iter().map(|(_, frames)| frames.len()).max().unwrap_or(0);
        for at in (0..longest).step_by(self.frames.max(1)) {
            let mut states = Vec::with_capacity(batch.len());
            let (mut rows, mut frames, mut owners) = (Vec::new(), Vec::new(), Vec::new());
            for (owner, (state, all)) in batch.iter_mut().enumerate() {
                let piece = at.min(all.len())..(at + self.frames.max(1)).min(all.len());
                if !piece.is_empty() {
                    states.push(&mut **state);
                    rows.push(piece.len());
                    frames.extend(&all[piece]);
                    owners.push(owner);
                }
            }
            let mut streams = Streams::new(self.shape, states, rows, self.device)?;
            let y = forward(&frames, &mut streams)?;
            let width = y.dim(1)?;
            let y: Vec<f32> = y.flatten_all()?.to_vec1()?;
            let mut start = 0;
            for (&owner, &count) in owners.iter().zip(streams.rows()) {
                answers[owner].extend_from_slice(&y[start * width..(start + count) * width]);
                start += count;
            }
        }
        Ok(answers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_return_to_their_sequences() {
        let mut shape = StreamShape::default();
        let tail = shape.tail(1, 1);
        let pieces = Pieces { shape: &shape, device: &Device::Cpu, frames: 2 };
        let [mut a, mut b, mut c] = [(); 3].map(|()| StreamState::default());
        let batch: &mut [(&mut StreamState, &[f32])] =
            &mut [(&mut a, &[1.0, 2.0, 3.0]), (&mut b, &[]), (&mut c, &[5.0])];
        // Each frame's sum with the one before, twice.
        let sums = |frames: &[&f32], streams: &mut Streams<'_>| {
            let x: Vec<f32> = frames.iter().map(|&&frame| frame).collect();
            let (joined, starts) =
                streams.join(tail, &Tensor::from_vec(x, (frames.len(), 1), &Device::Cpu)?, 1)?;
            let joined: Vec<f32> = joined.flatten_all()?.to_vec1()?;
            let mut sums = Vec::new();
            for (&start, &rows) in starts.iter().zip(streams.rows()) {
                sums.extend((start..start + rows).flat_map(|at| [joined[at] + joined[at + 1]; 2]));
            }
            streams.multiply(2);
            let rows = sums.len();
            Tensor::from_vec(sums, (rows, 1), &Device::Cpu)
        };
        let answers = pieces.run(batch, sums).unwrap();
        assert_eq!(answers, [vec![1.0, 1.0, 3.0, 3.0, 5.0, 5.0], vec![], vec![5.0, 5.0]]);
    }

    #[test]
    fn tails_are_the_last_rows_and_states_have_constant_size() {
        let mut shape = StreamShape::default();
        let (tail, _) = (shape.tail(3, 2), shape.window(5, 4));
        let (mut a, mut b) = (StreamState::default(), StreamState::default());
        let mut bytes = Vec::new();
        for rows in [1usize, 4, 2] {
            let mut streams =
                Streams::new(&shape, vec![&mut a, &mut b], vec![rows, 1], &Device::Cpu).unwrap();
            let x = Tensor::arange(0f32, 2.0 * (rows as f32 + 1.0), &Device::Cpu).unwrap();
            let (joined, starts) = streams.join(tail, &x.reshape((rows + 1, 2)).unwrap(), 1).unwrap();
            assert_eq!((joined.dims(), &starts[..]), (&[rows + 7, 2][..], &[0, rows + 3][..]));
            drop(streams);
            bytes.push((a.bytes(), b.bytes()));
        }
        assert_eq!(bytes, [(shape.bytes(), shape.bytes()); 3]);
        assert_eq!(a.tails[0].to_vec2::<f32>().unwrap(), [[6.0, 7.0], [0.0, 1.0], [2.0, 3.0]]);
        assert!(Streams::new(&StreamShape::default(), vec![&mut a], vec![1], &Device::Cpu).is_err());
        assert!(Streams::new(&shape, vec![&mut a], vec![0], &Device::Cpu).is_err());
    }
}
