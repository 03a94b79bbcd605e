//! Weights of linear layers on a Metal device, in the layout that `linear.metal` reads. Knows no layer.

use candle_core::{CpuStorage, DType, Device, MetalDevice, Result, Storage, Tensor, bail};
use half::{bf16, f16};
use izwi_kernels::linear::{ROW_BLOCK, quantise_row_q4, quantise_row_q8};
use izwi_types::Precision;
use rayon::prelude::*;

use crate::driver::upload;
use crate::kernel::{Grid, Kernel, Source};
use crate::pass::{Arg, Pass};

/// How values are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stored {
    F32,
    F16,
    Bf16,
    Q8,
    Q4,
}

impl Stored {
    fn bits(self) -> usize {
        match self {
            Self::F32 => 32,
            Self::F16 | Self::Bf16 => 16,
            Self::Q8 => 8,
            Self::Q4 => 4,
        }
    }

    fn has_scales(self) -> bool {
        matches!(self, Self::Q8 | Self::Q4)
    }
}

/// A weight `[outputs, inputs]` on a device: rows of values or levels, then rows of scales. Rows are padded with zeros to
/// whole blocks of 32 inputs.
#[derive(Debug, Clone)]
pub struct MetalWeights {
    data: Tensor, // [bytes] u8
    stored: Stored,
    inputs: usize,
    outputs: usize,
}

impl MetalWeights {
    /// From a weight `[outputs, inputs]` of a floating-point type, on any device. [`Precision::F32`] keeps 16-bit weights in
    /// their type, which is exact.
    ///
    /// # Errors
    /// The device is out of memory, or the weight has another shape.
    pub fn new(weight: &Tensor, precision: Precision, device: &MetalDevice) -> Result<Self> {
        let (outputs, inputs) = weight.dims2()?;
        let weight = weight.to_device(&Device::Cpu)?.contiguous()?;
        let stored = match (precision, weight.dtype()) {
            (Precision::F32, DType::F16) | (Precision::F16, _) => Stored::F16,
            (Precision::F32, DType::BF16) | (Precision::Bf16, _) => Stored::Bf16,
            (Precision::F32, _) => Stored::F32,
            (Precision::Auto | Precision::Q8, _) => Stored::Q8,
            (Precision::Q4, _) => Stored::Q4,
        };
        let bytes = pack(&weight, stored, inputs, outputs)?;
        Ok(Self { data: upload(device, &bytes)?, stored, inputs, outputs })
    }

    /// Bytes on the device.
    pub fn bytes(&self) -> usize {
        self.data.elem_count()
    }

    pub(crate) fn data(&self) -> &Tensor {
        &self.data
    }

    /// The device that holds it.
    pub fn device(&self) -> &Device {
        self.data.device()
    }

    /// Rows `ids` `[ids]` u32, each below the outputs: `[ids, inputs]` f32.
    ///
    /// # Errors
    /// The ids are on another device.
    pub fn lookup(&self, ids: &Tensor) -> Result<Tensor> {
        let pass = Pass::of(ids)?;
        let rows = pass.empty((ids.dim(0)?, self.inputs), DType::F32)?;
        let params =
            [self.inputs as u32, self.row_bytes() as u32, self.scales() as u32, self.blocks() as u32];
        let grid = Grid { groups: [self.inputs.div_ceil(256), ids.dim(0)?, 1], threads: 32 };
        let args = [Arg::In(&self.data), Arg::In(ids), Arg::Out(&rows), Arg::Params(&params)];
        pass.run(Kernel(Source::Linear, self.lookup_kernel()), &args, grid)?;
        Ok(rows)
    }

    pub(crate) fn inputs(&self) -> usize {
        self.inputs
    }

    pub(crate) fn stored(&self) -> Stored {
        self.stored
    }

    pub(crate) fn outputs(&self) -> usize {
        self.outputs
    }

    /// Bytes of a stored row.
    pub(crate) fn row_bytes(&self) -> usize {
        row_bytes(self.stored, self.inputs)
    }

    /// Bytes from the start to the scales.
    pub(crate) fn scales(&self) -> usize {
        self.outputs * self.row_bytes()
    }

    /// Blocks of a row.
    pub(crate) fn blocks(&self) -> usize {
        self.inputs.div_ceil(ROW_BLOCK)
    }

    /// The kernel that reads the weight once for up to `rows` rows (1, 2, 4, 8 or 16).
    pub(crate) fn rows_kernel(&self, rows: usize) -> &'static str {
        macro_rules! of {
            ($($kind:ident = $name:literal),+) => {
                match (self.stored, rows) {
                    $((Stored::$kind, 1) => concat!("linear_rows_", $name, "_1"),
                    (Stored::$kind, 2) => concat!("linear_rows_", $name, "_2"),
                    (Stored::$kind, 4) => concat!("linear_rows_", $name, "_4"),
                    (Stored::$kind, 8) => concat!("linear_rows_", $name, "_8"),
                    (Stored::$kind, _) => concat!("linear_rows_", $name, "_16"),)+
                }
            };
        }
        of!(F32 = "f32", F16 = "f16", Bf16 = "bf16", Q8 = "q8", Q4 = "q4")
    }

    /// The kernel that multiplies tiles of 32 rows.
    pub(crate) fn tiles_kernel(&self) -> &'static str {
        match self.stored {
            Stored::F32 => "linear_tiles_f32",
            Stored::F16 => "linear_tiles_f16",
            Stored::Bf16 => "linear_tiles_bf16",
            Stored::Q8 => "linear_tiles_q8",
            Stored::Q4 => "linear_tiles_q4",
        }
    }

    /// The kernel that looks up rows.
    pub(crate) fn lookup_kernel(&self) -> &'static str {
        match self.stored {
            Stored::F32 => "lookup_f32",
            Stored::F16 => "lookup_f16",
            Stored::Bf16 => "lookup_bf16",
            Stored::Q8 => "lookup_q8",
            Stored::Q4 => "lookup_q4",
        }
    }

    /// The kernel that multiplies the states of an LSTM.
    pub(crate) fn lstm_kernel(&self) -> &'static str {
        match self.stored {
            Stored::F32 => "lstm_f32",
            Stored::F16 => "lstm_f16",
            Stored::Bf16 => "lstm_bf16",
            Stored::Q8 => "lstm_q8",
            Stored::Q4 => "lstm_q4",
        }
    }
}

fn row_bytes(stored: Stored, inputs: usize) -> usize {
    inputs.next_multiple_of(ROW_BLOCK) * stored.bits() / 8
}

fn pack(weight: &Tensor, stored: Stored, inputs: usize, outputs: usize) -> Result<Vec<u8>> {
    let row_bytes = row_bytes(stored, inputs);
    let row_scales = if stored.has_scales() { 2 * inputs.div_ceil(ROW_BLOCK) } else { 0 };
    let mut bytes = vec![0u8; outputs * (row_bytes + row_scales)];
    if inputs == 0 || outputs == 0 {
        bail!("linear: a weight of {outputs} outputs and {inputs} inputs is empty")
    }
    let (levels, scales) = bytes.split_at_mut(outputs * row_bytes);
    let (storage, layout) = weight.storage_and_layout();
    let Storage::Cpu(storage) = &*storage else { bail!("linear: the weight is not on the CPU") };
    let start = layout.start_offset();
    let read = |output: usize, row: &mut [f32]| {
        let part = start + output * inputs..start + (output + 1) * inputs;
        match storage {
            CpuStorage::F32(values) => row.copy_from_slice(&values[part]),
            CpuStorage::F16(values) => convert(row, &values[part], f16::to_f32),
            CpuStorage::BF16(values) => convert(row, &values[part], bf16::to_f32),
            CpuStorage::F64(values) => convert(row, &values[part], |value| value as f32),
            _ => return false,
        }
        true
    };
    let rows = |output: usize, levels: &mut [u8], scales: &mut [u8]| {
        let mut row = vec![0f32; inputs];
        if !read(output, &mut row) {
            return false;
        }
        match stored {
            Stored::Q8 => quantise_row_q8(&row, levels, scales),
            Stored::Q4 => quantise_row_q4(&row, levels, scales),
            Stored::F32 => store(levels, &row, f32::to_le_bytes),
            Stored::F16 => store(levels, &row, |value| f16::from_f32(value).to_le_bytes()),
            Stored::Bf16 => store(levels, &row, |value| bf16::from_f32(value).to_le_bytes()),
        }
        true
    };
    let levels = levels.par_chunks_mut(row_bytes).enumerate();
    let is_read = if row_scales == 0 {
        levels.map(|(output, levels)| rows(output, levels, &mut [])).all(|read| read)
    } else {
        let pairs = levels.zip(scales.par_chunks_mut(row_scales));
        pairs.map(|((output, levels), scales)| rows(output, levels, scales)).all(|read| read)
    };
    if !is_read {
        bail!("linear: a weight of type {:?} is not a floating-point tensor", weight.dtype())
    }
    Ok(bytes)
}

fn convert<T: Copy>(row: &mut [f32], values: &[T], convert: impl Fn(T) -> f32) {
    row.iter_mut().zip(values).for_each(|(to, &value)| *to = convert(value));
}

fn store<const N: usize>(bytes: &mut [u8], row: &[f32], bits: impl Fn(f32) -> [u8; N]) {
    let places = bytes.as_chunks_mut::<N>().0.iter_mut();
    places.zip(row).for_each(|(place, &value)| *place = bits(value));
}
