//! One request for a transcript, from its first audio on, and the events that answer it: `transcript-start`,
//! `transcript-chunk` as text is committed, also while audio arrives, `transcript` with the whole text for clients that know
//! no other, `transcript-stop`. Knows no socket.

use izwi_core::engine::StreamingOutput;
use izwi_server::extract::non_blank;
use izwi_server::live::{LiveEvent, LiveReply, LiveSettings, LiveTranscriber};
use izwi_server::transcription::TextDeltas;
use izwi_server::turns::{PcmEncoding, TurnInput, TurnOptions};
use izwi_server::ws::outbox::Outbox;
use izwi_server::ws::protocol::{Job, Outcome, Protocol};
use izwi_server::{ApiError, AppState, Lease};
use serde_json::{Map, Value, json};

use super::event::{AudioFormat, TranscribeFields, event};

/// The most characters of names and terms that count, and the most of each: clients send all they know.
const MAX_LIKELY_CHARS: usize = 400;
const MAX_LIKELY: usize = 128;
/// A pause within a recording that is left out of its audio.
const PAUSE_MS: u64 = 2_000;

pub(super) struct Transcription {
    /// Keeps the model loaded.
    _engine: Lease,
    format: AudioFormat,
    input: TurnInput,
    transcriber: LiveTranscriber,
    /// The language that was asked for, or detected.
    language: Option<String>,
    deltas: TextDeltas,
    has_started: bool,
    /// Whether audio may follow.
    pub(super) is_open: bool,
    /// Whether the client has begun another one instead.
    is_abandoned: bool,
}

impl Transcription {
    pub(super) fn new(
        state: &AppState,
        engine: Lease,
        fields: TranscribeFields,
        format: AudioFormat,
    ) -> Result<Self, ApiError> {
        let language = non_blank(fields.language);
        let words = fields.transcript_names.into_iter().chain(fields.transcript_terms).flatten();
        let likely = LiveSettings::likely(first_words(words), &engine);
        let settings = LiveSettings { language: language.clone(), ..likely };
        let max_turn_ms = LiveTranscriber::max_turn_ms(&engine);
        let turns = TurnOptions { silence_duration_ms: PAUSE_MS, max_turn_ms, ..TurnOptions::default() };
        Ok(Self {
            format,
            input: TurnInput::with_turns((PcmEncoding::S16Le, format.rate_hz), &state.vad(), turns, None)?,
            transcriber: LiveTranscriber::new(state, &engine, settings, 0)?,
            _engine: engine,
            language,
            deltas: TextDeltas::default(),
            has_started: false,
            is_open: true,
            is_abandoned: false,
        })
    }

    /// Takes a chunk of whole frames.
    pub(super) fn push(
        &mut self,
        format: AudioFormat,
        audio: &[u8],
        out: &mut Outbox,
    ) -> Result<(), ApiError> {
        if format != self.format {
            let message =
                "the format of the audio changes within a recording; send audio-stop and audio-start between";
            return Err(ApiError::OutOfOrder(message));
        }
        let events = self.transcriber.push(&mut self.input, &format.mono(audio)?)?;
        self.tell(events, out);
        Ok(())
    }

    /// Takes no more audio.
    pub(super) fn close(&mut self, out: &mut Outbox) -> Result<(), ApiError> {
        self.is_open = false;
        let events = self.transcriber.end_turn(&mut self.input)?;
        self.tell(events, out);
        Ok(())
    }

    /// Takes no more audio, and tells nothing.
    pub(super) fn abandon(&mut self) {
        (self.is_open, self.is_abandoned) = (false, true);
        self.transcriber.clear();
    }

    /// The next job, if there is enough audio.
    pub(super) fn next_job<P: Protocol>(
        &mut self,
        wrap: impl FnOnce(LiveReply) -> P::Reply,
    ) -> Option<Result<Job<P>, ApiError>> {
        self.transcriber.next_job(wrap)
    }

    /// Writes the events of one chunk.
    pub(super) fn deliver(&mut self, reply: &mut LiveReply, chunk: StreamingOutput, out: &mut Outbox) {
        let events = self.transcriber.deliver(reply, chunk);
        self.tell(events, out);
    }

    /// Writes the events of the end of a job.
    pub(super) fn end(&mut self, reply: LiveReply, outcome: &Outcome, out: &mut Outbox) {
        let events = self.transcriber.end(reply, outcome);
        self.tell(events, out);
    }

    fn tell(&mut self, events: Vec<LiveEvent>, out: &mut Outbox) {
        for told in events {
            match told {
                LiveEvent::Committed { text, .. } => {
                    let Some(text) = self.deltas.push(&text) else { continue };
                    self.start(out);
                    out.binary(event("transcript-chunk", &json!({"text": text}), &[]));
                }
                LiveEvent::Ended { language, .. } => self.language = language.or(self.language.take()),
                LiveEvent::Started { .. } | LiveEvent::Partial { .. } | LiveEvent::Speakers { .. } => {}
            }
        }
    }

    fn start(&mut self, out: &mut Outbox) {
        if !std::mem::replace(&mut self.has_started, true) {
            out.binary(event("transcript-start", &self.with_language(Map::new()), &[]));
        }
    }

    /// Whether everything was transcribed, once no job runs.
    pub(super) fn is_over(&self) -> bool {
        !self.is_open && !self.transcriber.has_speech()
    }

    /// Writes the last events.
    pub(super) fn finish(mut self, out: &mut Outbox) {
        if self.is_abandoned {
            return;
        }
        self.start(out);
        let text = Value::String(std::mem::take(&mut self.deltas).into_text());
        let transcript = self.with_language(Map::from_iter([("text".to_owned(), text)]));
        out.binary(event("transcript", &transcript, &[]));
        out.binary(event("transcript-stop", &json!({}), &[]));
    }

    fn with_language(&self, mut data: Map<String, Value>) -> Map<String, Value> {
        if let Some(language) = &self.language {
            data.insert("language".to_owned(), Value::String(language.clone()));
        }
        data
    }
}

/// Words that are likely, the first of them if there are too many.
fn first_words(words: impl Iterator<Item = String>) -> Vec<String> {
    let mut chars = 0;
    let words = words.map(|word| word.trim().to_owned()).filter(|word| !word.is_empty());
    let words = words.filter(|word| word.chars().count() <= MAX_LIKELY).take_while(|word| {
        chars += word.chars().count() + 2;
        chars <= MAX_LIKELY_CHARS
    });
    words.take(MAX_LIKELY).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_words_count() {
        let of = |words: &[&str]| first_words(words.iter().map(|word| (*word).to_owned()));
        assert!(of(&[]).is_empty());
        assert_eq!(of(&[" ", "Anna ", &"a".repeat(129), "Küche"]), ["Anna", "Küche"]);
        assert_eq!(of(&["twenty letters long."; 100]).len(), 18);
        assert_eq!(of(&["a"; 200]).len(), 128);
    }
}
