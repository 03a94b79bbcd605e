//! Embedding tables: rows looked up by id, kept in the type the checkpoint has them in.

use candle_core::{DType, Result, Tensor, bail};

use super::checkpoint::Checkpoint;
use crate::model::ModelError;

/// A table `[entries, width]`.
#[derive(Debug, Clone)]
pub struct Embedding {
    table: Tensor,
    entries: usize,
}

impl Embedding {
    /// From a table `[entries, width]` of any floating-point type.
    ///
    /// # Errors
    /// It is none.
    pub fn new(table: Tensor) -> Result<Self> {
        let (entries, _) = table.dims2()?;
        Ok(Self { table, entries })
    }

    /// Takes `{name}.weight` `[entries, width]`.
    ///
    /// # Errors
    /// As [`Checkpoint::take`].
    pub fn load(
        from: &mut Checkpoint,
        name: &str,
        entries: usize,
        width: usize,
    ) -> std::result::Result<Self, ModelError> {
        Ok(Self { table: from.take_stored(&format!("{name}.weight"), &[entries, width])?, entries })
    }

    /// Rows of the ids, `[ids, width]` f32.
    ///
    /// # Errors
    /// An id is not in the table.
    pub fn forward(&self, ids: &[u32]) -> Result<Tensor> {
        if let Some(id) = ids.iter().find(|&&id| id as usize >= self.entries) {
            bail!("embedding: {id} of {}", self.entries)
        }
        self.table.index_select(&Tensor::new(ids, self.table.device())?, 0)?.to_dtype(DType::F32)
    }

    /// As [`Self::forward`], of ids `[ids]` u32 on the table's device, which are known to be in the table.
    ///
    /// # Errors
    /// The device has not the memory.
    pub fn select(&self, ids: &Tensor) -> Result<Tensor> {
        self.table.index_select(ids, 0)?.to_dtype(DType::F32)
    }

    /// Number of rows.
    pub fn entries(&self) -> usize {
        self.entries
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        self.table.elem_count() * self.table.dtype().size_in_bytes()
    }
}
