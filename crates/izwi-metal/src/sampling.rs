//! Draws of tokens on a device, each with the lookup of its embedding in one kernel. Knows no layer and no codec.
//!
//! A draw follows `choose` of the CPU, with probabilities that are f32 rounded to multiples of
//! 2⁻⁴⁰ instead of f64: it differs where a uniform number falls within about 1e-7 of the edge between two tokens, and never
//! chooses a token less than 2⁻⁴⁰ times as likely as the first. It depends on the row alone, not on the batch.

use candle_core::{DType, MetalDevice, Result, Tensor, bail};
use izwi_types::SamplingParams;

use crate::driver::{empty, upload};
use crate::kernel::{Grid, Kernel, Source};
use crate::pass::{Arg, Pass};

/// Words of a setting, as in sampling.metal.
const SETTING: usize = 8;
/// Most tokens of a row: the sum of a thread's probabilities stays below 2⁵¹.
const MAX_CODES: usize = 1 << 20;

/// One draw of one row.
#[derive(Debug, Clone, Copy)]
pub struct RowDraw<'a> {
    /// How to choose.
    pub sampling: &'a SamplingParams,
    /// The random number, from 0 to 1.
    pub uniform: f64,
    /// Repetition penalty on the tokens that were drawn; 1 for none.
    pub penalty: f32,
    /// This token and those after it are never drawn.
    pub first_forbidden: u32,
    /// The exception to [`Self::first_forbidden`], if any.
    pub allowed: Option<u32>,
}

/// Parameters of all draws of all rows, uploaded together.
#[derive(Debug, Clone)]
pub struct DrawTable {
    settings: Tensor, // [bytes] u8
    /// A bit for each token drawn before, `[bytes]` u8; the kernel adds to them.
    drawn: Option<Tensor>,
    rows: usize,
    draws: usize,
    /// Words of a row of `drawn`.
    mask_words: usize,
}

/// The embedding of a drawn token.
#[derive(Debug, Clone, Copy)]
pub struct Lookup<'a> {
    /// `[entries, width]` of f32, f16 or bf16.
    pub table: &'a Tensor,
    /// `[rows, n]` f32, added from this column on.
    pub add: Option<(&'a Tensor, usize)>,
    /// f32, the same number of elements for each row of logits: the embedding goes to `width` of them.
    pub out: &'a Tensor,
    /// The first of those elements.
    pub start: usize,
}

impl DrawTable {
    /// Of `draws` `[draws, rows]`. `drawn` has for each row the tokens that its penalties lower, each below `codes`; it is
    /// read where a draw has a penalty.
    ///
    /// # Errors
    /// The numbers of draws and rows do not fit, or the device is out of memory.
    pub fn new(
        device: &MetalDevice,
        draws: &[RowDraw<'_>],
        rows: usize,
        drawn: &[&[u32]],
        codes: usize,
    ) -> Result<Self> {
        let penalised = draws.iter().any(|draw| draw.penalty != 1.0);
        if rows == 0 || !draws.len().is_multiple_of(rows) || (penalised && drawn.len() != rows) {
            bail!("draw: {} draws and {} masks do not fit {rows} rows", draws.len(), drawn.len())
        }
        let mask_words = if penalised { codes.div_ceil(32) } else { 0 };
        let mut words: Vec<u32> = draws.iter().flat_map(RowDraw::setting).collect();
        let settings = 4 * words.len();
        let start = words.len();
        words.resize(start + rows * mask_words, 0);
        for (mask, drawn) in words[start..].chunks_exact_mut(mask_words.max(1)).zip(drawn) {
            for &token in drawn.iter().filter(|&&token| (token as usize) < codes) {
                mask[token as usize / 32] |= 1 << (token % 32);
            }
        }
        let bytes: Vec<u8> = words.into_iter().flat_map(u32::to_le_bytes).collect();
        let bytes = upload(device, &bytes)?;
        let drawn = match penalised {
            true => Some(bytes.narrow(0, settings, bytes.elem_count() - settings)?),
            false => None,
        };
        let draws = draws.len() / rows;
        Ok(Self { settings: bytes.narrow(0, 0, settings)?, drawn, rows, draws, mask_words })
    }

    /// A tensor for the tokens of all draws, `[draws, rows]` u32.
    ///
    /// # Errors
    /// The device is out of memory.
    pub fn codes(&self, device: &MetalDevice) -> Result<Tensor> {
        empty(device, (self.draws, self.rows), DType::U32)
    }
}

impl RowDraw<'_> {
    fn setting(&self) -> [u32; SETTING] {
        let sampling = self.sampling;
        let temperature = if sampling.temperature <= 0.0 { 0.0 } else { sampling.temperature };
        // A conversion from f64 saturates.
        let top_p = (f64::from(sampling.top_p) * 2f64.powi(32)) as u32;
        let uniform = (self.uniform * 2f64.powi(64)) as u64;
        [
            (uniform >> 32) as u32,
            uniform as u32,
            temperature.to_bits(),
            u32::try_from(sampling.top_k).unwrap_or(0),
            if sampling.top_p < 1.0 { top_p.max(1) } else { 0 },
            self.penalty.to_bits(),
            self.first_forbidden,
            self.allowed.unwrap_or(u32::MAX),
        ]
    }
}

impl Pass<'_> {
    /// Draws the tokens of draw `draw` of a table from `logits` `[rows, codes]` f32 into row `draw` of `codes`
    /// `[draws, rows]` u32, and looks up their embeddings.
    ///
    /// # Errors
    /// Shapes do not fit.
    pub fn draw(
        &self,
        logits: &Tensor,
        table: &DrawTable,
        draw: usize,
        codes: &Tensor,
        lookup: Option<Lookup<'_>>,
    ) -> Result<()> {
        let (rows, count) = logits.dims2()?;
        let masks = 32 * table.mask_words;
        let fits = logits.dtype() == DType::F32
            && rows == table.rows
            && draw < table.draws
            && codes.dims() == [table.draws, rows];
        if !fits || count == 0 || count > MAX_CODES || (masks > 0 && masks < count) {
            bail!(
                "draw: logits {:?} of {:?} do not fit draw {draw} of {} of {} rows and {masks} tokens, codes {:?}",
                logits.dims(),
                logits.dtype(),
                table.draws,
                table.rows,
                codes.dims()
            )
        }
        let id_bits = (usize::BITS - (count - 1).leading_zeros()).next_multiple_of(2).max(2);
        let codes = codes.narrow(0, draw, 1)?;
        let mut params = vec![count as u32, id_bits, (draw * rows) as u32, table.mask_words as u32];
        params.extend(lookup.map_or(Ok([0; 8]), |lookup| lookup.params(rows))?);
        let args = [
            Arg::In(logits),
            Arg::In(&table.settings),
            Arg::Out(table.drawn.as_ref().unwrap_or(&codes)),
            Arg::Out(&codes),
            Arg::Params(&params),
            Arg::optional(lookup.map(|lookup| lookup.table)),
            Arg::optional(lookup.and_then(|lookup| lookup.add).map(|(add, _)| add)),
            Arg::Out(lookup.map_or(&codes, |lookup| lookup.out)),
        ];
        let threads = count.div_ceil(8).next_multiple_of(32).min(512);
        self.run(Kernel(Source::Sampling, "draw"), &args, Grid { groups: [rows, 1, 1], threads })
    }
}

impl Lookup<'_> {
    /// The part of the kernel's parameters.
    fn params(&self, rows: usize) -> Result<[u32; 8]> {
        let (entries, width) = self.table.dims2()?;
        let stride = self.out.elem_count() / rows.max(1);
        let (add_stride, add_start) = match self.add {
            Some((add, start)) => (add.elem_count() / rows.max(1), start),
            None => (0, 0),
        };
        let added = self.add.map_or(width, |_| add_stride.saturating_sub(add_start));
        if entries == 0 || self.start + width > stride || added < width {
            bail!(
                "draw: embeddings {:?} do not fit {:?} from element {} of {rows} rows",
                self.table.dims(),
                self.out.dims(),
                self.start
            )
        }
        Ok([
            width as u32,
            entries as u32,
            dtype_code(self.table)?,
            self.add.is_some().into(),
            add_stride as u32,
            add_start as u32,
            stride as u32,
            self.start as u32,
        ])
    }
}

/// The number of a table's type in the kernels.
///
/// # Errors
/// The table is not f32, f16 or bf16.
pub(super) fn dtype_code(table: &Tensor) -> Result<u32> {
    Ok(match table.dtype() {
        DType::F32 => 0,
        DType::F16 => 1,
        DType::BF16 => 2,
        other => bail!("embedding: a table of type {other:?} is not f32, f16 or bf16"),
    })
}
