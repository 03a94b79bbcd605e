//! Behaviour of the whole family, on the tiny random weights of the golden set.

use super::super::golden_set::{assert_near, assert_same, device};
use super::*;
use izwi_types::Precision;

const LIMITS: PrepareLimits = PrepareLimits { max_tokens_per_step: 512, max_positions: 4096 };

fn model() -> Kokoro {
    Kokoro::load(&golden_set().root(), &LoadOptions::new(device(), Precision::Auto)).unwrap()
}

fn speak(text: &str) -> SpeakInput {
    SpeakInput { seed: 11, ..SpeakInput::plain(text) }
}

fn prepare(model: &Kokoro, input: SpeakInput) -> Prepared {
    model.prepare(&Input::Speak(input), &LIMITS).unwrap()
}

/// One pass over one unit of each.
fn pass(model: &Kokoro, batch: &[(&Prepared, usize)]) -> Vec<StepOutput> {
    let mut kv = KvPool::new(None, 0, 16, &device()).unwrap();
    let mut states: Vec<SequenceState> = batch.iter().map(|(prepared, _)| model.start(prepared)).collect();
    let entries = batch.iter().zip(&mut states).map(|(&(prepared, start), state)| BatchEntry {
        prepared,
        state,
        start,
        begins: start == 0,
        num_tokens: 1,
        block_table: &[],
        branch_tables: &[],
    });
    let mut entries: Vec<BatchEntry<'_>> = entries.collect();
    model.forward(&mut kv, &mut entries).unwrap().into_iter().map(Result::unwrap).collect()
}

#[test]
fn an_entry_is_the_same_bits_alone_and_in_a_batch() {
    let model = model();
    let inputs = [
        SpeakInput { seed: 1, ..speak("Hi.") },
        SpeakInput { seed: 2, voice: Some("am_two".to_owned()), ..speak("A longer sentence comes next.") },
        SpeakInput { seed: 3, voice: Some("af_one(2)+am_two(1)".to_owned()), ..speak("Is it?") },
        SpeakInput { seed: 4, speed: 0.5, ..speak("What a day.") },
    ];
    let prepared: Vec<Prepared> = inputs.into_iter().map(|input| prepare(&model, input)).collect();
    let alone: Vec<StepOutput> = prepared.iter().map(|one| pass(&model, &[(one, 0)]).remove(0)).collect();
    for order in [[0, 1, 2, 3], [3, 1, 0, 2]] {
        let batch: Vec<_> = order.iter().map(|&index| (&prepared[index], 0)).collect();
        for (&index, output) in order.iter().zip(pass(&model, &batch)) {
            // A last bit of the pitch is a phase that grows until the end of the entry.
            let name = format!("entry {index} in {order:?}");
            assert_near(&name, &output.samples, &alone[index].samples, 5e-2);
            assert_eq!(StepOutput { samples: alone[index].samples.clone(), ..output }, alone[index]);
        }
    }
}

#[test]
fn a_seed_fixes_the_samples_and_voices_differ() {
    let model = model();
    let whole = |input: SpeakInput| pass(&model, &[(&prepare(&model, input), 0)]).remove(0).samples;
    let first = whole(speak("Hello."));
    assert!(first.iter().all(|x| x.is_finite()) && first.iter().any(|x| *x != 0.0));
    assert_same("again", &first, &whole(speak("Hello.")));
    assert_ne!(first, whole(SpeakInput { seed: 12, ..speak("Hello.") }));
    assert_ne!(first, whole(SpeakInput { voice: Some("am_two".to_owned()), ..speak("Hello.") }));
}

#[test]
fn words_of_the_text_have_times() {
    let model = model();
    let text = "It costs $5, and that is fine.";
    let prepared = prepare(&model, speak(text));
    let output = pass(&model, &[(&prepared, 0)]).remove(0);
    let written: Vec<&str> =
        output.words.iter().map(|word| text[word.text_start..word.text_end].trim()).collect();
    // The tiny vocabulary has none of the sounds of "is".
    assert_eq!(written, ["It", "costs", "$5,", "and", "that", "is fine."]);
    let samples = output.samples.len() as u64;
    assert!(
        output.words.iter().all(|word| word.sample_start < word.sample_end && word.sample_end <= samples)
    );
}

#[test]
fn bad_input_is_refused_by_field() {
    let model = model();
    let refused = |input: SpeakInput| model.prepare(&Input::Speak(input), &LIMITS).unwrap_err();
    let voice = refused(SpeakInput { voice: Some("af_onne".to_owned()), ..speak("Hi.") });
    assert!(voice.param == "voice" && voice.message.contains("'af_one'"), "{voice}");
    for speed in [0.1, 5.0, f32::NAN] {
        assert_eq!(refused(SpeakInput { speed, ..speak("Hi.") }).param, "speed");
    }
    let language = refused(speak("Hi.").in_language("de"));
    assert!(language.param == "language" && language.message.contains("use one of en, es, fr"), "{language}");
    for text in ["", "...", "漢字"] {
        assert_eq!(refused(speak(text)).param, "input", "{text:?}");
    }
}

#[test]
fn languages_without_a_phonemiser_are_refused_with_the_remedy() {
    let mut model = model();
    model.front_ends = FrontEnds::new(&golden_set().root(), std::ffi::OsString::new()).unwrap();
    let refused = |language: &str| {
        let input = speak("Hola.").in_language(language);
        model.prepare(&Input::Speak(input), &LIMITS).unwrap_err()
    };
    let spanish = refused("es");
    let parts = ["the default voice is to speak es", "install it (apt install espeak-ng", "the language en"];
    assert!(
        spanish.param == "language" && parts.iter().all(|part| spanish.message.contains(part)),
        "{spanish}"
    );
    assert!(refused("ja").message.contains("'ja' is unknown to this model"));
    let unknown = model.front_ends.of("ja").unwrap_err();
    let input = SpeakInput { voice: Some("jf_alpha".to_owned()), ..speak("x") };
    let refusal = refusal(&unknown, &input, "ja");
    let message =
        "the voice 'jf_alpha' is to speak ja: there is no phonemiser for ja; or name the language en";
    assert!(refusal.param == "voice" && refusal.message.starts_with(message), "{refusal}");
}

#[cfg(unix)]
#[test]
fn another_language_is_spoken_with_the_phonemes_of_its_program() {
    use std::os::unix::fs::PermissionsExt as _;
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("espeak-ng");
    std::fs::write(&program, "#!/bin/sh\nsed s/Hola/h^oˈola/\n").unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    let mut model = model();
    model.front_ends = FrontEnds::new(&golden_set().root(), folder.path().into()).unwrap();
    let text = "Hola amigo.";
    let spanish = prepare(&model, speak(text).in_language("es"));
    let output = pass(&model, &[(&spanish, 0)]).remove(0);
    let last = output.words.last().unwrap();
    assert!(last.text_end == text.len() && !output.samples.is_empty(), "{:?}", output.words);
    assert!(model.info().languages.contains(&"es".to_owned()));
}

#[test]
fn units_keep_the_limit_of_the_positions() {
    let model = model();
    let prepared = prepare(&model, speak(&"This is a rather long sentence without an end, ".repeat(9)));
    let Work::Units(units) = &prepared.work else { panic!("units expected") };
    assert!(units.len() > 1 && units.iter().all(|&ids| ids <= 64), "{units:?}");
    let outputs = pass(&model, &[(&prepared, units.len() - 1), (&prepared, 0)]);
    assert!(outputs[0].finished && !outputs[1].finished);
}

#[test]
fn names_of_the_export_become_the_publishers() {
    for (name, published) in [
        ("encoder.bert.embeddings.LayerNorm.bias", "bert.embeddings.LayerNorm.bias"),
        ("encoder.predictor.lstm.bias_ih_l0", "predictor.lstm.bias_ih_l0"),
        ("encoder.shared.weight_ih_l0", "predictor.shared.weight_ih_l0"),
        ("encoder.F0.1.conv1x1.weight", "predictor.F0.1.conv1x1.weight"),
        ("decoder.decoder.asr_res.0.bias", "decoder.asr_res.0.bias"),
        ("decoder.encode.conv1.bias", "decoder.encode.conv1.bias"),
        ("text_encoder.lstm.bias_hh_l0", "text_encoder.lstm.bias_hh_l0"),
    ] {
        assert_eq!(published_name(name), published);
    }
}
