//! A server of live transcription that sends what a test tells it: a text that no model would hear.

use std::net::TcpListener;
use std::sync::mpsc::{Receiver, Sender, channel};

use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::{Message, accept};

/// The server. One session at a time gets the events.
pub(super) struct Script {
    port: u16,
    events: Sender<Value>,
}

impl Script {
    pub(super) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let (events, queue) = channel();
        std::thread::spawn(move || serve(&listener, &queue));
        Self { port, events }
    }

    pub(super) fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Somebody begins to speak.
    pub(super) fn started(&self, turn: u64) {
        self.events.send(json!({"type": "speech.started", "turn": turn, "at_ms": 0})).unwrap();
    }

    /// Text is final.
    pub(super) fn committed(&self, turn: u64, text: &str) {
        self.events.send(json!({"type": "committed", "turn": turn, "text": text})).unwrap();
    }

    /// A turn has ended.
    pub(super) fn ended(&self, turn: u64, text: &str) {
        self.events.send(json!({"type": "turn.end", "turn": turn, "text": text})).unwrap();
    }

    /// A whole turn, in pieces.
    pub(super) fn turn(&self, turn: u64, pieces: &[&str]) {
        self.started(turn);
        pieces.iter().for_each(|piece| self.committed(turn, piece));
        self.ended(turn, pieces.concat().trim());
    }

    /// The session ends, and the next one may come.
    pub(super) fn done(&self) {
        self.events.send(json!({"type": "session.done", "duration_s": 1.0})).unwrap();
    }
}

fn serve(listener: &TcpListener, queue: &Receiver<Value>) {
    while let Ok((stream, _)) = listener.accept() {
        let mut socket = accept(stream).unwrap();
        socket.send(Message::text(json!({"type": "session.created"}).to_string())).unwrap();
        for event in queue.iter() {
            // A client that was interrupted has gone.
            if socket.send(Message::text(event.to_string())).is_err() || event["type"] == "session.done" {
                break;
            }
        }
        // A socket with audio that nobody has read would take the last events back.
        let _ = socket.close(None);
        while socket.read().is_ok() {}
    }
}
