//! LSTMs: bidirectional over packed rows, all sequences at once, and one step of one layer.
//! <https://docs.pytorch.org/docs/stable/generated/torch.nn.LSTM.html>.

use candle_core::{Result, Tensor, bail};

use super::{Linear, PackedRows, cat_weights};
use crate::Error;
use crate::checkpoint::Checkpoint;
use crate::slices::with_slices;
use izwi_kernels::elementwise::lstm_step;
use izwi_kernels::threads::run_pair;
use izwi_metal::lstm;
use izwi_types::Precision;

/// Input, forget, cell and output gate.
const GATES: usize = 4;

/// One layer, two directions. A sequence gives the same bits alongside any others.
#[derive(Debug, Clone)]
pub struct BiLstm {
    /// Of both directions side by side, with all biases: `[inputs]` to `[2 * GATES * hidden]`.
    input: Linear,
    /// Of each direction: `[hidden]` to `[GATES * hidden]`.
    recurrent: [Linear; 2],
    hidden: usize,
}

impl BiLstm {
    /// Takes `{name}.weight_ih_l{layer}`, `weight_hh_l{layer}`, `bias_ih_l{layer}` and `bias_hh_l{layer}`, and those with
    /// `_reverse`, the weights kept in `precision`. The result has `2 * hidden` channels.
    ///
    /// # Errors
    /// As [`Checkpoint::take`].
    pub fn load(
        from: &mut Checkpoint,
        name: &str,
        layer: usize,
        (inputs, hidden): (usize, usize),
        precision: Precision,
    ) -> std::result::Result<Self, Error> {
        let gates = GATES * hidden;
        let full = |part: &str, direction: &str| format!("{name}.{part}_l{layer}{direction}");
        let parts = ["", "_reverse"].map(|direction| (full("weight_ih", direction), vec![gates, inputs]));
        let input =
            Linear::load_transformed(from, (&parts, ""), (inputs, 2 * gates), precision, cat_weights)?;
        let mut biases = Vec::with_capacity(2);
        for direction in ["", "_reverse"] {
            let input = from.take(&full("bias_ih", direction), &[gates])?;
            biases.push((input + from.take(&full("bias_hh", direction), &[gates])?)?);
        }
        let mut recurrent = |direction: &str| {
            let part = [(full("weight_hh", direction), vec![gates, hidden])];
            Linear::load_transformed(from, (&part, ""), (hidden, gates), precision, cat_weights)
        };
        let recurrent = [recurrent("")?, recurrent("_reverse")?];
        Ok(Self { input: input.with_bias(&Tensor::cat(&biases, 0)?)?, recurrent, hidden })
    }

    /// The same on the CPU with weights of f32 that have the values of those stored here, which products of few bits round
    /// further there.
    #[cfg(test)]
    pub(crate) fn dequantised(&self) -> Self {
        let values = |linear: &Linear| {
            let weight = linear.select_rows(&(0..linear.outputs() as u32).collect::<Vec<_>>()).unwrap();
            let to_cpu = |x: &Tensor| x.to_device(&candle_core::Device::Cpu).unwrap();
            Linear::new(&to_cpu(&weight), linear.bias().map(to_cpu)).unwrap()
        };
        Self {
            input: values(&self.input),
            recurrent: self.recurrent.each_ref().map(values),
            hidden: self.hidden,
        }
    }

    /// `x` `[rows, inputs]` to `[rows, 2 * hidden]`, gaps zero.
    ///
    /// # Errors
    /// Shapes do not fit.
    pub fn forward(&self, x: &Tensor, packed: &PackedRows) -> Result<Tensor> {
        if x.dim(0)? != packed.rows() {
            bail!("lstm: {:?} does not fit {} rows", x.dims(), packed.rows())
        }
        let gates = self.input.forward(x)?; // [rows, 2 * GATES * hidden]
        if let [Some(forward), Some(backward)] = self.recurrent.each_ref().map(Linear::on_metal)
            && let Some(states) = lstm::bidirectional(&gates, [forward, backward], packed.spans())?
        {
            return Ok(states);
        }
        let steps = Steps::new(packed);
        // At once on a CPU of several threads: a step of few rows has too little work to share.
        let (mut forward, mut backward) = (Ok(None), Ok(None));
        let mut first = || forward = self.run(&gates, &steps, 0).map(Some);
        let mut second = || backward = self.run(&gates, &steps, 1).map(Some);
        if x.device().is_cpu() {
            run_pair(first, second);
        } else {
            first();
            second();
        }
        let (Some(forward), Some(backward)) = (forward?, backward?) else {
            bail!("lstm: a direction is missing")
        };
        let at = |row: &Vec<u32>| packed.fill(|sequence, position| row[steps.place(sequence, position)]);
        let [forward, backward] = [(forward, 0), (backward, 1)]
            .map(|(states, direction)| packed.gather(&states, at(&steps.outputs(direction))));
        Tensor::cat(&[forward?, backward?], 1)
    }

    /// The hidden states of one direction, step after step, the longest sequence first: `[positions, hidden]`.
    fn run(&self, gates: &Tensor, steps: &Steps, direction: usize) -> Result<Tensor> {
        let mut hidden = Tensor::zeros((steps.order.len(), self.hidden), gates.dtype(), gates.device())?;
        let mut cell = hidden.clone();
        let mut states = Vec::with_capacity(steps.longest());
        for step in 0..steps.longest() {
            let rows = steps.rows(step, direction);
            let count = rows.len();
            if count < hidden.dim(0)? {
                (hidden, cell) = (hidden.narrow(0, 0, count)?, cell.narrow(0, 0, count)?);
            }
            let recurrent = self.recurrent[direction].forward(&hidden)?; // [count, GATES * hidden]
            (hidden, cell) = self.cell([gates, &recurrent, &cell], &rows, direction)?;
            states.push(hidden.clone());
        }
        Tensor::cat(&states, 0)
    }

    /// The next hidden state and cell of each row.
    fn cell(
        &self,
        [gates, recurrent, cell]: [&Tensor; 3],
        rows: &[u32],
        direction: usize,
    ) -> Result<(Tensor, Tensor)> {
        let width = GATES * self.hidden;
        let shape = (rows.len(), self.hidden);
        if !gates.device().is_cpu() {
            let index = Tensor::new(rows, gates.device())?;
            let own = gates.narrow(1, direction * width, width)?.contiguous()?.index_select(&index, 0)?;
            let [hidden, cell] = gated(&(own + recurrent)?, cell)?;
            return Ok((hidden, cell));
        }
        let (hidden, cell) = with_slices([gates, recurrent, cell], |[gates, recurrent, before]| {
            let (mut hidden, mut cell) = (vec![0f32; before.len()], before.to_vec());
            let states = hidden.chunks_exact_mut(self.hidden).zip(cell.chunks_exact_mut(self.hidden));
            for ((row, recurrent), (hidden, cell)) in
                rows.iter().zip(recurrent.chunks_exact(width)).zip(states)
            {
                let own = &gates[(2 * *row as usize + direction) * width..][..width];
                lstm_step([own, recurrent], hidden, cell);
            }
            (hidden, cell)
        })?;
        Ok((Tensor::from_vec(hidden, shape, gates.device())?, Tensor::from_vec(cell, shape, gates.device())?))
    }
}

/// One layer in one direction, a step at a time.
#[derive(Debug, Clone)]
pub struct LstmCell {
    /// With all biases: `[inputs]` to `[GATES * hidden]`.
    input: Linear,
    /// `[hidden]` to `[GATES * hidden]`.
    recurrent: Linear,
    hidden: usize,
}

impl LstmCell {
    /// Takes `{name}.weight_ih_l{layer}`, `weight_hh_l{layer}`, `bias_ih_l{layer}` and `bias_hh_l{layer}`, the weights kept in
    /// `precision`.
    ///
    /// # Errors
    /// As [`Checkpoint::take`].
    pub fn load(
        from: &mut Checkpoint,
        name: &str,
        layer: usize,
        (inputs, hidden): (usize, usize),
        precision: Precision,
    ) -> std::result::Result<Self, Error> {
        let gates = GATES * hidden;
        let mut weight = |part: &str, inputs: usize| {
            let part = [(format!("{name}.weight_{part}_l{layer}"), vec![gates, inputs])];
            Linear::load_transformed(from, (&part, ""), (inputs, gates), precision, cat_weights)
        };
        let (input, recurrent) = (weight("ih", inputs)?, weight("hh", hidden)?);
        let mut bias = |part: &str| from.take(&format!("{name}.bias_{part}_l{layer}"), &[gates]);
        let bias = (bias("ih")? + bias("hh")?)?;
        Ok(Self { input: input.with_bias(&bias)?, recurrent, hidden })
    }

    /// Width of its state.
    pub fn hidden(&self) -> usize {
        self.hidden
    }

    /// The next hidden states and cells of `x` `[rows, inputs]`, given those before, `[rows, hidden]` each.
    ///
    /// # Errors
    /// Shapes do not fit.
    pub fn step(&self, x: &Tensor, [hidden, cell]: [&Tensor; 2]) -> Result<[Tensor; 2]> {
        if hidden.dims() != cell.dims() || hidden.dims() != [x.dim(0)?, self.hidden] {
            bail!("lstm: states {:?} and {:?} do not fit {:?}", hidden.dims(), cell.dims(), x.dims())
        }
        let (own, recurrent) = (self.input.forward(x)?, self.recurrent.forward(hidden)?);
        if !x.device().is_cpu() {
            return gated(&(own + recurrent)?, cell);
        }
        let width = GATES * self.hidden;
        let (hidden, next) = with_slices([&own, &recurrent, cell], |[own, recurrent, before]| {
            let (mut hidden, mut cell) = (vec![0f32; before.len()], before.to_vec());
            let states = hidden.chunks_exact_mut(self.hidden).zip(cell.chunks_exact_mut(self.hidden));
            let gates = own.chunks_exact(width).zip(recurrent.chunks_exact(width));
            for ((own, recurrent), (hidden, cell)) in gates.zip(states) {
                lstm_step([own, recurrent], hidden, cell);
            }
            (hidden, cell)
        })?;
        let tensor = |values| Tensor::from_vec(values, cell.dims(), cell.device());
        Ok([tensor(hidden)?, tensor(next)?])
    }
}

/// The next hidden states and cells, by operations of the device.
fn gated(gates: &Tensor, cell: &Tensor) -> Result<[Tensor; 2]> {
    let parts = gates.chunk(GATES, 1)?;
    let [input, forget, candidate, output] = &parts[..] else { bail!("lstm: no gates") };
    let sigmoid = candle_nn::ops::sigmoid;
    let cell = ((sigmoid(forget)? * cell)? + (sigmoid(input)? * candidate.tanh()?)?)?;
    Ok([(sigmoid(output)? * cell.tanh()?)?, cell])
}

/// Which sequences take part in each step: the longest first, so that those are the first ones.
struct Steps {
    /// Start and length of each sequence, the longest first.
    order: Vec<(usize, usize)>,
    /// The place of each sequence in `order`.
    ranks: Vec<usize>,
    /// The first state of each step.
    starts: Vec<usize>,
    /// The first position of each sequence when all are listed one after another.
    firsts: Vec<usize>,
}

impl Steps {
    fn new(packed: &PackedRows) -> Self {
        let spans = packed.spans();
        let mut sorted: Vec<usize> = (0..spans.len()).collect();
        sorted.sort_by_key(|&sequence| std::cmp::Reverse(spans[sequence].len()));
        let order: Vec<_> =
            sorted.iter().map(|&sequence| (spans[sequence].start, spans[sequence].len())).collect();
        let mut ranks = vec![0; spans.len()];
        sorted.iter().enumerate().for_each(|(rank, &sequence)| ranks[sequence] = rank);
        let (mut starts, mut next) = (Vec::new(), 0);
        for step in 0..order.first().map_or(0, |first| first.1) {
            starts.push(next);
            next += order.partition_point(|(_, length)| *length > step);
        }
        let mut first = 0;
        let firsts = spans.iter().map(|span| {
            first += span.len();
            first - span.len()
        });
        Self { firsts: firsts.collect(), order, ranks, starts }
    }

    fn longest(&self) -> usize {
        self.starts.len()
    }

    /// The packed row of each sequence that has `step` steps before.
    fn rows(&self, step: usize, direction: usize) -> Vec<u32> {
        let active = self.order.iter().take_while(|(_, length)| *length > step);
        let row = |&(start, length): &(usize, usize)| {
            (start + if direction == 0 { step } else { length - 1 - step }) as u32
        };
        active.map(row).collect()
    }

    /// The place of a position in [`Self::outputs`].
    fn place(&self, sequence: usize, position: usize) -> usize {
        self.firsts[sequence] + position
    }

    /// The state of each position, sequence after sequence.
    fn outputs(&self, direction: usize) -> Vec<u32> {
        let mut outputs = Vec::new();
        for &rank in &self.ranks {
            let length = self.order[rank].1;
            let state = |position: usize| {
                let step = if direction == 0 { position } else { length - 1 - position };
                (self.starts[step] + rank) as u32
            };
            outputs.extend((0..length).map(state));
        }
        outputs
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device};

    use super::*;

    #[test]
    fn a_sequence_is_the_same_bits_beside_others_and_runs_both_ways() {
        let (inputs, hidden) = (12, 20);
        let mut from = Checkpoint::random(&Device::Cpu, DType::F32);
        let lstm = BiLstm::load(&mut from, "l", 0, (inputs, hidden), Precision::F32).unwrap();
        let packed = PackedRows::new(&[7, 40, 1, 40], 2, &Device::Cpu).unwrap();
        let x = Tensor::randn(0f32, 1.0, (packed.rows(), inputs), &Device::Cpu).unwrap();
        let y = lstm.forward(&x, &packed).unwrap();
        assert_eq!(y.dims(), [packed.rows(), 2 * hidden]);
        for span in packed.spans() {
            let alone = PackedRows::new(&[span.len()], 2, &Device::Cpu).unwrap();
            let part = x.narrow(0, span.start, span.len()).unwrap();
            let part = part.pad_with_zeros(0, 0, alone.rows() - span.len()).unwrap();
            let own = lstm.forward(&part, &alone).unwrap().narrow(0, 0, span.len()).unwrap();
            let batched = y.narrow(0, span.start, span.len()).unwrap();
            assert_eq!(own.to_vec2::<f32>().unwrap(), batched.to_vec2::<f32>().unwrap());
        }
        let values = y.to_vec2::<f32>().unwrap();
        assert!(values[7..16].iter().flatten().all(|x| *x == 0.0));
        assert_ne!(values[0][..hidden], values[0][hidden..]);
    }
}
