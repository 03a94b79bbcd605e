//! Parity with ONNX Runtime on the golden set, and the promises of the engine.

use super::super::golden_set::{GoldenSet, TOLERANCE, assert_same, compare, device, values};
use super::*;
use crate::mini_engine::{MiniEngine, alone};
use izwi_types::Precision;

const SET: GoldenSet = GoldenSet { name: "smart_turn", variable: "IZWI_GOLDEN_SMART_TURN" };
const LIMITS: PrepareLimits = PrepareLimits { max_tokens_per_step: 512, max_positions: 512 };
const CASES: [(&str, usize); 2] = [("long", 14_000), ("short", 3_000)];

fn model() -> SmartTurn {
    SmartTurn::load(&SET.root(), &LoadOptions::new(device(), Precision::F32)).unwrap()
}

/// Knuth's generator, louder by and by, as in `scripts/golden/smart_turn.py`.
fn noise(count: usize) -> Vec<f32> {
    let mut state = 5u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    };
    (0..count).map(|at| next() * (at % 4_096) as f32 / 8_192.0).collect()
}

fn prepared(model: &SmartTurn, samples: &[f32]) -> Prepared {
    model.prepare(&Input::Listen(ListenInput::plain(samples.into())), &LIMITS).unwrap()
}

#[test]
fn smart_turn_golden_stages() {
    let (model, golden) = (model(), SET.tensors("all"));
    for (case, count) in CASES {
        let theirs = |stage: &str| values(&golden[&format!("{case}.{stage}")]);
        let window = model.spectra(&noise(count));
        compare("spectra", &window, &theirs("spectra"), TOLERANCE);
        let rows = model.network.rows(std::slice::from_ref(&window)).unwrap();
        compare("rows", &values(&rows[0]), &theirs("rows"), TOLERANCE);
        let probability = model.network.probabilities(&[window]).unwrap();
        compare("probability", &probability, &theirs("probability"), TOLERANCE);
    }
}

#[test]
fn smart_turn_golden_windows_together_are_each_alone() {
    let (model, samples) = (model(), noise(14_000));
    let parts = [&samples[..], &samples[4_000..9_000], &samples[..300], &samples[..1], &[]];
    let mut engine = MiniEngine::new(&model, 8, usize::MAX, usize::MAX);
    parts.iter().for_each(|part| engine.admit(&prepared(&model, part)));
    for (part, together) in parts.iter().zip(engine.finish()) {
        let alone = alone(&model, &prepared(&model, part), usize::MAX);
        let of = |segments: &[Segment]| {
            let found: Vec<f32> = segments.iter().filter_map(|segment| segment.end_of_turn).collect();
            assert!(found.len() == 1 && found[0] > 0.0 && found[0] < 1.0, "{found:?}");
            found
        };
        assert_same("probability", &of(&alone.segments), &of(&together.segments));
        assert!(together.finished);
    }
}

#[test]
fn only_the_end_of_a_recording_is_heard() {
    let (model, samples) = (model(), noise(40_000));
    let found =
        |samples: &[f32]| alone(&model, &prepared(&model, samples), usize::MAX).segments[0].end_of_turn;
    assert_eq!(found(&samples), found(&samples[40_000 - model.network.window()..]));
    assert_ne!(found(&samples), found(&samples[..39_000]));
}

#[test]
fn settings_of_transcripts_are_refused() {
    let model = model();
    let mut input = ListenInput::plain(noise(300).into());
    input.chunk_ms = Some(100);
    assert_eq!(model.prepare(&Input::Listen(input), &LIMITS).unwrap_err().param, "chunk_ms");
}
