//! Changes the tempo of speech and keeps its pitch: waveform-similarity overlap-add (WSOLA), as a stream.
//!
//! Where [`crate::stretch`] repeats a period now and then while audio plays, this one takes any tempo and knows no player.

/// Half of a frame, over which two frames overlap, in microseconds, up to [`LONG_FRAMES`].
const HOP_US: f64 = 12_000.0;
/// The speed from which on frames are shorter: what is left out between two of them has the length of a short sound.
const LONG_FRAMES: f64 = 2.0;
/// How far a frame may move to where it is most like what it replaces: half the period of a low voice, in microseconds.
const TOLERANCE_US: usize = 7_000;
/// Rate of the first search, which the second one refines.
const COARSE_HZ: usize = 8_000;

/// A mono stream that is played faster or slower.
#[derive(Debug)]
pub struct Tempo {
    speed: f64,
    /// The samples from `start` of the source on.
    source: Vec<f32>,
    start: usize,
    /// Samples of the source so far.
    pushed: usize,
    /// Frames so far.
    frames: usize,
    /// Samples so far.
    sent: usize,
    /// What follows the last frame in the source, and fades out over the next one.
    tail: Vec<f32>,
    hop: usize,
    tolerance: usize,
    stride: usize,
}

impl Tempo {
    /// A stream of mono samples at `rate_hz` whose tempo is multiplied by `speed`, which is positive.
    pub fn new(rate_hz: u32, speed: f64) -> Self {
        let samples_of = |us: usize| (rate_hz as usize * us / 1_000_000).max(1);
        Self {
            speed: speed.max(f64::MIN_POSITIVE),
            source: Vec::new(),
            start: 0,
            pushed: 0,
            frames: 0,
            sent: 0,
            tail: Vec::new(),
            hop: samples_of((HOP_US * LONG_FRAMES / speed.max(LONG_FRAMES)) as usize),
            tolerance: samples_of(TOLERANCE_US),
            stride: (rate_hz as usize / COARSE_HZ).max(1),
        }
    }

    /// Adds samples, and appends those to `out` that can be played by now.
    pub fn push(&mut self, samples: &[f32], out: &mut Vec<f32>) {
        self.pushed += samples.len();
        if (self.speed - 1.0).abs() < 1e-3 {
            out.extend_from_slice(samples);
            return;
        }
        self.source.extend_from_slice(samples);
        let before = out.len();
        let due = (self.pushed as f64 / self.speed) as usize;
        while (self.frames + 1) * self.hop <= due
            && self.ideal() + self.tolerance + 2 * self.hop <= self.start + self.source.len()
        {
            self.frame(out);
        }
        self.sent += out.len() - before;
    }

    /// Appends the rest. The whole has the length of the source divided by the speed.
    pub fn finish(&mut self, out: &mut Vec<f32>) {
        if (self.speed - 1.0).abs() < 1e-3 {
            return;
        }
        let wanted = (self.pushed as f64 / self.speed).round() as usize;
        let rest = wanted.saturating_sub(self.sent);
        let before = out.len();
        while out.len() - before < rest {
            let needed = self.ideal() + self.tolerance + 2 * self.hop;
            self.source.resize(needed.saturating_sub(self.start).max(self.source.len()), 0.0);
            self.frame(out);
        }
        out.truncate(before + rest);
    }

    /// Where the next frame would begin in the source without a search.
    fn ideal(&self) -> usize {
        ((self.frames * self.hop) as f64 * self.speed) as usize
    }

    fn frame(&mut self, out: &mut Vec<f32>) {
        let ideal = self.ideal();
        let first = ideal.saturating_sub(self.tolerance).max(self.start);
        let at = if self.tail.is_empty() { ideal } else { self.most_alike(first, ideal + self.tolerance) };
        let from = at - self.start;
        let (fading_in, next) = self.source[from..from + 2 * self.hop].split_at(self.hop);
        if self.tail.is_empty() {
            out.extend_from_slice(fading_in);
        } else {
            let hop = self.hop as f32;
            let faded = fading_in.iter().zip(&self.tail).enumerate().map(|(n, (new, old))| {
                let weight = (n as f32 + 0.5) / hop;
                old + (new - old) * weight
            });
            out.extend(faded);
        }
        self.tail.clear();
        self.tail.extend_from_slice(next);
        self.frames += 1;
        let kept = self.ideal().saturating_sub(self.tolerance).max(self.start);
        let gone = (kept - self.start).min(self.source.len());
        self.source.drain(..gone);
        self.start += gone;
    }

    /// The place from `first` to `last` at which the source is most like the tail.
    fn most_alike(&self, first: usize, last: usize) -> usize {
        let best = |found: (f32, usize), next: (f32, usize)| if next.0 > found.0 { next } else { found };
        let alike = |at: usize, stride| (self.likeness(at - self.start, stride), at);
        let coarse = (first..=last).step_by(self.stride).map(|at| alike(at, self.stride));
        let near = coarse.reduce(best).map_or(first, |(_, at)| at);
        let fine = near.saturating_sub(self.stride - 1).max(first)..=(near + self.stride - 1).min(last);
        fine.map(|at| alike(at, 1)).reduce(best).map_or(near, |(_, at)| at)
    }

    /// Correlation of the tail with the samples at `from`, of every `stride`th sample.
    fn likeness(&self, from: usize, stride: usize) -> f32 {
        let there = &self.source[from..from + self.hop];
        let (mut product, mut energy) = (0.0, 1e-9);
        for (a, b) in self.tail.iter().zip(there).step_by(stride) {
            product += a * b;
            energy += b * b;
        }
        product / f32::sqrt(energy)
    }
}

#[cfg(test)]
mod tests {
    use std::f32::consts::TAU;

    use proptest::prelude::*;

    use super::*;

    const RATE: u32 = 24_000;

    fn sine(hz: f32, samples: usize) -> Vec<f32> {
        (0..samples).map(|n| 0.5 * (TAU * hz * n as f32 / RATE as f32).sin()).collect()
    }

    fn played(source: &[f32], speed: f64, piece: usize) -> Vec<f32> {
        let mut tempo = Tempo::new(RATE, speed);
        let mut out = Vec::new();
        for piece in source.chunks(piece) {
            tempo.push(piece, &mut out);
        }
        tempo.finish(&mut out);
        out
    }

    #[test]
    fn a_sine_keeps_its_pitch_at_any_tempo() {
        for hz in [110.0, 225.5, 440.0] {
            for speed in [0.5, 0.8, 1.5, 2.0, 3.0, 4.0] {
                let source = sine(hz, 3 * RATE as usize);
                let out = played(&source, speed, 1_000);
                let rises = out.windows(2).filter(|pair| pair[0] < 0.0 && pair[1] >= 0.0).count();
                let found = rises as f32 * RATE as f32 / out.len() as f32;
                assert!((found / hz - 1.0).abs() < 0.02, "{hz} Hz at {speed}: {found}");
                assert!(out.iter().all(|sample| sample.abs() <= 0.501), "{hz} Hz at {speed}");
            }
        }
    }

    proptest! {
        /// The length is that of the source divided by the speed, and pieces change nothing.
        #[test]
        fn pieces_give_the_whole(length in 0usize..30_000, speed in 0.25f64..4.0, piece in 1usize..5_000) {
            let source = sine(180.0, length);
            let whole = played(&source, speed, length.max(1));
            prop_assert_eq!(&played(&source, speed, piece), &whole);
            let expected = (length as f64 / speed).round() as usize;
            prop_assert!(whole.len() == expected || ((speed - 1.0).abs() < 1e-3 && whole.len() == length));
        }
    }
}
