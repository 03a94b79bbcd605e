//! Raw audio that a client streams, 16-bit PCM or G.711, as `f32` samples at 16 kHz. Knows no container and no protocol.

use std::ops::RangeInclusive;

use crate::decode::DecodeError;
use crate::pcm_format::PcmEncoding;
use crate::resample::Resampler;

/// Rate of the samples that come out.
pub const RATE_HZ: u32 = 16_000;

/// The state of one stream. Any slicing of it, also within a sample, gives the same samples.
pub struct PcmInput {
    encoding: PcmEncoding,
    resampler: Resampler,
    /// The first byte of a 16-bit sample whose second has not come.
    odd: Option<u8>,
    samples: Vec<f32>,
}

impl std::fmt::Debug for PcmInput {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PcmInput").field("encoding", &self.encoding).finish_non_exhaustive()
    }
}

impl PcmInput {
    /// Rates of the input, in Hz.
    pub const RATES_HZ: RangeInclusive<u32> = 8_000..=192_000;

    /// A stream of one encoding and rate.
    ///
    /// # Errors
    /// The rate is outside [`Self::RATES_HZ`].
    pub fn new(encoding: PcmEncoding, rate_hz: u32) -> Result<Self, DecodeError> {
        if !Self::RATES_HZ.contains(&rate_hz) {
            let (low, high) = Self::RATES_HZ.into_inner();
            return Err(DecodeError::Damaged(format!(
                "a sample rate of {rate_hz} Hz is outside {low}..={high}"
            )));
        }
        let resampler = Resampler::live(rate_hz, RATE_HZ)?;
        Ok(Self { encoding, resampler, odd: None, samples: Vec::new() })
    }

    /// Decodes `bytes`, and appends the samples at 16 kHz that they complete to `out`, each in −1.0..=1.0 but for the
    /// overshoot of the filter.
    ///
    /// # Errors
    /// The resampler fails, which no input leads to.
    pub fn push(&mut self, bytes: &[u8], out: &mut Vec<f32>) -> Result<(), DecodeError> {
        self.samples.clear();
        match self.encoding {
            PcmEncoding::S16Le => self.decode_s16le(bytes),
            PcmEncoding::MuLaw => self.samples.extend(bytes.iter().map(|&byte| from_i16(mu_law(byte)))),
            PcmEncoding::ALaw => self.samples.extend(bytes.iter().map(|&byte| from_i16(a_law(byte)))),
        }
        Ok(self.resampler.push(&self.samples, out)?)
    }

    /// Appends what the resampler holds back; the next stream begins. An odd byte is dropped.
    ///
    /// # Errors
    /// As [`Self::push`].
    pub fn finish(&mut self, out: &mut Vec<f32>) -> Result<(), DecodeError> {
        self.odd = None;
        Ok(self.resampler.finish(out)?)
    }

    fn decode_s16le(&mut self, mut bytes: &[u8]) {
        if let (Some(low), Some((&high, rest))) = (self.odd, bytes.split_first()) {
            self.samples.push(from_i16(i16::from_le_bytes([low, high])));
            self.odd = None;
            bytes = rest;
        }
        let (pairs, rest) = bytes.as_chunks::<2>();
        self.samples.extend(pairs.iter().map(|&pair| from_i16(i16::from_le_bytes(pair))));
        self.odd = rest.first().copied().or(self.odd);
    }
}

fn from_i16(sample: i16) -> f32 {
    f32::from(sample) / 32_768.0
}

/// ITU-T G.711, µ-law: sign, three bits of exponent, four of mantissa, all inverted.
fn mu_law(byte: u8) -> i16 {
    const BIAS: i16 = 0x84;
    let byte = !byte;
    let magnitude = (((i16::from(byte & 0x0f) << 3) + BIAS) << ((byte >> 4) & 7)) - BIAS;
    if byte & 0x80 == 0 { magnitude } else { -magnitude }
}

/// ITU-T G.711, A-law: sign, three bits of exponent, four of mantissa, the even bits inverted.
fn a_law(byte: u8) -> i16 {
    let byte = byte ^ 0x55;
    let mantissa = (i16::from(byte & 0x0f) << 4) + 8;
    let magnitude = match (byte >> 4) & 7 {
        0 => mantissa,
        exponent => (mantissa + 0x100) << (exponent - 1),
    };
    if byte & 0x80 == 0 { -magnitude } else { magnitude }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn decoded(encoding: PcmEncoding, rate_hz: u32, bytes: &[u8], step: usize) -> Vec<f32> {
        let mut input = PcmInput::new(encoding, rate_hz).unwrap();
        let mut out = Vec::new();
        for piece in bytes.chunks(step) {
            input.push(piece, &mut out).unwrap();
        }
        input.finish(&mut out).unwrap();
        out
    }

    #[test]
    fn g711_has_the_values_of_its_tables() {
        // ITU-T G.711, tables 1 and 2, scaled to 16 bits.
        let mu =
            [(0xff, 0), (0x7f, 0), (0x80, 32_124), (0x00, -32_124), (0xf0, 120), (0x70, -120), (0xef, 132)];
        for (byte, value) in mu {
            assert_eq!(mu_law(byte), value, "{byte:#x}");
        }
        let a = [(0xd5, 8), (0x55, -8), (0xaa, 32_256), (0x2a, -32_256), (0x80, 5_504), (0xc5, 264)];
        for (byte, value) in a {
            assert_eq!(a_law(byte), value, "{byte:#x}");
        }
        let codes: Vec<u8> = (0..=255).collect();
        for decode in [mu_law, a_law] {
            let mut values: Vec<i16> = codes.iter().map(|&code| decode(code)).collect();
            values.sort_unstable();
            assert!(values.iter().zip(values.iter().rev()).all(|(&low, &high)| low == -high), "symmetric");
        }
    }

    #[test]
    fn each_rate_keeps_the_duration_and_the_tone() {
        for rate_hz in [8_000, 11_025, 16_000, 22_050, 24_000, 32_000, 44_100, 47_999, 48_000] {
            let tone =
                |i: u32| (f64::from(i) * 440.0 * std::f64::consts::TAU / f64::from(rate_hz)).sin() * 16_000.0;
            let bytes: Vec<u8> = (0..rate_hz).flat_map(|i| (tone(i) as i16).to_le_bytes()).collect();
            let out = decoded(PcmEncoding::S16Le, rate_hz, &bytes, 4_000);
            assert!(out.len().abs_diff(16_000) <= 8, "{rate_hz}: {}", out.len());
            let error: f64 = (1_000..15_000)
                .map(|i| {
                    let expected =
                        (i as f64 * 440.0 * std::f64::consts::TAU / 16_000.0).sin() * 16_000.0 / 32_768.0;
                    (f64::from(out[i]) - expected).powi(2)
                })
                .sum::<f64>();
            let rms = (error / 14_000.0).sqrt();
            // A rate that is rounded, by 0.002 %, drifts.
            assert!(rms < if rate_hz == 47_999 { 0.05 } else { 0.000_5 }, "{rate_hz}: {rms}");
        }
    }

    #[test]
    fn the_output_follows_the_input_closely() {
        for rate_hz in [8_000, 16_000, 24_000, 44_100, 48_000] {
            let mut input = PcmInput::new(PcmEncoding::MuLaw, rate_hz).unwrap();
            let mut out = Vec::new();
            for step in 1..=50 {
                input.push(&vec![0xff; rate_hz as usize / 50], &mut out).unwrap();
                let behind_ms = i64::from(step) * 20 - out.len() as i64 / 16;
                assert!((0..=50).contains(&behind_ms), "{rate_hz}: {behind_ms} ms behind");
            }
        }
    }

    #[test]
    fn a_rate_outside_the_range_is_refused() {
        for rate_hz in [0, 7_999, 192_001, u32::MAX] {
            assert!(PcmInput::new(PcmEncoding::S16Le, rate_hz).is_err());
        }
    }

    proptest! {
        #[test]
        fn any_slicing_gives_the_same_samples(
            bytes in prop::collection::vec(any::<u8>(), 0..9_000),
            step in 1usize..2_000,
            which in 0usize..3,
            rate_hz in prop::sample::select(vec![8_000u32, 16_000, 24_000, 44_100, 48_000]),
        ) {
            let encoding = [PcmEncoding::S16Le, PcmEncoding::MuLaw, PcmEncoding::ALaw][which];
            let whole = decoded(encoding, rate_hz, &bytes, bytes.len().max(1));
            prop_assert_eq!(&decoded(encoding, rate_hz, &bytes, step), &whole);
            let samples = bytes.len() / encoding.sample_bytes();
            prop_assert!(whole.len().abs_diff(samples * 16_000 / rate_hz as usize) <= 1);
        }
    }
}
