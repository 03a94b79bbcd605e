//! A live transcriber with the audio that it hears: of sessions that take raw audio and find its turns themselves.

use izwi_core::engine::StreamingOutput;

use super::transcriber::{LiveReply, LiveTranscriber};
use super::turn::LiveEvent;
use crate::error::ApiError;
use crate::turns::{Deciding, TurnInput};
use crate::ws::protocol::{Job, Outcome, Protocol};

/// What a job of a [`LiveListener`] finds out.
#[derive(Debug)]
pub enum ListenerReply {
    /// What is said.
    Transcript(LiveReply),
    /// Whether a turn has ended.
    Turn(Deciding),
}

/// Transcribes one stream of audio, and asks a turn model where turns end, if there is one.
#[derive(Debug)]
pub struct LiveListener {
    input: TurnInput,
    transcriber: LiveTranscriber,
    /// Whether the stream ends with the audio that waits for a decision.
    is_finishing: bool,
}

impl LiveListener {
    /// How many of its jobs run at once: a transcript, a decision, and who speaks.
    pub const MAX_JOBS: usize = 3;

    /// A transcriber of this audio.
    pub fn new(input: TurnInput, transcriber: LiveTranscriber) -> Self {
        Self { input, transcriber, is_finishing: false }
    }

    /// The transcriber.
    pub fn transcriber(&self) -> &LiveTranscriber {
        &self.transcriber
    }

    /// Length of the stream that was heard so far.
    pub fn now_ms(&self) -> u64 {
        self.input.now_ms()
    }

    /// As [`LiveTranscriber::push`].
    ///
    /// # Errors
    /// As there.
    pub fn push(&mut self, bytes: &[u8]) -> Result<Vec<LiveEvent>, ApiError> {
        self.transcriber.push(&mut self.input, bytes)
    }

    /// As [`LiveTranscriber::end_turn`].
    ///
    /// # Errors
    /// As there.
    pub fn end_turn(&mut self) -> Result<Vec<LiveEvent>, ApiError> {
        self.transcriber.end_turn(&mut self.input)
    }

    /// Ends the turn in progress at the end of the stream: at once, or after what waits for a decision, so that turns do not depend on
    /// how fast the audio came.
    ///
    /// # Errors
    /// As of [`Self::end_turn`].
    pub fn finish(&mut self) -> Result<Vec<LiveEvent>, ApiError> {
        self.is_finishing = self.input.is_waiting();
        if self.is_finishing { Ok(Vec::new()) } else { self.close() }
    }

    /// Ends the turn in progress at the end of the stream, whatever waits.
    ///
    /// # Errors
    /// As of [`Self::end_turn`].
    pub fn close(&mut self) -> Result<Vec<LiveEvent>, ApiError> {
        let events = self.end_turn();
        self.transcriber.finish();
        events
    }

    /// Whether a turn continues or is not transcribed to its end, or audio waits.
    pub fn has_speech(&self) -> bool {
        self.is_finishing || self.transcriber.has_speech()
    }

    /// The next job; `wrap` makes the session's reply of its own.
    pub fn next_job<P: Protocol>(
        &mut self,
        wrap: impl Fn(ListenerReply) -> P::Reply,
    ) -> Option<Result<Job<P>, ApiError>> {
        match self.input.decide(|deciding| wrap(ListenerReply::Turn(deciding))) {
            Some(job) => Some(Ok(job)),
            None => self.transcriber.next_job(|live| wrap(ListenerReply::Transcript(live))),
        }
    }

    /// Takes the next chunk of a job.
    pub fn deliver(&mut self, reply: &mut ListenerReply, chunk: StreamingOutput) -> Vec<LiveEvent> {
        match reply {
            ListenerReply::Transcript(live) => self.transcriber.deliver(live, chunk),
            ListenerReply::Turn(deciding) => {
                deciding.hear(&chunk);
                Vec::new()
            }
        }
    }

    /// Takes the end of a job.
    pub fn end(&mut self, reply: ListenerReply, outcome: &Outcome) -> Vec<LiveEvent> {
        match reply {
            ListenerReply::Transcript(live) => self.transcriber.end(live, outcome),
            ListenerReply::Turn(mut deciding) => {
                deciding.end(outcome);
                let mut events = self.transcriber.decided(&mut self.input, &deciding);
                if self.is_finishing {
                    match self.finish() {
                        Ok(last) => events.extend(last),
                        Err(error) => tracing::warn!(%error, "the last audio is not transcribed"),
                    }
                }
                events
            }
        }
    }

    /// As [`LiveTranscriber::clear`]; no more speakers are told.
    pub fn clear(&mut self) -> bool {
        self.is_finishing = false;
        self.transcriber.clear_speakers();
        self.transcriber.clear()
    }
}
