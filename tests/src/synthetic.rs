//! Sounds without words, the same on every machine.

use std::f32::consts::TAU;

/// Rate of the sounds, in Hz.
pub const RATE_HZ: usize = 16_000;

/// Notes of a tune, in Hz: four a second.
const TUNE: [f32; 8] = [220.0, 349.2, 277.2, 293.7, 329.6, 246.9, 440.0, 392.0];
const NOTES_PER_S: usize = 4;
/// A sustained chord, in Hz, with vibrato.
const CHORD: [f32; 3] = [196.0, 247.0, 294.0];

/// White noise of a level, RMS.
pub fn noise(seconds: usize, rms: f32) -> Vec<f32> {
    let mut state = 1u64;
    let mut uniform = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    };
    (0..seconds * RATE_HZ).map(|_| uniform() * rms * 3f32.sqrt()).collect()
}

/// Plucked notes over a sustained chord, with harmonics, at a level, RMS.
pub fn music(seconds: usize, rms: f32) -> Vec<f32> {
    let harmonics = |hz: f32, t: f32, count: usize| -> f32 {
        (1..=count).map(|h| (TAU * (h as f32 * hz * t).fract()).sin() / h as f32).sum()
    };
    let sound = |n: usize| {
        let t = n as f32 / RATE_HZ as f32;
        let note = n * NOTES_PER_S / RATE_HZ;
        let since = t - note as f32 / NOTES_PER_S as f32;
        let plucked = harmonics(TUNE[note % TUNE.len()], since, 7) * (-6.0 * since).exp();
        let bent = t + 0.000_8 * (TAU * 5.5 * t).sin();
        plucked + 0.15 * CHORD.iter().map(|&hz| harmonics(hz, bent, 14)).sum::<f32>()
    };
    let mut samples: Vec<f32> = (0..seconds * RATE_HZ).map(sound).collect();
    scale(&mut samples, rms);
    samples
}

/// Brings a sound to a level, RMS.
pub fn scale(samples: &mut [f32], rms: f32) {
    let power = samples.iter().map(|s| s * s).sum::<f32>() / samples.len().max(1) as f32;
    let gain = rms / power.sqrt().max(f32::MIN_POSITIVE);
    samples.iter_mut().for_each(|sample| *sample *= gain);
}

/// The sum of two sounds, as long as the first; the second is repeated.
pub fn mixed(first: &[f32], second: &[f32]) -> Vec<f32> {
    first.iter().zip(second.iter().cycle()).map(|(a, b)| a + b).collect()
}
