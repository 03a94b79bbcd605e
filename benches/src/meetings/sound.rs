//! What a meeting sounds like: levels of speakers, the room, noise, the telephone.

use std::f32::consts::TAU;

use anyhow::Result;
use izwi_benches::clips::RATE_HZ;
use izwi_tests::Dice;
use izwi_tests::synthetic;

use super::conversation::{Meeting, between};

/// Level of a speaker, RMS, and how much one differs from it, in decibels.
const LEVEL: f32 = 0.06;
const SPREAD_DB: usize = 6;
/// Seconds after the last word.
const END_S: usize = 1;
/// Reflections of a room, per second, and the time in which they fall by 60 dB, in milliseconds.
const REFLECTIONS_PER_S: f32 = 600.0;
const DECAY_MS: (usize, usize) = (200, 500);
/// Level of all reflections below that of the voice itself, in decibels.
const REFLECTED_DB: (usize, usize) = (3, 10);
/// Level of speech above the noise, in decibels.
const NOISE_DB: (usize, usize) = (12, 25);
/// Band of a telephone, in Hz.
const TELEPHONE_HZ: [f32; 2] = [300.0, 3_400.0];

/// How a meeting is recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Clean,
    Noise,
    Room,
    Telephone,
}

impl Kind {
    pub(crate) const ALL: [Self; 4] = [Self::Clean, Self::Noise, Self::Room, Self::Telephone];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Clean => "clean",
            Self::Noise => "noise",
            Self::Room => "room",
            Self::Telephone => "telephone",
        }
    }
}

fn gain(decibels: f32) -> f32 {
    10f32.powf(decibels / 20.0)
}

/// The recording of a meeting, at [`RATE_HZ`].
pub(crate) fn render(meeting: &Meeting, kind: Kind, dice: &mut Dice) -> Result<Vec<f32>> {
    let end = |&(start, _, ref said): &(f64, usize, std::rc::Rc<super::voices::Utterance>)| {
        (start * f64::from(RATE_HZ)) as usize + said.samples.len()
    };
    let length = meeting.said.iter().map(end).max().unwrap_or(0) + END_S * RATE_HZ as usize;
    let speakers = meeting.said.iter().map(|(_, speaker, _)| speaker + 1).max().unwrap_or(0);
    let mut mixed = vec![0f32; length];
    for speaker in 0..speakers {
        let mut own = vec![0f32; length];
        for (start, _, said) in meeting.said.iter().filter(|(_, other, _)| *other == speaker) {
            let first = (start * f64::from(RATE_HZ)) as usize;
            own[first..].iter_mut().zip(&said.samples).for_each(|(sum, sample)| *sum += sample);
        }
        // The level is that of speech, not of the time between.
        let speech = own.iter().filter(|sample| **sample != 0.0).count().max(1);
        let level = LEVEL * gain(dice.roll(2 * SPREAD_DB + 1) as f32 - SPREAD_DB as f32);
        synthetic::scale(&mut own, level * (speech as f32 / length as f32).sqrt());
        if kind == Kind::Room {
            own = reverberated(&own, dice);
        }
        mixed.iter_mut().zip(&own).for_each(|(sum, sample)| *sum += sample);
    }
    match kind {
        Kind::Clean => {}
        Kind::Noise | Kind::Room => {
            let level = LEVEL * gain(-(between(NOISE_DB, dice) as f32));
            mixed = synthetic::mixed(&mixed, &synthetic::pink_noise(60, level));
        }
        Kind::Telephone => {
            let [low, high] = TELEPHONE_HZ;
            for _ in 0..2 {
                filter(&mut mixed, low, true);
                filter(&mut mixed, high, false);
            }
            mixed = synthetic::mixed(&mixed, &synthetic::noise(60, LEVEL * gain(-30.0)));
        }
    }
    mixed.iter_mut().for_each(|sample| *sample = sample.clamp(-1.0, 1.0));
    Ok(mixed)
}

/// With the reflections of a room, which come at random times with random signs and fall.
fn reverberated(samples: &[f32], dice: &mut Dice) -> Vec<f32> {
    let decay_s = between(DECAY_MS, dice) as f32 / 1e3;
    let count = (REFLECTIONS_PER_S * decay_s) as usize;
    let mut reflections: Vec<(usize, f32)> = Vec::with_capacity(count);
    for number in 0..count {
        let at_s = (number as f32 + dice.roll(1_000) as f32 / 1e3) / REFLECTIONS_PER_S;
        let sign = if dice.roll(2) == 0 { 1.0 } else { -1.0 };
        reflections.push(((at_s * RATE_HZ as f32) as usize + 40, sign * gain(-60.0 * at_s / decay_s)));
    }
    let power: f32 = reflections.iter().map(|(_, level)| level * level).sum();
    let scale = gain(-(between(REFLECTED_DB, dice) as f32)) / power.sqrt();
    let mut heard = samples.to_vec();
    for (delay, level) in reflections {
        let later = heard.iter_mut().skip(delay).zip(samples);
        later.for_each(|(sum, sample)| *sum += level * scale * sample);
    }
    heard
}

/// A filter of second order that keeps what is above or below `edge_hz`.
///
/// Source: <https://www.w3.org/TR/audio-eq-cookbook/>.
fn filter(samples: &mut [f32], edge_hz: f32, keeps_above: bool) {
    let (sin, cos) = (TAU * edge_hz / RATE_HZ as f32).sin_cos();
    let alpha = sin / std::f32::consts::SQRT_2;
    let side = if keeps_above { (1.0 + cos) / 2.0 } else { (1.0 - cos) / 2.0 };
    let middle = if keeps_above { -2.0 * side } else { 2.0 * side };
    let all = 1.0 + alpha;
    let (mut x, mut y) = ([0f32; 2], [0f32; 2]);
    for sample in samples {
        let out = (side * (*sample + x[1]) + middle * x[0] + 2.0 * cos * y[0] - (1.0 - alpha) * y[1]) / all;
        (x, y) = ([*sample, x[0]], [out, y[0]]);
        *sample = out;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_telephone_has_its_band() {
        let level = |hz: f32| {
            let mut tone: Vec<f32> =
                (0..RATE_HZ).map(|n| (TAU * hz * n as f32 / RATE_HZ as f32).sin()).collect();
            let [low, high] = TELEPHONE_HZ;
            filter(&mut tone, low, true);
            filter(&mut tone, high, false);
            tone[8_000..].iter().fold(0f32, |most, sample| most.max(sample.abs()))
        };
        assert!(level(1_000.0) > 0.9 && level(60.0) < 0.1 && level(7_000.0) < 0.1);
    }
}
