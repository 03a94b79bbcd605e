//! Transducers: tokens so far predict the next one jointly with each row of the encoder. Greedy search in lockstep over
//! recordings. Source: the Python package `nemo-toolkit` 3.0.0 (`GreedyBatchedTDTInfer`, `GreedyBatchedRNNTInfer`).

use std::ops::Range;

use candle_core::{DType, Device, Tensor};

use super::config::{Config, HeadShape};
use super::vocabulary::Timed;
use izwi_nn::Error;
use izwi_nn::checkpoint::Checkpoint;
use izwi_nn::layers::{Linear, LstmCell};
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
struct Search {
    /// Its rows among those of all recordings.
    rows: Range<usize>,
    /// The next row.
    at: usize,
    /// Tokens of the row at which the last one came.
    count: usize,
    last: Option<usize>,
    /// Hidden states and cells of the layers, `[1, width]` each.
    states: Vec<[Tensor; 2]>,
    /// What the tokens so far predict, `[1, joint width]`.
    prediction: Tensor,
    found: Vec<Timed>,
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
        let HeadShape::Transducer { width, layers, ref durations, max_symbols } = config.head else {
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
            rows: linear("joint.enc", (rows, width))?,
            prediction: linear("joint.pred", (width, width))?,
            output: linear("joint.joint_net.2", (width, outputs))?,
            durations: durations.clone(),
            max_symbols,
            blank,
            device: from.device().clone(),
        })
    }

    /// The tokens of recordings whose rows follow one another in `encoded` `[rows, width]`, `counts` of each, and the rows at
    /// which they come.
    ///
    /// # Errors
    /// Out of device memory.
    pub(super) fn decode(&self, encoded: &Tensor, counts: &[usize]) -> Result<Vec<Vec<Timed>>, Error> {
        let rows = self.rows.forward(encoded)?; // [rows, joint width]
        let mut end = 0;
        let begun = counts.iter().map(|count| {
            end += count;
            Ok(Search {
                rows: end - count..end,
                at: 0,
                count: 0,
                last: None,
                states: self.begin()?,
                prediction: rows.narrow(0, 0, 1)?,
                found: Vec::new(),
            })
        });
        let mut searches = begun.collect::<Result<Vec<_>, Error>>()?;
        let mut told: Vec<(usize, usize)> = (0..searches.len()).map(|index| (index, self.blank)).collect();
        loop {
            self.predict(&mut searches, &told)?;
            let open: Vec<usize> = (0..searches.len())
                .filter(|&index| searches[index].at < searches[index].rows.len())
                .collect();
            if open.is_empty() {
                break;
            }
            told = self.advance(&mut searches, &open, &rows)?;
        }
        Ok(searches.into_iter().map(|search| search.found).collect())
    }

    fn begin(&self) -> Result<Vec<[Tensor; 2]>, Error> {
        let state = |cell: &LstmCell| {
            let zeros = Tensor::zeros((1, cell.hidden()), DType::F32, &self.device)?;
            Ok([zeros.clone(), zeros])
        };
        self.cells.iter().map(state).collect()
    }

    /// Tells searches, by index, their newest tokens.
    fn predict(&self, searches: &mut [Search], told: &[(usize, usize)]) -> Result<(), Error> {
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
            searches[index].prediction = predictions.narrow(0, row, 1)?;
        }
        Ok(())
    }

    /// Goes on in the `open` searches until a token comes in each, or for some rows. Returns the tokens.
    fn advance(
        &self,
        searches: &mut [Search],
        open: &[usize],
        rows: &Tensor,
    ) -> Result<Vec<(usize, usize)>, Error> {
        let mut parts = Vec::with_capacity(open.len());
        for &index in open {
            let search = &searches[index];
            let count = AHEAD.min(search.rows.len() - search.at);
            let ahead = rows.narrow(0, search.rows.start + search.at, count)?;
            parts.push(ahead.broadcast_add(&search.prediction)?);
        }
        let logits = self.output.forward(&Tensor::cat(&parts, 0)?.relu()?)?;
        let logits = logits.to_vec2::<f32>()?;
        let (mut told, mut next) = (Vec::new(), logits.as_slice());
        for &index in open {
            let search = &mut searches[index];
            let (own, rest) = next.split_at(AHEAD.min(search.rows.len() - search.at));
            next = rest;
            let token = self.follow(search, own);
            told.extend(token.map(|token| (index, token)));
        }
        Ok(told)
    }

    /// Follows the decisions at the rows from the next one on until a token comes.
    fn follow(&self, search: &mut Search, logits: &[Vec<f32>]) -> Option<usize> {
        let first = search.at;
        while let Some(logits) = logits.get(search.at - first) {
            let Decision { token, duration, logprob } = self.decide(logits);
            if token == self.blank {
                search.at += duration.max(1);
                continue;
            }
            let at = search.at;
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

    fn decide(&self, logits: &[f32]) -> Decision {
        let (tokens, durations) = logits.split_at(self.blank + 1);
        let token = super::likeliest(tokens);
        let duration = self.durations.get(super::likeliest(durations)).copied().unwrap_or(0);
        Decision { token, duration, logprob: super::logprob(tokens, token) }
    }
}

/// For tests: what the networks make.
#[cfg(test)]
impl Transducer {
    /// The logits of each decision of one recording, with the row of each.
    pub(super) fn decisions(&self, encoded: &Tensor) -> Vec<(usize, Vec<f32>)> {
        let rows = self.rows.forward(encoded).unwrap();
        let count = rows.dim(0).unwrap();
        let mut searches = vec![Search {
            rows: 0..count,
            at: 0,
            count: 0,
            last: None,
            states: self.begin().unwrap(),
            prediction: rows.narrow(0, 0, 1).unwrap(),
            found: Vec::new(),
        }];
        self.predict(&mut searches, &[(0, self.blank)]).unwrap();
        let mut decisions = Vec::new();
        while searches[0].at < count {
            let at = searches[0].at;
            let joined = (rows.narrow(0, at, 1).unwrap() + &searches[0].prediction).unwrap();
            let logits = self.output.forward(&joined.relu().unwrap()).unwrap().to_vec2::<f32>().unwrap();
            decisions.push((at, logits[0].clone()));
            let told = self.follow(&mut searches[0], &logits);
            self.predict(&mut searches, &told.map(|token| (0, token)).into_iter().collect::<Vec<_>>())
                .unwrap();
        }
        decisions
    }
}
