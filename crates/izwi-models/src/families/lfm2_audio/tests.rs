//! The whole family on the tiny checkpoint, as an executor sees it: from text and recordings to text and samples.

use candle_core::Device;

use super::golden::{CASES, arguments, emitted, recording};
use super::golden_set::{TOLERANCE, assert_same, compare, device, is_bit_exact, root, tensors, values};
use super::*;
use crate::frame_driver::{FrameCodec, RequestState};
use crate::mini_engine::{MiniEngine, Sequence, alone, keys};
use izwi_types::Precision;
use izwi_types::{Emission, ListenInput, Prepared, SamplingParams, SpeakInput, TranscriptionOptions, Work};

const LIMITS: PrepareLimits = PrepareLimits { max_tokens_per_step: 512, max_positions: 1024 };
const BLOCK: usize = 8;

type Driver = FrameDriver<LfmAudio>;

fn model_at(precision: Precision) -> Driver {
    driver(LfmAudio::load(&root(), &LoadOptions::new(device(), precision)).unwrap(), &device())
}

fn driver(model: LfmAudio, device: &Device) -> Driver {
    FrameDriver::new(model, device)
}

fn model() -> Driver {
    model_at(Precision::F32)
}

/// The checkpoint with the older codec alone.
fn with_mimi() -> Driver {
    let folder = tempfile::tempdir().unwrap();
    for file in std::fs::read_dir(root()).unwrap() {
        let file = file.unwrap();
        if file.file_type().unwrap().is_file() {
            std::fs::copy(file.path(), folder.path().join(file.file_name())).unwrap();
        }
    }
    let options = LoadOptions::new(device(), Precision::F32);
    driver(LfmAudio::load(folder.path(), &options).unwrap(), &options.device)
}

fn speak(text: &str, seed: u64) -> Input {
    Input::Speak(SpeakInput { seed, sampling: plan::TTS_SAMPLING, ..SpeakInput::plain(text) })
}

fn transcribe(samples: Arc<[f32]>) -> Input {
    Input::Listen(ListenInput::plain(samples))
}

fn converse(turns: Vec<Turn>, sampling: Option<SamplingParams>, seed: u64) -> Input {
    Input::Converse(ConverseInput {
        instructions: None,
        turns,
        sampling,
        text_sampling: sampling,
        seed,
        max_tokens: usize::MAX,
        tools: Vec::new(),
        tool_choice: ToolChoice::Auto,
        text_only: false,
        voice: None,
        speed: 1.0,
        chunk_samples: 1,
        first_chunk_samples: None,
    })
}

fn user_turn(name: &str) -> Turn {
    Turn::User(vec![Message::Recording(recording(name))])
}

fn prepare(model: &Driver, input: &Input) -> Prepared {
    model.prepare(input, &LIMITS).unwrap()
}

/// A text, a recording, and a conversation.
fn mixed(model: &Driver) -> Vec<Prepared> {
    let sampling = Some(plan::CHAT_SAMPLING);
    let inputs = [
        speak("Hello world, this is a test.", 1),
        transcribe(recording("w1")),
        converse(vec![user_turn("w2")], sampling, 3),
        speak("Seventeen sleepy seals slid south.", 4),
        converse(vec![Turn::User(vec![Message::Text("And you?".to_owned())])], sampling, 5),
        transcribe(recording("w24_resampled_16k")),
    ];
    inputs.iter().map(|input| prepare(model, input)).collect()
}

fn generated(ran: &Sequence) -> &[Emission] {
    &ran.state.downcast_ref::<RequestState<LfmAudio>>().unwrap().state.generated.emissions
}

#[test]
fn golden_speech_matches_the_reference_from_text_to_samples() {
    let model = model_at(Precision::F32);
    let input =
        SpeakInput { voice: Some("uk_male".to_owned()), ..SpeakInput::plain("Hello world, this is a test.") };
    let most = arguments("tts").max_new_tokens;
    let input = Input::Speak(SpeakInput { max_tokens: most, ..input });
    let expected = emitted(&tensors("tts"));
    let ran = alone(&model, &prepare(&model, &input), most);
    assert_eq!(generated(&ran), expected);
    // The reference's recipe drops the last frame, which ends audio where the limit did not.
    let ended = expected
        .iter()
        .any(|emission| matches!(emission, Emission::Frame(codes) if codes[0] == config::END_OF_AUDIO));
    if ended {
        compare("speech", &ran.samples, &values(&tensors("detok_tts")["wav"]), TOLERANCE);
    }
}

#[test]
fn overlapped_decoding_gives_the_same_samples_and_first_chunk() {
    // Other devices run one queue.
    if !is_bit_exact() {
        return;
    }
    let mut model = model_at(Precision::F32);
    let two = rayon::ThreadPoolBuilder::new().num_threads(2).build().unwrap();
    let texts = ["Hello world, this is a test.", "Seventeen sleepy seals slid south."];
    for chunk_samples in [1, 3 * model.model.codec.samples_per_frame()] {
        let inputs = texts.iter().zip([16, 27]).map(|(text, max_tokens)| {
            Input::Speak(SpeakInput { chunk_samples, max_tokens, ..SpeakInput::plain(*text) })
        });
        let prepared: Vec<Prepared> = inputs.map(|input| prepare(&model, &input)).collect();
        let [overlapped, sequential] = [true, false].map(|overlaps| {
            model.overlaps = overlaps;
            let mut engine = MiniEngine::new(&model, 8, 9, 27);
            prepared.iter().for_each(|prepared| engine.admit(prepared));
            let mut num_deferred = 0;
            two.install(|| {
                while engine.has_work() {
                    engine.step();
                    let states =
                        engine.sequences.iter().map(|ran| ran.state.downcast_ref::<RequestState<LfmAudio>>());
                    num_deferred += states.flatten().filter(|request| request.buffer.has_deferred()).count();
                }
            });
            assert_eq!(num_deferred > 0, overlaps);
            engine.finish()
        });
        for (overlapped, sequential) in overlapped.iter().zip(&sequential) {
            assert_eq!(
                (&overlapped.samples, overlapped.chunks[0]),
                (&sequential.samples, sequential.chunks[0])
            );
        }
    }
}

#[test]
fn golden_transcriptions_and_conversations_match_the_reference() {
    let model = model_at(Precision::F32);
    let first = emitted(&tensors("chat1"));
    for name in CASES.into_iter().filter(|name| !["tts", "chat_sampled"].contains(name)) {
        let second = Turn::User(vec![
            Message::Text("Please speak slowly.".to_owned()),
            Message::Recording(recording("w2")),
        ]);
        let input = match name {
            "asr" => transcribe(recording("w1")),
            "asr24" => transcribe(recording("w24_resampled_16k")),
            "chat1" => converse(vec![user_turn("w1")], Some(SamplingParams::GREEDY), 0),
            _ => converse(
                vec![user_turn("w1"), Turn::Model(first.clone().into()), second],
                Some(SamplingParams::GREEDY),
                0,
            ),
        };
        let ran = alone(&model, &prepare(&model, &input), arguments(name).max_new_tokens);
        let expected = emitted(&tensors(name));
        assert_eq!(generated(&ran), expected, "{name}");
        if name.starts_with("chat") {
            assert_eq!(ran.emissions, expected, "{name}");
        } else if ran.finished {
            let told: String = ran.segments.iter().map(|segment| segment.text.as_str()).collect();
            assert_eq!(told, ran.text, "{name}");
        }
    }
}

#[test]
fn a_mixed_batch_equals_each_alone_with_chunked_prefill() {
    for precision in [Precision::F32, Precision::Bf16, Precision::Q8] {
        let model = model_at(precision);
        let prepared = mixed(&model);
        let mut engine = MiniEngine::new(&model, BLOCK, 7, 24);
        prepared.iter().for_each(|prepared| engine.admit(prepared));
        let together = engine.finish();
        assert!(together.iter().any(|ran| ran.generated > BLOCK));
        for (ran, prepared) in together.iter().zip(&prepared) {
            ran.assert_same(&alone(&model, prepared, 24), &precision.to_string());
        }
    }
}

#[test]
fn preempted_sequences_give_the_same_outputs() {
    let model = model();
    let prepared = mixed(&model);
    let mut engine = MiniEngine::new(&model, BLOCK, 11, 24);
    prepared.iter().for_each(|prepared| engine.admit(prepared));
    for step in 0..40 {
        engine.preempt(step % prepared.len());
        for _ in 0..=step % 4 * 5 {
            if engine.has_work() {
                engine.step();
            }
        }
    }
    for (ran, prepared) in engine.finish().iter().zip(&prepared) {
        ran.assert_same(&alone(&model, prepared, 24), "preempted");
    }
}

#[test]
fn a_shared_prefix_gives_the_same_outputs() {
    let model = model();
    let [first, second] =
        ["One text.", "Another text, and a longer one."].map(|text| prepare(&model, &speak(text, 3)));
    let same = keys(&first).iter().zip(keys(&second)).take_while(|(a, b)| a == b).count();
    assert!(same >= 2 * BLOCK, "the instructions are the same: {same} positions");
    let mut engine = MiniEngine::new(&model, BLOCK, 5, 16);
    engine.admit(&first);
    (0..8).for_each(|_| engine.step());
    engine.admit_with_prefix(&second, 0, same);
    let together = engine.finish();
    together[1].assert_same(&alone(&model, &second, 16), "shared");
}

#[test]
fn the_next_turn_reuses_the_blocks_of_the_one_before() {
    let model = model();
    let first = prepare(&model, &converse(vec![user_turn("w1")], Some(SamplingParams::GREEDY), 0));
    let mut engine = MiniEngine::new(&model, 4, usize::MAX, 40);
    engine.admit(&first);
    while engine.has_work() {
        engine.step();
    }
    let generated = engine.sequences[0].emissions.clone();
    let reply = Turn::User(vec![Message::Text("Please speak slowly.".to_owned())]);
    let turns = vec![user_turn("w1"), Turn::Model(generated.into()), reply];
    let second = prepare(&model, &converse(turns, Some(plan::CHAT_SAMPLING), 7));
    let known: Vec<u64> = keys(&first).iter().chain(&engine.sequences[0].keys).copied().collect();
    assert_eq!(keys(&second)[..known.len()], known);
    let computed = engine.sequences[0].start;
    engine.admit_with_prefix(&second, 0, computed.min(known.len()));
    assert!(engine.sequences[1].start > 0 && computed > keys(&first).len());
    let together = engine.finish();
    together[1].assert_same(&alone(&model, &second, 40), "the next turn");
}

#[test]
fn an_answer_that_was_told_is_the_tokens_of_its_text() {
    let model = model();
    let (text, ask) = ("I can see you.", |text: &str| Turn::User(vec![Message::Text(text.to_owned())]));
    let prompt = |answer: Turn| {
        let turns = vec![ask("Hello."), answer, ask("And now?")];
        keys(&prepare(&model, &converse(turns, None, 0))).to_vec()
    };
    let tokens: Vec<Emission> =
        model.model.vocabulary.encode(text).into_iter().map(Emission::Token).collect();
    assert_eq!(prompt(Turn::Told(text.into())), prompt(Turn::Model(tokens.into())));
    // A greeting, before which the user said nothing.
    let turns = vec![Turn::User(Vec::new()), Turn::Told(text.into()), ask("Hello.")];
    let greeted = prepare(&model, &converse(turns, Some(SamplingParams::GREEDY), 0));
    assert!(alone(&model, &greeted, 5).generated > 0);
}

#[test]
fn a_seed_determines_outputs_and_states_are_fresh() {
    for model in [model(), with_mimi()] {
        let generated = |seed| alone(&model, &prepare(&model, &speak("Once more.", seed)), 30).samples;
        assert_same("again", &generated(1), &generated(1));
        let talked = |seed| {
            let input = converse(vec![user_turn("w2")], Some(plan::CHAT_SAMPLING), seed);
            alone(&model, &prepare(&model, &input), 30).emissions
        };
        assert_eq!(talked(1), talked(1));
        assert!((2..12).any(|seed| talked(seed) != talked(1)));
    }
}

#[test]
fn streaming_equals_offline_decoding_for_every_chunk_size() {
    for model in [model(), with_mimi()] {
        let frame = model.model.codec.samples_per_frame();
        let talked = |chunk_samples, seed| {
            let Input::Converse(input) = converse(vec![user_turn("w1")], Some(plan::CHAT_SAMPLING), seed)
            else {
                panic!()
            };
            let input = Input::Converse(ConverseInput { chunk_samples, max_tokens: 34, ..input });
            alone(&model, &prepare(&model, &input), 34)
        };
        let frames = |ran: &Sequence| -> Vec<Vec<u32>> {
            let frames = ran.emissions.iter().filter_map(|emission| match emission {
                Emission::Frame(codes) if model.model.codec.is_audible(codes) => Some(codes.to_vec()),
                _ => None,
            });
            frames.collect()
        };
        // The number of frames depends on the seed.
        let (seed, each) =
            (0..50).map(|seed| (seed, talked(1, seed))).find(|(_, ran)| frames(ran).len() > 4).unwrap();
        let frames = frames(&each);
        let mut fresh = model.model.codec.start();
        let mut offline = model.model.codec.decode(&mut [(&mut fresh, frames.as_slice())]).unwrap().remove(0);
        offline.extend(model.model.codec.finish(&mut fresh));
        assert_eq!(offline.len(), frames.len() * frame);
        assert_same("streamed", &each.samples, &offline);
        for chunk in [frame / 3, frame, 2 * frame + frame / 2, 100 * frame] {
            assert_same(&format!("chunks of {chunk}"), &talked(chunk, seed).samples, &offline);
        }
    }
}

#[test]
fn long_texts_take_several_passes() {
    let model = model();
    let tight = PrepareLimits { max_positions: 300, ..LIMITS };
    let prepared =
        model.prepare(&speak(&"This is one sentence of very many. ".repeat(12), 4), &tight).unwrap();
    let expected = prepared.payload.downcast_ref::<Plan<LfmAudio>>().unwrap().passes.len();
    assert!(expected > 1);
    // Tiny random weights rarely end by themselves; the limit of positions ends every pass.
    let ran = alone(&model, &prepared, usize::MAX);
    assert!(ran.finished && ran.passes == expected);
}

#[test]
fn long_recordings_are_transcribed_in_windows_whose_segments_are_the_text() {
    let model = model();
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../assets/speech/jfk.wav");
    let bytes = std::fs::read(path).unwrap();
    // A header of 44 bytes, then 16 bits a sample at 16 kHz.
    let speech =
        bytes[44..].as_chunks().0.iter().map(|&bytes| f32::from(i16::from_le_bytes(bytes)) / 32768.0);
    let speech: Vec<f32> = speech.collect();
    let long: Vec<f32> = speech.iter().chain(&speech).chain(&speech).chain(&speech).copied().collect();
    let prepared = prepare(&model, &transcribe(long.clone().into()));
    let ran = alone(&model, &prepared, usize::MAX);
    assert!(ran.finished && ran.passes > 1);
    let told: String = ran.segments.iter().map(|segment| segment.text.as_str()).collect();
    assert_eq!(told, ran.text);
    let end_s = long.len() as f64 / 16_000.0;
    for pair in ran.segments.windows(2) {
        assert!(pair[0].start_s < pair[0].end_s && pair[0].end_s <= pair[1].start_s);
    }
    assert!(
        ran.segments.iter().all(|segment| segment.end_s - segment.start_s <= 30.0 && segment.end_s <= end_s)
    );
}

#[test]
fn unsupported_inputs_are_refused_by_field() {
    let model = model();
    let refused = |input: &Input, limits: &PrepareLimits| model.prepare(input, limits).unwrap_err();
    let hi = || SpeakInput::plain("Hi.");
    let voice = Input::Speak(SpeakInput { voice: Some("nobody".to_owned()), ..hi() });
    assert_eq!(refused(&voice, &LIMITS).param, "voice");
    let language = Input::Speak(hi().in_language("klingon"));
    assert_eq!(refused(&language, &LIMITS).param, "language");
    let tight = PrepareLimits { max_positions: 40, ..LIMITS };
    assert!(refused(&Input::Speak(hi()), &tight).message.contains("max_blocks"));
    assert!(refused(&transcribe(recording("w1")), &tight).message.contains("max_blocks"));
    assert!(refused(&converse(vec![user_turn("w1")], None, 0), &tight).message.contains("max_blocks"));
    assert_eq!(refused(&converse(Vec::new(), None, 0), &LIMITS).param, "input");
    let short = Turn::User(vec![Message::Recording(vec![0.1; 100].into())]);
    assert_eq!(refused(&converse(vec![short], None, 0), &LIMITS).param, "audio");
    let foreign = Turn::Model(vec![Emission::Frame([1, 2].into())].into());
    let foreign = converse(vec![user_turn("w1"), foreign, user_turn("w1")], None, 0);
    assert!(refused(&foreign, &LIMITS).message.contains("not this model's"));
    let Input::Listen(input) = transcribe(recording("w1")) else { panic!() };
    let none = TranscriptionOptions::default;
    for (options, param) in [
        (none().with_words(), "timestamp_granularities"),
        (TranscriptionOptions { translate: true, ..none() }, "model"),
    ] {
        assert_eq!(refused(&Input::Listen(ListenInput { options, ..input.clone() }), &LIMITS).param, param);
    }
}

#[test]
fn a_recording_that_is_too_short_gives_an_empty_transcript() {
    let model = model();
    let ran = alone(&model, &prepare(&model, &transcribe(vec![0.0; 100].into())), 5);
    assert!(ran.finished && ran.text.is_empty() && ran.segments.is_empty());
}

#[test]
fn every_precision_loads_generates_and_warms_up() {
    for precision in
        [Precision::Auto, Precision::F32, Precision::Bf16, Precision::F16, Precision::Q8, Precision::Q4]
    {
        let model = model_at(precision);
        let prepared = prepare(&model, &model.warm_up_input());
        let ran = alone(&model, &prepared, 6);
        assert!(ran.generated > 0 && ran.samples.iter().all(|sample| sample.is_finite()), "{precision}");
        let ran = alone(&model, &prepare(&model, &transcribe(recording("w2"))), 6);
        assert!(ran.generated > 0);
        assert!(model.model.info.weight_bytes > 0 && model.model.info.state_bytes > 0);
        assert!(model.step_bytes(1) >= model.step_bytes(100_000));
    }
}

#[test]
fn random_weights_generate_frames_without_end() {
    Config::parse(include_str!("shapes/1.5b.json")).unwrap();
    let config = config::read(&root().join("config.json")).unwrap();
    let options = LoadOptions::new(device(), Precision::Q8);
    let model = driver(LfmAudio::random(&config, &options).unwrap(), &options.device);
    let input = Input::Speak(SpeakInput { max_tokens: 6, ..SpeakInput::plain("Hi.") });
    let ran = alone(&model, &prepare(&model, &input), 6);
    assert!(!ran.finished && ran.generated == 6 && ran.samples.iter().any(|&sample| sample != 0.0));
    let frames = generated(&ran)
        .iter()
        .filter(|emission| matches!(emission, Emission::Frame(codes) if model.model.codec.is_audible(codes)));
    assert_eq!(ran.samples.len(), frames.count() * model.model.codec.samples_per_frame());
}

#[test]
fn tensors_that_do_not_fit_are_named() {
    let folder = tempfile::tempdir().unwrap();
    for file in ["config.json", "tokenizer.json"] {
        std::fs::copy(root().join(file), folder.path().join(file)).unwrap();
    }
    let load = || {
        let options = LoadOptions::new(Device::Cpu, Precision::F32);
        LfmAudio::load(folder.path(), &options).unwrap_err().to_string()
    };
    assert!(load().contains("tokenizer-e351c8d8-checkpoint125.safetensors"));
    let mimi = "tokenizer-e351c8d8-checkpoint125.safetensors";
    std::fs::copy(root().join(mimi), folder.path().join(mimi)).unwrap();
    assert!(load().contains("model.safetensors"));
    let weights = Checkpoint::open_folder(&root(), &Device::Cpu).unwrap();
    let mut tensors = weights.into_tensors().unwrap();
    tensors.remove("depth_linear.bias");
    tensors.insert("lfm.extra".to_owned(), candle_core::Tensor::zeros(3, DType::F32, &Device::Cpu).unwrap());
    candle_core::safetensors::save(&tensors, folder.path().join("model.safetensors")).unwrap();
    let error = load();
    assert!(error.contains("depth_linear.bias: missing") && error.contains("lfm.extra: unknown"), "{error}");
    // One of two tied tables suffices.
    let weights = Checkpoint::open_folder(&root(), &Device::Cpu).unwrap();
    let mut tensors = weights.into_tensors().unwrap();
    let codebook = "depth_embeddings.0";
    let table = tensors.remove(&format!("{codebook}.embedding.weight")).unwrap();
    tensors.insert(format!("{codebook}.to_logits.weight"), table);
    candle_core::safetensors::save(&tensors, folder.path().join("model.safetensors")).unwrap();
    let options = LoadOptions::new(Device::Cpu, Precision::F32);
    LfmAudio::load(folder.path(), &options).unwrap();
}

#[test]
fn a_conversation_has_the_watchdog() {
    let model = model_at(Precision::F32);
    let input = converse(vec![Turn::User(vec![Message::Text("And you?".to_owned())])], None, 5);
    let prepared = prepare(&model, &input);
    let plan = prepared.payload.downcast_ref::<Plan<LfmAudio>>().unwrap();
    assert_eq!(plan.passes[0].max_frames, Some(crate::frame_driver::max_frames(0)));
    // The tiny checkpoint rarely ends an answer. Its text is greedy and comes to repeat itself.
    let mut state = PassState::new(&plan.passes[0].pass);
    let token = |id: u32| Emission::Token(id);
    state.generated.emissions = (0..100).map(|at| token(at * at % 97)).collect();
    assert!(!state.loops(), "a text");
    state.generated.emissions.extend((0..48).flat_map(|at| [token(at % 5), Emission::Frame(Arc::new([1]))]));
    assert!(state.loops(), "five tokens again and again");
    assert_eq!(state.text_tokens(), 148);
}

#[test]
fn an_answer_whose_text_repeats_itself_is_cut_as_a_runaway() {
    let model = model_at(Precision::F32);
    let turns = vec![Turn::User(vec![Message::Text("And you?".to_owned())])];
    let share = model.model.config.interleaved_n_text;
    let sampling = SamplingParams { top_k: 0, ..plan::CHAT_SAMPLING };
    // The tiny checkpoint may end an answer at once.
    let begun = (0..64).find_map(|seed| {
        let mut engine = MiniEngine::new(&model, 8, usize::MAX, usize::MAX);
        engine.admit(&prepare(&model, &converse(turns.clone(), Some(sampling), seed)));
        while engine.has_work() && engine.sequences[0].generated < share {
            engine.step();
        }
        engine.has_work().then_some(engine)
    });
    let mut engine = begun.expect("an answer goes on");
    let sequence = &mut engine.sequences[0];
    // As if it had gone on with five tokens again and again. A frame is next.
    let state = &mut sequence.state.downcast_mut::<RequestState<LfmAudio>>().unwrap().state;
    state.generated.emissions.extend((0..48).map(|at| Emission::Token(10 + at % 5)));
    sequence.known += 48;
    engine.step();
    let sequence = &engine.sequences[0];
    assert!(sequence.finished && sequence.runaway);
}

#[test]
fn rows_of_the_encoder_are_held_until_their_positions_are_computed() {
    let model = model_at(Precision::F32);
    let turns = vec![user_turn("w1"), Turn::Model(Arc::new([Emission::Token(7)])), user_turn("w2")];
    let prepared = prepare(&model, &converse(turns, None, 3));
    let Work::Autoregressive { prompt, encoders, .. } = &prepared.work else { panic!("a prompt") };
    let recordings =
        &prepared.payload.downcast_ref::<Plan<LfmAudio>>().unwrap().passes[0].pass.prompt.recordings;
    let has_mel: Vec<bool> = recordings.iter().map(prompt::Recording::has_mel).collect();
    assert_eq!(has_mel, [false, true], "an earlier turn may be cached");
    assert_eq!(encoders.len(), 2);
    assert!(encoders[0].end < encoders[1].end && encoders[1].end < prompt.len() && encoders[0].tokens > 0);
    let mut engine = MiniEngine::new(&model, 8, 8, 4);
    engine.admit(&prepared);
    let held = |engine: &MiniEngine<'_>| {
        let state = engine.sequences[0].state.downcast_ref::<RequestState<LfmAudio>>().unwrap();
        state.state.encoded.iter().flatten().map(|rows| rows.elem_count() * size_of::<f32>()).sum::<usize>()
    };
    let mut most = 0;
    while engine.sequences[0].generated == 0 {
        engine.step();
        most = most.max(held(&engine));
    }
    assert!(most > 0 && most <= ENCODER_ROWS * model.model.config.lfm.hidden_size * size_of::<f32>());
    assert_eq!(held(&engine), 0, "all positions are computed");
    // After a preemption the encoder runs again, and the answer is the same.
    engine.preempt(0);
    let ran = engine.finish().remove(0);
    assert_eq!(generated(&ran), generated(&alone(&model, &prepared, 4)));
}
