//! An answer: text as the language model writes it, and its speech, side by side.
//!
//! Nothing runs on its own: dropping the answer closes the connection to the server and ends the utterance.

use std::collections::VecDeque;

use futures::stream::{self, StreamExt};
use izwi_core::engine::leases::Leased;
use izwi_core::engine::remote::RemoteOutput;
use izwi_core::engine::{EngineCoreRequest, RemoteError, SpeechOptions};
use izwi_types::{ConverseInput, Emission, StepOutput};

use super::PipelineConfig;
use super::completion::{Completion, End, Event};
use super::speech::{Said, Speech};
use super::text_splitter::{Cut, Piece, TextSplitter};

pub(super) struct Answer {
    /// `None` once it has ended.
    completion: Option<Completion>,
    /// The model that speaks; `None` if nobody hears the answer.
    tts: Option<Leased>,
    speech: Option<Speech>,
    splitter: TextSplitter,
    /// A piece that begins the next utterance.
    next: Option<Piece>,
    ready: VecDeque<StepOutput>,
    voice: Option<String>,
    options: SpeechOptions,
    chunk_samples: (usize, Option<usize>),
    has_tools: bool,
    /// Pieces of text so far: about as many tokens.
    pieces: usize,
    has_failed: bool,
}

/// What came first.
enum Came {
    Written(Option<Result<Event, RemoteError>>),
    Spoken(Result<Said, RemoteError>),
}

impl Answer {
    pub(super) fn new(
        config: &PipelineConfig,
        input: &ConverseInput,
        completion: Completion,
        tts: Option<Leased>,
    ) -> Self {
        Self {
            completion: Some(completion),
            tts,
            speech: None,
            splitter: TextSplitter::default(),
            next: None,
            ready: VecDeque::new(),
            voice: input.voice.clone().or_else(|| config.voice.clone()),
            options: SpeechOptions {
                language: config.language.clone(),
                seed: Some(input.seed),
                speed: Some(input.speed).filter(|speed| *speed != 1.0),
                ..SpeechOptions::default()
            },
            chunk_samples: (input.chunk_samples, input.first_chunk_samples),
            has_tools: !input.tools.is_empty(),
            pieces: 0,
            has_failed: false,
        }
    }

    pub(super) fn stream(self) -> RemoteOutput {
        stream::unfold(self, |mut answer| async { Some((answer.next().await?, answer)) }).boxed()
    }

    async fn next(&mut self) -> Option<Result<StepOutput, RemoteError>> {
        loop {
            if let Some(output) = self.ready.pop_front() {
                return Some(Ok(output));
            }
            if self.has_failed {
                return None;
            }
            self.speak();
            if !self.ready.is_empty() {
                continue;
            }
            let (completion, speech) = (self.completion.as_mut(), self.speech.as_mut());
            let came = match (completion, speech) {
                (None, None) => return None,
                (Some(completion), None) => Came::Written(completion.next().await),
                (None, Some(speech)) => Came::Spoken(speech.next().await),
                (Some(completion), Some(speech)) => tokio::select! {
                    event = completion.next() => Came::Written(event),
                    said = speech.next() => Came::Spoken(said),
                },
            };
            let result = match came {
                Came::Written(event) => event.transpose().map(|event| self.write(event)),
                Came::Spoken(said) => said.map(|said| self.say(said)),
            };
            if let Err(error) = result {
                self.has_failed = true;
                (self.completion, self.speech) = (None, None);
                return Some(Err(error));
            }
        }
    }

    fn write(&mut self, event: Option<Event>) {
        match event {
            Some(Event::Text(text)) => {
                self.pieces += 1;
                let emission = match self.tts {
                    Some(_) => {
                        self.splitter.push(&text);
                        None
                    }
                    None => Some(Emission::Said(text.as_str().into())),
                };
                self.ready.push_back(StepOutput {
                    text,
                    emission,
                    generated_tokens: 1,
                    ..StepOutput::default()
                });
            }
            Some(Event::End(end)) => self.end(end),
            None => self.completion = None,
        }
    }

    fn end(&mut self, end: End) {
        self.completion = None;
        let (prompt_tokens, tokens) = end.usage.unzip();
        let generated_tokens = tokens.unwrap_or_default().saturating_sub(self.pieces);
        let is_cut = end.is_cut;
        self.ready.push_back(StepOutput { prompt_tokens, generated_tokens, is_cut, ..StepOutput::default() });
        // What was not offered cannot be called.
        for call in end.calls.into_iter().filter(|_| self.has_tools) {
            self.ready
                .push_back(StepOutput { emission: Some(Emission::Call(call)), ..StepOutput::default() });
        }
    }

    fn say(&mut self, said: Said) {
        if said.is_last {
            self.speech = None;
        }
        let emission = Some(said.text).filter(|text| !text.is_empty());
        let emission = emission.map(|text| Emission::Said(text.into()));
        if !said.samples.is_empty() || emission.is_some() {
            self.ready.push_back(StepOutput { samples: said.samples, emission, ..StepOutput::default() });
        }
    }

    /// Gives the text on that can be spoken.
    fn speak(&mut self) {
        let Some(tts) = &self.tts else { return };
        let takes_text = tts.profile().info.appends_text;
        let cut = if takes_text { Cut::Words } else { Cut::Clauses };
        let is_all = self.completion.is_none();
        while self.speech.as_ref().is_none_or(Speech::takes_more) {
            let piece = self.next.take().or_else(|| self.splitter.next(cut, is_all));
            let Some(piece) = piece else { break };
            let is_silent = !piece.spoken.chars().any(char::is_alphanumeric);
            match &mut self.speech {
                Some(speech) => {
                    let rest = speech.add(&piece);
                    if !rest.is_empty() {
                        self.next = Some(Piece { shown: String::new(), spoken: rest });
                    }
                }
                None if is_silent => {
                    let emission = Some(Emission::Said(piece.shown.into()));
                    self.ready.push_back(StepOutput { emission, ..StepOutput::default() });
                }
                None => {
                    let (voice, options) = (self.voice.clone(), self.options.clone());
                    let (chunk, first) = self.chunk_samples;
                    let request = |text: &str| EngineCoreRequest {
                        voice,
                        ..EngineCoreRequest::tts(text)
                            .with_options(options)
                            .with_chunk_samples(chunk)
                            .with_first_chunk_samples(first)
                    };
                    self.speech = Some(Speech::begin(tts, &piece, takes_text, request));
                }
            }
        }
        if let Some(speech) =
            self.speech.as_mut().filter(|_| is_all && self.splitter.is_empty() && self.next.is_none())
        {
            speech.finish();
        }
    }
}
