//! The session with Speech Dispatcher, from its first command to its last one.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::path::Path;
use std::sync::Arc;

use anyhow::Result;
use tokio::io::{AsyncBufRead, BufReader};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::message::Utterance;
use super::parameters::Parameters;
use super::protocol::{
    self, BAD_PARAMETER, BAD_SYNTAX, Block, CANT_SPEAK, Command, Event, Kind, Line, NO_VOICES, Output,
    SEVERAL_LINES,
};
use super::speaker::Speaker;
use super::speech::{Speech, Wanted};
use crate::failure::{self, Failure};

/// Where Debian has the sounds of icons.
const ICON_FOLDER: &str = "/usr/share/sounds/sound-icons";
/// What is spoken at the start and not heard, so that the model is loaded.
const WARM_UP: &str = "<speak>ready</speak>";

/// Serves Speech Dispatcher on standard input and output until it quits or closes them.
///
/// # Errors
/// The speaker cannot be made, or a pipe breaks.
pub(crate) async fn serve(speaker: impl AsyncFnOnce() -> Result<Speaker>) -> Result<()> {
    let mut input = BufReader::new(tokio::io::stdin());
    let output = Arc::new(Output::new());
    loop {
        match protocol::read_line(&mut input).await? {
            Line::End => return Ok(()),
            Line::Text(line) if Command::parse(&line) == Ok(Command::Init) => break,
            Line::Text(_) | Line::TooLong => output.reply(protocol::UNKNOWN_COMMAND).await?,
        }
    }
    let speaker = match speaker().await {
        Ok(speaker) => Arc::new(speaker),
        Err(error) => {
            let told = failure::render(&error).trim_end().replace('\n', "\n399-");
            output.reply(&format!("399-{told}\n399 ERR CANT INIT MODULE")).await?;
            return Err(Failure::Reported.into());
        }
    };
    output.reply("299-izwi speaks\n299 OK LOADED SUCCESSFULLY").await?;
    tokio::spawn(warm_up(Arc::clone(&speaker)));
    let session = Session { output, speaker, parameters: Parameters::default(), current: None, log: None };
    Ok(session.run(&mut input).await?)
}

/// Loads the model.
async fn warm_up(speaker: Arc<Speaker>) {
    let spoken = async { anyhow::Ok(speaker.speak(WARM_UP, &Parameters::default()).await?.bytes().await?) };
    if let Err(error) = spoken.await {
        tracing::warn!("the model is not loaded: {error:#}");
    }
}

/// A message that is spoken.
#[derive(Debug)]
struct Current {
    wanted: watch::Sender<Wanted>,
    task: JoinHandle<io::Result<()>>,
}

#[derive(Debug)]
struct Session {
    output: Arc<Output>,
    speaker: Arc<Speaker>,
    parameters: Parameters,
    current: Option<Current>,
    /// Where commands are logged.
    log: Option<File>,
}

impl Session {
    async fn run(mut self, input: &mut (impl AsyncBufRead + Unpin)) -> io::Result<()> {
        loop {
            let line = match protocol::read_line(input).await? {
                Line::End => return self.stop().await,
                Line::Text(line) => line,
                Line::TooLong => {
                    self.output.reply(protocol::UNKNOWN_COMMAND).await?;
                    continue;
                }
            };
            if let Some(log) = &mut self.log {
                // A full disk silences nobody.
                let _ = writeln!(log, "{line}");
            }
            match Command::parse(&line) {
                Ok(Command::Quit) => {
                    self.stop().await?;
                    return self.output.reply("210 OK QUIT").await;
                }
                Ok(command) => self.obey(command, input).await?,
                Err(reply) => self.output.reply(reply).await?,
            }
        }
    }

    async fn obey(&mut self, command: Command, input: &mut (impl AsyncBufRead + Unpin)) -> io::Result<()> {
        match command {
            // A pause or a stop of nothing has no reply, as one of a message.
            Command::Stop => self.want(Wanted::Silence),
            Command::Pause => self.want(Wanted::Pause),
            Command::Speak(kind) => self.speak(kind, input).await?,
            Command::ListVoices { language, variant } => {
                let reply = self.voices(language.as_deref(), variant.as_deref()).await;
                self.output.reply(&reply).await?;
            }
            Command::Set => {
                let mut parameters = self.parameters.clone();
                let set = |line: &str| parameters.set(line);
                let reply =
                    self.block("203 OK RECEIVING SETTINGS", "203 OK SETTINGS RECEIVED", set, input).await?;
                self.parameters = parameters;
                self.output.reply(reply).await?;
            }
            Command::Audio => {
                let set = |line: &str| line == "audio_output_method=server";
                let reply = self
                    .block("207 OK RECEIVING AUDIO SETTINGS", "203 OK AUDIO INITIALIZED", set, input)
                    .await?;
                self.output.reply(reply).await?;
            }
            Command::LogLevel => {
                // What is logged is a setting of izwi.
                let set = |line: &str| {
                    line.strip_prefix("log_level=").is_some_and(|level| level.parse::<u8>().is_ok())
                };
                let reply = self
                    .block("207 OK RECEIVING LOGLEVEL SETTINGS", "203 OK LOGLEVEL SET", set, input)
                    .await?;
                self.output.reply(reply).await?;
            }
            Command::Debug(file) => {
                let reply = self.debug(file.as_deref());
                self.output.reply(reply).await?;
            }
            Command::Init => self.output.reply(BAD_SYNTAX).await?,
            // The caller ends the session.
            Command::Quit => {}
        }
        Ok(())
    }

    fn want(&self, wanted: Wanted) {
        if let Some(current) = &self.current {
            // What was stopped is not paused.
            current.wanted.send_if_modified(|now| {
                let changes = *now != Wanted::Silence;
                if changes {
                    *now = wanted;
                }
                changes
            });
        }
    }

    /// Stops the message that is spoken, and waits for its last event.
    async fn stop(&mut self) -> io::Result<()> {
        self.want(Wanted::Silence);
        match self.current.take() {
            Some(current) => current.task.await.unwrap_or(Ok(())),
            None => Ok(()),
        }
    }

    /// Reads parameters. Returns the reply.
    async fn block(
        &self,
        receiving: &str,
        received: &'static str,
        mut set: impl FnMut(&str) -> bool,
        input: &mut (impl AsyncBufRead + Unpin),
    ) -> io::Result<&'static str> {
        self.output.reply(receiving).await?;
        let Block::Lines(lines) = protocol::read_block(input).await? else { return Ok(BAD_SYNTAX) };
        let mut reply = received;
        for line in lines {
            if !line.contains('=') {
                reply = BAD_SYNTAX;
            } else if !set(&line) {
                reply = BAD_PARAMETER;
            }
        }
        Ok(reply)
    }

    async fn speak(&mut self, kind: Kind, input: &mut (impl AsyncBufRead + Unpin)) -> io::Result<()> {
        self.output.reply("202 OK RECEIVING MESSAGE").await?;
        let lines = match protocol::read_block(input).await? {
            Block::Lines(lines) => lines,
            Block::TooLong => return self.output.reply(CANT_SPEAK).await,
            // The next read finds the end too.
            Block::End => return Ok(()),
        };
        // Speech Dispatcher ends a text with an empty line.
        let text = lines.join("\n");
        let text = if kind == Kind::Text { text.as_str() } else { text.trim_end_matches('\n') };
        if text.is_empty() {
            return self.output.reply(CANT_SPEAK).await;
        }
        if kind != Kind::Text && text.contains('\n') {
            return self.output.reply(SEVERAL_LINES).await;
        }
        self.stop().await?;
        self.output.reply("200 OK SPEAKING").await?;
        if kind == Kind::SoundIcon
            && let Some(icon) = icon(text)
        {
            for event in [Event::Begin, Event::Icon(icon), Event::End] {
                self.output.send(&event).await?;
            }
            return Ok(());
        }
        let (wanted, receiver) = watch::channel(Wanted::Speech);
        let speech = Speech {
            speaker: Arc::clone(&self.speaker),
            output: Arc::clone(&self.output),
            wanted: receiver,
            parts: Utterance::parts(kind, text, &self.parameters),
            parameters: self.parameters.clone(),
        };
        self.current = Some(Current { wanted, task: tokio::spawn(speech.run()) });
        Ok(())
    }

    /// The reply with the voices of a language and variant.
    async fn voices(&self, language: Option<&str>, variant: Option<&str>) -> String {
        let voices = self.speaker.list().await.unwrap_or_else(|error| {
            tracing::warn!("the voices are not listed: {error:#}");
            Vec::new()
        });
        let rows: String = voices
            .iter()
            .filter(|voice| language.is_none_or(|language| voice.speaks(language)))
            .filter(|voice| variant.is_none_or(|variant| voice.variant().eq_ignore_ascii_case(variant)))
            .map(|voice| format!("200-{}\t{}\t{}\n", voice.name, voice.language(), voice.variant()))
            .collect();
        if rows.is_empty() { NO_VOICES.to_owned() } else { format!("{rows}200 OK VOICE LIST SENT") }
    }

    /// Logs commands to a file, or no more.
    fn debug(&mut self, file: Option<&str>) -> &'static str {
        let Some(path) = file else {
            self.log = None;
            return "200 OK DEBUGGING OFF";
        };
        match OpenOptions::new().create(true).append(true).open(path) {
            Ok(file) => {
                self.log = Some(file);
                "200 OK DEBUGGING ON"
            }
            Err(_) => "303 CANT OPEN CUSTOM DEBUG FILE",
        }
    }
}

/// The file of a sound icon, if it is installed.
fn icon(name: &str) -> Option<String> {
    // A name is no path.
    let is_name = !name.starts_with('.') && !name.contains(['/', '\0']);
    let path = Path::new(ICON_FOLDER).join(format!("{name}.wav"));
    (is_name && path.is_file()).then(|| path.to_str().map(str::to_owned)).flatten()
}
