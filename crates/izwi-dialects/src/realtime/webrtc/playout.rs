//! The playout queue: what is still to be played of a session's answers, packet by packet. Knows no network and no clock.

use std::collections::VecDeque;

use izwi_audio::opus_packets::{PACKET_SAMPLES, RATE_HZ};

/// Packets that must be there before an answer is played, unless it is whole: what the engine is ahead at least.
const START_PACKETS: usize = 3;
/// Samples that wait to be played, beyond which no more are taken from the session: a minute.
const MAX_WAITING: usize = 60 * RATE_HZ as usize;

/// The part of an item that is audio.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) response_id: String,
    pub(super) item_id: String,
    pub(super) content_index: u64,
}

/// Something that clients are told.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum PlayoutEvent {
    /// The first sample of this response is played.
    Started(String),
    /// The last one was.
    Stopped(String),
}

/// An answer that was truncated.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Truncated {
    pub(super) place: Place,
    /// How much of it was played.
    pub(super) audio_end_ms: u64,
}

struct Segment {
    place: Place,
    samples: VecDeque<f32>,
    played: u64,
    /// Whether all of its samples have come.
    is_whole: bool,
}

/// The audio of answers that waits to be played, in order.
#[derive(Default)]
pub(super) struct PlayoutQueue {
    segments: VecDeque<Segment>,
    /// Whether packets go out one after another.
    is_playing: bool,
    /// The response whose further audio is not wanted.
    cleared: Option<String>,
}

impl PlayoutQueue {
    /// Adds samples.
    pub(super) fn push(&mut self, place: Place, samples: impl IntoIterator<Item = f32>) {
        if self.cleared.as_ref() == Some(&place.response_id) {
            return;
        }
        match self.segments.back_mut().filter(|last| last.place == place) {
            Some(last) => last.samples.extend(samples),
            None => self.segments.push_back(Segment {
                place,
                samples: samples.into_iter().collect(),
                played: 0,
                is_whole: false,
            }),
        }
    }

    /// Notes that all audio of a response has come.
    pub(super) fn finish(&mut self, response_id: &str) {
        for segment in self.segments.iter_mut().filter(|each| each.place.response_id == response_id) {
            segment.is_whole = true;
        }
    }

    /// Whether as much waits as may wait.
    pub(super) fn is_full(&self) -> bool {
        self.segments.iter().map(|segment| segment.samples.len()).sum::<usize>() >= MAX_WAITING
    }

    /// Whether a packet can be played now.
    pub(super) fn is_ready(&self) -> bool {
        let least = if self.is_playing { 1 } else { START_PACKETS };
        self.segments
            .front()
            .is_some_and(|first| first.is_whole || first.samples.len() >= least * PACKET_SAMPLES)
    }

    /// The next packet, and what is told before and behind it. There is none where the next samples have not come.
    pub(super) fn next(&mut self) -> (Option<Vec<f32>>, Vec<PlayoutEvent>) {
        let mut events = Vec::new();
        if !self.is_ready() {
            self.is_playing = false;
            return (None, events);
        }
        self.is_playing = true;
        let Some(first) = self.segments.front_mut() else { return (None, events) };
        if first.played == 0 && !first.samples.is_empty() {
            events.push(PlayoutEvent::Started(first.place.response_id.clone()));
        }
        let length = first.samples.len().min(PACKET_SAMPLES);
        let mut packet: Vec<f32> = first.samples.drain(..length).collect();
        first.played += length as u64;
        packet.resize(PACKET_SAMPLES, 0.0);
        if first.is_whole && first.samples.is_empty() {
            if first.played > 0 {
                events.push(PlayoutEvent::Stopped(first.place.response_id.clone()));
            }
            self.segments.pop_front();
        }
        ((length > 0).then_some(packet), events)
    }

    /// Stops at once. Returns what was truncated; what was played whole is none of it.
    pub(super) fn clear(&mut self) -> Vec<Truncated> {
        self.is_playing = false;
        if let Some(last) = self.segments.back().filter(|last| !last.is_whole) {
            self.cleared = Some(last.place.response_id.clone());
        }
        let truncated = |Segment { place, played, .. }| Truncated {
            place,
            audio_end_ms: played * 1_000 / u64::from(RATE_HZ),
        };
        self.segments.drain(..).map(truncated).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(response: &str) -> Place {
        Place { response_id: response.to_owned(), item_id: format!("item of {response}"), content_index: 0 }
    }

    fn samples(count: usize) -> impl Iterator<Item = f32> {
        (0..count).map(|at| at as f32)
    }

    #[test]
    fn answers_are_played_in_order_and_their_ends_are_told() {
        let mut playout = PlayoutQueue::default();
        playout.push(place("a"), samples(1_000));
        assert!(!playout.is_ready(), "too little to begin with");
        assert_eq!(playout.next(), (None, vec![]));
        playout.push(place("a"), samples(440));
        let (packet, events) = playout.next();
        assert_eq!((packet.unwrap()[479], events), (479.0, vec![PlayoutEvent::Started("a".to_owned())]));
        assert_eq!(playout.next().1, vec![]);
        assert_eq!(playout.next().1, vec![]);
        assert_eq!(playout.next(), (None, vec![]), "the next samples have not come");
        playout.push(place("a"), samples(10));
        playout.push(place("b"), samples(5));
        assert!(!playout.is_ready());
        playout.finish("a");
        let (packet, events) = playout.next();
        assert_eq!((packet.as_ref().unwrap().len(), packet.unwrap()[10]), (480, 0.0));
        assert_eq!(events, vec![PlayoutEvent::Stopped("a".to_owned())]);
        playout.finish("b");
        let (_, events) = playout.next();
        assert_eq!(
            events,
            vec![PlayoutEvent::Started("b".to_owned()), PlayoutEvent::Stopped("b".to_owned())]
        );
        assert!(!playout.is_ready());
    }

    #[test]
    fn what_is_truncated_says_how_much_was_played_and_the_rest_of_it_is_not_wanted() {
        let mut playout = PlayoutQueue::default();
        playout.push(place("a"), samples(4_800));
        playout.next();
        playout.next();
        assert_eq!(playout.clear(), vec![Truncated { place: place("a"), audio_end_ms: 40 }]);
        playout.push(place("a"), samples(4_800));
        assert!(!playout.is_ready() && playout.clear().is_empty());
        playout.push(place("b"), samples(4_800));
        assert!(playout.is_ready());
        assert_eq!(playout.clear(), vec![Truncated { place: place("b"), audio_end_ms: 0 }]);
    }

    #[test]
    fn an_answer_without_audio_is_not_told() {
        let mut playout = PlayoutQueue::default();
        playout.push(place("a"), samples(0));
        playout.finish("a");
        assert_eq!(playout.next(), (None, vec![]));
        assert!(!playout.is_ready());
    }

    #[test]
    fn what_waits_is_bounded() {
        let mut playout = PlayoutQueue::default();
        playout.push(place("a"), samples(MAX_WAITING - 1));
        assert!(!playout.is_full());
        playout.push(place("a"), samples(1));
        assert!(playout.is_full());
    }
}
