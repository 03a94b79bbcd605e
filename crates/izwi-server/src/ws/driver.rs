//! The driver of WebSocket sessions: one loop over the socket, the clocks, the model being loaded and the engine's stream.
//!
//! It knows no frame and no field of a request: a [`Protocol`] does. For every protocol it guarantees:
//! - A session reads while it generates, so that a disconnect is noticed at once and aborts the request.
//! - A chunk is taken from the engine only after the socket has taken everything before it. A client that does not read
//!   pauses its own request and no other.
//! - Generations run one at a time, in the order of their jobs.
//! - While a model loads, the frames behind the one that asked for it wait, up to a limit.
//! - A session is idle while it neither generates nor loads; any message except a pong keeps it open.

use std::ops::ControlFlow;

use axum::extract::ws::{WebSocket, close_code};
use izwi_core::engine::{FinishReason, RequestId, RequestStats, StreamingOutput};

use super::connection::{Closing, Connection, MAX_QUEUED, Signal};
use super::generation::{Generation, Progress, Started};
use super::pending_model::PendingModel;
use super::protocol::{Action, Finish, Outcome, Protocol};
use crate::error::ApiError;
use crate::state::AppState;

/// Breaks with how to close, or with `None` if the peer is gone.
type Flow = ControlFlow<Option<Closing>>;

enum Event<P: Protocol> {
    Socket(Signal),
    Generation(Box<Progress<P::Input>>),
    Model(Result<P::Model, ApiError>),
}

struct Driver<P: Protocol> {
    connection: Connection,
    model: PendingModel<P::Frame, P::Model>,
    protocol: P,
    generation: Option<Generation<P>>,
}

/// Serves one session until it is done or fails, or the client disconnects.
pub(super) async fn run<P: Protocol>(state: AppState, id: RequestId, socket: WebSocket) {
    let mut driver = Driver {
        protocol: P::new(&state, &id),
        connection: Connection::new(state, id, socket),
        model: PendingModel::default(),
        generation: None,
    };
    let closing = driver.serve().await;
    // Aborts the request, if one runs.
    driver.generation = None;
    if let Some(closing) = closing {
        driver.connection.graceful_close(closing).await;
    }
}

impl<P: Protocol> Driver<P> {
    /// Returns how to close, or `None` if the peer is gone.
    async fn serve(&mut self) -> Option<Closing> {
        loop {
            self.begin_next();
            if self.generation.is_none() && self.protocol.is_over() {
                self.protocol.write_done(&mut self.connection.outbox);
                return Some(self.connection.closing_when_done());
            }
            let event = self.next_event().await;
            if let ControlFlow::Break(closing) = self.handle(event) {
                return closing;
            }
        }
    }

    async fn next_event(&mut self) -> Event<P> {
        let can_deliver = self.connection.outbox.is_idle();
        let can_hold = self.model.held() < MAX_QUEUED;
        let is_loading = self.model.is_loading();
        let may_idle = !is_loading && self.generation.is_none();
        let generation = &mut self.generation;
        let progress = async {
            match generation {
                Some(generation) => generation.next().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            model = self.model.loaded(), if is_loading => Event::Model(model),
            signal = self.connection.next(can_hold, may_idle) => Event::Socket(signal),
            progress = progress, if can_deliver => Event::Generation(Box::new(progress)),
        }
    }

    fn handle(&mut self, event: Event<P>) -> Flow {
        match event {
            Event::Generation(progress) => {
                return match *progress {
                    Progress::Prepared(input) => self.submit(input),
                    Progress::Started(started) => self.start(started),
                    Progress::Chunk(chunk) => self.relay(chunk),
                };
            }
            Event::Model(model) => self.resume(model),
            Event::Socket(Signal::Handled) => {}
            Event::Socket(Signal::Message(message)) => {
                let outcome = P::parse(message).and_then(|frame| self.accept(frame));
                self.report(outcome);
            }
            Event::Socket(Signal::Refused(error)) => self.error(&error),
            Event::Socket(Signal::Draining) => self.drain(),
            Event::Socket(Signal::Failed(error, closing)) => {
                self.error(&error);
                return ControlFlow::Break(Some(closing));
            }
            Event::Socket(Signal::Disconnected) => return ControlFlow::Break(None),
        }
        ControlFlow::Continue(())
    }

    fn error(&mut self, error: &ApiError) {
        error.count();
        self.protocol.write_error(error, &mut self.connection.outbox);
    }

    fn report(&mut self, outcome: Result<(), ApiError>) {
        if let Err(error) = outcome {
            self.error(&error);
        }
    }

    /// Handles a frame, or holds it until the model is loaded that it or one before it needs.
    fn accept(&mut self, frame: P::Frame) -> Result<(), ApiError> {
        if self.model.is_loading() && !P::is_immediate(&frame) {
            self.model.hold(frame);
            return Ok(());
        }
        let model = match self.protocol.load_model(&frame) {
            None => None,
            Some(loading) => match self.model.load(loading) {
                Some(model) => Some(model),
                None => {
                    self.model.hold(frame);
                    return Ok(());
                }
            },
        };
        self.receive(frame, model)
    }

    /// Handles the frames that waited for a model. It belongs to the first of them.
    fn resume(&mut self, model: Result<P::Model, ApiError>) {
        self.connection.touch();
        let mut frames = self.model.take_held().into_iter();
        if let Some(first) = frames.next() {
            let outcome = self.receive(first, Some(model));
            self.report(outcome);
        }
        for frame in frames {
            let outcome = self.accept(frame);
            self.report(outcome);
        }
    }

    fn receive(
        &mut self,
        frame: P::Frame,
        model: Option<Result<P::Model, ApiError>>,
    ) -> Result<(), ApiError> {
        match self.protocol.receive(frame, model, &mut self.connection.outbox)? {
            Action::None => {}
            Action::Interrupt => self.interrupt(),
        }
        Ok(())
    }

    fn interrupt(&mut self) {
        let Some(generation) = &mut self.generation else { return };
        self.protocol.drop_queued();
        if !generation.interrupt() {
            self.end(Outcome::Cancelled);
        }
    }

    /// Finishes the current generation and takes no more work.
    fn drain(&mut self) {
        self.protocol.close_input();
        if self.protocol.drop_queued() | self.model.abandon() {
            self.error(&ApiError::Draining);
        }
    }

    /// Begins the next generation, if none runs and there is a job.
    fn begin_next(&mut self) {
        while self.generation.is_none()
            && let Some(job) = self.protocol.next_job()
        {
            match job {
                Ok(job) => self.generation = Some(Generation::new(job)),
                Err(error) => self.error(&error),
            }
        }
    }

    fn submit(&mut self, input: Result<P::Input, ApiError>) -> Flow {
        let input = match input {
            Ok(input) => input,
            Err(error) => return self.refuse(&error),
        };
        if let Some(generation) = &mut self.generation {
            let request = self.protocol.request(&generation.reply, input);
            tracing::debug!(session = %self.connection.id, request = %request.id, "generation begins");
            generation.submit(request, self.connection.config().first_audio_timeout);
        }
        ControlFlow::Continue(())
    }

    fn start(&mut self, started: Started) -> Flow {
        match started {
            Ok((first, chunks)) => {
                if let Some(generation) = &mut self.generation {
                    generation.start(first.request_id.clone(), chunks);
                }
                self.relay(Some(first))
            }
            Err(error) => self.refuse(&error),
        }
    }

    /// Ends a generation that failed before its first chunk.
    fn refuse(&mut self, error: &ApiError) -> Flow {
        self.error(error);
        self.end(Outcome::Failed);
        match error {
            ApiError::Draining => {
                self.connection.note_draining();
                self.protocol.close_input();
                self.protocol.drop_queued();
                ControlFlow::Continue(())
            }
            ApiError::ModelUnavailable(_) => ControlFlow::Break(Some((close_code::ERROR, "engine ended"))),
            _ => ControlFlow::Continue(()),
        }
    }

    /// Delivers one chunk, and the end behind the last.
    fn relay(&mut self, chunk: Option<StreamingOutput>) -> Flow {
        let stream = self.generation.as_mut().and_then(Generation::streaming);
        let (Some(mut chunk), Some((reply, stream))) = (chunk, stream) else {
            self.error(&ApiError::CutOff);
            return ControlFlow::Break(Some((close_code::POLICY, "cut off")));
        };
        let stats = chunk.stats.take().filter(|_| chunk.is_final);
        let (request, is_interrupted) = (stream.request.clone(), stream.is_interrupted);
        let sample_rate_hz = chunk.sample_rate;
        if !is_interrupted
            && let Err(error) = self.protocol.deliver(reply, chunk, &mut self.connection.outbox)
        {
            self.error(&ApiError::internal(&error.to_string(), &request));
            return ControlFlow::Break(Some((close_code::ERROR, "encoder failed")));
        }
        if let Some(stats) = stats {
            let details = stats.error.as_deref().unwrap_or("(no details)");
            match stats.finish_reason {
                FinishReason::Error => self.error(&ApiError::internal(details, &request)),
                FinishReason::TextTimeout => self.error(&ApiError::TextTimeout(details.to_owned())),
                _ => {}
            }
            let reason = finish_reason(&stats, is_interrupted);
            self.end(Outcome::Finished(Finish { reason, stats, is_interrupted, sample_rate_hz }));
        }
        ControlFlow::Continue(())
    }

    fn end(&mut self, outcome: Outcome) {
        if let Some(generation) = self.generation.take() {
            self.protocol.end(generation.reply, outcome, &mut self.connection.outbox);
            self.connection.touch();
        }
    }
}

/// An interrupt may reach the engine after it has finished.
fn finish_reason(stats: &RequestStats, is_interrupted: bool) -> FinishReason {
    match stats.finish_reason {
        FinishReason::Stop | FinishReason::Length if is_interrupted => FinishReason::Interrupted,
        reason => reason,
    }
}
