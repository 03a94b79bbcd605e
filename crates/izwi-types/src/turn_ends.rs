//! How the ends of a speaker's turns are found.

use std::ops::RangeInclusive;

/// How early a turn may end, where a turn model decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Eagerness {
    /// Late: the model must be sure.
    Low,
    /// Between the others.
    Medium,
    /// Early.
    High,
    /// As the server thinks best.
    Auto,
}

impl Eagerness {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Low, Self::Medium, Self::High, Self::Auto];
    /// Their names, in order, and what to choose from in words.
    pub const NAMES: [&str; 4] = ["low", "medium", "high", "auto"];
    /// As `NAMES`.
    pub const CHOICE: &str = "low, medium, high or auto";

    /// Its name.
    pub fn name(self) -> &'static str {
        Self::NAMES[self as usize]
    }

    /// That of a name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|eagerness| eagerness.name() == name)
    }

    /// The silence that ends a turn whatever the model says: that of the hosted API.
    /// <https://platform.openai.com/docs/guides/realtime-vad#semantic-vad>
    pub fn longest_silence_ms(self) -> u64 {
        match self {
            Self::Low => 8_000,
            Self::Medium | Self::Auto => 4_000,
            Self::High => 2_000,
        }
    }

    /// The probability from which on a turn is complete.
    pub fn threshold(self) -> f32 {
        match self {
            Self::Low => 0.7,
            Self::Medium | Self::Auto => 0.5,
            Self::High => 0.3,
        }
    }
}

/// How ends of turns are found, by silence alone or by a turn model that is asked in a pause.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TurnEnds {
    /// Of the turn model; `None` if silence alone ends a turn.
    pub eagerness: Option<Eagerness>,
    /// Silence in milliseconds that ends a turn, whatever a model says; `None` for that of the eagerness, or of the server.
    pub silence_ms: Option<u64>,
}

impl TurnEnds {
    /// Range of [`Self::silence_ms`].
    pub const SILENCES_MS: RangeInclusive<u64> = 100..=10_000;
    /// What clients call detection by silence, and by a model.
    pub const TYPES: [&str; 2] = ["server_vad", "semantic_vad"];

    /// What of it is there: without a turn model silence alone ends turns, after the server's time.
    #[must_use]
    pub fn available(self, has_model: bool) -> Self {
        if self.eagerness.is_some() && !has_model { Self::default() } else { self }
    }

    /// What clients call it.
    pub fn type_name(self) -> &'static str {
        Self::TYPES[usize::from(self.eagerness.is_some())]
    }
}
