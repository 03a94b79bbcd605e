//! A conversation by voice: the microphone in, answers through the speaker, which speaking interrupts.
//!
//! The turns are found and answered by the server's Realtime session; this is its client.

use std::collections::VecDeque;

use anyhow::{Context as _, Result};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use futures::stream::SplitSink;
use futures::{SinkExt as _, StreamExt as _};
use izwi_core::engine::Engine;
use izwi_hub::Store;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::Message;

use super::session::AnswerOptions;
use crate::failure;
use crate::output;
use crate::sound::{Microphone, Player, Playing};
use crate::web_socket::{Place, Socket};

const LOST: &str = "the session with the model was lost";
/// Rate of the answers: that of the session without another.
const ANSWER_HZ: u32 = 24_000;

/// Refuses options that a conversation by voice cannot have.
///
/// # Errors
/// One of them is given.
pub(super) fn check(options: &AnswerOptions) -> Result<()> {
    let given = [
        ("--seed", options.seed.is_some()),
        ("--temperature", options.temperature.is_some()),
        ("--text-temperature", options.text_temperature.is_some()),
    ];
    match given.iter().find(|(_, is_given)| *is_given) {
        Some((name, _)) => Err(failure::usage(format!("{name} has no effect with --mic"), "leave it out")),
        None => Ok(()),
    }
}

/// Converses until the microphone or the session ends.
///
/// # Errors
/// There is no microphone, a device fails, or the session ends.
pub(super) async fn converse(
    options: &AnswerOptions,
    (engine, turn_model): (Engine, Option<Engine>),
    store: &Store,
    player: &Player,
) -> Result<()> {
    // What the settings say of a pipeline holds.
    let transcriber = engine.profile().info.transcriber.as_ref();
    let has_turns = transcriber.is_some_and(|transcriber| transcriber.turns.is_some());
    let session = session(options, has_turns);
    let place = Place::start(engine, turn_model, store).await?;
    let (sink, mut events) = place.connect("/v1/realtime").await?.split();
    let mut talk = Talk { sink, answer: Answer::new(player) };
    let mut microphone: Option<Microphone> = None;
    loop {
        let message = tokio::select! {
            audio = hear(&mut microphone) => match audio? {
                None => return Ok(()),
                Some(audio) => {
                    let audio = STANDARD.encode(audio);
                    talk.send(&json!({"type": "input_audio_buffer.append", "audio": audio})).await?;
                    continue;
                }
            },
            played = talk.answer.play() => {
                played?;
                continue;
            }
            message = events.next() => message,
        };
        let text = match message {
            Some(Ok(Message::Text(text))) => text,
            Some(Ok(Message::Close(_))) | None => anyhow::bail!(LOST),
            Some(Ok(_)) => continue,
            Some(Err(error)) => return Err(anyhow::Error::new(error).context(LOST)),
        };
        let event: Event = serde_json::from_str(&text).context("the server sent no event")?;
        match event.kind.as_str() {
            "session.created" => talk.send(&session).await?,
            "session.updated" if microphone.is_none() => {
                let opened = Microphone::open()?;
                output::status(&format!("listening to {}; Ctrl-C ends the conversation", opened.name()));
                microphone = Some(opened);
            }
            _ => talk.take(event).await?,
        }
    }
}

/// What the session is set to, where the pipeline has turns of its own or not.
fn session(options: &AnswerOptions, has_turns: bool) -> Value {
    let mut session = json!({
        "type": "realtime",
        "output_modalities": ["audio"],
        "audio": {
            "input": {"format": {"type": "audio/pcm", "rate": Microphone::RATE_HZ}},
            "output": {"format": {"type": "audio/pcm", "rate": ANSWER_HZ}},
        },
    });
    if !has_turns {
        session["audio"]["input"]["turn_detection"] = json!({"type": "semantic_vad"});
    }
    if let Some(instructions) = &options.instructions {
        session["instructions"] = json!(instructions);
    }
    if let Some(tokens) = options.max_tokens {
        session["max_output_tokens"] = json!(tokens);
    }
    json!({"type": "session.update", "session": session})
}

/// The next audio of the microphone, once there is one; `None` at its end.
async fn hear(microphone: &mut Option<Microphone>) -> Result<Option<Vec<u8>>> {
    match microphone {
        Some(microphone) => microphone.read().await,
        None => std::future::pending().await,
    }
}

/// An event of the server.
#[derive(Debug, Deserialize)]
struct Event {
    #[serde(rename = "type")]
    kind: String,
    item_id: Option<String>,
    delta: Option<String>,
    error: Option<Value>,
    response: Option<Value>,
}

struct Talk<'a> {
    sink: SplitSink<Socket, Message>,
    answer: Answer<'a>,
}

impl Talk<'_> {
    async fn send(&mut self, event: &Value) -> Result<()> {
        self.sink.send(Message::text(event.to_string())).await.context(LOST)
    }

    async fn take(&mut self, event: Event) -> Result<()> {
        match event.kind.as_str() {
            "input_audio_buffer.speech_started" => {
                if let Some((item, heard_ms)) = self.answer.stop() {
                    let content = json!({
                        "type": "conversation.item.truncate",
                        "item_id": item,
                        "content_index": 0,
                        "audio_end_ms": heard_ms,
                    });
                    self.send(&content).await?;
                }
            }
            "response.output_audio.delta" => self.answer.push(event)?,
            "response.output_audio_transcript.delta" | "response.output_text.delta" => {
                output::print(event.delta.as_deref().unwrap_or_default())?;
            }
            "response.done" => {
                output::print("\n")?;
                self.answer.is_complete = true;
                let status = event.response.as_ref().and_then(|response| response["status"].as_str());
                if status == Some("failed") {
                    output::status("the model failed to answer");
                }
            }
            "error" => {
                let message = event.error.as_ref().and_then(|error| error["message"].as_str());
                output::status(&format!("error: {}", message.unwrap_or("unknown")));
            }
            _ => {}
        }
        Ok(())
    }
}

/// The answer that is played.
struct Answer<'a> {
    player: &'a Player,
    playing: Option<Playing>,
    /// Audio that is not with the player yet.
    queue: VecDeque<Vec<f32>>,
    is_complete: bool,
    /// The item that it belongs to, and the last one that was interrupted.
    item: Option<String>,
    interrupted: Option<String>,
}

impl<'a> Answer<'a> {
    fn new(player: &'a Player) -> Self {
        Self {
            player,
            playing: None,
            queue: VecDeque::new(),
            is_complete: false,
            item: None,
            interrupted: None,
        }
    }

    /// Takes audio of an answer, unless it was interrupted.
    fn push(&mut self, event: Event) -> Result<()> {
        if event.item_id.is_some() && event.item_id == self.interrupted {
            return Ok(());
        }
        let bytes = STANDARD.decode(event.delta.unwrap_or_default()).context("the server sent no audio")?;
        let (pairs, _) = bytes.as_chunks::<2>();
        let samples = pairs.iter().map(|&pair| f32::from(i16::from_le_bytes(pair)) / 32_768.0);
        self.queue.push_back(samples.collect());
        (self.item, self.is_complete) = (event.item_id, false);
        Ok(())
    }

    /// Passes audio on to the player, or waits until the last is heard. Pends while there is nothing to play. No audio is lost if
    /// the future is dropped.
    async fn play(&mut self) -> Result<()> {
        if let Some(samples) = self.queue.pop_front() {
            let playing = match &mut self.playing {
                Some(playing) => playing,
                none => none.insert(self.player.open_stream(ANSWER_HZ)?),
            };
            return playing.write(&samples).await;
        }
        match &mut self.playing {
            Some(playing) if self.is_complete => {
                playing.finish().await?;
                (self.playing, self.item) = (None, None);
                Ok(())
            }
            _ => std::future::pending().await,
        }
    }

    /// Stops at once. Returns the item that was interrupted and the milliseconds of it that were heard.
    fn stop(&mut self) -> Option<(String, u64)> {
        self.queue.clear();
        let playing = self.playing.take();
        let item = self.item.take()?;
        self.interrupted = Some(item.clone());
        let heard_ms = playing.map_or(0, |playing| playing.heard().as_millis() as u64);
        Some((item, heard_ms))
    }
}
