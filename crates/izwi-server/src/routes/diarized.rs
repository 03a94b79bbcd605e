//! The stream of a transcript with speakers: a segment leaves once its words and their speaker are final.
//!
//! A disconnect drops the body, which aborts the requests of both models.

use std::collections::VecDeque;
use std::ops::ControlFlow;

use axum::response::Response;
use bytes::Bytes;
use http_body::Frame;
use izwi_core::engine::speakers::SpeakerJoin;
use izwi_core::engine::{EngineCoreRequest, RequestId, RequestStats, Segment, StreamingOutput};
use tokio::sync::mpsc;

use super::streamed::{self, Events, check_end, event};
use crate::dto::diarized_segment::DiarizedSegment;
use crate::dto::transcription::{TokensUsage, TranscriptEvent};
use crate::error::ApiError;
use crate::record;
use crate::registry::Lease;
use crate::speakers::{Known, Speakers};
use crate::stats_headers;
use crate::transcription::TextDeltas;

/// The output of one of the models.
struct Source {
    engine: Lease,
    id: RequestId,
    chunks: mpsc::Receiver<StreamingOutput>,
    /// Set at its end.
    stats: Option<RequestStats>,
}

impl Source {
    async fn start(engine: Lease, request: EngineCoreRequest, field: &'static str) -> Result<Self, ApiError> {
        let id = request.id.clone();
        let started = engine.generate_streaming(request.with_streaming(true)).await;
        let (_, chunks) = started.map_err(|error| {
            ApiError::from_engine(error, &engine.profile().model, &id).about_recording(field)
        })?;
        Ok(Self { engine, id, chunks, stats: None })
    }

    /// The segments of its next chunk; waits for ever after its end.
    async fn next(&mut self) -> Result<Vec<Segment>, ApiError> {
        if self.stats.is_some() {
            return std::future::pending().await;
        }
        let chunk = self.chunks.recv().await.ok_or(ApiError::CutOff)?;
        self.stats = chunk.stats;
        Ok(chunk.segments)
    }

    fn check(&self) -> Result<(), ApiError> {
        self.stats.as_ref().map_or(Ok(()), |stats| check_end(stats, &self.engine, &self.id))
    }
}

/// A response whose body sends segments with their speakers, `with_words` or without. Errors are about `field`.
pub(super) async fn stream(
    engine: Lease,
    speakers: Speakers,
    mut request: EngineCoreRequest,
    (field, with_words): (&'static str, bool),
) -> Result<Response, ApiError> {
    let Speakers { engine: listener, known } = speakers;
    let turns = Source::start(listener, request.split_diarization(), field).await?;
    let text = Source::start(engine, request, field).await?;
    let transcript = DiarizedStream {
        text,
        turns,
        known,
        join: SpeakerJoin::new(),
        told: 0,
        with_words,
        whole: TextDeltas::default(),
    };
    streamed::events(transcript).await
}

struct DiarizedStream {
    text: Source,
    turns: Source,
    known: Known,
    join: SpeakerJoin,
    /// Segments that were sent.
    told: usize,
    with_words: bool,
    whole: TextDeltas,
}

impl Events for DiarizedStream {
    async fn advance(&mut self, frames: &mut VecDeque<Frame<Bytes>>) -> Result<ControlFlow<()>, ApiError> {
        tokio::select! {
            segments = self.text.next() => {
                self.join.add(segments?);
                if let Some(stats) = &self.text.stats {
                    record::generated(&self.text.engine, stats, stats.finish_reason);
                }
            }
            turns = self.turns.next() => self.join.add_turns(self.known.name(turns?)?),
        }
        self.text.check()?;
        self.turns.check()?;
        for segment in self.join.take(self.turns.stats.is_some()) {
            // The whole text is trimmed as that of other formats.
            let _ = self.whole.push(&segment.text);
            let segment = DiarizedSegment::new((self.told, &segment), self.with_words);
            self.told += 1;
            frames.push_back(Frame::data(event(&TranscriptEvent::Segment(segment))));
        }
        if let (Some(stats), Some(_)) = (&self.text.stats, &self.turns.stats) {
            let done = TranscriptEvent::Done {
                text: std::mem::take(&mut self.whole).into_text(),
                languages: None,
                logprobs: None,
                usage: TokensUsage::new(stats.prompt_tokens, stats.generated_tokens),
            };
            frames.push_back(Frame::data(event(&done)));
            frames.push_back(Frame::trailers(stats_headers::of(stats)));
            return Ok(ControlFlow::Break(()));
        }
        Ok(ControlFlow::Continue(()))
    }
}
