//! The WebSocket `/v1/speak`: text in, raw audio out. `Flush` speaks what there is and is answered after its audio.
//!
//! Text is spoken as it arrives where the model appends text, else in complete sentences. Messages behind a `Flush` wait
//! until it is answered, so that each answer stands after its audio; `Clear` drops them, and the audio that is not sent.

use std::collections::VecDeque;
use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use izwi_audio::encode::EncodeError;
use izwi_core::engine::{Engine, RequestId, StreamingOutput};
use izwi_server::encoding::EncodedUtterance;
use izwi_server::extract::{parse_json, required};
use izwi_server::openapi::SessionRefusals;
use izwi_server::ws::SessionUpgrade;
use izwi_server::ws::outbox::Outbox;
use izwi_server::ws::protocol::{Action, ClientMessage, Identity, Job, Outcome, Protocol};
use izwi_server::ws::speech::TextQueue;
use izwi_server::{ApiError, AppState};
use serde::{Deserialize, Serialize};

use super::params::Params;
use super::speak::{Output, SpeakQuery, Speaker};

/// The most messages that wait for the answer to a flush.
const MAX_WAITING: usize = 32;

/// What the URL says.
pub(super) struct Opening {
    speaker: Speaker,
    output: Output,
}

/// Text in, raw audio out, as Deepgram, over a WebSocket
///
/// The upgrade of a WebSocket. Its messages are Deepgram's; docs/compatibility.md lists them.
#[utoipa::path(
    get,
    path = "/v1/speak",
    tag = "dialects",
    params(SpeakQuery),
    responses((status = 101, description = "The connection is a WebSocket."), SessionRefusals),
)]
pub(super) async fn open(
    State(state): State<AppState>,
    params: Params,
    upgrade: SessionUpgrade,
) -> Result<Response, ApiError> {
    let upgrade = upgrade.checked()?;
    let output = Output::of_stream(&params)?;
    let speaker = Speaker::load(&state, &params).await?;
    output.encoder(speaker.engine.profile().info.sample_rate_hz)?;
    let ignored = speaker.ignored(&params);
    state.ignored_log().note(&ignored);
    let mut response = upgrade.open::<Speak>(Opening { speaker, output })?;
    response.headers_mut().extend(ignored.headers());
    Ok(response)
}

/// A message of the client.
#[derive(Debug)]
pub(super) enum Frame {
    Speak(String),
    Flush,
    Clear,
    Close,
}

#[derive(Debug, Deserialize)]
#[serde(expecting = "a JSON object")]
struct FrameFields {
    r#type: Option<String>,
    text: Option<String>,
}

#[derive(Debug, Serialize)]
#[serde(tag = "type")]
enum Answer<'a> {
    Metadata { request_id: &'a str, model_name: &'a str, model_version: &'static str, model_uuid: &'a str },
    Flushed { sequence_id: u64 },
    Cleared { sequence_id: u64 },
    Warning { description: String, code: String },
}

/// State of a session.
pub(super) struct Speak {
    state: AppState,
    id: RequestId,
    speaker: Arc<Speaker>,
    output: Output,
    text: TextQueue,
    /// Messages after a flush that is not answered.
    waiting: VecDeque<Frame>,
    is_flushing: bool,
    is_generating: bool,
    /// Number of the next answer to a flush.
    sequence_id: u64,
}

impl Protocol for Speak {
    const KIND: &'static str = "deepgram-speak";
    type Frame = Frame;
    type Model = ();
    type Reply = EncodedUtterance;
    type Opening = Opening;

    fn new(state: &AppState, identity: Identity, opening: Opening) -> Self {
        let Opening { speaker, output } = opening;
        let mut text = TextQueue::new(state.config());
        if speaker.options.appends_text(&speaker.engine) {
            text.set_live();
        }
        Self {
            state: state.clone(),
            id: identity.id,
            speaker: Arc::new(speaker),
            output,
            text,
            waiting: VecDeque::new(),
            is_flushing: false,
            is_generating: false,
            sequence_id: 0,
        }
    }

    fn greet(&mut self, out: &mut Outbox) -> Result<Option<Frame>, String> {
        let model = self.speaker.model();
        out.frame(&Answer::Metadata {
            request_id: self.id.as_str(),
            model_name: model,
            model_version: env!("CARGO_PKG_VERSION"),
            model_uuid: model,
        });
        Ok(None)
    }

    fn parse(message: ClientMessage) -> Result<Frame, ApiError> {
        let ClientMessage::Text(text) = message else { return Err(ApiError::BinaryFrame) };
        let fields: FrameFields = parse_json(text.as_bytes())?;
        match fields.r#type.as_deref() {
            Some("Speak") => Ok(Frame::Speak(required("text", fields.text)?)),
            Some("Flush") => Ok(Frame::Flush),
            Some("Clear") => Ok(Frame::Clear),
            Some("Close") => Ok(Frame::Close),
            other => Err(ApiError::unknown_frame(other.unwrap_or_default(), "Speak, Flush, Clear, Close")),
        }
    }

    fn receive(
        &mut self,
        frame: Frame,
        _model: Option<Result<(), ApiError>>,
        out: &mut Outbox,
    ) -> Result<Action, ApiError> {
        match frame {
            Frame::Clear => {
                self.drop_queued();
                out.frame(&Answer::Cleared { sequence_id: self.sequence_id });
                return Ok(Action::Interrupt);
            }
            frame if self.is_flushing => {
                if self.waiting.len() >= MAX_WAITING {
                    let message = format!("{MAX_WAITING} messages wait for the answer to Flush; wait for it");
                    return Err(ApiError::overloaded(message));
                }
                self.waiting.push_back(frame);
            }
            frame => self.take(frame)?,
        }
        self.settle(out);
        Ok(Action::None)
    }

    fn next_job(&mut self) -> Option<Result<Job<Self>, ApiError>> {
        let text = self.text.next_utterance()?;
        let encoded = match self.output.encoder(self.speaker.engine.profile().info.sample_rate_hz) {
            Ok(encoded) => encoded,
            Err(error) => {
                self.text.ended();
                return Some(Err(error));
            }
        };
        self.is_generating = true;
        let engine = Engine::clone(&self.speaker.engine);
        Some(Ok(Job::new(engine, text.request(&self.speaker.options), encoded)))
    }

    fn deliver(
        &mut self,
        encoded: &mut EncodedUtterance,
        chunk: StreamingOutput,
        out: &mut Outbox,
    ) -> Result<(), EncodeError> {
        let model = &self.speaker.engine.profile().model;
        for note in self.state.notes_on_text(model, &chunk.notes) {
            out.frame(&Answer::Warning { description: note.message, code: note.code.to_ascii_uppercase() });
        }
        let audio = encoded.encode(&chunk)?;
        if !audio.is_empty() {
            out.binary(audio);
        }
        Ok(())
    }

    fn end(&mut self, _encoded: EncodedUtterance, _outcome: Outcome, out: &mut Outbox) {
        self.text.ended();
        self.is_generating = false;
        self.settle(out);
    }

    fn drop_queued(&mut self) -> bool {
        self.is_flushing = false;
        let had_messages = !self.waiting.is_empty();
        let is_closing = self.waiting.iter().any(|frame| matches!(frame, Frame::Close));
        self.waiting.clear();
        let had_text = self.text.clear();
        if is_closing {
            self.text.finish();
        }
        had_text || had_messages
    }

    fn close_input(&mut self) {
        self.text.finish();
    }

    fn is_over(&self) -> bool {
        self.text.is_over() && self.waiting.is_empty()
    }

    fn write_error(&self, error: &ApiError, out: &mut Outbox) {
        out.frame(&Answer::Warning { description: error.message(), code: error.code().to_ascii_uppercase() });
    }
}

impl Speak {
    fn take(&mut self, frame: Frame) -> Result<(), ApiError> {
        self.text.check_open()?;
        match frame {
            Frame::Speak(text) => self.text.push(&text)?,
            Frame::Flush => {
                self.text.flush();
                self.is_flushing = true;
            }
            Frame::Close => self.close_input(),
            Frame::Clear => {}
        }
        Ok(())
    }

    /// Answers a flush whose audio was sent, and takes the messages after it.
    fn settle(&mut self, out: &mut Outbox) {
        while self.is_flushing && !self.is_generating && self.text.remaining().all(str::is_empty) {
            out.frame(&Answer::Flushed { sequence_id: self.sequence_id });
            self.sequence_id += 1;
            self.is_flushing = false;
            while !self.is_flushing
                && let Some(frame) = self.waiting.pop_front()
            {
                if let Err(error) = self.take(frame) {
                    error.count();
                    self.write_error(&error, out);
                }
            }
        }
    }
}
