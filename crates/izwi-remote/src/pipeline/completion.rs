//! `POST /v1/chat/completions`: messages go out, the text of the answer and its calls of tools come back while it is written.
//!
//! Reasoning is left out: `reasoning_content` and the like, and text between `<think>` marks.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use futures::stream::{self, BoxStream, StreamExt};
use izwi_core::engine::RemoteError;
use izwi_types::{ToolCall, bounded};
use reqwest::Url;
use serde::Deserialize;
use serde_json::{Map, Value};
use sse_stream::{Sse, SseByteStream};
use tokio::time::{Instant, timeout_at};

use super::reasoning::ReasoningFilter;
use crate::answer::{self, Fault};
use crate::shared::Shared;
use crate::upstreams::{Attempt, Outcome};

/// The most bytes of text and arguments of an answer: it is cut there.
const MAX_TEXT_BYTES: usize = 32 << 10;
/// The most bytes of an answer, with what is left out of it.
const MAX_BYTES: usize = 16 << 20;
/// The longest time that an answer may take.
const LONGEST: Duration = Duration::from_secs(600);
/// The most calls of an answer.
const MAX_CALLS: usize = 32;
/// The most characters of a server's message that reach a client.
const MAX_MESSAGE_CHARS: usize = 300;

/// What comes of an answer.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Event {
    /// Text, without reasoning.
    Text(String),
    /// The end.
    End(End),
}

/// The end of an answer.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct End {
    pub(super) calls: Vec<Arc<ToolCall>>,
    /// Tokens of the prompt and of the answer, where the server counts them.
    pub(super) usage: Option<(usize, usize)>,
    /// Whether a limit of tokens ended it.
    pub(super) is_cut: bool,
}

#[derive(Deserialize)]
struct Part {
    choices: Option<Vec<Choice>>,
    usage: Option<Usage>,
    error: Option<Value>,
}

#[derive(Deserialize)]
struct Choice {
    delta: Option<Delta>,
    finish_reason: Option<String>,
}

#[derive(Deserialize)]
struct Delta {
    content: Option<String>,
    tool_calls: Option<Vec<CallPart>>,
}

#[derive(Deserialize)]
struct CallPart {
    index: Option<usize>,
    id: Option<String>,
    function: Option<FunctionPart>,
}

#[derive(Deserialize)]
struct FunctionPart {
    name: Option<String>,
    /// A text, or from some servers an object.
    arguments: Option<Value>,
}

#[derive(Deserialize)]
struct Usage {
    #[serde(default)]
    prompt_tokens: usize,
    #[serde(default)]
    completion_tokens: usize,
}

/// An answer that is being read. Dropping it closes the connection.
pub(super) struct Completion {
    llm: Arc<Shared>,
    /// `None` before it belongs to a request, and after its end.
    attempt: Option<Attempt>,
    events: BoxStream<'static, Result<Sse, sse_stream::Error>>,
    reasoning: ReasoningFilter,
    ready: VecDeque<Event>,
    calls: Vec<(Option<usize>, ToolCall)>,
    end: End,
    text_bytes: usize,
    /// Whether the server told why it ends.
    is_finished: bool,
    is_over: bool,
}

/// Why an answer is not read on.
#[derive(Debug, thiserror::Error)]
enum Stop {
    #[error("{0}")]
    Cut(String),
    #[error("lost the connection")]
    Network,
}

/// The events of a response, as long as it keeps within the limits of time and size.
fn events(response: reqwest::Response, llm: &Shared) -> BoxStream<'static, Result<Sse, sse_stream::Error>> {
    let (now, idle) = (Instant::now(), llm.config.idle_timeout);
    let ends_by = now + LONGEST;
    let begun = (response.bytes_stream().boxed(), now + llm.config.first_byte_timeout, 0);
    let bytes = stream::try_unfold(begun, move |(mut bytes, due, total)| async move {
        let until = due.min(ends_by);
        let part = match timeout_at(until, bytes.next()).await {
            Err(_) if until == ends_by => Err(format!("takes longer than {} s", LONGEST.as_secs())),
            Err(_) => Err(format!("sent nothing for {} s", idle.as_secs())),
            Ok(Some(Err(_))) => return Err(Stop::Network),
            Ok(Some(Ok(part))) if total + part.len() > MAX_BYTES => {
                Err(format!("sends more than {MAX_BYTES} bytes"))
            }
            Ok(part) => Ok(part.and_then(Result::ok)),
        };
        let part = part.map_err(Stop::Cut)?;
        Ok(part.map(|part| {
            let total = total + part.len();
            (part, (bytes, Instant::now() + idle, total))
        }))
    });
    SseByteStream::new(Box::pin(bytes)).boxed()
}

/// Sends the request and waits for the first event.
pub(super) async fn begin(
    llm: Arc<Shared>,
    base: &Url,
    body: &Map<String, Value>,
) -> Result<Completion, Fault> {
    let model = llm.config.name.clone();
    let sent = llm.post(base, "chat/completions").json(body).send().await;
    let response = sent.map_err(|error| Fault::network(&model, &error))?;
    let response = answer::check_status(&model, response).await?;
    if let Some(found) = answer::media_type(response.headers()).filter(|found| found != "text/event-stream") {
        let found = izwi_types::excerpt(&found);
        return Err(Fault::failed(&model, format!("sends {found} instead of a stream of events")));
    }
    let mut completion = Completion {
        events: events(response, &llm),
        llm,
        attempt: None,
        reasoning: ReasoningFilter::default(),
        ready: VecDeque::new(),
        calls: Vec::new(),
        end: End::default(),
        text_bytes: 0,
        is_finished: false,
        is_over: false,
    };
    match completion.read().await {
        Ok(()) => Ok(completion),
        Err(Stop::Cut(why)) => Err(Fault::failed(&model, why)),
        Err(Stop::Network) => Err(Fault::failed(&model, "closed the connection without an answer")),
    }
}

impl Completion {
    /// The same, as the answer to a request.
    pub(super) fn of(mut self, mut attempt: Attempt) -> Self {
        attempt.answered();
        self.attempt = Some(attempt);
        if self.is_over {
            self.finish(Outcome::Answered);
        }
        self
    }

    /// What comes next; `None` after the end and after an error. Cancel-safe.
    pub(super) async fn next(&mut self) -> Option<Result<Event, RemoteError>> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Some(Ok(event));
            }
            if self.is_over {
                return None;
            }
            if let Err(stop) = self.read().await {
                self.is_over = true;
                self.finish(Outcome::Cut);
                let message =
                    format!("the answer was cut: a server of model '{}' {stop}", self.llm.config.name);
                return Some(Err(RemoteError::Failed(message)));
            }
        }
    }

    /// Reads an event. Cancel-safe.
    async fn read(&mut self) -> Result<(), Stop> {
        match self.events.next().await {
            Some(Ok(event)) => self.take(event.data.as_deref().unwrap_or_default().trim()),
            None if self.is_finished => {
                self.end();
                Ok(())
            }
            None => Err(Stop::Cut("ended it early".to_owned())),
            Some(Err(sse_stream::Error::Body(stop))) => {
                Err(stop.downcast().map_or(Stop::Network, |stop| *stop))
            }
            Some(Err(_)) => {
                Err(Stop::Cut("sends no chat completion: what came is no event of one".to_owned()))
            }
        }
    }

    fn take(&mut self, data: &str) -> Result<(), Stop> {
        match data {
            "" => {}
            "[DONE]" => self.end(),
            data => self.take_part(serde_json::from_str(data).map_err(|_| {
                Stop::Cut("sends no chat completion: its JSON has another form".to_owned())
            })?)?,
        }
        Ok(())
    }

    fn take_part(&mut self, part: Part) -> Result<(), Stop> {
        if let Some(error) = part.error.filter(|error| !error.is_null()) {
            let message = error["message"].as_str().or(error.as_str()).unwrap_or("no message");
            return Err(Stop::Cut(format!("fails: {}", bounded(message, MAX_MESSAGE_CHARS))));
        }
        if part.choices.is_none() && part.usage.is_none() {
            return Err(Stop::Cut("sends no chat completion: its JSON has another form".to_owned()));
        }
        if let Some(usage) = part.usage {
            self.end.usage = Some((usage.prompt_tokens, usage.completion_tokens));
        }
        // One choice was asked for.
        for Choice { delta, finish_reason } in part.choices.into_iter().flatten().take(1) {
            let Delta { content, tool_calls } = delta.unwrap_or(Delta { content: None, tool_calls: None });
            if let Some(content) = content {
                let text = self.reasoning.push(&content);
                self.tell(text);
            }
            for part in tool_calls.into_iter().flatten() {
                self.take_call(part);
            }
            if let Some(reason) = finish_reason {
                self.is_finished = true;
                self.end.is_cut |= reason == "length";
            }
        }
        if self.text_bytes > MAX_TEXT_BYTES {
            // The rest is not read: nobody listens as long.
            self.end.is_cut = true;
            self.end();
        }
        Ok(())
    }

    fn tell(&mut self, text: String) {
        self.text_bytes += text.len();
        if !text.is_empty() {
            self.ready.push_back(Event::Text(text));
        }
    }

    fn take_call(&mut self, part: CallPart) {
        let found = match part.index {
            Some(index) => self.calls.iter().position(|(known, _)| *known == Some(index)),
            // Without a number, an id begins a call.
            None if part.id.is_some() => None,
            None => self.calls.len().checked_sub(1),
        };
        if found.is_none() && self.calls.len() < MAX_CALLS {
            let call = ToolCall { id: String::new(), name: String::new(), arguments: String::new() };
            self.calls.push((part.index, call));
        }
        let at = found.or(self.calls.len().checked_sub(1));
        let Some((_, call)) = at.and_then(|at| self.calls.get_mut(at)) else { return };
        if let Some(id) = part.id.filter(|id| !id.is_empty()) {
            call.id = bounded(&id, 64);
        }
        let FunctionPart { name, arguments } =
            part.function.unwrap_or(FunctionPart { name: None, arguments: None });
        call.name.push_str(&name.unwrap_or_default());
        let arguments = match arguments {
            None | Some(Value::Null) => String::new(),
            Some(Value::String(text)) => text,
            Some(object) => object.to_string(),
        };
        self.text_bytes += arguments.len();
        call.arguments.push_str(&arguments);
    }

    fn end(&mut self) {
        self.is_over = true;
        let rest = self.reasoning.finish();
        self.tell(rest);
        let calls = std::mem::take(&mut self.calls).into_iter().enumerate();
        self.end.calls = calls
            .filter(|(_, (_, call))| !call.name.is_empty())
            .map(|(at, (_, mut call))| {
                if call.id.is_empty() {
                    call.id = format!("call_{at}_{}", &uuid::Uuid::new_v4().simple().to_string()[..12]);
                }
                if call.arguments.trim().is_empty() {
                    "{}".clone_into(&mut call.arguments);
                }
                Arc::new(call)
            })
            .collect();
        self.ready.push_back(Event::End(std::mem::take(&mut self.end)));
        self.finish(Outcome::Answered);
        // Closes the connection, also where more would come.
        self.events = stream::empty().boxed();
    }

    fn finish(&mut self, outcome: Outcome) {
        if let Some(attempt) = self.attempt.take() {
            attempt.end(outcome);
        }
    }
}
