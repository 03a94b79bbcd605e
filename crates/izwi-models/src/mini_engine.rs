//! An engine's loop in small, for tests: sequences in blocks of a pool, steps of all that go on, chunks of prompts,
//! what is taken away and given again.

use crate::model::{BatchEntry, SequenceState, SpeechModel};
use izwi_nn::kv_pool::KvPool;
use izwi_types::Segment;
use izwi_types::{Emission, Prepared, Work};

/// Blocks of the pool.
const BLOCKS: usize = 512;

/// A sequence as the engine keeps it.
pub(super) struct Running {
    pub(super) prepared: Prepared,
    pub(super) state: SequenceState,
    /// Positions that are known.
    pub(super) known: usize,
    pub(super) start: usize,
    pub(super) begins: bool,
    pub(super) blocks: Vec<u32>,
    pub(super) samples: Vec<f32>,
    /// Samples that came at once, where any did.
    pub(super) portions: Vec<usize>,
    pub(super) text: String,
    pub(super) segments: Vec<Segment>,
    pub(super) emissions: Vec<Emission>,
    pub(super) keys: Vec<u64>,
    pub(super) generated: usize,
    pub(super) passes: usize,
    pub(super) finished: bool,
    pub(super) runaway: bool,
}

impl Running {
    /// All that a listener got.
    pub(super) fn heard(&self) -> (&[f32], &str, &[Emission], &[Segment]) {
        (&self.samples, &self.text, &self.emissions, &self.segments)
    }
}

/// Runs sequences, each for at most `most` generated tokens.
pub(super) struct Stage<'a> {
    model: &'a dyn SpeechModel,
    block: usize,
    chunk: usize,
    most: usize,
    pub(super) kv: KvPool,
    free: Vec<u32>,
    pub(super) running: Vec<Running>,
}

impl<'a> Stage<'a> {
    /// Of blocks of `block` tokens, prompts in chunks of at most `chunk`.
    pub(super) fn new(model: &'a dyn SpeechModel, block: usize, chunk: usize, most: usize) -> Self {
        let kv = KvPool::new(model.kv_layout(), BLOCKS, block, &super::golden_set::device()).unwrap();
        Self { model, block, chunk, most, kv, free: (0..BLOCKS as u32).collect(), running: Vec::new() }
    }

    pub(super) fn admit(&mut self, prepared: &Prepared) {
        self.running.push(Running {
            prepared: prepared.clone(),
            state: self.model.start(prepared),
            known: size_of(&prepared.work),
            start: 0,
            begins: true,
            blocks: Vec::new(),
            samples: Vec::new(),
            portions: Vec::new(),
            text: String::new(),
            segments: Vec::new(),
            emissions: Vec::new(),
            keys: Vec::new(),
            generated: 0,
            passes: 1,
            finished: false,
            runaway: false,
        });
    }

    /// Admits a sequence that begins in the first blocks of another, as far as their content is the same.
    pub(super) fn admit_behind(&mut self, prepared: &Prepared, other: usize, same: usize) {
        self.admit(prepared);
        let blocks = same / self.block;
        let lent = self.running[other].blocks[..blocks].to_vec();
        if let Some(running) = self.running.last_mut() {
            running.blocks = lent;
            running.start = blocks * self.block;
        }
    }

    /// Takes a sequence's blocks away: it is computed again.
    pub(super) fn preempt(&mut self, index: usize) {
        let running = &mut self.running[index];
        self.free.append(&mut running.blocks);
        (running.start, running.begins) = (0, true);
    }

    pub(super) fn goes_on(&self) -> bool {
        self.running.iter().any(|running| !running.finished && running.generated < self.most)
    }

    /// One step of all that go on.
    pub(super) fn step(&mut self) {
        let Self { block, chunk, most, .. } = *self;
        let (mut entries, mut places) = (Vec::new(), Vec::new());
        let free = &mut self.free;
        for (place, running) in self.running.iter_mut().enumerate() {
            if running.finished || running.generated >= most {
                continue;
            }
            let num_tokens = (running.known - running.start).min(chunk);
            while running.blocks.len() * block < running.start + num_tokens {
                // From both ends in turn, so that tables are scattered.
                let at = if running.blocks.len() % 2 == 0 { free.len() - 1 } else { 0 };
                running.blocks.push(free.remove(at));
            }
            places.push(place);
            entries.push(BatchEntry {
                prepared: &running.prepared,
                state: &mut running.state,
                start: running.start,
                begins: std::mem::take(&mut running.begins),
                num_tokens,
                block_table: &running.blocks,
            });
            running.start += num_tokens;
        }
        let outputs = self.model.forward(&mut self.kv, &mut entries).unwrap();
        for (place, output) in places.into_iter().zip(outputs) {
            let running = &mut self.running[place];
            // What was generated is a position more to compute.
            running.known += output.generated_tokens;
            running.generated += output.generated_tokens;
            running.portions.extend(Some(output.samples.len()).filter(|&count| count > 0));
            running.samples.extend(output.samples);
            running.text.push_str(&output.text);
            running.segments.extend(output.segments);
            running.emissions.extend(output.emission);
            running.keys.extend(output.content_key);
            (running.finished, running.runaway) = (output.finished, output.runaway);
            if let Some(next) = output.next_pass {
                self.free.append(&mut running.blocks);
                (running.start, running.begins, running.known) = (0, true, size_of(&next));
                running.passes += 1;
            }
        }
    }

    pub(super) fn finish(mut self) -> Vec<Running> {
        while self.goes_on() {
            self.step();
        }
        self.running
    }
}

/// One sequence alone, its prompt in one piece.
pub(super) fn alone(model: &dyn SpeechModel, prepared: &Prepared, most: usize) -> Running {
    let mut stage = Stage::new(model, 8, usize::MAX, most);
    stage.admit(prepared);
    stage.finish().remove(0)
}

/// Content keys of a prompt.
pub(super) fn keys(prepared: &Prepared) -> &[u64] {
    match &prepared.work {
        Work::Autoregressive { prompt, .. } => prompt,
        Work::Units(_) => &[],
    }
}

fn size_of(work: &Work) -> usize {
    match work {
        Work::Autoregressive { prompt, .. } => prompt.len(),
        Work::Units(units) => units.first().copied().unwrap_or(0),
    }
}
