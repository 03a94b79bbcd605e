//! The promises of the engine, and faulty checkpoints.

use std::fs;

use super::super::golden_set;
use super::golden::{SET, generate, model, model_in, recording, wave, whole};
use super::*;
use crate::mini_engine::{MiniEngine, Sequence, alone, keys};
use izwi_types::{LiveWindow, Precision, Segment};

const LIMITS: PrepareLimits = PrepareLimits { max_tokens_per_step: 512, max_positions: 4096 };

/// A live window of the set's recording: speech without a detector.
fn window(samples: usize, decided: &str, options: TranscriptionOptions) -> Input {
    let window = LiveWindow { decided: decided.to_owned(), is_thorough: false };
    let input = ListenInput::plain(wave(samples).into());
    Input::Listen(ListenInput { window: Some(window), options, ..input })
}

fn in_language(code: &str) -> TranscriptionOptions {
    let options = TranscriptionOptions { language: Some(code.to_owned()), ..TranscriptionOptions::default() };
    options.with_logprobs()
}

/// A recording of several stretches.
pub(super) fn in_pieces(model: &Qwen3Asr, has_words: bool) -> Prepared {
    let samples = wave(70_000);
    let pieces = [0..24_000, 24_000..24_100, 24_100..60_000, 60_000..70_000];
    let stretches =
        pieces.map(|piece| Stretch { max_tokens: 9, ..model.stretch(&samples, piece, has_words) }).into();
    let recording = Recording {
        stretches,
        prompt: model.vocabulary.prompt("", ""),
        audio_token: model.config.audio_token,
        language: None,
        headers: Vec::new(),
        decided: None,
        is_live: false,
        sampling: SamplingParams::GREEDY,
        seed: 1,
        max_tokens_per_step: 512,
        keywords: None,
        has_logprobs: true,
        has_words,
        given: None,
    };
    let work = State::new(&recording).unwrap().work(&recording);
    Prepared::new(work, Arc::new(recording))
}

/// The same transcript, and the same probabilities where bits are promised.
pub(super) fn assert_same(ran: &Sequence, other: &Sequence, name: &str) {
    if golden_set::is_bit_exact() {
        return ran.assert_same(other, name);
    }
    let words = |segment: &Segment| segment.words.iter().map(|word| word.text.clone()).collect::<Vec<_>>();
    let told = |ran: &Sequence| ran.segments.iter().map(words).collect::<Vec<_>>();
    assert_eq!((&ran.text, told(ran)), (&other.text, told(other)), "{name}");
}

fn text_of(segments: &[Segment]) -> String {
    segments.iter().map(|segment| segment.text.as_str()).collect()
}

#[test]
fn batches_chunks_and_preemption_change_nothing() {
    let model = model("asr06");
    let options = in_language("de");
    let warm = TranscriptionOptions { temperature: Some(0.8), seed: Some(3), ..options.clone() };
    let inputs =
        [window(24_000, "", options.clone()), window(83_200, "", warm), window(13_333, "Ja", options)];
    let mut prepared: Vec<Prepared> =
        inputs.iter().map(|input| model.prepare(input, &LIMITS).unwrap()).collect();
    prepared.push(in_pieces(&model, false));
    const MOST: usize = 48;
    let whole: Vec<Sequence> = prepared.iter().map(|one| alone(&model, one, MOST)).collect();
    assert!(whole[3].passes == 4 && whole[3].finished, "{}", whole[3].passes);
    for chunk in [usize::MAX, 7, 1] {
        let mut engine = MiniEngine::new(&model, 8, chunk, MOST);
        prepared.iter().for_each(|one| engine.admit(one));
        for step in 0.. {
            if !engine.has_work() {
                break;
            }
            engine.step();
            if step == 9 {
                (0..prepared.len()).for_each(|at| engine.preempt(at));
            }
        }
        for (ran, whole) in engine.finish().iter().zip(&whole) {
            assert_same(ran, whole, &format!("chunks of {chunk}"));
        }
    }
}

#[test]
fn a_shared_prefix_ends_with_the_last_window_that_did_not_change() {
    let model = model("asr06");
    // A loud start: what follows does not change the peak.
    let prepared = |samples: usize| {
        let mut heard = wave(samples);
        heard[..400].fill(1.0);
        let input = ListenInput { window: Some(LiveWindow::default()), ..ListenInput::plain(heard.into()) };
        model.prepare(&Input::Listen(input), &LIMITS).unwrap()
    };
    let (shorter, longer) = (prepared(70_000), prepared(83_200));
    let same = keys(&shorter).iter().zip(keys(&longer)).take_while(|(a, b)| a == b).count();
    let before = model.vocabulary.prompt("", "").before.len();
    let window = model.config.tower.window_chunks * CHUNK_ROWS;
    assert_eq!(same, before + 2 * window);
    // The blocks end inside the second window.
    let mut engine = MiniEngine::new(&model, 8, usize::MAX, 12);
    engine.admit(&shorter);
    engine.step();
    engine.admit_with_prefix(&longer, 0, same);
    assert_same(&engine.finish()[1], &alone(&model, &longer, 12), "after a shared prefix");
}

#[test]
fn segments_have_their_times_and_the_bytes_of_their_tokens() {
    let model = model("asr06");
    let ran = alone(&model, &in_pieces(&model, false), 64);
    assert_eq!(ran.text, text_of(&ran.segments));
    assert!(ran.segments.len() > 1);
    for segment in &ran.segments {
        assert!(segment.start_s < segment.end_s && segment.avg_logprob < 0.0);
        let bytes: Vec<u8> = segment.logprobs.iter().flat_map(|token| token.bytes.clone()).collect();
        assert_eq!(String::from_utf8_lossy(&bytes), segment.text);
    }
}

#[test]
fn a_live_window_continues_what_is_decided() {
    let model = model("asr06");
    let run = |input: &Input| alone(&model, &model.prepare(input, &LIMITS).unwrap(), 200);
    let known = run(&window(24_000, " Hello world", in_language("en")));
    assert!(known.text.starts_with(" Hello world") && known.finished, "{}", known.text);
    let bytes: Vec<u8> = known.segments[0].logprobs.iter().flat_map(|token| token.bytes.clone()).collect();
    assert_eq!(String::from_utf8_lossy(&bytes), known.text);
    // The language is found first, then the text is the same.
    let found = run(&window(24_000, " Hello world", TranscriptionOptions::default()));
    assert!(found.passes == 2 || found.text.is_empty(), "{}", found.text);
    if found.passes == 2 {
        assert_eq!(found.text, known.text);
    }
    let long = window(24_000, "", TranscriptionOptions::default());
    let limits = PrepareLimits { max_positions: 110, ..LIMITS };
    assert_eq!(model.prepare(&long, &limits).unwrap_err().param, "audio");
    let limits = PrepareLimits { max_positions: 40, ..LIMITS };
    assert_eq!(model.prepare(&long, &limits).unwrap_err().param, "prompt");
}

#[test]
fn the_language_is_one_of_those_that_are_given() {
    let model = model("asr06");
    let options = |codes: &[&str]| TranscriptionOptions {
        languages: codes.iter().map(|&code| code.to_owned()).collect(),
        ..TranscriptionOptions::default()
    };
    let header = |codes: &[&str], among: &[&str]| {
        let ran = alone(&model, &model.prepare(&window(24_000, "", options(codes)), &LIMITS).unwrap(), 64);
        let state = ran.state.downcast_ref::<Option<State>>().unwrap().as_ref().unwrap();
        let headers = model.headers(&options(among).languages);
        headers.iter().any(|header| state.generated().starts_with(header))
    };
    let some: [&[&str]; 3] = [&["de", "fr"], &["ja", "ko", "yue"], &["el"]];
    for codes in some {
        assert!(header(codes, codes), "{codes:?}");
    }
    assert!(some.iter().filter(|codes| header(&[], codes)).count() <= 1, "the network names one by itself");
    let error = model.prepare(&window(24_000, "", options(&["de", "klingon"])), &LIMITS).unwrap_err();
    assert_eq!(error.param, "languages");
}

#[test]
fn what_the_network_lacks_is_refused_and_silence_has_no_text() {
    let model = model("asr06");
    let none = TranscriptionOptions::default;
    for (param, options) in [
        ("language", in_language("klingon")),
        ("model", TranscriptionOptions { translate: true, ..none() }),
        ("timestamp_granularities", none().with_words()),
        ("beam_size", TranscriptionOptions { beam_size: Some(5), ..none() }),
    ] {
        assert_eq!(model.prepare(&window(8_000, "", options), &LIMITS).unwrap_err().param, param);
    }
    for silence in [0, 100, 16_000] {
        let input = Input::Listen(ListenInput::plain(vec![0.0; silence].into()));
        let ran = alone(&model, &model.prepare(&input, &LIMITS).unwrap(), 8);
        assert!(ran.finished && ran.text.is_empty());
    }
}

#[test]
fn weights_of_8_bits_are_near() {
    let samples = wave(24_000);
    let logits = |precision: Precision| {
        let model = model_in("asr06", precision);
        let recording = recording(&model, whole(&model, &samples), "", "");
        generate(&model, &[recording], 1).remove(0).1.concat()
    };
    let (exact, near) = (logits(Precision::F32), logits(Precision::Q8));
    golden_set::compare("8 bits", &near, &exact, 0.3);
}

#[test]
fn faulty_checkpoints_are_errors() {
    let folder = tempfile::tempdir().unwrap();
    let source = SET.root().join("asr06");
    for entry in fs::read_dir(&source).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), folder.path().join(entry.file_name())).unwrap();
    }
    let options = LoadOptions::new(golden_set::device(), Precision::F32);
    let load = || Qwen3Asr::load(folder.path(), &options);
    assert!(load().is_ok());
    let path = folder.path().join("config.json");
    let text = fs::read_to_string(&path).unwrap();
    for (place, value, told) in [
        ("/thinker_config", "null", "-hf"),
        ("/thinker_config/model_type", "\"qwen3_forced_aligner\"", "timestamp_token_id"),
        ("/thinker_config/model_type", "\"qwen3_omni\"", "model_type is 'qwen3_omni'"),
        ("/thinker_config/audio_token_id", "99999999", "audio_token_id is 99999999"),
        ("/thinker_config/audio_config/n_window", "100", "n_window is 100"),
        ("/thinker_config/audio_config/n_window_infer", "250", "n_window_infer is 250"),
        ("/thinker_config/audio_config/encoder_attention_heads", "7", "encoder_attention_heads, 7"),
        ("/thinker_config/audio_config/d_model", "0", "d_model is 0"),
        ("/thinker_config/audio_config/output_dim", "65", "output_dim is 65"),
        ("/thinker_config/audio_config/downsample_hidden_size", "9", "conv2d1"),
        ("/thinker_config/text_config/num_key_value_heads", "3", "num_key_value_heads, 3"),
        ("/thinker_config/text_config/head_dim", "33", "head_dim is 33"),
        ("/thinker_config/text_config/rope_theta", "-1", "rope_theta is -1"),
        ("/thinker_config/text_config/rope_scaling/rope_type", "\"yarn\"", "yarn"),
        ("/thinker_config/text_config/hidden_act", "\"relu\"", "relu"),
        ("/thinker_config/text_config/num_hidden_layers", "2", "layers.2"),
        ("/thinker_config/text_config/num_hidden_layers", "1000", "layers.3"),
        ("/thinker_config/text_config/vocab_size", "100000000", "vocab_size is 100000000"),
        ("/thinker_config/text_config/vocab_size", "600", "the network knows 600"),
        ("/thinker_config/text_config/hidden_size", "\"wide\"", "config.json"),
    ] {
        let mut config: serde_json::Value = serde_json::from_str(&text).unwrap();
        *config.pointer_mut(place).unwrap() = serde_json::from_str(value).unwrap();
        fs::write(&path, config.to_string()).unwrap();
        let error = load().unwrap_err().to_string();
        assert!(error.contains(told), "{place}: {error}");
    }
    fs::write(&path, &text[..text.len() / 2]).unwrap();
    assert!(load().unwrap_err().to_string().contains("config.json"));
    fs::write(&path, &text).unwrap();
    for (name, told) in [("merges.txt", "merges.txt"), ("tokenizer_config.json", "tokenizer_config.json")] {
        let whole = fs::read(folder.path().join(name)).unwrap();
        fs::remove_file(folder.path().join(name)).unwrap();
        assert!(load().unwrap_err().to_string().contains(told));
        fs::write(folder.path().join(name), whole).unwrap();
    }
    let path = folder.path().join("tokenizer_config.json");
    let text = fs::read_to_string(&path).unwrap().replace("<asr_text>", "<other>");
    fs::write(&path, text).unwrap();
    assert!(load().unwrap_err().to_string().contains("<asr_text>"));
}

/// The set's recording with what tokens of words gain, which are not told to the network.
fn named(model: &Qwen3Asr, words: &[String]) -> Prepared {
    let stretch = Stretch { max_tokens: 9, ..whole(model, &wave(24_000)) };
    let recording = Recording {
        language: Some("de".to_owned()),
        keywords: Keywords::new(words, &model.vocabulary.bytes),
        ..recording(model, stretch, "", "")
    };
    let work = State::new(&recording).unwrap().work(&recording);
    Prepared::new(work, Arc::new(recording))
}

#[test]
fn keywords_are_written_where_they_are_close_and_change_no_other_recording() {
    let model = model("asr06");
    let run = |words: &[String]| alone(&model, &named(&model, words), 16);
    let plain = run(&[]);
    // Of random weights nothing can be foretold: a token that is not written without keywords.
    let pieces = (0..model.config.tokens as u32).map(|token| model.vocabulary.text(&[token]));
    let new = pieces.filter(|piece| !piece.trim().is_empty() && !plain.text.contains(piece.trim()));
    let words = new.map(|piece| vec![piece.trim().to_owned()]);
    let near = words.take(2_000).find(|words| run(words).text.contains(&words[0])).expect("a close keyword");
    assert_same(&run(&["zzzzzzzz".to_owned()]), &plain, "a word that is not close");
    let prepared = [near.as_slice(), &[], &["b c".to_owned()]].map(|words| named(&model, words));
    let mut engine = MiniEngine::new(&model, 8, 7, 16);
    prepared.iter().for_each(|one| engine.admit(one));
    for step in 0.. {
        if !engine.has_work() {
            break;
        }
        engine.step();
        if step == 9 {
            (0..prepared.len()).for_each(|at| engine.preempt(at));
        }
    }
    for (ran, one) in engine.finish().iter().zip(&prepared) {
        assert_same(ran, &alone(&model, one, 16), "beside other keywords");
    }
}
