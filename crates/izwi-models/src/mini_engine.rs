//! A small engine for tests: sequences in blocks of a pool, steps over all running sequences, chunked prefill,
//! preemption, shared prefixes.

use crate::families::golden_set;
use crate::model::{BatchEntry, SequenceState, SpeechModel};
use izwi_nn::kv_pool::KvPool;
use izwi_types::{
    AudioProgress, Emission, Input, ListenInput, PrepareLimits, Prepared, Segment, Work, revise_turns,
};

/// Blocks of the pool.
const BLOCKS: usize = 512;

/// A sequence as the engine keeps it.
pub(crate) struct Sequence {
    pub(crate) prepared: Prepared,
    pub(crate) state: SequenceState,
    /// Positions whose content is known.
    pub(crate) known: usize,
    /// Positions that can be computed with the text so far; `None` where all can.
    pub(crate) positions: Option<usize>,
    pub(crate) start: usize,
    pub(crate) begins: bool,
    pub(crate) blocks: Vec<u32>,
    pub(crate) samples: Vec<f32>,
    /// Number of samples of each step that had any.
    pub(crate) chunks: Vec<usize>,
    pub(crate) text: String,
    pub(crate) segments: Vec<Segment>,
    pub(crate) emissions: Vec<Emission>,
    pub(crate) keys: Vec<u64>,
    pub(crate) generated: usize,
    pub(crate) passes: usize,
    pub(crate) finished: bool,
    pub(crate) runaway: bool,
}

impl Sequence {
    /// Everything a client gets is that of `other`.
    pub(crate) fn assert_same(&self, other: &Self, name: &str) {
        let told = |ran: &Self| (ran.text.clone(), ran.emissions.clone(), ran.segments.clone());
        assert_eq!(told(self), told(other), "{name}");
        golden_set::assert_same(name, &self.samples, &other.samples);
    }
}

/// Runs sequences, each for at most `max_tokens` generated tokens.
pub(crate) struct MiniEngine<'a> {
    model: &'a dyn SpeechModel,
    block_size: usize,
    prefill_chunk: usize,
    max_tokens: usize,
    pub(crate) kv: KvPool,
    free: Vec<u32>,
    pub(crate) sequences: Vec<Sequence>,
}

impl<'a> MiniEngine<'a> {
    /// An engine with blocks of `block_size` tokens, which computes at most `prefill_chunk` positions of a sequence in a
    /// step.
    pub(crate) fn new(
        model: &'a dyn SpeechModel,
        block_size: usize,
        prefill_chunk: usize,
        max_tokens: usize,
    ) -> Self {
        let kv = KvPool::new(model.kv_layout(), BLOCKS, block_size, &golden_set::device()).unwrap();
        let free = (0..BLOCKS as u32).collect();
        Self { model, block_size, prefill_chunk, max_tokens, kv, free, sequences: Vec::new() }
    }

    pub(crate) fn admit(&mut self, prepared: &Prepared) {
        self.sequences.push(Sequence {
            prepared: prepared.clone(),
            state: self.model.start(prepared),
            known: size_of(&prepared.work),
            positions: None,
            start: 0,
            begins: true,
            blocks: Vec::new(),
            samples: Vec::new(),
            chunks: Vec::new(),
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

    /// Admits a sequence whose first `same` positions equal those of another, in that one's full blocks.
    pub(crate) fn admit_with_prefix(&mut self, prepared: &Prepared, other: usize, same: usize) {
        self.admit(prepared);
        let blocks = same / self.block_size;
        let shared = self.sequences[other].blocks[..blocks].to_vec();
        if let Some(sequence) = self.sequences.last_mut() {
            sequence.blocks = shared;
            sequence.start = blocks * self.block_size;
        }
    }

    /// Frees a sequence's blocks: its positions are recomputed.
    pub(crate) fn preempt(&mut self, index: usize) {
        let sequence = &mut self.sequences[index];
        self.free.append(&mut sequence.blocks);
        (sequence.start, sequence.begins) = (0, true);
    }

    pub(crate) fn has_work(&self) -> bool {
        self.sequences.iter().any(|sequence| !sequence.finished && sequence.generated < self.max_tokens)
    }

    /// One step of all running sequences.
    pub(crate) fn step(&mut self) {
        let Self { block_size, prefill_chunk, max_tokens, .. } = *self;
        let (mut entries, mut places) = (Vec::new(), Vec::new());
        let free = &mut self.free;
        for (place, sequence) in self.sequences.iter_mut().enumerate() {
            let awaits_text = sequence.positions.is_some_and(|most| sequence.known > most);
            if sequence.finished || sequence.generated >= max_tokens || awaits_text {
                continue;
            }
            let num_tokens = (sequence.known - sequence.start).min(prefill_chunk);
            while sequence.blocks.len() * block_size < sequence.start + num_tokens {
                // From both ends in turn, so that block tables are scattered.
                let at = if sequence.blocks.len() % 2 == 0 { free.len() - 1 } else { 0 };
                sequence.blocks.push(free.remove(at));
            }
            places.push(place);
            entries.push(BatchEntry {
                prepared: &sequence.prepared,
                state: &mut sequence.state,
                start: sequence.start,
                begins: std::mem::take(&mut sequence.begins),
                num_tokens,
                block_table: &sequence.blocks,
                branch_tables: &[],
            });
            sequence.start += num_tokens;
        }
        let outputs = self.model.forward(&mut self.kv, &mut entries).unwrap();
        for (place, output) in places.into_iter().zip(outputs) {
            let output = output.unwrap();
            let sequence = &mut self.sequences[place];
            // A generated token is one more position to compute.
            sequence.known += output.generated_tokens;
            sequence.generated += output.generated_tokens;
            sequence.chunks.extend(Some(output.samples.len()).filter(|&count| count > 0));
            sequence.samples.extend(output.samples);
            sequence.text.push_str(&output.text);
            sequence.segments.extend(output.segments);
            sequence.emissions.extend(output.emission);
            sequence.keys.extend(output.content_key);
            (sequence.finished, sequence.runaway) = (output.finished, output.runaway);
            if let Some(next) = output.next_pass {
                self.free.append(&mut sequence.blocks);
                (sequence.start, sequence.begins, sequence.known) = (0, true, size_of(&next));
                sequence.passes += 1;
            }
        }
    }

    pub(crate) fn finish(mut self) -> Vec<Sequence> {
        while self.has_work() {
            self.step();
        }
        self.sequences
    }
}

/// One sequence alone, its prompt in one chunk.
pub(crate) fn alone(model: &dyn SpeechModel, prepared: &Prepared, max_tokens: usize) -> Sequence {
    let mut engine = MiniEngine::new(model, 8, usize::MAX, max_tokens);
    engine.admit(prepared);
    engine.finish().remove(0)
}

/// Content keys of a prompt.
pub(crate) fn keys(prepared: &Prepared) -> &[u64] {
    match &prepared.work {
        Work::Autoregressive { prompt, .. } => prompt,
        Work::Units(_) | Work::Encoder(_) | Work::Chunks { .. } => &[],
    }
}

fn size_of(work: &Work) -> usize {
    match work {
        Work::Autoregressive { prompt, .. } => prompt.len(),
        Work::Units(units) | Work::Encoder(units) => units.first().copied().unwrap_or(0),
        Work::Chunks { chunk, .. } => *chunk,
    }
}

/// What is told of audio that is appended in pieces of `sizes` samples, repeated.
pub(crate) fn arriving(
    model: &dyn SpeechModel,
    limits: &PrepareLimits,
    chunk_ms: u32,
    mut rest: &[f32],
    sizes: &[usize],
) -> Vec<Segment> {
    let input = ListenInput { chunk_ms: Some(chunk_ms), ..ListenInput::plain([].into()) };
    let prepared = model.prepare(&Input::Listen(input), limits).unwrap();
    let Work::Chunks { longest, .. } = prepared.work else { panic!("{:?}", prepared.work) };
    let mut kv = KvPool::new(None, 1, 8, &golden_set::device()).unwrap();
    let (mut state, mut start, mut segments) = (model.start(&prepared), 0, Vec::new());
    for size in sizes.iter().cycle() {
        let (piece, others) = rest.split_at((*size).min(rest.len()));
        let AudioProgress { positions, waiting } =
            model.append_audio(&prepared, piece, others.is_empty()).unwrap();
        rest = others;
        // What is computed is forgotten: at most the pieces of a step and what the next sees wait.
        assert!(waiting <= 2 * piece.len() + 160 * 8 * (longest + 150), "{waiting}");
        while start < positions {
            let num_tokens = (positions - start).min(longest);
            let mut entry = [BatchEntry {
                prepared: &prepared,
                state: &mut state,
                start,
                begins: start == 0,
                num_tokens,
                block_table: &[],
                branch_tables: &[],
            }];
            let output = model.forward(&mut kv, &mut entry).unwrap().remove(0).unwrap();
            start += num_tokens;
            segments.extend(output.segments);
            if output.finished {
                assert!(rest.is_empty() && start == positions);
                return segments;
            }
        }
        assert!(!rest.is_empty(), "the end of the audio ends it");
    }
    segments
}

/// The turns that are told at last, of audio that arrives.
pub(crate) fn settled(told: Vec<Segment>) -> Vec<Segment> {
    let mut turns = Vec::new();
    revise_turns(&mut turns, told);
    turns
}
