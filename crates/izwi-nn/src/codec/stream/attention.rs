//! Attention over the windows of streams, and over a whole sequence, from a projection of queries, keys and values. Knows no
//! projection.

use candle_core::{Result, Tensor, bail};

use super::{Streams, WindowPlace};
use crate::attention::window::{Window, causal, windowed};
use crate::layers::{RmsNorm, Rope, RopeRows};
use izwi_metal::window as on_metal;

/// The heads of a projection `[rows, (heads + 2 * kv_heads) * head_dim]`: queries, then keys, then values; consecutive heads
/// of queries share keys and values.
#[derive(Debug, Clone, Copy)]
pub struct MixedHeads<'a> {
    /// Heads of the queries.
    pub heads: usize,
    /// Heads of keys and values.
    pub kv_heads: usize,
    /// The rotation.
    pub rope: &'a Rope,
    /// The positions of the rows.
    pub positions: &'a RopeRows,
    /// Norms of the heads of queries and keys, before the rotation.
    pub norms: Option<[&'a RmsNorm; 2]>,
}

impl MixedHeads<'_> {
    /// Queries and keys, normed and rotated, and values.
    fn split(self, mixed: &Tensor) -> Result<[Tensor; 3]> {
        let all = self.heads + 2 * self.kv_heads;
        let head_dim = mixed.dim(1)?.checked_div(all).unwrap_or(0);
        if head_dim * all != mixed.dim(1)? {
            bail!("window attention: {:?} is not {all} heads of one width", mixed.dims())
        }
        let (width, kv_width) = (self.heads * head_dim, self.kv_heads * head_dim);
        let turn = |start: usize, width: usize, norm: Option<&RmsNorm>| {
            let x = mixed.narrow(1, start, width)?;
            match norm {
                Some(norm) => self.rope.forward_normed(&x, self.positions, norm),
                None => self.rope.forward(&x, self.positions),
            }
        };
        let [query_norm, key_norm] = self.norms.map_or([None; 2], |norms| norms.map(Some));
        let v = mixed.narrow(1, width + kv_width, kv_width)?;
        Ok([turn(0, width, query_norm)?, turn(width, kv_width, key_norm)?, v])
    }

    fn on_metal(&self) -> Result<on_metal::Heads<'_>> {
        let Some(turns) = self.positions.turns() else { bail!("window attention: no positions") };
        let norms = self.norms.map(|norms| (norms.map(RmsNorm::weight), norms[0].eps()));
        Ok(on_metal::Heads { heads: self.heads, kv_heads: self.kv_heads, norms, turns })
    }
}

impl Streams<'_> {
    /// New rows of every sequence over their windows, which they enter: `[rows, heads * head_dim]`.
    ///
    /// # Errors
    /// Shapes do not fit.
    pub fn attend(
        &mut self,
        place: WindowPlace,
        mixed: Tensor,
        heads: MixedHeads<'_>,
        window: Window,
    ) -> Result<Tensor> {
        if let Some(table) = self.window_table(place)? {
            return on_metal::windowed(&mixed, heads.on_metal()?, window, &table);
        }
        let [q, k, v] = heads.split(&mixed)?;
        let rows = self.rows().to_vec();
        windowed([&q, &k, &v], heads.heads, window, &rows, &mut self.windows(place))
    }
}

/// Causal attention of one sequence from its first position on: `[rows, heads * head_dim]`.
///
/// # Errors
/// Shapes do not fit, or there are fewer heads of keys than of queries.
pub fn attend_whole(mixed: Tensor, heads: MixedHeads<'_>) -> Result<Tensor> {
    if mixed.device().is_metal() {
        return on_metal::causal(&mixed, heads.on_metal()?);
    }
    let [q, k, v] = heads.split(&mixed)?;
    causal([&q, &k, &v], heads.heads)
}
