//! Lookups and sums of embeddings in one dispatch. Knows no layer.

use candle_core::{DType, Result, Tensor, bail};

use super::library::{Kernel, Source};
use super::pass::{Arg, Grid, Pass};
use super::sampling::dtype_code;

/// Tables of a dispatch: each has an argument of its own.
pub(crate) const MAX_TABLES: usize = 16;

/// Entries `first..first + entries` of a table `[n, width]` of f32, f16 or bf16.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Entries<'a> {
    pub(crate) table: &'a Tensor,
    pub(crate) first: usize,
    pub(crate) entries: usize,
}

impl<'a> From<&'a Tensor> for Entries<'a> {
    fn from(table: &'a Tensor) -> Self {
        Self { table, first: 0, entries: table.dims().first().copied().unwrap_or(0) }
    }
}

impl Pass<'_> {
    /// For each row the sum of one entry of every table in order: `[rows, width]` f32. `ids` `[rows, tables]` u32 are known to be in range;
    /// `add` is `[rows, width]` or one row for all, and comes first.
    ///
    /// # Errors
    /// Shapes do not fit, or there are more tables than [`MAX_TABLES`].
    pub(crate) fn embedding_sum(
        &self,
        tables: &[Entries<'_>],
        ids: &Tensor,
        add: Option<&Tensor>,
    ) -> Result<Tensor> {
        let Some(first) = tables.first() else { bail!("embedding: there is no table") };
        let (count, (_, width)) = (tables.len(), first.table.dims2()?);
        let rows = ids.elem_count() / count;
        let fits = |of: &Entries<'_>| {
            let end = of.first + of.entries;
            of.entries > 0 && of.table.dims2().is_ok_and(|(all, wide)| wide == width && end <= all)
        };
        let adds =
            add.is_none_or(|add| matches!(add.dims(), [n, wide] if *wide == width && [1, rows].contains(n)));
        let is_whole = ids.elem_count() == rows * count && ids.dtype() == DType::U32;
        if count > MAX_TABLES || !tables.iter().all(fits) || !adds || !is_whole {
            bail!("embedding: ids {:?} do not fit {count} tables, or a sum of width {width}", ids.dims())
        }
        let add_stride = if add.is_some_and(|add| add.dims()[0] == rows) { width } else { 0 };
        let mut params = vec![width as u32, count as u32, count as u32, 1];
        params.extend([add.is_some().into(), add_stride as u32]);
        for of in tables {
            params.extend([of.first as u32, of.entries as u32, dtype_code(of.table)?]);
        }
        params.resize(6 + 3 * MAX_TABLES, 0);
        let y = self.empty((rows, width), DType::F32)?;
        let mut args = vec![Arg::In(ids), Arg::optional(add), Arg::Out(&y), Arg::Params(&params)];
        let bound = tables.iter().chain(std::iter::repeat(first)).take(MAX_TABLES);
        args.extend(bound.map(|of| Arg::In(of.table)));
        let grid = Grid { groups: [width.div_ceil(256), rows, 1], threads: 256 };
        self.run(Kernel(Source::Embedding, "embedding_sum"), &args, grid)?;
        Ok(y)
    }
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;
    use crate::layers::{Embedding, sum_embeddings};
    use crate::metal::tests::device;

    #[test]
    fn sums_are_the_same_bits_as_on_the_cpu() {
        let Some(device) = device() else { return };
        let dtypes = [DType::F32, DType::F16, DType::BF16];
        for (width, count, rows) in [(70, 1, 5), (300, 16, 3), (8, 17, 2)] {
            let tables: Vec<Tensor> = (0..count)
                .map(|at| Tensor::randn(0f32, 1.0, (20 + at, width), &Device::Cpu).unwrap())
                .enumerate()
                .map(|(at, table)| table.to_dtype(dtypes[at % 3]).unwrap())
                .collect();
            let ids: Vec<u32> = (0..rows * count).map(|at| (at * 7 % 20) as u32).collect();
            let sum = |device: &Device| {
                let tables =
                    tables.iter().map(|table| Embedding::new(table.to_device(device).unwrap()).unwrap());
                let tables: Vec<Embedding> = tables.collect();
                let tables: Vec<&Embedding> = tables.iter().collect();
                assert!(sum_embeddings(&tables, &vec![20; count]).is_err());
                let alone = tables[0].forward(&[3, 0, 19]).unwrap().to_vec2::<f32>().unwrap();
                (sum_embeddings(&tables, &ids).unwrap().to_vec2::<f32>().unwrap(), alone)
            };
            assert_eq!(sum(&device), sum(&Device::Cpu), "{count} tables");
        }
    }

    #[test]
    fn entries_of_one_table_by_drawn_codes_are_added_to_a_row() {
        let Some(device) = device() else { return };
        let table = Tensor::randn(0f32, 1.0, (30, 9), &device).unwrap();
        let codes = [[1u32, 0, 4], [2, 9, 4]];
        let ids = Tensor::new(&codes, &device).unwrap(); // [rows, tables]
        let add = Tensor::randn(0f32, 1.0, (1, 9), &device).unwrap();
        let tables = [0, 1, 2].map(|at| Entries { table: &table, first: 10 * at, entries: 10 });
        let pass = Pass::of(&table).unwrap();
        let y = pass.embedding_sum(&tables, &ids, Some(&add));
        drop(pass);
        let (rows, add) = (table.to_vec2::<f32>().unwrap(), add.to_vec2::<f32>().unwrap());
        for (at, row) in y.unwrap().to_vec2::<f32>().unwrap().into_iter().enumerate() {
            let id = |of: usize| 10 * of + codes[at][of] as usize;
            let sum = |d: usize| add[0][d] + (rows[id(0)][d] + rows[id(1)][d] + rows[id(2)][d]);
            assert_eq!(row, (0..9).map(sum).collect::<Vec<_>>());
        }
    }
}
