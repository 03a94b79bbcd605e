//! What clients do, well-behaved and not, and whether the answers are those of an undisturbed run.
//!
//! Must not know the process of the server.

use std::collections::HashMap;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use futures::StreamExt;
use izwi_benches::clips;
use izwi_tests::{Form, Incoming, Session, Turn, exchange};
use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::Message;

use super::server::Server;

const SPEECH: &str = "/v1/audio/speech/stream";
const CHAT: &str = "/v1/audio/chat/stream";
/// Speech models, and the most tokens of an utterance where they are needed: random weights do not end by themselves.
const VOICES: [(&str, Option<usize>); 2] = [("hibari", None), ("qwen3-tts-0.6b-customvoice", Some(24))];
const TEXTS: [&str; 3] = [
    "What did they say about the weather?",
    "The north wind and the sun disputed which was the stronger. Then a traveller came along.",
    "Yes.",
];
const CLIPS: usize = 3;
/// Routes for garbage.
const ROUTES: [&str; 4] = ["/v1/audio/speech", "/v1/audio/transcriptions", "/v1/audio/voices", "/v1/nothing"];

/// What a client did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Act {
    Stream,
    SlowReader,
    Interrupt,
    LeaveStream,
    Resume,
    Speech,
    LeaveSpeech,
    Transcribe,
    LeaveTranscription,
    Converse,
    GarbageRequest,
    GarbageFrame,
    Look,
}

/// Acts and how often they occur.
const ACTS: [(Act, u64); 13] = [
    (Act::Stream, 4),
    (Act::SlowReader, 2),
    (Act::Interrupt, 2),
    (Act::LeaveStream, 2),
    (Act::Resume, 3),
    (Act::Speech, 3),
    (Act::LeaveSpeech, 1),
    (Act::Transcribe, 3),
    (Act::LeaveTranscription, 1),
    (Act::Converse, 2),
    (Act::GarbageRequest, 3),
    (Act::GarbageFrame, 2),
    (Act::Look, 1),
];

/// How an act ended, if not with an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ended {
    Done,
    /// The server had no room, and said so.
    Refused,
}

/// Numbers that look random; the same for each seed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// A number below `sides`.
    pub(crate) fn throw(&mut self, sides: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 20) as usize % sides.max(1)
    }

    pub(crate) fn act(&mut self) -> Act {
        let total: u64 = ACTS.iter().map(|(_, weight)| weight).sum();
        let mut at = self.throw(total as usize) as u64;
        for (act, weight) in ACTS {
            match at.checked_sub(weight) {
                Some(rest) => at = rest,
                None => return act,
            }
        }
        Act::Look
    }
}

/// An utterance: model and text, as indices.
type Utterance = (usize, usize);

/// Answers of an undisturbed server.
#[derive(Debug, Default)]
pub(crate) struct Expected {
    /// Samples of sessions and of HTTP requests, as 16-bit PCM.
    streams: HashMap<Utterance, Vec<u8>>,
    speech: HashMap<Utterance, Vec<u8>>,
    transcripts: Vec<String>,
    turn: (String, Vec<u8>),
}

/// The clients of one server.
#[derive(Debug)]
pub(crate) struct Clients<'a> {
    pub(crate) server: &'a Server,
    pub(crate) expected: Expected,
    recordings: Vec<Vec<u8>>,
}

/// Whether a frame or a status says that the server has no room.
fn is_refusal(frame: &Value) -> bool {
    matches!(frame["code"].as_str(), Some("overloaded" | "model_loading" | "too_many_sessions"))
}

impl<'a> Clients<'a> {
    /// Asks for everything once, one after the other.
    pub(crate) async fn new(server: &'a Server) -> Result<Self> {
        let clips = clips::all()?;
        let recordings =
            clips.iter().take(CLIPS).map(|clip| std::fs::read(&clip.path)).collect::<std::io::Result<_>>()?;
        let mut clients = Self { server, expected: Expected::default(), recordings };
        for (voice, (model, _)) in VOICES.iter().enumerate() {
            for text in 0..TEXTS.len() {
                let mut session = clients.begin((voice, text)).await?;
                let mut heard = Vec::new();
                ensure!(
                    clients.hear(&mut session, &mut heard, usize::MAX, 0).await? == Ended::Done,
                    "the idle server refuses {model}"
                );
                ensure!(!heard.is_empty(), "{model} says nothing");
                clients.expected.streams.insert((voice, text), heard);
                let answer = clients.ask((voice, text)).await?;
                ensure!(answer.status().is_success(), "speech ends with {}", answer.status());
                let pcm = answer.bytes().await?.to_vec();
                clients.expected.speech.insert((voice, text), pcm);
            }
        }
        for clip in 0..CLIPS {
            let (text, _) = clients.transcribe(clip).await?;
            clients.expected.transcripts.push(text.context("the idle server refuses a recording")?);
        }
        clients.expected.turn = clients.turn().await?.context("the idle server refuses a conversation")?;
        Ok(clients)
    }

    /// Does one thing.
    pub(crate) async fn run(&self, act: Act, dice: &mut Dice) -> Result<Ended> {
        let which = (dice.throw(VOICES.len()), dice.throw(TEXTS.len()));
        let clip = dice.throw(CLIPS);
        match act {
            Act::Stream => self.stream(which, 0).await,
            Act::SlowReader => self.stream(which, 20 + dice.throw(300) as u64).await,
            Act::Interrupt | Act::LeaveStream => self.cut(which, act == Act::Interrupt, dice).await,
            Act::Resume => self.resume(which, dice).await,
            Act::Speech => self.speech(which).await,
            Act::LeaveSpeech => self.leave_speech(which).await,
            Act::Transcribe => {
                let (text, refused) = self.transcribe(clip).await?;
                let Some(text) = text else { return Ok(refused) };
                let expected = &self.expected.transcripts[clip];
                ensure!(text == *expected, "a transcript differs: {text:?}, alone {expected:?}");
                Ok(Ended::Done)
            }
            Act::LeaveTranscription => {
                let asked = self.transcribe(clip);
                let _ = tokio::time::timeout(Duration::from_millis(dice.throw(200) as u64), asked).await;
                Ok(Ended::Done)
            }
            Act::Converse => match self.turn().await? {
                Some(turn) => {
                    ensure!(turn == self.expected.turn, "a turn differs from that of an idle server");
                    Ok(Ended::Done)
                }
                None => Ok(Ended::Refused),
            },
            Act::GarbageRequest => self.garbage_request(dice).await,
            Act::GarbageFrame => self.garbage_frame(dice).await,
            Act::Look => self.look().await,
        }
    }

    /// Opens a session and asks for an utterance.
    async fn begin(&self, (voice, text): Utterance) -> Result<Session> {
        let mut session = Session::open(&self.server.socket(SPEECH)).await?;
        let (model, max_tokens) = VOICES[voice];
        let mut config = json!({"type": "session.config", "model": model, "seed": 7, "chunk_ms": 200});
        if let (Some(config), Some(most)) = (config.as_object_mut(), max_tokens) {
            config.insert("max_tokens".to_owned(), json!(most));
        }
        session.send(config).await?;
        session.send(json!({"type": "speak", "text": TEXTS[text]})).await?;
        Ok(session)
    }

    /// Reads audio up to `most` bytes or the end, `pause_ms` after each chunk.
    async fn hear(
        &self,
        session: &mut Session,
        heard: &mut Vec<u8>,
        most: usize,
        pause_ms: u64,
    ) -> Result<Ended> {
        while heard.len() < most {
            match session.next().await? {
                Incoming::Audio(bytes) => {
                    heard.extend(bytes);
                    tokio::time::sleep(Duration::from_millis(pause_ms)).await;
                }
                Incoming::Frame(frame) if frame["type"] == "error" => {
                    ensure!(is_refusal(&frame), "the server answers {frame}");
                    return Ok(Ended::Refused);
                }
                Incoming::Frame(frame) if frame["type"] == "session.done" => break,
                Incoming::Frame(_) => {}
                Incoming::Closed(code) => bail!("the server closed a session with {code:?}"),
            }
        }
        Ok(Ended::Done)
    }

    fn check(
        &self,
        which: Utterance,
        heard: &[u8],
        expected: &HashMap<Utterance, Vec<u8>>,
        whole: bool,
    ) -> Result<()> {
        let expected = expected.get(&which).context("an utterance that nobody asked for")?;
        let same = if whole { heard == expected } else { expected.starts_with(heard) };
        if !same {
            let at = heard
                .iter()
                .zip(expected)
                .position(|(a, b)| a != b)
                .unwrap_or(heard.len().min(expected.len()));
            bail!(
                "audio differs from that of an idle server: {} text {}: {} bytes, alone {}, the first difference at {at}",
                VOICES[which.0].0,
                which.1,
                heard.len(),
                expected.len()
            );
        }
        Ok(())
    }

    async fn stream(&self, which: Utterance, pause_ms: u64) -> Result<Ended> {
        let mut session = self.begin(which).await?;
        let mut heard = Vec::new();
        let ended = self.hear(&mut session, &mut heard, usize::MAX, pause_ms).await?;
        if ended == Ended::Done {
            self.check(which, &heard, &self.expected.streams, true)?;
        }
        Ok(ended)
    }

    /// Interrupts a stream, or leaves it without a word.
    async fn cut(&self, which: Utterance, interrupt: bool, dice: &mut Dice) -> Result<Ended> {
        let mut session = self.begin(which).await?;
        let mut heard = Vec::new();
        let most = 1 + dice.throw(60_000);
        let ended = self.hear(&mut session, &mut heard, most, 0).await?;
        self.check(which, &heard, &self.expected.streams, false)?;
        if interrupt && ended == Ended::Done {
            // The utterance may have ended just before: then there is nothing to interrupt.
            let _ = session.send(json!({"type": "interrupt"})).await;
            while !matches!(session.next().await?, Incoming::Closed(_)) {}
        }
        Ok(ended)
    }

    /// Loses a connection and continues where it was.
    async fn resume(&self, which: Utterance, dice: &mut Dice) -> Result<Ended> {
        let mut session = self.begin(which).await?;
        let created = session.frame().await?;
        if is_refusal(&created) {
            return Ok(Ended::Refused);
        }
        ensure!(created["type"] == "session.created", "the server answers {created}");
        let mut heard = Vec::new();
        let whole = self.expected.streams.get(&which).map_or(0, Vec::len);
        if self.hear(&mut session, &mut heard, dice.throw(whole), 0).await? == Ended::Refused {
            return Ok(Ended::Refused);
        }
        drop(session);
        heard.truncate(dice.throw(heard.len() + 1) / 2 * 2);
        let mut session = Session::open(&self.server.socket(SPEECH)).await?;
        let resume = json!({
            "type": "session.resume",
            "session_id": created["session_id"],
            "resume_token": created["resume_token"],
            "next_sample": heard.len() / 2,
        });
        session.send(resume).await?;
        let ended = self.hear(&mut session, &mut heard, usize::MAX, 0).await?;
        if ended == Ended::Done {
            self.check(which, &heard, &self.expected.streams, true)?;
        }
        Ok(ended)
    }

    async fn ask(&self, (voice, text): Utterance) -> Result<reqwest::Response> {
        let (model, max_tokens) = VOICES[voice];
        let body = json!({
            "model": model,
            "input": TEXTS[text],
            "seed": 7,
            "response_format": "pcm",
            "max_tokens": max_tokens,
        });
        Ok(self.server.client.post(self.server.url("/v1/audio/speech")).json(&body).send().await?)
    }

    async fn speech(&self, which: Utterance) -> Result<Ended> {
        let answer = self.ask(which).await?;
        if matches!(answer.status().as_u16(), 429 | 503) {
            return Ok(Ended::Refused);
        }
        ensure!(
            answer.status().is_success(),
            "speech ends with {}: {}",
            answer.status(),
            answer.text().await?
        );
        self.check(which, &answer.bytes().await?, &self.expected.speech, true)?;
        Ok(Ended::Done)
    }

    async fn leave_speech(&self, which: Utterance) -> Result<Ended> {
        let answer = self.ask(which).await?;
        if answer.status().is_success() {
            answer.bytes_stream().next().await.transpose()?;
            return Ok(Ended::Done);
        }
        ensure!(matches!(answer.status().as_u16(), 429 | 503), "speech ends with {}", answer.status());
        Ok(Ended::Refused)
    }

    /// The text of a recording; `None` if the server has no room.
    async fn transcribe(&self, clip: usize) -> Result<(Option<String>, Ended)> {
        let form = Form::new().text("model", "whisper-tiny.en").file("file", &self.recordings[clip]);
        let request = self.server.client.post(self.server.url("/v1/audio/transcriptions"));
        let request = request.header("content-type", Form::content_type()).body(form.finish());
        let answer = request.send().await?;
        if matches!(answer.status().as_u16(), 429 | 503) {
            return Ok((None, Ended::Refused));
        }
        ensure!(answer.status().is_success(), "a transcription ends with {}", answer.status());
        let body: Value = answer.json().await?;
        Ok((Some(body["text"].as_str().context("a transcript without text")?.to_owned()), Ended::Done))
    }

    /// Text and audio of the answer to a turn; `None` if the server has no room.
    async fn turn(&self) -> Result<Option<(String, Vec<u8>)>> {
        let mut session = Session::open(&self.server.socket(CHAT)).await?;
        let config =
            json!({"type": "session.config", "model": "lfm2-audio-1.5b", "seed": 4, "max_tokens": 24});
        session.send(config).await?;
        let created = session.frame().await?;
        if is_refusal(&created) {
            return Ok(None);
        }
        ensure!(created["type"] == "session.created", "the server answers {created}");
        session.send(json!({"type": "input.text", "text": TEXTS[0]})).await?;
        let mut turn = Turn::default();
        while turn.done.is_null() {
            match session.next().await? {
                Incoming::Frame(frame) => match frame["type"].as_str() {
                    Some("text.delta") => turn.text.push_str(frame["delta"].as_str().unwrap_or_default()),
                    Some("turn.done") => turn.done = frame,
                    Some("error") if is_refusal(&frame) => return Ok(None),
                    Some("error") => bail!("the server answers {frame}"),
                    _ => {}
                },
                Incoming::Audio(bytes) => turn.chunks.push((Value::Null, bytes)),
                Incoming::Closed(code) => bail!("the server closed a conversation with {code:?}"),
            }
        }
        Ok(Some((turn.text.clone(), turn.audio())))
    }

    /// Bytes that are no request, or a request that is none of the API.
    async fn garbage_request(&self, dice: &mut Dice) -> Result<Ended> {
        let noise: Vec<u8> = (0..dice.throw(4_096)).map(|_| dice.throw(256) as u8).collect();
        if dice.throw(3) == 0 {
            let _ = exchange(self.server.address, &noise).await;
            return Ok(Ended::Done);
        }
        let route = ROUTES[dice.throw(ROUTES.len())];
        let bodies: [Vec<u8>; 5] = [
            noise,
            b"{\"input\": 3}".to_vec(),
            b"[[[[[[[[".to_vec(),
            b"{\"model\": \"hibari\", \"input\": \"\"}".to_vec(),
            b"{\"audio\": \"AAAA\"}".to_vec(),
        ];
        let body = bodies[dice.throw(bodies.len())].clone();
        let kind = if dice.throw(2) == 0 { "application/json" } else { "multipart/form-data; boundary=x" };
        let request = self.server.client.post(self.server.url(route)).header("content-type", kind);
        let status = request.body(body).send().await?.status();
        ensure!(status.is_client_error(), "garbage at {route} is answered with {status}");
        Ok(Ended::Done)
    }

    async fn garbage_frame(&self, dice: &mut Dice) -> Result<Ended> {
        let path = if dice.throw(2) == 0 { SPEECH } else { CHAT };
        let mut session = Session::open(&self.server.socket(path)).await?;
        let noise: Vec<u8> = (0..1 + dice.throw(2_000)).map(|_| dice.throw(256) as u8).collect();
        let frames = [
            Message::binary(noise),
            Message::text("{"),
            Message::text("{\"type\": \"speak\"}"),
            Message::text(
                "{\"type\": \"session.resume\", \"session_id\": \"x\", \"resume_token\": \"y\", \"next_sample\": 1}",
            ),
            Message::text("[1, 2]"),
        ];
        for _ in 0..1 + dice.throw(4) {
            let frame = frames[dice.throw(frames.len())].clone();
            if session.send_raw(frame).await.is_err() {
                break;
            }
        }
        let answer = session.next().await?;
        let is_told = match &answer {
            Incoming::Frame(frame) => frame["type"] == "error" || frame["type"] == "session.created",
            Incoming::Closed(_) => true,
            Incoming::Audio(_) => false,
        };
        ensure!(is_told, "garbage is answered with {answer:?}");
        Ok(Ended::Done)
    }

    async fn look(&self) -> Result<Ended> {
        for path in ["/livez", "/health", "/metrics", "/v1/models", "/v1/audio/voices"] {
            let status = self.server.client.get(self.server.url(path)).send().await?.status();
            ensure!(status.is_success(), "{path} answers {status}");
        }
        Ok(Ended::Done)
    }
}
