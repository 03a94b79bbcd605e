//! What Speech Dispatcher sets before a message: `NAME=VALUE`.

/// Which punctuation is spoken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(super) enum Punctuation {
    #[default]
    None,
    Some,
    Most,
    All,
}

/// How capital letters are told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Capitals {
    #[default]
    None,
    /// By a word.
    Spell,
    /// By a sound.
    Icon,
}

/// The parameters of messages.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Parameters {
    /// From -100 to 100, as `pitch`.
    rate: i32,
    pitch: i32,
    /// `None` until it is set.
    volume: Option<i32>,
    pub(super) punctuation: Punctuation,
    pub(super) capitals: Capitals,
    /// Whether each character is spoken.
    pub(super) spells: bool,
    /// The name of a voice.
    pub(super) voice: Option<String>,
    /// A BCP 47 tag.
    pub(super) language: Option<String>,
    /// The gender of `voice`, such as `male1`, if it has one.
    pub(super) gender: Option<&'static str>,
}

/// The fastest speech, at the rate 100, and the slowest, at -100.
const FASTEST: f64 = 4.0;
const SLOWEST: f64 = 0.5;
/// The pitch of the values 100 and, reciprocally, -100: half an octave.
const HIGHEST: f64 = std::f64::consts::SQRT_2;

impl Parameters {
    /// Sets a parameter. Returns whether its name and its value are known.
    pub(super) fn set(&mut self, line: &str) -> bool {
        let Some((name, value)) = line.split_once('=') else { return false };
        let number = || value.parse::<i32>().ok().filter(|number| (-100..=100).contains(number));
        let text = || Some(value.to_owned()).filter(|value| value != "NULL" && !value.is_empty());
        let set = match name {
            "rate" => number().map(|rate| self.rate = rate),
            "pitch" => number().map(|pitch| self.pitch = pitch),
            "volume" => number().map(|volume| self.volume = Some(volume)),
            // No model changes the melody of a voice.
            "pitch_range" => number().map(|_| ()),
            "punctuation_mode" => punctuation(value).map(|mode| self.punctuation = mode),
            "spelling_mode" => switch(value).map(|spells| self.spells = spells),
            "cap_let_recogn" => capitals(value).map(|capitals| self.capitals = capitals),
            "voice" => gender(value).map(|gender| self.gender = gender),
            "language" => Some(()).inspect(|()| self.language = text()),
            "synthesis_voice" => Some(()).inspect(|()| self.voice = text()),
            _ => None,
        };
        set.is_some()
    }

    /// The tempo, 1 for that of the voice.
    pub(super) fn speed(&self) -> f64 {
        let base = if self.rate < 0 { 1.0 / SLOWEST } else { FASTEST };
        base.powf(f64::from(self.rate) / 100.0)
    }

    /// The factor of the pitch.
    pub(super) fn pitch(&self) -> f64 {
        HIGHEST.powf(f64::from(self.pitch) / 100.0)
    }

    /// The factor of the amplitude; 1 for the volume 100.
    pub(super) fn gain(&self) -> f32 {
        (self.volume.unwrap_or(100) + 100) as f32 / 200.0
    }
}

fn punctuation(value: &str) -> Option<Punctuation> {
    Some(match value {
        "none" => Punctuation::None,
        "some" => Punctuation::Some,
        "most" => Punctuation::Most,
        "all" => Punctuation::All,
        _ => return None,
    })
}

fn capitals(value: &str) -> Option<Capitals> {
    Some(match value {
        "none" => Capitals::None,
        "spell" => Capitals::Spell,
        "icon" => Capitals::Icon,
        _ => return None,
    })
}

fn switch(value: &str) -> Option<bool> {
    match value {
        "on" => Some(true),
        "off" => Some(false),
        _ => None,
    }
}

/// The gender of a kind of voice. Children's voices are those of women.
fn gender(value: &str) -> Option<Option<&'static str>> {
    match value.to_ascii_lowercase().as_str() {
        "male1" | "male2" | "male3" => Some(Some("male")),
        "female1" | "female2" | "female3" | "child_male" | "child_female" => Some(Some("female")),
        "null" | "" | "no" => Some(None),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_set_and_wrong_ones_are_refused() {
        let mut parameters = Parameters::default();
        for line in [
            "rate=100",
            "pitch=-100",
            "volume=0",
            "pitch_range=7",
            "punctuation_mode=most",
            "spelling_mode=on",
            "cap_let_recogn=icon",
            "voice=male1",
            "language=de",
            "synthesis_voice=NULL",
        ] {
            assert!(parameters.set(line), "{line}");
        }
        assert_eq!((parameters.speed(), parameters.gain()), (4.0, 0.5));
        assert!((parameters.pitch() - 0.5f64.sqrt()).abs() < 1e-9);
        assert_eq!((parameters.punctuation, parameters.capitals), (Punctuation::Most, Capitals::Icon));
        assert_eq!((parameters.language.as_deref(), parameters.gender), (Some("de"), Some("male")));
        assert!(parameters.spells && parameters.voice.is_none());
        let before = parameters.clone();
        for line in ["", "rate", "rate=", "rate=101", "rate=fast", "cap_let_recogn=x", "voice=x", "tempo=1"] {
            assert!(!parameters.set(line), "{line}");
        }
        assert_eq!(parameters, before);
        assert!(parameters.set("rate=-100") && (parameters.speed() - 0.5).abs() < 1e-9);
    }
}
