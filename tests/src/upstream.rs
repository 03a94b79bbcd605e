//! A server that follows the published protocol of vLLM-Omni's speech API, with faults on request.
//!
//! <https://docs.vllm.ai/projects/vllm-omni/en/stable/serving/speech_api/>

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

/// Voices of the served model.
const VOICES: [&str; 3] = ["vivian", "ryan", "aiden"];

/// A request that arrived.
#[derive(Debug, Clone)]
pub struct Seen {
    /// Method and path.
    pub line: String,
    /// The headers, in lower case.
    pub headers: String,
    /// The JSON body; null for others.
    pub body: Value,
}

/// What is answered to a valid request.
#[derive(Debug, Clone)]
pub enum Reply {
    /// These parts of audio; each leaves with a permit of the gate.
    Audio(Vec<Vec<u8>>, Arc<Semaphore>),
    /// These parts of audio, then the connection is cut with a permit of the gate.
    Cut(Vec<Vec<u8>>, Arc<Semaphore>),
    /// A status with extra headers, a content type and a body.
    Status(u16, &'static str, &'static str, &'static str),
    /// Nothing, until the client leaves.
    Nothing,
}

impl Reply {
    /// All of the audio at once.
    pub fn audio(bytes: &[u8]) -> Self {
        Self::Audio(vec![bytes.to_vec()], Arc::new(Semaphore::new(1)))
    }
}

#[derive(Debug, Default)]
struct State {
    seen: Mutex<Vec<Seen>>,
    /// Connections that the client closed while it was answered.
    left: AtomicUsize,
    /// Parts that were sent.
    sent: AtomicUsize,
}

/// The server.
#[derive(Debug)]
pub struct Upstream {
    /// Its address.
    pub address: SocketAddr,
    state: Arc<State>,
}

impl Upstream {
    /// Starts a server that answers each valid request for speech or a transcript, by its number from 0, with `reply`.
    pub async fn start(reply: impl Fn(usize) -> Reply + Send + Sync + 'static) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let (state, reply) = (Arc::new(State::default()), Arc::new(reply));
        let shared = Arc::clone(&state);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (state, reply) = (Arc::clone(&shared), Arc::clone(&reply));
                // A client that leaves ends its connection alone.
                tokio::spawn(async move { serve(stream, &state, &*reply).await.is_ok() });
            }
        });
        Ok(Self { address, state })
    }

    /// Its base URL.
    pub fn url(&self) -> String {
        format!("http://{}/v1", self.address)
    }

    /// The requests for speech and transcripts so far.
    pub fn seen(&self) -> Vec<Seen> {
        self.state.seen.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Connections that the client closed while it was answered.
    pub fn left(&self) -> usize {
        self.state.left.load(Ordering::SeqCst)
    }

    /// Parts of audio that were sent.
    pub fn sent(&self) -> usize {
        self.state.sent.load(Ordering::SeqCst)
    }
}

/// Reads one request and answers it.
async fn serve(mut stream: TcpStream, state: &State, reply: &(dyn Fn(usize) -> Reply + Sync)) -> Result<()> {
    let seen = read(&mut stream).await?;
    if seen.line.starts_with("GET /v1/audio/voices") {
        let body = json!({"voices": VOICES, "uploaded_voices": []}).to_string();
        return status(&mut stream, 200, "", "application/json", &body).await;
    }
    if let Some(refusal) = refusal(&seen) {
        let error =
            json!({"error": {"message": refusal, "type": "BadRequestError", "param": null, "code": 400}});
        return status(&mut stream, 400, "", "application/json", &error.to_string()).await;
    }
    let number = {
        let mut all = state.seen.lock().unwrap_or_else(PoisonError::into_inner);
        all.push(seen);
        all.len() - 1
    };
    match reply(number) {
        Reply::Status(code, headers, content_type, body) => {
            status(&mut stream, code, headers, content_type, body).await
        }
        Reply::Nothing => gone(&mut stream, state).await,
        Reply::Audio(parts, gate) => {
            head(&mut stream).await?;
            for part in parts {
                tokio::select! {
                    permit = gate.acquire() => permit?.forget(),
                    left = gone(&mut stream, state) => return left,
                }
                if send(&mut stream, &part).await.is_err() {
                    return gone(&mut stream, state).await;
                }
                state.sent.fetch_add(1, Ordering::SeqCst);
            }
            Ok(stream.write_all(b"0\r\n\r\n").await?)
        }
        Reply::Cut(parts, gate) => {
            head(&mut stream).await?;
            for part in parts {
                send(&mut stream, &part).await?;
            }
            gate.acquire().await?.forget();
            Ok(())
        }
    }
}

/// What the protocol refuses.
fn refusal(seen: &Seen) -> Option<String> {
    let body = &seen.body;
    let streams = body["stream"] == true || body.get("stream_format").is_some();
    if seen.line == "POST /v1/audio/transcriptions HTTP/1.1" {
        // Its form is not read.
        None
    } else if seen.line != "POST /v1/audio/speech HTTP/1.1" {
        Some(format!("no route {}", seen.line))
    } else if body["input"].as_str().is_none_or(|input| input.trim().is_empty()) {
        Some("Input text cannot be empty".to_owned())
    } else if body["response_format"] != "pcm" || body["stream_format"] != "audio" && streams {
        Some("raw audio needs response_format pcm and stream_format audio".to_owned())
    } else if streams && body.get("speed").is_some_and(|speed| *speed != 1.0) {
        Some("Streaming requires speed 1.0".to_owned())
    } else if body["voice"].as_str().is_some_and(|voice| !VOICES.contains(&voice)) {
        Some(format!("Invalid speaker '{}'", body["voice"]))
    } else {
        None
    }
}

async fn read(stream: &mut TcpStream) -> Result<Seen> {
    let mut bytes = Vec::new();
    let end = loop {
        if let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            break end;
        }
        anyhow::ensure!(stream.read_buf(&mut bytes).await? > 0, "no request");
    };
    let head = String::from_utf8(bytes[..end].to_vec())?;
    let (line, headers) = head.split_once("\r\n").context("a request has headers")?;
    let headers = headers.to_lowercase();
    let length = headers.lines().find_map(|line| line.strip_prefix("content-length: "));
    let length: usize = length.map_or(Ok(0), str::parse)?;
    let mut body = bytes.split_off(end + 4);
    while body.len() < length {
        anyhow::ensure!(stream.read_buf(&mut body).await? > 0, "no body");
    }
    let body = serde_json::from_slice(&body).unwrap_or_default();
    Ok(Seen { line: line.to_owned(), headers, body })
}

async fn status(
    stream: &mut TcpStream,
    code: u16,
    headers: &str,
    content_type: &str,
    body: &str,
) -> Result<()> {
    let length = body.len();
    let head = format!(
        "HTTP/1.1 {code} Told\r\nContent-Type: {content_type}\r\nContent-Length: {length}\r\nConnection: close\r\n"
    );
    Ok(stream.write_all(format!("{head}{headers}\r\n{body}").as_bytes()).await?)
}

async fn head(stream: &mut TcpStream) -> Result<()> {
    let head = "HTTP/1.1 200 OK\r\nContent-Type: audio/pcm\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n";
    Ok(stream.write_all(head.as_bytes()).await?)
}

async fn send(stream: &mut TcpStream, part: &[u8]) -> Result<()> {
    stream.write_all(format!("{:x}\r\n", part.len()).as_bytes()).await?;
    stream.write_all(part).await?;
    Ok(stream.write_all(b"\r\n").await?)
}

/// Waits until the client closes the connection.
async fn gone(stream: &mut TcpStream, state: &State) -> Result<()> {
    let mut rest = [0; 64];
    // A reset connection is closed too.
    while stream.read(&mut rest).await.unwrap_or(0) > 0 {}
    state.left.fetch_add(1, Ordering::SeqCst);
    Ok(())
}
