//! Parity of the aligner with the official package, and words with their times.

use candle_core::IndexOp;
use serde::Deserialize;

use super::super::golden_set::{self, TOLERANCE, compare, ids, values};
use super::aligner::{Aligner, Alignment, settled};
use super::golden::{MEL_TOLERANCE, Pieces, SET, cuts, generate, model, recording, wave};
use super::tests::{assert_same, in_pieces};
use super::*;
use crate::mini_engine::{MiniEngine, alone};
use crate::text::spoken_words::{SpokenWord, WordFinder, cut};
use izwi_types::Precision;

fn aligner() -> Aligner {
    let options = LoadOptions::new(golden_set::device(), Precision::F32);
    Aligner::load(&SET.root().join("aligner"), &options).unwrap()
}

#[derive(Debug, Deserialize)]
struct Item {
    text: String,
    start: f64,
    end: f64,
}

#[derive(Debug, Deserialize)]
struct Case {
    text: Vec<String>,
    language: Vec<String>,
    samples: Vec<usize>,
    raw_ms: Vec<Vec<f64>>,
    items: Vec<Vec<Item>>,
}

/// The words of the package, found in their text.
fn located<'a>(text: &str, words: impl Iterator<Item = &'a str>) -> Vec<SpokenWord> {
    let mut from = 0;
    words
        .map(|word| {
            let start = from + text[from..].find(word).unwrap();
            from = start + word.len();
            SpokenWord { text: word.to_owned(), place: start..from }
        })
        .collect()
}

/// Whether Japanese and Korean are cut by other rules.
fn is_cut_as_there(language: &str) -> bool {
    !["Japanese", "Korean"].contains(&language)
}

fn check_case(aligner: &Aligner, name: &str) {
    let label = format!("aligner.{name}");
    let (golden, case): (_, Case) = (SET.tensors(&label), SET.json(&label));
    let all = values(&SET.tensors("aligner.tower")["wav"]);
    let tower = &aligner.config.tower;
    let mut tasks = Vec::new();
    for (row, items) in case.items.iter().enumerate() {
        let valid: u32 = ids(&golden["mel_mask"].i(row).unwrap()).into_iter().sum();
        let mel = golden["mel"].i(row).unwrap().narrow(1, 0, valid as usize).unwrap().t().unwrap();
        let mel = values(&mel.contiguous().unwrap());
        let length = CHUNK_FRAMES.min(valid as usize);
        let windows = audio::windows_of(&mel, tower.bins, length, tower.window_chunks);
        if valid as usize == case.samples[row] / HOP {
            let ours = aligner.windows(&all[..case.samples[row]]);
            let ours: Vec<f32> = ours.iter().flat_map(|window| window.mel.clone()).collect();
            compare(&format!("{label} mel"), &ours[..mel.len()], &mel, MEL_TOLERANCE);
        }
        let (text, language) = (&case.text[row], &case.language[row]);
        let theirs = items.iter().map(|item| item.text.as_str());
        let words = match is_cut_as_there(language) {
            true => aligner.words.words(text, languages::code_of(language).as_deref()),
            false => located(text, theirs.clone()),
        };
        assert_eq!(
            words.iter().map(|word| word.text.as_str()).collect::<Vec<_>>(),
            theirs.collect::<Vec<_>>()
        );
        let alignment = aligner.alignment(words);
        let mask = ids(&golden["attention_mask"].i(row).unwrap());
        let mut expected = ids(&golden["input_ids"].i(row).unwrap());
        expected.drain(..mask.iter().filter(|&&seen| seen == 0).count());
        let heard = vec![aligner.config.audio_token; windows.last().unwrap().rows.end];
        let start = aligner.vocabulary.encode("<|audio_start|>");
        assert_eq!([start, heard, alignment.after.clone()].concat(), expected, "{label}");
        tasks.push((windows, alignment));
    }
    let borrowed: Vec<(&[Window], &Alignment)> =
        tasks.iter().map(|(windows, alignment)| (&windows[..], alignment)).collect();
    let mut kv = KvPool::new(None, 0, 16, &golden_set::device()).unwrap();
    let mut logits = aligner.logits(&mut kv, &borrowed).unwrap().into_iter();
    let times = aligner.times(&mut kv, &borrowed).unwrap();
    for (row, items) in case.items.iter().enumerate() {
        let ours: Vec<Vec<f32>> = logits.by_ref().take(2 * items.len()).collect();
        let theirs = values(&golden[&format!("ts{row}.logits")]);
        compare(&format!("{label} logits"), &ours.concat(), &theirs, TOLERANCE);
        let alone = aligner.logits(&mut kv, &borrowed[row..=row]).unwrap();
        golden_set::assert_same("alone", &alone.concat(), &ours.concat());
        let raw: Vec<u64> = case.raw_ms[row].iter().map(|&ms| ms as u64).collect();
        let times: Vec<[u64; 2]> = times[row].iter().map(|(times, _)| *times).collect();
        assert_eq!(settled(&raw).as_chunks::<2>().0, times, "{label}");
        for ([start, end], item) in times.iter().zip(items) {
            assert_eq!((*start as f64 / 1e3, *end as f64 / 1e3), (item.start, item.end), "{label}");
        }
    }
}

#[test]
fn qwen3_asr_golden_aligner() {
    let aligner = aligner();
    for case in ["en", "zh", "long", "batch2", "ja_ko"] {
        check_case(&aligner, case);
    }
}

#[test]
fn qwen3_asr_golden_aligner_without_windows() {
    let mut aligner = aligner();
    aligner.config.tower.window_chunks = 1 << 20;
    check_case(&aligner, "long_fullattn");
}

#[test]
fn qwen3_asr_golden_words_to_align() {
    #[derive(Deserialize)]
    struct Row {
        text: String,
        language: String,
        words: Vec<String>,
        ids: Vec<u32>,
    }
    #[derive(Deserialize)]
    struct Times {
        input: Vec<u64>,
        output: Vec<u64>,
    }
    #[derive(Deserialize)]
    struct Texts {
        align_words: Vec<Row>,
        fix_timestamps: Vec<Times>,
    }
    let (aligner, texts): (_, Texts) = (aligner(), SET.json("text"));
    for row in texts.align_words.iter().filter(|row| is_cut_as_there(&row.language)) {
        let words = aligner.words.words(&row.text, languages::code_of(&row.language).as_deref());
        assert_eq!(
            words.iter().map(|word| word.text.as_str()).collect::<Vec<_>>(),
            row.words,
            "{}",
            row.text
        );
        assert_eq!(cut(&row.text, &words).concat(), if words.is_empty() { "" } else { &row.text });
        if !words.is_empty() {
            let after = aligner.alignment(words).after;
            assert_eq!(after, row.ids[row.ids.len() - after.len()..], "{}", row.text);
        }
    }
    for case in texts.fix_timestamps {
        assert_eq!(settled(&case.input), case.output, "{:?}", case.input);
    }
}

#[test]
fn words_keep_their_marks_and_spaces() {
    let finder = WordFinder::new().unwrap();
    for (text, language, expected) in [
        (" It's \"3.5%\" — re-do it!", "en", &[" It's", " \"3.5%\"", " — re-do", " it!"][..]),
        ("你好，世界 OK。", "zh", &["你", "好，", "世", "界", " OK。"]),
        ("東京タワーへ行きました。", "ja", &["東京", "タワー", "へ", "行", "きました。"]),
        ("...", "en", &[]),
    ] {
        let words = finder.words(text, Some(language));
        assert_eq!(cut(text, &words), expected, "{text}");
    }
}

#[test]
fn qwen3_asr_golden_times_of_words_in_pieces() {
    #[derive(Deserialize)]
    struct Timed {
        #[serde(flatten)]
        pieces: Pieces,
        items: Vec<Item>,
    }
    let (model, aligner) = (model("asr06"), aligner());
    let Timed { pieces: case, items } = SET.json("transcribe_timestamps");
    let samples = wave(case.samples);
    let mut kv = KvPool::new(None, 0, 16, &golden_set::device()).unwrap();
    let mut theirs = items.iter();
    let pieces = cuts(case.max_chunk_sec, case.search_expand_sec, 100.0).pieces(&samples);
    for (piece, expected) in pieces.into_iter().zip(&case.sequences) {
        let stretch = model.stretch(&samples, piece.clone(), false);
        let (tokens, _) =
            generate(&model, &[recording(&model, stretch, "", "")], case.max_new_tokens).remove(0);
        assert_eq!(&tokens, expected);
        let (language, text) = answer::parse(&model.vocabulary.text(&tokens), None);
        let words = aligner.words.words(&text, languages::code_of(&language).as_deref());
        let alignment = aligner.alignment(words);
        let windows = aligner.windows(&audio::padded(&samples[piece.clone()]));
        let times = aligner.times(&mut kv, &[(&windows, &alignment)]).unwrap().remove(0);
        for (word, ([start, end], _)) in alignment.words.iter().zip(times) {
            let item = theirs.next().unwrap();
            let at = |ms: u64| ms as f64 / 1e3 + piece.start as f64 / SAMPLE_RATE_HZ as f64;
            assert_eq!(word.text, item.text);
            assert!((at(start) - item.start).abs() < 1e-3 && (at(end) - item.end).abs() < 1e-3, "{item:?}");
        }
    }
    assert!(theirs.next().is_none());
}

#[test]
fn segments_have_words_with_times_and_a_batch_equals_each_alone() {
    let model = Qwen3Asr { aligner: Some(aligner()), ..model("asr06") };
    let prepared = in_pieces(&model, true);
    let ran = alone(&model, &prepared, 400);
    assert!(ran.finished && ran.passes > ran.segments.len(), "{} passes", ran.passes);
    for segment in &ran.segments {
        let words: String = segment.words.iter().map(|word| word.text.as_str()).collect();
        assert!(words == segment.text || segment.words.is_empty());
        for word in &segment.words {
            assert!(
                segment.start_s <= word.start_s && word.start_s <= word.end_s && word.end_s <= segment.end_s
            );
            assert!(word.probability > 0.0 && word.probability <= 1.0, "{word:?}");
        }
    }
    assert!(ran.segments.iter().any(|segment| !segment.words.is_empty()));
    let mut engine = MiniEngine::new(&model, 8, 5, 400);
    (0..3).for_each(|_| engine.admit(&prepared));
    engine.finish().iter().for_each(|one| assert_same(one, &ran, "a batch"));
}
