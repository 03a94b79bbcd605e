//! The codes of one frame, drawn one book after another for several sequences, where the logits are.
//!
//! On the CPU each is drawn by [`sampling`](crate::sampling). Other devices are waited for once a frame rather than
//! once a book: there the draw is a handful of tensor operations, and what was drawn is read when the frame is done.

use std::ops::Range;

use candle_core::{DType, Device, Result, Tensor};

use crate::sampling::Draw;

/// Logits that a device sorts at once: candle's kernels give a row of them to one group of threads.
const SORTED: usize = 1024;
/// Candidates that a device draws from at most; settings that leave more are read and drawn on the CPU.
const CANDIDATES: usize = 128;
/// The largest number a draw uses: in f32 its product with a sum stays below that sum.
const LAST_UNIFORM: f64 = 1.0 - 1.0 / (1 << 20) as f64;
/// Stands behind every token in their order.
const NO_TOKEN: f32 = 1e9;

/// The draws of a frame on its way.
#[derive(Debug)]
pub struct FrameDraws<'a> {
    draws: &'a [Draw<'a>],
    /// Index of the next draw among those of each sequence.
    next: usize,
    /// What was drawn, `[sequences]` each.
    drawn: Vec<Tensor>,
    on_device: Option<OnDevice>,
}

impl<'a> FrameDraws<'a> {
    /// Draws for the books whose first has index `first` among the draws of each sequence, `books` in all.
    ///
    /// # Errors
    /// The device is out of memory.
    pub fn new(draws: &'a [Draw<'a>], first: usize, books: usize, device: &Device) -> Result<Self> {
        let on_device =
            if device.is_cpu() { None } else { OnDevice::new(draws, first..first + books, device)? };
        Ok(Self { draws, next: first, drawn: Vec::with_capacity(books), on_device })
    }

    /// Draws the next code of each sequence from `logits` `[sequences, codes]`: `[sequences]` u32 on the same device.
    ///
    /// # Errors
    /// Shapes do not fit.
    pub fn choose(&mut self, logits: &Tensor) -> Result<Tensor> {
        let chosen = match &self.on_device {
            Some(device) if device.takes(logits.dim(1)?) => device.choose(logits, self.drawn.len())?,
            _ => {
                let rows = logits.to_vec2::<f32>()?;
                let chosen = rows.iter().zip(self.draws).map(|(row, draw)| draw.choose(row, self.next));
                let chosen: Vec<u32> = chosen.collect();
                Tensor::new(chosen, logits.device())?
            }
        };
        self.next += 1;
        self.drawn.push(chosen.clone());
        Ok(chosen)
    }

    /// What was drawn, the codes of each sequence in the order of books.
    ///
    /// # Errors
    /// The device failed.
    pub fn finish(self) -> Result<Vec<Vec<u32>>> {
        Tensor::stack(&self.drawn, 1)?.to_vec2()
    }
}

/// What the draws of a frame need on a device.
#[derive(Debug)]
struct OnDevice {
    /// `[books, sequences, 1]`.
    uniforms: Tensor,
    /// One over the temperature, `[sequences, 1]`.
    sharpness: Tensor,
    /// Candidates of each sequence, `[sequences, 1]`.
    kept: Tensor,
    /// Share of the probability that candidates make up, `[sequences, 1]`; `None` where it is all of it.
    nucleus: Option<Tensor>,
    /// Candidates of the sequence that has most.
    candidates: usize,
    /// `0 .. candidates`, `[1, candidates]`.
    ranks: Tensor,
    /// Ones on and above the diagonal: a row of weights times this is its running sum. `[candidates, candidates]`.
    until: Tensor,
}

impl OnDevice {
    /// `None` where a sequence has too many candidates.
    fn new(draws: &[Draw<'_>], indices: Range<usize>, device: &Device) -> Result<Option<Self>> {
        // Without a temperature the likeliest is the only candidate.
        let kept = draws.iter().map(|draw| if draw.is_greedy() { 1 } else { draw.sampling.top_k });
        let kept: Vec<usize> = kept.collect();
        let candidates = kept.iter().copied().max().unwrap_or(0);
        if candidates > CANDIDATES || kept.contains(&0) {
            return Ok(None);
        }
        let column = |value: &dyn Fn(&Draw<'_>) -> f32| {
            Tensor::from_vec(draws.iter().map(value).collect::<Vec<_>>(), (draws.len(), 1), device)
        };
        let uniforms = indices.clone().flat_map(|index| draws.iter().map(move |draw| draw.uniform(index)));
        let uniforms: Vec<f32> = uniforms.map(|uniform| uniform.min(LAST_UNIFORM) as f32).collect();
        let nucleus = draws.iter().any(|draw| draw.sampling.top_p < 1.0);
        let until = (0..candidates * candidates).map(|at| f32::from(at / candidates <= at % candidates));
        Ok(Some(Self {
            uniforms: Tensor::from_vec(uniforms, (indices.len(), draws.len(), 1), device)?,
            sharpness: column(&|draw| {
                if draw.is_greedy() { 1.0 } else { draw.sampling.temperature.recip() }
            })?,
            kept: Tensor::from_vec(
                kept.iter().map(|&k| k as f32).collect::<Vec<_>>(),
                (draws.len(), 1),
                device,
            )?,
            nucleus: if nucleus { Some(column(&|draw| draw.sampling.top_p)?) } else { None },
            candidates,
            ranks: Tensor::arange(0f32, candidates as f32, device)?.unsqueeze(0)?,
            until: Tensor::from_vec(until.collect::<Vec<f32>>(), (candidates, candidates), device)?,
        }))
    }

    /// Whether it can draw out of so many codes.
    fn takes(&self, codes: usize) -> bool {
        let parts = codes.div_ceil(SORTED);
        self.candidates <= codes / parts.max(1)
            && codes.is_multiple_of(parts.max(1))
            && parts * self.candidates <= SORTED
    }

    /// As [`choose`](crate::sampling::choose) but for ties at the edge of the candidates, of which it keeps as many as
    /// there is room for, and for the rounding of f32.
    fn choose(&self, logits: &Tensor, book: usize) -> Result<Tensor> {
        let (values, ids) = self.largest(logits)?;
        let peak = values.narrow(1, 0, 1)?;
        let weights = values.broadcast_sub(&peak)?.broadcast_mul(&self.sharpness)?.exp()?;
        let mut is_kept = self.ranks.broadcast_lt(&self.kept)?;
        let nothing = weights.zeros_like()?;
        if let Some(nucleus) = &self.nucleus {
            let weights = is_kept.where_cond(&weights, &nothing)?;
            let reached = weights.matmul(&self.until)?;
            let all = reached.narrow(1, self.candidates - 1, 1)?;
            // What the likelier ones leave to the nucleus.
            let is_likely = (reached - &weights)?.broadcast_lt(&all.mul(nucleus)?)?;
            is_kept = is_kept.to_dtype(DType::F32)?.mul(&is_likely.to_dtype(DType::F32)?)?.gt(0f32)?;
        }
        let weights = is_kept.where_cond(&weights, &nothing)?;
        let ids = is_kept.where_cond(&ids, &ids.ones_like()?.affine(f64::from(NO_TOKEN), 0.0)?)?;
        // In the order of tokens, those that were not kept behind all.
        let order = ids.arg_sort_last_dim(true)?;
        let (weights, ids) = (weights.gather(&order, 1)?, ids.gather(&order, 1)?);
        let reached = weights.matmul(&self.until)?;
        let goal = reached.narrow(1, self.candidates - 1, 1)?.mul(&self.uniforms.get(book)?)?;
        let passed = reached.broadcast_le(&goal)?.to_dtype(DType::F32)?.sum_keepdim(1)?;
        let chosen = passed.to_dtype(DType::U32)?; // [sequences, 1]
        ids.gather(&chosen, 1)?.squeeze(1)?.to_dtype(DType::U32)
    }

    /// The largest logits of each row and their tokens, as many as there are candidates: `[sequences, candidates]` f32.
    fn largest(&self, logits: &Tensor) -> Result<(Tensor, Tensor)> {
        let (rows, codes) = logits.dims2()?;
        let parts = codes.div_ceil(SORTED);
        let width = codes / parts.max(1);
        let top = |values: &Tensor, width: usize| {
            let order = values.arg_sort_last_dim(false)?;
            let order = if width > self.candidates {
                order.narrow(1, 0, self.candidates)?.contiguous()?
            } else {
                order
            };
            Ok::<_, candle_core::Error>((values.gather(&order, 1)?, order))
        };
        let (values, order) = top(&logits.reshape((rows * parts, width))?.contiguous()?, width)?;
        let order = order.to_dtype(DType::F32)?;
        if parts == 1 {
            return Ok((values, order));
        }
        let starts: Vec<f32> = (0..rows * parts).map(|part| (part % parts * width) as f32).collect();
        let ids = order.broadcast_add(&Tensor::from_vec(starts, (rows * parts, 1), logits.device())?)?;
        let (values, ids) = (values.reshape((rows, ()))?, ids.reshape((rows, ()))?);
        let (values, order) = top(&values, parts * self.candidates)?;
        Ok((values, ids.gather(&order, 1)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sampling::Draws;
    use izwi_types::SamplingParams;

    const SETTINGS: [SamplingParams; 4] = [
        SamplingParams { temperature: 0.9, top_k: 50, ..SamplingParams::GREEDY },
        SamplingParams { temperature: 0.7, top_k: 20, top_p: 0.8, ..SamplingParams::GREEDY },
        SamplingParams::GREEDY,
        SamplingParams { temperature: 1.5, top_k: 7, top_p: 0.3, ..SamplingParams::GREEDY },
    ];

    #[test]
    fn a_device_draws_what_the_cpu_draws() {
        for codes in [50, 64, 1024, 2048, 2049, 4096] {
            for settings in [&SETTINGS[..], &SETTINGS[..1], &SETTINGS[2..3]] {
                let draws: Vec<Draws> = (0..settings.len() as u64).map(Draws::new).collect();
                let pairs = draws.iter().zip(settings);
                let draws: Vec<Draw<'_>> =
                    pairs.map(|(draws, sampling)| Draw { draws, counter: 11, sampling }).collect();
                let device = OnDevice::new(&draws, 1..40, &Device::Cpu).unwrap().unwrap();
                assert!(device.takes(codes));
                let logits = Tensor::randn(0f32, 3.0, (39, settings.len(), codes), &Device::Cpu).unwrap();
                for book in 0..39 {
                    let logits = logits.get(book).unwrap();
                    let chosen: Vec<u32> = device.choose(&logits, book).unwrap().to_vec1().unwrap();
                    let rows = logits.to_vec2::<f32>().unwrap();
                    let expected = rows.iter().zip(&draws).map(|(row, draw)| draw.choose(row, book + 1));
                    assert_eq!(chosen, expected.collect::<Vec<_>>(), "{codes} codes, book {book}");
                }
            }
        }
    }

    #[test]
    fn the_ends_of_the_uniform_range_choose_tokens_that_were_kept() {
        let logits: Vec<f32> = (0..64).map(|n| (n as f32 * 0.37).sin()).collect();
        let rows = Tensor::new(vec![logits.clone(), logits.clone()], &Device::Cpu).unwrap();
        let mut draws = [Draws::new(0), Draws::new(0)];
        draws[0] = Draws::recorded([0.0].into());
        draws[1] = Draws::recorded([1.0 - f64::EPSILON].into());
        let sampling = SamplingParams { temperature: 1.0, top_k: 9, top_p: 0.9, ..SamplingParams::GREEDY };
        let draw = |draws| Draw { draws, counter: 0, sampling: &sampling };
        let draws = [draw(&draws[0]), draw(&draws[1])];
        let device = OnDevice::new(&draws, 0..1, &Device::Cpu).unwrap().unwrap();
        let chosen: Vec<u32> = device.choose(&rows, 0).unwrap().to_vec1().unwrap();
        assert_eq!(chosen, [draws[0].choose(&logits, 0), draws[1].choose(&logits, 0)]);
    }

    #[test]
    fn what_a_device_cannot_sort_is_left_to_the_cpu() {
        let draws = Draws::new(3);
        let many = SamplingParams { temperature: 1.0, ..SamplingParams::GREEDY };
        let draw = |sampling| [Draw { draws: &draws, counter: 0, sampling }];
        assert!(OnDevice::new(&draw(&many), 0..1, &Device::Cpu).unwrap().is_none());
        let few = OnDevice::new(&draw(&SETTINGS[0]), 0..1, &Device::Cpu).unwrap().unwrap();
        assert!(!few.takes(49) && !few.takes(2051) && !few.takes(1024 * 64));
        let logits = Tensor::randn(0f32, 1.0, (1, 300), &Device::Cpu).unwrap();
        let draw = draw(&many);
        let mut frame = FrameDraws::new(&draw, 2, 3, &Device::Cpu).unwrap();
        (0..3).for_each(|_| drop(frame.choose(&logits).unwrap()));
        let row = &logits.to_vec2::<f32>().unwrap()[0];
        let expected: Vec<u32> = (2..5).map(|index| draw[0].choose(row, index)).collect();
        assert_eq!(frame.finish().unwrap(), [expected]);
    }
}
