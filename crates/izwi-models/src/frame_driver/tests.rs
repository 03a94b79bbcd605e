//! The driver with a toy family: a deterministic generator of continuous latents, and a codec of sines.

use izwi_audio::chunk::ChunkLengths;
use izwi_nn::sampling::mix;
use izwi_types::{
    ConverseInput, Emission, ListenInput, Message, SamplingParams, Segment, SpeakInput, Task, ToolChoice,
    Turn,
};

use super::*;
use crate::mini_engine::{MiniEngine, Sequence as Ran, alone};

const LIMITS: PrepareLimits = PrepareLimits { max_tokens_per_step: 512, max_positions: 200 };
const BLOCK: usize = 8;
/// Samples of a frame: ten frames a second.
const FRAME: usize = 20;
const RATE_HZ: usize = 200;
const HELD_BACK: usize = 5;
/// Generated frames for each byte of text.
const FRAMES_PER_BYTE: usize = 2;
/// Samples of a recording that one pass transcribes.
const WINDOW: usize = 4;

// example: codec
/// Frequency and amplitude of a sine: a frame that is not an integer.
type Latent = [f32; 2];

struct SineCodec;

#[derive(Default)]
struct SineStream {
    phase: f32,
    held_back: Vec<f32>,
}

impl FrameCodec for SineCodec {
    type Frame = Latent;
    type Stream = SineStream;

    fn info(&self) -> CodecInfo {
        CodecInfo {
            samples_per_frame: FRAME,
            held_back: HELD_BACK,
            sample_rate_hz: RATE_HZ,
            decoder_bytes: 1000,
        }
    }

    fn loop_key(&self, _frame: &Latent) -> Option<u32> {
        None
    }

    fn decode(&self, batch: &mut [StreamInput<'_, Self>]) -> Result<Vec<Vec<f32>>, Error> {
        let decode = |(stream, frames): &mut StreamInput<'_, Self>| {
            let mut samples = std::mem::take(&mut stream.held_back);
            for [frequency, amplitude] in *frames {
                for _ in 0..FRAME {
                    stream.phase += frequency;
                    samples.push(amplitude * stream.phase.sin());
                }
            }
            stream.held_back = samples.split_off(samples.len().saturating_sub(HELD_BACK));
            samples
        };
        Ok(batch.iter_mut().map(decode).collect())
    }

    fn finish(&self, stream: &mut SineStream) -> Vec<f32> {
        std::mem::take(stream).held_back
    }
}
// end of example

struct Toy {
    info: ModelInfo,
    times: PartTimes,
}

/// A prompt of bytes, and how many positions the model generates after it.
struct ToyPass {
    prompt: Vec<u64>,
    count: usize,
    is_silent: bool,
}

/// A hash of all computed positions decides the next frame.
#[derive(Default)]
struct ToyState {
    hash: u64,
    computed: usize,
    frames: Vec<Latent>,
}

impl ToyState {
    fn compute(&mut self, pass: &ToyPass, end: usize) {
        for at in self.computed..end {
            let generated = |at: usize| self.frames[at - pass.prompt.len()][0].to_bits().into();
            let key = pass.prompt.get(at).copied().unwrap_or_else(|| generated(at));
            self.hash = mix(self.hash ^ key);
        }
        self.computed = end;
    }
}

fn toy() -> FrameDriver<Toy> {
    let info = ModelInfo {
        sample_rate_hz: RATE_HZ as u32,
        input_sample_rate_hz: RATE_HZ as u32,
        tasks: vec![Task::Tts, Task::Asr, Task::Chat],
        voices: Vec::new(),
        speed_range: None,
        takes_instructions: false,
        takes_keywords: false,
        writes_figures: true,
        detects_language: false,
        takes_prompt: false,
        languages: Vec::new(),
        translates: false,
        clones_voices: false,
        appends_text: false,
        chunks_ms: Vec::new(),
        live_windows: false,
        times_words: false,
        takes_phonemes: false,
        aligns_text: false,
        calls_tools: false,
        transcriber: None,
        sampling: SamplingParams::GREEDY,
        weight_bytes: 0,
        state_bytes: 0,
    };
    FrameDriver::new(Toy { info, times: PartTimes::new(&["codec"]) }, &Device::Cpu)
}

fn pass_of(prompt: &[u8], count: usize) -> PassPlan<ToyPass> {
    let prompt: Vec<u64> = prompt.iter().map(|&byte| byte.into()).collect();
    PassPlan {
        prompt_keys: prompt.clone().into(),
        encoders: Arc::new([]),
        max_frames: Some(100),
        max_positions: None,
        pass: ToyPass { prompt, count, is_silent: false },
    }
}

// example: family
impl FrameModel for Toy {
    type Codec = SineCodec;
    type Request = Task;
    type Pass = ToyPass;
    type State = ToyState;

    const CODEC_PART: usize = 0;

    fn info(&self) -> &ModelInfo {
        &self.info
    }

    fn kv_layout(&self) -> Option<KvLayout> {
        None
    }

    fn codec(&self) -> &SineCodec {
        &SineCodec
    }

    fn step_bytes(&self) -> usize {
        1
    }

    fn part_times(&self) -> &PartTimes {
        &self.times
    }

    fn warm_up_input(&self) -> Input {
        Input::Speak(SpeakInput::plain("Warm."))
    }

    /// Text becomes a pass a sentence, a recording a pass a window.
    fn plan(&self, input: &Input, limits: &PrepareLimits) -> Result<Plan<Self>, InputError> {
        let plan = |request, passes, chunk_samples, max_tokens| Plan {
            request,
            passes,
            chunk_policy: ChunkPolicy {
                lengths: ChunkLengths::new(chunk_samples, None),
                may_defer: request == Task::Tts,
            },
            limits: PassLimits {
                max_tokens,
                max_positions: limits.max_positions,
                starts_next_pass: request == Task::Asr,
            },
        };
        Ok(match input {
            Input::Speak(input) => {
                let sentences = input.text.split_terminator('.').map(str::as_bytes);
                let passes = sentences.map(|text| pass_of(text, FRAMES_PER_BYTE * text.len())).collect();
                plan(Task::Tts, passes, input.chunk_samples, input.max_tokens)
            }
            Input::Listen(input) => {
                let windows = input.samples.chunks(WINDOW);
                let passes = windows.map(|window| pass_of(b"hear", window.len())).collect();
                plan(Task::Asr, passes, 1, usize::MAX)
            }
            Input::Converse(input) => {
                plan(Task::Chat, vec![pass_of(b"talk", 10)], input.chunk_samples, input.max_tokens)
            }
        })
    }

    fn start(&self, _task: &Task, _pass: &ToyPass) -> ToyState {
        ToyState::default()
    }

    fn start_stream(&self, _task: &Task) -> Result<SineStream, Error> {
        Ok(SineStream::default())
    }

    fn check(&self, pass: &ToyPass, state: &ToyState, end: usize) -> Result<(), Error> {
        check_positions(end, pass.prompt.len() + state.frames.len())
    }

    fn step(
        &self,
        _kv: &mut KvPool,
        entries: &mut [StepEntry<'_, Self>],
    ) -> Result<Vec<StepResult<Latent>>, Error> {
        let step = |entry: &mut StepEntry<'_, Self>| {
            let StepEntry { request, pass, start, end, begins, .. } = *entry;
            let state = &mut *entry.state;
            if begins {
                (state.hash, state.computed) = (0, 0);
                state.compute(pass, start);
            }
            assert_eq!(state.computed, start, "positions follow each other");
            state.compute(pass, end);
            if end < pass.prompt.len() + state.frames.len() {
                return Outcome::Pending.into();
            }
            if state.frames.len() == pass.count {
                return Outcome::End.into();
            }
            let frequency = (state.hash % 1000) as f32 / 1000.0 + 0.01;
            let latent = [frequency, if pass.is_silent { 0.0 } else { 0.5 }];
            state.frames.push(latent);
            let frame = StepResult::from(Outcome::Frame(latent));
            match request {
                Task::Tts => frame,
                Task::Asr | Task::Diarize | Task::Turn => {
                    StepResult { text: "x".to_owned(), ..Outcome::Token.into() }
                }
                Task::Chat => StepResult {
                    emission: Some(Emission::Token(state.frames.len() as u32)),
                    content_key: Some(state.hash),
                    ..frame
                },
            }
        };
        Ok(entries.iter_mut().map(step).collect())
    }

    fn finish_pass(&self, task: &Task, _pass: &ToyPass, state: &mut ToyState, output: &mut StepOutput) {
        if *task == Task::Asr {
            let text = "x".repeat(state.frames.len());
            output.segments.push(Segment { text, ..Segment::default() });
        }
    }
}
// end of example

fn say(text: &str) -> SpeakInput {
    SpeakInput::plain(text)
}

fn prepare(driver: &FrameDriver<Toy>, input: SpeakInput) -> Prepared {
    driver.prepare(&Input::Speak(input), &LIMITS).unwrap()
}

fn latents(ran: &Ran) -> &[Latent] {
    &ran.state.downcast_ref::<RequestState<Toy>>().unwrap().state.frames
}

/// Samples of all latents in one stream.
fn offline(latents: &[Latent]) -> Vec<f32> {
    let mut stream = SineStream::default();
    let mut samples = SineCodec.decode(&mut [(&mut stream, latents)]).unwrap().remove(0);
    samples.extend(SineCodec.finish(&mut stream));
    samples
}

#[test]
fn streaming_equals_offline_for_every_chunk_size() {
    let driver = toy();
    for chunk_samples in [1, FRAME, 2 * FRAME + 3, 1000 * FRAME] {
        let ran = alone(&driver, &prepare(&driver, SpeakInput { chunk_samples, ..say("Hello") }), usize::MAX);
        assert!(ran.finished && !ran.runaway && ran.passes == 1);
        assert_eq!(latents(&ran).len(), 5 * FRAMES_PER_BYTE);
        assert_eq!(ran.samples, offline(latents(&ran)), "chunks of {chunk_samples}");
    }
}

#[test]
fn frames_are_decoded_when_they_complete_a_chunk_and_four_at_the_latest() {
    let driver = FrameDriver { overlaps: false, ..toy() };
    let chunks = |chunk_samples| {
        let input = SpeakInput { chunk_samples, ..say("Hello") };
        alone(&driver, &prepare(&driver, input), usize::MAX).chunks
    };
    let first = FRAME - HELD_BACK;
    assert_eq!(chunks(1), [&[first][..], &[FRAME; 9], &[HELD_BACK]].concat());
    // The first frame alone is less than a chunk.
    assert_eq!(chunks(FRAME), [&[first + FRAME][..], &[FRAME; 8], &[HELD_BACK]].concat());
    assert_eq!(chunks(1000 * FRAME), [first + 3 * FRAME, 4 * FRAME, 2 * FRAME + HELD_BACK]);
    let (small, large) = (driver.step_bytes(1), driver.step_bytes(1000 * FRAME));
    assert_eq!((small, large), (1 + 1000, 1 + 1000 / MAX_FRAMES_PER_CHUNK));
}

#[test]
fn a_batch_equals_each_sequence_alone_with_chunked_and_preempted_prefill() {
    let driver = toy();
    let texts = ["Hello there", "A. Second. And a third", "x", "Something longer to generate"];
    let prepared: Vec<Prepared> = texts.map(|text| prepare(&driver, say(text))).into();
    for preempts in [false, true] {
        let mut engine = MiniEngine::new(&driver, BLOCK, 3, usize::MAX);
        prepared.iter().for_each(|prepared| engine.admit(prepared));
        for step in 0..40 {
            engine.step();
            if preempts && step % 9 == 8 && !engine.sequences[step % 4].finished {
                engine.preempt(step % 4);
            }
        }
        for (ran, prepared) in engine.finish().iter().zip(&prepared) {
            assert_eq!(ran.samples, alone(&driver, prepared, usize::MAX).samples);
        }
    }
}

#[test]
fn overlapped_decoding_gives_the_same_samples_and_the_same_first_chunk() {
    let mut driver = toy();
    let two = rayon::ThreadPoolBuilder::new().num_threads(2).build().unwrap();
    let prepared = ["Hello there", "A. Second."].map(|text| prepare(&driver, say(text)));
    let [overlapped, sequential] = [true, false].map(|overlaps| {
        driver.overlaps = overlaps;
        let mut engine = MiniEngine::new(&driver, BLOCK, 5, usize::MAX);
        prepared.iter().for_each(|prepared| engine.admit(prepared));
        let mut num_deferred = 0;
        two.install(|| {
            while engine.has_work() {
                engine.step();
                let requests = engine.sequences.iter();
                let requests = requests.filter_map(|ran| ran.state.downcast_ref::<RequestState<Toy>>());
                num_deferred += requests.filter(|request| request.buffer.has_deferred()).count();
            }
        });
        assert_eq!(num_deferred > 0, overlaps);
        engine.finish()
    });
    for (overlapped, sequential) in overlapped.iter().zip(&sequential) {
        assert_eq!((&overlapped.samples, overlapped.chunks[0]), (&sequential.samples, sequential.chunks[0]));
    }
}

#[test]
fn each_pass_starts_with_a_fresh_state_and_stream() {
    let driver = toy();
    let whole = alone(&driver, &prepare(&driver, say("One.Other")), usize::MAX);
    assert!(whole.finished && whole.passes == 2);
    let each = ["One", "Other"].map(|text| alone(&driver, &prepare(&driver, say(text)), usize::MAX).samples);
    assert_eq!(whole.samples, each.concat());
    let nothing = alone(&driver, &prepare(&driver, say("")), usize::MAX);
    assert!(nothing.finished && nothing.samples.is_empty() && nothing.generated == 0);
}

#[test]
fn all_frames_are_decoded_at_the_token_limit() {
    let driver = toy();
    let input = SpeakInput { chunk_samples: 1000 * FRAME, max_tokens: 6, ..say("Hello") };
    let ran = alone(&driver, &prepare(&driver, input), 6);
    assert!(!ran.finished);
    assert_eq!((ran.chunks.len(), &ran.samples), (2, &offline(latents(&ran))));
}

#[test]
fn the_watchdog_ends_a_pass_over_its_frames_and_in_silence() {
    let driver = toy();
    let run = |change: &dyn Fn(&mut PassPlan<ToyPass>)| {
        let mut plan = driver.model.plan(&Input::Speak(say("Hello.there")), &LIMITS).unwrap();
        change(&mut plan.passes[0]);
        alone(&driver, &FrameDriver::prepared(plan), usize::MAX)
    };
    let (normal, second) = (run(&|_| ()), 5 * FRAMES_PER_BYTE * FRAME);
    assert!(!normal.runaway && normal.samples.len() == 2 * second);
    let many = run(&|pass| pass.max_frames = Some(3));
    assert!(many.finished && many.runaway && many.passes == 2);
    // The cut drops the samples that the codec holds back.
    assert_eq!(many.samples.len(), 3 * FRAME - HELD_BACK + second);
    // Four seconds of silence.
    let silent = run(&|pass| (pass.pass.is_silent, pass.pass.count) = (true, 90));
    assert!(silent.runaway && silent.samples.len() == 40 * FRAME - HELD_BACK + second);
    let positions = run(&|pass| pass.max_positions = Some(4));
    assert!(positions.runaway && positions.samples.len() == 4 * FRAME + second);
    let unwatched = run(&|pass| (pass.pass.is_silent, pass.pass.count, pass.max_frames) = (true, 90, None));
    assert!(!unwatched.runaway && unwatched.samples.len() == 90 * FRAME + second);
}

#[test]
fn text_passes_run_without_frames_and_go_on_at_the_position_limit() {
    let driver = toy();
    let input = Input::Listen(ListenInput::plain(vec![0.0; 2 * WINDOW + 1].into()));
    let run = |max_positions| {
        let limits = PrepareLimits { max_positions, ..LIMITS };
        let ran = alone(&driver, &driver.prepare(&input, &limits).unwrap(), usize::MAX);
        assert!(ran.finished && ran.passes == 3 && ran.samples.is_empty());
        assert_eq!(ran.segments.iter().map(|segment| segment.text.as_str()).collect::<String>(), ran.text);
        ran.text.len()
    };
    assert_eq!(run(200), 2 * WINDOW + 1);
    // A prompt of four positions and two generated ones.
    assert_eq!(run(6), 2 + 2 + 1);
}

#[test]
fn in_a_conversation_samples_come_with_the_emission_that_completes_them() {
    let driver = toy();
    let input = Input::Converse(ConverseInput {
        instructions: None,
        turns: vec![Turn::User(vec![Message::Text("Hello".to_owned())])],
        sampling: None,
        text_sampling: None,
        seed: 0,
        max_tokens: usize::MAX,
        tools: Vec::new(),
        tool_choice: ToolChoice::Auto,
        text_only: false,
        voice: None,
        speed: 1.0,
        chunk_samples: 1,
        first_chunk_samples: None,
    });
    let mut engine = MiniEngine::new(&driver, BLOCK, usize::MAX, usize::MAX);
    engine.admit(&driver.prepare(&input, &LIMITS).unwrap());
    let two = rayon::ThreadPoolBuilder::new().num_threads(2).build().unwrap();
    two.install(|| {
        for emissions in 1..=10 {
            engine.step();
            let ran = &engine.sequences[0];
            assert_eq!((ran.emissions.len(), ran.keys.len()), (emissions, emissions));
            assert_eq!(ran.samples.len(), emissions * FRAME - HELD_BACK);
        }
    });
}

#[test]
fn an_entry_of_another_family_is_an_error() {
    let driver = toy();
    let mut prepared = prepare(&driver, say("Hello"));
    let mut kv = KvPool::new(None, 1, BLOCK, &Device::Cpu).unwrap();
    let mut forward = |prepared: &Prepared, mut state: SequenceState| {
        let entry = BatchEntry {
            prepared,
            state: &mut state,
            start: 0,
            begins: true,
            num_tokens: 5,
            block_table: &[],
            branch_tables: &[],
        };
        driver.forward(&mut kv, &mut [entry]).unwrap().remove(0).map_err(|error| error.to_string())
    };
    assert!(forward(&prepared, driver.start(&prepared)).is_ok());
    assert!(forward(&prepared, Box::new(())).unwrap_err().contains("another family"));
    prepared.payload = Arc::new(());
    assert!(forward(&prepared, driver.start(&prepared)).unwrap_err().contains("another family"));
}

#[test]
fn an_error_of_one_entry_fails_that_entry_alone() {
    let driver = toy();
    let prepared = ["Hello", "Hello there", "Hell"].map(|text| prepare(&driver, say(text)));
    let mut kv = KvPool::new(None, 1, BLOCK, &Device::Cpu).unwrap();
    let step = |kv: &mut KvPool, states: &mut [SequenceState]| {
        let mut entries: Vec<BatchEntry<'_>> = prepared
            .iter()
            .zip(states)
            .map(|(prepared, state)| BatchEntry {
                prepared,
                state,
                start: 0,
                begins: true,
                // Of the third, one position more than it has.
                num_tokens: 5,
                block_table: &[],
                branch_tables: &[],
            })
            .collect();
        driver.forward(kv, &mut entries).unwrap()
    };
    let mut states: Vec<SequenceState> = prepared.iter().map(|prepared| driver.start(prepared)).collect();
    let mut foreign: Vec<SequenceState> =
        vec![driver.start(&prepared[0]), Box::new(()), driver.start(&prepared[2])];
    let good = step(&mut kv, &mut states);
    let bad = step(&mut kv, &mut foreign);
    assert!(good[1].is_ok() && bad[1].is_err(), "a state of another family");
    assert!(good[2].is_err() && bad[2].is_err(), "a position that does not exist");
    assert_eq!(good[0].as_ref().unwrap(), bad[0].as_ref().unwrap(), "the others do not notice");
    assert_eq!(good[0].as_ref().unwrap().generated_tokens, 1);
}
