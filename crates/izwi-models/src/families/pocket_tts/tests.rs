//! The whole family on tiny checkpoints, as an executor sees it: from text to samples.

use super::super::golden_set::rounds_activations;
use super::golden::recording;
use super::golden_set::{TOLERANCE, assert_same, compare, device, is_bit_exact, model, root, variants};
use super::*;
use crate::frame_driver::{FrameCodec, RequestState};
use crate::mini_engine::{self, MiniEngine};
use izwi_types::{Precision, Prepared};

const LIMITS: PrepareLimits = PrepareLimits { max_tokens_per_step: 512, max_positions: 1024 };
const BLOCK: usize = 8;
/// Frames of a request.
const MOST: usize = 12;

type Driver = FrameDriver<PocketTts>;

/// A variant of the golden set whose speech has no end of its own.
fn endless(variant: &str, precision: Precision) -> Driver {
    let mut model = model(variant, precision);
    model.generator.eos_threshold = f32::INFINITY;
    FrameDriver::new(model, &device())
}

/// A request of [`MOST`] frames.
fn say(variant: &str, text: &str, seed: u64) -> SpeakInput {
    let sampling = SamplingParams { temperature: 0.5, ..SamplingParams::GREEDY };
    let reference = Some(VoiceReference::Recording(recording(variant)));
    SpeakInput { seed, sampling, reference, max_tokens: MOST, ..SpeakInput::plain(text) }
}

fn prepare(model: &Driver, input: SpeakInput) -> Prepared {
    model.prepare(&Input::Speak(input), &LIMITS).unwrap()
}

fn alone(model: &Driver, prepared: &Prepared) -> Vec<f32> {
    mini_engine::alone(model, prepared, MOST).samples
}

/// As [`assert_same`]. On a device, quantised products of a batch are rounded otherwise, and each latent carries that on to
/// the next.
fn assert_same_in(precision: Precision, name: &str, ours: &[f32], theirs: &[f32]) {
    if is_bit_exact() || precision == Precision::F32 {
        assert_same(name, ours, theirs);
    } else {
        compare(name, ours, theirs, if rounds_activations() { 3e-2 } else { 10.0 * TOLERANCE });
    }
}

const TEXTS: [&str; 5] = [
    "Hi.",
    "The quick brown fox jumps over the lazy dog.",
    "Is it? It is, and it goes on for a little while after that.",
    "No!",
    "Reading aloud takes breath and time.",
];

#[test]
fn pocket_tts_golden_batches_equal_each_alone_with_chunked_prefill() {
    for variant in variants() {
        for precision in [Precision::F32, Precision::Q8] {
            let model = endless(&variant, precision);
            let inputs = TEXTS.iter().enumerate();
            let prepared: Vec<Prepared> =
                inputs.map(|(n, text)| prepare(&model, say(&variant, text, n as u64))).collect();
            let mut engine = MiniEngine::new(&model, BLOCK, 7, MOST);
            prepared.iter().for_each(|prepared| engine.admit(prepared));
            for (running, prepared) in engine.finish().iter().zip(&prepared) {
                assert_eq!(running.generated, MOST);
                let name = format!("{variant} {precision}");
                assert_same_in(precision, &name, &running.samples, &alone(&model, prepared));
            }
        }
    }
}

#[test]
fn pocket_tts_golden_preempted_sequences_give_the_same_samples() {
    for variant in variants() {
        let model = endless(&variant, Precision::F32);
        let inputs = TEXTS.iter().take(3).map(|text| prepare(&model, say(&variant, text, 5)));
        let prepared: Vec<Prepared> = inputs.collect();
        let mut engine = MiniEngine::new(&model, BLOCK, 5, MOST);
        prepared.iter().for_each(|prepared| engine.admit(prepared));
        for step in 0..30 {
            engine.preempt(step % 3);
            (0..=step % 4 * 3).for_each(|_| {
                if engine.has_work() {
                    engine.step();
                }
            });
        }
        for (running, prepared) in engine.finish().iter().zip(&prepared) {
            assert_same(&variant, &running.samples, &alone(&model, prepared));
        }
    }
}

/// A folder like that of a variant, with its state as the built-in voice "alba" and another name for the same.
fn published(variant: &str) -> (tempfile::TempDir, Driver) {
    let (folder, from) = (tempfile::tempdir().unwrap(), root().join(variant));
    std::fs::create_dir(folder.path().join("embeddings")).unwrap();
    for file in std::fs::read_dir(&from).unwrap().flatten() {
        let name = file.file_name();
        if name == "voice.safetensors" {
            for voice in ["alba", "Zoe"] {
                let to = folder.path().join("embeddings").join(format!("{voice}.safetensors"));
                std::fs::copy(file.path(), to).unwrap();
            }
        } else {
            std::fs::copy(file.path(), folder.path().join(name)).unwrap();
        }
    }
    let options = LoadOptions::new(device(), Precision::F32);
    let config = Config::load(folder.path()).unwrap();
    let model = PocketTts::load(folder.path(), config, &options).unwrap();
    (folder, FrameDriver::new(model, &options.device))
}

#[test]
fn pocket_tts_golden_published_voices_share_their_positions() {
    for variant in variants() {
        let (folder, model) = published(&variant);
        let names: Vec<&str> = model.info().voices.iter().map(|voice| voice.id.as_str()).collect();
        assert_eq!(names, ["alba", "Zoe"]);
        assert_eq!(voices(folder.path()).unwrap(), model.info().voices, "without weights");
        let built_in = |text: &str, voice: Option<&str>| SpeakInput {
            reference: None,
            voice: voice.map(str::to_owned),
            ..say(&variant, text, 3)
        };
        let (first, second) =
            (prepare(&model, built_in(TEXTS[1], None)), prepare(&model, built_in(TEXTS[4], Some("ALBA"))));
        let pairs = mini_engine::keys(&first).iter().zip(mini_engine::keys(&second));
        let shared = pairs.take_while(|(a, b)| a == b).count();
        assert!(shared / BLOCK >= 1, "the voice is the same: {shared} positions");
        let mut engine = MiniEngine::new(&model, BLOCK, 3, MOST);
        engine.admit(&first);
        (0..8).for_each(|_| engine.step());
        engine.admit_with_prefix(&second, 0, shared);
        let together = engine.finish();
        assert_same("shared", &together[1].samples, &alone(&model, &second));
        let recording = alone(&model, &prepare(&model, say(&variant, TEXTS[4], 3)));
        let published = alone(&model, &second);
        let off = recording
            .iter()
            .zip(&published)
            .take(3 * 1920)
            .fold(0f32, |most, (a, b)| most.max((a - b).abs()));
        assert!(off < 1e-3, "{variant}: the state is that of the recording: {off}");
        let refused = model.prepare(&Input::Speak(built_in("Hi.", Some("nobody"))), &LIMITS).unwrap_err();
        assert!(refused.param == "voice" && refused.message.contains("alba, Zoe"), "{refused}");
    }
}

#[test]
fn pocket_tts_golden_seeds_determine_samples() {
    let variant = &variants()[0];
    let model = endless(variant, Precision::F32);
    let once = alone(&model, &prepare(&model, say(variant, TEXTS[1], 1)));
    assert_same("again", &once, &alone(&model, &prepare(&model, say(variant, TEXTS[1], 1))));
    assert_ne!(once, alone(&model, &prepare(&model, say(variant, TEXTS[1], 2))));
}

#[test]
fn pocket_tts_golden_streaming_equals_offline_decoding() {
    for variant in variants() {
        let model = endless(&variant, Precision::F32);
        let prepared = prepare(&model, say(&variant, TEXTS[2], 9));
        let mut engine = MiniEngine::new(&model, BLOCK, usize::MAX, MOST);
        engine.admit(&prepared);
        let running = engine.finish().remove(0);
        assert!(running.chunks.len() > 1);
        let request = running.state.downcast_ref::<RequestState<PocketTts>>().unwrap();
        let mut fresh = Stream::default();
        let latents = &request.state.latents;
        let offline = model.model.codec.decode(&mut [(&mut fresh, latents)]).unwrap().remove(0);
        assert_same("streamed", &running.samples, &offline[..running.samples.len()]);
        assert_eq!(offline[0], 0.0, "speech fades in");
        assert_eq!(fresh.bytes(), model.model.codec.state_bytes());
    }
}

#[test]
fn pocket_tts_golden_long_texts_take_several_passes_and_each_ends() {
    let variant = &variants()[0];
    let model = FrameDriver::new(model(variant, Precision::F32), &device());
    let text = "This is one sentence of very many, said once more. ".repeat(6);
    let prepared = prepare(&model, SpeakInput { max_tokens: usize::MAX, ..say(variant, &text, 4) });
    let passes = prepared.payload.downcast_ref::<Plan<PocketTts>>().unwrap().passes.len();
    assert!(passes > 1);
    let mut engine = MiniEngine::new(&model, BLOCK, usize::MAX, usize::MAX);
    engine.admit(&prepared);
    let running = engine.finish().remove(0);
    assert!(running.finished && running.passes == passes);
    let empty = prepare(&model, say(variant, " ", 4));
    assert_eq!(empty.payload.downcast_ref::<Plan<PocketTts>>().unwrap().passes.len(), 0);
}

#[test]
fn pocket_tts_golden_packed_voices_equal_the_voice_of_their_recording() {
    for variant in variants() {
        let model = endless(&variant, Precision::F32);
        let pack = model.make_voice(&recording(&variant)).unwrap();
        model.check_voice(&pack).unwrap();
        let speak = |reference: VoiceReference| {
            let input = SpeakInput { reference: Some(reference), ..say(&variant, TEXTS[4], 2) };
            alone(&model, &prepare(&model, input))
        };
        let packed = speak(VoiceReference::Pack(pack.clone().into()));
        assert_same("packed", &packed, &speak(VoiceReference::Recording(recording(&variant))));
        let refused = |pack: &[u8]| model.check_voice(pack).unwrap_err().message;
        assert!(refused(&pack[..pack.len() / 2]).contains("damaged") && refused(b"").contains("damaged"));
        let tensors = safetensors::SafeTensors::deserialize(&pack).unwrap();
        let foreign = safetensors::serialize(tensors.iter(), None).unwrap();
        assert!(refused(&foreign).contains("another model"));
    }
}

#[test]
fn pocket_tts_golden_unsupported_inputs_are_refused_by_field() {
    let variant = &variants()[0];
    let model = endless(variant, Precision::F32);
    let refused =
        |input: SpeakInput, limits: &PrepareLimits| model.prepare(&Input::Speak(input), limits).unwrap_err();
    let none = SpeakInput { reference: None, ..say(variant, "Hi.", 1) };
    assert!(refused(none, &LIMITS).message.contains("ref_audio"));
    let with = |samples: Vec<f32>| {
        let recording = VoiceRecording { samples: samples.into(), text: None, timbre_only: true };
        SpeakInput { reference: Some(VoiceReference::Recording(recording)), ..say(variant, "Hi.", 1) }
    };
    for samples in [0, 1000, 24_000 * 61] {
        assert_eq!(refused(with(vec![0.1; samples]), &LIMITS).param, "ref_audio");
    }
    let tight = PrepareLimits { max_positions: 40, ..LIMITS };
    assert!(refused(say(variant, "Hi.", 1), &tight).message.contains("max_blocks"));
    // A text without any mark is cut where its positions end.
    let words = "word ".repeat(400);
    let prepared = prepare(&model, say(variant, &words, 1));
    let plan = prepared.payload.downcast_ref::<Plan<PocketTts>>().unwrap();
    let fits = |pass: &crate::frame_driver::PassPlan<Pass>| {
        pass.prompt_keys.len() + model.model.most_frames(pass.pass.tokens.len()) <= LIMITS.max_positions
    };
    assert!(plan.passes.len() > 1 && plan.passes.iter().all(fits));
}

#[test]
fn random_weights_speak_until_a_limit() {
    for size in SIZES.into_iter().skip(1) {
        let model = random(size, &LoadOptions::new(device(), Precision::Auto)).unwrap();
        assert_eq!(model.info().voices.len(), 1);
        if !is_bit_exact() {
            continue;
        }
        let input = SpeakInput { max_tokens: 3, ..SpeakInput::plain("Hello there.") };
        let prepared = model.prepare(&Input::Speak(input), &LIMITS).unwrap();
        let running = mini_engine::alone(&*model, &prepared, 3);
        assert_eq!(running.samples.len(), 3 * 1920, "{size}");
        assert!(running.samples.iter().all(|sample| sample.is_finite()));
    }
}

#[test]
fn a_checkpoint_that_does_not_fit_names_its_tensors() {
    let variant = &variants()[0];
    let config = Config::load(&root().join(variant)).unwrap();
    let mut smaller = config.clone();
    smaller.flow_lm.transformer.num_layers -= 1;
    let options = LoadOptions::new(device(), Precision::F32);
    let error = PocketTts::load(&root().join(variant), smaller, &options).unwrap_err().to_string();
    assert!(error.contains("unknown"), "{error}");
}
