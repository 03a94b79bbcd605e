//! The whole family on tiny checkpoints, as an executor sees it: from text to samples.

use std::collections::{HashMap, HashSet};

use super::super::golden_set::rounds_activations;
use super::golden::{Arguments, cases};
use super::golden_set::{TOLERANCE, assert_same, compare, device, is_bit_exact, root, tensors, values};
use super::*;
use crate::frame_driver::{FrameCodec, RequestState};
use crate::mini_engine::{self, MiniEngine, Sequence};
use crate::model::BatchEntry;
use izwi_types::Precision;
use izwi_types::{Prepared, SamplingParams, SpeechOptions};

const LIMITS: PrepareLimits = PrepareLimits { max_tokens_per_step: 512, max_positions: 1024 };
const BLOCK: usize = 8;

type Driver = FrameDriver<QwenTts>;

fn model_at(checkpoint: &str, precision: Precision) -> Driver {
    let options = LoadOptions::new(device(), precision);
    FrameDriver::new(QwenTts::load(&root().join(checkpoint), &options).unwrap(), &options.device)
}

fn model(checkpoint: &str) -> Driver {
    model_at(checkpoint, Precision::F32)
}

fn say(text: &str, seed: u64) -> SpeakInput {
    let sampling = SamplingParams { temperature: 0.9, top_k: 50, ..SamplingParams::repeating(1.05) };
    SpeakInput { seed, sampling, ..SpeakInput::plain(text) }
}

fn prepare(model: &Driver, input: SpeakInput) -> Prepared {
    model.prepare(&Input::Speak(input), &LIMITS).unwrap()
}

/// The recording of the golden set.
fn recording(text: Option<&str>) -> VoiceRecording {
    let samples = values(&tensors("base17.speaker")["inputs.ref24"]);
    VoiceRecording { samples: samples.into(), text: text.map(str::to_owned), timbre_only: text.is_none() }
}

/// Samples of one sequence alone.
fn alone(model: &Driver, prepared: &Prepared, most: usize) -> Vec<f32> {
    mini_engine::alone(model, prepared, most).samples
}

const TEXTS: [&str; 8] = [
    "Hi.",
    "The quick brown fox jumps over the lazy dog.",
    "你好，世界。",
    "Is it? It is, and it goes on for a little while after that.",
    "Seventeen sleepy seals slid south.",
    "No!",
    "camelCase, 2026 and more.",
    "Reading aloud takes breath and time.",
];

#[test]
fn golden_speech_matches_the_reference_from_text_to_samples() {
    let mut models: HashMap<String, Driver> = HashMap::new();
    for (name, checkpoint, arguments) in cases() {
        let model = models.entry(checkpoint.clone()).or_insert_with(|| model_at(&checkpoint, Precision::F32));
        let golden = tensors(&name);
        let frames = golden["codes"].dim(1).unwrap();
        let input = SpeakInput { max_tokens: frames, ..input(model, &arguments) };
        let mut plan = model.model.plan_speech(&input, &LIMITS).unwrap();
        if let Some(uniforms) = golden.get("uniforms") {
            plan.passes[0].pass.draws =
                izwi_nn::sampling::Draws::recorded(uniforms.to_vec1::<f64>().unwrap().into());
        }
        let prepared = Driver::prepared(plan);
        let ours = alone(model, &prepared, frames);
        let theirs = values(&golden["wav0"]);
        // The reference cuts a recording off by a share of the length and may keep its last sample.
        let kept = theirs.len() - ours.len();
        assert!(kept <= 1, "{name}: {} and {}", theirs.len(), ours.len());
        compare(&name, &ours, &theirs[kept..], TOLERANCE);
    }
}

/// The reference's call as a request.
fn input(model: &Driver, arguments: &Arguments) -> SpeakInput {
    let sampling = if arguments.do_sample {
        model.model.settings.sampling
    } else {
        SamplingParams { temperature: 0.0, ..model.model.settings.sampling }
    };
    let reference = arguments.x_vector_only_mode.map(|timbre_only| {
        let text = arguments.ref_text.as_deref().filter(|_| !timbre_only);
        VoiceReference::Recording(recording(text))
    });
    SpeakInput {
        voice: arguments.speaker.clone(),
        options: SpeechOptions {
            language: arguments.language.clone(),
            instructions: arguments.instruct.clone(),
            non_streaming_mode: arguments.non_streaming_mode,
            ..SpeechOptions::default()
        },
        reference,
        sampling,
        ..SpeakInput::plain(&arguments.text)
    }
}

#[test]
fn a_batch_of_eight_equals_each_alone_with_chunked_prefill() {
    // Rounded logits may select another token.
    let precisions = [Precision::F32, Precision::Bf16, Precision::Q8];
    for &precision in &precisions[..if rounds_activations() { 1 } else { 3 }] {
        let model = model_at("cv06", precision);
        let inputs = TEXTS.iter().enumerate();
        let prepared: Vec<Prepared> = inputs.map(|(n, text)| prepare(&model, say(text, n as u64))).collect();
        let mut engine = MiniEngine::new(&model, BLOCK, 7, 20);
        prepared.iter().for_each(|prepared| engine.admit(prepared));
        for (running, prepared) in engine.finish().iter().zip(&prepared) {
            assert!(running.chunks.len() > 1);
            assert_same(&precision.to_string(), &running.samples, &alone(&model, prepared, 20));
        }
    }
}

#[test]
fn preempted_sequences_give_the_same_samples() {
    let model = model("cv06");
    let prepared: Vec<Prepared> = TEXTS.iter().take(3).map(|text| prepare(&model, say(text, 5))).collect();
    let mut engine = MiniEngine::new(&model, BLOCK, 5, 24);
    prepared.iter().for_each(|prepared| engine.admit(prepared));
    for step in 0..60 {
        engine.preempt(step % 3);
        (0..=step % 4 * 5).for_each(|_| {
            if engine.has_work() {
                engine.step();
            }
        });
    }
    for (running, prepared) in engine.finish().iter().zip(&prepared) {
        assert_same("preempted", &running.samples, &alone(&model, prepared, 24));
    }
}

#[test]
fn a_preempted_sequence_goes_on_from_the_blocks_of_its_own_frames() {
    let model = model("cv06");
    let prepared = prepare(&model, say(TEXTS[1], 5));
    let undisturbed = mini_engine::alone(&model, &prepared, 30);
    let frames = undisturbed.generated - usize::from(undisturbed.finished);
    let keys: HashSet<u64> = undisturbed.keys.iter().copied().collect();
    assert_eq!((keys.len(), undisturbed.keys.len()), (frames, frames), "a key for each frame");
    let mut engine = MiniEngine::new(&model, BLOCK, usize::MAX, 30);
    engine.admit(&prepared);
    let in_full_blocks = |engine: &MiniEngine<'_>| engine.sequences[0].start / BLOCK * BLOCK;
    while in_full_blocks(&engine) <= mini_engine::keys(&prepared).len() {
        engine.step();
    }
    assert!(!engine.sequences[0].finished);
    // As after a preemption in which no full block was lost.
    let start = in_full_blocks(&engine);
    (engine.sequences[0].start, engine.sequences[0].begins) = (start, true);
    let again = engine.finish().remove(0);
    assert_same("from its own blocks", &again.samples, &undisturbed.samples);
    assert_eq!(again.keys, undisturbed.keys);
}

#[test]
fn a_shared_prefix_gives_the_same_samples() {
    let model = model("cv17");
    let prepared = |text: &str| prepare(&model, styled(text, 3, None));
    let (first, second) = (prepared(TEXTS[1]), prepared(TEXTS[4]));
    let shared =
        mini_engine::keys(&first).iter().zip(mini_engine::keys(&second)).take_while(|(a, b)| a == b).count();
    let blocks = shared / BLOCK;
    assert!(blocks >= 2, "the style, the role and the voice are the same: {shared} positions");
    let mut engine = MiniEngine::new(&model, BLOCK, usize::MAX, 12);
    engine.admit(&first);
    engine.step();
    engine.admit_with_prefix(&second, 0, shared);
    let together = engine.finish();
    assert_same("shared", &together[1].samples, &alone(&model, &second, 12));
}

#[test]
fn a_seed_determines_samples_and_states_are_fresh() {
    let model = model("cv06");
    let once = alone(&model, &prepare(&model, say(TEXTS[1], 1)), 15);
    assert_same("again", &once, &alone(&model, &prepare(&model, say(TEXTS[1], 1)), 15));
    assert_ne!(once, alone(&model, &prepare(&model, say(TEXTS[1], 2)), 15));
}

#[test]
fn streaming_equals_offline_decoding() {
    let model = model("cv06");
    let prepared = prepare(&model, say(TEXTS[3], 9));
    let mut engine = MiniEngine::new(&model, BLOCK, usize::MAX, 40);
    engine.admit(&prepared);
    let running = engine.finish().remove(0);
    let request = running.state.downcast_ref::<RequestState<QwenTts>>().unwrap();
    let frames: Vec<Vec<u32>> = request.state.frames.iter().map(|frame| frame.to_vec()).collect();
    let mut fresh = model.model.codec.start();
    let offline = model.model.codec.decode(&mut [(&mut fresh, &frames)]).unwrap().remove(0);
    assert_same("streamed", &running.samples, &offline[..running.samples.len()]);
}

#[test]
fn decoded_frames_complete_chunks_and_none_is_lost_at_a_limit() {
    // Each chunk in the step that completes it.
    let model = FrameDriver { overlaps: false, ..model("cv06") };
    let (frame, most) = (model.model.codec.samples_per_frame(), 11);
    let run = |chunk_samples, seed| {
        let mut engine = MiniEngine::new(&model, BLOCK, usize::MAX, most);
        engine.admit(&prepare(&model, SpeakInput { chunk_samples, max_tokens: most, ..say(TEXTS[3], seed) }));
        engine.finish().remove(0)
    };
    for seed in 0..4 {
        let each = run(1, seed);
        assert!(each.chunks.iter().all(|&samples| samples == frame));
        for chunk in [frame / 3, frame, 2 * frame + frame / 2, 100 * frame] {
            let chunked = run(chunk, seed);
            assert_same(&format!("chunks of {chunk}"), &chunked.samples, &each.samples);
            let mut before = 0;
            for (at, samples) in chunked.chunks.iter().enumerate() {
                let after = before + samples / frame;
                let completes = |frames: usize| frames * frame / chunk > before * frame / chunk;
                let fewest = (before + 1..=after).find(|&frames| completes(frames)).unwrap_or(usize::MAX);
                let last = at + 1 == chunked.chunks.len();
                assert!(last || after == fewest.min(before + 4), "{:?} in chunks of {chunk}", chunked.chunks);
                before = after;
            }
        }
    }
}

#[test]
fn overlapped_decoding_gives_the_same_samples_and_first_chunk() {
    // Other devices run one queue.
    if !is_bit_exact() {
        return;
    }
    let mut model = model("cv06");
    let two = rayon::ThreadPoolBuilder::new().num_threads(2).build().unwrap();
    for chunk_samples in [1, 2 * model.model.codec.samples_per_frame()] {
        let inputs = TEXTS.iter().zip([9, 14, 15, 30]);
        let inputs =
            inputs.map(|(text, max_tokens)| SpeakInput { chunk_samples, max_tokens, ..say(text, 1) });
        let prepared: Vec<Prepared> = inputs.map(|input| prepare(&model, input)).collect();
        let [overlapped, sequential] = [true, false].map(|overlaps| {
            model.overlaps = overlaps;
            let mut engine = MiniEngine::new(&model, BLOCK, 9, 30);
            prepared.iter().for_each(|prepared| engine.admit(prepared));
            let mut num_deferred = 0;
            two.install(|| {
                for step in 0.. {
                    if step % 11 == 10 {
                        engine.preempt(step % 4);
                    }
                    if !engine.has_work() {
                        break;
                    }
                    engine.step();
                    let states = engine
                        .sequences
                        .iter()
                        .map(|running| running.state.downcast_ref::<RequestState<QwenTts>>());
                    num_deferred += states.flatten().filter(|request| request.buffer.has_deferred()).count();
                }
            });
            assert_eq!(num_deferred > 0, overlaps);
            engine.finish()
        });
        for (overlapped, sequential) in overlapped.iter().zip(&sequential) {
            assert_eq!(overlapped.samples, sequential.samples);
            assert_eq!(overlapped.chunks[0], sequential.chunks[0]);
        }
    }
}

#[test]
fn a_runaway_is_cut_off_and_reported() {
    let model = model("cv06");
    for chunk_samples in [1, 100_000] {
        let input = SpeakInput { chunk_samples, ..say(TEXTS[1], 4) };
        let mut plan = model.model.plan_speech(&input, &LIMITS).unwrap();
        // No end token in the first two frames.
        plan.passes[0].max_frames = Some(2);
        let prepared = Driver::prepared(plan);
        let mut engine = MiniEngine::new(&model, BLOCK, usize::MAX, 100);
        engine.admit(&prepared);
        let running = engine.finish().remove(0);
        assert!(running.finished && running.runaway);
        assert_eq!(running.samples.len(), 2 * model.model.codec.samples_per_frame());
    }
}

#[test]
fn long_texts_take_several_passes() {
    let model = model("cv06");
    let text = "This is one sentence of very many. ".repeat(80);
    let prepared = prepare(&model, say(&text, 4));
    let plan = prepared.payload.downcast_ref::<Plan<QwenTts>>().unwrap();
    let expected = plan.passes.len();
    assert!(expected > 2);
    let mut engine = MiniEngine::new(&model, BLOCK, usize::MAX, usize::MAX);
    engine.admit(&prepared);
    // Tiny random weights rarely end by themselves; the watchdog ends every pass.
    let running = engine.finish().remove(0);
    assert_eq!(running.passes, expected);
    assert!(running.finished);
}

#[test]
fn a_packed_voice_equals_the_voice_of_its_recording() {
    let model = model("base17");
    for text in [None, Some("Perform TTS.")] {
        let pack = model.make_voice(&recording(text)).unwrap();
        model.check_voice(&pack).unwrap();
        let speak = |reference: VoiceReference| {
            let input = SpeakInput { reference: Some(reference), ..say(TEXTS[4], 2) };
            alone(&model, &prepare(&model, input), 10)
        };
        let packed = speak(VoiceReference::Pack(pack.clone().into()));
        assert_same("packed", &packed, &speak(VoiceReference::Recording(recording(text))));
        check_refused_packs(&model, &pack);
    }
}

fn check_refused_packs(model: &Driver, pack: &[u8]) {
    let refused = |pack: &[u8]| model.check_voice(pack).unwrap_err();
    assert!(refused(&pack[..pack.len() / 2]).message.contains("damaged"));
    assert!(refused(b"").message.contains("damaged"));
    let (_, header) = safetensors::SafeTensors::read_metadata(pack).unwrap();
    let mut metadata = header.metadata().clone().unwrap();
    assert!(metadata.contains_key("created"));
    metadata.insert("model".to_owned(), "another".to_owned());
    let tensors = safetensors::SafeTensors::deserialize(pack).unwrap();
    let foreign = safetensors::serialize(tensors.iter(), Some(metadata)).unwrap();
    assert!(refused(&foreign).message.contains("another model"));
}

#[test]
fn unsupported_inputs_are_refused_by_field() {
    let (own, base) = (model("cv06"), model("base17"));
    let refused = |model: &Driver, input: SpeakInput, limits: &PrepareLimits| {
        model.prepare(&Input::Speak(input), limits).unwrap_err()
    };
    let hi = || say("Hi.", 1);
    let with = |reference| SpeakInput { reference: Some(VoiceReference::Recording(reference)), ..hi() };
    assert_eq!(refused(&own, with(recording(None)), &LIMITS).param, "ref_audio");
    assert_eq!(refused(&base, hi(), &LIMITS).param, "ref_audio");
    let short = VoiceRecording { samples: vec![0.1; 100].into(), text: None, timbre_only: true };
    assert_eq!(refused(&base, with(short), &LIMITS).param, "ref_audio");
    let voice = SpeakInput { voice: Some("nobody".to_owned()), ..hi() };
    assert_eq!(refused(&own, voice, &LIMITS).param, "voice");
    let language = hi().in_language("klingon");
    assert_eq!(refused(&own, language, &LIMITS).param, "language");
    let tight = PrepareLimits { max_positions: 40, ..LIMITS };
    assert!(refused(&own, hi(), &tight).message.contains("max_blocks"));
    assert_eq!(own.make_voice(&recording(None)).unwrap_err().param, "model");
    assert_eq!(own.check_voice(b"").unwrap_err().param, "model");
}

#[test]
fn every_precision_loads_generates_and_warms_up() {
    for checkpoint in ["cv06", "base17", "vd17"] {
        for precision in
            [Precision::Auto, Precision::F32, Precision::Bf16, Precision::F16, Precision::Q8, Precision::Q4]
        {
            let model = model_at(checkpoint, precision);
            let Input::Speak(input) = model.warm_up_input() else { panic!("it speaks") };
            let prepared = prepare(&model, SpeakInput { max_tokens: 3, ..input });
            let samples = alone(&model, &prepared, 3);
            assert!(samples.len() == 3 * model.model.codec.samples_per_frame());
            assert!(samples.iter().all(|sample| sample.is_finite() && sample.abs() <= 1.0));
            assert!(model.model.info.weight_bytes > 0);
        }
    }
}

/// The instruction makes a prompt of several blocks.
fn styled(text: &str, seed: u64, non_streaming_mode: Option<bool>) -> SpeakInput {
    let instructions = Some("Speak slowly, in a low voice, as if it were late.".to_owned());
    let options = SpeechOptions { instructions, non_streaming_mode, ..SpeechOptions::default() };
    SpeakInput { options, ..say(text, seed) }
}

/// A text as it arrives: at which step each piece does; the text ends with the last.
struct Arrivals {
    sequence: usize,
    pieces: Vec<(usize, String)>,
}

impl Arrivals {
    /// Pieces of about `size` characters, with `pause` steps before each.
    fn new(sequence: usize, text: &str, size: usize, pause: usize) -> Self {
        let text: Vec<char> = text.chars().collect();
        let pieces = text.chunks(size).enumerate();
        let pieces = pieces.map(|(n, piece)| ((n + 1) * pause, piece.iter().collect())).collect();
        Self { sequence, pieces }
    }

    fn arrive(&mut self, step: usize, model: &Driver, engine: &mut MiniEngine<'_>) {
        let sequence = &mut engine.sequences[self.sequence];
        while self.pieces.first().is_some_and(|(at, _)| *at <= step) {
            let (_, piece) = self.pieces.remove(0);
            let progress = model.append_text(&sequence.prepared, &piece, self.pieces.is_empty()).unwrap();
            sequence.positions = progress.positions;
        }
    }
}

/// Where the first word of a text and the space after it end.
fn first_word(text: &str) -> usize {
    text.find([' ', '，']).map_or(text.len(), |at| at + text[at..].chars().next().unwrap().len_utf8())
}

#[test]
fn text_in_pieces_with_pauses_gives_the_samples_of_the_whole_text() {
    const MOST: usize = 30;
    let texts = [TEXTS[1], TEXTS[3], TEXTS[2], TEXTS[7], TEXTS[6]];
    for checkpoint in ["cv06", "cv17"] {
        let model = model(checkpoint);
        let whole: Vec<Sequence> = (0..)
            .zip(texts)
            .map(|(seed, text)| {
                mini_engine::alone(&model, &prepare(&model, styled(text, seed, Some(false))), MOST)
            })
            .collect();
        for (size, pause, preempts) in [(2, 1, false), (7, 9, true)] {
            let mut engine = MiniEngine::new(&model, BLOCK, 5, MOST);
            let arrivals = texts.iter().enumerate().map(|(n, text)| {
                let start = first_word(text);
                let begun =
                    SpeakInput { has_more_text: true, ..styled(&text[..start], n as u64, Some(false)) };
                let prepared = prepare(&model, begun);
                engine.admit(&prepared);
                let progress = model.append_text(&prepared, "", false).unwrap();
                engine.sequences[n].positions = progress.positions;
                Arrivals::new(n, &text[start..], size, pause)
            });
            let mut arrivals: Vec<Arrivals> = arrivals.collect();
            // Others that wait for nothing share the steps.
            engine.admit(&prepare(&model, styled(TEXTS[4], 9, Some(false))));
            let mut step = 0;
            while engine.has_work() {
                arrivals.iter_mut().for_each(|text| text.arrive(step, &model, &mut engine));
                if preempts && step % 12 == 11 {
                    engine.preempt(step / 12 % texts.len());
                }
                engine.step();
                step += 1;
            }
            for (running, whole) in engine.sequences.iter().zip(&whole) {
                assert_eq!((running.generated, running.finished), (whole.generated, whole.finished));
                running.assert_same(whole, checkpoint);
            }
        }
    }
}

#[test]
fn a_text_that_has_run_out_generates_nothing_until_more_arrives() {
    let model = model("cv06");
    let prepared = prepare(&model, SpeakInput { has_more_text: true, ..say("The quick ", 1) });
    let mut engine = MiniEngine::new(&model, BLOCK, usize::MAX, 40);
    engine.admit(&prepared);
    engine.sequences[0].positions = model.append_text(&prepared, "", false).unwrap().positions;
    (0..10).for_each(|_| engine.step());
    let tokens = model.model.vocabulary.tokenize("The quick").unwrap().body.len();
    assert_eq!(engine.sequences[0].generated, tokens, "a frame a token");
    assert!(!engine.sequences[0].samples.is_empty(), "no decoded frame waits for text");
    let mut entry = BatchEntry {
        prepared: &prepared,
        state: &mut model.start(&prepared),
        start: 0,
        begins: true,
        num_tokens: mini_engine::keys(&prepared).len() + 1,
        block_table: &[0, 1, 2, 3],
        branch_tables: &[],
    };
    let outputs = model.forward(&mut engine.kv, std::slice::from_mut(&mut entry)).unwrap();
    let error = outputs.into_iter().next().unwrap().unwrap_err();
    assert!(error.to_string().contains("do not exist"), "{error}");
    let error = model.append_text(&prepare(&model, say("Hi.", 1)), "More.", true).unwrap_err();
    assert!(error.message.contains("as a whole"), "{error}");
}

#[test]
fn requests_of_one_voice_differ_in_the_last_prompt_position_alone() {
    for checkpoint in ["cv06", "cv17"] {
        let model = model(checkpoint);
        let [first, second] = [TEXTS[1], TEXTS[4]].map(|text| {
            let open = SpeakInput { has_more_text: true, ..styled(text, 3, Some(false)) };
            mini_engine::keys(&prepare(&model, open)).to_vec()
        });
        let (last, prefix) = first.split_last().unwrap();
        assert_eq!((prefix, first.len()), (&second[..prefix.len()], second.len()), "{checkpoint}");
        assert_ne!(Some(last), second.last());
    }
}

#[test]
fn a_voice_that_continues_a_recording_takes_its_text_whole() {
    let model = model("base17");
    let open = |text| {
        let reference = Some(VoiceReference::Recording(recording(text)));
        let input = SpeakInput { reference, has_more_text: true, ..say("Hello there", 1) };
        model.prepare(&Input::Speak(input), &LIMITS)
    };
    assert!(open(Some("Some words.")).unwrap_err().message.contains("continues a recording"));
    assert!(open(None).is_ok());
}
