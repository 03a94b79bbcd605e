//! Qwen3-ForcedAligner: when the words of a transcript were said, in one pass over recording and words.
//!
//! The network is that of a transcription with classes of time in place of tokens. Source: the Python package `qwen-asr` 0.0.6.

use std::path::Path;

use super::audio::{self, Window};
use super::config::{Config, Purpose};
use super::decoder::{Decoder, Piece, Span};
use super::tokens::Vocabulary;
use super::tower::Tower;
use crate::families::LoadOptions;
use crate::log_mel::FrontEnd;
use crate::text::spoken_words::{SpokenWord, WordFinder};
use izwi_nn::Error;
use izwi_nn::kv_pool::KvPool;
use izwi_nn::sampling::{argmax, logprob};

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

/// Start and end of a word, in milliseconds from the start of its recording, and how likely they are.
pub(super) type WordTime = ([u64; 2], f32);

/// Words to align with a recording.
#[derive(Debug)]
pub(super) struct Alignment {
    /// Tokens after the rows of the recording.
    pub(super) after: Vec<u32>,
    pub(super) words: Vec<SpokenWord>,
}

impl Alignment {
    /// Positions of the pass over windows and words.
    pub(super) fn positions(&self, windows: &[Window]) -> usize {
        1 + windows.last().map_or(0, |window| window.rows.end) + self.after.len()
    }
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
            let num_tokens = alignment.positions(windows);
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

    /// When each word is said.
    ///
    /// # Errors
    /// As [`Self::logits`].
    pub(super) fn times(
        &self,
        kv: &mut KvPool,
        tasks: &[(&[Window], &Alignment)],
    ) -> Result<Vec<Vec<WordTime>>, Error> {
        let logits = self.logits(kv, tasks)?;
        let mut classes = logits.iter().map(|logits| {
            let class = argmax(logits);
            (class as u64 * self.step_ms, logprob(logits, class).exp())
        });
        let times = tasks.iter().map(|(_, alignment)| {
            let found = classes.by_ref().take(2 * alignment.words.len());
            let (times, likely): (Vec<u64>, Vec<f32>) = found.unzip();
            let likely = likely.as_chunks::<2>().0.iter().map(|[start, end]| (start + end) / 2.0);
            settled(&times).as_chunks().0.iter().copied().zip(likely).collect()
        });
        Ok(times.collect())
    }
}

/// Times that never go back: those that do are moved between the others, of which as many as possible stay.
pub(super) fn settled(times: &[u64]) -> Vec<u64> {
    let mut chains: Vec<(usize, Option<usize>)> = Vec::with_capacity(times.len()); // length, the one before
    for time in times {
        let mut chain = (1, None);
        for (before, (length, _)) in chains.iter().enumerate() {
            if times[before] <= *time && length + 1 > chain.0 {
                chain = (length + 1, Some(before));
            }
        }
        chains.push(chain);
    }
    let longest = chains.iter().map(|(length, _)| *length).max();
    let mut next = chains.iter().position(|(length, _)| Some(*length) == longest);
    let mut stays = vec![false; times.len()];
    while let Some(at) = next {
        stays[at] = true;
        next = chains[at].1;
    }
    let mut settled = times.to_vec();
    let mut start = 0;
    for run in stays.chunk_by(|a, b| a == b) {
        let range = start..start + run.len();
        start = range.end;
        if run[0] {
            continue;
        }
        let before = range.start.checked_sub(1).map(|at| times[at]);
        let after = times.get(range.end).copied();
        for (index, at) in range.clone().enumerate() {
            settled[at] = match (before, after) {
                (Some(before), Some(after)) if run.len() > 2 => {
                    let step = (after - before) as f64 / (run.len() + 1) as f64;
                    (before as f64 + step * (index + 1) as f64) as u64
                }
                (Some(before), Some(_)) if index < run.len() - index => before,
                (Some(before), None) => before,
                (_, Some(after)) => after,
                (None, None) => times[at],
            };
        }
    }
    settled
}
