//! Draws of the next token of several sequences, each with limits on what it may choose. Knows no model.

use candle_core::{DType, Result, Tensor};
use izwi_metal::RowDraw;

use crate::sampling::{Draw, choose, penalise};

/// What a draw may choose, besides its sampling parameters.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DrawLimits {
    /// Repetition penalty on the tokens that were drawn; 1 for none.
    pub penalty: f32,
    /// This token and those after it are never drawn.
    pub first_forbidden: u32,
    /// The exception to [`Self::first_forbidden`], if any.
    pub allowed: Option<u32>,
}

impl Default for DrawLimits {
    fn default() -> Self {
        Self { penalty: 1.0, first_forbidden: u32::MAX, allowed: None }
    }
}

impl DrawLimits {
    /// Draw `index` of `draw` within these limits, for kernels on Metal.
    pub(crate) fn on_metal(self, draw: Draw<'_>, index: usize) -> RowDraw<'_> {
        let Self { penalty, first_forbidden, allowed } = self;
        let (sampling, uniform) = (draw.sampling, draw.uniform(index));
        RowDraw { sampling, uniform, penalty, first_forbidden, allowed }
    }

    /// Lowers the logits of the tokens drawn before, and sets those of forbidden tokens to −∞.
    pub fn apply(&self, logits: &mut [f32], drawn: &[u32]) {
        penalise(logits, drawn, self.penalty);
        for (id, logit) in logits.iter_mut().enumerate().skip(self.first_forbidden as usize) {
            if self.allowed != Some(id as u32) {
                *logit = f32::NEG_INFINITY;
            }
        }
    }
}

/// The next draw of one sequence.
#[derive(Debug, Clone, Copy)]
pub struct TokenDraw<'a> {
    /// Draw 0 gives the token.
    pub draw: Draw<'a>,
    /// What it may choose.
    pub limits: DrawLimits,
    /// The tokens that the penalty lowers.
    pub drawn: &'a [u32],
}

/// The next draws of several sequences.
#[derive(Debug)]
pub struct TokenDraws<'a> {
    rows: Vec<TokenDraw<'a>>,
}

impl<'a> TokenDraws<'a> {
    /// One draw for each row of the logits to come.
    pub fn new(rows: Vec<TokenDraw<'a>>) -> Self {
        Self { rows }
    }

    /// The draws, in the order of rows.
    pub fn rows(&self) -> &[TokenDraw<'a>] {
        &self.rows
    }

    /// The tokens drawn from `logits` `[sequences, vocabulary]`; `None` where the logits' device draws them itself, as a
    /// part of the operation that needs them.
    ///
    /// # Errors
    /// The logits cannot be read.
    pub fn on_host(&self, logits: &Tensor) -> Result<Option<Vec<u32>>> {
        if logits.device().is_metal() {
            return Ok(None);
        }
        let mut logits = logits.to_dtype(DType::F32)?.to_vec2::<f32>()?;
        let tokens = self.rows.iter().zip(&mut logits).map(|(row, logits)| {
            row.limits.apply(logits, row.drawn);
            choose(logits, row.draw.sampling, row.draw.uniform(0))
        });
        Ok(Some(tokens.collect()))
    }
}
