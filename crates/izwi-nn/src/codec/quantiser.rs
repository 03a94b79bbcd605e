//! Residual vector quantisation: a row is a sum of one entry out of each book.
//!
//! Books stay on the host in f32 whatever the device: looking up is a copy, and the nearest entry must not depend on
//! the device's rounding.

use candle_core::{DType, Device, Result, Tensor, bail};
use rayon::prelude::*;

use crate::Error;
use crate::checkpoint::Checkpoint;
use crate::layers::conv::Conv1d;

/// Books whose usage is lower count as this:
/// <https://github.com/facebookresearch/encodec/blob/main/encodec/quantization/core_vq.py>, as Mimi has it.
const MIN_USAGE: f64 = 1e-5;
/// Sums kept side by side in a distance.
const LANES: usize = 16;

/// Sizes of a group of books.
#[derive(Debug, Clone, Copy)]
pub struct BooksShape {
    /// Books in the group.
    pub books: usize,
    /// Entries of a book.
    pub entries: usize,
    /// Channels of an entry.
    pub width: usize,
    /// Channels outside the group's projections.
    pub outer: usize,
}

/// Names of the tensors of one book, behind the prefix of the book.
#[derive(Debug, Clone, Copy)]
pub struct BookNames {
    /// Sums of the vectors that fell to each entry, `[entries, width]`.
    pub sum: &'static str,
    /// How many they were, `[entries]`.
    pub usage: &'static str,
    /// A flag of training, `[1]`, where there is one; taken and not used.
    pub flag: Option<&'static str>,
}

/// One codebook.
#[derive(Debug, Clone)]
struct Book {
    entries: Vec<f32>, // [entries, width]
    width: usize,
}

impl Book {
    fn load(
        from: &mut Checkpoint,
        prefix: &str,
        names: BookNames,
        shape: BooksShape,
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

/// A group of books with a projection into and out of their space.
#[derive(Debug, Clone)]
pub struct ResidualBooks {
    books: Vec<Book>,
    entries: usize,
    width: usize,
    into_books: Conv1d,
    out_of_books: Conv1d,
}

impl ResidualBooks {
    /// Takes `{prefix}.input_proj.weight` `[width, outer, 1]`, `{prefix}.output_proj.weight` `[outer, width, 1]` and
    /// the books `book(k)`.
    ///
    /// # Errors
    /// As [`Checkpoint::take`].
    pub fn load(
        from: &mut Checkpoint,
        prefix: &str,
        shape: BooksShape,
        names: BookNames,
        book: impl Fn(usize) -> String,
    ) -> std::result::Result<Self, Error> {
        let BooksShape { width, outer, .. } = shape;
        let into_books = from.take(&format!("{prefix}.input_proj.weight"), &[width, outer, 1])?;
        let out_of_books = from.take(&format!("{prefix}.output_proj.weight"), &[outer, width, 1])?;
        let books = (0..shape.books).map(|k| Book::load(from, &book(k), names, shape));
        Ok(Self {
            books: books.collect::<std::result::Result<_, _>>()?,
            entries: shape.entries,
            width,
            into_books: Conv1d::new(&into_books, None, 1)?,
            out_of_books: Conv1d::new(&out_of_books, None, 1)?,
        })
    }

    /// Keeps the first `count` books only.
    pub fn truncate(&mut self, count: usize) {
        self.books.truncate(count);
    }

    /// Rows out of one code for each book: `[rows, outer]`.
    ///
    /// # Errors
    /// A row has another number of codes, or a code is not below the number of entries.
    pub fn decode<'a>(&self, rows: impl Iterator<Item = &'a [u32]>, device: &Device) -> Result<Tensor> {
        let mut sums: Vec<f32> = Vec::new();
        for codes in rows {
            if codes.len() != self.books.len() {
                bail!("codes: {} for {} books", codes.len(), self.books.len())
            }
            let start = sums.len();
            sums.resize(start + self.width, 0.0);
            for (book, &code) in self.books.iter().zip(codes) {
                let Some(entry) = book.entry(code) else {
                    bail!("code {code} of a book of {}", self.entries)
                };
                sums[start..].iter_mut().zip(entry).for_each(|(sum, value)| *sum += value);
            }
        }
        let rows = sums.len() / self.width.max(1);
        let sums = Tensor::from_vec(sums, (rows, self.width), device)?;
        self.out_of_books.forward(&sums, &every(rows))
    }

    /// One code out of each book for every row of `x` `[rows, outer]`: each book takes the entry nearest to what the
    /// ones before it have left.
    ///
    /// # Errors
    /// Shapes do not fit.
    pub fn encode(&self, x: &Tensor) -> Result<Vec<Vec<u32>>> {
        let x = self.into_books.forward(x, &every(x.dim(0)?))?;
        let rows = x.to_device(&Device::Cpu)?.to_dtype(DType::F32)?.to_vec2::<f32>()?;
        let code = |mut rest: Vec<f32>| {
            let code = |book: &Book| {
                let code = book.nearest(&rest);
                let entry = book.entry(code).unwrap_or_default();
                rest.iter_mut().zip(entry).for_each(|(rest, value)| *rest -= value);
                code
            };
            self.books.iter().map(code).collect()
        };
        Ok(rows.into_par_iter().map(code).collect())
    }
}

/// Every row once.
fn every(rows: usize) -> Vec<u32> {
    (0..rows as u32).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity() -> Conv1d {
        Conv1d::new(&Tensor::eye(2, DType::F32, &Device::Cpu).unwrap().unsqueeze(2).unwrap(), None, 1)
            .unwrap()
    }

    #[test]
    fn codes_of_a_sum_are_found_again_and_wrong_ones_are_named() {
        let book = |scale: f32| Book {
            entries: [[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [-1.0, -1.0]]
                .map(|e| e.map(|v| v * scale))
                .concat(),
            width: 2,
        };
        let books = vec![book(9.0), book(3.0), book(1.0)];
        let books =
            ResidualBooks { books, entries: 4, width: 2, into_books: identity(), out_of_books: identity() };
        let codes: Vec<Vec<u32>> = vec![vec![1, 2, 3], vec![3, 0, 1], vec![2, 1, 0]];
        let x = books.decode(codes.iter().map(Vec::as_slice), &Device::Cpu).unwrap();
        assert_eq!(x.to_vec2::<f32>().unwrap()[0], [8.0, 2.0]);
        assert_eq!(books.encode(&x).unwrap(), codes);
        let error = books.decode([&[0u32, 4, 0][..]].into_iter(), &Device::Cpu).unwrap_err();
        assert!(error.to_string().contains("code 4 of a book of 4"), "{error}");
        assert!(books.decode([&[0u32][..]].into_iter(), &Device::Cpu).is_err());
    }
}
