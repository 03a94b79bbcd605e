//! Lookups and sums of embeddings in one dispatch. Knows no layer.

use candle_core::{DType, Result, Tensor, bail};

use crate::kernel::{Grid, Kernel, Source};
use crate::pass::{Arg, Pass};
use crate::sampling::dtype_code;

/// Tables of a dispatch: each has an argument of its own.
pub const MAX_TABLES: usize = 16;

/// Entries `first..first + entries` of a table `[n, width]` of f32, f16 or bf16.
#[derive(Debug, Clone, Copy)]
pub struct Entries<'a> {
    /// The table.
    pub table: &'a Tensor,
    /// The first entry.
    pub first: usize,
    /// Number of entries.
    pub entries: usize,
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
    pub fn embedding_sum(
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
