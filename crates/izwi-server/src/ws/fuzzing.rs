//! Sessions without a socket, a clock and a running engine, for fuzz targets: a script takes the place of all three. No
//! part of the interface.

use std::time::Duration;

use axum::extract::ws::Message;
use bytes::Bytes;
use izwi_core::engine::{
    Emission, FinishReason, RequestId, RequestStats, Segment, SpokenWord, StreamingOutput, Word,
};
use izwi_types::TextNotes;

use super::chat::Chat;
use super::live::Live;
use super::outbox::Outbox;
use super::protocol::{Action, ClientMessage, Finish, Identity, Outcome, Protocol};
use super::speech::Speech;
use crate::error::ApiError;
use crate::state::AppState;

/// One event of a session.
#[derive(Debug, Clone, Copy)]
pub enum Step<'a> {
    /// A text message of the client.
    Text(&'a str),
    /// A binary message of the client.
    Binary(&'a [u8]),
    /// The engine has a chunk of this many samples, and the text that belongs to it.
    Chunk(usize, &'a str),
    /// The engine ends the generation.
    End,
    /// The generation fails before its first chunk.
    Fail,
    /// The socket takes a message.
    Send,
    /// A new connection continues at this sample.
    Rewind(u64),
}

/// Runs a session of `/v1/audio/speech/stream`. Returns the text frames that were sent.
pub async fn speech(state: &AppState, steps: &[Step<'_>]) -> Vec<String> {
    of::<Speech>(state, (), steps).await
}

/// As [`speech`], of `/v1/audio/chat/stream`.
pub async fn chat(state: &AppState, steps: &[Step<'_>]) -> Vec<String> {
    of::<Chat>(state, (), steps).await
}

/// As [`speech`], of any protocol.
pub async fn of<P: Protocol>(state: &AppState, opening: P::Opening, steps: &[Step<'_>]) -> Vec<String> {
    Session::<P>::new(state, opening).run(steps).await
}

/// As [`speech`], of `/v1/audio/transcriptions/stream`.
pub async fn live(state: &AppState, steps: &[Step<'_>]) -> Vec<String> {
    of::<Live>(state, (), steps).await
}

/// A transcript whose words take a fifth of a second each, but those of one letter, which take none.
fn segment(text: &str) -> Segment {
    let mut at_s = 0.0;
    let words = text.split_inclusive(' ').map(|word| {
        let start_s = at_s;
        at_s += if word.trim().len() > 1 { 0.2 } else { 0.0 };
        Word { text: word.to_owned(), start_s, end_s: at_s, probability: 0.5 }
    });
    Segment { words: words.collect(), text: text.to_owned(), end_s: at_s, ..Segment::default() }
}

struct Session<P: Protocol> {
    protocol: P,
    outbox: Outbox,
    generation: Option<Generation<P>>,
    sent: Vec<String>,
}

struct Generation<P: Protocol> {
    reply: P::Reply,
    chunks: u64,
    samples: u64,
    text: usize,
    sample_rate: u32,
    is_interrupted: bool,
}

impl<P: Protocol> Session<P> {
    fn new(state: &AppState, opening: P::Opening) -> Self {
        let identity = Identity { id: RequestId::from("session"), resume_token: Some("token".to_owned()) };
        Self {
            protocol: P::new(state, identity, opening),
            outbox: Outbox::new(Duration::from_secs(30)),
            generation: None,
            sent: Vec::new(),
        }
    }

    async fn run(mut self, steps: &[Step<'_>]) -> Vec<String> {
        for step in steps {
            self.take(step).await;
            self.begin_next().await;
            if self.generation.is_none() && self.protocol.is_over() {
                self.protocol.write_done(&mut self.outbox);
                break;
            }
        }
        while !self.outbox.is_empty() {
            self.send();
        }
        self.sent
    }

    async fn take(&mut self, step: &Step<'_>) {
        match *step {
            Step::Text(text) => self.receive(ClientMessage::Text(text.into())).await,
            Step::Binary(bytes) => self.receive(ClientMessage::Binary(Bytes::copy_from_slice(bytes))).await,
            Step::Chunk(samples, text) => self.chunk(samples, text),
            Step::End => self.end(),
            Step::Fail => {
                if let Some(mut generation) = self.generation.take_if(|generation| generation.chunks == 0) {
                    let error = ApiError::Draining;
                    self.protocol.write_failure(&mut generation.reply, &error, &mut self.outbox);
                    self.protocol.end(generation.reply, Outcome::Failed, &mut self.outbox);
                }
            }
            Step::Send => self.send(),
            Step::Rewind(sample) => {
                if let Err(error) = self.outbox.rewind(sample) {
                    self.protocol.write_error(&error, &mut self.outbox);
                }
            }
        }
    }

    async fn receive(&mut self, message: ClientMessage) {
        let outcome = match P::parse(message) {
            Ok(frame) => {
                let model = match self.protocol.load_model(&frame) {
                    Some(loading) => Some(loading.await),
                    None => None,
                };
                self.protocol.receive(frame, model, &mut self.outbox)
            }
            Err(error) => Err(error),
        };
        match outcome {
            Ok(Action::Interrupt) => {
                if self.generation.is_some() {
                    self.protocol.drop_queued();
                    self.cancel();
                }
            }
            Ok(Action::Cancel) => self.cancel(),
            Ok(Action::CancelOne(number)) => {
                if self.generation.as_ref().is_some_and(|one| P::number(&one.reply) == number) {
                    self.cancel();
                }
            }
            Ok(_) => {}
            Err(error) => self.protocol.write_error(&error, &mut self.outbox),
        }
    }

    fn cancel(&mut self) {
        let Some(generation) = &mut self.generation else { return };
        generation.is_interrupted = true;
        if generation.chunks == 0
            && let Some(generation) = self.generation.take()
        {
            self.protocol.end(generation.reply, Outcome::Cancelled, &mut self.outbox);
        }
    }

    async fn begin_next(&mut self) {
        while self.generation.is_none()
            && let Some(job) = self.protocol.next_job()
        {
            let job = match job {
                Ok(job) => job,
                Err(error) => {
                    self.protocol.write_error(&error, &mut self.outbox);
                    continue;
                }
            };
            match job.input.await {
                Ok(make) => {
                    drop(make(&mut self.protocol, &job.reply));
                    let sample_rate = job.engine.profile().info.sample_rate_hz;
                    let reply = job.reply;
                    let generation = Generation {
                        reply,
                        chunks: 0,
                        samples: 0,
                        text: 0,
                        sample_rate,
                        is_interrupted: false,
                    };
                    self.generation = Some(generation);
                }
                Err(error) => self.refuse(&error, job.reply),
            }
        }
    }

    fn refuse(&mut self, error: &ApiError, mut reply: P::Reply) {
        self.protocol.write_failure(&mut reply, error, &mut self.outbox);
        self.protocol.end(reply, Outcome::Failed, &mut self.outbox);
    }

    fn chunk(&mut self, samples: usize, text: &str) {
        let Some(generation) = &mut self.generation else { return };
        let token = (!text.is_empty()).then_some((Emission::Token(7), generation.samples));
        let end = generation.samples + samples as u64;
        let frame = (samples > 0).then(|| (Emission::Frame([1, 2].into()), end));
        let (emissions, emission_ends) = token.into_iter().chain(frame).unzip();
        generation.text += text.len();
        let chunk = StreamingOutput {
            request_id: RequestId::from("request"),
            sequence: generation.chunks,
            sample_offset: generation.samples,
            samples: vec![0.25; samples],
            words: vec![SpokenWord {
                text_start: generation.text - text.len(),
                text_end: generation.text,
                sample_start: generation.samples,
                sample_end: end,
            }],
            sample_rate: generation.sample_rate,
            text: Some(text.to_owned()),
            partial: text.chars().take(3).collect(),
            segments: vec![segment(text)],
            language: None,
            emissions,
            emission_ends,
            is_final: false,
            stats: None,
            prediction: None,
            notes: TextNotes::default(),
            pauses: None,
        };
        generation.chunks += 1;
        generation.samples = end;
        if !generation.is_interrupted
            && let Err(error) = self.protocol.deliver(&mut generation.reply, chunk, &mut self.outbox)
        {
            let error = ApiError::internal(&error.to_string(), &RequestId::from("request"));
            self.protocol.write_error(&error, &mut self.outbox);
        }
    }

    fn end(&mut self) {
        let Some(generation) = self.generation.take() else { return };
        let audio = izwi_core::engine::types::audio_duration(generation.samples, generation.sample_rate);
        let stats = RequestStats {
            finish_reason: FinishReason::Stop,
            error: None,
            seed: 1,
            prompt_tokens: 3,
            generated_tokens: generation.chunks as usize,
            samples: generation.samples,
            audio_duration: audio,
            accepted_at: tokio::time::Instant::now(),
            prepare_time: Duration::ZERO,
            queue_time: Duration::ZERO,
            generation_time: audio / 2,
            time_to_first_output: None,
            time_to_first_audio: None,
        };
        let reason = if generation.is_interrupted { FinishReason::Interrupted } else { FinishReason::Stop };
        let finish = Finish {
            reason,
            stats,
            is_interrupted: generation.is_interrupted,
            sample_rate_hz: generation.sample_rate,
        };
        self.protocol.end(generation.reply, Outcome::Finished(Box::new(finish)), &mut self.outbox);
    }

    fn send(&mut self) {
        let Some((first, _)) = self.outbox.take() else { return };
        if let Message::Text(text) = first {
            self.sent.push(text.as_str().to_owned());
        }
    }
}
