//! When clients come, and what they ask for.
//!
//! Must not know engines.

use std::time::Duration;

use crate::machines::CHARS_PER_S;
use crate::random::Random;

/// Shortest and longest text of a live stream, in characters.
pub(crate) const TEXT: (f64, f64) = (45.0, 300.0);
/// Clients of a burst.
const BURST: (f64, f64) = (4.0, 12.0);
/// Seconds of a day: long against a stream, short against a run.
const DAY_S: f64 = 600.0;
/// Swing of the rate of arrivals over a day.
const SWING: f64 = 0.8;

/// How arrivals are spread over time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pattern {
    /// Independent of each other.
    Poisson,
    /// Several at once.
    Bursts,
    /// Independent, at a rate that rises and falls.
    Diurnal,
}

/// The model that a client speaks to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Autoregressive TTS.
    Speech,
    /// Conversation.
    Chat,
    /// The small TTS model.
    Small,
}

/// What a client does with its stream.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Reader {
    /// Reads at once and plays at playback speed.
    Fast,
    /// Reads at playback speed, with half a second of audio ahead.
    RealTime,
    /// Stops reading after some seconds of audio, for a minute, and goes.
    Stopping(f64),
    /// Does not read for some seconds in between.
    Stalling {
        /// Seconds of audio before.
        after_s: f64,
        /// Seconds without reading.
        for_s: f64,
    },
    /// Disconnects after some seconds of audio.
    Vanishing(f64),
    /// Cancels after some seconds of audio.
    Cancelling(f64),
}

/// One live client.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Client {
    /// When it comes, since the start.
    pub(crate) at: Duration,
    /// The model.
    pub(crate) kind: Kind,
    /// Characters of its text.
    pub(crate) chars: usize,
    /// What it does.
    pub(crate) reader: Reader,
    /// How often it comes back after the time that a refusal told.
    pub(crate) returns: u32,
    /// Seed of its request.
    pub(crate) seed: u64,
}

/// Seconds of audio of a live stream on average.
pub(crate) fn mean_length_s() -> f64 {
    (TEXT.1 - TEXT.0) / (TEXT.1 / TEXT.0).ln() / CHARS_PER_S
}

/// Which clients come.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Offered {
    /// Streams of the TTS model at once, if all were accepted.
    pub(crate) streams: f64,
    /// Whether the other models have clients too, and some clients behave badly.
    pub(crate) mixed: bool,
    /// Whether there is a chat model.
    pub(crate) chats: bool,
}

/// The clients of a run, in order: a third of the time for each pattern.
pub(crate) fn clients(seed: u64, length: Duration, offered: Offered) -> Vec<Client> {
    let (mut random, third) = (Random::new(seed, 11), length.as_secs_f64() / 3.0);
    let other = if offered.mixed { 1.0 + if offered.chats { 0.4 } else { 0.2 } } else { 1.0 };
    let gap_s = mean_length_s() / offered.streams / other;
    let mut times = Vec::new();
    for (index, pattern) in [Pattern::Poisson, Pattern::Bursts, Pattern::Diurnal].into_iter().enumerate() {
        let found = arrivals(&mut random, pattern, gap_s, third);
        times.extend(found.into_iter().map(|at| index as f64 * third + at));
    }
    times.into_iter().map(|at| client(&mut random, at, offered)).collect()
}

/// Arrival times within `length_s`.
fn arrivals(random: &mut Random, pattern: Pattern, gap_s: f64, length_s: f64) -> Vec<f64> {
    let (mut times, mut now) = (Vec::new(), 0.0);
    loop {
        match pattern {
            Pattern::Poisson => now += random.exponential(gap_s),
            Pattern::Bursts => now += random.exponential(gap_s * (BURST.0 + BURST.1) / 2.0),
            Pattern::Diurnal => {
                now += random.exponential(gap_s / (1.0 + SWING));
                let rate = 1.0 + SWING * (std::f64::consts::TAU * now / DAY_S).sin();
                if random.unit() >= rate / (1.0 + SWING) && now < length_s {
                    continue;
                }
            }
        }
        if now >= length_s {
            return times;
        }
        let count =
            if pattern == Pattern::Bursts { random.between(BURST.0, BURST.1).round() as usize } else { 1 };
        times.extend((0..count).map(|index| now + 0.005 * index as f64));
    }
}

fn client(random: &mut Random, at: f64, offered: Offered) -> Client {
    let kind = match random.unit() * if offered.chats { 1.4 } else { 1.2 } {
        drawn if !offered.mixed || drawn < 1.0 => Kind::Speech,
        drawn if drawn < 1.2 => Kind::Small,
        _ => Kind::Chat,
    };
    let after_s = random.between(0.2, 4.0);
    let reader = match random.unit() {
        drawn if drawn < 0.45 => Reader::Fast,
        drawn if drawn < 0.8 || !offered.mixed => Reader::RealTime,
        drawn if drawn < 0.85 => Reader::Stopping(after_s),
        drawn if drawn < 0.9 => Reader::Stalling { after_s, for_s: random.between(1.0, 25.0) },
        drawn if drawn < 0.95 => Reader::Vanishing(after_s),
        _ => Reader::Cancelling(if random.unit() < 0.3 { 0.0 } else { after_s }),
    };
    Client {
        at: Duration::from_secs_f64(at),
        kind,
        chars: random.log_between(TEXT.0, TEXT.1) as usize,
        reader,
        returns: if random.unit() < 0.4 { 2 } else { 0 },
        seed: random.next() >> 16,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pattern_offers_the_same_load() {
        for pattern in [Pattern::Poisson, Pattern::Bursts, Pattern::Diurnal] {
            let times = arrivals(&mut Random::new(3, 1), pattern, 0.5, 60_000.0);
            assert!((times.len() as f64 / 120_000.0 - 1.0).abs() < 0.05, "{pattern:?}: {}", times.len());
        }
    }

    #[test]
    fn clients_repeat_with_their_seed_and_offer_the_streams_asked_for() {
        let offered = Offered { streams: 5.0, mixed: true, chats: true };
        let length = Duration::from_secs(30_000);
        let all = clients(4, length, offered);
        assert_eq!(all, clients(4, length, offered));
        let speech = all.iter().filter(|client| client.kind == Kind::Speech);
        let audio_s: f64 = speech.map(|client| client.chars as f64 / CHARS_PER_S).sum();
        let streams = audio_s / length.as_secs_f64();
        assert!((streams / 5.0 - 1.0).abs() < 0.07, "{streams}");
    }
}
