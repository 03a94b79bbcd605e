//! Transducers: tokens so far predict the next one jointly with each row of the encoder. Greedy search in lockstep over
//! recordings, whose rows may come in pieces. Source: the Python package `nemo-toolkit` 3.0.0 (`GreedyBatchedTDTInfer`, `GreedyBatchedRNNTInfer`).

use std::sync::Arc;

use candle_core::{DType, Device, Tensor};

use super::config::{Config, HeadShape};
use super::vocabulary::Timed;
use crate::keywords::{Keywords, Place};
use izwi_nn::Error;
use izwi_nn::checkpoint::Checkpoint;
use izwi_nn::layers::{Linear, LstmCell};
use izwi_nn::sampling::{argmax, logprob};
use izwi_types::Precision;

/// Rows that are joined at once, as if blanks came: a token that comes makes those after it useless.
const AHEAD: usize = 8;

/// The weights.
#[derive(Debug)]
pub(super) struct Transducer {
    /// Of each token and the blank, `[tokens + 1, width]`.
    embedding: Tensor,
    cells: Vec<LstmCell>,
    rows: Linear,
    prediction: Linear,
    output: Linear,
    durations: Vec<usize>,
    pub(super) max_symbols: usize,
    blank: usize,
    device: Device,
}

/// A search in one recording.
#[derive(Debug)]
pub(super) struct Search {
    /// Rows that are known, and the first of those that the tensor of this pass has, at its row `place`.
    known: usize,
    first: usize,
    place: usize,
    /// The next row; a duration may reach beyond those known.
    at: usize,
    /// Tokens of the row at which the last one came.
    count: usize,
    last: Option<usize>,
    /// Hidden states and cells of the layers, `[1, width]` each.
    states: Vec<[Tensor; 2]>,
    /// What the tokens so far predict, `[1, joint width]`; `None` before the first rows.
    prediction: Option<Tensor>,
    /// What tokens gain, and how far the last ones are in a keyword.
    keywords: Option<Arc<Keywords>>,
    written: Place,
    /// Tokens that were found and not taken yet.
    pub(super) found: Vec<Timed>,
}

impl Search {
    /// This search, in which `keywords` may occur.
    pub(super) fn with(mut self, keywords: &Option<Arc<Keywords>>) -> Self {
        self.keywords.clone_from(keywords);
        self
    }

    fn is_open(&self) -> bool {
        self.at < self.known
    }

    /// The tensor's rows that are joined next.
    fn ahead(&self) -> (usize, usize) {
        (self.place + self.at - self.first, AHEAD.min(self.known - self.at))
    }
}

/// What is decided at a row.
struct Decision {
    token: usize,
    duration: usize,
    logprob: f32,
}

impl Transducer {
    /// Takes `decoder.prediction.*` and `joint.*`.
    ///
    /// # Errors
    /// As [`Checkpoint::take`].
    pub(super) fn load(from: &mut Checkpoint, config: &Config, precision: Precision) -> Result<Self, Error> {
        let HeadShape::Transducer { width, joint, layers, ref durations, max_symbols } = config.head else {
            return Err(Error::Internal("a head is no transducer"));
        };
        let (blank, rows) = (config.tokens, config.encoder.width);
        let embedding = from.take("decoder.prediction.embed.weight", &[blank + 1, width])?;
        let cell =
            |layer| LstmCell::load(from, "decoder.prediction.dec_rnn.lstm", layer, (width, width), precision);
        let cells = (0..layers).map(cell).collect::<Result<_, Error>>()?;
        let outputs = blank + 1 + durations.len();
        let mut linear = |name: &str, sizes| Linear::load_with_precision(from, name, sizes, true, precision);
        Ok(Self {
            embedding: embedding.to_dtype(DType::F32)?,
            cells,
            rows: linear("joint.enc", (rows, joint))?,
            prediction: linear("joint.pred", (width, joint))?,
            output: linear("joint.joint_net.2", (joint, outputs))?,
            durations: durations.clone(),
            max_symbols,
            blank,
            device: from.device().clone(),
        })
    }

    /// Whether its tokens take rows.
    pub(super) fn has_durations(&self) -> bool {
        !self.durations.is_empty()
    }

    /// The tokens of recordings whose rows follow one another in `encoded` `[rows, width]`, `counts` of each, and the rows at
    /// which they come; `keywords` are those of each.
    ///
    /// # Errors
    /// Out of device memory.
    pub(super) fn decode(
        &self,
        encoded: &Tensor,
        counts: &[usize],
        keywords: &[Option<Arc<Keywords>>],
    ) -> Result<Vec<Vec<Timed>>, Error> {
        let begin = |keywords| Ok(self.begin()?.with(keywords));
        let mut searches = keywords.iter().map(begin).collect::<Result<Vec<_>, Error>>()?;
        self.advance(encoded, counts, &mut searches.iter_mut().collect::<Vec<_>>())?;
        Ok(searches.into_iter().map(|search| search.found).collect())
    }

    /// A search in a recording without rows yet.
    ///
    /// # Errors
    /// Out of device memory.
    pub(super) fn begin(&self) -> Result<Search, Error> {
        let state = |cell: &LstmCell| {
            let zeros = Tensor::zeros((1, cell.hidden()), DType::F32, &self.device)?;
            Ok::<_, Error>([zeros.clone(), zeros])
        };
        Ok(Search {
            known: 0,
            first: 0,
            place: 0,
            at: 0,
            count: 0,
            last: None,
            states: self.cells.iter().map(state).collect::<Result<_, _>>()?,
            prediction: None,
            keywords: None,
            written: Place::default(),
            found: Vec::new(),
        })
    }

    /// As [`Self::decode`] for the next rows of `searches`.
    ///
    /// # Errors
    /// Out of device memory.
    pub(super) fn advance(
        &self,
        encoded: &Tensor,
        counts: &[usize],
        searches: &mut [&mut Search],
    ) -> Result<(), Error> {
        let rows = self.rows.forward(encoded)?; // [rows, joint width]
        self.extend(counts, searches)?;
        loop {
            let open: Vec<usize> = (0..searches.len()).filter(|&index| searches[index].is_open()).collect();
            if open.is_empty() {
                return Ok(());
            }
            let told = self.find(searches, &open, &rows)?;
            self.predict(searches, &told)?;
        }
    }

    /// Begins a pass with `counts` more rows of each search.
    fn extend(&self, counts: &[usize], searches: &mut [&mut Search]) -> Result<(), Error> {
        let mut place = 0;
        for (search, count) in searches.iter_mut().zip(counts) {
            (search.first, search.place) = (search.known, place);
            search.known += count;
            place += count;
        }
        let new = (0..searches.len()).filter(|&index| searches[index].prediction.is_none());
        let told: Vec<(usize, usize)> = new.map(|index| (index, self.blank)).collect();
        self.predict(searches, &told)
    }

    /// Tells searches, by index, their newest tokens.
    fn predict(&self, searches: &mut [&mut Search], told: &[(usize, usize)]) -> Result<(), Error> {
        if told.is_empty() {
            return Ok(());
        }
        let tokens: Vec<u32> = told.iter().map(|&(_, token)| token as u32).collect();
        let mut x = self.embedding.index_select(&Tensor::new(tokens, &self.device)?, 0)?;
        for (layer, cell) in self.cells.iter().enumerate() {
            let part = |part: usize| {
                let states: Vec<&Tensor> =
                    told.iter().map(|&(index, _)| &searches[index].states[layer][part]).collect();
                Tensor::cat(&states, 0)
            };
            let [hidden, cells] = cell.step(&x, [&part(0)?, &part(1)?])?;
            for (row, &(index, _)) in told.iter().enumerate() {
                searches[index].states[layer] = [hidden.narrow(0, row, 1)?, cells.narrow(0, row, 1)?];
            }
            x = hidden;
        }
        let predictions = self.prediction.forward(&x)?;
        for (row, &(index, _)) in told.iter().enumerate() {
            searches[index].prediction = Some(predictions.narrow(0, row, 1)?);
        }
        Ok(())
    }

    /// Goes on in the `open` searches until a token comes in each, or for some rows. Returns the tokens.
    fn find(
        &self,
        searches: &mut [&mut Search],
        open: &[usize],
        rows: &Tensor,
    ) -> Result<Vec<(usize, usize)>, Error> {
        let joined = open.iter().map(|&index| Self::joined(searches[index], rows));
        let joined = joined.collect::<Result<Vec<_>, Error>>()?;
        let logits = self.output.forward(&Tensor::cat(&joined, 0)?.relu()?)?.to_vec2::<f32>()?;
        let (mut told, mut next) = (Vec::new(), logits.as_slice());
        for &index in open {
            let (own, rest) = next.split_at(searches[index].ahead().1);
            next = rest;
            let token = self.follow(searches[index], own);
            told.extend(token.map(|token| (index, token)));
        }
        Ok(told)
    }

    /// The next rows of a search joined with what its tokens predict.
    fn joined(search: &Search, rows: &Tensor) -> Result<Tensor, Error> {
        let missing = Error::Internal("a search has no prediction");
        let prediction = search.prediction.as_ref().ok_or(missing)?;
        let (start, count) = search.ahead();
        Ok(rows.narrow(0, start, count)?.broadcast_add(prediction)?)
    }

    /// Follows the decisions at the rows from the next one on until a token comes.
    fn follow(&self, search: &mut Search, logits: &[Vec<f32>]) -> Option<usize> {
        let first = search.at;
        while let Some(logits) = logits.get(search.at - first) {
            let Decision { token, duration, logprob } = self.decide(search, logits);
            if token == self.blank {
                search.at += duration.max(1);
                continue;
            }
            let at = search.at;
            if let Some(keywords) = &search.keywords {
                search.written = keywords.next(search.written, &logits[..=self.blank], token);
            }
            let ahead = if self.durations.is_empty() { 1 } else { duration };
            search.found.push(Timed { token: token as u32, start: at, end: at + ahead, logprob });
            search.count = if search.last == Some(at) { search.count + 1 } else { 1 };
            search.last = Some(at);
            search.at += duration;
            if search.count >= self.max_symbols && search.at == at {
                search.at += 1;
            }
            return Some(token);
        }
        None
    }

    fn decide(&self, search: &Search, logits: &[f32]) -> Decision {
        let (tokens, durations) = logits.split_at(self.blank + 1);
        let keywords = search.keywords.as_ref();
        let token =
            keywords.map_or_else(|| argmax(tokens), |keywords| keywords.likeliest(search.written, tokens));
        let duration = self.durations.get(argmax(durations)).copied().unwrap_or(0);
        Decision { token, duration, logprob: logprob(tokens, token) }
    }
}

/// For tests: what the networks make.
#[cfg(test)]
impl Transducer {
    /// The logits of each decision of one recording, with the row of each.
    pub(super) fn decisions(&self, encoded: &Tensor) -> Vec<(usize, Vec<f32>)> {
        let rows = self.rows.forward(encoded).unwrap();
        let mut search = self.begin().unwrap();
        self.extend(&[rows.dim(0).unwrap()], &mut [&mut search]).unwrap();
        let mut decisions = Vec::new();
        while search.is_open() {
            let joined = Self::joined(&search, &rows).unwrap().narrow(0, 0, 1).unwrap();
            let logits = self.output.forward(&joined.relu().unwrap()).unwrap().to_vec2::<f32>().unwrap();
            decisions.push((search.at, logits[0].clone()));
            let told = self.follow(&mut search, &logits).map(|token| (0, token));
            self.predict(&mut [&mut search], told.as_slice()).unwrap();
        }
        decisions
    }
}
