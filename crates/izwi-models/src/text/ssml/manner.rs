//! How a part of a text is spoken: its tempo and its loudness.

/// Multiples of the tempo, as Azure's Speech service has them; SSML leaves them to the processor:
/// <https://learn.microsoft.com/azure/ai-services/speech-service/speech-synthesis-markup-voice#adjust-prosody>.
const RATES: [(&str, f32); 6] =
    [("x-slow", 0.5), ("slow", 0.64), ("medium", 1.0), ("default", 1.0), ("fast", 1.55), ("x-fast", 2.0)];
/// Decibels of the loudness: each step of SSML is about twice or half as loud as the next.
const VOLUMES: [(&str, f32); 7] = [
    ("silent", f32::NEG_INFINITY),
    ("x-soft", -12.0),
    ("soft", -6.0),
    ("medium", 0.0),
    ("default", 0.0),
    ("loud", 6.0),
    ("x-loud", 12.0),
];
/// The most that a text makes louder.
const MAX_GAIN: f32 = 4.0;

/// How a part is spoken.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Manner {
    /// Multiple of the tempo of the whole.
    pub rate: f32,
    /// Multiple of the samples.
    pub gain: f32,
}

impl Default for Manner {
    fn default() -> Self {
        Self { rate: 1.0, gain: 1.0 }
    }
}

impl Manner {
    /// This manner with the attributes of a `prosody` within it, and whether all of them are obeyed.
    pub(super) fn with(self, attributes: &[(String, &str)], has_rates: bool) -> (Self, bool) {
        let (mut manner, mut is_whole) = (self, true);
        for (name, value) in attributes {
            match (name.as_str(), rate(value), gain(value)) {
                ("rate", Some(rate), _) if has_rates => manner.rate *= rate,
                ("volume", _, Some(gain)) => manner.gain = (manner.gain * gain).min(MAX_GAIN),
                _ => is_whole = false,
            }
        }
        (manner, is_whole)
    }
}

/// The multiple of a rate: `slow`, `80%` of the tempo, `+20%` more than it, `1.2` times it.
fn rate(value: &str) -> Option<f32> {
    let value = value.trim();
    if let Some((_, rate)) = RATES.iter().find(|(name, _)| *name == value) {
        return Some(*rate);
    }
    let rate = match value.strip_suffix('%') {
        Some(percent) if percent.starts_with(['+', '-']) => 1.0 + number(percent)? / 100.0,
        Some(percent) => number(percent)? / 100.0,
        None => number(value)?,
    };
    Some(rate).filter(|rate| (0.1..=10.0).contains(rate))
}

/// The multiple of the samples at a volume: `soft`, or more or less decibels.
fn gain(value: &str) -> Option<f32> {
    let value = value.trim();
    let known = VOLUMES.iter().find(|(name, _)| *name == value).map(|(_, decibels)| *decibels);
    let decibels = known.or_else(|| number(value.strip_suffix("dB")?))?;
    Some(10f32.powf(decibels.min(60.0) / 20.0))
}

fn number(text: &str) -> Option<f32> {
    text.parse().ok().filter(|number: &f32| number.is_finite())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_and_volumes_are_those_of_ssml() {
        for (value, expected) in [
            ("slow", Some(0.64)),
            ("80%", Some(0.8)),
            ("+50%", Some(1.5)),
            ("1.2", Some(1.2)),
            ("-200%", None),
            ("NaN", None),
        ] {
            assert_eq!(rate(value), expected, "{value}");
        }
        for (value, expected) in
            [("-20dB", Some(0.1)), ("silent", Some(0.0)), ("+20dB", Some(10.0)), ("50", None)]
        {
            assert_eq!(gain(value), expected, "{value}");
        }
        let attributes =
            [("rate".to_owned(), "50%"), ("volume".to_owned(), "+40dB"), ("pitch".to_owned(), "high")];
        let manner = Manner { rate: 0.5, gain: MAX_GAIN };
        assert_eq!(Manner::default().with(&attributes, true), (manner, false));
        assert_eq!(Manner::default().with(&attributes[..2], false), (Manner { rate: 1.0, ..manner }, false));
    }
}
