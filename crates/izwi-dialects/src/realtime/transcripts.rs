//! The transcripts of what the user says, one for each item of audio: deltas while it is said, the whole text once it is
//! committed and transcribed. Knows no audio.

use std::collections::VecDeque;
use std::sync::Arc;

use izwi_core::engine::{Priority, StreamingOutput};
use izwi_server::dto::transcription::DurationUsage;
use izwi_server::live::{LiveEvent, LiveReply, LiveSettings, LiveTranscriber};
use izwi_server::transcription::TextDeltas;
use izwi_server::turns::Heard;
use izwi_server::ws::outbox::Outbox;
use izwi_server::ws::protocol::{Job, Outcome, Protocol};
use izwi_server::{ApiError, AppState, Lease};
use izwi_types::{ModelInfo, Transcriber};

use super::config::Transcription;
use super::events::{ServerEvent, emit};
use super::refusal::Refusal;
use super::response::Transcribing;

/// New audio from one transcript to the next where only the model reads them, in milliseconds: besides, there is one in each lull.
const UNTOLD_LATENCY_MS: u64 = 5_000;

/// The transcription for a chat model that reads, where the client has not asked for one.
pub(super) fn untold(transcriber: &Transcriber, asr: &ModelInfo) -> Transcription {
    let settings = LiveSettings {
        language: transcriber.language.clone(),
        latency_ms: asr.live_windows.then_some(UNTOLD_LATENCY_MS),
        priority: Priority::High,
        ..LiveSettings::default()
    };
    Transcription { model: Some(transcriber.model.clone()), settings, is_told: false }
}

pub(super) struct Transcripts {
    transcriber: LiveTranscriber,
    /// Keeps the model loaded.
    _engine: Arc<Lease>,
    /// What it was made of.
    config: Transcription,
    /// Those that are not completed, in order.
    transcripts: VecDeque<Transcript>,
    /// How many turns have begun.
    turns: u64,
    /// Whether no more is transcribed.
    is_retired: bool,
}

/// The transcript of an item: of some turns of the transcriber.
struct Transcript {
    item_id: String,
    /// Its first turn.
    from: u64,
    /// The first turn after it, and how much audio was committed; `None` before that.
    committed: Option<(u64, u64)>,
    deltas: TextDeltas,
    failure: Option<Refusal>,
}

/// A transcript that is completed: the item, and its text or why there is none.
pub(super) struct Completed {
    pub(super) item_id: String,
    pub(super) duration_ms: u64,
    pub(super) text: Result<String, Refusal>,
    /// Whether the client asked for it.
    pub(super) is_told: bool,
}

impl Transcripts {
    /// The transcripts of audio from `origin_ms` on.
    ///
    /// # Errors
    /// The model does not support a setting; the error names it.
    pub(super) fn new(
        state: &AppState,
        engine: &Arc<Lease>,
        config: &Transcription,
        origin_ms: u64,
    ) -> Result<Self, Refusal> {
        let transcriber = LiveTranscriber::new(state, engine, config.settings.clone(), origin_ms);
        let transcriber = transcriber.map_err(|error| {
            let mut refusal = Refusal::from(error);
            if let Some(param) = &mut refusal.param {
                param.insert_str(0, "session.audio.input.transcription.");
            }
            refusal
        })?;
        Ok(Self {
            transcriber,
            _engine: Arc::clone(engine),
            config: config.clone(),
            transcripts: VecDeque::new(),
            turns: 0,
            is_retired: false,
        })
    }

    pub(super) fn is_of(&self, config: &Transcription) -> bool {
        !self.is_retired && self.config == *config
    }

    /// Whether nothing is said, waits or is being transcribed.
    pub(super) fn is_idle(&self) -> bool {
        self.transcripts.is_empty() && !self.transcriber.has_speech() && !self.transcriber.is_running()
    }

    /// Whether one is of an item that has all its audio.
    pub(super) fn has_committed(&self) -> bool {
        self.transcripts.iter().any(|transcript| transcript.committed.is_some())
    }

    /// What is said so far, where the turn may be about to end: once for each lull.
    pub(super) fn take_lull_text(&mut self) -> Option<String> {
        let is_open = |transcript: &Transcript| transcript.committed.is_none();
        if self.is_retired || self.transcripts.len() != 1 || !self.transcripts.iter().all(is_open) {
            return None;
        }
        self.transcriber.take_lull_text()
    }

    /// Transcribes no more: what is not completed is dropped.
    pub(super) fn retire(&mut self) {
        self.is_retired = true;
        self.clear();
    }

    pub(super) fn is_retired(&self) -> bool {
        self.is_retired
    }

    /// Makes room for audio that comes.
    ///
    /// # Errors
    /// More audio waits than may, or than there is memory for.
    pub(super) fn admit(&mut self, ms: u64) -> Result<(), ApiError> {
        self.transcriber.admit(ms)
    }

    /// Takes audio, after its turns were told to [`Self::begin`] and [`Self::commit`].
    ///
    /// # Errors
    /// There is no memory for it.
    pub(super) fn hear(&mut self, heard: &Heard, out: &mut Outbox) -> Result<(), ApiError> {
        let events = self.transcriber.hear(heard)?;
        self.tell(events, out);
        Ok(())
    }

    /// A turn begins that belongs to an item.
    pub(super) fn begin(&mut self, item_id: &str) {
        if self.transcripts.back().is_none_or(|last| last.item_id != item_id) {
            self.open(item_id);
        }
        self.turns += 1;
    }

    /// An item has all its audio.
    pub(super) fn commit(&mut self, item_id: &str, duration_ms: u64) {
        if self.transcripts.back().is_none_or(|last| last.item_id != item_id) {
            self.open(item_id);
        }
        if let Some(last) = self.transcripts.back_mut() {
            last.committed = Some((self.turns, duration_ms));
        }
    }

    fn open(&mut self, item_id: &str) {
        // An item that was never committed has no transcript.
        self.discard();
        self.transcripts.push_back(Transcript {
            item_id: item_id.to_owned(),
            from: self.turns,
            committed: None,
            deltas: TextDeltas::default(),
            failure: None,
        });
    }

    /// Forgets the item that is not committed.
    pub(super) fn discard(&mut self) {
        self.transcripts.pop_back_if(|last| last.committed.is_none());
    }

    pub(super) fn next_job<P: Protocol>(
        &mut self,
        wrap: impl FnOnce(LiveReply) -> P::Reply,
    ) -> Option<Result<Job<P>, ApiError>> {
        let job = self.transcriber.next_job(wrap)?;
        if let Err(error) = &job {
            self.transcripts
                .iter_mut()
                .for_each(|transcript| transcript.failure = Some(error.clone().into()));
        }
        Some(job)
    }

    pub(super) fn deliver(&mut self, reply: &mut LiveReply, chunk: StreamingOutput, out: &mut Outbox) {
        let events = self.transcriber.deliver(reply, chunk);
        self.tell(events, out);
    }

    /// Takes the end of a job.
    pub(super) fn end(&mut self, reply: Transcribing, outcome: &Outcome, out: &mut Outbox) {
        let Transcribing { live, failure } = reply;
        let turn = self.transcriber.ended();
        let is_repeated = live.is_repeated();
        let events = self.transcriber.end(live, outcome);
        if let Some(transcript) = self.of_turn(turn) {
            match failure {
                // What a later step transcribes has not failed.
                None if outcome.is_complete() && is_repeated => transcript.failure = None,
                None if outcome.is_complete() => {}
                failure => transcript.failure = failure.or(Some(ApiError::Draining.into())),
            }
        }
        self.tell(events, out);
    }

    fn of_turn(&mut self, turn: u64) -> Option<&mut Transcript> {
        let has_turn = |transcript: &&mut Transcript| {
            transcript.from <= turn && transcript.committed.is_none_or(|(until, _)| turn < until)
        };
        self.transcripts.iter_mut().find(has_turn)
    }

    fn tell(&mut self, events: Vec<LiveEvent>, out: &mut Outbox) {
        let is_told = self.config.is_told;
        for event in events {
            let LiveEvent::Committed { turn, text, .. } = event else { continue };
            let Some(transcript) = self.of_turn(turn) else { continue };
            let delta = transcript.deltas.push(&text);
            if let Some(delta) = delta.filter(|_| is_told) {
                let item_id = &transcript.item_id;
                emit(ServerEvent::TranscriptionDelta { item_id, content_index: 0, delta: &delta }, out);
            }
        }
    }

    /// The next transcript of a committed item whose turns are all transcribed.
    pub(super) fn next_completed(&mut self) -> Option<Completed> {
        let ended = self.transcriber.ended();
        let (until, duration_ms) = self.transcripts.front()?.committed?;
        if until > ended {
            return None;
        }
        let Transcript { item_id, deltas, failure, .. } = self.transcripts.pop_front()?;
        let text = failure.map_or_else(|| Ok(deltas.into_text()), Err);
        Some(Completed { item_id, duration_ms, text, is_told: self.config.is_told })
    }

    /// Drops what is not completed. False if there was nothing.
    pub(super) fn clear(&mut self) -> bool {
        let had_any = !self.transcripts.is_empty();
        self.transcripts.clear();
        self.transcriber.clear() | had_any
    }
}

impl Completed {
    pub(super) fn tell(&self, out: &mut Outbox) {
        let (item_id, content_index) = (self.item_id.as_str(), 0);
        let usage = DurationUsage::new(self.duration_ms as f64 / 1_000.0);
        emit(
            match &self.text {
                Ok(transcript) => {
                    ServerEvent::TranscriptionCompleted { item_id, content_index, transcript, usage }
                }
                Err(error) => ServerEvent::TranscriptionFailed { item_id, content_index, error },
            },
            out,
        );
    }
}
