//! Round trips of every format through the decoder: lengths, signal-to-noise ratios, slicing, latency.

use std::f64::consts::TAU;
use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::decode::{DecodeLimits, decode};
use crate::pcm;
use crate::resample::resampled_length;

/// A voice-like signal: harmonics of a glottal pulse below 3 kHz whose loudness follows syllables, faded in and out in 20 ms.
fn voice(rate_hz: u32, samples: usize) -> Vec<f32> {
    let end = samples as f64 / f64::from(rate_hz);
    let fade = |t: f64| (0.5 * TAU * (t / 0.04).clamp(0.0, 0.5)).sin().powi(2);
    let at = |index| {
        let t = index as f64 / f64::from(rate_hz);
        let harmonics = (1..20).map(|h| (TAU * 150.0 * f64::from(h) * t).sin() / f64::from(h));
        let loudness = 0.15 * (1.2 - (TAU * 3.0 * t).cos());
        (loudness * fade(t) * fade(end - t) * harmonics.sum::<f64>()) as f32
    };
    (0..samples).map(at).collect()
}

fn encoded(format: &Format, config: &EncoderConfig, pieces: &[&[f32]]) -> Vec<u8> {
    let mut encoder = format.encoder(config).unwrap();
    let mut bytes: Vec<u8> = pieces.iter().flat_map(|piece| encoder.push(piece).unwrap()).collect();
    bytes.extend(encoder.finish().unwrap());
    bytes
}

/// Samples at the rate of the encoded audio. Formats without a header get one.
fn decoded(format: &Format, bytes: Vec<u8>, rate_hz: u32) -> Vec<f32> {
    let file = match format.name {
        "pcm_f32" => {
            return bytes.chunks_exact(4).map(|four| f32::from_le_bytes(four.try_into().unwrap())).collect();
        }
        "pcm" => [&wav::header(rate_hz, bytes.len() as u32)[..], &bytes].concat(),
        "ulaw" => companded(7, &bytes, rate_hz),
        "alaw" => companded(6, &bytes, rate_hz),
        _ => bytes,
    };
    let limits = DecodeLimits { max_bytes: 1 << 24, max_duration: Duration::from_secs(60) };
    decode(file, rate_hz, &limits).unwrap_or_else(|error| panic!("{} at {rate_hz} Hz: {error}", format.name))
}

/// A WAV file of 8-bit samples; 6 is the format of A-law, 7 of µ-law.
fn companded(format: u16, bytes: &[u8], rate_hz: u32) -> Vec<u8> {
    let mut header = wav::header(rate_hz, bytes.len() as u32);
    header[20..22].copy_from_slice(&format.to_le_bytes());
    header[28..32].copy_from_slice(&rate_hz.to_le_bytes());
    header[32..36].copy_from_slice(&[1, 0, 8, 0]);
    [&header[..], bytes].concat()
}

fn snr_db(expected: &[f32], found: &[f32]) -> f64 {
    let power = |samples: &mut dyn Iterator<Item = f64>| samples.map(|s| s * s).sum::<f64>();
    let signal = power(&mut expected.iter().map(|&s| f64::from(s)));
    let noise = power(&mut expected.iter().zip(found).map(|(&a, &b)| f64::from(a) - f64::from(b)));
    10.0 * (signal / noise.max(1e-20)).log10()
}

/// The lowest signal-to-noise ratio in dB of speech in a format at its default bit rate.
fn floor_db(format: &Format) -> f64 {
    match format.name {
        "mp3" => 30.0,
        "opus" => 18.0,
        "ulaw" | "alaw" => 35.0,
        _ => 60.0,
    }
}

/// Samples that a stream decodes to beyond its own: an MP3 of unknown length ends with a whole frame.
fn excess(format: &Format, rate_hz: u32, is_file: bool) -> usize {
    match format.name {
        "mp3" if !is_file => {
            if rate_hz >= 32_000 {
                1_152
            } else {
                576
            }
        }
        _ => 1,
    }
}

#[test]
fn every_format_decodes_to_its_samples() {
    for format in FORMATS {
        let rates = format.sample_rates_hz.iter().map(|&rate| (24_000, Some(rate)));
        for (from, to) in rates.chain([(24_000, None), (44_100, None), (16_000, None)]) {
            for is_file in [true, false] {
                let signal = voice(from, 24_123);
                let total_samples = is_file.then_some(signal.len() as u64);
                let config =
                    EncoderConfig { output_rate_hz: to, total_samples, ..EncoderConfig::streamed(from) };
                let rate = format.check(&config).unwrap();
                let pieces: Vec<&[f32]> = signal.chunks(4_800).collect();
                let found = decoded(format, encoded(format, &config, &pieces), rate);
                let expected = voice(rate, resampled_length(signal.len() as u64, from, rate) as usize);
                let shown = format!("{} from {from} to {rate} Hz, file: {is_file}", format.name);
                let lengths = expected.len()..expected.len() + excess(format, rate, is_file);
                assert!(lengths.contains(&found.len()), "{shown}: {} of {lengths:?}", found.len());
                let snr = snr_db(&expected, &found);
                // At 8 and 11 kHz the highest harmonics are in the transition band.
                let floor = floor_db(format) - if rate < 12_000 && rate != from { 12.0 } else { 0.0 };
                assert!(snr > floor.min(50.0), "{shown}: {snr:.1} dB");
            }
        }
    }
}

#[test]
fn formats_without_losses_have_the_samples_of_pcm() {
    let signal = voice(24_000, 5_000);
    let expected: Vec<i16> = signal.iter().map(|&sample| pcm::to_i16(sample)).collect();
    for format in [FLAC, WAV, S16LE] {
        let found = decoded(&format, encoded(&format, &EncoderConfig::streamed(24_000), &[&signal]), 24_000);
        let found: Vec<i16> = found.iter().map(|sample| (sample * 32_768.0).round() as i16).collect();
        assert!(found == expected, "{}", format.name);
    }
}

#[test]
fn every_length_is_exact() {
    for format in FORMATS {
        for samples in [0, 1, 31, 95, 500, 576, 959, 960, 1_023, 1_025, 3_001] {
            let signal = voice(24_000, samples);
            let rate = format.check(&EncoderConfig::streamed(24_000)).unwrap();
            let bytes = encoded(format, &EncoderConfig::whole(24_000, samples as u64), &[&signal]);
            let expected = resampled_length(samples as u64, 24_000, rate) as usize;
            if expected > 0 {
                let found = decoded(format, bytes, rate).len();
                assert_eq!(found, expected, "{} of {samples} samples", format.name);
            }
        }
    }
}

#[test]
fn every_bit_rate_decodes() {
    for format in [MP3, OPUS] {
        let bit_rates = format.bit_rates.clone().unwrap();
        for &rate in format.sample_rates_hz {
            for bit_rate in [*bit_rates.start(), *bit_rates.end()] {
                let signal = voice(rate, 12_345);
                let config = EncoderConfig {
                    bit_rate: Some(bit_rate),
                    ..EncoderConfig::whole(rate, signal.len() as u64)
                };
                let found = decoded(&format, encoded(&format, &config, &[&signal]), rate);
                assert_eq!(found.len(), signal.len(), "{} at {rate} Hz, {bit_rate} bit/s", format.name);
            }
        }
    }
}

#[test]
fn audio_leaves_before_the_stream_ends() {
    for format in FORMATS {
        let mut encoder = format.encoder(&EncoderConfig::streamed(24_000)).unwrap();
        let mut bytes = Vec::new();
        for piece in voice(24_000, 7_200).chunks(1_200) {
            bytes.extend(encoder.push(piece).unwrap());
        }
        let rate = format.check(&EncoderConfig::streamed(24_000)).unwrap();
        let found = decoded(format, bytes, rate).len();
        // 300 ms went in; resampler, frame and page hold back at most 160 ms.
        assert!(found as u32 >= rate * 14 / 100, "{}: {found} samples at {rate} Hz", format.name);
    }
}

#[test]
fn rates_are_checked_and_bit_rates_change_the_size() {
    let signal = voice(24_000, 24_000);
    for (format, low, high) in [(MP3, 32_000, 128_000), (OPUS, 24_000, 96_000)] {
        let size = |bit_rate| {
            let config = EncoderConfig { bit_rate: Some(bit_rate), ..EncoderConfig::streamed(24_000) };
            encoded(&format, &config, &[&signal]).len()
        };
        assert!(size(low) * 2 < size(high), "{}: {} and {}", format.name, size(low), size(high));
    }
    let refused = |format: &Format, output_rate_hz, bit_rate| {
        let config = EncoderConfig { output_rate_hz, bit_rate, ..EncoderConfig::streamed(24_000) };
        format.encoder(&config).map(drop).unwrap_err().to_string()
    };
    assert!(refused(&WAV, Some(12_000), None).contains("use one of 8000, 16000"));
    assert!(refused(&OPUS, Some(24_000), None).contains("use one of 48000"));
    assert!(refused(&ULAW, Some(24_000), None).contains("use one of 8000"));
    assert!(refused(&MP3, None, Some(1_000_000)).contains("use 8000 to 320000"));
    assert!(refused(&WAV, None, Some(64_000)).contains("leave it out"));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn any_slicing_gives_the_same_bytes(
        lengths in prop::collection::vec(0usize..3_000, 1..12),
        which in 0..FORMATS.len(),
        rate in prop::sample::select(vec![8_000u32, 16_000, 22_050, 24_000, 32_000, 44_100, 48_000]),
        is_file: bool,
        noise in prop::collection::vec(prop::num::f32::ANY, 0..40),
    ) {
        let mut signal = voice(rate, lengths.iter().sum::<usize>());
        // Whatever a model gives, bytes come out.
        let room = signal.len().min(noise.len());
        signal[..room].copy_from_slice(&noise[..room]);
        let total_samples = is_file.then_some(signal.len() as u64);
        let config = EncoderConfig { total_samples, ..EncoderConfig::streamed(rate) };
        let (mut pieces, mut rest) = (Vec::new(), &signal[..]);
        for length in lengths {
            let (piece, behind) = rest.split_at(length);
            pieces.push(piece);
            rest = behind;
        }
        let format = &FORMATS[which];
        prop_assert!(encoded(format, &config, &pieces) == encoded(format, &config, &[&signal]));
    }
}
