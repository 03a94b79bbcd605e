//! A client of the WebSocket for speech, which can lose its connection and come back.

use std::net::TcpStream;

use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::{self, Message, WebSocket};

use super::GUARD;
use super::servers::{SAMPLE, TEXT, options};

pub(super) struct Listener {
    socket: Option<WebSocket<TcpStream>>,
    /// `session.created`, or the refusal in its place.
    first: Value,
    /// All samples, as they came.
    pub(super) audio: Vec<u8>,
    chunks: usize,
    next_seq: Option<u64>,
    is_done: bool,
    pub(super) close_code: Option<u16>,
}

fn connect(port: u16, instance: Option<&str>) -> WebSocket<TcpStream> {
    let query = instance.map(|name| format!("?instance={name}")).unwrap_or_default();
    let stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_read_timeout(Some(GUARD)).unwrap();
    let url = format!("ws://127.0.0.1:{port}/v1/audio/speech/stream{query}");
    tungstenite::client(url, stream).unwrap().0
}

fn send(socket: &mut WebSocket<TcpStream>, frame: &Value) {
    socket.send(Message::text(frame.to_string())).unwrap();
}

fn frame(socket: &mut WebSocket<TcpStream>) -> Value {
    loop {
        match socket.read().unwrap() {
            Message::Text(text) => return serde_json::from_str(&text).unwrap(),
            Message::Ping(_) | Message::Pong(_) => {}
            other => panic!("expected a frame, got {other:?}"),
        }
    }
}

impl Listener {
    /// Opens a session, on a replica of this name where one is given.
    pub(super) fn open(port: u16, instance: Option<&str>) -> Self {
        let mut socket = connect(port, instance);
        let mut config = options();
        config["type"] = "session.config".into();
        config["non_streaming_mode"] = true.into();
        send(&mut socket, &config);
        let first = frame(&mut socket);
        Self {
            socket: Some(socket),
            first,
            audio: Vec::new(),
            chunks: 0,
            next_seq: None,
            is_done: false,
            close_code: None,
        }
    }

    /// The replica that holds the session.
    pub(super) fn instance(&self) -> String {
        self.first["instance"].as_str().unwrap_or_else(|| panic!("{}", self.first)).to_owned()
    }

    /// The code of the error in place of `session.created`.
    pub(super) fn refusal(&mut self) -> String {
        assert_eq!(self.first["type"], "error", "{}", self.first);
        self.first["code"].as_str().unwrap().to_owned()
    }

    pub(super) fn speak(&mut self) {
        let socket = self.socket.as_mut().unwrap();
        send(socket, &json!({"type": "input.text", "text": TEXT}));
        send(socket, &json!({"type": "input.done"}));
    }

    /// Reads on until so many further chunks came.
    pub(super) fn hear(&mut self, chunks: usize) {
        let until = self.chunks + chunks;
        while self.chunks < until {
            assert!(self.read().unwrap(), "the session ended: {:?}", self.close_code);
        }
    }

    /// Reads until the session is done and closed.
    pub(super) fn hear_all(&mut self) {
        while self.read().unwrap() {}
        assert!(self.is_done, "closed with {:?} before the end", self.close_code);
    }

    /// Reads until the connection breaks.
    pub(super) fn hear_break(&mut self) {
        while self.read().unwrap_or(false) {}
        assert!(!self.is_done && self.close_code.is_none(), "closed with {:?}", self.close_code);
    }

    /// Reads one message; false once the session is closed.
    fn read(&mut self) -> tungstenite::Result<bool> {
        let socket = self.socket.as_mut().unwrap();
        match socket.read()? {
            Message::Text(text) => {
                let frame: Value = serde_json::from_str(&text).unwrap();
                match frame["type"].as_str().unwrap() {
                    "audio.chunk" => self.chunk(&frame)?,
                    "audio.done" => {
                        let samples = self.audio.len() / SAMPLE;
                        assert_eq!(frame["samples"], samples, "{frame}");
                    }
                    "session.done" => self.is_done = true,
                    // A busy machine tells that it pauses.
                    "audio.start" | "audio.pause" => {}
                    _ => panic!("unexpected {frame}"),
                }
            }
            Message::Close(close) => {
                self.close_code = close.map(|close| close.code.into());
                // Answers it: the server need not wait for this client to come back.
                let _ = socket.flush();
                return Ok(false);
            }
            _ => {}
        }
        Ok(true)
    }

    /// Reads the audio after its description, which continues what came before.
    fn chunk(&mut self, described: &Value) -> tungstenite::Result<()> {
        let number = |name: &str| described[name].as_u64().unwrap();
        assert_eq!(number("sample_offset") as usize, self.audio.len() / SAMPLE, "{described}");
        if let Some(expected) = self.next_seq {
            assert_eq!(number("seq"), expected, "{described}");
        }
        self.next_seq = Some(number("seq") + 1);
        let audio = loop {
            match self.socket.as_mut().unwrap().read()? {
                Message::Binary(audio) => break audio,
                Message::Ping(_) | Message::Pong(_) => {}
                other => panic!("expected audio, got {other:?}"),
            }
        };
        assert_eq!(number("samples") as usize, audio.len() / SAMPLE, "{described}");
        self.audio.extend_from_slice(&audio);
        self.chunks += 1;
        Ok(())
    }

    /// Loses the connection without a close frame, in the middle of a chunk.
    pub(super) fn lose(&mut self) {
        self.socket = None;
        self.audio.truncate(self.audio.len() - 309 * SAMPLE);
        self.next_seq = self.next_seq.map(|seq| seq - 1);
    }

    /// Continues the session through the balancer. The code of the error, if it is refused.
    pub(super) fn resume(&mut self, port: u16) -> Result<(), String> {
        let mut socket = connect(port, Some(&self.instance()));
        let next_sample = self.audio.len() / SAMPLE;
        send(
            &mut socket,
            &json!({
                "type": "session.resume", "session_id": self.first["session_id"],
                "resume_token": self.first["resume_token"], "next_sample": next_sample,
            }),
        );
        let answer = frame(&mut socket);
        self.socket = Some(socket);
        match answer["type"].as_str() {
            Some("session.resumed") => {
                assert_eq!(answer["next_sample"], next_sample);
                Ok(())
            }
            _ => Err(answer["code"].as_str().unwrap_or_else(|| panic!("{answer}")).to_owned()),
        }
    }
}
