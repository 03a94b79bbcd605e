//! Quantised weights row by row, for kernels of other devices: the levels and scales of the packed panels in a plain
//! layout.

use crate::linear::quant::{BLOCK, Q4, Q8, QuantType};

/// Inputs that share a scale.
pub const ROW_BLOCK: usize = BLOCK;

/// Quantises one row to 8 bits. `levels` gets one signed byte for each input, missing inputs of the last block are 0;
/// `scales` one little-endian f16 for each block of [`ROW_BLOCK`] inputs.
///
/// # Panics
/// The outputs do not hold `row.len()` rounded up to whole blocks.
pub fn quantise_row_q8(row: &[f32], levels: &mut [u8], scales: &mut [u8]) {
    quantise::<Q8>(row, scales, |block, quantised| {
        let signed = quantised.map(|level| level.wrapping_sub(Q8::OFFSET));
        levels[block * BLOCK..][..BLOCK].copy_from_slice(&signed);
    });
}

/// Quantises one row to 4 bits. `levels` gets half a byte for each input, the even input in the low half, 8 more than its
/// signed value; `scales` as in [`quantise_row_q8`].
///
/// # Panics
/// As [`quantise_row_q8`].
pub fn quantise_row_q4(row: &[f32], levels: &mut [u8], scales: &mut [u8]) {
    quantise::<Q4>(row, scales, |block, quantised| {
        let pairs = quantised.as_chunks::<2>().0.iter().map(|[even, odd]| even | (odd << 4));
        let bytes = &mut levels[block * BLOCK / 2..][..BLOCK / 2];
        bytes.iter_mut().zip(pairs).for_each(|(byte, pair)| *byte = pair);
    });
}

fn quantise<Q: QuantType>(row: &[f32], scales: &mut [u8], mut store: impl FnMut(usize, [u8; BLOCK])) {
    for (block, values) in row.chunks(BLOCK).enumerate() {
        let mut padded = [0f32; BLOCK];
        padded[..values.len()].copy_from_slice(values);
        let (scale, levels) = Q::quantise(&padded);
        scales[2 * block..][..2].copy_from_slice(&scale.to_le_bytes());
        store(block, levels);
    }
}

#[cfg(test)]
mod tests {
    use half::f16;

    use super::*;
    use crate::linear::{WeightSource, WeightType, Weights};

    #[test]
    fn rows_equal_the_packed_panels() {
        let (inputs, outputs) = (70, 3);
        let values: Vec<f32> = (0..inputs * outputs).map(|n| ((n * 37 % 101) as f32 - 50.0) * 0.03).collect();
        for (kind, bits) in [(WeightType::Q8, 8), (WeightType::Q4, 4)] {
            let packed = Weights::pack(WeightSource::F32(&values), inputs, outputs, kind);
            for output in 0..outputs {
                let (mut levels, mut scales) = (vec![0u8; 96 * bits / 8], vec![0u8; 6]);
                let row = &values[output * inputs..][..inputs];
                if bits == 8 {
                    quantise_row_q8(row, &mut levels, &mut scales);
                } else {
                    quantise_row_q4(row, &mut levels, &mut scales);
                }
                let mut expected = Vec::new();
                packed.push_column(output, &mut expected);
                for (input, expected) in expected.into_iter().enumerate() {
                    let level = match bits {
                        8 => f32::from(levels[input] as i8),
                        _ => f32::from(levels[input / 2] >> (4 * (input % 2)) & 15) - 8.0,
                    };
                    let block = input / ROW_BLOCK;
                    let scale = f16::from_le_bytes([scales[2 * block], scales[2 * block + 1]]).to_f32();
                    assert_eq!(level * scale, expected, "{kind:?}, output {output}, input {input}");
                }
            }
        }
    }
}
