//! Qwen3-ForcedAligner: when the words of a transcript were said, in one pass over recording and words.
//!
//! The network is that of a transcription with classes of time in place of tokens. Source: the Python package `qwen-asr` 0.0.6.

use std::path::Path;

use super::audio::{self, Window};
use super::config::{Config, Purpose};
use super::decoder::{Decoder, Piece, Span};
use super::spoken_words::{SpokenWord, WordFinder, settled};
use super::tokens::Vocabulary;
use super::tower::Tower;
use crate::families::LoadOptions;
use crate::log_mel::FrontEnd;
use izwi_nn::Error;
use izwi_nn::kv_pool::KvPool;
use izwi_nn::sampling::argmax;

/// Two marks follow a word: its start and its end.
const MARKS: &str = "<timestamp><timestamp>";

/// A checkpoint.
#[derive(Debug)]
pub(super) struct Aligner {
    pub(super) config: Config,
    pub(super) vocabulary: Vocabulary,
    front_end: FrontEnd,
    pub(super) words: WordFinder,
    pub(super) tower: Tower,
    pub(super) decoder: Decoder,
    /// The token of a mark.
    mark: u32,
    /// Milliseconds of a class.
    step_ms: u64,
    pub(super) weight_bytes: usize,
}

/// Words to align with a recording.
#[derive(Debug)]
pub(super) struct Alignment {
    /// Tokens after the rows of the recording.
    pub(super) after: Vec<u32>,
    pub(super) words: Vec<SpokenWord>,
}

impl Aligner {
    /// Loads the checkpoint in `folder`.
    ///
    /// # Errors
    /// As [`super::load`].
    pub(super) fn load(folder: &Path, options: &LoadOptions) -> Result<Self, Error> {
        let config = Config::load(folder)?;
        let fault = |message: String| Error::File { path: folder.display().to_string(), message };
        let Purpose::Align { mark, step_ms } = config.purpose else {
            return Err(fault(
                "is no checkpoint of Qwen3-ForcedAligner; put one there or remove it".to_owned(),
            ));
        };
        let vocabulary = Vocabulary::load(folder, config.tokens)?;
        if vocabulary.encode(MARKS) != [mark, mark] {
            return Err(fault(format!(
                "timestamp_token_id is {mark}, which is not the token of <timestamp>"
            )));
        }
        let (tower, decoder, weight_bytes) = super::network(folder, &config, options)?;
        Ok(Self {
            front_end: FrontEnd::new(config.tower.bins),
            words: WordFinder::new()?,
            config,
            vocabulary,
            tower,
            decoder,
            mark,
            step_ms,
            weight_bytes,
        })
    }

    /// The windows of a recording.
    pub(super) fn windows(&self, samples: &[f32]) -> Vec<Window> {
        audio::windows(&self.front_end, samples, self.config.tower.bins, self.config.tower.window_chunks)
    }

    /// What aligns `words`.
    pub(super) fn alignment(&self, words: Vec<SpokenWord>) -> Alignment {
        let marked: String = words.iter().flat_map(|word| [word.text.as_str(), MARKS]).collect();
        Alignment { after: self.vocabulary.encode(&format!("<|audio_end|>{marked}")), words }
    }

    /// Positions of the pass over windows and words.
    pub(super) fn positions(&self, windows: &[Window], alignment: &Alignment) -> usize {
        1 + windows.last().map_or(0, |window| window.rows.end) + alignment.after.len()
    }

    /// The logits of each mark, recordings one after another.
    ///
    /// # Errors
    /// The device is out of memory.
    pub(super) fn logits(
        &self,
        kv: &mut KvPool,
        tasks: &[(&[Window], &Alignment)],
    ) -> Result<Vec<Vec<f32>>, Error> {
        let start = self.vocabulary.encode("<|audio_start|>");
        let windows: Vec<&Window> = tasks.iter().flat_map(|(windows, _)| *windows).collect();
        let mut encoded = self.tower.forward(&windows)?.into_iter();
        let blocks: Vec<[u32; 1]> = (0..tasks.len() as u32).map(|block| [block]).collect();
        let spans = tasks.iter().zip(&blocks).map(|((windows, alignment), block)| {
            let mut pieces = vec![Piece::Tokens(&start)];
            pieces.extend(encoded.by_ref().take(windows.len()).map(Piece::Heard));
            pieces.push(Piece::Tokens(&alignment.after));
            let num_tokens = self.positions(windows, alignment);
            let first = num_tokens - alignment.after.len();
            let marks = alignment.after.iter().enumerate().filter(|(_, token)| **token == self.mark);
            let wanted = marks.map(|(at, _)| first + at).collect();
            Span { pieces, start: 0, num_tokens, block_table: block, wanted }
        });
        let spans: Vec<Span<'_>> = spans.collect();
        let longest = spans.iter().map(|span| span.num_tokens).max().unwrap_or(1);
        let device = self.tower.device();
        let kv = kv.scratch(self.decoder.kv_layout(), spans.len(), longest, device)?;
        self.decoder.forward(kv, &spans)
    }

    /// Start and end of each word, in milliseconds from the start of its recording.
    ///
    /// # Errors
    /// As [`Self::logits`].
    pub(super) fn times(
        &self,
        kv: &mut KvPool,
        tasks: &[(&[Window], &Alignment)],
    ) -> Result<Vec<Vec<[u64; 2]>>, Error> {
        let logits = self.logits(kv, tasks)?;
        let mut classes = logits.iter().map(|logits| argmax(logits) as u64 * self.step_ms);
        let times = tasks.iter().map(|(_, alignment)| {
            let times: Vec<u64> = classes.by_ref().take(2 * alignment.words.len()).collect();
            settled(&times).as_chunks().0.to_vec()
        });
        Ok(times.collect())
    }
}
