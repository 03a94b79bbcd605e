//! `izwi mcp`: the Model Context Protocol on standard input and output, so that agents speak and listen on this machine.
//!
//! Every tool asks a server: one that runs, or else one in this process. What is its own is the sound and the files of this
//! machine.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Error, Result};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use futures::{SinkExt as _, StreamExt as _};
use izwi_audio::encode::Format;
use izwi_dialects::mcp::tools::{self, Call, Hearing, LISTS, MAX_REFUSAL_BYTES, Speech, TextArgument};
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ErrorData, JsonObject, ListToolsResult,
    PaginatedRequestParams,
};
use rmcp::schemars::{self, JsonSchema};
use rmcp::service::{RequestContext, RoleServer};
use rmcp::{ServerHandler, ServiceExt as _};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::Mutex;
use tokio::time::Instant;
use tokio_tungstenite::tungstenite::Message;

use crate::audio_file::AudioFile;
use crate::interrupt::Interrupt;
use crate::pending_file::is_special;
use crate::settings::Resolved;
use crate::sink::{self, Target};
use crate::sound::{Microphone, Player};
use crate::web_socket::Place;
use crate::{engine, failure, input, logging, output};

/// Seconds of `listen_once` at most, and where none are given.
const MAX_SECONDS: u64 = 600;
const SECONDS: u64 = 60;
const LISTENING: &str = "/v1/realtime?intent=transcription";
const LOST: &str = "the session with the server was lost";

const INSTRUCTIONS: &str = "Speech on the user's machine. `speak` says a text aloud, `listen_once` returns what the user says next, \
    `transcribe` returns the text of a recording.";
const OUTPUT: TextArgument = TextArgument {
    name: "output",
    description: "Path of an audio file to write instead, in the format of its extension, such as .wav; replaces an existing one.",
    is_required: false,
};
const PATH: TextArgument = TextArgument {
    name: "path",
    description: "Path of the recording, of any common format.",
    is_required: true,
};

/// Give agents a voice and ears, over the Model Context Protocol
///
/// A client starts this command and speaks the protocol on its standard input and output. Tools: `speak` plays a text or
/// writes it to a file, `listen_once` records what is said into the microphone until the end of a turn and returns its text,
/// `transcribe` returns the text of a recording, `voices` lists voices and models. They ask the server on the configured host
/// and port, if one runs there; else models load here when they are first used, and those that are not installed are pulled.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Use this server, such as http://127.0.0.1:8080; its key is the setting api_key
    #[arg(long, value_name = "URL")]
    server: Option<String>,
    /// Fail if a model is not installed, instead of pulling it
    #[arg(long)]
    no_pull: bool,
}

pub(crate) fn run(args: &Args, resolved: &Resolved) -> Result<()> {
    // Errors of requests are results of tools.
    logging::begin(&resolved.settings, "error,symphonia=off");
    let runtime = engine::runtime()?;
    let served = runtime.block_on(async {
        let mut interrupt = Interrupt::listen()?;
        let tools = Tools {
            place: place(args, resolved).await?,
            client: izwi_remote::plain_client().context("cannot make a client of HTTP")?,
            max_bytes: resolved.settings.server.config.max_upload_bytes,
            speaker: Mutex::default(),
            microphone: Mutex::default(),
        };
        let work = async {
            // A client that leaves before it has begun is no failure.
            let Ok(service) = tools.serve(rmcp::transport::stdio()).await else { return Ok(()) };
            service.waiting().await.context("the session ended")?;
            Ok(())
        };
        interrupt.guard_to_end(work).await
    });
    // A read of standard input may still block.
    runtime.shutdown_background();
    served
}

/// The server that the tools ask.
async fn place(args: &Args, resolved: &Resolved) -> Result<Place> {
    if let Some(url) = &args.server {
        return Place::of(url, resolved.settings.server.config.api_key.clone());
    }
    if let Some(place) = Place::running(resolved) {
        output::status(&format!("izwi mcp uses the server on {}", place.url("")));
        return Ok(place);
    }
    Place::of_models(resolved, !args.no_pull).await
}

/// Arguments of `listen_once`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Listening {
    /// When to stop at the latest, in seconds: 1 to 600, 60 without it.
    seconds: Option<u64>,
    /// Language that is spoken, as a BCP 47 tag; detected without it.
    language: Option<String>,
    /// Name of a model that transcribes; the default one without it.
    model: Option<String>,
}

/// The tools, and what they share.
#[derive(Debug)]
struct Tools {
    place: Place,
    client: reqwest::Client,
    /// Largest recording.
    max_bytes: usize,
    /// One text is played at a time.
    speaker: Mutex<()>,
    /// One turn is heard at a time.
    microphone: Mutex<()>,
}

impl Tools {
    /// The answer of the server, if it is none that refuses.
    async fn call(&self, call: Call) -> Result<reqwest::Response> {
        let url = self.place.url(call.path);
        let request = match &call.body {
            Some(body) => self.client.post(url).json(body),
            None => self.client.get(url),
        };
        let request = match self.place.key() {
            Some(key) => request.bearer_auth(key),
            None => request,
        };
        let lost = || format!("no answer of the server at {}", self.place.url(""));
        let mut response = request.send().await.with_context(lost)?;
        if response.status().is_success() {
            return Ok(response);
        }
        let mut body = Vec::new();
        while body.len() < MAX_REFUSAL_BYTES
            && let Some(bytes) = response.chunk().await.with_context(lost)?
        {
            body.extend_from_slice(&bytes);
        }
        anyhow::bail!(tools::refusal(&body))
    }

    async fn json(&self, call: Call) -> Result<Value> {
        self.call(call).await?.json().await.context("the server sent no JSON")
    }

    async fn work(&self, name: &str, mut arguments: JsonObject) -> Result<CallToolResult> {
        match name {
            "speak" => {
                let output = tools::take(&mut arguments, OUTPUT.name).map_err(Error::msg)?;
                self.speak(&tools::read(arguments).map_err(Error::msg)?, output.as_deref()).await
            }
            "transcribe" => {
                let path = tools::take(&mut arguments, PATH.name).map_err(Error::msg)?;
                let path = ordinary(&path.context("path is missing; give that of a recording")?)?;
                let hearing: Hearing = tools::read(arguments).map_err(Error::msg)?;
                let max_bytes = self.max_bytes as u64;
                let read = move || input::read_file(&path, max_bytes).map(|bytes| STANDARD.encode(bytes));
                let audio = tokio::task::spawn_blocking(read).await??;
                Ok(hearing.result(self.json(hearing.call(audio).map_err(Error::msg)?).await?))
            }
            "listen_once" => self.listen(tools::read(arguments).map_err(Error::msg)?).await.map(tools::text),
            "voices" => {
                let [voices, models] = LISTS;
                tools::read::<tools::Nothing>(arguments).map_err(Error::msg)?;
                Ok(tools::lists([self.json(voices).await?, self.json(models).await?]))
            }
            other => Err(Error::msg(tools::unknown(other))),
        }
    }

    async fn speak(&self, speech: &Speech, output: Option<&str>) -> Result<CallToolResult> {
        let file = output.map(destination).transpose()?;
        let player = if file.is_none() { Some(Player::find(true)?) } else { None };
        let _turn = if player.is_some() { Some(self.speaker.lock().await) } else { None };
        let mut response = self.call(speech.call(player.is_some())).await?;
        let rate_hz = tools::sample_rate_hz(response.headers()).map_err(Error::msg)?;
        let mut file = file.map(|(path, format)| AudioFile::create(&path, format, rate_hz)).transpose()?;
        let mut playing = player.map(|player| player.open_stream(rate_hz)).transpose()?;
        let (mut bytes, mut count) = (Vec::new(), 0);
        while let Some(more) =
            response.chunk().await.context("the model failed; the speech is not complete")?
        {
            bytes.extend_from_slice(&more);
            let (pairs, rest) = bytes.as_chunks::<2>();
            let samples: Vec<f32> =
                pairs.iter().map(|&pair| f32::from(i16::from_le_bytes(pair)) / 32_768.0).collect();
            bytes = rest.to_vec();
            count += samples.len();
            if let Some(file) = &mut file {
                tokio::task::block_in_place(|| file.write(&samples))?;
            }
            if let Some(playing) = &mut playing {
                playing.write(&samples).await?;
            }
        }
        let mut place = "were played".to_owned();
        if let Some(file) = file {
            place = format!("are in {}", file.path().display());
            tokio::task::block_in_place(|| file.finish())?;
        }
        if let Some(mut playing) = playing {
            playing.finish().await?;
        }
        Ok(tools::text(format!("{:.2} s of speech {place}", count as f64 / f64::from(rate_hz))))
    }

    /// The text of the first turn that has words.
    async fn listen(&self, arguments: Listening) -> Result<String> {
        let seconds = arguments.seconds.unwrap_or(SECONDS);
        if !(1..=MAX_SECONDS).contains(&seconds) {
            anyhow::bail!("seconds is {seconds}; give 1 to {MAX_SECONDS}");
        }
        let _turn = self.microphone.lock().await;
        let (mut sink, mut events) = self.place.connect(LISTENING).await?.split();
        let input = json!({
            "format": {"type": "audio/pcm", "rate": Microphone::RATE_HZ},
            "turn_detection": {"type": "semantic_vad"},
            "transcription": {"model": arguments.model, "language": arguments.language},
        });
        let session = json!({"type": "transcription", "audio": {"input": input}});
        let update = json!({"type": "session.update", "session": session});
        sink.send(Message::text(update.to_string())).await.context(LOST)?;
        // Nothing is recorded before the session is configured.
        let mut microphone: Option<Microphone> = None;
        let mut limit = None;
        let mut turn = Turn::default();
        loop {
            if turn.is_over && !turn.waits {
                anyhow::ensure!(turn.is_speaking, "nothing was said in {seconds} s");
                turn.waits = true;
                sink.send(Message::text(r#"{"type":"input_audio_buffer.commit"}"#)).await.context(LOST)?;
            }
            let audio = tokio::select! {
                () = until(limit) => None,
                audio = hear(&mut microphone) => audio?,
                message = events.next() => {
                    let Some(Ok(message)) = message else { anyhow::bail!(LOST) };
                    let Message::Text(event) = message else { continue };
                    let event: Value = serde_json::from_str(&event).context("the server sent no event")?;
                    if event["type"] == "session.updated" && limit.is_none() {
                        microphone = Some(Microphone::open()?);
                        limit = Some(Instant::now() + Duration::from_secs(seconds));
                    }
                    match turn.take(&event)? {
                        Some(text) => return Ok(text),
                        None => continue,
                    }
                }
            };
            let Some(audio) = audio else {
                // What was said until now is still transcribed.
                (microphone, limit, turn.is_over) = (None, None, true);
                continue;
            };
            let append = json!({"type": "input_audio_buffer.append", "audio": STANDARD.encode(audio)});
            sink.send(Message::text(append.to_string())).await.context(LOST)?;
        }
    }
}

/// A turn that is heard.
#[derive(Debug, Default)]
struct Turn {
    is_speaking: bool,
    /// Whether a transcript comes.
    waits: bool,
    /// Whether no further audio comes.
    is_over: bool,
}

impl Turn {
    /// Takes an event of the server. Returns the text, once it is known.
    ///
    /// # Errors
    /// The event tells one.
    fn take(&mut self, event: &Value) -> Result<Option<String>> {
        match event["type"].as_str().unwrap_or_default() {
            "input_audio_buffer.speech_started" => self.is_speaking = true,
            "input_audio_buffer.committed" => (self.is_speaking, self.waits) = (false, true),
            "conversation.item.input_audio_transcription.completed" => {
                self.waits = false;
                let text = event["transcript"].as_str().unwrap_or_default().trim();
                return Ok(Some(text.to_owned()).filter(|text| !text.is_empty()));
            }
            "conversation.item.input_audio_transcription.failed" | "error" => {
                let message = event["error"]["message"].as_str();
                anyhow::bail!(message.unwrap_or("the server failed without a reason").to_owned());
            }
            _ => {}
        }
        Ok(None)
    }
}

/// The next audio of the microphone; pends without one.
async fn hear(microphone: &mut Option<Microphone>) -> Result<Option<Vec<u8>>> {
    match microphone {
        Some(microphone) => microphone.read().await,
        None => std::future::pending().await,
    }
}

async fn until(limit: Option<Instant>) {
    match limit {
        Some(limit) => tokio::time::sleep_until(limit).await,
        None => std::future::pending().await,
    }
}

/// The file to write at a path of an agent.
fn destination(path: &str) -> Result<(PathBuf, &'static Format)> {
    let path = ordinary(path)?;
    sink::check_file(&path)?;
    Target::file(&path)
}

/// The whole path of a file: devices and pipes are none for an agent.
fn ordinary(path: &str) -> Result<PathBuf> {
    let path = std::path::absolute(path).with_context(|| format!("'{path}' is no path"))?;
    if is_special(&path) {
        return Err(failure::with_help(format!("{} is a device or a pipe", path.display()), "name a file"));
    }
    Ok(path)
}

/// What an agent is told of a failure: as a terminal is, without the word before it.
fn told(error: &anyhow::Error) -> String {
    failure::render(error).trim_start_matches("error: ").trim_end().to_owned()
}

impl ServerHandler for Tools {
    fn get_info(&self) -> rmcp::model::ServerConfig {
        tools::introduction(INSTRUCTIONS)
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let speak = "Speaks a text aloud on the user's machine, or writes the audio to a file.";
        let transcribe = "Returns the text of a recording in a file.";
        let listen_once =
            "Listens to the microphone until the user has said something, and returns its text.";
        Ok(ListToolsResult::with_all_items(vec![
            tools::tool::<Speech>("speak", speak, &[OUTPUT], false),
            tools::tool::<Hearing>("transcribe", transcribe, &[PATH], true),
            tools::tool::<Listening>("listen_once", listen_once, &[], false),
            tools::voices(),
        ]))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let work = self.work(&request.name, request.arguments.unwrap_or_default());
        tools::run(async { work.await.map_err(|error| told(&error)) }, &context, true).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_ends_with_the_first_text() {
        let mut turn = Turn::default();
        let mut take = |kind: &str, more: Value| {
            let mut event = json!({"type": kind});
            event.as_object_mut().unwrap().extend(more.as_object().cloned().unwrap_or_default());
            let text = turn.take(&event).map_err(|error| error.to_string());
            (text, turn.is_speaking, turn.waits)
        };
        assert_eq!(take("session.updated", json!({})), (Ok(None), false, false));
        assert_eq!(take("input_audio_buffer.speech_started", json!({})), (Ok(None), true, false));
        assert_eq!(take("input_audio_buffer.committed", json!({})), (Ok(None), false, true));
        let completed = "conversation.item.input_audio_transcription.completed";
        assert_eq!(take(completed, json!({"transcript": " "})), (Ok(None), false, false), "a cough");
        assert_eq!(take(completed, json!({"transcript": " Hello. "})).0, Ok(Some("Hello.".to_owned())));
        assert_eq!(take("error", json!({"error": {"message": "no room"}})).0, Err("no room".to_owned()));
    }

    #[test]
    fn agents_name_ordinary_files() {
        let folder = tempfile::tempdir().unwrap();
        let named = |name: &str| {
            let path = folder.path().join(name).display().to_string();
            destination(&path).map(|(_, format)| format.name).map_err(|error| told(&error))
        };
        assert_eq!(named("a.wav"), Ok("wav"));
        assert!(named("a").unwrap_err().contains("has no extension"));
        assert!(named("no/a.wav").unwrap_err().contains("create the folder"));
        #[cfg(unix)]
        assert_eq!(
            ordinary("/dev/null").map_err(|error| told(&error)).unwrap_err(),
            "/dev/null is a device or a pipe\nhelp: name a file"
        );
    }
}
