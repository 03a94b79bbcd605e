//! How long a pause is.

/// The longest pause, in milliseconds, and all pauses of a text together.
const MAX_MS: u32 = 10_000;
const MAX_SUM_MS: u32 = 300_000;

/// Milliseconds of the strengths of `break`. SSML leaves them to the processor; these are those of Azure's Speech service:
/// <https://learn.microsoft.com/azure/ai-services/speech-service/speech-synthesis-markup-structure#add-a-break>.
const STRENGTHS: [(&str, u32); 6] =
    [("none", 0), ("x-weak", 250), ("weak", 500), ("medium", 750), ("strong", 1_000), ("x-strong", 1_250)];
/// A pause without a length.
pub(super) const MEDIUM_MS: u32 = 750;

/// The milliseconds of `1.5s` or `500ms`, the two forms of a time in SSML.
pub(super) fn of_time(time: &str) -> Option<u32> {
    let time = time.trim();
    let (number, is_ms) = match time.strip_suffix("ms") {
        Some(number) => (number, true),
        None => (time.strip_suffix('s')?, false),
    };
    of_number(number, is_ms)
}

/// The milliseconds of a strength.
pub(super) fn of_strength(strength: &str) -> Option<u32> {
    STRENGTHS.iter().find(|(name, _)| *name == strength.trim()).map(|(_, ms)| *ms)
}

/// The milliseconds of a number of milliseconds or seconds, which may have a decimal comma.
pub(super) fn of_number(number: &str, is_ms: bool) -> Option<u32> {
    let number = number.trim_start_matches('+').replace(',', ".");
    let is_plain = number.starts_with(|c: char| c.is_ascii_digit() || c == '.');
    let number: f64 = number.parse().ok().filter(|_| is_plain)?;
    // Longer than any pause that is kept.
    Some((if is_ms { number } else { number * 1_000.0 }).min(f64::from(u32::MAX)).round() as u32)
}

/// The pauses of a text.
#[derive(Debug, Default)]
pub(super) struct Pauses {
    sum_ms: u32,
}

impl Pauses {
    /// As much of a pause as is kept, and whether that is all.
    pub(super) fn take(&mut self, ms: u32) -> (u32, bool) {
        let kept = ms.min(MAX_MS).min(MAX_SUM_MS - self.sum_ms);
        self.sum_ms += kept;
        (kept, kept == ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_ssml() {
        for (time, ms) in
            [("1s", 1_000), ("500ms", 500), (" 0.25s ", 250), (".5s", 500), ("+2s", 2_000), ("0s", 0)]
        {
            assert_eq!(of_time(time), Some(ms), "{time}");
        }
        for time in ["", "s", "1", "1m", "-1s", "1 second", "infs", "NaNs", "1e", "ms"] {
            assert_eq!(of_time(time), None, "{time}");
        }
        assert_eq!(of_time("99999999999999s"), Some(u32::MAX));
        assert_eq!((of_strength("x-strong"), of_strength("huge")), (Some(1_250), None));
        assert_eq!(of_number("1,5", false), Some(1_500));
    }

    #[test]
    fn one_pause_and_all_of_a_text_are_bounded() {
        let mut pauses = Pauses::default();
        assert_eq!(pauses.take(2_000), (2_000, true));
        assert_eq!(pauses.take(10_001), (10_000, false));
        let kept: u32 = (0..60).map(|_| pauses.take(MAX_MS).0).sum();
        assert_eq!(kept, MAX_SUM_MS - 12_000);
        assert_eq!(pauses.take(1), (0, false));
    }
}
