//! Parity with NeMo on the golden set, and the promises of the engine.

use std::collections::HashMap;

use serde::Deserialize;

use super::super::golden_set::{self, GoldenSet, TOLERANCE, by_rows, compare, values, with};
use super::latency::SPEAKERS;
use super::memory::Memory;
use super::turns::Turns;
use super::*;
use crate::mini_engine::{MiniEngine, Sequence, alone, arriving, settled};
use izwi_types::{Precision, TranscriptionOptions};

/// The set of all models with this encoder.
const SET: GoldenSet = GoldenSet { name: "parakeet", variable: "IZWI_GOLDEN_PARAKEET" };
const LIMITS: PrepareLimits = PrepareLimits { max_tokens_per_step: 512, max_positions: 512 };
/// The streams, of rising numbers of steps.
const STREAMS: [&str; 3] = ["hi", "low", "vlow"];

fn model() -> Sortformer {
    let folder = SET.unpacked("sortformer");
    Sortformer::load(folder.path(), &LoadOptions::new(golden_set::device(), Precision::F32)).unwrap()
}

/// A model that takes recordings whole.
fn whole_model() -> Sortformer {
    let folder = SET.unpacked("sortformer");
    let path = folder.path().join("model_config.yaml");
    let settings = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, with(&settings, "streaming_mode", "false")).unwrap();
    Sortformer::load(folder.path(), &LoadOptions::new(golden_set::device(), Precision::F32)).unwrap()
}

fn audio() -> Vec<f32> {
    values(&SET.tensors("sortformer.offline")["audio"])
}

#[derive(Debug, Deserialize)]
struct SegmentCase {
    params: Thresholds,
    lines: Vec<String>,
}

#[derive(Debug, Deserialize)]
struct StepCase {
    compressed: bool,
    feat_len: usize,
    left_offset: usize,
    right_offset: usize,
    spkcache: usize,
    fifo: usize,
    n_sil: usize,
    total: usize,
}

#[derive(Debug, Deserialize)]
struct StreamCase {
    chunk_len: usize,
    chunk_left_context: usize,
    chunk_right_context: usize,
    fifo_len: usize,
    spkcache_update_period: usize,
    spkcache_len: usize,
    steps: Vec<StepCase>,
}

#[derive(Debug, Deserialize)]
struct Segments {
    segments: HashMap<String, SegmentCase>,
}

impl StreamCase {
    fn latency(&self) -> Latency {
        let (chunk, right) = (self.chunk_len, self.chunk_right_context);
        Latency { chunk, right, fifo: self.fifo_len, update: self.spkcache_update_period }
    }
}

fn flat(rows: &[Row]) -> Vec<f32> {
    rows.as_flattened().to_vec()
}

fn rows_of(theirs: &Tensor) -> Vec<Row> {
    values(theirs).chunks_exact(SPEAKERS).map(|row| row.try_into().unwrap()).collect()
}

fn lines(turns: &[Turn]) -> Vec<String> {
    let mut turns = turns.to_vec();
    turns.sort_by(|a, b| a.speaker.cmp(&b.speaker).then(a.start_s.total_cmp(&b.start_s)));
    let line = |turn: &Turn| format!("{:.3} {:.3} speaker_{}", turn.start_s, turn.end_s, turn.speaker);
    turns.iter().map(line).collect()
}

#[test]
fn sortformer_golden_offline_probabilities_and_stages() {
    let (model, golden) = (model(), SET.tensors("sortformer.offline"));
    let mel = model.front_end.frames(&audio());
    let theirs = by_rows(&golden["mel"]);
    assert_eq!(mel.frames, theirs.dim(0).unwrap());
    compare("mel", &mel.values, &values(&theirs), TOLERANCE);
    let mut compared = 0;
    let rows = mel.rows();
    let encoded = model
        .encoder
        .forward_tapped(&[&mel], |name, x, packed| {
            if let Some(theirs) = golden.get(name) {
                let ours = x.narrow(0, packed.spans()[0].start, rows)?;
                compare(name, &values(&ours), &values(theirs), TOLERANCE);
                compared += 1;
            }
            Ok(())
        })
        .unwrap();
    let told = model.head.forward_tapped(&encoded, &[rows], |name, x| {
        if let Some(theirs) = golden.get(name) {
            compare(name, &values(x), &values(theirs), TOLERANCE);
            compared += 1;
        }
    });
    let others = ["audio", "mel", "mel_len", "emb_len", "preds", "preds_peak_scaled"];
    assert_eq!(compared, golden.len() - others.len());
    let told = told.unwrap().remove(0);
    compare("probabilities", &flat(&told), &values(&golden["preds"]), TOLERANCE);
    let parts = model.probabilities(model.encoder.rows_before_layers(&[&mel]).unwrap()).unwrap();
    golden_set::assert_same("by parts", &flat(&told), &flat(&parts[0]));
}

#[test]
fn sortformer_golden_input_scaled_by_its_peak() {
    let (model, golden) = (model(), SET.tensors("sortformer.offline"));
    let mel = model.front_end.frames(&scaled(&audio()));
    let told = model.probabilities(model.encoder.rows_before_layers(&[&mel]).unwrap()).unwrap();
    compare("probabilities", &flat(&told[0]), &values(&golden["preds_peak_scaled"]), TOLERANCE);
    assert!(scaled(&[-0.5, -0.25]).iter().all(|sample| sample.is_finite()));
    assert_eq!(scaled(&[0.0, 0.0])[..], [0.0, 0.0]);
    assert!(scaled(&[]).is_empty());
}

#[test]
fn sortformer_golden_streams_step_by_step() {
    for name in STREAMS {
        let (case, golden) = (format!("sortformer.{name}"), SET.tensors(&format!("sortformer.{name}")));
        let expected: StreamCase = SET.json(&case);
        let (mut model, latency) = (model(), expected.latency());
        model.rules.spkcache_len = expected.spkcache_len;
        assert_eq!(expected.chunk_left_context, 1);
        let mel = model.front_end.frames(&audio());
        let width = model.encoder.shape().width;
        let mut session = model.session();
        let (mut all, mut compared) = (Vec::new(), 0);
        for (index, step) in expected.steps.iter().enumerate() {
            let place = format!("{case} {index}");
            // What a step leaves as it was is not in the set.
            let mut check = |part: &str, ours: &[f32]| {
                if let Some(theirs) = golden.get(&format!("s{index}.{part}")) {
                    compare(&format!("{place} {part}"), ours, &values(theirs), TOLERANCE);
                    compared += 1;
                }
            };
            let piece = session.next(mel.frames, true, &latency).unwrap();
            assert_eq!(piece.frames.len(), step.feat_len, "{place}");
            assert_eq!(piece.own.start * 8, step.left_offset, "{place}");
            assert_eq!(piece.frames.end - piece.end, step.right_offset, "{place}");
            let rows =
                model.encoder.rows_before_layers(&[&mel.part(piece.frames.clone())]).unwrap().remove(0);
            let rows = values(&rows);
            check("chunk_pre_encode", &rows);
            let seen = session.memory.before(&rows);
            let seen = Tensor::from_vec(seen.clone(), (seen.len() / width, width), &model.device).unwrap();
            let seen = model.probabilities(vec![seen]).unwrap().remove(0);
            check("all_preds", &flat(&seen));
            let before = (session.memory.cache.len() + session.memory.fifo.len()) / width + piece.own.len();
            session.pass(&piece);
            all.extend(session.memory.take(&rows, piece.own.clone(), &seen, (&latency, &model.rules)));
            let Memory { cache, fifo, probabilities, silence, silent_rows, .. } = &session.memory;
            check("spkcache", cache);
            check("spkcache_preds", &flat(probabilities.as_deref().unwrap_or_default()));
            check("fifo", fifo);
            check("mean_sil_emb", silence);
            let sizes = (cache.len() / width, fifo.len() / width, *silent_rows, all.len());
            assert_eq!(sizes, (step.spkcache, step.fifo, step.n_sil, step.total), "{place}");
            assert_eq!(sizes.0 + sizes.1 < before, step.compressed, "{place}: compressed");
        }
        assert_eq!(session.next(mel.frames, true, &latency), None);
        assert_eq!(compared, golden.len() - 1, "all but the probabilities of the whole");
        compare(&case, &flat(&all), &values(&golden["preds"]), TOLERANCE);

        model.latency = latency;
        let input = ListenInput::plain(audio().into());
        let ran = alone(&model, &model.prepare(&Input::Listen(input), &LIMITS).unwrap(), usize::MAX);
        let mut turns = Turns::new(Thresholds::IN_PIECES);
        turns.push(&rows_of(&golden["preds"]));
        let theirs: Vec<Segment> = turns.take(true).into_iter().map(segment).collect();
        assert_eq!(ran.segments, theirs, "{case}");
        assert!(ran.finished && !theirs.is_empty());
    }
}

#[test]
fn sortformer_golden_segments() {
    let mut presets = 0;
    for case in ["offline", "hi", "low", "vlow"].map(|name| format!("sortformer.{name}")) {
        let mut rows = rows_of(&SET.tensors(&case)["preds"]);
        rows[0] = Row::default(); // as the generator has it
        for (name, SegmentCase { params, lines: theirs }) in SET.json::<Segments>(&case).segments {
            let mut turns = Turns::new(params);
            let mut found = Vec::new();
            for rows in rows.chunks(7) {
                turns.push(rows);
                found.extend(turns.take(false));
            }
            found.extend(turns.take(true));
            assert_eq!(lines(&found), theirs, "{case} {name}");
            if name == "dihard3" {
                assert_eq!(params, Thresholds::IN_PIECES);
            }
            presets += 1;
        }
    }
    assert!(presets >= 4);
}

/// A recording three times, so that the cache is full.
fn long() -> Vec<f32> {
    [audio(), audio(), audio()].concat()
}

fn prepared(model: &Sortformer, samples: &[f32]) -> Prepared {
    model.prepare(&Input::Listen(ListenInput::plain(samples.into())), &LIMITS).unwrap()
}

fn memory(sequence: &Sequence) -> &Memory {
    &sequence.state.downcast_ref::<Session>().unwrap().memory
}

#[test]
fn sortformer_golden_recordings_together_are_each_alone() {
    let mut model = model();
    model.latency = Latency { chunk: 14, right: 2, fifo: 14, update: 10 };
    let all = long();
    let parts = [&all[..], &all[4_000..60_000], &all[..9_000], &all[200_000..], &all[..100]];
    let mut engine = MiniEngine::new(&model, 8, usize::MAX, usize::MAX);
    for (index, part) in parts.iter().enumerate() {
        engine.admit(&prepared(&model, part));
        (0..index).for_each(|_| engine.step());
    }
    for (part, together) in parts.iter().zip(engine.finish()) {
        let alone = alone(&model, &prepared(&model, part), usize::MAX);
        alone.assert_same(&together, "segments");
        golden_set::assert_same("cache", &memory(&alone).cache, &memory(&together).cache);
        assert!(together.finished);
    }
    let mut engine = MiniEngine::new(&model, 8, usize::MAX, usize::MAX);
    engine.admit(&prepared(&model, &all));
    (0..3).for_each(|_| engine.step());
    let told = engine.sequences[0].segments.len();
    engine.preempt(0);
    let again = engine.finish().remove(0);
    assert_eq!(again.segments[told..], alone(&model, &prepared(&model, &all), usize::MAX).segments);
}

#[test]
fn sortformer_golden_audio_in_any_pieces_is_the_whole() {
    let mut model = model();
    let all = long();
    for (index, chunk_ms) in model.info.chunks_ms.clone().into_iter().enumerate() {
        model.latency = Latency::LIVE[index];
        for samples in [&all[..], &all[..100_003], &all[..480], &all[..100], &[]] {
            let whole = alone(&model, &prepared(&model, samples), usize::MAX).segments;
            for sizes in [&[1_600][..], &[97, 3_001, 20_011], &[usize::MAX]] {
                let told = arriving(&model, &LIMITS, chunk_ms, samples, sizes);
                assert_eq!(settled(told), whole, "{chunk_ms} {sizes:?}");
            }
        }
    }
}

#[test]
fn sortformer_golden_a_whole_recording_is_bounded_and_scaled() {
    let (model, golden) = (whole_model(), SET.tensors("sortformer.offline"));
    assert!(model.info.chunks_ms.is_empty());
    let mut turns = Turns::new(Thresholds::WHOLE);
    turns.push(&rows_of(&golden["preds_peak_scaled"]));
    let theirs: Vec<Segment> = turns.take(true).into_iter().map(segment).collect();
    let samples = audio();
    let prepared = prepared(&model, &samples);
    assert_eq!(prepared.work, Work::Units([512].into()));
    assert_eq!(alone(&model, &prepared, usize::MAX).segments, theirs);
    let long = vec![0.0; (MAX_WHOLE_S + 1) * SAMPLE_RATE_HZ];
    let refused = model.prepare(&Input::Listen(ListenInput::plain(long.into())), &LIMITS).unwrap_err();
    assert!(refused.param == "audio" && refused.message.contains("has 301 s"), "{}", refused.message);
}

#[test]
fn sortformer_golden_silence_and_scraps_are_taken() {
    for model in [model(), whole_model()] {
        for samples in [vec![], vec![0.1; 1], vec![0.1; 159], vec![0.1; 480], vec![0.0; 32_000]] {
            let ran = alone(&model, &prepared(&model, &samples), usize::MAX);
            assert!(ran.finished);
            let length = samples.len() as f64 / SAMPLE_RATE_HZ as f64;
            let is_inside = |segment: &Segment| segment.end_s <= length + ROW_S;
            assert!(ran.segments.iter().all(is_inside), "{:?}", ran.segments);
        }
    }
}

#[test]
fn sortformer_golden_settings_that_cannot_be_computed_are_named() {
    let folder = SET.unpacked("sortformer");
    let path = folder.path().join("model_config.yaml");
    let settings = std::fs::read_to_string(&path).unwrap();
    for (key, value, cause) in [
        ("max_num_of_spks", "8", "max_num_of_spks 8"),
        ("normalize", "per_feature", "cannot be normalised"),
        ("num_attention_heads", "0", "heads is 0"),
        ("num_attention_heads", "5", "remainder"),
        ("num_layers", "99999", "layers is 99999"),
        ("hidden_act", "gelu", "hidden_act gelu"),
        ("pre_ln", "true", "pre_ln true"),
        ("spkcache_len", "15", "at least 16"),
        ("spkcache_len", "99999", "spkcache_len is 99999"),
        ("weak_boost_rate", ".nan", "rate or threshold"),
        ("sil_threshold", "-1", "rate or threshold"),
        ("spkcache_sil_frames_per_spk", "18446744073709551615", "at least"),
    ] {
        std::fs::write(&path, with(&settings, key, value)).unwrap();
        let options = LoadOptions::new(golden_set::device(), Precision::F32);
        let found = Sortformer::load(folder.path(), &options).unwrap_err().to_string();
        assert!(found.contains(cause), "{cause}: {found}");
    }
}

#[test]
fn sortformer_golden_options_without_effect_are_refused() {
    let model = model();
    let refusal = |change: fn(&mut ListenInput)| {
        let mut input = ListenInput::plain(vec![0.0; 1_600].into());
        change(&mut input);
        model.prepare(&Input::Listen(input), &LIMITS).map(drop).map_err(|error| error.param)
    };
    assert_eq!(refusal(|input| input.options.seed = Some(1)), Ok(()));
    assert_eq!(refusal(|input| input.options.temperature = Some(0.4)), Err("temperature"));
    assert_eq!(refusal(|input| input.options.language = Some("en".to_owned())), Err("language"));
    assert_eq!(
        refusal(|input| input.options = TranscriptionOptions::default().with_words()),
        Err("timestamp_granularities")
    );
    assert_eq!(refusal(|input| input.chunk_ms = Some(81)), Err("chunk_ms"));
    assert_eq!(refusal(|input| input.chunk_ms = Some(480)), Ok(()));
}
