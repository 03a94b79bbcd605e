//! Plays speech a little slower while little of it waits, so that a late chunk makes no gap: waveform-similarity overlap-add (WSOLA).
//!
//! Owns the samples that are about to be played and those just played. Knows no device and no clock.

/// Audio that waits in milliseconds: with this or more, playback is the source, bit for bit.
pub const RELAXED_MS: usize = 300;
/// Audio that waits in milliseconds at and below which playback is slowest.
const URGENT_MS: usize = 150;
/// The most samples that are added, of those that are played.
pub const MAX_STRETCH: f64 = 0.1;
/// Shortest and longest stretch of audio that is repeated, in microseconds: one or more periods of a voice.
const MIN_LAG_US: usize = 2_500;
const MAX_LAG_US: usize = 15_000;
/// Length of a crossfade, over which both sides must be alike.
const FADE_US: usize = 10_000;
/// From one search for a repetition to the next.
const SEARCH_US: usize = 5_000;
/// Rate of the first search, which the second one refines.
const COARSE_HZ: usize = 12_000;
/// Correlation from which on both sides are alike.
const ALIKE: f32 = 0.8;
/// Mean square below which all sounds alike: silence.
const SILENCE: f32 = 1e-7;

/// A crossfade: the samples that it leaves, and how many of them were played.
#[derive(Debug, Clone, Copy)]
struct Fade {
    from: usize,
    done: usize,
}

/// Plays the samples that are pushed, in order. While few wait it repeats a period of the voice now and then.
#[derive(Debug)]
pub struct Stretcher {
    /// The samples just played, and from `at` on those to play next.
    samples: Vec<f32>,
    at: usize,
    fade: Option<Fade>,
    /// Samples before those that are kept.
    forgotten: u64,
    played: u64,
    added: u64,
    /// Samples that may be added now, and how much of the source had been played when they were last counted.
    credit: f64,
    counted: u64,
    until_search: usize,
    per_ms: usize,
    stride: usize,
    min_lag: usize,
    max_lag: usize,
    fade_len: usize,
    search_len: usize,
}

impl Stretcher {
    /// One for mono samples at `rate_hz`.
    pub fn new(rate_hz: u32) -> Self {
        let rate_hz = rate_hz as usize;
        let samples_of = |us: usize| (rate_hz * us / 1_000_000).max(1);
        let (max_lag, fade_len) = (samples_of(MAX_LAG_US), samples_of(FADE_US));
        Self {
            // Room for a second, so that whoever pushes less at a time makes no allocation.
            samples: Vec::with_capacity(rate_hz + 2 * (max_lag + fade_len)),
            at: 0,
            fade: None,
            forgotten: 0,
            played: 0,
            added: 0,
            credit: 0.0,
            counted: 0,
            until_search: 0,
            per_ms: (rate_hz / 1_000).max(1),
            stride: (rate_hz / COARSE_HZ).max(1),
            min_lag: samples_of(MIN_LAG_US),
            max_lag,
            fade_len,
            search_len: samples_of(SEARCH_US),
        }
    }

    /// Samples that must wait here, besides those that a pull takes, for playback to be stretched.
    pub fn lookahead(&self) -> usize {
        self.fade_len
    }

    /// Samples that were pushed and not played.
    pub fn waiting(&self) -> usize {
        self.samples.len() - self.at
    }

    /// Samples of the source that were played, each counted once.
    pub fn played(&self) -> u64 {
        self.played
    }

    /// Samples that were added.
    pub fn added(&self) -> u64 {
        self.added
    }

    /// Adds samples to play.
    pub fn push(&mut self, samples: impl IntoIterator<Item = f32>) {
        let kept = self.max_lag + self.fade_len;
        // A fade reads what lies behind the cursor too.
        if self.at > 2 * kept && self.fade.is_none() {
            let forgotten = self.at - kept;
            self.samples.drain(..forgotten);
            self.at = kept;
            self.forgotten += forgotten as u64;
        }
        self.samples.extend(samples);
    }

    /// Fills `out` with the next samples and returns how many there were. `behind` samples wait elsewhere for being pushed; `None`
    /// says that no more come, so that nothing is to be gained from playing slower.
    pub fn pull(&mut self, out: &mut [f32], behind: Option<usize>) -> usize {
        for (count, out) in out.iter_mut().enumerate() {
            if self.until_search == 0 && self.fade.is_none() {
                self.until_search = self.search_len;
                self.spend(behind);
            }
            let Some(sample) = self.next() else { return count };
            *out = sample;
        }
        out.len()
    }

    fn next(&mut self) -> Option<f32> {
        let mut sample = *self.samples.get(self.at)?;
        if let Some(Fade { from, done }) = self.fade {
            let weight = (done as f32 + 0.5) / self.fade_len as f32;
            sample = self.samples[from + done] * (1.0 - weight) + sample * weight;
            self.fade = (done + 1 < self.fade_len).then_some(Fade { from, done: done + 1 });
        }
        self.at += 1;
        self.until_search = self.until_search.saturating_sub(1);
        self.played = self.played.max(self.forgotten + self.at as u64);
        Some(sample)
    }

    /// Earns what the wait for more samples allows, and repeats something once there is enough for any of the repetitions: a
    /// part of them would have a worse best one.
    fn spend(&mut self, behind: Option<usize>) {
        let progress = (self.played - self.counted) as f64;
        self.counted = self.played;
        let waiting_ms = behind.map_or(usize::MAX, |behind| (behind + self.waiting()) / self.per_ms);
        if waiting_ms >= RELAXED_MS {
            self.credit = 0.0;
            return;
        }
        let need = (RELAXED_MS - waiting_ms) as f64 / (RELAXED_MS - URGENT_MS) as f64;
        let max_lag = self.max_lag as f64;
        self.credit = (self.credit + MAX_STRETCH * need.min(1.0) * progress).min(max_lag);
        if self.credit < max_lag || self.waiting() < self.fade_len {
            return;
        }
        if let Some(lag) = self.best_lag() {
            self.fade = Some(Fade { from: self.at, done: 0 });
            self.at -= lag;
            self.credit -= lag as f64;
            self.added += lag as u64;
        }
    }

    /// How many samples to go back so that what follows there is most like what follows here; `None` if nothing is.
    fn best_lag(&self) -> Option<usize> {
        let coarse = (self.min_lag..=self.max_lag).step_by(self.stride);
        let alike = |lag: usize, stride| (self.likeness(lag, stride), lag);
        let best = |found: (f32, usize), next: (f32, usize)| if next.0 > found.0 { next } else { found };
        let (_, near) = coarse.map(|lag| alike(lag, self.stride)).reduce(best)?;
        let fine = near.saturating_sub(self.stride - 1).max(self.min_lag)
            ..=(near + self.stride - 1).min(self.max_lag);
        let (likeness, lag) = fine.map(|lag| alike(lag, 1)).reduce(best)?;
        (likeness >= ALIKE).then_some(lag)
    }

    /// Correlation of the next samples with those `lag` before them, of every `stride`th sample; 1 in silence.
    fn likeness(&self, lag: usize, stride: usize) -> f32 {
        let here = &self.samples[self.at..self.at + self.fade_len];
        let there = &self.samples[self.at - lag..self.at - lag + self.fade_len];
        let (mut product, mut energy_here, mut energy_there) = (0.0, 0.0, 0.0);
        for (a, b) in here.iter().zip(there).step_by(stride) {
            product += a * b;
            energy_here += a * a;
            energy_there += b * b;
        }
        let silence = SILENCE * (self.fade_len / stride) as f32;
        if energy_here.max(energy_there) <= silence {
            return 1.0;
        }
        product / (energy_here * energy_there).sqrt().max(silence)
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

    /// What is played of `source` in pieces of 128 with `waiting_ms` of audio always waiting.
    fn play(source: &[f32], waiting_ms: usize) -> (Vec<f32>, Stretcher) {
        let mut stretcher = Stretcher::new(RATE);
        let (mut played, mut pushed) = (Vec::new(), 0);
        let waiting = waiting_ms * RATE as usize / 1_000;
        let mut out = [0.0; 128];
        loop {
            let more = (waiting + out.len()).saturating_sub(stretcher.waiting()).min(source.len() - pushed);
            stretcher.push(source[pushed..pushed + more].iter().copied());
            pushed += more;
            let count = stretcher.pull(&mut out, (pushed < source.len()).then_some(0));
            played.extend_from_slice(&out[..count]);
            if count < out.len() {
                return (played, stretcher);
            }
        }
    }

    #[test]
    fn with_enough_that_waits_playback_is_the_source() {
        let source = sine(220.0, 100_000);
        let (played, stretcher) = play(&source, RELAXED_MS);
        assert!(played == source);
        assert_eq!((stretcher.played(), stretcher.added()), (source.len() as u64, 0));
    }

    #[test]
    fn a_sine_keeps_its_pitch_and_has_no_clicks() {
        for hz in [90.0, 155.5, 440.0, 1_000.0] {
            let source = sine(hz, 5 * RATE as usize);
            let (played, stretcher) = play(&source, 60);
            let stretch = stretcher.added() as f64 / source.len() as f64;
            assert!((0.08..=MAX_STRETCH).contains(&stretch), "{hz} Hz: {stretch}");
            assert_eq!(played.len() as u64, source.len() as u64 + stretcher.added());
            let rises = played.windows(2).filter(|pair| pair[0] < 0.0 && pair[1] >= 0.0).count();
            let seconds = played.len() as f32 / RATE as f32;
            assert!((rises as f32 / seconds / hz - 1.0).abs() < 0.005, "{hz} Hz: {rises} in {seconds} s");
            // A click is a kink: its second difference is far beyond that of the sine.
            let kink = |samples: &[f32]| {
                samples.windows(3).map(|s| (s[0] - 2.0 * s[1] + s[2]).abs()).fold(0.0, f32::max)
            };
            assert!(
                kink(&played) < 1.2 * kink(&source) + 1e-4,
                "{hz} Hz: {} {}",
                kink(&played),
                kink(&source)
            );
            let peak = played.iter().fold(0.0f32, |peak, sample| peak.max(sample.abs()));
            assert!(peak <= 0.501, "{hz} Hz: {peak}");
        }
    }

    #[test]
    fn noise_is_left_alone_and_silence_is_not() {
        let mut seed = 1u32;
        let mut random = || {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            seed as f32 / u32::MAX as f32 - 0.5
        };
        let noise: Vec<f32> = (0..RATE).map(|_| random()).collect();
        assert_eq!(play(&noise, 60).0, noise);
        let (_, stretcher) = play(&vec![0.0; RATE as usize], 60);
        assert!(stretcher.added() > 1_500, "{}", stretcher.added());
    }

    proptest! {
        /// Whatever arrives when: all of it is played once by its count, and no more than a tenth is added.
        #[test]
        fn every_sample_is_counted_once(
            hz in 60.0f32..2_000.0,
            steps in prop::collection::vec((0usize..3_000, 1usize..1_500), 1..200),
        ) {
            let source = sine(hz, steps.iter().map(|(pushed, _)| pushed).sum());
            let mut stretcher = Stretcher::new(RATE);
            let (mut rest, mut played, mut out) = (source.as_slice(), 0, vec![0.0; 1_500]);
            for (push, pull) in steps {
                let (now, later) = rest.split_at(push);
                stretcher.push(now.iter().copied());
                rest = later;
                let before = stretcher.played();
                let waiting = stretcher.waiting();
                let count = stretcher.pull(&mut out[..pull], Some(0));
                prop_assert!(count == pull || stretcher.waiting() == 0, "{count} of {waiting}");
                played += count as u64;
                prop_assert!((before..=(source.len() - rest.len()) as u64).contains(&stretcher.played()));
            }
            loop {
                match stretcher.pull(&mut out, None) {
                    0 => break,
                    count => played += count as u64,
                }
            }
            prop_assert_eq!(stretcher.played(), source.len() as u64);
            prop_assert_eq!(played, stretcher.played() + stretcher.added());
            prop_assert!(stretcher.added() as f64 <= MAX_STRETCH * stretcher.played() as f64);
        }
    }
}
