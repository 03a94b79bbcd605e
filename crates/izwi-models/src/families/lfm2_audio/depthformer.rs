//! The depth transformer: the codes of a frame from one hidden state, codebook after codebook, in one fused step for all
//! sequences. Its input is the hidden state's part for the codebook plus the embedding of the code before.

use candle_core::{Result, Tensor};

use super::config::{CODES, Config, DEPTH_NAMES};
use izwi_nn::Error;
use izwi_nn::checkpoint::Checkpoint;
use izwi_nn::decoder_stack::{CodebookHead, DecoderStack, FrameDecoder, FrameStart};
use izwi_nn::kv_pool::KvPool;
use izwi_nn::layers::{Embedding, Linear, RmsNorm};
use izwi_nn::sampling::Draw;
use izwi_types::Precision;

/// Weights of the transformer and of each codebook.
#[derive(Debug)]
pub(super) struct Depthformer {
    /// A part for each codebook, `[codebooks * width]`.
    split: Linear,
    stack: DecoderStack,
    codebooks: Vec<Codebook>,
}

#[derive(Debug)]
struct Codebook {
    /// Embedding of the code, for the next codebook.
    codes: Embedding,
    norm: RmsNorm,
    head: Linear,
}

/// Receives the intermediate results of a frame, for comparison with a reference.
pub(super) trait DepthObserver {
    /// The rows' parts, `[sequences, codebooks * width]`.
    fn split(&mut self, _parts: &Tensor) {}
    /// Logits of one codebook, `[sequences, codes]`.
    fn codebook(&mut self, _logits: &Tensor) {}
}

impl Depthformer {
    /// Takes everything under `depth_linear`, `depthformer` and `depth_embeddings`.
    ///
    /// # Errors
    /// As [`Checkpoint::take`]; or a head and an embedding that ought to be one differ.
    pub(super) fn load(
        from: &mut Checkpoint,
        config: &Config,
        precision: Precision,
    ) -> std::result::Result<Self, Error> {
        let shape = config.depth();
        let (width, codebooks) = (shape.width, config.codebooks);
        let sizes = (config.lfm.hidden_size, codebooks * width);
        let split = Linear::load_with_precision(from, "depth_linear", sizes, true, precision)?;
        let eps = shape.eps;
        let codebook = |codebook| {
            let name = format!("depth_embeddings.{codebook}");
            let (codes, head) = tables(from, &name, width, config.depthformer.tie)?;
            let norm = RmsNorm::load(from, &format!("{name}.embedding_norm"), width, eps)?;
            let head = Linear::on_device(&head, precision, from.device())?;
            Ok(Codebook { codes: Embedding::new(codes.to_device(from.device())?)?, norm, head })
        };
        let codebooks = (0..codebooks).map(codebook).collect::<std::result::Result<_, Error>>()?;
        Ok(Self {
            split,
            stack: DecoderStack::load(from, "depthformer", shape, &DEPTH_NAMES, precision)?,
            codebooks,
        })
    }

    /// Bytes of the weights.
    pub(super) fn bytes(&self) -> usize {
        let codebooks: usize =
            self.codebooks.iter().map(|codebook| codebook.codes.bytes() + codebook.head.bytes()).sum();
        self.split.bytes() + self.stack.bytes() + codebooks
    }

    /// Bytes of the weights that one frame reads: the stack once for every codebook.
    pub(super) fn frame_bytes(&self) -> usize {
        let heads: usize = self.codebooks.iter().map(|codebook| codebook.head.bytes()).sum();
        self.split.bytes() + self.stack.bytes() * self.codebooks.len() + heads
    }

    /// A frame of each sequence, from its hidden state `[sequences, width]`.
    ///
    /// # Errors
    /// Shapes do not fit.
    pub(super) fn frames(
        &self,
        hidden: &Tensor,
        draws: &[Draw<'_>],
        kv: &mut KvPool,
        observer: &mut dyn DepthObserver,
    ) -> Result<Vec<Vec<u32>>> {
        let parts = self.split.forward(hidden)?; // [sequences, codebooks * width]
        observer.split(&parts);
        let heads = self.codebooks.iter().map(|codebook| CodebookHead {
            norm: Some(&codebook.norm),
            head: &codebook.head,
            codes: &codebook.codes,
        });
        let heads: Vec<CodebookHead<'_>> = heads.collect();
        let decoder = FrameDecoder { stack: &self.stack, project: None, heads: &heads };
        decoder.decode(FrameStart::Parts(&parts), (draws, 0), kv, &mut |logits| observer.codebook(logits))
    }
}

/// A codebook's embedding and its head. Where they are tied, files have both names or one of them.
fn tables(
    from: &mut Checkpoint,
    name: &str,
    width: usize,
    tied: bool,
) -> std::result::Result<(Tensor, Tensor), Error> {
    let [codes, head] = ["embedding", "to_logits"].map(|part| format!("{name}.{part}.weight"));
    let shape = [CODES, width];
    match (from.shape_of(&codes).is_some(), from.shape_of(&head).is_some()) {
        (false, true) if tied => {
            let table = from.take_host(&head, &shape)?;
            Ok((table.clone(), table))
        }
        (_, false) if tied => {
            let table = from.take_host(&codes, &shape)?;
            Ok((table.clone(), table))
        }
        _ => {
            let tables = (from.take_host(&codes, &shape)?, from.take_host(&head, &shape)?);
            if tied && tables.0.dims() == tables.1.dims() && !are_equal(&tables.0, &tables.1)? {
                return Err(Error::Checkpoint(format!("{codes} and {head} are tied, and differ")));
            }
            Ok(tables)
        }
    }
}

fn are_equal(a: &Tensor, b: &Tensor) -> Result<bool> {
    let differing = a.to_dtype(candle_core::DType::F32)?.ne(&b.to_dtype(candle_core::DType::F32)?)?;
    Ok(differing.max_all()?.to_scalar::<u8>()? == 0)
}
