//! One generation of a session, from its job to the engine's last chunk. Knows no socket and no frame.
//!
//! Dropping a generation drops the engine's receiver, which aborts the request.

use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use izwi_core::engine::{Engine, EngineCoreRequest, PlaybackReport, RequestId, StreamingOutput};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

use super::protocol::{Job, MakeRequest, Protocol};
use crate::error::ApiError;
use crate::speech::begin;

/// How long a generation is held at most.
const MAX_HELD: Duration = Duration::from_secs(15);

type Chunks = mpsc::Receiver<StreamingOutput>;
/// The first chunk of a stream, and the rest.
pub(super) type Started = Result<(StreamingOutput, Chunks), ApiError>;

/// A generation that has not ended.
pub(super) struct Generation<P: Protocol> {
    pub(super) engine: Engine,
    pub(super) reply: P::Reply,
    stage: Stage<P>,
    /// The request, for protocols that have several generations at once: an engine without room for another stream may have
    /// room once one of them has ended.
    again: Option<EngineCoreRequest>,
}

enum Stage<P: Protocol> {
    Preparing(BoxFuture<'static, Result<MakeRequest<P>, ApiError>>),
    Starting(BoxFuture<'static, Started>),
    /// The engine had no room.
    Waiting,
    /// It has started, and the protocol holds it until then at most.
    Held(Box<Started>, Instant),
    Streaming(Stream),
}

/// A stream whose first chunk has arrived.
pub(super) struct Stream {
    chunks: Chunks,
    pub(super) request: RequestId,
    /// Chunks are taken from the engine and no longer delivered.
    pub(super) is_interrupted: bool,
}

/// What happens next in a generation.
pub(super) enum Progress<P: Protocol> {
    Prepared(Result<MakeRequest<P>, ApiError>),
    Started(Started),
    /// It was held for too long.
    Expired,
    /// `None` if the engine cut the stream off.
    Chunk(Option<StreamingOutput>),
}

impl<P: Protocol> Generation<P> {
    pub(super) fn new(job: Job<P>) -> Self {
        Self { engine: job.engine, reply: job.reply, stage: Stage::Preparing(job.input), again: None }
    }

    /// Waits for the next progress; of one that the protocol holds, for no chunk. Cancel-safe.
    pub(super) async fn next(&mut self, is_held: bool) -> Progress<P> {
        match &mut self.stage {
            Stage::Held(_, until) if is_held => {
                sleep_until(*until).await;
                Progress::Expired
            }
            Stage::Held(..) => match std::mem::replace(&mut self.stage, Stage::Waiting) {
                Stage::Held(started, _) => Progress::Started(*started),
                _ => Progress::Expired,
            },
            Stage::Preparing(input) => Progress::Prepared(input.await),
            Stage::Starting(started) => Progress::Started(started.await),
            Stage::Waiting => std::future::pending().await,
            Stage::Streaming(stream) => Progress::Chunk(stream.chunks.recv().await),
        }
    }

    /// Submits the request; its first chunk must arrive within `limit`.
    pub(super) fn submit(&mut self, request: EngineCoreRequest, limit: Duration) {
        let engine = self.engine.clone();
        self.again = (P::MAX_GENERATIONS > 1).then(|| request.clone());
        self.stage = Stage::Starting(async move { begin(&engine, request, limit).await }.boxed());
    }

    /// Keeps its first chunk until the protocol holds it no more.
    pub(super) fn hold(&mut self, started: Started) {
        self.stage = Stage::Held(Box::new(started), Instant::now() + MAX_HELD);
    }

    /// Waits until it is [resumed](Self::resume).
    pub(super) fn wait(&mut self) {
        self.stage = Stage::Waiting;
    }

    pub(super) fn is_waiting(&self) -> bool {
        matches!(self.stage, Stage::Waiting)
    }

    /// Submits the request again, if it waits.
    pub(super) fn resume(&mut self, limit: Duration) {
        if self.is_waiting()
            && let Some(request) = self.again.take()
        {
            self.submit(request, limit);
        }
    }

    pub(super) fn start(&mut self, request: RequestId, chunks: Chunks) {
        self.stage = Stage::Streaming(Stream { chunks, request, is_interrupted: false });
    }

    /// The reply and the stream it comes from, once that has started.
    pub(super) fn streaming(&mut self) -> Option<(&mut P::Reply, &mut Stream)> {
        match &mut self.stage {
            Stage::Streaming(stream) => Some((&mut self.reply, stream)),
            Stage::Preparing(_) | Stage::Starting(_) | Stage::Waiting | Stage::Held(..) => None,
        }
    }

    /// Tells the engine how the stream is played.
    pub(super) fn acknowledge(&self, report: PlaybackReport) {
        if let Stage::Streaming(stream) = &self.stage {
            // An engine that has stopped has no clock.
            let _ = self.engine.playback_ack(&stream.request, report);
        }
    }

    /// Asks the engine to end the stream early. False if it has not started.
    pub(super) fn interrupt(&mut self) -> bool {
        let Stage::Streaming(stream) = &mut self.stage else { return false };
        if !std::mem::replace(&mut stream.is_interrupted, true) {
            let (engine, request) = (self.engine.clone(), stream.request.clone());
            // If the engine has ended or finished the request, the stream shows it.
            tokio::spawn(async move { engine.interrupt_request(&request).await });
        }
        true
    }
}
