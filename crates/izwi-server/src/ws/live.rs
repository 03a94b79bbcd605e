//! The protocol of `/v1/audio/transcriptions/stream`: audio in, its transcript out while it is spoken.
//!
//! Choices of the protocol:
//! - Binary frames are mono audio in `encoding` at `sample_rate`, by default 16-bit little-endian PCM at 16 kHz.
//! - Voice activity detection finds turns. What is between them becomes no text. With `semantic_vad` a turn model decides in a pause
//!   whether it ends the turn; `session.created` tells what is in effect.
//! - The transcript of a turn is the concatenation of its `committed` texts: they never change. `partial` is what follows
//!   them for now; the next one replaces it.
//! - What `session.config` asks to rewrite, numbers and spoken commands, is rewritten before it is committed: words of a run
//!   that can go on are `partial` until then.
//! - `input.flush` ends the turn in progress, `input.done` the session once all turns are transcribed.
//! - A model that takes audio as it arrives gets a turn in one request, another one windows of it in steps.
//! - A step that fails is an `error`; the session continues, and a turn whose last step fails ends with what was committed.

mod parse;
mod setup;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use izwi_audio::encode::EncodeError;
use izwi_core::engine::{RequestId, StreamingOutput, Task};
use izwi_types::Eagerness;

use self::setup::{Models, Setup};
use super::frame;
use super::outbox::Outbox;
use super::protocol::{Action, ClientMessage, Identity, Job, Outcome, Protocol};
use crate::dto::live::{ClientFrame, ConfigFields, ServerFrame, Spoken};
use crate::dto::speech::WordTimes;
use crate::error::ApiError;
use crate::live::{ListenerReply, LiveEvent, LiveListener, LiveWord};
use crate::speakers::Speakers;
use crate::state::AppState;
use crate::turns::{Deciding, TurnModel};

/// State of a session.
pub(super) struct Live {
    state: AppState,
    id: RequestId,
    session: Option<Setup>,
    is_closed: bool,
}

impl Protocol for Live {
    const KIND: &'static str = "live";
    const MAX_GENERATIONS: usize = LiveListener::MAX_JOBS;
    type Frame = ClientFrame;
    type Model = Models;
    type Reply = ListenerReply;
    type Opening = ();

    fn new(state: &AppState, identity: Identity, (): ()) -> Self {
        Self { state: state.clone(), id: identity.id, session: None, is_closed: false }
    }

    fn parse(message: ClientMessage) -> Result<ClientFrame, ApiError> {
        match message {
            ClientMessage::Text(text) => parse::parse(&text),
            ClientMessage::Binary(audio) => Ok(ClientFrame::Audio(audio)),
        }
    }

    fn is_immediate(frame: &ClientFrame) -> bool {
        matches!(frame, ClientFrame::Ping)
    }

    fn load_model(&self, frame: &ClientFrame) -> Option<BoxFuture<'static, Result<Models, ApiError>>> {
        if self.session.is_some() || self.is_closed {
            return None;
        }
        let (model, is_semantic, told_by, saved) = match frame {
            ClientFrame::Config(config) => {
                let (is_semantic, told_by) = (config.is_semantic(), config.speaker_model());
                (config.model.clone(), is_semantic, told_by, config.saved_speakers)
            }
            ClientFrame::Audio(_) => (None, false, None, None),
            _ => return None,
        };
        let state = self.state.clone();
        let loading = async move {
            let asr = state.lease(model.as_deref(), Task::Asr).await?;
            let turns = if is_semantic { TurnModel::lease(&state).await? } else { None };
            let speakers = match told_by {
                Some(Some(model)) => {
                    let model = state.lease(Some(&model), Task::Diarize).await?;
                    Some(Speakers::of(&state, model, saved).await?)
                }
                Some(None) => Some(Speakers::lease(&state, "speakers", saved).await?),
                None => None,
            };
            Ok(Models { asr, turns, speakers })
        };
        Some(loading.boxed())
    }

    fn receive(
        &mut self,
        frame: ClientFrame,
        model: Option<Result<Models, ApiError>>,
        out: &mut Outbox,
    ) -> Result<Action, ApiError> {
        match frame {
            ClientFrame::Config(fields) => self.configure(*fields, model, out)?,
            ClientFrame::Audio(audio) => {
                frame::check_open(self.is_closed)?;
                if self.session.is_none() {
                    self.configure(ConfigFields::default(), model, out)?;
                }
                self.hear(&audio, out)?;
            }
            ClientFrame::Flush => {
                frame::check_open(self.is_closed)?;
                if let Some(session) = &mut self.session {
                    session.end_turn(out)?;
                }
            }
            ClientFrame::Done => {
                frame::check_open(self.is_closed)?;
                if let Some(session) = &mut self.session {
                    let events = session.listener.finish()?;
                    session.tell(&events, out);
                }
                self.is_closed = true;
            }
            ClientFrame::Ping => out.reply(&ServerFrame::Pong),
        }
        Ok(Action::None)
    }

    fn next_job(&mut self) -> Option<Result<Job<Self>, ApiError>> {
        self.session.as_mut()?.listener.next_job(|reply| reply)
    }

    fn deliver(
        &mut self,
        reply: &mut ListenerReply,
        chunk: StreamingOutput,
        out: &mut Outbox,
    ) -> Result<(), EncodeError> {
        if let Some(session) = &mut self.session {
            let events = session.listener.deliver(reply, chunk);
            session.tell(&events, out);
        }
        Ok(())
    }

    fn end(&mut self, reply: ListenerReply, outcome: Outcome, out: &mut Outbox) {
        if let Some(session) = &mut self.session {
            let events = session.listener.end(reply, &outcome);
            session.tell(&events, out);
        }
    }

    fn drop_queued(&mut self) -> bool {
        self.session.as_mut().is_some_and(|session| session.listener.clear())
    }

    fn close_input(&mut self) {
        if let Some(session) = &mut self.session
            && let Err(error) = session.listener.close()
        {
            tracing::warn!(session = %self.id, %error, "the last audio is not transcribed");
        }
        self.is_closed = true;
    }

    fn is_over(&self) -> bool {
        self.is_closed && self.session.as_ref().is_none_or(|session| !session.listener.has_speech())
    }

    fn write_done(&self, out: &mut Outbox) {
        let ms = self.session.as_ref().map_or(0, |session| session.listener.now_ms());
        out.frame(&ServerFrame::Done { duration_s: ms as f64 / 1_000.0 });
    }

    fn write_error(&self, error: &ApiError, out: &mut Outbox) {
        frame::write_error(error, out);
    }

    fn write_failure(&self, reply: &mut ListenerReply, error: &ApiError, out: &mut Outbox) {
        match reply {
            ListenerReply::Turn(_) => Deciding::note_failure(error),
            ListenerReply::Transcript(_) => self.write_error(error, out),
        }
    }
}

impl Live {
    fn configure(
        &mut self,
        fields: ConfigFields,
        model: Option<Result<Models, ApiError>>,
        out: &mut Outbox,
    ) -> Result<(), ApiError> {
        if self.session.is_some() {
            return Err(frame::CONFIGURED);
        }
        frame::check_open(self.is_closed)?;
        let session = Setup::resolve(&self.state, fields, model.unwrap_or(Err(frame::NO_MODEL))?)?;
        let transcriber = session.listener.transcriber();
        out.reply(&ServerFrame::Created {
            session_id: self.id.as_str(),
            model: &transcriber.engine().profile().model,
            encoding: session.encoding,
            sample_rate: session.rate_hz,
            channels: 1,
            latency_ms: transcriber.latency_ms(),
            turn_detection: session.turns.type_name(),
            eagerness: session.turns.eagerness.map(Eagerness::name),
            silence_duration_ms: session.silence_ms,
        });
        self.session = Some(session);
        Ok(())
    }

    fn hear(&mut self, audio: &Bytes, out: &mut Outbox) -> Result<(), ApiError> {
        let Some(session) = &mut self.session else { return Err(frame::NO_MODEL) };
        let events = session.listener.push(audio)?;
        session.tell(&events, out);
        Ok(())
    }
}

impl Setup {
    fn end_turn(&mut self, out: &mut Outbox) -> Result<(), ApiError> {
        let events = self.listener.end_turn()?;
        self.tell(&events, out);
        Ok(())
    }

    fn tell(&self, events: &[LiveEvent], out: &mut Outbox) {
        for event in events {
            match event {
                LiveEvent::Started { turn, at_ms } => {
                    out.frame(&ServerFrame::Started { turn: *turn, at_ms: *at_ms })
                }
                LiveEvent::Partial { turn, words } => {
                    let text: String = words.iter().map(|word| word.text.as_str()).collect();
                    out.frame(&ServerFrame::Partial { turn: *turn, text: &text });
                }
                LiveEvent::Committed { turn, text, words } => {
                    let words = self.word_times.then(|| words.iter().filter_map(word_times).collect());
                    out.frame(&ServerFrame::Committed { turn: *turn, text, words });
                }
                LiveEvent::Speakers { turn, stretches } => {
                    let segments = stretches.iter().map(Spoken::from).collect();
                    out.frame(&ServerFrame::Speakers { turn: *turn, segments });
                }
                LiveEvent::Ended { turn, text, language, start_ms, end_ms } => {
                    let (language, start_ms, end_ms) = (language.as_deref(), *start_ms, *end_ms);
                    out.frame(&ServerFrame::TurnEnd { turn: *turn, text, language, start_ms, end_ms });
                }
            }
        }
    }
}

/// A word for a client; `None` for marks alone, which belong to the word before.
fn word_times(word: &LiveWord) -> Option<WordTimes<'_>> {
    let LiveWord { text, start_ms, end_ms, .. } = word;
    let has_sound = text.contains(char::is_alphanumeric);
    has_sound.then(|| WordTimes { text: text.trim(), start_ms: *start_ms, end_ms: *end_ms })
}
