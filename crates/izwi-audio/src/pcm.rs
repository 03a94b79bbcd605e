//! Conversion of `f32` samples to PCM bytes. Knows no header.

/// Full scale of 16-bit PCM.
const I16_SCALE: f32 = 32767.0;

/// The sample in −1.0..=1.0; 0 if it is not finite.
pub(crate) fn bounded(sample: f32) -> f32 {
    if sample.is_finite() { sample.clamp(-1.0, 1.0) } else { 0.0 }
}

/// One sample in −1.0..=1.0 (clipped; NaN becomes 0) as signed 16-bit.
pub fn to_i16(sample: f32) -> i16 {
    (sample.clamp(-1.0, 1.0) * I16_SCALE).round() as i16
}

/// Appends `samples` to `out` as signed 16-bit little-endian: `2 · len` bytes.
pub fn write_i16_le(samples: &[f32], out: &mut Vec<u8>) {
    out.reserve(samples.len() * 2);
    for &sample in samples {
        out.extend_from_slice(&to_i16(sample).to_le_bytes());
    }
}

/// Appends `samples` to `out` as 32-bit float little-endian: `4 · len` bytes.
pub fn write_f32_le(samples: &[f32], out: &mut Vec<u8>) {
    out.reserve(samples.len() * 4);
    for &sample in samples {
        out.extend_from_slice(&sample.to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_clipped_and_rounded_and_nan_is_zero() {
        let cases = [
            (0.0, 0),
            (1.0, 32767),
            (-1.0, -32767),
            (2.0, 32767),
            (-9.0, -32767),
            (f32::NAN, 0),
            (0.5, 16384),
        ];
        for (sample, expected) in cases {
            assert_eq!(to_i16(sample), expected, "{sample}");
        }
    }

    #[test]
    fn bytes_are_little_endian() {
        let mut out = Vec::new();
        write_i16_le(&[1.0, -1.0], &mut out);
        write_f32_le(&[1.0], &mut out);
        assert_eq!(out, [0xff, 0x7f, 0x01, 0x80, 0x00, 0x00, 0x80, 0x3f]);
    }
}
