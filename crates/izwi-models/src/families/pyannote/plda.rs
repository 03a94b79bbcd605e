//! Vectors of voices in a space in which those of one speaker vary alike in all directions. Knows no tensor.
//!
//! Source: `vbx_setup` of the Python package `pyannote.audio` 4.0. Its generalised eigenvectors are the rows of `tr`, since `tr`
//! makes both covariances diagonal.

use std::path::Path;

use izwi_nn::Error;

/// Bytes of single and double precision.
const F32: usize = 4;
const F64: usize = 8;
/// The widest vectors.
const MAX_WIDTH: usize = 4_096;

/// A transform of vectors.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Plda {
    mean: Vec<f64>,
    /// `[width, kept]`.
    discriminants: Vec<f64>,
    discriminant_mean: Vec<f64>,
    centre: Vec<f64>,
    /// `[kept, kept]`.
    rows: Vec<f64>,
    /// How much speakers differ along each axis.
    pub(super) spread: Vec<f64>,
}

impl Plda {
    /// Reads a file of little-endian numbers: `mean1` `[width]` and, in single precision, `mean2` `[kept]` and `lda`
    /// `[width, kept]`; then `mu` `[kept]`, `tr` `[kept, kept]` and `psi` `[kept]`.
    ///
    /// # Errors
    /// The file is unreadable, of another length than any number of kept values has, or has a number that is not finite.
    pub(super) fn load(path: &Path, width: usize) -> Result<Self, Error> {
        let fault = |message: String| Error::File { path: path.display().to_string(), message };
        let length = |kept: usize| F64 * (width + 2 * kept + kept * kept) + F32 * (kept + width * kept);
        let found = std::fs::metadata(path).map_err(|error| fault(error.to_string()))?.len();
        let kept = (1..=width.min(MAX_WIDTH)).find(|&kept| length(kept) as u64 == found);
        let kept = kept.ok_or_else(|| {
            fault(format!("has {found} bytes, which are no transform of vectors of {width} values"))
        })?;
        let bytes = std::fs::read(path).map_err(|error| fault(error.to_string()))?;
        let mut rest = &bytes[..];
        let mut take = |count: usize, size: usize| -> Vec<f64> {
            let (own, others) = rest.split_at((count * size).min(rest.len()));
            rest = others;
            match size {
                F32 => own.as_chunks().0.iter().map(|&bytes| f64::from(f32::from_le_bytes(bytes))).collect(),
                _ => own.as_chunks().0.iter().map(|&bytes| f64::from_le_bytes(bytes)).collect(),
            }
        };
        let mean = take(width, F64);
        let (discriminant_mean, discriminants) = (take(kept, F32), take(width * kept, F32));
        let (centre, rows, spread) = (take(kept, F64), take(kept * kept, F64), take(kept, F64));
        let plda = Self { mean, discriminants, discriminant_mean, centre, rows, spread };
        plda.is_sound().then_some(plda).ok_or_else(|| fault("has numbers that are not finite".to_owned()))
    }

    fn is_sound(&self) -> bool {
        let Self { mean, discriminants, discriminant_mean, centre, rows, spread } = self;
        let all = [mean, discriminants, discriminant_mean, centre, rows, spread];
        all.into_iter().flatten().all(|value| value.is_finite()) && spread.iter().all(|&value| value >= 0.0)
    }

    /// A vector in that space.
    pub(super) fn transform(&self, vector: &[f32]) -> Vec<f64> {
        let kept = self.spread.len();
        let mut x: Vec<f64> = vector.iter().zip(&self.mean).map(|(&x, mean)| f64::from(x) - mean).collect();
        normalise(&mut x, vector.len());
        let mut y = vec![0.0; kept];
        for (x, row) in x.iter().zip(self.discriminants.chunks_exact(kept)) {
            y.iter_mut().zip(row).for_each(|(y, weight)| *y += x * weight);
        }
        y.iter_mut().zip(&self.discriminant_mean).for_each(|(y, mean)| *y -= mean);
        normalise(&mut y, kept);
        y.iter_mut().zip(&self.centre).for_each(|(y, centre)| *y -= centre);
        let product = |row: &[f64]| row.iter().zip(&y).map(|(weight, y)| weight * y).sum();
        self.rows.chunks_exact(kept).map(product).collect()
    }
}

/// Scales to a length of the root of `width`.
fn normalise(x: &mut [f64], width: usize) {
    let length = x.iter().map(|x| x * x).sum::<f64>().sqrt();
    if length > 0.0 {
        let scale = (width as f64).sqrt() / length;
        x.iter_mut().for_each(|x| *x *= scale);
    }
}
