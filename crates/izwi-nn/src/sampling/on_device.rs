//! Samples the codes of one codec frame, codebook by codebook for several sequences, on the device of the logits.
//!
//! The CPU uses [`sampling`](crate::sampling). On Metal a draw is one kernel, on other devices a few tensor operations; there
//! the codes are read once per frame instead of once per codebook. Knows no codec.

use std::ops::Range;

use candle_core::{DType, Device, Result, Tensor, bail};
use izwi_metal::{DrawTable, Lookup, Pass, metal_device};

use crate::sampling::{Draw, DrawLimits, TokenDraws};

/// Logits that a device sorts at once: candle's kernels sort a row in one thread block.
const SORTED: usize = 1024;
/// Limit of candidates on a device; settings with more are sampled on the CPU.
const CANDIDATES: usize = 128;
/// Upper limit of a uniform number: its f32 product with a sum stays below that sum.
const LAST_UNIFORM: f64 = 1.0 - 1.0 / (1 << 20) as f64;
/// Sorts after every token id.
const NO_TOKEN: f32 = 1e9;

/// The draws of an unfinished frame.
#[derive(Debug)]
pub struct FrameDraws<'a> {
    draws: &'a [Draw<'a>],
    /// Index of the first draw of each sequence.
    first: usize,
    /// Codes drawn, `[sequences]` each.
    drawn: Vec<Tensor>,
    sampler: Sampler,
}

/// Where codes are drawn.
#[derive(Debug)]
enum Sampler {
    Host,
    Device(OnDevice),
    /// A kernel for each draw.
    Metal {
        table: DrawTable,
        codes: Tensor, // [draws, sequences]
    },
}

impl<'a> FrameDraws<'a> {
    /// Draws of `codebooks` codebooks; the first has index `first` among the draws of each sequence. On Metal `tokens`, of
    /// this many, may be drawn before.
    ///
    /// # Errors
    /// The device is out of memory.
    pub fn new(
        draws: &'a [Draw<'a>],
        (first, codebooks): (usize, usize),
        tokens: Option<(&TokenDraws<'_>, usize)>,
        device: &Device,
    ) -> Result<Self> {
        let sampler = Sampler::new(draws, first..first + codebooks, tokens, device)?;
        Ok(Self { draws, first, drawn: Vec::with_capacity(codebooks), sampler })
    }

    /// Draws the next code of each sequence from `logits` `[sequences, codes]`: `[sequences]` u32 on the same device.
    ///
    /// # Errors
    /// Shapes do not fit.
    pub fn choose(&mut self, logits: &Tensor) -> Result<Tensor> {
        let codebook = self.drawn.len();
        let chosen = match &self.sampler {
            Sampler::Device(device) if device.takes(logits.dim(1)?) => device.choose(logits, codebook)?,
            Sampler::Metal { table, codes } => {
                let logits = logits.to_dtype(DType::F32)?.contiguous()?;
                Pass::of(&logits)?.draw(&logits, table, codebook, codes, None)?;
                codes.get(codebook)?
            }
            _ => {
                let (rows, index) = (logits.to_vec2::<f32>()?, self.first + codebook);
                let chosen = rows.iter().zip(self.draws).map(|(row, draw)| draw.choose(row, index));
                let chosen: Vec<u32> = chosen.collect();
                Tensor::new(chosen, logits.device())?
            }
        };
        self.drawn.push(chosen.clone());
        Ok(chosen)
    }

    /// As [`Self::choose`] in an open pass on Metal, from f32; with the lookup of the codes' embeddings.
    pub(crate) fn choose_in(
        &mut self,
        pass: &Pass<'_>,
        logits: &Tensor,
        lookup: Option<Lookup<'_>>,
    ) -> Result<()> {
        let Sampler::Metal { table, codes } = &self.sampler else { bail!("draw: a pass on another device") };
        pass.draw(logits, table, self.drawn.len(), codes, lookup)?;
        self.drawn.push(codes.get(self.drawn.len())?);
        Ok(())
    }

    /// The codes of each sequence in the order of codebooks.
    ///
    /// # Errors
    /// The device failed.
    pub fn finish(self) -> Result<Vec<Vec<u32>>> {
        if let Sampler::Metal { codes, .. } = &self.sampler {
            let codes = codes.to_vec2::<u32>()?;
            let of = |row: usize| codes.iter().take(self.drawn.len()).map(|codes| codes[row]).collect();
            return Ok((0..self.draws.len()).map(of).collect());
        }
        Tensor::stack(&self.drawn, 1)?.to_vec2()
    }
}

impl Sampler {
    fn new(
        draws: &[Draw<'_>],
        indices: Range<usize>,
        tokens: Option<(&TokenDraws<'_>, usize)>,
        device: &Device,
    ) -> Result<Self> {
        if let (Some(device), false) = (metal_device(device), draws.is_empty()) {
            let (tokens, count) = tokens.map_or((&[][..], 0), |(tokens, count)| (tokens.rows(), count));
            let mut rows: Vec<_> = tokens.iter().map(|token| token.limits.on_metal(token.draw, 0)).collect();
            let row = |index| draws.iter().map(move |&draw| DrawLimits::default().on_metal(draw, index));
            rows.extend(indices.flat_map(row));
            let drawn: Vec<&[u32]> = tokens.iter().map(|token| token.drawn).collect();
            let table = DrawTable::new(device, &rows, draws.len(), &drawn, count)?;
            return Ok(Self::Metal { codes: table.codes(device)?, table });
        }
        let on_device = if device.is_cpu() { None } else { OnDevice::new(draws, indices, device)? };
        Ok(on_device.map_or(Self::Host, Self::Device))
    }
}

/// Tensors that the draws of a frame need on a device.
#[derive(Debug)]
struct OnDevice {
    /// `[codebooks, sequences, 1]`.
    uniforms: Tensor,
    /// Inverse temperature, `[sequences, 1]`.
    sharpness: Tensor,
    /// Candidates of each sequence, `[sequences, 1]`.
    kept: Tensor,
    /// `top_p`, `[sequences, 1]`; `None` if all are 1.
    nucleus: Option<Tensor>,
    /// Largest number of candidates.
    candidates: usize,
    /// `0 .. candidates`, `[1, candidates]`.
    ranks: Tensor,
    /// Ones on and above the diagonal: a row of weights times this is its running sum. `[candidates, candidates]`.
    until: Tensor,
}

impl OnDevice {
    /// `None` if a sequence has too many candidates.
    fn new(draws: &[Draw<'_>], indices: Range<usize>, device: &Device) -> Result<Option<Self>> {
        // At temperature 0 the most likely token is the only candidate.
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

    /// Whether it can sample from this many codes.
    fn takes(&self, codes: usize) -> bool {
        let parts = codes.div_ceil(SORTED);
        self.candidates <= codes / parts.max(1)
            && codes.is_multiple_of(parts.max(1))
            && parts * self.candidates <= SORTED
    }

    /// As [`choose`](crate::sampling::choose), except for ties at the edge of the candidates, which are cut, and the
    /// rounding of f32.
    fn choose(&self, logits: &Tensor, codebook: usize) -> Result<Tensor> {
        let (values, ids) = self.largest(logits)?;
        let peak = values.narrow(1, 0, 1)?;
        let weights = values.broadcast_sub(&peak)?.broadcast_mul(&self.sharpness)?.exp()?;
        let mut is_kept = self.ranks.broadcast_lt(&self.kept)?;
        let nothing = weights.zeros_like()?;
        if let Some(nucleus) = &self.nucleus {
            let weights = is_kept.where_cond(&weights, &nothing)?;
            let reached = weights.matmul(&self.until)?;
            let all = reached.narrow(1, self.candidates - 1, 1)?;
            // The probability mass before each candidate.
            let is_likely = (reached - &weights)?.broadcast_lt(&all.mul(nucleus)?)?;
            is_kept = is_kept.to_dtype(DType::F32)?.mul(&is_likely.to_dtype(DType::F32)?)?.gt(0f32)?;
        }
        let weights = is_kept.where_cond(&weights, &nothing)?;
        let ids = is_kept.where_cond(&ids, &ids.ones_like()?.affine(f64::from(NO_TOKEN), 0.0)?)?;
        // In the order of tokens; dropped ones last.
        let order = ids.arg_sort_last_dim(true)?;
        let (weights, ids) = (weights.gather(&order, 1)?, ids.gather(&order, 1)?);
        let reached = weights.matmul(&self.until)?;
        let goal = reached.narrow(1, self.candidates - 1, 1)?.mul(&self.uniforms.get(codebook)?)?;
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

    /// Normal deviates of standard deviation 3, the same in every run: the rounding of f32 decides a draw in some thousand.
    fn fixed_logits((rows, codes): (usize, usize), seed: u64) -> Tensor {
        let source = Draws::new(seed);
        let normal = |at: u64| {
            let (radius, angle) = (source.uniform(2 * at), source.uniform(2 * at + 1));
            (3.0 * (-2.0 * (1.0 - radius).ln()).sqrt() * (std::f64::consts::TAU * angle).cos()) as f32
        };
        let values: Vec<f32> = (0..(rows * codes) as u64).map(normal).collect();
        Tensor::from_vec(values, (rows, codes), &Device::Cpu).unwrap()
    }

    #[test]
    fn a_device_draws_the_same_codes_as_the_cpu() {
        for codes in [50, 64, 1024, 2048, 2049, 4096] {
            for settings in [&SETTINGS[..], &SETTINGS[..1], &SETTINGS[2..3]] {
                let draws: Vec<Draws> = (0..settings.len() as u64).map(Draws::new).collect();
                let pairs = draws.iter().zip(settings);
                let draws: Vec<Draw<'_>> =
                    pairs.map(|(draws, sampling)| Draw { draws, counter: 11, sampling }).collect();
                let device = OnDevice::new(&draws, 1..40, &Device::Cpu).unwrap().unwrap();
                assert!(device.takes(codes));
                for codebook in 0..39 {
                    let logits = fixed_logits((settings.len(), codes), codebook as u64);
                    let chosen: Vec<u32> = device.choose(&logits, codebook).unwrap().to_vec1().unwrap();
                    let rows = logits.to_vec2::<f32>().unwrap();
                    let expected = rows.iter().zip(&draws).map(|(row, draw)| draw.choose(row, codebook + 1));
                    assert_eq!(chosen, expected.collect::<Vec<_>>(), "{codes} codes, codebook {codebook}");
                }
            }
        }
    }

    #[test]
    fn the_ends_of_the_uniform_range_choose_candidates() {
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
    fn settings_beyond_the_device_limits_use_the_cpu() {
        let draws = Draws::new(3);
        let many = SamplingParams { temperature: 1.0, ..SamplingParams::GREEDY };
        let draw = |sampling| [Draw { draws: &draws, counter: 0, sampling }];
        assert!(OnDevice::new(&draw(&many), 0..1, &Device::Cpu).unwrap().is_none());
        let few = OnDevice::new(&draw(&SETTINGS[0]), 0..1, &Device::Cpu).unwrap().unwrap();
        assert!(!few.takes(49) && !few.takes(2051) && !few.takes(1024 * 64));
        let logits = Tensor::randn(0f32, 1.0, (1, 300), &Device::Cpu).unwrap();
        let draw = draw(&many);
        let mut frame = FrameDraws::new(&draw, (2, 3), None, &Device::Cpu).unwrap();
        (0..3).for_each(|_| drop(frame.choose(&logits).unwrap()));
        let row = &logits.to_vec2::<f32>().unwrap()[0];
        let expected: Vec<u32> = (2..5).map(|index| draw[0].choose(row, index)).collect();
        assert_eq!(frame.finish().unwrap(), [expected]);
    }
}
