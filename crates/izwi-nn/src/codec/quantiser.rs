//! Residual vector quantisation: a row is the sum of one entry of each codebook.
//!
//! Codebooks stay on the host in f32 for every device: a lookup is a copy, and the nearest entry must not depend on the
//! rounding of a device.

use candle_core::{DType, Device, Result, Tensor, bail};
use rayon::prelude::*;

use crate::Error;
use crate::checkpoint::Checkpoint;
use crate::layers::conv::{Conv1d, Padding};

/// Lower limit of an entry's usage:
/// <https://github.com/facebookresearch/encodec/blob/main/encodec/quantization/core_vq.py>, with Mimi's value.
const MIN_USAGE: f64 = 1e-5;
/// A projection reads its own row.
const UNPADDED: (Padding, [usize; 2]) = (Padding::Zero, [0; 2]);
/// Parallel sums of a distance.
const LANES: usize = 16;

/// Sizes of a group of codebooks.
#[derive(Debug, Clone, Copy)]
pub struct CodebookShape {
    /// Codebooks in the group.
    pub codebooks: usize,
    /// Entries of a codebook.
    pub entries: usize,
    /// Channels of an entry.
    pub width: usize,
    /// Channels outside the group's projections.
    pub outer: usize,
}

/// Names of a codebook's tensors, relative to its prefix.
#[derive(Debug, Clone, Copy)]
pub struct CodebookNames {
    /// Sum of the training vectors of each entry, `[entries, width]`.
    pub sum: &'static str,
    /// Number of the training vectors of each entry, `[entries]`.
    pub usage: &'static str,
    /// A training flag `[1]`, if any; read and ignored.
    pub flag: Option<&'static str>,
}

/// One codebook.
#[derive(Debug, Clone)]
struct Codebook {
    entries: Vec<f32>, // [entries, width]
    width: usize,
}

impl Codebook {
    fn load(
        from: &mut Checkpoint,
        prefix: &str,
        names: CodebookNames,
        shape: CodebookShape,
    ) -> std::result::Result<Self, Error> {
        let host = |tensor: Tensor| tensor.to_device(&Device::Cpu);
        let sum = host(from.take(&format!("{prefix}.{}", names.sum), &[shape.entries, shape.width])?)?;
        let usage = host(from.take(&format!("{prefix}.{}", names.usage), &[shape.entries])?)?;
        if let Some(flag) = names.flag {
            from.take(&format!("{prefix}.{flag}"), &[1])?;
        }
        let usage = usage.maximum(MIN_USAGE)?.unsqueeze(1)?;
        let entries = sum.broadcast_div(&usage)?.flatten_all()?.to_vec1()?;
        Ok(Self { entries, width: shape.width })
    }

    fn entry(&self, code: u32) -> Option<&[f32]> {
        self.entries.chunks_exact(self.width).nth(code as usize)
    }

    /// The entry nearest to `x` by Euclidean distance, the first of equals.
    fn nearest(&self, x: &[f32]) -> u32 {
        let mut best = (f32::INFINITY, 0);
        for (code, entry) in self.entries.chunks_exact(self.width).enumerate() {
            let distance = squared_distance(x, entry);
            if distance < best.0 {
                best = (distance, code as u32);
            }
        }
        best.1
    }
}

fn squared_distance(a: &[f32], b: &[f32]) -> f32 {
    let mut sums = [0f32; LANES];
    let (a, b) = (a.as_chunks::<LANES>(), b.as_chunks::<LANES>());
    for (a, b) in a.0.iter().zip(b.0) {
        for lane in 0..LANES {
            let off = a[lane] - b[lane];
            sums[lane] += off * off;
        }
    }
    let rest: f32 = a.1.iter().zip(b.1).map(|(a, b)| (a - b) * (a - b)).sum();
    sums.iter().sum::<f32>() + rest
}

/// A group of codebooks with projections into and out of their space.
#[derive(Debug, Clone)]
pub struct ResidualQuantiser {
    codebooks: Vec<Codebook>,
    entries: usize,
    width: usize,
    input_proj: Conv1d,
    output_proj: Conv1d,
}

impl ResidualQuantiser {
    /// Takes `{prefix}.input_proj.weight` `[width, outer, 1]`, `{prefix}.output_proj.weight` `[outer, width, 1]` and
    /// the codebooks `codebook(k)`.
    ///
    /// # Errors
    /// As [`Checkpoint::take`].
    pub fn load(
        from: &mut Checkpoint,
        prefix: &str,
        shape: CodebookShape,
        names: CodebookNames,
        codebook: impl Fn(usize) -> String,
    ) -> std::result::Result<Self, Error> {
        let CodebookShape { width, outer, .. } = shape;
        let input_proj = from.take(&format!("{prefix}.input_proj.weight"), &[width, outer, 1])?;
        let output_proj = from.take(&format!("{prefix}.output_proj.weight"), &[outer, width, 1])?;
        let codebooks = (0..shape.codebooks).map(|k| Codebook::load(from, &codebook(k), names, shape));
        Ok(Self {
            codebooks: codebooks.collect::<std::result::Result<_, _>>()?,
            entries: shape.entries,
            width,
            input_proj: Conv1d::new(&input_proj, None, 1)?,
            output_proj: Conv1d::new(&output_proj, None, 1)?,
        })
    }

    /// Keeps the first `count` codebooks only.
    pub fn truncate(&mut self, count: usize) {
        self.codebooks.truncate(count);
    }

    /// Rows from one code per codebook: `[rows, outer]`.
    ///
    /// # Errors
    /// A row has another number of codes, or a code is not below the number of entries.
    pub fn decode<'a>(&self, rows: impl Iterator<Item = &'a [u32]>, device: &Device) -> Result<Tensor> {
        let mut sums: Vec<f32> = Vec::new();
        for codes in rows {
            if codes.len() != self.codebooks.len() {
                bail!("codes: {} for {} codebooks", codes.len(), self.codebooks.len())
            }
            let start = sums.len();
            sums.resize(start + self.width, 0.0);
            for (codebook, &code) in self.codebooks.iter().zip(codes) {
                let Some(entry) = codebook.entry(code) else {
                    bail!("code {code} is out of range for a codebook of {}", self.entries)
                };
                sums[start..].iter_mut().zip(entry).for_each(|(sum, value)| *sum += value);
            }
        }
        let rows = sums.len() / self.width.max(1);
        let sums = Tensor::from_vec(sums, (rows, self.width), device)?;
        self.output_proj.forward_padded(&sums, UNPADDED, 1, None)
    }

    /// One code of each codebook for every row of `x` `[rows, outer]`: each codebook takes the entry nearest to the
    /// residual of those before it.
    ///
    /// # Errors
    /// Shapes do not fit.
    pub fn encode(&self, x: &Tensor) -> Result<Vec<Vec<u32>>> {
        let x = self.input_proj.forward_padded(x, UNPADDED, 1, None)?;
        let rows = x.to_device(&Device::Cpu)?.to_dtype(DType::F32)?.to_vec2::<f32>()?;
        let code = |mut rest: Vec<f32>| {
            let code = |codebook: &Codebook| {
                let code = codebook.nearest(&rest);
                let entry = codebook.entry(code).unwrap_or_default();
                rest.iter_mut().zip(entry).for_each(|(rest, value)| *rest -= value);
                code
            };
            self.codebooks.iter().map(code).collect()
        };
        Ok(rows.into_par_iter().map(code).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity() -> Conv1d {
        Conv1d::new(&Tensor::eye(2, DType::F32, &Device::Cpu).unwrap().unsqueeze(2).unwrap(), None, 1)
            .unwrap()
    }

    #[test]
    fn codes_round_trip_and_codes_out_of_range_are_named() {
        let codebook = |scale: f32| Codebook {
            entries: [[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [-1.0, -1.0]]
                .map(|e| e.map(|v| v * scale))
                .concat(),
            width: 2,
        };
        let codebooks = vec![codebook(9.0), codebook(3.0), codebook(1.0)];
        let codebooks = ResidualQuantiser {
            codebooks,
            entries: 4,
            width: 2,
            input_proj: identity(),
            output_proj: identity(),
        };
        let codes: Vec<Vec<u32>> = vec![vec![1, 2, 3], vec![3, 0, 1], vec![2, 1, 0]];
        let x = codebooks.decode(codes.iter().map(Vec::as_slice), &Device::Cpu).unwrap();
        assert_eq!(x.to_vec2::<f32>().unwrap()[0], [8.0, 2.0]);
        assert_eq!(codebooks.encode(&x).unwrap(), codes);
        let error = codebooks.decode([&[0u32, 4, 0][..]].into_iter(), &Device::Cpu).unwrap_err();
        assert!(error.to_string().contains("code 4 is out of range for a codebook of 4"), "{error}");
        assert!(codebooks.decode([&[0u32][..]].into_iter(), &Device::Cpu).is_err());
    }
}
