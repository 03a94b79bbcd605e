//! Parity with NeMo on the golden set, and the promises of the engine.

use serde::Deserialize;
use serde_json::{Value, json};

use super::super::golden_set::{self, GoldenSet, TOLERANCE, by_rows, compare, ids, values, with};
use super::*;
use crate::conformer::Context;
use izwi_types::{LiveWindow, TranscriptionOptions};

mod live;
mod stream;

const SET: GoldenSet = GoldenSet { name: "parakeet", variable: "IZWI_GOLDEN_PARAKEET" };

fn model_in(kind: &str, precision: Precision) -> Parakeet {
    let folder = SET.root().join(kind).join("hf");
    Parakeet::load(&folder, &LoadOptions::new(golden_set::device(), precision)).unwrap()
}

fn model(kind: &str) -> Parakeet {
    model_in(kind, Precision::F32)
}

#[derive(Debug, Deserialize)]
struct Offsets {
    start_offset: usize,
    end_offset: usize,
    word: Option<String>,
    segment: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Timestamps {
    char: Vec<Offsets>,
    word: Vec<Offsets>,
    segment: Vec<Offsets>,
}

#[derive(Debug, Deserialize)]
struct Case {
    tokens: Vec<u32>,
    #[serde(default)]
    frames: Vec<usize>,
    #[serde(default)]
    durations: Vec<usize>,
    text: String,
    timestamps: Timestamps,
}

#[derive(Debug, Deserialize)]
struct TransducerCase {
    max_symbols_10: Case,
    max_symbols_2: Case,
}

/// The text and the times of a case.
fn check_text(model: &Parakeet, mut tokens: Vec<Timed>, case: &Case, name: &str) {
    let found: Vec<u32> = tokens.iter().map(|token| token.token).collect();
    assert_eq!(found, case.tokens, "{name}");
    assert_eq!(model.vocabulary.decode(&found), case.text, "{name}");
    if model.head.settles_marks() {
        model.vocabulary.settle(&mut tokens);
    }
    let times = |offsets: &[Offsets]| -> Vec<(usize, usize)> {
        offsets.iter().map(|offset| (offset.start_offset, offset.end_offset)).collect()
    };
    let ours: Vec<_> = tokens.iter().map(|token| (token.start, token.end)).collect();
    assert_eq!(ours, times(&case.timestamps.char), "{name}: tokens");
    let words = model.vocabulary.words(&tokens);
    let ours: Vec<_> = words.iter().map(|word| (word.start, word.end)).collect();
    assert_eq!(ours, times(&case.timestamps.word), "{name}: words");
    for (ours, theirs) in words.iter().zip(&case.timestamps.word) {
        assert_eq!(Some(&ours.text), theirs.word.as_ref(), "{name}");
    }
    let segments = vocabulary::segments(&words);
    assert_eq!(segments.len(), case.timestamps.segment.len(), "{name}: segments");
    for (range, theirs) in segments.into_iter().zip(&case.timestamps.segment) {
        let words = &words[range];
        let text: Vec<&str> = words.iter().map(|word| word.text.as_str()).collect();
        assert_eq!(Some(text.join(" ")), theirs.segment, "{name}");
        let ours = (words[0].start, words[words.len() - 1].end);
        assert_eq!(ours, (theirs.start_offset, theirs.end_offset), "{name}");
    }
}

#[test]
fn parakeet_golden_mel() {
    let (model, golden) = (model("tdt"), SET.tensors("preproc"));
    for samples in [1600, 1759, 8000, 16001] {
        let ours = model.front_end.frames(&values(&golden[&format!("audio{samples}")]));
        let theirs = by_rows(&golden[&format!("mel{samples}")]);
        assert_eq!(ours.frames, ids(&golden[&format!("len{samples}")])[0] as usize, "{samples}");
        let theirs = theirs.narrow(0, 0, ours.frames).unwrap();
        compare(&format!("mel of {samples} samples"), &ours.values, &values(&theirs), TOLERANCE);
    }
}

/// The rows of a recording, and each layer's.
fn check_encoder(model: &Parakeet, case: &str) -> Mel {
    let golden = SET.tensors(case);
    let mel = model.front_end.frames(&values(&golden["audio"]));
    assert_eq!(mel.frames, ids(&golden["mel_len"])[0] as usize, "{case}");
    let theirs = by_rows(&golden["mel"]).narrow(0, 0, mel.frames).unwrap();
    compare(&format!("{case} mel"), &mel.values, &values(&theirs), TOLERANCE);
    let mut compared = 0;
    let rows = model.rows(&mel);
    assert_eq!(rows, ids(&golden["encoded_len"])[0] as usize, "{case}");
    let valid = |theirs: &Tensor| values(&theirs.squeeze(0).unwrap().narrow(0, 0, rows).unwrap());
    let encoded = model
        .encoder
        .forward_tapped(&[&mel], |name, x, packed| {
            if let Some(theirs) = golden.get(name) {
                let ours = x.narrow(0, packed.spans()[0].start, rows)?;
                compare(&format!("{case} {name}"), &values(&ours), &valid(theirs), TOLERANCE);
                compared += 1;
            }
            Ok(())
        })
        .unwrap();
    assert!(compared >= 2, "{case}");
    let theirs = by_rows(&golden["encoded"]).narrow(0, 0, rows).unwrap();
    compare(&format!("{case} encoded"), &values(&encoded), &values(&theirs), TOLERANCE);
    mel
}

#[test]
fn parakeet_golden_transducer() {
    let mut model = model("tdt");
    for case in ["a", "b", "short"] {
        let name = format!("tdt.{case}");
        let mel = check_encoder(&model, &name);
        let expected: TransducerCase = SET.json(&name);
        let golden = SET.tensors(&name);
        let encoded = model.encoder.forward(&[&mel]).unwrap();
        for (max_symbols, expected) in [(10, &expected.max_symbols_10), (2, &expected.max_symbols_2)] {
            let Head::Transducer(transducer) = &mut model.head else { panic!("a transducer") };
            transducer.max_symbols = max_symbols;
            if max_symbols == 10 {
                let ours = transducer.decisions(&encoded);
                let frames: Vec<u32> = ours.iter().map(|(frame, _)| *frame as u32).collect();
                assert_eq!(frames, ids(&golden["step_frame"]), "{name}");
                let logits: Vec<f32> = ours.into_iter().flat_map(|(_, logits)| logits).collect();
                compare(&format!("{name} logits"), &logits, &values(&golden["step_logits"]), TOLERANCE);
            }
            let tokens = model.transcribe(&[&mel], &[None]).unwrap().remove(0);
            let times: Vec<_> = tokens.iter().map(|token| (token.start, token.end - token.start)).collect();
            let theirs: Vec<_> =
                expected.frames.iter().copied().zip(expected.durations.iter().copied()).collect();
            assert_eq!(times, theirs, "{name} {max_symbols}");
            check_text(&model, tokens, expected, &format!("{name} {max_symbols}"));
        }
    }
}

#[test]
fn parakeet_golden_ctc() {
    let model = model("ctc");
    let mel = check_encoder(&model, "ctc.a");
    let expected: Case = SET.json("ctc.a");
    let tokens = model.transcribe(&[&mel], &[None]).unwrap().remove(0);
    check_text(&model, tokens, &expected, "ctc.a");
}

#[test]
fn parakeet_golden_batch() {
    let (model, golden) = (model("tdt"), SET.tensors("tdt.batch"));
    let mel = |case: &str| model.front_end.frames(&values(&SET.tensors(&format!("tdt.{case}"))["audio"]));
    let mels = ["a", "b", "short"].map(mel);
    let encoded = model.encoder.forward(&mels.each_ref()).unwrap();
    let mut start = 0;
    for (index, mel) in mels.iter().enumerate() {
        let ours = encoded.narrow(0, start, model.rows(mel)).unwrap();
        start += model.rows(mel);
        let theirs =
            golden["encoded"].get(index).unwrap().t().unwrap().narrow(0, 0, model.rows(mel)).unwrap();
        compare(&format!("batch {index}"), &values(&ours), &values(&theirs), TOLERANCE);
        let alone = model.encoder.forward(&[mel]).unwrap();
        golden_set::assert_same("alone", &values(&ours), &values(&alone));
    }
    let together = model.transcribe(&mels.each_ref(), &mels.each_ref().map(|_| None)).unwrap();
    for (mel, together) in mels.iter().zip(together) {
        let alone = model.transcribe(&[mel], &[None]).unwrap().remove(0);
        let places = |tokens: &[Timed]| -> Vec<_> {
            tokens.iter().map(|token| (token.token, token.start, token.end)).collect()
        };
        assert_eq!(places(&together), places(&alone));
        let logprobs = |tokens: &[Timed]| -> Vec<f32> { tokens.iter().map(|token| token.logprob).collect() };
        golden_set::assert_same("log-probabilities", &logprobs(&together), &logprobs(&alone));
    }
}

fn tokens(found: &[Timed]) -> Vec<u32> {
    found.iter().map(|token| token.token).collect()
}

#[test]
fn parakeet_golden_local_attention() {
    let mut model = model("tdt");
    let (golden, expected) = (SET.tensors("tdt.local8"), SET.json::<LocalCase>("tdt.local8"));
    model.encoder.see(Context::Near(expected.att_context_size));
    let mel = model.front_end.frames(&values(&SET.tensors(&expected.audio)["audio"]));
    let encoded = model.encoder.forward(&[&mel]).unwrap();
    let theirs = by_rows(&golden["encoded"]).narrow(0, 0, model.rows(&mel)).unwrap();
    compare("local attention", &values(&encoded), &values(&theirs), TOLERANCE);
    let found = model.transcribe(&[&mel], &[None]).unwrap().remove(0);
    assert_eq!(tokens(&found), expected.tokens);
    assert_eq!(model.vocabulary.decode(&expected.tokens), expected.text);
}

#[derive(Debug, Deserialize)]
struct LocalCase {
    att_context_size: [usize; 2],
    audio: String,
    tokens: Vec<u32>,
    text: String,
}

#[test]
fn parakeet_golden_layouts_are_one_model() {
    for (kind, case) in [("tdt", "tdt.b"), ("ctc", "ctc.a"), ("stream", "stream.audio")] {
        let ours = model(kind);
        let folder = SET.unpacked(kind);
        let options = LoadOptions::new(golden_set::device(), Precision::F32);
        let nemo = Parakeet::load(folder.path(), &options).unwrap();
        assert_eq!(nemo.chunks, ours.chunks, "{kind}");
        assert_eq!(nemo.encoder.shape().context, ours.encoder.shape().context, "{kind}");
        let samples = values(&SET.tensors(case)["audio"]);
        let [mel, theirs] = [&ours, &nemo].map(|model| model.front_end.frames(&samples));
        golden_set::assert_same(kind, &mel.values, &theirs.values);
        let [rows, theirs] = [&ours, &nemo].map(|model| values(&model.encoder.forward(&[&mel]).unwrap()));
        golden_set::assert_same(kind, &rows, &theirs);
        let [found, theirs] =
            [&ours, &nemo].map(|model| model.transcribe(&[&mel], &[None]).unwrap().remove(0));
        assert_eq!(found, theirs, "{kind}");
        let [text, theirs] = [&ours, &nemo].map(|model| model.vocabulary.decode(&tokens(&found)));
        assert_eq!(text, theirs, "{kind}");
    }
}

#[test]
fn parakeet_golden_settings_that_cannot_be_computed_are_named() {
    let refusal = |folder: &Path| {
        let options = LoadOptions::new(golden_set::device(), Precision::F32);
        Parakeet::load(folder, &options).unwrap_err().to_string()
    };
    let folder = SET.unpacked("stream");
    let path = folder.path().join("model_config.yaml");
    let settings = std::fs::read_to_string(&path).unwrap();
    for (key, value, cause) in [
        ("normalize", "all_features", "preprocessor.normalize all_features"),
        ("features", "0", "bins is 0"),
        ("n_layers", "100000", "layers is 100000"),
        ("window_stride", "0.02", "window_stride 320"),
        ("att_context_style", "chunked_limited_with_rc", "att_context_style chunked_limited_with_rc"),
        ("conv_norm_type", "batch_norm", "conv_norm_type batch_norm"),
        ("causal_downsampling", "false", "causal_downsampling false"),
        ("att_context_size", "[[12, 6]]", "12 rows of context are not whole chunks of 7"),
        ("att_context_size", "[[12, 5], [24, 5]]", "several sizes"),
        ("max_symbols", "0", "tokens of a row is 0"),
    ] {
        std::fs::write(&path, with(&settings, key, value)).unwrap();
        let found = refusal(folder.path());
        assert!(found.contains(cause), "{cause}: {found}");
    }
    let hf = SET.root().join("tdt/hf");
    for (field, value, cause) in [
        ("durations", json!([0, 1, 2, 3, u64::MAX]), "longest duration"),
        ("max_symbols_per_step", json!(0), "tokens of a row is 0"),
        ("vocab_size", json!(1), "tokens is 0"),
        ("model_type", json!("nemotron3_5_asr"), "nemotron3_5_asr"),
        ("encoder_config.num_mel_bins", json!(0), "bins is 0"),
        ("encoder_config.num_attention_heads", json!(1_009), "heads of an even width"),
        ("encoder_config.conv_kernel_size", json!(8), "no middle"),
    ] {
        let mut config: Value =
            serde_json::from_slice(&std::fs::read(hf.join("config.json")).unwrap()).unwrap();
        let path = format!("/{}", field.replace('.', "/"));
        *config.pointer_mut(&path).unwrap() = value;
        for name in ["model.safetensors", "tokenizer.json"] {
            std::fs::copy(hf.join(name), folder.path().join(name)).unwrap();
        }
        std::fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
        let found = refusal(folder.path());
        assert!(found.contains(cause), "{cause}: {found}");
    }
}

#[test]
fn parakeet_golden_options_without_effect_are_refused() {
    let model = model("tdt");
    let refusal = |change: fn(&mut TranscriptionOptions)| {
        let mut input = ListenInput::plain(vec![0.0; 1_600].into());
        change(&mut input.options);
        model.prepare(&Input::Listen(input), &LIMITS).map(drop).map_err(|error| error.param)
    };
    assert_eq!(refusal(|options| options.temperature = Some(0.0)), Ok(()));
    assert_eq!(refusal(|options| options.temperature = Some(0.4)), Err("temperature"));
    assert_eq!(refusal(|options| options.language = Some("de-AT".to_owned())), Ok(()));
    assert_eq!(refusal(|options| options.language = Some("xx".to_owned())), Err("language"));
}

const LIMITS: PrepareLimits = PrepareLimits { max_tokens_per_step: 512, max_positions: 4096 };

/// What the model makes of each step of one input.
fn run_steps(model: &Parakeet, input: ListenInput) -> Vec<StepOutput> {
    let prepared = model.prepare(&Input::Listen(input), &LIMITS).unwrap();
    let mut state = model.start(&prepared);
    let mut kv = KvPool::new(None, 1, 8, &golden_set::device()).unwrap();
    let mut outputs: Vec<StepOutput> = Vec::new();
    while outputs.last().is_none_or(|output| !output.finished) {
        let entry = BatchEntry {
            prepared: &prepared,
            state: &mut state,
            start: outputs.len(),
            begins: outputs.is_empty(),
            num_tokens: 1,
            block_table: &[],
            branch_tables: &[],
        };
        outputs.push(model.forward(&mut kv, &mut [entry]).unwrap().remove(0).unwrap());
    }
    outputs
}

/// What the model makes of an input of one step.
fn run(model: &Parakeet, input: ListenInput) -> StepOutput {
    let mut outputs = run_steps(model, input);
    assert_eq!(outputs.len(), 1);
    outputs.remove(0)
}

#[test]
fn parakeet_golden_long_recordings_are_transcribed_chunk_by_chunk() {
    let model = model("stream");
    let once = values(&SET.tensors("stream.audio")["audio"]);
    let samples: Arc<[f32]> = once.iter().copied().cycle().take(5 * once.len()).collect();
    let mut input = ListenInput::plain(Arc::clone(&samples));
    (input.window, input.options) = (Some(LiveWindow::default()), input.options.with_words());
    let steps = run_steps(&model, input);
    assert!(steps.len() > 1);
    let text: String = steps.iter().map(|step| step.text.as_str()).collect();
    let words: Vec<Word> =
        steps.iter().flat_map(|step| &step.segments).flat_map(|segment| segment.words.clone()).collect();
    assert_eq!(words.iter().map(|word| word.text.as_str()).collect::<String>(), text);
    let whole = model.transcribe(&[&model.front_end.frames(&samples)], &[None]).unwrap().remove(0);
    let expected = model.vocabulary.words(&whole);
    let texts: String = expected.iter().map(|word| format!(" {}", word.text.trim())).collect();
    assert_eq!(text, texts);
    let starts: Vec<f64> = expected.iter().map(|word| word.start as f64 * ROW_S).collect();
    assert_eq!(words.iter().map(|word| word.start_s).collect::<Vec<_>>(), starts);
}

#[test]
fn parakeet_golden_recordings_have_words_and_windows_leave_out_what_is_decided() {
    let model = model("tdt");
    let samples: Arc<[f32]> = values(&SET.tensors("tdt.b")["audio"]).into();
    let window = |decided: &str| {
        let window = LiveWindow { decided: decided.to_owned(), is_thorough: false };
        let mut input = ListenInput::plain(Arc::clone(&samples));
        (input.window, input.options) = (Some(window), input.options.with_words().with_logprobs());
        run(&model, input)
    };
    let whole = window("");
    assert!(whole.finished && !whole.segments.is_empty());
    let texts: String = whole.segments.iter().map(|segment| segment.text.as_str()).collect();
    assert_eq!(whole.text, texts);
    let words: Vec<Word> = whole.segments.iter().flat_map(|segment| segment.words.clone()).collect();
    assert_eq!(words.iter().map(|word| word.text.as_str()).collect::<String>(), texts);
    assert!(words.iter().all(|word| word.start_s <= word.end_s && (0.0..=1.0).contains(&word.probability)));
    let rest = window(&words[..2].iter().map(|word| word.text.as_str()).collect::<String>());
    assert_eq!(rest.text, words[2..].iter().map(|word| word.text.as_str()).collect::<String>());
    let silent = run(&model, ListenInput::plain(vec![0.0; 16_000].into()));
    assert!(silent.finished && silent.text.is_empty());
}

#[test]
fn parakeet_golden_eight_bits_are_near_the_reference() {
    let model = model_in("tdt", Precision::Q8);
    let golden = SET.tensors("tdt.b");
    let mel = model.front_end.frames(&values(&golden["audio"]));
    let ours = values(&model.encoder.forward(&[&mel]).unwrap());
    let theirs = values(&by_rows(&golden["encoded"]));
    let power = |values: &mut dyn Iterator<Item = f32>| values.map(|x| f64::from(x * x)).sum::<f64>();
    let noise = power(&mut ours.iter().zip(&theirs).map(|(a, b)| a - b));
    let ratio_db = 10.0 * (power(&mut theirs.iter().copied()) / noise).log10();
    println!("{ratio_db:.1} dB");
    assert!(ratio_db > 20.0, "{ratio_db} dB");
}

#[test]
fn parakeet_golden_a_given_text_is_spelt_on_its_likeliest_path() {
    let model = model("ctc");
    let samples: Arc<[f32]> = values(&SET.tensors("ctc.a")["audio"]).into();
    let Head::Ctc { output, blank } = &model.head else { panic!("the head is no CTC head") };
    let encoded = model.encoder.forward(&[&model.front_end.frames(&samples)]).unwrap();
    let logits = output.forward(&encoded).unwrap().to_vec2::<f32>().unwrap();
    let likeliest: Vec<usize> = logits.iter().map(|row| argmax(row)).collect();
    let tokens: Vec<u32> = collapse(&logits, *blank, None).iter().map(|token| token.token).collect();
    let path = given::spell(&logits, &tokens, *blank, true);
    assert_eq!(path.len(), tokens.len());
    for (row, &likely) in likeliest.iter().enumerate() {
        let at = path.iter().position(|spelled| (spelled.start..spelled.end).contains(&row));
        assert_eq!(at.map_or(*blank, |at| tokens[at] as usize), likely, "row {row}");
    }
    let open = given::spell(&logits, &[tokens.clone(), tokens.clone()].concat(), *blank, false);
    assert!((tokens.len()..2 * tokens.len()).contains(&open.len()), "the stretch ends the path");

    let text = model.vocabulary.decode(&tokens);
    let mut input = ListenInput { text: Some(text.clone()), ..ListenInput::plain(Arc::clone(&samples)) };
    input.window = Some(LiveWindow::default());
    let aligned = run(&model, input);
    let words: Vec<Word> = aligned.segments.iter().flat_map(|segment| segment.words.clone()).collect();
    let plain = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert_eq!(plain(&words.iter().map(|word| word.text.as_str()).collect::<String>()), plain(&text));
    assert!(words.is_sorted_by(|before, after| before.end_s <= after.start_s), "{words:?}");
}

#[test]
fn words_are_spelt_by_the_pairs_that_were_learnt_first() {
    let model = model("ctc");
    for word in ["the", " The,", "x"] {
        let tokens = model.vocabulary.spell(word);
        let spelt = model.vocabulary.decode(&tokens);
        assert!(
            tokens.is_empty() || spelt == word.trim().to_lowercase().replace(',', "") || spelt == word.trim(),
            "{spelt}"
        );
    }
    assert!(model.vocabulary.spell(&"a".repeat(1000)).is_empty());
}

#[test]
fn parakeet_keywords_are_written_where_they_are_close_and_change_no_other_recording() {
    for (kind, cases) in
        [("tdt", ["tdt.a", "tdt.b"]), ("ctc", ["ctc.a", "ctc.a"]), ("stream", ["stream.audio"; 2])]
    {
        let model = model(kind);
        let mels = cases.map(|case| model.front_end.frames(&values(&SET.tensors(case)["audio"])));
        let run = |mel: &Mel, words: &[String]| {
            model.transcribe(&[mel], &[model.vocabulary.keywords(words)]).unwrap().remove(0)
        };
        let plain = run(&mels[0], &[]);
        // Of random weights nothing can be foretold: a piece that is not written without keywords.
        let new = (0..256)
            .filter(|&piece| plain.iter().all(|token| token.token != piece))
            .map(|piece| (piece, vec![model.vocabulary.decode(&[piece])]))
            .find(|(piece, words)| run(&mels[0], words).iter().any(|token| token.token == *piece));
        let (_, words) = new.expect("a keyword that is close");
        let lists = [model.vocabulary.keywords(&words), None, model.vocabulary.keywords(&["a b".to_owned()])];
        let heard = [&mels[0], &mels[0], &mels[1]];
        let together = model.transcribe(&heard, &lists).unwrap();
        for ((mel, list), together) in heard.into_iter().zip(&lists).zip(together) {
            let alone = model.transcribe(&[mel], std::slice::from_ref(list)).unwrap().remove(0);
            assert_eq!(tokens(&together), tokens(&alone), "{kind}");
        }
    }
}
