//! A server of a scripted language model: OpenAI's chat completions as a stream, with faults on request.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Result;
use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use axum::routing::{get, post};
use axum::{Json, Router};
use futures::stream::{self, StreamExt};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

/// A step of an answer.
#[derive(Debug, Clone)]
pub enum Line {
    /// A piece of text.
    Text(&'static str),
    /// A piece of what the model thinks, as servers tell it apart.
    Thought(&'static str),
    /// A call of a tool, its arguments in two pieces: its number, id, name and arguments.
    Call(usize, &'static str, &'static str, &'static str),
    /// The end, with this reason and usage.
    End(&'static str),
    /// These bytes as they are.
    Raw(&'static str),
    /// This text again and again, until the client leaves.
    Endless(&'static str),
    /// Nothing for this long.
    Pause(Duration),
    /// Nothing, until there is a permit.
    Wait(Arc<Semaphore>),
}

/// An answer.
#[derive(Debug, Clone)]
pub enum Completion {
    /// A stream of events.
    Lines(Vec<Line>),
    /// A status with `Retry-After`, and a body.
    Status(u16, &'static str),
}

impl Completion {
    /// These pieces of text, and the end.
    pub fn text(pieces: &[&'static str]) -> Self {
        Self::Lines(pieces.iter().map(|piece| Line::Text(piece)).chain([Line::End("stop")]).collect())
    }
}

type Script = Box<dyn Fn(usize, &Value) -> Completion + Send + Sync>;

struct Shared {
    script: Script,
    seen: Mutex<Vec<Value>>,
    open: Arc<AtomicUsize>,
}

/// The server.
pub struct Llm {
    /// Its address.
    pub address: SocketAddr,
    shared: Arc<Shared>,
}

impl std::fmt::Debug for Llm {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Llm").field("address", &self.address).finish_non_exhaustive()
    }
}

impl Llm {
    /// Starts a server that answers each request, by its number from 0 and its body, as `script` says.
    pub async fn start(script: impl Fn(usize, &Value) -> Completion + Send + Sync + 'static) -> Result<Self> {
        let shared =
            Arc::new(Shared { script: Box::new(script), seen: Mutex::default(), open: Arc::default() });
        let models = || async { Json(json!({"object": "list", "data": [{"id": "scripted"}]})) };
        let routes =
            Router::new().route("/v1/chat/completions", post(answer)).route("/v1/models", get(models));
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let service = routes.with_state(Arc::clone(&shared));
        tokio::spawn(async move { axum::serve(listener, service).await.is_ok() });
        Ok(Self { address, shared })
    }

    /// Its base URL.
    pub fn url(&self) -> String {
        format!("http://{}/v1", self.address)
    }

    /// The bodies of the requests so far.
    pub fn seen(&self) -> Vec<Value> {
        self.shared.seen.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Answers that have not ended.
    pub fn open(&self) -> usize {
        self.shared.open.load(Ordering::SeqCst)
    }
}

/// Counts an answer while it is open.
struct Open(Arc<AtomicUsize>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

async fn answer(State(shared): State<Arc<Shared>>, Json(body): Json<Value>) -> Response {
    let number = {
        let mut seen = shared.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.push(body.clone());
        seen.len() - 1
    };
    let lines = match (shared.script)(number, &body) {
        Completion::Lines(lines) => lines,
        Completion::Status(status, message) => {
            let body = json!({"error": {"message": message}}).to_string();
            let response = Response::builder().status(status).header("retry-after", "7");
            return response.header("content-type", "application/json").body(body.into()).unwrap_or_default();
        }
    };
    shared.open.fetch_add(1, Ordering::SeqCst);
    let open = Open(Arc::clone(&shared.open));
    let events = stream::unfold(
        (lines.into_iter(), None::<&'static str>, open),
        |(mut lines, again, open)| async move {
            loop {
                let line = match again {
                    Some(text) => Line::Endless(text),
                    None => lines.next()?,
                };
                let event = match line {
                    Line::Wait(gate) => {
                        gate.acquire_owned().await.ok()?.forget();
                        continue;
                    }
                    Line::Pause(time) => {
                        tokio::time::sleep(time).await;
                        continue;
                    }
                    Line::Endless(text) => {
                        let event = delta(&json!({"content": text}));
                        return Some((Ok::<_, Infallible>(event), (lines, Some(text), open)));
                    }
                    Line::Text(text) => delta(&json!({"content": text})),
                    Line::Thought(text) => delta(&json!({"reasoning_content": text, "content": null})),
                    Line::Call(index, id, name, arguments) => {
                        let (head, tail) = arguments.split_at(arguments.len() / 2);
                        let function = json!({"name": name, "arguments": head});
                        let first =
                            json!({"index": index, "id": id, "type": "function", "function": function});
                        let second = json!({"index": index, "function": {"arguments": tail}});
                        delta(&json!({"tool_calls": [first]})) + &delta(&json!({"tool_calls": [second]}))
                    }
                    Line::End(reason) => {
                        let end = json!({"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]});
                        let usage =
                            json!({"choices": [], "usage": {"prompt_tokens": 40, "completion_tokens": 9}});
                        format!("data: {end}\n\ndata: {usage}\n\ndata: [DONE]\n\n")
                    }
                    Line::Raw(text) => text.to_owned(),
                };
                return Some((Ok(event), (lines, None, open)));
            }
        },
    );
    let response = Response::builder().header("content-type", "text/event-stream");
    response.body(Body::from_stream(events.boxed())).unwrap_or_default()
}

fn delta(delta: &Value) -> String {
    let part = json!({"object": "chat.completion.chunk", "choices": [{"index": 0, "delta": delta}]});
    format!("data: {part}\n\n")
}
