//! Behaviour of the whole family on real weights.

use proptest::prelude::*;

use super::super::golden_set::{assert_near, assert_same, device};
use super::golden::{checkpoint_folder, kept_as};
use super::*;
use crate::text::phonemes::LetterNames;
use izwi_types::Precision;

const LIMITS: PrepareLimits = PrepareLimits { max_tokens_per_step: 512, max_positions: 4096 };

const TEXTS: [&str; 8] = [
    "Hi.",
    "The quick brown fox jumps over the lazy dog.",
    "Is it?",
    "A considerably longer sentence comes next to make the sequences of one pass very different in length.",
    "Seventeen sleepy seals slid south.",
    "No!",
    "What a day, what a lovely day.",
    "Reading aloud takes breath and time.",
];

fn model() -> Hibari {
    Hibari::load(&checkpoint_folder(), &kept_as(Precision::Auto)).unwrap()
}

fn speak(text: &str) -> SpeakInput {
    SpeakInput { seed: 11, ..SpeakInput::plain(text) }
}

fn prepare(model: &Hibari, input: SpeakInput) -> Prepared {
    model.prepare(&Input::Speak(input), &LIMITS).unwrap()
}

/// One pass over one unit of each.
fn pass(model: &Hibari, batch: &[(&Prepared, usize)]) -> Vec<StepOutput> {
    let mut kv = KvPool::new(None, 0, 16, &device()).unwrap();
    let mut states: Vec<SequenceState> = batch.iter().map(|(prepared, _)| model.start(prepared)).collect();
    let mut entries: Vec<BatchEntry<'_>> = batch
        .iter()
        .zip(&mut states)
        .map(|(&(prepared, start), state)| BatchEntry {
            prepared,
            state,
            start,
            begins: start == 0,
            num_tokens: 1,
            block_table: &[],
            branch_tables: &[],
        })
        .collect();
    model.forward(&mut kv, &mut entries).unwrap().into_iter().map(Result::unwrap).collect()
}

fn whole(model: &Hibari, input: SpeakInput) -> Vec<f32> {
    let prepared = prepare(model, input);
    let Work::Units(units) = &prepared.work else { panic!("units expected") };
    let mut samples = Vec::new();
    for unit in 0..units.len() {
        let output = pass(model, &[(&prepared, unit)]).remove(0);
        assert_eq!(output.finished, unit + 1 == units.len());
        samples.extend(output.samples);
    }
    samples
}

#[test]
fn characters_without_a_sound_are_told() {
    let model = model();
    for (text, unspoken) in [
        ("Plain text, with “marks” — and more…", ""),
        ("A café, naïve.", ""),
        ("Hello 漢字 and 漢 again.", "漢字"),
        ("Good morning 🙂 friend, שלום.", "🙂שלום"),
    ] {
        assert_eq!(prepare(&model, speak(text)).unspoken, unspoken, "{text}");
    }
    let many: String = ('\u{4e00}'..).take(500).collect();
    let many = prepare(&model, speak(&format!("Words. {many}"))).unspoken;
    assert_eq!(many.chars().count(), crate::text::english::MAX_UNUSUAL);
}

#[test]
fn a_language_that_it_does_not_speak_is_refused() {
    let model = model();
    let check = |language: &str| model.check(&speak("Hi.").in_language(language));
    for language in ["en", "en-US", "English", "auto"] {
        assert_eq!(check(language), Ok(()), "{language}");
    }
    for language in ["de", "klingon"] {
        let error = check(language).unwrap_err();
        assert!(error.param == "language" && error.message.contains("use one of en"), "{error}");
    }
}

#[test]
fn an_entry_is_the_same_bits_alone_and_in_a_batch_of_eight() {
    let model = model();
    let inputs =
        TEXTS.iter().enumerate().map(|(index, text)| SpeakInput { seed: index as u64, ..speak(text) });
    let prepared: Vec<Prepared> = inputs.map(|input| prepare(&model, input)).collect();
    let alone: Vec<StepOutput> = prepared.iter().map(|one| pass(&model, &[(one, 0)]).remove(0)).collect();
    for order in [[0, 1, 2, 3, 4, 5, 6, 7], [3, 7, 1, 0, 6, 2, 5, 4], [5, 4, 3, 2, 1, 0, 7, 6]] {
        let batch: Vec<_> = order.iter().map(|&index| (&prepared[index], 0)).collect();
        for (&index, output) in order.iter().zip(pass(&model, &batch)) {
            let name = format!("entry {index} in {order:?}");
            assert_near(&name, &output.samples, &alone[index].samples, 1e-3);
            assert_eq!(StepOutput { samples: alone[index].samples.clone(), ..output }, alone[index]);
        }
    }
}

#[test]
fn a_seed_fixes_the_samples() {
    let model = model();
    let first = whole(&model, speak(TEXTS[1]));
    assert_same("again", &first, &whole(&model, speak(TEXTS[1])));
    let other = whole(&model, SpeakInput { seed: 12, ..speak(TEXTS[1]) });
    assert_eq!(first.len(), other.len());
    assert_ne!(first, other);
}

#[test]
fn speech_has_plausible_level_and_duration() {
    let model = model();
    let samples = whole(&model, speak(TEXTS[1]));
    let seconds = samples.len() as f32 / SAMPLE_RATE_HZ as f32;
    assert!((1.5..5.0).contains(&seconds), "{seconds}");
    let rms = (samples.iter().map(|x| x * x).sum::<f32>() / samples.len() as f32).sqrt();
    assert!((0.01..0.5).contains(&rms), "{rms}");
    assert!(samples.iter().all(|x| x.is_finite() && x.abs() < 2.0));
}

#[test]
fn words_of_the_text_have_times() {
    let model = model();
    let text = "It costs $5, and **that** is fine. In 2024 Dr. Brown said (at 7:30 pm): call 555-123-4567 ... now! 🎉";
    let prepared = prepare(&model, speak(text));
    let Work::Units(units) = &prepared.work else { panic!("units expected") };
    let (mut words, mut samples): (Vec<(&str, u64, u64)>, u64) = (Vec::new(), 0);
    for unit in 0..units.len() {
        let output = pass(&model, &[(&prepared, unit)]).remove(0);
        let spoken = output.words.iter();
        words.extend(spoken.map(|word| {
            let written = &text[word.text_start..word.text_end];
            (written.trim(), samples + word.sample_start, samples + word.sample_end)
        }));
        samples += output.samples.len() as u64;
    }
    let written: Vec<&str> = words.iter().map(|(written, _, _)| *written).collect();
    let expected = "It|costs|$5,|and|**that**|is|fine.|In|2024|Dr.|Brown|said|(at|7:30|pm):|call|555-123-4567|... now! 🎉";
    assert_eq!(written.join("|"), expected);
    assert_eq!(written.concat().replace(' ', ""), text.replace(' ', ""));
    assert!(words.iter().all(|(_, start, end)| start < end && *end <= samples), "{words:?} of {samples}");
    assert!(words.is_sorted_by(|before, after| before.2 <= after.1), "{words:?}");
    let (first, last) = (words[0].1, words[words.len() - 1].2);
    assert!(first < 12_000 && last > samples - 24_000, "{words:?} of {samples}");
    // A number takes longer than a short word.
    let length = |of: &str| words.iter().find(|(word, _, _)| *word == of).map(|(_, start, end)| end - start);
    assert!(length("2024") > length("costs") && length("555-123-4567") > length("2024"), "{words:?}");
}

#[test]
fn speed_changes_the_length() {
    let model = model();
    let lengths: Vec<usize> = [0.5, 1.0, 2.0]
        .map(|speed| whole(&model, SpeakInput { speed, ..speak(TEXTS[1]) }).len())
        .into_iter()
        .collect();
    assert!(lengths[0] as f32 > 1.6 * lengths[1] as f32, "{lengths:?}");
    assert!((lengths[2] as f32) < 0.7 * lengths[1] as f32, "{lengths:?}");
}

#[test]
fn bad_input_is_refused_by_field() {
    let model = model();
    let refused = |input: SpeakInput| model.prepare(&Input::Speak(input), &LIMITS).unwrap_err();
    let voice = refused(SpeakInput { voice: Some("alloy".to_owned()), ..speak("Hi.") });
    assert_eq!(voice.param, "voice");
    assert!(voice.message.contains("alloy") && voice.message.contains("heart"), "{voice}");
    for speed in [0.1, 5.0, f32::NAN] {
        assert_eq!(refused(SpeakInput { speed, ..speak("Hi.") }).param, "speed");
    }
    for text in ["", " \n ", "...", "?!", "👋🎉", "\u{0}", "漢字", "שלום"] {
        let error = refused(speak(text));
        assert_eq!(error.param, "input", "{text:?}");
        assert!(error.message.contains("nothing speakable"), "{error}");
    }
}

#[test]
fn units_keep_the_limit_and_the_last_one_finishes() {
    let model = model();
    let text = TEXTS.join(" ").repeat(4);
    for max_tokens_per_step in [16, 64, 4096] {
        let prepared = model
            .prepare(&Input::Speak(speak(&text)), &PrepareLimits { max_tokens_per_step, ..LIMITS })
            .unwrap();
        let Work::Units(units) = &prepared.work else { panic!("units expected") };
        assert!(units.iter().all(|&unit| unit <= max_tokens_per_step.min(MAX_UNIT_IDS)), "{units:?}");
        let last = pass(&model, &[(&prepared, units.len() - 1), (&prepared, 0)]);
        assert!(last[0].finished && !last[1].finished);
    }
}

#[test]
fn a_checkpoint_without_the_net_spells_unknown_words() {
    let folder = tempfile::tempdir().unwrap();
    for file in ["model.safetensors", "vocab.json"] {
        std::fs::copy(checkpoint_folder().join(file), folder.path().join(file)).unwrap();
    }
    let model = Hibari::load(folder.path(), &kept_as(Precision::Auto)).unwrap();
    assert!(!whole(&model, speak("Say qzxwv.")).is_empty());
}

#[test]
fn the_warm_up_input_is_speakable() {
    let model = model();
    let Input::Speak(input) = model.warm_up_input() else { panic!("hibari speaks") };
    assert!(!whole(&model, input).is_empty());
}

#[test]
fn four_thousand_characters_of_anything_are_prepared_or_refused() {
    let model = model();
    let nasty = [
        "a".repeat(4096),
        "a-".repeat(2048),
        "A.".repeat(2048),
        "1".repeat(4096),
        "1,".repeat(2048),
        "$1.".repeat(1365),
        "'".repeat(4096),
        "[x](/y/)".repeat(512),
        "\u{301}".repeat(4096),
        "ﷺ".repeat(1300),
        "qzxwv ".repeat(680),
        "12:34-56/78 ".repeat(340),
        "((((".repeat(1024),
        "\u{0}a\u{202e}b".repeat(1024),
    ];
    for text in nasty {
        if let Err(error) = model.prepare(&Input::Speak(speak(&text)), &LIMITS) {
            assert_eq!(error.param, "input");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn any_unicode_is_prepared_or_refused(text in prop::collection::vec(any::<char>(), 0..4096)) {
        thread_local! {
            static FRONT_END: EnglishFrontEnd = EnglishFrontEnd::new(Box::new(LetterNames)).unwrap();
        }
        let text: String = text.into_iter().collect();
        FRONT_END.with(|front_end| front_end.sentences(&text));
    }
}
