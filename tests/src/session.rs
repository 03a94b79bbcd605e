//! A WebSocket client.

use anyhow::{Context, Result, bail, ensure};
use futures::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tokio::net::{TcpSocket, TcpStream};
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::{WebSocketStream, client_async};

use crate::guarded;

/// Receive buffer of a slow client, in bytes.
const SMALL_BUFFER: u32 = 4_096;

/// A received frame.
#[derive(Debug, Clone, PartialEq)]
pub enum Incoming {
    /// A text frame.
    Frame(Value),
    /// A binary frame.
    Audio(Vec<u8>),
    /// The end, with the close code.
    Closed(Option<u16>),
}

/// One received utterance.
#[derive(Debug, Clone, Default)]
pub struct Utterance {
    /// `audio.start`.
    pub start: Value,
    /// `audio.chunk` frames with their audio.
    pub chunks: Vec<(Value, Vec<u8>)>,
    /// `audio.done`.
    pub done: Value,
}

/// One received turn of a conversation.
#[derive(Debug, Clone, Default)]
pub struct Turn {
    /// The joined `text.delta` frames.
    pub text: String,
    /// `audio.chunk` frames with their audio.
    pub chunks: Vec<(Value, Vec<u8>)>,
    /// `turn.done`; null while there is none.
    pub done: Value,
}

impl Turn {
    /// The audio of all chunks.
    pub fn audio(&self) -> Vec<u8> {
        self.chunks.iter().flat_map(|(_, bytes)| bytes.iter().copied()).collect()
    }
}

/// An open session.
#[derive(Debug)]
pub struct Session {
    socket: WebSocketStream<TcpStream>,
}

impl Session {
    /// Opens a session.
    pub async fn open(url: &str) -> Result<Self> {
        Self::open_with(url.into_client_request()?).await
    }

    /// Opens a session with a custom request.
    pub async fn open_with(
        request: tokio_tungstenite::tungstenite::handshake::client::Request,
    ) -> Result<Self> {
        let authority = request.uri().authority().context("a url has a host")?.as_str().to_owned();
        let stream = guarded(TcpStream::connect(authority)).await??;
        let (socket, _) = guarded(client_async(request, stream)).await??;
        Ok(Self { socket })
    }

    /// Opens a session with a tiny kernel buffer.
    pub async fn open_small(address: std::net::SocketAddr) -> Result<Self> {
        let tcp = TcpSocket::new_v4()?;
        tcp.set_recv_buffer_size(SMALL_BUFFER)?;
        let stream = guarded(tcp.connect(address)).await??;
        let request = format!("ws://{address}/v1/audio/speech/stream").into_client_request()?;
        let (socket, _) = guarded(client_async(request, stream)).await??;
        Ok(Self { socket })
    }

    /// Sends a frame.
    pub async fn send(&mut self, frame: Value) -> Result<()> {
        self.send_raw(Message::text(frame.to_string())).await
    }

    /// Sends anything.
    pub async fn send_raw(&mut self, message: Message) -> Result<()> {
        Ok(guarded(self.socket.send(message)).await??)
    }

    /// The next frame except pings, and pauses of streams, which a busy machine may tell at any time.
    pub async fn next(&mut self) -> Result<Incoming> {
        loop {
            return Ok(match guarded(self.socket.next()).await? {
                Some(Ok(Message::Text(text))) => {
                    let frame: Value = serde_json::from_str(&text)?;
                    if frame["type"] == "audio.pause" {
                        continue;
                    }
                    Incoming::Frame(frame)
                }
                Some(Ok(Message::Binary(bytes))) => Incoming::Audio(bytes.to_vec()),
                Some(Ok(Message::Close(frame))) => Incoming::Closed(frame.map(|frame| frame.code.into())),
                Some(Ok(Message::Ping(_) | Message::Pong(_) | Message::Frame(_))) => continue,
                Some(Err(_)) | None => Incoming::Closed(None),
            });
        }
    }

    /// The next text frame.
    pub async fn frame(&mut self) -> Result<Value> {
        match self.next().await? {
            Incoming::Frame(frame) => Ok(frame),
            other => bail!("expected a text frame, got {other:?}"),
        }
    }

    /// The text frames up to the end of the session, which must be a normal one.
    pub async fn rest(&mut self) -> Result<Vec<Value>> {
        let mut frames = Vec::new();
        loop {
            match self.next().await? {
                Incoming::Frame(frame) => frames.push(frame),
                Incoming::Closed(Some(1_000)) => return Ok(frames),
                other => bail!("expected frames and a normal end, got {other:?} after {frames:?}"),
            }
        }
    }

    /// The next text frame, which must be of this type.
    pub async fn expect(&mut self, kind: &str) -> Result<Value> {
        let frame = self.frame().await?;
        ensure!(frame["type"] == kind, "expected {kind}, got {frame}");
        Ok(frame)
    }

    /// Reads until a frame of this type, past anything but errors.
    pub async fn until(&mut self, kind: &str) -> Result<Value> {
        loop {
            match self.next().await? {
                Incoming::Frame(frame) if frame["type"] == kind => return Ok(frame),
                Incoming::Frame(frame) => ensure!(frame["type"] != "error", "{frame}"),
                Incoming::Audio(_) => {}
                Incoming::Closed(code) => bail!("closed with {code:?} before {kind}"),
            }
        }
    }

    /// The next frame, which must be an error with this code.
    pub async fn expect_error(&mut self, code: &str) -> Result<Value> {
        let frame = self.expect("error").await?;
        ensure!(frame["code"] == code, "expected the code {code}, got {frame}");
        ensure!(frame["message"].as_str().is_some_and(|text| !text.is_empty()), "no message in {frame}");
        Ok(frame)
    }

    /// The next chunk: its header frame and the audio frame that follows.
    pub async fn chunk(&mut self) -> Result<(Value, Vec<u8>)> {
        let description = self.expect("audio.chunk").await?;
        match self.next().await? {
            Incoming::Audio(bytes) => Ok((description, bytes)),
            other => bail!("expected audio behind {description}, got {other:?}"),
        }
    }

    /// A whole utterance.
    pub async fn utterance(&mut self) -> Result<Utterance> {
        let start = self.expect("audio.start").await?;
        self.rest_of(Utterance { start, ..Default::default() }).await
    }

    /// The rest of a started utterance.
    pub async fn rest_of(&mut self, mut utterance: Utterance) -> Result<Utterance> {
        loop {
            let frame = self.frame().await?;
            if frame["type"] == "audio.done" {
                return Ok(Utterance { done: frame, ..utterance });
            }
            if frame["type"] == "interrupted" {
                continue;
            }
            ensure!(frame["type"] == "audio.chunk", "expected a chunk, got {frame}");
            match self.next().await? {
                Incoming::Audio(bytes) => utterance.chunks.push((frame, bytes)),
                other => bail!("expected audio behind {frame}, got {other:?}"),
            }
        }
    }

    /// The rest of a turn of a conversation.
    pub async fn rest_of_turn(&mut self, mut turn: Turn) -> Result<Turn> {
        while turn.done.is_null() {
            self.more_of(&mut turn).await?;
        }
        Ok(turn)
    }

    /// The next frame of a turn with its audio.
    pub async fn more_of(&mut self, turn: &mut Turn) -> Result<()> {
        let frame = self.frame().await?;
        match frame["type"].as_str() {
            Some("text.delta") => turn.text.push_str(frame["delta"].as_str().context("text in a delta")?),
            Some("audio.chunk") => match self.next().await? {
                Incoming::Audio(bytes) => turn.chunks.push((frame, bytes)),
                other => bail!("expected audio behind {frame}, got {other:?}"),
            },
            Some("interrupted") => {}
            Some("turn.done") => turn.done = frame,
            _ => bail!("expected more of a turn, got {frame}"),
        }
        Ok(())
    }

    /// The end of a session: `session.done` and the close.
    pub async fn expect_done(&mut self, close_code: u16) -> Result<()> {
        self.expect("session.done").await?;
        let closed = self.next().await?;
        ensure!(
            closed == Incoming::Closed(Some(close_code)),
            "expected a close with {close_code}, got {closed:?}"
        );
        Ok(())
    }

    /// Speaks one text and returns its only utterance.
    pub async fn speak(&mut self, text: &str) -> Result<Utterance> {
        self.send(json!({"type": "speak", "text": text})).await?;
        self.expect("session.created").await?;
        let utterance = self.utterance().await?;
        self.expect_done(1000).await?;
        Ok(utterance)
    }
}
