//! Parity of the codec with the reference; streaming against offline decoding.

use std::collections::HashMap;

use candle_core::Tensor;
use proptest::prelude::*;

use super::codec::{Codec, DecoderState};
use super::golden_set::{TOLERANCE, assert_same, by_rows, codes, compare, device, root, tensors, values};
use crate::families::LoadOptions;
use crate::frame_driver::FrameCodec;
use izwi_types::Precision;

fn codec() -> Codec {
    codec_in(Precision::F32)
}

fn codec_in(precision: Precision) -> Codec {
    Codec::load(&root().join("base17/speech_tokenizer"), &LoadOptions::new(device(), precision)).unwrap()
}

fn decode(codec: &Codec, frames: &[Vec<u32>]) -> Vec<f32> {
    codec.decode(&mut [(&mut codec.start(), frames)]).unwrap().remove(0)
}

/// Compares every tap the golden file has; `[1, channels, rows]` unless the name ends in a layer of rows.
fn compare_taps(theirs: &HashMap<String, Tensor>, prefix: &str, taps: &[(String, Tensor)]) {
    for (name, theirs) in theirs.iter().filter(|(name, _)| name.starts_with(prefix)) {
        let (short, part) = match name.strip_suffix("_head") {
            Some(short) => (short, true),
            None => (name.as_str(), false),
        };
        let (_, ours) = taps.iter().find(|(tap, _)| tap == short).unwrap_or_else(|| panic!("no tap {name}"));
        let is_rows = name.contains("layer") || name.contains("pre_transformer");
        let theirs = if is_rows { theirs.squeeze(0).unwrap() } else { by_rows(theirs) };
        let ours = if part { ours.narrow(0, 0, theirs.dim(0).unwrap()).unwrap() } else { ours.clone() };
        assert_eq!(ours.dims(), theirs.dims(), "{name}");
        compare(name, &values(&ours), &values(&theirs), TOLERANCE);
    }
}

#[test]
fn qwen3_tts_golden_codec_decode() {
    let (codec, golden) = (codec(), tensors("codec.decode"));
    let frames = codes(&golden["codes"]);
    compare_taps(&golden, "dec.", &codec.decode_taps(&frames));
    compare("wav", &decode(&codec, &frames), &values(&golden["wav"]), TOLERANCE);
    compare("official", &codec.decode_official(&frames).unwrap(), &values(&golden["wav"]), TOLERANCE);
    let prefix = values(&golden["wav_prefix17"]);
    let length = prefix.len() / codec.samples_per_frame();
    compare("wav_prefix17", &decode(&codec, &frames[..length]), &prefix, TOLERANCE);
}

#[test]
fn qwen3_tts_golden_codec_is_near_the_reference_and_streams_in_every_precision() {
    let golden = tensors("codec.decode");
    let (frames, theirs) = (codes(&golden["codes"]), values(&golden["wav"]));
    for (precision, least_db) in [(Precision::F32, 90.0), (Precision::Bf16, 30.0)] {
        let codec = codec_in(precision);
        let whole = decode(&codec, &frames);
        let power = |samples: &mut dyn Iterator<Item = f32>| samples.map(|s| f64::from(s * s)).sum::<f64>();
        let noise = power(&mut whole.iter().zip(&theirs).map(|(a, b)| a - b));
        let ratio_db = 10.0 * (power(&mut theirs.iter().copied()) / noise.max(1e-30)).log10();
        println!("{precision}: {ratio_db:.1} dB");
        assert!(ratio_db > least_db, "{precision}: {ratio_db} dB");
        let (mut state, mut pieces) = (codec.start(), Vec::new());
        for piece in frames.chunks(3) {
            pieces.extend(codec.decode(&mut [(&mut state, piece)]).unwrap().remove(0));
        }
        assert_same("in pieces", &pieces, &whole);
    }
}

#[test]
fn qwen3_tts_golden_codec_decode_long() {
    let (codec, golden) = (codec(), tensors("codec.decode_long"));
    let frames = codes(&golden["codes"]);
    let [official, whole] = ["wav_from_frame_298", "whole_from_frame_298"].map(|name| values(&golden[name]));
    let ours = codec.decode_official(&frames).unwrap();
    compare("official", &ours[ours.len() - official.len()..], &official, TOLERANCE);
    let ours = decode(&codec, &frames);
    compare("whole", &ours[ours.len() - whole.len()..], &whole, TOLERANCE);
}

#[test]
fn qwen3_tts_golden_codec_encode() {
    let (codec, golden) = (codec(), tensors("codec.encode"));
    let (ours, taps) = codec.encode_taps(&values(&golden["inputs.wav"]));
    compare_taps(&golden, "enc.", &taps);
    assert_eq!(ours, codes(&golden["codes"]));
    for name in ["short", "tiny"] {
        let ours = codec.encode(&values(&golden[&format!("inputs.wav_{name}")])).unwrap();
        assert_eq!(ours, codes(&golden[&format!("codes_{name}")]), "{name}");
    }
    assert!(codec.encode(&[]).unwrap().is_empty());
}

/// Frames of deterministic codes.
fn frames(codec: &Codec, count: usize, seed: usize) -> Vec<Vec<u32>> {
    let code = |frame: usize, codebook: usize| {
        (frame * 131 + codebook * 29 + seed * 7919 + frame * codebook * 17) as u32
    };
    let size = codec.codebook_size() as u32;
    (0..count)
        .map(|frame| (0..codec.codebooks()).map(|codebook| code(frame, codebook) % size).collect())
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn qwen3_tts_golden_streaming_equals_offline_and_batch_equals_alone(
        cuts in prop::collection::vec(prop::collection::vec(1usize..9, 1..9), 1..4),
    ) {
        let codec = codec();
        let counts = cuts.iter().map(|cuts| cuts.iter().sum::<usize>());
        let inputs: Vec<_> = counts.enumerate().map(|(seed, count)| frames(&codec, count, seed)).collect();
        let mut states: Vec<DecoderState> = inputs.iter().map(|_| codec.start()).collect();
        let mut streamed = vec![Vec::new(); inputs.len()];
        let mut starts = vec![0; inputs.len()];
        for step in 0..cuts.iter().map(Vec::len).max().unwrap_or(0) {
            let mut owners = Vec::new();
            let mut batch = Vec::new();
            for (owner, state) in states.iter_mut().enumerate() {
                if let Some(&count) = cuts[owner].get(step) {
                    batch.push((state, &inputs[owner][starts[owner]..starts[owner] + count]));
                    starts[owner] += count;
                    owners.push(owner);
                }
            }
            for (owner, samples) in owners.into_iter().zip(codec.decode(&mut batch).unwrap()) {
                streamed[owner].extend(samples);
            }
        }
        for (input, streamed) in inputs.iter().zip(streamed) {
            let alone = decode(&codec, input);
            assert_same("streamed", &streamed, &alone);
        }
    }
}

#[test]
fn qwen3_tts_golden_states_have_constant_size_and_fresh_ones_are_empty() {
    let codec = codec();
    let input = frames(&codec, 3000, 1);
    let mut state = codec.start();
    assert_eq!(state.bytes(), 0);
    let first = codec.decode(&mut [(&mut state, &input[..2])]).unwrap().remove(0);
    let bytes = state.bytes();
    assert_eq!(bytes, codec.state_bytes());
    for piece in input[2..].chunks(101) {
        let samples = codec.decode(&mut [(&mut state, piece)]).unwrap().remove(0);
        assert_eq!(samples.len(), piece.len() * codec.samples_per_frame());
        assert_eq!(state.bytes(), bytes);
    }
    state = codec.start();
    assert_same("fresh", &codec.decode(&mut [(&mut state, &input[..2])]).unwrap()[0], &first);
}

#[test]
fn qwen3_tts_golden_invalid_codes_are_errors() {
    let codec = codec();
    let mut input = frames(&codec, 1, 1);
    input[0][3] = codec.codebook_size() as u32;
    let error = codec.decode(&mut [(&mut codec.start(), &input)]).unwrap_err().to_string();
    assert!(
        error.contains(&format!(
            "code {} is out of range for a codebook of {}",
            codec.codebook_size(),
            codec.codebook_size()
        )),
        "{error}"
    );
    input[0].pop();
    assert!(codec.decode(&mut [(&mut codec.start(), &input)]).is_err());
    assert!(codec.decode(&mut [(&mut codec.start(), &[vec![]])]).is_err());
    assert!(codec.decode(&mut []).unwrap().is_empty());
}
