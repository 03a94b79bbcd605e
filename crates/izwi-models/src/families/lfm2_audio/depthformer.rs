//! The codes of a frame out of the row that decided it: a small stack reads the row's part for each book and the code
//! before, one fused step for all sequences.

use candle_core::{Result, Tensor};

use super::config::{CODES, Config, DEPTH_NAMES};
use izwi_nn::Error;
use izwi_nn::checkpoint::Checkpoint;
use izwi_nn::decoder_stack::{DecoderStack, FrameSteps};
use izwi_nn::layers::{Embedding, Linear, RmsNorm};
use izwi_nn::sampling::{Draw, FrameDraws};
use izwi_types::Precision;

/// Weights of the small stack and of each book.
#[derive(Debug)]
pub(super) struct Depthformer {
    /// A part for each book, `[books * width]`.
    split: Linear,
    stack: DecoderStack,
    books: Vec<Book>,
    width: usize,
}

#[derive(Debug)]
struct Book {
    /// What the code is to the book behind.
    codes: Embedding,
    norm: RmsNorm,
    head: Linear,
}

/// What is computed on the way to a frame, for comparison with a reference.
pub(super) trait WatchDepth {
    /// The rows' parts, `[sequences, books * width]`.
    fn split(&mut self, _parts: &Tensor) {}
    /// Logits of one book, `[sequences, codes]`.
    fn book(&mut self, _logits: &Tensor) {}
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
        let (width, books) = (shape.width, config.codebooks);
        let sizes = (config.lfm.hidden_size, books * width);
        let split = Linear::load_with_precision(from, "depth_linear", sizes, true, precision)?;
        let eps = shape.eps;
        let book = |book| {
            let name = format!("depth_embeddings.{book}");
            let (codes, head) = tables(from, &name, width, config.depthformer.tie)?;
            let norm = RmsNorm::load(from, &format!("{name}.embedding_norm"), width, eps)?;
            let head = Linear::with_precision(&head, None, precision)?;
            Ok(Book { codes: Embedding::new(codes)?, norm, head })
        };
        let books = (0..books).map(book).collect::<std::result::Result<_, Error>>()?;
        Ok(Self {
            split,
            stack: DecoderStack::load(from, "depthformer", shape, &DEPTH_NAMES, precision)?,
            books,
            width,
        })
    }

    /// Bytes of the weights.
    pub(super) fn bytes(&self) -> usize {
        let books: usize = self.books.iter().map(|book| book.codes.bytes() + book.head.bytes()).sum();
        self.split.bytes() + self.stack.bytes() + books
    }

    /// Bytes of the weights that one frame reads: the stack once for every book.
    pub(super) fn frame_bytes(&self) -> usize {
        let heads: usize = self.books.iter().map(|book| book.head.bytes()).sum();
        self.split.bytes() + self.stack.bytes() * self.books.len() + heads
    }

    /// A frame of each sequence, out of the rows `hidden` `[sequences, width]` that decided them.
    ///
    /// # Errors
    /// Shapes do not fit.
    pub(super) fn frames(
        &self,
        hidden: &Tensor,
        draws: &[Draw<'_>],
        watch: &mut dyn WatchDepth,
    ) -> Result<Vec<Vec<u32>>> {
        let parts = self.split.forward(hidden)?; // [sequences, books * width]
        watch.split(&parts);
        let count = draws.len();
        let mut frame = FrameSteps::new(&self.stack, count, self.books.len(), hidden.device())?;
        let mut frames = FrameDraws::new(draws, 0, self.books.len(), hidden.device())?;
        let mut before: Option<Tensor> = None;
        for (at, book) in self.books.iter().enumerate() {
            let part = parts.narrow(1, at * self.width, self.width)?.contiguous()?;
            let x = match before {
                Some(before) => (part + before)?,
                None => part,
            };
            let logits = book.head.forward(&book.norm.forward(&frame.forward(x)?)?)?; // [sequences, codes]
            watch.book(&logits);
            before = Some(book.codes.select(&frames.choose(&logits)?)?);
        }
        frames.finish()
    }
}

/// A book's embedding and its head. Where they are tied, files have both names or one of them.
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
            let table = from.take_stored(&head, &shape)?;
            Ok((table.clone(), table))
        }
        (_, false) if tied => {
            let table = from.take_stored(&codes, &shape)?;
            Ok((table.clone(), table))
        }
        _ => {
            let tables = (from.take_stored(&codes, &shape)?, from.take_stored(&head, &shape)?);
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
