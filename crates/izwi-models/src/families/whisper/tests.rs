//! Behaviour of the whole family on real weights.

mod checkpoints;
mod given;
mod token_options;

use std::collections::HashMap;
use std::sync::LazyLock;

use candle_core::Device;

use super::super::golden_set::{device, is_bit_exact, rounds_activations};
use super::golden::{checkpoint_folder, clip, clips};
use super::*;
use izwi_nn::sampling::mix;
use izwi_types::Precision;
use izwi_types::Segment;
use izwi_types::Work;

pub(super) const LIMITS: PrepareLimits = PrepareLimits { max_tokens_per_step: 512, max_positions: 2048 };
const BLOCK_SIZE: usize = 16;
const BLOCKS: usize = 512;
pub(super) const SHORT: Context = Context::Short { margin: MARGIN };

static BASE: LazyLock<Whisper> = LazyLock::new(|| model("whisper-base", SHORT));
static TINY: LazyLock<Whisper> = LazyLock::new(|| model("whisper-tiny.en", SHORT));

pub(super) fn model(name: &str, context: Context) -> Whisper {
    Whisper::load(&checkpoint_folder(name), &kept_as(Precision::F32), context).unwrap()
}

/// The device of tests, weights kept in `precision`.
pub(super) fn kept_as(precision: Precision) -> LoadOptions {
    LoadOptions::new(device(), precision)
}

pub(super) fn listen(samples: &[f32]) -> ListenInput {
    asking(ListenInput::plain(samples.into()), |options| options.seed = Some(5))
}

/// A recording with other options.
pub(super) fn asking(mut input: ListenInput, ask: impl FnOnce(&mut TranscriptionOptions)) -> ListenInput {
    ask(&mut input.options);
    input
}

/// A recording with the times of words.
pub(super) fn with_words(mut input: ListenInput) -> ListenInput {
    input.options = input.options.with_words();
    input
}

/// A recording without a search, as the golden transcripts were made.
pub(super) fn greedy(samples: &[f32]) -> ListenInput {
    asking(listen(samples), |options| options.beam_size = Some(1))
}

/// Everything one recording produced.
#[derive(Debug, Default, Clone, PartialEq)]
pub(super) struct Transcript {
    pub(super) text: String,
    pub(super) segments: Vec<Segment>,
    language: Option<String>,
    language_probability: Option<f32>,
    tokens: usize,
    passes: usize,
}

/// The same bits where that is promised; on other devices the same tokens.
fn assert_same(ours: &[Transcript], theirs: &[Transcript]) {
    if is_bit_exact() {
        return assert_eq!(ours, theirs);
    }
    let told = |transcript: &Transcript| {
        let tokens = transcript.segments.iter().map(|segment| segment.tokens.clone());
        (transcript.text.clone(), transcript.language.clone(), tokens.collect::<Vec<_>>())
    };
    assert_eq!(ours.iter().map(told).collect::<Vec<_>>(), theirs.iter().map(told).collect::<Vec<_>>());
}

/// One sequence, as a scheduler sees it.
struct Run {
    prepared: Prepared,
    state: SequenceState,
    work: Work,
    computed: usize,
    known: usize,
    begins: bool,
    blocks: Vec<u32>,
    /// Block tables of the further branches of a search. Blocks after the full ones of the prompt are not shared.
    others: Vec<Vec<u32>>,
    transcript: Transcript,
    finished: bool,
}

impl Run {
    fn new(model: &Whisper, prepared: Prepared) -> Self {
        let state = model.start(&prepared);
        let work = prepared.work.clone();
        let mut run = Self {
            prepared,
            state,
            work: Work::Units(Arc::new([])),
            computed: 0,
            known: 0,
            begins: true,
            blocks: Vec::new(),
            others: Vec::new(),
            transcript: Transcript::default(),
            finished: false,
        };
        run.begin(work);
        run
    }

    fn begin(&mut self, work: Work) {
        (self.computed, self.begins) = (0, true);
        self.known = match &work {
            Work::Autoregressive { prompt, .. } => prompt.len(),
            Work::Units(_) | Work::Chunks { .. } => 1,
            Work::Encoder(parts) => parts.len(),
        };
        self.work = work;
        self.transcript.passes += 1;
    }

    fn prompt(&self) -> &[u64] {
        match &self.work {
            Work::Autoregressive { prompt, .. } => prompt,
            Work::Units(_) | Work::Encoder(_) | Work::Chunks { .. } => &[],
        }
    }

    /// Blocks of the prompt that all branches share.
    fn full_prompt_blocks(&self) -> usize {
        self.prompt().len() / BLOCK_SIZE
    }

    /// Its blocks, each once.
    fn take_blocks(&mut self) -> Vec<u32> {
        let full = self.full_prompt_blocks();
        let others = self.others.drain(..).flat_map(|table| table[full.min(table.len())..].to_vec());
        let mut blocks: Vec<u32> = others.collect();
        blocks.append(&mut self.blocks);
        blocks
    }

    fn take(&mut self, tokens: usize, output: StepOutput) {
        self.begins = false;
        self.computed += tokens;
        self.known += output.generated_tokens;
        let texts: String = output.segments.iter().map(|segment| segment.text.as_str()).collect();
        assert_eq!(texts, output.text);
        self.transcript.tokens += output.generated_tokens;
        self.transcript.text += &output.text;
        self.transcript.segments.extend(output.segments);
        self.transcript.language = output.language.or(self.transcript.language.take());
        self.transcript.language_probability =
            output.language_probability.or(self.transcript.language_probability);
        self.finished = output.finished;
        if let Some(work) = output.next_pass {
            assert!(!output.finished);
            self.begin(work);
        }
    }
}

/// Steps sequences over one pool. With `dice`, prompts are chunked and sequences wait, are preempted and share blocks at
/// random.
struct Engine<'a> {
    model: &'a Whisper,
    kv: KvPool,
    free: Vec<u32>,
    shared: HashMap<Vec<u64>, u32>,
    dice: Option<u64>,
    reused: usize,
}

impl<'a> Engine<'a> {
    fn new(model: &'a Whisper, dice: Option<u64>) -> Self {
        let kv = KvPool::new(model.kv_layout(), BLOCKS, BLOCK_SIZE, &device()).unwrap();
        Self { model, kv, free: (0..BLOCKS as u32).collect(), shared: HashMap::new(), dice, reused: 0 }
    }

    /// A number below `sides`; the last one without `dice`.
    fn throw(&mut self, sides: usize) -> usize {
        match &mut self.dice {
            Some(dice) => {
                *dice = mix(*dice);
                *dice as usize % sides
            }
            None => sides - 1,
        }
    }

    /// Gives a new sequence the shared blocks of its prompt.
    fn share(&mut self, run: &mut Run) {
        if self.dice.is_none() {
            return;
        }
        while run.computed + BLOCK_SIZE < run.known {
            let keys = run.prompt().get(..run.computed + BLOCK_SIZE);
            let Some(&block) = keys.and_then(|keys| self.shared.get(keys)) else { break };
            run.blocks.push(block);
            run.computed += BLOCK_SIZE;
            self.reused += 1;
        }
    }

    /// Frees blocks, except shared ones.
    fn release(&mut self, blocks: Vec<u32>) {
        let shared = |block: &u32| self.shared.values().any(|known| known == block);
        self.free.extend(blocks.into_iter().filter(|block| !shared(block)));
    }

    fn plan(&mut self, run: &mut Run) -> Option<usize> {
        if self.throw(5) == 0 {
            return None;
        }
        if matches!(run.work, Work::Encoder(_)) {
            return Some(1);
        }
        if run.computed > 0 && self.throw(20) == 0 {
            let blocks = run.take_blocks();
            self.release(blocks);
            (run.computed, run.begins) = (0, true);
            if matches!(run.work, Work::Autoregressive { branches: 2.., .. }) {
                // A search begins again after its prompt.
                run.transcript.tokens -= run.known - run.prompt().len();
                run.known = run.prompt().len();
            }
        }
        if run.begins && run.computed == 0 {
            self.share(run);
        }
        let tokens = 1 + self.throw(run.known - run.computed);
        while run.blocks.len() * BLOCK_SIZE < run.computed + tokens && !run.prompt().is_empty() {
            let at = self.throw(self.free.len());
            run.blocks.push(self.free.swap_remove(at));
            run.others.iter_mut().for_each(|table| table.extend(self.free.pop()));
        }
        Some(tokens)
    }

    fn step(&mut self, runs: &mut [Run]) {
        let mut batch = Vec::new();
        for run in runs.iter_mut().filter(|run| !run.finished) {
            if let Some(tokens) = self.plan(run) {
                batch.push((run, tokens));
            }
        }
        let mut entries: Vec<BatchEntry<'_>> = batch
            .iter_mut()
            .map(|(run, num_tokens)| BatchEntry {
                prepared: &run.prepared,
                state: &mut run.state,
                start: run.computed,
                begins: run.begins,
                num_tokens: *num_tokens,
                block_table: &run.blocks,
                branch_tables: &run.others,
            })
            .collect();
        let outputs = self.model.forward(&mut self.kv, &mut entries).unwrap().into_iter().map(Result::unwrap);
        for ((run, tokens), output) in batch.into_iter().zip(outputs) {
            let full = (run.computed + tokens).min(run.prompt().len()) / BLOCK_SIZE;
            if self.dice.is_some() {
                for at in 0..full {
                    let keys = run.prompt()[..(at + 1) * BLOCK_SIZE].to_vec();
                    self.shared.entry(keys).or_insert(run.blocks[at]);
                }
            }
            if output.finished || output.next_pass.is_some() {
                let blocks = run.take_blocks();
                self.release(blocks);
            } else if !output.parents.is_empty() {
                let tables = std::iter::once(run.blocks.clone()).chain(run.others.drain(..)).collect();
                self.fork(run, tables, &output.parents);
            }
            run.take(tokens, output);
        }
    }

    /// Gives each branch copies of the blocks that its parent does not share with all others.
    fn fork(&mut self, run: &mut Run, tables: Vec<Vec<u32>>, parents: &[usize]) {
        let full = run.full_prompt_blocks();
        let branches = parents.iter().map(|&parent| {
            let (shared, own) = tables[parent].split_at(full);
            let copied: Vec<(u32, u32)> = own.iter().map(|&from| (from, self.free.pop().unwrap())).collect();
            self.kv.copy_blocks(&copied).unwrap();
            shared.iter().copied().chain(copied.into_iter().map(|(_, to)| to)).collect()
        });
        let mut branches: Vec<Vec<u32>> = branches.collect();
        self.free.extend(tables.iter().flat_map(|table| &table[full..]));
        run.blocks = branches.remove(0);
        run.others = branches;
    }

    fn run(&mut self, prepared: Vec<Prepared>) -> Vec<Transcript> {
        let mut runs: Vec<Run> =
            prepared.into_iter().map(|prepared| Run::new(self.model, prepared)).collect();
        while runs.iter().any(|run| !run.finished) {
            self.step(&mut runs);
        }
        runs.into_iter().map(|run| run.transcript).collect()
    }
}

fn prepare(model: &Whisper, input: ListenInput) -> Prepared {
    model.prepare(&Input::Listen(input), &LIMITS).unwrap()
}

/// The transcript of one recording by itself.
pub(super) fn one(model: &Whisper, input: ListenInput) -> Transcript {
    let prepared = prepare(model, input);
    Engine::new(model, None).run(vec![prepared]).remove(0)
}

/// As [`one`], without speech detection.
pub(super) fn unabridged(model: &Whisper, input: ListenInput) -> Transcript {
    let options = model.decoding_options(&input, &LIMITS).unwrap();
    let recording = model.record(&input.samples, regions::whole(&input.samples), options);
    Engine::new(model, None).run(vec![model.prepared(recording)]).remove(0)
}

/// Words without case, punctuation and spelling variants.
pub(super) fn words(text: &str) -> Vec<String> {
    let plain = text.to_lowercase().replace('-', " ").replace("mr.", "mister");
    let plain: String = plain.chars().filter(|c| c.is_alphanumeric() || *c == ' ').collect();
    plain.split_whitespace().map(str::to_owned).collect()
}

/// Edit distance between two lists of words.
pub(super) fn errors(hypothesis: &[String], reference: &[String]) -> usize {
    let mut row: Vec<usize> = (0..=reference.len()).collect();
    for (at, word) in hypothesis.iter().enumerate() {
        let mut diagonal = row[0];
        row[0] = at + 1;
        for (column, other) in reference.iter().enumerate() {
            let changed = diagonal + usize::from(word != other);
            diagonal = row[column + 1];
            row[column + 1] = changed.min(row[column] + 1).min(diagonal + 1);
        }
    }
    row[reference.len()]
}

fn noise(count: usize, level: f32) -> Vec<f32> {
    let value = |n: usize| (mix(n as u64) >> 40) as f32 / (1u64 << 23) as f32 - 1.0;
    (0..count).map(|n| level * value(n)).collect()
}

/// Eight recordings with different options: windows, prompts, words, temperatures, silence; two are searched.
fn eight() -> Vec<ListenInput> {
    let clips = clips();
    let clip = |at: usize| greedy(&clips[at].0);
    let prompt =
        "Sense and Sensibility, by Jane Austen, read aloud by a volunteer for LibriVox, the first chapter.";
    let long = [&clips[5].0[..], &clips[0].0, &clips[1].0, &clips[2].0, &clips[3].0].concat();
    vec![
        with_words(clip(0)),
        asking(clip(1), |options| options.prompt = Some(prompt.to_owned())),
        with_words(asking(clip(1), |options| {
            (options.prompt, options.beam_size) = (Some(prompt.to_owned()), Some(2));
        })),
        asking(clip(2), |options| {
            (options.temperature, options.language) = (Some(0.9), Some("en".to_owned()));
        }),
        greedy(&long),
        listen(&noise(32_000, 0.0)),
        listen(&clips[5].0[..70_000]),
        clip(4),
    ]
}

#[test]
fn transcripts_are_the_same_bits_alone_and_in_any_batch() {
    let alone: Vec<Transcript> = eight().into_iter().map(|input| one(&TINY, input)).collect();
    assert!(alone[4].passes >= 2 && alone[5].text.is_empty() && !alone[0].segments[0].words.is_empty());
    let prepared = || eight().into_iter().map(|input| prepare(&TINY, input)).collect();
    assert_same(&Engine::new(&TINY, None).run(prepared()), &alone);
    let mut unruly = Engine::new(&TINY, Some(2));
    assert_same(&unruly.run(prepared()), &alone);
    // Again over the same pool: now prompts reuse blocks of the first run.
    let reused = unruly.reused;
    assert_same(&unruly.run(prepared()), &alone);
    assert!(unruly.reused > reused);
}

#[test]
fn languages_are_detected_alike_alone_and_in_a_batch() {
    let few = || eight().into_iter().step_by(3); // words, a temperature, a search
    let alone: Vec<Transcript> = few().map(|input| one(&BASE, input)).collect();
    assert!(alone.iter().any(|transcript| transcript.language.as_deref() == Some("en")));
    let prepared = few().map(|input| prepare(&BASE, input)).collect();
    assert_same(&Engine::new(&BASE, Some(1)).run(prepared), &alone);
}

#[test]
fn speech_is_transcribed() {
    let (mut wrong, mut total) = (0, 0);
    for (samples, expected) in clips() {
        let transcript = one(&BASE, listen(&samples));
        assert_eq!(transcript.language.as_deref(), Some("en"));
        assert!((0.5..=1.0).contains(&transcript.language_probability.unwrap()), "{transcript:?}");
        let errors = errors(&words(&transcript.text), &words(&expected));
        println!("{errors} errors: {}", transcript.text);
        (wrong, total) = (wrong + errors, total + words(&expected).len());
    }
    assert!(wrong * 25 <= total, "{wrong} errors in {total} words");
}

#[test]
fn a_short_context_changes_few_words() {
    let full = model("whisper-base", Context::Full);
    let (mut changed, mut total) = (0, 0);
    for (samples, _) in clips() {
        let (short, full) = (one(&BASE, listen(&samples)), one(&full, listen(&samples)));
        let words = [words(&short.text), words(&full.text)];
        (changed, total) = (changed + errors(&words[0], &words[1]), total + words[1].len());
    }
    assert!(changed * 50 <= total, "{changed} of {total} words differ");
}

#[test]
fn recordings_without_speech_give_no_text() {
    for samples in [Vec::new(), noise(80_000, 0.0), noise(80_000, 0.01), noise(200_000, 0.2)] {
        for words in [false, true] {
            let input = listen(&samples);
            let transcript = one(&BASE, if words { with_words(input) } else { input });
            assert_eq!((transcript.text.as_str(), transcript.segments.len()), ("", 0));
        }
    }
}

/// Chords that change every second over a beat of noise.
fn music(seconds: usize) -> Vec<f32> {
    let beat = noise(seconds * SAMPLE_RATE_HZ, 0.3);
    let sample = |(n, beat): (usize, f32)| {
        let (chord, time) = (n / SAMPLE_RATE_HZ % 4, (n % SAMPLE_RATE_HZ) as f32 / SAMPLE_RATE_HZ as f32);
        let root_hz = [220.0, 174.6, 261.6, 196.0][chord];
        let phase = std::f32::consts::TAU * n as f32 / SAMPLE_RATE_HZ as f32;
        let notes = [1.0, 1.25, 1.5, 2.0].iter().map(|ratio| (phase * root_hz * ratio).sin()).sum::<f32>();
        0.1 * notes * (-2.0 * time).exp() + beat * (-40.0 * (time % 0.25)).exp()
    };
    beat.iter().copied().enumerate().map(sample).collect()
}

/// Mains hum with its overtones.
fn hum(seconds: usize) -> Vec<f32> {
    let tone = |n: usize, hz: f32| (std::f32::consts::TAU * hz * n as f32 / SAMPLE_RATE_HZ as f32).sin();
    (0..seconds * SAMPLE_RATE_HZ).map(|n| 0.1 * (tone(n, 50.0) + 0.5 * tone(n, 150.0))).collect()
}

/// The transcript of a recording as one region, although the detector may find less speech in it.
fn undivided(model: &Whisper, samples: &[f32]) -> Transcript {
    let found = regions::find(&model.vad, samples, None);
    let mut region = regions::whole(samples).remove(0);
    region.speech = found.into_iter().flat_map(|region| region.speech).collect();
    let options = model.decoding_options(&listen(samples), &LIMITS).unwrap();
    let recording = model.record(samples, vec![region], options);
    Engine::new(model, None).run(vec![model.prepared(recording)]).remove(0)
}

#[test]
fn what_nobody_said_is_not_transcribed() {
    let quiet = |seconds| noise(seconds * SAMPLE_RATE_HZ, 0.003);
    for model in [&*BASE, &*TINY] {
        for (name, samples) in [
            ("silence", vec![0.0; 8 * SAMPLE_RATE_HZ]),
            ("noise", quiet(10)),
            ("hum", hum(8)),
            ("music", music(12)),
        ] {
            assert_eq!(one(model, listen(&samples)).text, "", "{name}");
            assert_eq!(undivided(model, &samples).text, "", "{name} without detection of speech");
        }
    }
}

#[test]
fn speech_beside_silence_loses_no_word() {
    for model in [&*BASE, &*TINY] {
        for (samples, _) in clips().into_iter().step_by(2) {
            let padded =
                [vec![0.0; 4 * SAMPLE_RATE_HZ], samples.clone(), vec![0.0; 4 * SAMPLE_RATE_HZ]].concat();
            let (alone, padded) = (one(model, listen(&samples)), undivided(model, &padded));
            let (alone, padded) = (words(&alone.text), words(&padded.text));
            assert!(errors(&padded, &alone) <= 1, "{padded:?} for {alone:?}");
        }
    }
}

#[test]
fn long_recordings_are_transcribed_to_the_end_without_loops() {
    let clips = clips();
    let gap = noise(24_000, 0.001);
    let mut samples = Vec::new();
    let mut expected = Vec::new();
    // All clips in turn, for more than a minute: several windows.
    for round in 0..2 {
        for at in 0..clips.len() {
            let (clip, text) = &clips[(at + round) % clips.len()];
            samples.extend(clip.iter().chain(&gap));
            expected.extend(words(text));
        }
    }
    assert!(samples.len() > 60 * SAMPLE_RATE_HZ);
    let duration_s = samples.len() as f64 / SAMPLE_RATE_HZ as f64;
    let transcript = one(&BASE, with_words(listen(&samples)));
    let wrong = errors(&words(&transcript.text), &expected);
    println!(
        "{wrong} errors in {} words over {duration_s:.0} s, {} passes",
        expected.len(),
        transcript.passes
    );
    assert!(wrong * 20 <= expected.len(), "{wrong} errors in {} words:\n{}", expected.len(), transcript.text);
    let times = transcript.segments.iter().flat_map(|segment| [segment.start_s, segment.end_s]);
    let times: Vec<f64> = times.collect();
    assert!(times.is_sorted() && times.iter().all(|time| (0.0..=duration_s).contains(time)), "{times:?}");
    for segment in &transcript.segments {
        assert!(segment.start_s < segment.end_s && segment.window_start_s <= segment.start_s + 0.01);
        let words: String = segment.words.iter().map(|word| word.text.as_str()).collect();
        assert_eq!(words, segment.text);
        assert!(segment.words.iter().all(|word| word.start_s <= word.end_s && word.probability <= 1.0));
    }
}

#[test]
fn a_prompt_sets_the_spelling_of_names() {
    let samples = clip("sense_and_sensibility_01_austen_64kb-0870");
    let prompted = |prompt: &str| {
        let prompt = Some(prompt.to_owned());
        let input = asking(listen(&samples), |options| {
            (options.prompt, options.language) = (prompt, Some("en".to_owned()));
        });
        one(&BASE, input).text
    };
    assert!(prompted("").contains("Dashwood"));
    let other =
        prompted("The family of Daschwoode: Mr. Henry Daschwoode, Mrs. Daschwoode, young Daschwoode.");
    assert!(other.contains("Daschwoode"), "{other}");
    // Special tokens in a prompt are dropped.
    assert!(prompted("<|endoftext|><|startoftranscript|>").contains("Dashwood"));
}

#[test]
fn a_seed_fixes_the_samples() {
    let samples = clip("sense_and_sensibility_01_austen_64kb-0890");
    let drawn = |seed| {
        let input = asking(listen(&samples), |options| {
            (options.temperature, options.seed) = (Some(1.0), Some(seed));
        });
        one(&BASE, input)
    };
    let first = drawn(1);
    assert_same(&[drawn(1)], std::slice::from_ref(&first));
    assert!((2..6).any(|seed| drawn(seed).segments != first.segments));
}

#[test]
fn short_passes_transcribe_everything() {
    let (samples, expected) = clips().remove(5);
    let limits = PrepareLimits { max_positions: MIN_POSITIONS, ..LIMITS };
    let prepared = BASE.prepare(&Input::Listen(listen(&samples)), &limits).unwrap();
    let transcript = Engine::new(&BASE, None).run(vec![prepared]).remove(0);
    assert!(errors(&words(&transcript.text), &words(&expected)) <= 2, "{}", transcript.text);
}

#[test]
fn english_speech_translates_to_itself() {
    let (samples, expected) = clips().remove(1);
    let transcript = one(&BASE, asking(listen(&samples), |options| options.translate = true));
    assert!(errors(&words(&transcript.text), &words(&expected)) <= 2, "{}", transcript.text);
}

#[test]
fn the_warm_up_input_reaches_the_network() {
    let Input::Listen(input) = TINY.warm_up_input() else { panic!("this family listens") };
    let prepared = prepare(&TINY, input);
    assert!(matches!(&prepared.work, Work::Encoder(parts) if parts.len() == TINY.encoder.parts()));
    Engine::new(&TINY, None).run(vec![prepared]);
}

#[test]
fn an_entry_of_another_family_is_an_error() {
    let mut kv = KvPool::new(None, 0, BLOCK_SIZE, &device()).unwrap();
    let prepared = Prepared::new(Work::Units(Arc::new([1])), Arc::new(()));
    let mut state = TINY.start(&prepared);
    let entry = BatchEntry {
        prepared: &prepared,
        state: &mut state,
        start: 0,
        begins: true,
        num_tokens: 1,
        block_table: &[],
        branch_tables: &[],
    };
    assert!(matches!(TINY.forward(&mut kv, &mut [entry]).unwrap()[..], [Err(Error::Internal(_))]));
}
