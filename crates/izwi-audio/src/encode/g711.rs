//! G.711: µ-law and A-law, one byte a sample, at 8 kHz unless another rate is asked for. For telephony.
//!
//! Source: ITU-T G.711 (11/88) and the reference code of G.191. Media types: RFC 2046 §4.3 (`audio/basic` is µ-law at 8 kHz).

use super::encoder::{EncodeError, Encoder};
use super::format::Format;
use crate::pcm;

/// µ-law.
pub const ULAW: Format = Format {
    name: "ulaw",
    encoding: "ulaw",
    media_type: Some("audio/basic"),
    extensions: &["ulaw", "ul"],
    sample_bytes: Some(1),
    streams: true,
    sample_rates_hz: &[8_000],
    keeps_rate: false,
    bit_rates: None,
    new_encoder: |_| Ok(Box::new(G711 { compress: ulaw })),
};

/// A-law.
pub const ALAW: Format = Format {
    name: "alaw",
    encoding: "alaw",
    media_type: Some("audio/x-alaw-basic"),
    extensions: &["alaw", "al"],
    new_encoder: |_| Ok(Box::new(G711 { compress: alaw })),
    ..ULAW
};

#[derive(Debug)]
struct G711 {
    compress: fn(i16) -> u8,
}

impl Encoder for G711 {
    fn push(&mut self, samples: &[f32]) -> Result<Vec<u8>, EncodeError> {
        Ok(samples.iter().map(|&sample| (self.compress)(pcm::to_i16(sample))).collect())
    }

    fn finish(&mut self) -> Result<Vec<u8>, EncodeError> {
        Ok(Vec::new())
    }
}

/// Added to the magnitude of µ-law, so that every segment starts at a power of two.
const ULAW_BIAS: i32 = 0x84;
/// The largest magnitude of µ-law.
const ULAW_CLIP: i32 = 32_635;

/// Compresses a 16-bit sample, of which µ-law keeps 14 bits.
fn ulaw(sample: i16) -> u8 {
    let magnitude = i32::from(sample).abs().min(ULAW_CLIP) + ULAW_BIAS;
    // The position of the highest bit, from bit 7 on.
    let segment = magnitude.ilog2() - 7;
    let mantissa = (magnitude >> (segment + 3)) & 0x0f;
    let sign = if sample < 0 { 0x80 } else { 0 };
    !(sign | (segment << 4) as u8 | mantissa as u8)
}

/// Compresses a 16-bit sample, of which A-law keeps 13 bits. Even bits are inverted on the line.
fn alaw(sample: i16) -> u8 {
    let (sign, magnitude) = if sample < 0 { (0, !i32::from(sample)) } else { (0x80, i32::from(sample)) };
    let magnitude = magnitude >> 4;
    let byte = if magnitude < 0x20 {
        magnitude
    } else {
        let segment = magnitude.ilog2().cast_signed() - 3;
        (segment << 4) | ((magnitude >> (segment - 1)) & 0x0f)
    };
    (sign | byte as u8) ^ 0x55
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Expansion as in G.191.
    fn expand_ulaw(byte: u8) -> i32 {
        let byte = !byte;
        let magnitude = ((i32::from(byte & 0x0f) << 3) + ULAW_BIAS) << ((byte >> 4) & 7);
        if byte & 0x80 == 0 { magnitude - ULAW_BIAS } else { ULAW_BIAS - magnitude }
    }

    fn expand_alaw(byte: u8) -> i32 {
        let byte = byte ^ 0x55;
        let (segment, mantissa) = (i32::from(byte >> 4) & 7, i32::from(byte & 0x0f) << 4);
        let magnitude = if segment == 0 { mantissa + 8 } else { (mantissa + 0x108) << (segment - 1) };
        if byte & 0x80 == 0 { -magnitude } else { magnitude }
    }

    #[test]
    fn known_values_are_those_of_the_standard() {
        for (sample, of_ulaw, of_alaw) in [
            (0, 0xff, 0xd5),
            (-1, 0x7f, 0x55),
            (i16::MAX, 0x80, 0xaa),
            (i16::MIN, 0x00, 0x2a),
            (1_000, 0xce, 0xfa),
            (-1_000, 0x4e, 0x7a),
        ] {
            assert_eq!((ulaw(sample), alaw(sample)), (of_ulaw, of_alaw), "{sample}");
        }
    }

    #[test]
    fn every_byte_is_the_compression_of_its_own_value() {
        for byte in 0..=u8::MAX {
            // Negative zero of µ-law has no sample.
            if byte != 0x7f {
                assert_eq!(ulaw(expand_ulaw(byte) as i16), byte);
            }
            assert_eq!(alaw(expand_alaw(byte) as i16), byte);
        }
    }

    #[test]
    fn every_sample_is_at_most_half_a_step_off() {
        for sample in i16::MIN..=i16::MAX {
            let value = i32::from(sample);
            // 13 segments: a step is a sixteenth of the segment's start, at least 8 for µ-law and 16 for A-law.
            for (expanded, smallest, clip) in
                [(expand_ulaw(ulaw(sample)), 8, ULAW_CLIP), (expand_alaw(alaw(sample)), 16, 32_767)]
            {
                let step = ((value.abs() + ULAW_BIAS) / 16).max(smallest);
                let error = (expanded - value.clamp(-clip, clip)).abs();
                assert!(error <= step / 2 + 1, "{sample} became {expanded}");
            }
        }
    }
}
