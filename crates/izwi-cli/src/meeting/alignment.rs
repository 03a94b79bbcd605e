//! How much later one microphone of a room began than another: where what both hear is most alike.

use anyhow::{Context as _, Result};
use realfft::RealFftPlanner;
use realfft::num_complex::Complex;

/// Energies per second.
pub(super) const RATE_HZ: usize = 100;
/// How far the best lag is above all others, in standard deviations of them: 28 to 40 in recordings of 18 to 120 s in one room, up to
/// 7 where nothing is heard in common.
const MIN_CLEAR: f64 = 12.0;
/// What is so much above the quietest fifth is no noise, in dB.
const NOISE_DB: f32 = 6.0;
/// More than this is one change, in dB.
const LARGEST_DB: f32 = 12.0;

/// How much later `other` began than `first`, in energies; `None` where they have nothing in common. Both are energies in dB.
///
/// # Errors
/// The transform fails, which no input leads to.
pub(super) fn lag(first: &[f32], other: &[f32]) -> Result<Option<isize>> {
    let length = (first.len() + other.len()).next_power_of_two();
    let mut planner = RealFftPlanner::<f32>::new();
    let (forward, inverse) = (planner.plan_fft_forward(length), planner.plan_fft_inverse(length));
    let spectrum = |energies: &[f32]| -> Result<Vec<Complex<f32>>> {
        let mut values = changes(energies);
        values.resize(length, 0.0);
        let mut spectrum = forward.make_output_vec();
        forward.process(&mut values, &mut spectrum).context("cannot compare recordings")?;
        Ok(spectrum)
    };
    let mut products = spectrum(first)?;
    products.iter_mut().zip(spectrum(other)?).for_each(|(one, other)| *one *= other.conj());
    // Rounding leaves them a trace of an imaginary part.
    for at in [0, length / 2] {
        products[at].im = 0.0;
    }
    let mut alike = inverse.make_output_vec();
    inverse.process(&mut products, &mut alike).context("cannot compare recordings")?;
    let count = length as f64;
    let sum: f64 = alike.iter().map(|&value| f64::from(value)).sum();
    let squares: f64 = alike.iter().map(|&value| f64::from(value).powi(2)).sum();
    let deviation = (squares / count - (sum / count).powi(2)).max(0.0).sqrt();
    let best = (0..length).max_by(|&one, &other| alike[one].total_cmp(&alike[other])).unwrap_or(0);
    if f64::from(alike[best]) - sum / count <= MIN_CLEAR * deviation {
        return Ok(None);
    }
    let best = best as isize;
    Ok(Some(if best < first.len() as isize { best } else { best - length as isize }))
}

/// By how much each energy above the noise differs from the one before, of mean 0: unlike the energies themselves, changes at one time say
/// nothing of those at another.
fn changes(energies: &[f32]) -> Vec<f32> {
    let mut sorted = energies.to_vec();
    sorted.sort_unstable_by(f32::total_cmp);
    let floor = sorted.get(sorted.len() / 5).copied().unwrap_or(0.0) + NOISE_DB;
    let mut before = energies.first().map_or(0.0, |energy| (energy - floor).max(0.0));
    let change = |energy: &f32| {
        let above = (energy - floor).max(0.0);
        (above - std::mem::replace(&mut before, above)).clamp(-LARGEST_DB, LARGEST_DB)
    };
    let mut changes: Vec<f32> = energies.iter().map(change).collect();
    let mean = changes.iter().sum::<f32>() / changes.len().max(1) as f32;
    changes.iter_mut().for_each(|change| *change -= mean);
    changes
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Energies of somebody who speaks and pauses, each a few tenths of a second, differently for each seed.
    fn talk(seed: u32, count: usize) -> Vec<f32> {
        let (mut state, mut left, mut energy) = (seed, 0, 0.0);
        let mut next = |range: u32| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 16) % range
        };
        (0..count)
            .map(|_| {
                if left == 0 {
                    left = 10 + next(40);
                    energy = if next(2) == 0 { -60.0 } else { -25.0 + next(15) as f32 };
                }
                left -= 1;
                energy + next(6) as f32
            })
            .collect()
    }

    #[test]
    fn a_later_microphone_of_the_same_room_is_found() {
        let room = talk(1, 60_000);
        for start in [0_usize, 37, 4_200] {
            // Elsewhere it is less loud, and has noise of its own.
            let noise = talk(9, room.len() - start);
            let other: Vec<f32> = room[start..]
                .iter()
                .zip(&noise)
                .map(|(x, noise)| (x - 8.0).max(-48.0) + 0.05 * noise)
                .collect();
            assert_eq!(lag(&room, &other).unwrap(), Some(start as isize));
            assert_eq!(lag(&other, &room).unwrap(), Some(-(start as isize)));
        }
    }

    #[test]
    fn microphones_of_different_rooms_have_no_lag() {
        for seed in 2..8 {
            assert_eq!(lag(&talk(1, 30_000), &talk(seed, 28_000)).unwrap(), None);
        }
        assert_eq!(lag(&[-90.0; 5_000], &talk(3, 100)).unwrap(), None);
        assert_eq!(lag(&[], &[]).unwrap(), None);
    }
}
