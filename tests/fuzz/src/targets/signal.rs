//! Rates, sizes and samples of a signal: resampling, chunks, voice activity, encoding.

use std::time::Duration;

use izwi_audio::chunk::{ChunkLengths, Chunker};
use izwi_audio::decode::{DecodeLimits, decode};
use izwi_audio::encode::{EncoderConfig, FORMATS};
use izwi_audio::vad::{VadModel, VadOptions};
use izwi_audio::wav;

use crate::Target;

/// A WAV file of any rate, resampled to any rate.
pub(super) const RATES: Target =
    Target { name: "signal_rates", run: resample, seeds: rates, max_bytes: 4 << 10 };
/// Any samples, in pieces of any size.
pub(super) const SAMPLES: Target =
    Target { name: "signal_samples", run: cut, seeds: samples, max_bytes: 8 << 10 };

/// Offset of the rate in the header of a WAV file.
const RATE_AT: usize = 24;

fn rates() -> Vec<Vec<u8>> {
    let pairs: [(u32, u32); 7] = [
        (16_000, 16_000),
        (44_100, 16_000),
        (8_000, 48_000),
        (1_000, 768_000),
        (768_000, 1_000),
        (767_999, 16_000),
        (44_101, 47_999),
    ];
    let seed = |(from, to): (u32, u32)| {
        let body: Vec<u8> = (0..2_000_u16).flat_map(|at| at.wrapping_mul(977).to_le_bytes()).collect();
        [&from.to_le_bytes()[..], &to.to_le_bytes(), &body[..2_400]].concat()
    };
    pairs.map(seed).into()
}

/// The result has the length that the rates say, to a sample and the rounding of an odd rate.
fn resample(bytes: &[u8]) {
    let Some(([from, to], body)) = words(bytes) else { return };
    let limits = DecodeLimits { max_bytes: 1 << 20, max_duration: Duration::from_secs(60) };
    let mut file = wav::header(16_000, body.len() as u32).to_vec();
    file[RATE_AT..RATE_AT + 4].copy_from_slice(&from.to_le_bytes());
    file.extend(body);
    let Ok(samples) = decode(file, to, &limits) else { return };
    let expected = (body.len() / 2) as f64 * f64::from(to) / f64::from(from);
    let difference = (samples.len() as f64 - expected).abs();
    assert!(difference <= 1.0 + expected * 0.000_3, "{} samples for {expected}", samples.len());
}

fn samples() -> Vec<Vec<u8>> {
    let wave = (0..1_000).flat_map(|at| (at as f32 * 0.1).sin().to_le_bytes());
    let odd = [f32::NAN, f32::INFINITY, -2.0, 1e-40, f32::MIN].into_iter().flat_map(f32::to_le_bytes);
    [3_u32, 100, 480]
        .map(|size| {
            let sizes = [size.to_le_bytes(), (size / 2).to_le_bytes()].concat();
            [sizes, wave.clone().chain(odd.clone()).collect()].concat()
        })
        .into()
}

fn cut(bytes: &[u8]) {
    let Some(([size, first], body)) = words(bytes) else { return };
    let signal: Vec<f32> = body.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
    let size = size as usize;
    let first = (first != 0).then_some(first as usize);
    let mut chunker = Chunker::new(ChunkLengths::new(size, first));
    let mut chunks = Vec::new();
    for piece in signal.chunks((first.unwrap_or(1) % 701).max(1)) {
        chunks.extend(chunker.push(piece));
    }
    chunks.push(chunker.finish());
    let mut offset = 0;
    for (at, chunk) in chunks.iter().enumerate() {
        assert_eq!((chunk.sequence, chunk.sample_offset), (at as u64, offset));
        assert!(chunk.is_final == (at + 1 == chunks.len()));
        offset += chunk.samples.len() as u64;
    }
    assert_eq!(offset, signal.len() as u64);
    let mut end = 0;
    for span in VadModel::default().speech_spans(&signal, &VadOptions::default()) {
        assert!(span.start >= end && span.start < span.end && span.end <= signal.len(), "{span:?}");
        end = span.end;
    }
    let config = EncoderConfig::whole(24_000, signal.len() as u64);
    for format in FORMATS {
        let mut encoder = format.encoder(&config).unwrap();
        let mut encoded: Vec<u8> =
            chunks.iter().flat_map(|chunk| encoder.push(&chunk.samples).unwrap()).collect();
        encoded.extend(encoder.finish().unwrap());
        assert_eq!(encoded, format.encode_all(&signal, 24_000).unwrap(), "{}", format.name);
    }
}

/// Two numbers, and what follows.
fn words(bytes: &[u8]) -> Option<([u32; 2], &[u8])> {
    let (one, rest) = bytes.split_first_chunk()?;
    let (two, rest) = rest.split_first_chunk()?;
    Some(([u32::from_le_bytes(*one), u32::from_le_bytes(*two)], rest))
}
