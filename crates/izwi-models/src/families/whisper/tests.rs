//! Behaviour of the whole family on real weights.

use super::golden::{checkpoint_folder, clips};
use super::sampling::mix;
use super::*;
use crate::model::Work;
use crate::transcript::Segment;

const LIMITS: PrepareLimits = PrepareLimits { max_tokens_per_step: 512, max_positions: 2048 };
const BLOCK_SIZE: usize = 16;
const BLOCKS: usize = 512;
const SHORT: Context = Context::Short { margin: MARGIN };

fn model(name: &str, context: Context) -> Whisper {
    Whisper::load(&checkpoint_folder(name), &Device::Cpu, context).unwrap()
}

fn listen(samples: &[f32]) -> ListenInput {
    ListenInput {
        samples: samples.into(),
        language: None,
        prompt: None,
        translate: false,
        word_timestamps: false,
        temperature: 0.0,
        seed: 5,
    }
}

/// What one recording came to.
#[derive(Debug, Default, Clone, PartialEq)]
struct Transcript {
    text: String,
    segments: Vec<Segment>,
    language: Option<String>,
    tokens: usize,
    passes: usize,
}

/// How rough an engine is with its sequences.
#[derive(Debug, Clone, Copy)]
struct Roughness {
    seed: u64,
    /// Prompts are cut, sequences wait their turn and lose their blocks, all at random.
    rough: bool,
}

const GENTLE: Roughness = Roughness { seed: 0, rough: false };

/// One sequence, as a scheduler sees it.
struct Run {
    prepared: Prepared,
    state: SequenceState,
    work: Work,
    computed: usize,
    known: usize,
    begins: bool,
    blocks: Vec<u32>,
    transcript: Transcript,
    finished: bool,
}

impl Run {
    fn new(model: &Whisper, input: ListenInput) -> Self {
        let prepared = model.prepare(&Input::Listen(input), &LIMITS).unwrap();
        let state = model.start(&prepared);
        let mut run = Self {
            work: prepared.work.clone(),
            prepared,
            state,
            computed: 0,
            known: 0,
            begins: true,
            blocks: Vec::new(),
            transcript: Transcript::default(),
            finished: false,
        };
        run.begin();
        run
    }

    fn begin(&mut self) {
        (self.computed, self.begins) = (0, true);
        self.known = match &self.work {
            Work::Autoregressive { prompt, .. } => prompt.len(),
            Work::Units(_) => 1,
        };
        self.transcript.passes += 1;
    }

    fn take(&mut self, entry_tokens: usize, output: EntryOutput) {
        self.begins = false;
        self.computed += entry_tokens;
        self.known += output.generated_tokens;
        self.transcript.tokens += output.generated_tokens;
        let texts: String = output.segments.iter().map(|segment| segment.text.as_str()).collect();
        assert_eq!(texts, output.text);
        self.transcript.text += &output.text;
        self.transcript.segments.extend(output.segments);
        self.transcript.language = output.language.or(self.transcript.language.take());
        self.finished = output.finished;
        if let Some(work) = output.next_pass {
            assert!(!output.finished);
            self.work = work;
            self.blocks.clear();
            self.begin();
        }
    }
}

/// Runs all inputs to their ends, in steps of one batch each.
fn transcribe(model: &Whisper, inputs: Vec<ListenInput>, roughness: Roughness) -> Vec<Transcript> {
    let mut kv = KvPool::new(model.info().kv, BLOCKS, BLOCK_SIZE, &Device::Cpu).unwrap();
    let mut runs: Vec<Run> = inputs.into_iter().map(|input| Run::new(model, input)).collect();
    let mut free: Vec<u32> = (0..BLOCKS as u32).collect();
    let mut dice = roughness.seed;
    while runs.iter().any(|run| !run.finished) {
        let mut throw = |sides: usize| {
            dice = mix(dice);
            if roughness.rough { dice as usize % sides } else { sides - 1 }
        };
        let mut batch = Vec::new();
        let mut counts = Vec::new();
        for run in runs.iter_mut().filter(|run| !run.finished) {
            if throw(5) == 0 {
                continue;
            }
            if throw(20) == 0 && run.computed > 0 {
                free.append(&mut run.blocks);
                (run.computed, run.begins) = (0, true);
            }
            let tokens = (1 + throw(run.known - run.computed)).min(run.known - run.computed);
            while run.blocks.len() * BLOCK_SIZE < run.computed + tokens {
                let at = throw(free.len());
                run.blocks.push(free.swap_remove(at));
            }
            counts.push(tokens);
            batch.push(run);
        }
        let mut entries: Vec<BatchEntry<'_>> = batch
            .iter_mut()
            .zip(&counts)
            .map(|(run, &num_tokens)| BatchEntry {
                prepared: &run.prepared,
                state: &mut run.state,
                start: run.computed,
                begins: run.begins,
                num_tokens,
                block_table: &run.blocks,
            })
            .collect();
        let outputs = model.forward(&mut kv, &mut entries).unwrap();
        for ((run, output), tokens) in batch.into_iter().zip(outputs).zip(counts) {
            let blocks = run.blocks.clone();
            run.take(tokens, output);
            if run.blocks.is_empty() || run.finished {
                free.extend(blocks);
            }
        }
    }
    runs.into_iter().map(|run| run.transcript).collect()
}

fn one(model: &Whisper, input: ListenInput) -> Transcript {
    transcribe(model, vec![input], GENTLE).remove(0)
}

/// Words without case, marks and spelling that differs by taste.
fn words(text: &str) -> Vec<String> {
    let plain = text.to_lowercase().replace('-', " ").replace("mr.", "mister");
    let plain: String = plain.chars().filter(|c| c.is_alphanumeric() || *c == ' ').collect();
    plain.split_whitespace().map(str::to_owned).collect()
}

/// Words to change, add or drop to come from one text to the other.
fn errors(heard: &[String], said: &[String]) -> usize {
    let mut row: Vec<usize> = (0..=said.len()).collect();
    for (at, word) in heard.iter().enumerate() {
        let mut diagonal = row[0];
        row[0] = at + 1;
        for (column, other) in said.iter().enumerate() {
            let changed = diagonal + usize::from(word != other);
            diagonal = row[column + 1];
            row[column + 1] = changed.min(row[column] + 1).min(diagonal + 1);
        }
    }
    row[said.len()]
}

#[test]
fn speech_is_heard() {
    let model = model("whisper-base", SHORT);
    for (samples, said) in clips() {
        let heard = one(&model, listen(&samples));
        let wrong = errors(&words(&heard.text), &words(&said));
        assert!(wrong <= 2, "{wrong} errors: {}\n{said}", heard.text);
        assert_eq!(heard.language.as_deref(), Some("en"));
    }
}
