//! Sounds without words, the same on every machine.

use std::f32::consts::TAU;

/// Rate of the sounds, in Hz.
pub const RATE_HZ: usize = 16_000;

/// Notes of a tune, in Hz: four a second.
const TUNE: [f32; 8] = [220.0, 349.2, 277.2, 293.7, 329.6, 246.9, 440.0, 392.0];
const NOTES_PER_S: usize = 4;
/// A sustained chord, in Hz, with vibrato.
const CHORD: [f32; 3] = [196.0, 247.0, 294.0];

/// Chords of a progression, in Hz: one each two seconds.
const CHORDS: [[f32; 3]; 4] =
    [[261.6, 329.6, 392.0], [220.0, 261.6, 329.6], [174.6, 220.0, 261.6], [196.0, 246.9, 293.7]];
const CHORD_S: usize = 2;
/// Beats of a drum loop in a second, in eighths: a bass drum, a snare, a cymbal.
const EIGHTHS_PER_S: usize = 4;
/// The mains, in Hz, and its harmonics with their levels.
const MAINS_HZ: f32 = 50.0;
const MAINS: [(f32, f32); 5] = [(1.0, 1.0), (2.0, 0.6), (3.0, 0.35), (5.0, 0.2), (7.0, 0.1)];

/// Numbers from -1 to 1, evenly spread.
fn uniform() -> impl FnMut() -> f32 {
    let mut state = 1u64;
    move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }
}

/// White noise of a level, RMS.
pub fn noise(seconds: usize, rms: f32) -> Vec<f32> {
    let mut uniform = uniform();
    (0..seconds * RATE_HZ).map(|_| uniform() * rms * 3f32.sqrt()).collect()
}

/// Pink noise of a level, RMS: equal power in each octave. Source: Paul Kellet's filter of three poles,
/// <https://www.firstpr.com.au/dsp/pink-noise/>.
pub fn pink_noise(seconds: usize, rms: f32) -> Vec<f32> {
    let (mut uniform, mut poles) = (uniform(), [0.0f32; 3]);
    let mut sound = || {
        let white = uniform();
        for (pole, (kept, gain)) in
            poles.iter_mut().zip([(0.997_65, 0.099_046), (0.963, 0.296_516_4), (0.57, 1.052_691_3)])
        {
            *pole = kept * *pole + gain * white;
        }
        poles.iter().sum::<f32>() + 0.184_8 * white
    };
    scaled((0..seconds * RATE_HZ).map(|_| sound()), rms)
}

/// Hum of the mains of a level, RMS.
pub fn hum(seconds: usize, rms: f32) -> Vec<f32> {
    let sound = |n: usize| {
        let turns = |harmonic: f32| (harmonic * MAINS_HZ * n as f32 / RATE_HZ as f32).fract();
        MAINS.iter().map(|&(harmonic, level)| level * (TAU * turns(harmonic)).sin()).sum()
    };
    // A whole number of periods, so that it can be repeated.
    let second: Vec<f32> = (0..RATE_HZ).map(sound).collect();
    scaled(second.into_iter().cycle().take(seconds * RATE_HZ), rms)
}

/// Chords that an organ plays, of a level, RMS.
pub fn chords(seconds: usize, rms: f32) -> Vec<f32> {
    let sound = |n: usize| {
        let at = n % (CHORD_S * RATE_HZ);
        let t = at as f32 / RATE_HZ as f32;
        let edge = (10.0 * t).min(10.0 * (CHORD_S as f32 - t)).min(1.0);
        let tone =
            |hz: f32| (1..=4).map(|h| (TAU * (h as f32 * hz * t).fract()).sin() / h as f32).sum::<f32>();
        edge * CHORDS[n / (CHORD_S * RATE_HZ) % CHORDS.len()].iter().map(|&hz| tone(hz)).sum::<f32>()
    };
    scaled((0..seconds * RATE_HZ).map(sound), rms)
}

/// A drum loop of a level, RMS.
pub fn drums(seconds: usize, rms: f32) -> Vec<f32> {
    let mut uniform = uniform();
    let mut sound = |n: usize| {
        let length = RATE_HZ / EIGHTHS_PER_S;
        let t = (n % length) as f32 / RATE_HZ as f32;
        let beat = match n / length % 4 {
            0 => (TAU * (50.0 + 70.0 * (-30.0 * t).exp()) * t).sin() * (-12.0 * t).exp(),
            2 => uniform() * (-18.0 * t).exp(),
            _ => 0.0,
        };
        beat + 0.25 * uniform() * (-60.0 * t).exp()
    };
    scaled((0..seconds * RATE_HZ).map(&mut sound), rms)
}

/// Sounds of a level, RMS, in which nobody speaks, by name.
pub fn wordless(seconds: usize, rms: f32) -> Vec<(&'static str, Vec<f32>)> {
    vec![
        ("white noise", noise(seconds, rms)),
        ("pink noise", pink_noise(seconds, rms)),
        ("hum", hum(seconds, rms)),
        ("tune", music(seconds, rms)),
        ("chords", chords(seconds, rms)),
        ("drums", drums(seconds, rms)),
    ]
}

fn scaled(samples: impl Iterator<Item = f32>, rms: f32) -> Vec<f32> {
    let mut samples: Vec<f32> = samples.collect();
    scale(&mut samples, rms);
    samples
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
    scaled((0..seconds * RATE_HZ).map(sound), rms)
}

/// Brings a sound to a level, RMS.
pub fn scale(samples: &mut [f32], rms: f32) {
    let power = samples.iter().map(|s| f64::from(s * s)).sum::<f64>() / samples.len().max(1) as f64;
    let gain = rms / (power.sqrt() as f32).max(f32::MIN_POSITIVE);
    samples.iter_mut().for_each(|sample| *sample *= gain);
}

/// The sum of two sounds, as long as the first; the second is repeated.
pub fn mixed(first: &[f32], second: &[f32]) -> Vec<f32> {
    first.iter().zip(second.iter().cycle()).map(|(a, b)| a + b).collect()
}
