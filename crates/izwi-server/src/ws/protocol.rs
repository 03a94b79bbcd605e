//! What a WebSocket dialect supplies to the session driver: its frames, and the state behind them.
//!
//! A protocol must not know the socket, the clocks or the engine's stream. It writes frames into an [`Outbox`].

use std::fmt;
use std::future::ready;
use std::time::Duration;

use axum::extract::ws::Utf8Bytes;
use bytes::Bytes;
use futures::future::BoxFuture;
use futures::{FutureExt, TryFutureExt};
use izwi_audio::encode::EncodeError;
use izwi_core::engine::types::audio_duration;
use izwi_core::engine::{
    Engine, EngineCoreRequest, FinishReason, PlaybackReport, RequestId, RequestStats, StreamingOutput,
};

use super::outbox::Outbox;
use crate::dto::session::Resume;
use crate::error::ApiError;
use crate::state::AppState;

/// A message of the client, within the size limit.
#[derive(Debug)]
pub enum ClientMessage {
    /// Text.
    Text(Utf8Bytes),
    /// Bytes.
    Binary(Bytes),
}

/// What names a session, and the secret that continues it.
#[derive(Debug)]
pub struct Identity {
    /// Names it in frames and in the log.
    pub id: RequestId,
    /// `None` if sessions cannot be continued.
    pub(crate) resume_token: Option<String>,
}

/// What the driver has to do after a frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Nothing.
    None,
    /// End the current generations and drop the jobs after them. Without a current generation it does nothing.
    Interrupt,
    /// End the current generations; the jobs after them stay. Without a current generation it does nothing.
    Cancel,
    /// End one generation, as [`Protocol::number`] tells it, if it is current.
    CancelOne(u64),
    /// Tell the engine how a generation is played.
    Played {
        /// The generation, as [`Protocol::number`] tells it.
        number: u64,
        /// What the client told of it.
        report: PlaybackReport,
    },
    /// Continue another session on this connection, in place of this one.
    Resume(Resume),
}

impl Action {
    /// Of a report of playback: the generation and the time that was played, if there is one, and the silence that was heard.
    pub(crate) fn played(played: Option<(u64, Duration)>, gap_ms: Option<u64>) -> Self {
        let silence = gap_ms.map(Duration::from_millis);
        let report = |played| PlaybackReport { played, silence };
        played.map_or(Self::None, |(number, played)| Self::Played { number, report: report(played) })
    }
}

/// Makes the request of a job whose input is ready.
pub(crate) type MakeRequest<P> = Box<dyn FnOnce(&mut P, &<P as Protocol>::Reply) -> EngineCoreRequest + Send>;

/// The next generation of a session.
pub struct Job<P: Protocol> {
    pub(crate) engine: Engine,
    /// Prepares what the request is made of.
    pub(crate) input: BoxFuture<'static, Result<MakeRequest<P>, ApiError>>,
    pub(crate) reply: P::Reply,
}

impl<P: Protocol> Job<P> {
    /// A job whose request is ready.
    pub fn new(engine: Engine, request: EngineCoreRequest, reply: P::Reply) -> Self {
        Self::prepared(engine, ready(Ok(request)), |_, _, request| request, reply)
    }

    /// A job whose request `make` makes of what takes time to prepare.
    pub fn prepared<I: Send + 'static>(
        engine: Engine,
        input: impl Future<Output = Result<I, ApiError>> + Send + 'static,
        make: impl FnOnce(&mut P, &P::Reply, I) -> EngineCoreRequest + Send + 'static,
        reply: P::Reply,
    ) -> Self {
        let input = input.map_ok(|input| -> MakeRequest<P> {
            Box::new(move |protocol, reply| make(protocol, reply, input))
        });
        Self { engine, input: input.boxed(), reply }
    }
}

impl<P: Protocol> fmt::Debug for Job<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Job").field("engine", &self.engine).finish_non_exhaustive()
    }
}

/// How a generation ended.
#[derive(Debug)]
pub enum Outcome {
    /// The engine sent its last chunk.
    Finished(Box<Finish>),
    /// The client interrupted it before the first chunk.
    Cancelled,
    /// It failed before the first chunk. [`Protocol::write_failure`] has been called.
    Failed,
}

impl Outcome {
    /// Whether the engine ended the generation as it was asked to.
    pub fn is_complete(&self) -> bool {
        let Self::Finished(finish) = self else { return false };
        !matches!(finish.reason, FinishReason::Error | FinishReason::Cancelled)
    }
}

/// The end of an engine's stream.
#[derive(Debug)]
pub struct Finish {
    /// `Interrupted` if the client interrupted it, even where the engine had finished before it knew.
    pub reason: FinishReason,
    /// What the engine says of it.
    pub stats: RequestStats,
    /// Whether chunks were withheld because the client interrupted.
    pub(crate) is_interrupted: bool,
    pub(crate) sample_rate_hz: u32,
}

impl Finish {
    /// Why a stream ended. An interrupt may reach the engine after it has finished.
    pub(super) fn reason(stats: &RequestStats, is_interrupted: bool) -> FinishReason {
        match stats.finish_reason {
            FinishReason::Stop | FinishReason::Length if is_interrupted => FinishReason::Interrupted,
            reason => reason,
        }
    }

    /// Time to first audio.
    pub(crate) fn ttfa_ms(&self) -> Option<f64> {
        self.stats.time_to_first_audio.map(|ttfa| ttfa.as_secs_f64() * 1e3)
    }

    /// Duration of `samples` of the generated audio.
    pub(crate) fn duration_s(&self, samples: u64) -> f64 {
        audio_duration(samples, self.sample_rate_hz).as_secs_f64()
    }
}

/// The state of one session of a dialect. The driver calls [`receive`](Self::receive) for each frame in order, and
/// [`next_job`](Self::next_job) whenever fewer than [`MAX_GENERATIONS`](Self::MAX_GENERATIONS) run.
pub trait Protocol: Sized + Send + 'static {
    /// Tells sessions of different protocols apart.
    const KIND: &'static str;

    /// How many generations may run at once.
    const MAX_GENERATIONS: usize = 1;

    /// A client's message, checked for shape.
    type Frame: Send;
    /// A leased engine, with whatever is looked up in it before a session can be configured.
    type Model: Send;
    /// State of one generation: how its chunks are encoded and how much was delivered.
    type Reply: Send;
    /// What the URL and the headers of the upgrade say.
    type Opening: Send + 'static;

    /// A session that begins.
    fn new(state: &AppState, identity: Identity, opening: Self::Opening) -> Self;

    /// Writes the frames that greet a client, if it is greeted before its first frame. Returns a frame that is received before
    /// that one: settings that the server has for the session.
    ///
    /// # Errors
    /// The error that was written, if the session is refused.
    fn greet(&mut self, _out: &mut Outbox) -> Result<Option<Self::Frame>, String> {
        Ok(None)
    }

    /// Reads a message.
    ///
    /// # Errors
    /// It has not the shape of a frame.
    fn parse(message: ClientMessage) -> Result<Self::Frame, ApiError>;

    /// Whether a frame asks to continue another session.
    fn is_resume(_frame: &Self::Frame) -> bool {
        false
    }

    /// Whether a frame is handled even while a model loads. Other frames wait for the model, in order.
    fn is_immediate(_frame: &Self::Frame) -> bool {
        false
    }

    /// Whether more may be read. To be false only while a generation runs, since nothing is noticed of the client then.
    fn may_read(&self) -> bool {
        true
    }

    /// Leases the model that `frame` asks for; `None` if it needs none, or the session has one.
    fn load_model(&self, _frame: &Self::Frame) -> Option<BoxFuture<'static, Result<Self::Model, ApiError>>> {
        None
    }

    /// Handles a frame. `model` is what [`load_model`](Self::load_model) led to for this frame; it is given back unless
    /// the protocol keeps it.
    fn receive(
        &mut self,
        frame: Self::Frame,
        model: Option<Result<Self::Model, ApiError>>,
        out: &mut Outbox,
    ) -> Result<Action, ApiError>;

    /// Takes the next job from the queue, or says why it cannot be done.
    fn next_job(&mut self) -> Option<Result<Job<Self>, ApiError>>;

    /// The number that clients know a generation by, where there may be several.
    fn number(_reply: &Self::Reply) -> u64 {
        0
    }

    /// Whether a generation is kept from delivering, until it is known whether it is wanted.
    fn is_held(&self, _reply: &Self::Reply) -> bool {
        false
    }

    /// The next generation that is to end early, as [`Self::number`] tells it, where no frame says so.
    fn next_cancelled(&mut self) -> Option<u64> {
        None
    }

    /// Writes the frames of one chunk.
    fn deliver(
        &mut self,
        reply: &mut Self::Reply,
        chunk: StreamingOutput,
        out: &mut Outbox,
    ) -> Result<(), EncodeError>;

    /// Writes the frames that end a generation.
    fn end(&mut self, reply: Self::Reply, outcome: Outcome, out: &mut Outbox);

    /// Drops input that no generation has taken yet. False if there was none.
    fn drop_queued(&mut self) -> bool;

    /// Takes no more input. What is queued is still generated.
    fn close_input(&mut self);

    /// Whether the input is closed and nothing is queued.
    fn is_over(&self) -> bool;

    /// Writes the last frame of a session that is over, if there is one.
    fn write_done(&self, _out: &mut Outbox) {}

    /// Tells an error of the session.
    fn write_error(&self, error: &ApiError, out: &mut Outbox);

    /// Writes why a generation failed. [`end`](Self::end) follows.
    fn write_failure(&self, _reply: &mut Self::Reply, error: &ApiError, out: &mut Outbox) {
        self.write_error(error, out);
    }

    /// How long the client may send nothing while nothing is generated or loaded; by default as the server is `configured`.
    fn idle_timeout(&self, configured: Duration) -> Duration {
        configured
    }

    /// Whether a session that is over was refused: it closes with 1008, and with the error that was reported last.
    fn is_refused(&self) -> bool {
        false
    }
}
