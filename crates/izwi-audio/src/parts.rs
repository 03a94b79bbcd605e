//! Parts of a long recording, which are cut in pauses: each can be transcribed for itself.

/// The length of a part, and how much of its end it may be cut off at a pause, in seconds.
const PART_S: usize = 300;
const CUT_WITHIN_S: usize = 30;

/// Samples of the longest part.
pub fn part_samples(rate_hz: usize) -> usize {
    PART_S * rate_hz
}

/// Where the first part of a recording ends: in the quietest moment at the end of a part, or at the end of the recording.
pub fn part_end<S: Copy + Into<f32>>(samples: &[S], rate_hz: usize) -> usize {
    let (part, within) = (part_samples(rate_hz), CUT_WITHIN_S * rate_hz);
    // The pause that is looked for, and the step.
    let (pause, step) = (3 * rate_hz / 10, (rate_hz / 10).max(1));
    if samples.len() <= part {
        return samples.len();
    }
    let cuts = (part - within..=part - pause).step_by(step);
    let power =
        |at: &usize| samples[*at..at + pause].iter().map(|&sample| f64::from(sample.into()).powi(2)).sum();
    let powers = cuts.map(|at| (at, power(&at)));
    let quietest = powers.min_by(|(_, one): &(usize, f64), (_, other)| one.total_cmp(other));
    quietest.map_or(part, |(at, _)| at + pause / 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_ends_in_a_pause_and_a_short_recording_is_one() {
        let rate_hz = 1_000;
        let is_pause = |n: usize| (100_000..100_500).contains(&n) || (280_000..280_500).contains(&n);
        let wave = |n: usize| if is_pause(n) { 0 } else { ((n as f32 * 0.3).sin() * 9_000.0) as i16 };
        let samples: Vec<i16> = (0..400_000).map(wave).collect();
        let end = part_end(&samples, rate_hz);
        assert!((280_000..280_500).contains(&end), "{end}");
        assert_eq!(part_end(&samples[..300_000], rate_hz), 300_000);
        assert_eq!(part_end::<f32>(&[], rate_hz), 0);
        assert!(part_end(&vec![0.5f32; 300_001], rate_hz) < 300_000);
    }
}
