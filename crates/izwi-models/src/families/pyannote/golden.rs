//! Parity with the published algorithm on the golden set, whose networks ONNX Runtime has run, and the promises of the engine.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;

use super::super::golden_set::{GoldenSet, TOLERANCE, assert_same, compare, values};
use super::fbank::Fbank;
use super::*;
use crate::mini_engine::{MiniEngine, alone, arriving, settled};

const SET: GoldenSet = GoldenSet { name: "pyannote", variable: "IZWI_GOLDEN_PYANNOTE" };
const LIMITS: PrepareLimits = PrepareLimits { max_tokens_per_step: 512, max_positions: 512 };

#[derive(Debug, Deserialize)]
struct Turns {
    /// Start, end and speaker of each.
    turns: Vec<(f64, f64, usize)>,
}

fn model() -> Pyannote {
    Pyannote::load(&SET.root()).unwrap()
}

/// Knuth's generator, as in `scripts/golden/pyannote.py`.
fn numbers(seed: u64, count: usize) -> Vec<f32> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

/// Noise of four kinds in turns, with pauses, of 34 s less a third.
fn recording() -> Vec<f32> {
    let numbers = numbers(3, 34 * SAMPLE_RATE_HZ);
    let mut samples = vec![0f32; numbers.len()];
    let part = SAMPLE_RATE_HZ / 2;
    for (index, own) in samples.chunks_exact_mut(part).enumerate() {
        let kind = (index * 7 + 3) % 11 / 2;
        if kind < 4 {
            for (at, sample) in (index * part..).zip(&mut *own) {
                let wrapped = |back: usize| numbers[(at + numbers.len() - back) % numbers.len()];
                *sample =
                    (0..1 << kind).fold(0.0, |sum, back| sum + wrapped(back)) * (0.5 / (1 << kind) as f32);
            }
        }
    }
    samples.truncate(samples.len() - SAMPLE_RATE_HZ / 3 - 1);
    samples
}

fn masks(theirs: &candle_core::Tensor) -> Vec<Vec<u8>> {
    let rows = theirs.to_vec2::<i64>().unwrap();
    rows.into_iter().map(|row| row.into_iter().map(|mask| mask as u8).collect()).collect()
}

/// Ours as theirs are written.
fn assert_turns(name: &str, ours: impl Iterator<Item = (f64, f64, usize)>) {
    let (ours, theirs): (Vec<_>, Turns) = (ours.collect(), SET.json(name));
    assert_eq!(ours.len(), theirs.turns.len(), "{name}: {ours:?}");
    for (ours, theirs) in ours.iter().zip(&theirs.turns) {
        let is_near = (ours.0 - theirs.0).abs() < 1e-6 && (ours.1 - theirs.1).abs() < 1e-6;
        assert!(is_near && ours.2 == theirs.2, "{name}: {ours:?} is not {theirs:?}");
    }
}

fn prepared(model: &Pyannote, samples: &[f32]) -> Prepared {
    model.prepare(&Input::Listen(ListenInput::plain(samples.into())), &LIMITS).unwrap()
}

#[test]
fn pyannote_golden_stages() {
    let (model, golden, samples) = (model(), SET.tensors("all"), recording());
    let first = &samples[..WINDOW];
    compare("spectra", &Fbank::new(model.bins).frames(first), &values(&golden["spectra"]), TOLERANCE);
    let scores = model.segmentation.scores(&[first]).unwrap();
    compare("scores", &values(&scores), &values(&golden["scores"]), TOLERANCE);
    let plane = model.embedding.plane(first, model.bins).unwrap().unwrap();
    let theirs = golden["plane"].to_vec2::<f32>().unwrap(); // [channels * columns, rows]
    assert_eq!(plane.rows(), theirs[0].len());
    // Ours have columns before channels.
    let (channels, columns) = (32, theirs.len() / 32);
    for row in 0..plane.rows() {
        let row_of = |at: usize| theirs[at % channels * columns + at / channels][row];
        let theirs: Vec<f32> = (0..theirs.len()).map(row_of).collect();
        compare("plane", plane.row(row), &theirs, TOLERANCE);
    }
}

#[test]
fn pyannote_golden_speakers_and_vectors_of_windows() {
    let (model, golden, samples) = (model(), SET.tensors("all"), recording());
    let theirs = masks(&golden["speaks"]);
    let (mut first, mut ours) = (0, Vec::new());
    let vectors = golden["vectors"].to_vec3::<f32>().unwrap();
    while let Some(piece) = Piece::of(&samples, first) {
        ours.extend(model.segment(&[&piece]).unwrap().remove(0));
        let own = &theirs[first..first + piece.windows];
        let voices = model.voices(&piece, own, first).unwrap();
        assert!(!voices.is_empty());
        for Voice { window, place, vector, .. } in voices {
            compare("vector", &vector, &vectors[window][place], TOLERANCE);
        }
        first += piece.windows;
    }
    let frames = || ours.iter().flatten().zip(theirs.iter().flatten());
    let equal = frames().filter(|(ours, theirs)| ours == theirs).count();
    assert!(
        ours.len() == theirs.len() && equal * 1_000 >= frames().count() * 995,
        "{equal} of {}",
        frames().count()
    );
    // As published, the spectra of a window by themselves.
    let window = Piece::of(&samples[..WINDOW], 0).unwrap();
    let alone = golden["alone"].to_vec3::<f32>().unwrap();
    for Voice { place, vector, .. } in model.voices(&window, &theirs[..1], 0).unwrap() {
        compare("vector of a window", &vector, &alone[0][place], TOLERANCE);
    }
}

#[test]
fn pyannote_golden_vectors_become_speakers() {
    let (model, golden) = (model(), SET.tensors("all"));
    for case in ["many", "one"] {
        let windows = masks(&golden[&format!("{case}.speaks")]);
        let vectors = golden[&format!("{case}.vectors")].to_vec3::<f32>().unwrap();
        let theirs = golden[&format!("{case}.names")].to_vec2::<i64>().unwrap();
        let mut heard = Heard { windows, voices: Vec::new() };
        for (window, masks) in heard.windows.iter().enumerate() {
            for place in (0..SPEAKERS).filter(|place| masks.iter().any(|mask| mask >> place & 1 == 1)) {
                let alone = masks.iter().filter(|&&mask| mask == 1 << place).count();
                let vector = vectors[window][place].clone();
                heard.voices.push(Voice { window, place, alone, vector });
            }
        }
        let rules = (&model.plda, &model.config.clustering);
        let speakers = |most| Speakers::cluster(&heard.voices, rules, most, MAX_CLUSTERED).of(&heard.voices);
        let ours = speakers(usize::MAX);
        let bounded: BTreeSet<usize> = speakers(2).into_iter().flatten().collect();
        assert_eq!(bounded.len(), if case == "many" { 2 } else { 1 });
        // Speakers have no order: each of ours is one of theirs.
        let mut pairs = BTreeMap::new();
        for (Voice { window, place, .. }, ours) in heard.voices.iter().zip(ours) {
            let theirs = Some(theirs[*window][*place]).filter(|name| *name >= 0);
            assert_eq!(*pairs.entry(ours).or_insert(theirs), theirs, "{case}: window {window}, {place}");
        }
        let distinct: BTreeSet<_> = pairs.values().collect();
        assert_eq!(distinct.len(), pairs.len(), "{case}: {pairs:?}");
        // Frames in which speakers have equal support are given by their numbers: theirs.
        let named = |name: i64| usize::try_from(name).ok();
        let names: Vec<[Option<usize>; SPEAKERS]> =
            theirs.iter().map(|names| std::array::from_fn(|place| named(names[place]))).collect();
        let (turns, _) =
            turns::turns(&turns::speaking(&heard.windows, &names), 65.0, model.config.min_pause_s);
        assert_turns(case, turns.iter().map(|turn| (turn.start_s, turn.end_s, turn.speaker)));
    }
}

#[test]
fn pyannote_golden_recordings_together_are_each_alone() {
    let (model, samples) = (model(), recording());
    let told = alone(&model, &prepared(&model, &samples), usize::MAX).segments;
    let turn = |segment: &Segment| (segment.start_s, segment.end_s, segment.speaker.unwrap() as usize);
    assert_turns("recording", told.iter().map(turn));
    let parts = [&samples[..], &samples[4_000..60_000], &samples[200_000..], &samples[..300], &[]];
    let mut engine = MiniEngine::new(&model, 8, usize::MAX, usize::MAX);
    for (index, part) in parts.iter().enumerate() {
        engine.admit(&prepared(&model, part));
        (0..index).for_each(|_| engine.step());
    }
    for (part, together) in parts.iter().zip(engine.finish()) {
        let alone = alone(&model, &prepared(&model, part), usize::MAX);
        alone.assert_same(&together, "turns");
        let vectors = |sequence: &crate::mini_engine::Sequence| -> Vec<f32> {
            let heard = &sequence.state.downcast_ref::<State>().unwrap().heard;
            heard.voices.iter().flat_map(|voice| voice.vector.clone()).collect()
        };
        assert_same("vectors", &vectors(&alone), &vectors(&together));
        assert!(together.finished);
    }
}

#[test]
fn pyannote_golden_audio_that_arrives_in_any_pieces_has_the_same_turns() {
    let (model, samples) = (model(), recording());
    let whole = arriving(&model, &LIMITS, CHUNK_MS, &samples, &[usize::MAX]);
    for sizes in [&[1_600][..], &[97, 3_001, 20_011], &[16_000]] {
        assert_eq!(arriving(&model, &LIMITS, CHUNK_MS, &samples, sizes), whole, "{sizes:?}");
    }
    let revisions = whole.iter().filter(|segment| segment.is_revision());
    let heard: Vec<f64> = revisions.map(|segment| segment.end_s).collect();
    assert_eq!(heard, (1..=34).map(f64::from).collect::<Vec<_>>());
    let (live, offline) = (settled(whole), alone(&model, &prepared(&model, &samples), usize::MAX).segments);
    let speech = |turns: &[Segment]| turns.iter().map(|turn| turn.end_s - turn.start_s).sum::<f64>();
    assert!((speech(&live) - speech(&offline)).abs() < 0.1 * speech(&offline), "{live:?} {offline:?}");
    for scrap in [&[][..], &samples[..100], &samples[..16_001]] {
        arriving(&model, &LIMITS, CHUNK_MS, scrap, &[1_600]);
    }
}

#[test]
fn pyannote_golden_settings_without_a_meaning_for_audio_that_arrives_are_refused() {
    let model = model();
    let refusal = |change: fn(&mut ListenInput)| {
        let mut input = ListenInput { chunk_ms: Some(CHUNK_MS), ..ListenInput::plain([].into()) };
        change(&mut input);
        model.prepare(&Input::Listen(input), &LIMITS).map(drop).map_err(|error| error.param)
    };
    assert_eq!(refusal(|_| ()), Ok(()));
    assert_eq!(refusal(|input| input.chunk_ms = Some(80)), Err("chunk_ms"));
    assert_eq!(refusal(|input| input.options.max_speakers = Some(2)), Err("max_speakers"));
}
