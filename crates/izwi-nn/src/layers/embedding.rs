//! Embedding tables in the type of the checkpoint: rows by id.

use candle_core::{DType, Device, Result, Tensor, bail};
use izwi_metal::{Entries, MAX_TABLES, Pass};

use crate::Error;
use crate::checkpoint::Checkpoint;
use crate::checkpoint::lazy_tensor::LazyTensor;

/// A table `[entries, width]`.
#[derive(Debug, Clone)]
pub struct Embedding {
    table: Table,
    entries: usize,
}

#[derive(Debug, Clone)]
enum Table {
    Resident(Tensor),
    /// Read row by row, to a device.
    Lazy(LazyTensor, Device),
}

impl Embedding {
    /// From a table `[entries, width]` of any floating-point type.
    ///
    /// # Errors
    /// It has not two dimensions.
    pub fn new(table: Tensor) -> Result<Self> {
        let (entries, _) = table.dims2()?;
        Ok(Self { table: Table::Resident(table), entries })
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
    ) -> std::result::Result<Self, Error> {
        let table = from.take_stored(&format!("{name}.weight"), &[entries, width])?;
        Ok(Self { table: Table::Resident(table), entries })
    }

    /// As [`Self::load`], for a large table of which few rows are read: it stays in the file.
    ///
    /// # Errors
    /// As [`Checkpoint::take`].
    pub fn load_lazy(
        from: &mut Checkpoint,
        name: &str,
        entries: usize,
        width: usize,
    ) -> std::result::Result<Self, Error> {
        match from.take_lazy(&format!("{name}.weight"), &[entries, width]) {
            Some(stored) => Ok(Self { table: Table::Lazy(stored, from.device().clone()), entries }),
            None => Self::load(from, name, entries, width),
        }
    }

    /// Rows of the ids, `[ids, width]` f32.
    ///
    /// # Errors
    /// An id is out of range, or the file of the table cannot be read.
    pub fn forward(&self, ids: &[u32]) -> Result<Tensor> {
        if let Some(id) = ids.iter().find(|&&id| id as usize >= self.entries) {
            bail!("embedding: id {id} is out of range for {} entries", self.entries)
        }
        match &self.table {
            Table::Resident(table) => rows(table, &Tensor::new(ids, table.device())?),
            Table::Lazy(table, device) => {
                let rows = table.read_rows(ids).map_err(candle_core::Error::wrap)?;
                rows.to_dtype(DType::F32)?.to_device(device)
            }
        }
    }

    /// As [`Self::forward`], for ids `[ids]` u32 on the table's device that are known to be in range.
    ///
    /// # Errors
    /// As [`Self::forward`].
    pub fn select(&self, ids: &Tensor) -> Result<Tensor> {
        match &self.table {
            Table::Resident(table) => rows(table, ids),
            Table::Lazy(..) => self.forward(&ids.to_vec1()?),
        }
    }

    /// The table `[entries, width]`, where it is in memory.
    pub(crate) fn table(&self) -> Option<&Tensor> {
        match &self.table {
            Table::Resident(table) => Some(table),
            Table::Lazy(..) => None,
        }
    }

    /// Number of rows.
    pub fn entries(&self) -> usize {
        self.entries
    }

    /// Bytes held in memory.
    pub fn bytes(&self) -> usize {
        match &self.table {
            Table::Resident(table) => table.elem_count() * table.dtype().size_in_bytes(),
            Table::Lazy(..) => 0,
        }
    }
}

/// Rows `ids` `[ids]` of a table, f32.
fn rows(table: &Tensor, ids: &Tensor) -> Result<Tensor> {
    if table.device().is_metal() {
        return Pass::of(table)?.embedding_sum(&[table.into()], ids, None);
    }
    table.index_select(ids, 0)?.to_dtype(DType::F32)
}

/// For each row of `ids` `[rows, tables]` the sum of one entry of every table, added in order: `[rows, width]` f32.
///
/// # Errors
/// The ids do not fit the tables, or an id is out of range.
pub fn sum_embeddings(tables: &[&Embedding], ids: &[u32]) -> Result<Tensor> {
    let [first, others @ ..] = tables else { bail!("embedding: there is no table") };
    if !ids.len().is_multiple_of(tables.len()) {
        bail!("embedding: {} ids do not fit {} tables", ids.len(), tables.len())
    }
    let column = |at: usize| ids.iter().skip(at).step_by(tables.len()).copied().collect::<Vec<u32>>();
    if let Some(sum) = sum_on_metal(tables, ids)? {
        return Ok(sum);
    }
    let mut sum = first.forward(&column(0))?;
    for (at, table) in others.iter().enumerate() {
        sum = (sum + table.forward(&column(at + 1))?)?;
    }
    Ok(sum)
}

/// As [`sum_embeddings`]; `None` where the kernel does not take the tables.
fn sum_on_metal(tables: &[&Embedding], ids: &[u32]) -> Result<Option<Tensor>> {
    let device = tables[0].table().map(Tensor::device).filter(|device| device.is_metal());
    let entries = tables.iter().map(|table| table.table().map(Entries::from)).collect::<Option<Vec<_>>>();
    let entries = entries.filter(|entries| entries.len() <= MAX_TABLES);
    let (Some(device), Some(entries)) = (device, entries) else { return Ok(None) };
    if let Some((id, table)) =
        ids.iter().zip(tables.iter().cycle()).find(|(id, of)| **id as usize >= of.entries)
    {
        bail!("embedding: id {id} is out of range for {} entries", table.entries)
    }
    let ids = Tensor::new(ids, device)?;
    Pass::of(&ids)?.embedding_sum(&entries, &ids, None).map(Some)
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    #[test]
    fn rows_are_the_same_bits_from_the_file_and_from_memory() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.safetensors");
        for dtype in [DType::F32, DType::F16, DType::BF16] {
            let table = Tensor::randn(0f32, 1.0, (300, 65), &Device::Cpu).unwrap().to_dtype(dtype).unwrap();
            let tensors = HashMap::from([("x.weight".to_owned(), table)]);
            candle_core::safetensors::save(&tensors, &path).unwrap();
            let open = || Checkpoint::open(&path, &Device::Cpu).unwrap();
            let held = Embedding::load(&mut open(), "x", 300, 65).unwrap();
            let stored = Embedding::load_lazy(&mut open(), "x", 300, 65).unwrap();
            assert_eq!((stored.bytes(), stored.entries()), (0, 300));
            for ids in [&[][..], &[299], &[7, 0, 7, 298]] {
                let rows = |from: &Embedding| from.forward(ids).unwrap().to_vec2::<f32>().unwrap();
                assert_eq!(rows(&stored), rows(&held));
            }
            assert!(stored.forward(&[300]).unwrap_err().to_string().contains("300"));
            let mut other = open();
            Embedding::load_lazy(&mut other, "x", 301, 65).unwrap();
            assert!(other.finish().unwrap_err().to_string().contains("expected [301, 65]"));
        }
    }
}
