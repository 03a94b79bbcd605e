//! The driver of WebSocket sessions: one loop over the socket, the clocks, the model being loaded and the engine's stream.
//!
//! It knows no frame and no field of a request: a [`Protocol`] does. For every protocol it guarantees:
//! - A session reads while it generates, so that a disconnect is noticed at once and aborts the request.
//! - A chunk is taken from the engine only after the socket has taken everything before it. A client that does not read
//!   pauses its own request and no other.
//! - As many generations run at once as the protocol says, usually one, and begin in the order of their jobs. One for which the
//!   engine has no room alongside the session's others waits for their end.
//! - While a model loads, the frames after the one that asked for it wait, up to a limit.
//! - A session is idle while it neither generates nor loads; any message except a pong keeps it open.
//! - A client that closes the session gets its close frame back.
//! - A session whose connection is lost continues until its outbox is full, and waits for a new connection until its window
//!   ends. A client that closes the session ends it.

use std::mem;
use std::ops::ControlFlow;
use std::sync::Arc;

use axum::extract::ws::close_code;
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use izwi_core::engine::{EngineError, FinishReason, RequestId, StreamingOutput};
use tokio::sync::{OwnedSemaphorePermit, mpsc, watch};
use tokio::task::coop::consume_budget;
use tokio::time::{Instant, sleep_until};

use super::connection::{Closing, Connection, MAX_QUEUED, Signal};
use super::generation::{Generation, Progress, Started};
use super::outbox::Outbox;
use super::pending_model::PendingModel;
use super::protocol::{Action, Finish, Identity, MakeRequest, Outcome, Protocol};
use super::resume::{Handover, Registration, ResumeTable};
use super::socket::Socket;
use crate::dto::session::{Resume, Resumed};
use crate::error::ApiError;
use crate::metrics::{count_resume, move_detached};
use crate::record;
use crate::state::AppState;

/// Breaks with how to close, or with `None` if the session has ended.
type Flow = ControlFlow<Option<Closing>>;

enum Event<P: Protocol> {
    Socket(Signal),
    /// Of the generation at this index.
    Generation(usize, Box<Progress<P>>),
    Model(Result<P::Model, ApiError>),
    Handover(Handover),
    /// The server takes no new work, and the session has no connection.
    Draining,
    /// The client did not come back in time.
    Expired,
}

/// The client's end of a session.
enum Line {
    Attached(Box<Connection>),
    /// The connection was lost; a new one may come.
    Detached(Detached),
    /// The connection belongs to another session now.
    HandedOver,
}

/// A session without a connection.
struct Detached {
    until: Instant,
    /// Counts the session in the limit of detached ones.
    _permit: OwnedSemaphorePermit,
}

impl Detached {
    fn new(permit: OwnedSemaphorePermit, until: Instant) -> Self {
        move_detached(1.0);
        Self { until, _permit: permit }
    }
}

impl Drop for Detached {
    fn drop(&mut self) {
        move_detached(-1.0);
    }
}

struct Driver<P: Protocol> {
    state: AppState,
    resumable: Arc<ResumeTable>,
    registration: Registration,
    /// Connections of a client that came back.
    handovers: mpsc::Receiver<Handover>,
    draining: watch::Receiver<bool>,
    /// Whether the session takes no more work because the server ends.
    is_drained: bool,
    /// Whether the connection may only continue another session: it was opened while the server drains.
    only_resumes: bool,
    line: Line,
    outbox: Outbox,
    model: PendingModel<P::Frame, P::Model>,
    protocol: P,
    /// Those that have not ended, the oldest first.
    generations: Vec<Generation<P>>,
    /// The generation that is asked first for progress, so that each has its turn.
    turn: usize,
    /// The session that the client asked to continue instead of this one.
    resume: Option<Resume>,
    /// How the session closes, once it is over.
    closing: Option<Closing>,
    /// The error that was reported last: why a session is refused.
    last_error: String,
}

/// Serves one session until it is done or fails, or the client has gone for good.
pub(super) async fn run<P: Protocol>(
    state: AppState,
    resumable: Arc<ResumeTable>,
    id: RequestId,
    socket: Socket,
    permit: OwnedSemaphorePermit,
    opening: P::Opening,
) {
    let window = state.config().resume_window;
    let (registration, handovers) = resumable.register(&id, P::KIND);
    let token = Some(registration.token.clone()).filter(|_| !window.is_zero());
    let _running = state.count_session();
    let only_resumes = state.is_draining() && state.config().instance.is_some();
    let mut connection = Connection::new(state.clone(), id.clone(), socket, permit);
    if only_resumes {
        connection.note_draining();
    }
    let mut driver = Driver {
        protocol: P::new(&state, Identity { id, resume_token: token }, opening),
        resumable,
        registration,
        handovers,
        draining: state.draining(),
        is_drained: false,
        only_resumes,
        line: Line::Attached(Box::new(connection)),
        outbox: Outbox::new(window),
        state,
        model: PendingModel::default(),
        generations: Vec::new(),
        turn: 0,
        resume: None,
        closing: None,
        last_error: String::new(),
    };
    let first = driver.protocol.greet(&mut driver.outbox).map_err(|told| driver.last_error = told);
    let outcome = first.ok().flatten().map_or(Ok(()), |frame| driver.accept(frame));
    driver.report(outcome);
    driver.serve().await;
    driver.end_handovers();
}

impl<P: Protocol> Driver<P> {
    async fn serve(&mut self) {
        loop {
            // A client whose messages are always ready must leave the thread to others.
            consume_budget().await;
            self.begin_next();
            let event = self.next_event().await;
            let mut flow = self.handle(event);
            if let Some(resume) = self.resume.take() {
                flow = self.hand_over(resume).await;
            }
            match flow {
                ControlFlow::Continue(()) => {}
                ControlFlow::Break(None) => break,
                ControlFlow::Break(Some(closing)) => {
                    // Aborts the requests that run.
                    self.generations.clear();
                    self.closing = Some(closing);
                }
            }
        }
        self.generations.clear();
        if let Line::Attached(connection) = &mut self.line {
            connection.leave().await;
        }
    }

    async fn next_event(&mut self) -> Event<P> {
        let can_deliver = match &self.line {
            Line::Attached(connection) => connection.is_idle(&self.outbox),
            Line::Detached(_) | Line::HandedOver => !self.outbox.is_full(),
        };
        let may_read = self.model.held() < MAX_QUEUED && self.protocol.may_read();
        let is_loading = self.model.is_loading();
        let may_idle = !is_loading && self.generations.is_empty();
        let config = self.state.config();
        let idle_timeout = match self.only_resumes {
            true => config.idle_timeout.min(config.header_timeout),
            false => self.protocol.idle_timeout(config.idle_timeout),
        };
        let idle_timeout = may_idle.then_some(idle_timeout);
        let (line, outbox, closing) = (&mut self.line, &mut self.outbox, self.closing.as_ref());
        let (draining, is_drained) = (&mut self.draining, self.is_drained);
        let at_line = async {
            match (line, closing) {
                (Line::Attached(connection), None) => {
                    Event::Socket(connection.next(outbox, may_read, idle_timeout).await)
                }
                (Line::Attached(connection), Some(closing)) => {
                    Event::Socket(connection.close(outbox, closing).await)
                }
                (Line::Detached(detached), _) => {
                    tokio::select! {
                        () = sleep_until(detached.until) => Event::Expired,
                        _ = draining.wait_for(|draining| *draining), if !is_drained => Event::Draining,
                    }
                }
                (Line::HandedOver, _) => Event::Expired,
            }
        };
        let turn = self.turn.min(self.generations.len());
        let mut held: Vec<bool> =
            self.generations.iter().map(|one| self.protocol.is_held(&one.reply)).collect();
        held.rotate_left(turn);
        let (last, first) = self.generations.split_at_mut(turn);
        let (last, first) = (last.iter_mut().zip(0..), first.iter_mut().zip(turn..));
        let all = first.chain(last).zip(held);
        let next = all.map(async |((one, at), is_held)| (at, one.next(is_held).await));
        let mut progress: FuturesUnordered<_> = next.collect();
        tokio::select! {
            model = self.model.loaded(), if is_loading => Event::Model(model),
            // The table holds a sender as long as this driver is registered.
            Some(handover) = self.handovers.recv() => Event::Handover(handover),
            event = at_line => event,
            Some((at, progress)) = progress.next(), if can_deliver => Event::Generation(at, Box::new(progress)),
        }
    }

    fn handle(&mut self, event: Event<P>) -> Flow {
        match event {
            Event::Generation(at, progress) => {
                self.turn = at + 1;
                return match *progress {
                    Progress::Prepared(input) => self.submit(at, input),
                    Progress::Started(started) => self.start(at, started),
                    Progress::Chunk(chunk) => self.relay(at, chunk),
                    Progress::Expired => {
                        self.end(at, Outcome::Cancelled);
                        ControlFlow::Continue(())
                    }
                };
            }
            Event::Model(model) => self.continue_with(model),
            Event::Handover(handover) => self.attach(handover),
            Event::Draining if self.is_given_up() => return ControlFlow::Break(None),
            Event::Draining => self.drain(),
            Event::Expired => {
                count_resume("expired");
                return ControlFlow::Break(None);
            }
            Event::Socket(signal) => return self.signalled(signal),
        }
        ControlFlow::Continue(())
    }

    fn signalled(&mut self, signal: Signal) -> Flow {
        match signal {
            Signal::Handled => {}
            Signal::Message(message) => {
                let frame = P::parse(message);
                if self.only_resumes && !frame.as_ref().is_ok_and(P::is_resume) {
                    self.error(&ApiError::Draining);
                    return ControlFlow::Break(Some((close_code::AWAY, "draining".into())));
                }
                let outcome = frame.and_then(|frame| self.accept(frame));
                self.report(outcome);
            }
            Signal::Refused(error) => self.error(&error),
            Signal::Draining => self.drain(),
            Signal::Failed(error, closing) => {
                self.error(&error);
                return ControlFlow::Break(Some(closing));
            }
            Signal::Closed => return ControlFlow::Break(None),
            Signal::Lost => {
                if self.closing.is_none() {
                    record::closed(record::CONNECTION_LOST);
                }
                return self.detach();
            }
        }
        ControlFlow::Continue(())
    }

    /// Whether the server ends and no client can come back to it: without a name it is no replica, and takes no connection
    /// while it drains.
    fn is_given_up(&self) -> bool {
        self.state.is_draining() && self.state.config().instance.is_none()
    }

    /// Waits for the client to come back, if it may.
    fn detach(&mut self) -> Flow {
        let may_return = self
            .closing
            .as_ref()
            .is_none_or(|(code, _)| matches!(*code, close_code::NORMAL | close_code::AWAY));
        if !may_return || self.only_resumes || !self.outbox.is_resumable() || self.is_given_up() {
            return ControlFlow::Break(None);
        }
        let Some(permit) = self.state.admit_detached() else { return ControlFlow::Break(None) };
        let window = self.state.config().resume_window;
        tracing::info!(session = %self.registration.id, ?window, "connection lost; the session waits for its client");
        self.line = Line::Detached(Detached::new(permit, Instant::now() + window));
        ControlFlow::Continue(())
    }

    /// Continues the session on a new connection.
    fn attach(&mut self, handover: Handover) {
        let Handover { connection, next_sample, refuse } = handover;
        if let Err(error) = self.outbox.rewind(next_sample) {
            // A client that has left meanwhile needs no answer.
            let _ = refuse.send((connection, error));
            return;
        }
        let id = &self.registration.id;
        tracing::info!(session = %id, connection = %connection.id, next_sample, "session resumed");
        count_resume("resumed");
        let resumed = Resumed { kind: "session.resumed", session_id: id.as_str(), next_sample };
        self.outbox.reply_first(&resumed);
        self.line = Line::Attached(connection);
        self.touch();
        if self.state.is_draining() && !self.is_drained {
            self.drain();
        }
    }

    /// Hands the connection over to the session that its client asked for.
    async fn hand_over(&mut self, resume: Resume) -> Flow {
        let Line::Attached(connection) = std::mem::replace(&mut self.line, Line::HandedOver) else {
            return ControlFlow::Break(None);
        };
        let refused = self.resumable.hand_over(P::KIND, resume, connection).await;
        let Err((connection, error)) = refused else {
            record::handed_over();
            return ControlFlow::Break(None);
        };
        count_resume("refused");
        self.line = Line::Attached(connection);
        self.error(&error);
        match error {
            ApiError::ResumeRefused => {
                ControlFlow::Break(Some((close_code::POLICY, "resume refused".into())))
            }
            _ => ControlFlow::Continue(()),
        }
    }

    /// Gives connections back that came too late.
    fn end_handovers(&mut self) {
        self.handovers.close();
        while let Ok(Handover { connection, refuse, .. }) = self.handovers.try_recv() {
            // A client that has left meanwhile needs no answer.
            let _ = refuse.send((connection, ApiError::ResumeRefused));
        }
    }

    fn touch(&mut self) {
        if let Line::Attached(connection) = &mut self.line {
            connection.touch();
        }
    }

    fn error(&mut self, error: &ApiError) {
        error.count();
        self.last_error = error.to_string();
        self.protocol.write_error(error, &mut self.outbox);
    }

    /// Tells why a generation failed.
    fn failure(&mut self, at: usize, error: &ApiError) {
        let Some(generation) = self.generations.get_mut(at) else { return self.error(error) };
        error.count();
        self.last_error = error.to_string();
        self.protocol.write_failure(&mut generation.reply, error, &mut self.outbox);
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
    fn continue_with(&mut self, model: Result<P::Model, ApiError>) {
        self.touch();
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
        match self.protocol.receive(frame, model, &mut self.outbox)? {
            Action::None => {}
            Action::Interrupt if self.generations.is_empty() => {}
            Action::Interrupt => {
                self.protocol.drop_queued();
                self.cancel_all();
            }
            Action::Cancel => self.cancel_all(),
            Action::CancelOne(number) => self.with_number(number).into_iter().for_each(|at| self.cancel(at)),
            Action::Played { number, report } => {
                if let Some(generation) = self.with_number(number).and_then(|at| self.generations.get(at)) {
                    generation.acknowledge(report);
                }
            }
            Action::Resume(resume) => self.resume = Some(resume),
        }
        Ok(())
    }

    fn with_number(&self, number: u64) -> Option<usize> {
        self.generations.iter().position(|one| P::number(&one.reply) == number)
    }

    fn cancel_all(&mut self) {
        (0..self.generations.len()).rev().for_each(|at| self.cancel(at));
    }

    fn cancel(&mut self, at: usize) {
        if self.generations.get_mut(at).is_some_and(|generation| !generation.interrupt()) {
            self.end(at, Outcome::Cancelled);
        }
    }

    /// Finishes the current generations and takes no more work.
    fn drain(&mut self) {
        self.is_drained = true;
        self.protocol.close_input();
        if self.protocol.drop_queued() | self.model.abandon() {
            self.error(&ApiError::Draining);
        }
    }

    /// Begins the next generations, if there are jobs and fewer run than may, or the end of the session, if it is over.
    fn begin_next(&mut self) {
        while let Some(number) = self.protocol.next_cancelled() {
            self.with_number(number).into_iter().for_each(|at| self.cancel(at));
        }
        if self.closing.is_some() {
            return;
        }
        while self.generations.len() < P::MAX_GENERATIONS
            && let Some(job) = self.protocol.next_job()
        {
            match job {
                Ok(job) => self.generations.push(Generation::new(job)),
                Err(error) => self.error(&error),
            }
        }
        let is_refused = self.protocol.is_refused();
        if (self.generations.is_empty() || is_refused) && self.protocol.is_over() {
            // What runs in a session that is refused is not heard.
            self.generations.clear();
            self.protocol.write_done(&mut self.outbox);
            self.closing = Some(match &self.line {
                _ if is_refused => (close_code::POLICY, mem::take(&mut self.last_error).into()),
                Line::Attached(connection) => connection.closing_when_done(),
                Line::Detached(_) | Line::HandedOver if self.is_drained => (close_code::AWAY, "done".into()),
                Line::Detached(_) | Line::HandedOver => (close_code::NORMAL, "done".into()),
            });
        }
    }

    fn submit(&mut self, at: usize, input: Result<MakeRequest<P>, ApiError>) -> Flow {
        let make = match input {
            Ok(make) => make,
            Err(error) => return self.refuse(at, &error),
        };
        if let Some(generation) = self.generations.get_mut(at) {
            let request = make(&mut self.protocol, &generation.reply);
            tracing::debug!(session = %self.registration.id, request = %request.id, "generation begins");
            generation.submit(request, self.state.config().first_audio_timeout);
        }
        ControlFlow::Continue(())
    }

    fn start(&mut self, at: usize, started: Started) -> Flow {
        let has_others =
            self.generations.iter().enumerate().any(|(other, one)| other != at && !one.is_waiting());
        let Some(generation) = self.generations.get_mut(at) else { return ControlFlow::Continue(()) };
        match started {
            started @ Ok(_) if self.protocol.is_held(&generation.reply) => {
                generation.hold(started);
                ControlFlow::Continue(())
            }
            Ok((first, chunks)) => {
                generation.start(first.request_id.clone(), chunks);
                self.relay(at, Some(first))
            }
            Err(ApiError::Overloaded { by_engine: true, .. }) if has_others => {
                generation.wait();
                ControlFlow::Continue(())
            }
            Err(error) => self.refuse(at, &error),
        }
    }

    /// Ends a generation that failed before its first chunk.
    fn refuse(&mut self, at: usize, error: &ApiError) -> Flow {
        self.failure(at, error);
        self.end(at, Outcome::Failed);
        match error {
            ApiError::Draining => {
                if let Line::Attached(connection) = &mut self.line {
                    connection.note_draining();
                }
                self.protocol.close_input();
                self.protocol.drop_queued();
                ControlFlow::Continue(())
            }
            ApiError::ModelUnavailable(_) => {
                ControlFlow::Break(Some((close_code::ERROR, "engine ended".into())))
            }
            _ => ControlFlow::Continue(()),
        }
    }

    /// Delivers one chunk, and the end after the last.
    fn relay(&mut self, at: usize, chunk: Option<StreamingOutput>) -> Flow {
        let stream = self.generations.get_mut(at).and_then(Generation::streaming);
        let (Some(mut chunk), Some((reply, stream))) = (chunk, stream) else {
            self.error(&ApiError::CutOff);
            return ControlFlow::Break(Some((close_code::POLICY, "cut off".into())));
        };
        let stats = chunk.stats.take().filter(|_| chunk.is_final);
        let (request, is_interrupted) = (stream.request.clone(), stream.is_interrupted);
        let sample_rate_hz = chunk.sample_rate;
        if !is_interrupted && let Err(error) = self.protocol.deliver(reply, chunk, &mut self.outbox) {
            self.error(&ApiError::internal(&error.to_string(), &request));
            return ControlFlow::Break(Some((close_code::ERROR, "encoder failed".into())));
        }
        if let Some(stats) = stats {
            let failure = match (stats.finish_reason, &stats.error) {
                (FinishReason::TextTimeout, Some(EngineError::Execution(why))) => {
                    Some(ApiError::TextTimeout(why.clone()))
                }
                (FinishReason::Error | FinishReason::TextTimeout, error) => {
                    let model = self.generations.get(at).map(|generation| &generation.engine.profile().model);
                    let model = model.map_or("", String::as_str);
                    Some(ApiError::from_failure(error.clone(), model, &request))
                }
                _ => None,
            };
            if let Some(failure) = failure {
                self.failure(at, &failure);
            }
            let reason = Finish::reason(&stats, is_interrupted);
            if let Some(generation) = self.generations.get(at) {
                record::generated(&generation.engine, &stats, reason);
            }
            let finish = Finish { reason, stats, is_interrupted, sample_rate_hz };
            self.end(at, Outcome::Finished(Box::new(finish)));
        }
        ControlFlow::Continue(())
    }

    fn end(&mut self, at: usize, outcome: Outcome) {
        if at >= self.generations.len() {
            return;
        }
        let generation = self.generations.remove(at);
        self.protocol.end(generation.reply, outcome, &mut self.outbox);
        let limit = self.state.config().first_audio_timeout;
        self.generations.iter_mut().for_each(|other| other.resume(limit));
        self.touch();
    }
}
