//! `izwi dictate`: transcribes the microphone while somebody speaks.

mod history;
mod speakers;
mod trigger;
mod typist;

use std::io::{self, IsTerminal as _};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use futures::{SinkExt as _, StreamExt as _};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use izwi_core::engine::{DeviceArbiters, EngineCoreConfig};
use izwi_types::{Eagerness, Task};
use serde::Deserialize;
use serde_json::json;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_tungstenite::tungstenite::Message;

use self::speakers::{Spoken, Turns};
use self::trigger::{Stop, Trigger};
use self::typist::{Cursor, Typist};
use crate::desktop::Hotkey;
use crate::engine::Loaded;
use crate::failure::{self, Failure};
use crate::interrupt::Interrupt;
use crate::settings::{Dictation, Resolved};
use crate::sound::{Microphone, next_bytes, read_in_background};
use crate::web_socket::Place;
use crate::{desktop, engine, logging, models, output};

const PATH: &str = "/v1/audio/transcriptions/stream";
/// Audio that standard input may be ahead of the time at which it would be spoken.
const LEAD: Duration = Duration::from_secs(2);
/// Bytes of a second of audio.
const BYTES_PER_S: f64 = 2.0 * Microphone::RATE_HZ as f64;
/// Characters of the line that shows what is being said.
const SHOWN_CHARS: usize = 400;

/// Transcribe speech while it is spoken
///
/// Listens to the microphone, through the sound device or else a recording program. On a terminal a line shows what is
/// being said, and each turn is printed when it ends; otherwise text is printed as soon as it is final. Ctrl-C ends the
/// dictation: what was said until then is still transcribed; a second one stops at once. Spoken commands are carried out:
/// "comma", "full stop", "question mark", "new line" and others, and numbers are written in figures. A model that is not
/// installed is pulled first.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// - reads raw audio from standard input instead of the microphone: mono, 16 bits, little-endian, 16 kHz
    #[arg(value_name = "-")]
    input: Option<String>,
    /// Language that is spoken, as a BCP 47 tag [default: detected in each turn]
    #[arg(long, value_name = "TAG")]
    language: Option<String>,
    /// Languages of which one is detected in each turn, as BCP 47 tags
    #[arg(long, value_name = "TAG,...", value_delimiter = ',', conflicts_with = "language")]
    languages: Vec<String>,
    /// Text that could precede the speech: names, spellings, style
    #[arg(long, value_name = "TEXT")]
    prompt: Option<String>,
    /// A word or phrase that is likely in the speech, such as a name; may repeat
    #[arg(long, value_name = "WORD")]
    keyword: Vec<String>,
    /// Leave spoken commands such as "comma" and "new line" as words
    #[arg(long)]
    no_commands: bool,
    /// Leave all words as the model writes them: spoken commands, and numbers that it does not write in figures
    #[arg(long)]
    verbatim: bool,
    /// New audio from one transcript of a turn to the next, in ms, 200 to 5000, less for models that stream natively [default:
    /// the server's]
    #[arg(long, value_name = "MS")]
    latency_ms: Option<u64>,
    /// Silence that ends a turn, in ms, whatever a turn model would say [default: the server's]
    #[arg(long, value_name = "MS")]
    silence_ms: Option<u64>,
    /// How early a turn may end where a turn model is installed, which is asked in a pause; without one silence ends turns
    #[arg(long, value_parser = Eagerness::NAMES, default_value = Eagerness::Auto.name(), conflicts_with = "silence_ms")]
    eagerness: String,
    /// Tell who says each part of a turn, as A, B and so on; needs a model that tells speakers while they speak
    #[arg(long)]
    speakers: bool,
    /// Print the events of the session as lines of JSON, words with their times
    #[arg(long)]
    json: bool,
    /// Use a server that runs already, such as http://127.0.0.1:8080, instead of loading the model; its key is the setting api_key
    #[arg(long, value_name = "URL")]
    server: Option<String>,
    /// Fail if the model is not installed, instead of pulling it
    #[arg(long)]
    no_pull: bool,
    /// Type what is said at the cursor of the window that has the focus when a turn begins
    #[arg(long = "type", help_heading = AT_CURSOR)]
    types: bool,
    /// Keys that begin and end a dictation whatever has the focus: modifiers, then a key, such as ctrl+alt+space or f9. The
    /// model stays loaded, and the microphone is closed in between
    #[arg(long, value_name = "KEYS", requires = "types", conflicts_with = "input", help_heading = AT_CURSOR)]
    hotkey: Option<String>,
    /// Dictate while the hotkey is held; the text comes when it is released
    #[arg(long, requires = "hotkey", help_heading = AT_CURSOR)]
    hold: bool,
    /// Without a hotkey, wait for `izwi dictate --toggle`
    #[arg(long, requires = "types", conflicts_with_all = ["input", "hotkey"], help_heading = AT_CURSOR)]
    wait: bool,
    /// With --hotkey or --wait: each line of standard input begins or ends a dictation too, and the end of it ends the
    /// command. With --json, lines tell when it waits and when the microphone is opened and closed
    #[arg(long, requires = "types", conflicts_with = "input", help_heading = AT_CURSOR)]
    follow: bool,
    /// Begin or end the dictation of the `izwi dictate --type` that waits, and do nothing else: a command for a shortcut of the
    /// desktop
    #[arg(long, conflicts_with_all = ["types", "input"], help_heading = AT_CURSOR)]
    toggle: bool,
}

const AT_CURSOR: &str = "At the cursor";

pub(crate) fn run(args: &Args, resolved: &Resolved) -> Result<()> {
    // Errors of the session are reported by this command.
    logging::begin(&resolved.settings, "error");
    if let Some(input) = args.input.as_deref().filter(|&input| input != "-") {
        return Err(failure::usage(
            format!("'{input}' is no source of live audio; the only one to name is -"),
            format!("leave it out to use the microphone, or run `izwi transcribe {input}`"),
        ));
    }
    if args.follow && args.hotkey.is_none() && !args.wait {
        return Err(failure::usage("--follow: nothing waits for lines", "give --wait or --hotkey too"));
    }
    if args.toggle {
        return trigger::toggle(&resolved.settings.home);
    }
    args.hotkey.as_deref().map(Hotkey::check).transpose()?;
    let cursor = args.types.then(|| Cursor::open(resolved)).transpose()?.map(Arc::new);
    let trigger = cursor.as_ref().map(|cursor| Trigger::new(args, cursor.desktop(), &resolved.settings.home));
    let trigger = trigger.transpose()?.flatten();
    if cursor.is_none() {
        return transcribe(args, resolved, None, None);
    }
    desktop::with_events(|| transcribe(args, resolved, cursor, trigger))
}

/// Loads the models, or connects to a server, and dictates.
fn transcribe(
    args: &Args,
    resolved: &Resolved,
    cursor: Option<Arc<Cursor>>,
    trigger: Option<Trigger>,
) -> Result<()> {
    if let Some(url) = &args.server {
        let place = Place::of(url, resolved.settings.server.config.api_key.clone())?;
        let runtime = engine::runtime()?;
        let result = runtime.block_on(async {
            let model = resolved.is_flag("model").then(|| resolved.settings.engine.model.clone());
            Dictating { args, model, place, cursor }.run(Stop::new(Interrupt::listen()?, trigger)).await
        });
        runtime.shutdown_background();
        return result;
    }
    let store = models::open(&resolved.settings)?;
    let mut config = engine::local_config(resolved);
    config.model = models::asr_model(&store, resolved)?;
    models::ensure_known(&store, &resolved.settings, &config.model, !args.no_pull)?;
    let remote = resolved.settings.remote(&config.model);
    let turns = args.asks_model().then(|| models::turn_model(&store)).flatten();
    let speakers = args.speakers.then(|| models::installed_with(&store, Task::Diarize)).transpose()?;
    let others = turns.into_iter().chain(speakers);
    let others: Vec<_> = others.map(|model| EngineCoreConfig { model, ..config.clone() }).collect();
    let arbiters = Arc::new(DeviceArbiters::default());
    let threads = config.num_threads;
    let load = async |interrupt: &mut Interrupt| match remote {
        Some(remote) => interrupt.guard(engine::connect(remote, config)).await,
        None => interrupt.guard(engine::load_beside(config, Arc::clone(&arbiters))).await,
    };
    engine::run_loaded(threads, load, async |loaded| {
        let Loaded { engine, mut interrupt, .. } = loaded;
        let mut beside = Vec::new();
        for config in others {
            beside.push(interrupt.guard(engine::load_beside(config, Arc::clone(&arbiters))).await?);
        }
        let place = Place::start(engine, beside, &store).await?;
        Dictating { args, model: None, place, cursor }.run(Stop::new(interrupt, trigger)).await
    })
}

impl Args {
    /// Whether a turn model is asked where turns end.
    fn asks_model(&self) -> bool {
        self.silence_ms.is_none()
    }
}

/// What every dictation of a command has.
struct Dictating<'a> {
    args: &'a Args,
    model: Option<String>,
    place: Place,
    /// Where text is typed.
    cursor: Option<Arc<Cursor>>,
}

impl Dictating<'_> {
    /// Dictates once, or each time that the trigger says so.
    async fn run(&self, mut stop: Stop) -> Result<()> {
        let Some(hint) = stop.hint() else {
            let dictation = self.cursor.as_ref().map(|cursor| cursor.everywhere());
            return self.dictate(dictation.as_ref(), &mut stop).await;
        };
        output::status(&format!("{hint}; Ctrl-C ends the command"));
        while !stop.is_interrupted() {
            if self.args.json {
                output::print_json(&json!({ "type": "waiting" }))?;
            }
            if !stop.begin().await {
                break;
            }
            let here = self.cursor.as_ref().map(|cursor| cursor.here()).transpose();
            let dictated = match here {
                Ok(dictation) => self.dictate(dictation.as_ref(), &mut stop).await,
                Err(why) => Err(anyhow::anyhow!("no dictation begins: {why}")),
            };
            match dictated {
                Err(error) if !stop.is_interrupted() => output::stderr(&failure::render(&error)),
                other => other?,
            }
        }
        Ok(())
    }

    async fn dictate(&self, dictation: Option<&Dictation>, stop: &mut Stop) -> Result<()> {
        let (mut sink, mut events) = self.place.connect(PATH).await?.split();
        sink.send(Message::text(self.configuration(dictation).to_string())).await.context(LOST)?;
        let mut display = Display::new(self.args);
        let typist = self.cursor.as_ref().map(|cursor| Typist::start(Arc::clone(cursor), stop.is_down()));
        let mut typist = typist.transpose()?;
        // No audio is recorded before the session is configured.
        let mut source: Option<Source> = None;
        let mut is_ended = false;
        loop {
            let message = tokio::select! {
                audio = next_audio(&mut source) => {
                    let message = match audio? {
                        Some(audio) => Message::binary(audio),
                        None => {
                            (source, is_ended) = (None, true);
                            display.closed()?;
                            Message::text(DONE)
                        }
                    };
                    sink.send(message).await.context(LOST)?;
                    continue;
                }
                () = stop.requested(!is_ended) => {
                    if stop.leaves(is_ended, source.is_some()) {
                        return Err(Failure::Interrupted.into());
                    }
                    if is_ended {
                        continue;
                    }
                    (source, is_ended) = (None, true);
                    display.closed()?;
                    sink.send(Message::text(DONE)).await.context(LOST)?;
                    continue;
                }
                Some(told) = typist::told(&mut typist) => {
                    display.tell(&told);
                    continue;
                }
                message = events.next() => message,
            };
            let text = match message {
                Some(Ok(Message::Text(text))) => text,
                Some(Ok(Message::Close(_))) | None => {
                    return Err(display.failure.take().unwrap_or_else(|| anyhow::anyhow!(LOST)));
                }
                Some(Ok(_)) => continue,
                Some(Err(error)) => return Err(anyhow::Error::new(error).context(LOST)),
            };
            let event: Event = serde_json::from_str(&text).context("the server sent no event")?;
            if event.kind == "session.created" && !is_ended {
                source = Some(self.listen(&mut display, stop)?);
            }
            display.show(&text, &event)?;
            if let Some(told) = typist.as_mut().and_then(|typist| typist.take(&event)) {
                display.tell(&told);
            }
            // Without a session there is nothing to wait for.
            if event.kind == "error"
                && source.is_none()
                && !is_ended
                && let Some(failure) = display.failure.take()
            {
                return Err(failure);
            }
            if event.kind == "session.done" {
                return typist::finish(typist, stop, |told| display.tell(told)).await;
            }
        }
    }

    /// Opens the source of a dictation, and says so.
    fn listen(&self, display: &mut Display, stop: &Stop) -> Result<Source> {
        let source = Source::open(self.args.input.is_some())?;
        let end = if stop.hint().is_some() { "" } else { "; Ctrl-C ends the dictation" };
        display.status(&format!("listening to {}{end}", source.name()));
        if let Source::Microphone(microphone) = &source {
            display.opened(&microphone.description())?;
        }
        Ok(source)
    }

    /// The first message of a session; `dictation` is what the settings say of typed text.
    fn configuration(&self, dictation: Option<&Dictation>) -> serde_json::Value {
        let args = self.args;
        let language = dictation.and_then(|dictation| dictation.language.as_ref());
        let language = args.language.as_ref().or(language.filter(|_| args.languages.is_empty()));
        let keywords = dictation.map_or(&[][..], |dictation| &dictation.keywords);
        let keywords: Vec<&String> = args.keyword.iter().chain(keywords).collect();
        let commands = dictation.is_none_or(|dictation| dictation.commands);
        json!({
            "type": "session.config",
            "model": self.model,
            "language": language,
            "languages": args.languages,
            "inverse_normalization": !args.verbatim,
            "spoken_commands": commands && !(args.verbatim || args.no_commands),
            "prompt": args.prompt,
            "keywords": keywords,
            "sample_rate": Microphone::RATE_HZ,
            "latency_ms": args.latency_ms,
            "silence_duration_ms": args.silence_ms,
            "turn_detection": args.asks_model().then_some("semantic_vad"),
            "eagerness": args.asks_model().then_some(&args.eagerness),
            "word_times": args.json,
            "speakers": args.speakers,
        })
    }
}

const LOST: &str = "the session with the server was lost";
const DONE: &str = r#"{"type":"input.done"}"#;

/// Where the audio comes from.
enum Source {
    Microphone(Microphone),
    /// Raw audio, which may come faster than it is spoken.
    Stdin {
        bytes: mpsc::Receiver<io::Result<Vec<u8>>>,
        begun: Instant,
        read: usize,
    },
}

impl Source {
    fn open(is_stdin: bool) -> Result<Self> {
        if is_stdin {
            let bytes = read_in_background(io::stdin());
            return Ok(Self::Stdin { bytes, begun: Instant::now(), read: 0 });
        }
        Microphone::open().map(Self::Microphone)
    }

    fn name(&self) -> &'static str {
        match self {
            Self::Microphone(microphone) => microphone.name(),
            Self::Stdin { .. } => "standard input",
        }
    }
}

/// The next audio; `None` at its end. Without a source it waits for ever. Loses none if the future is dropped.
async fn next_audio(source: &mut Option<Source>) -> Result<Option<Vec<u8>>> {
    match source {
        None => std::future::pending().await,
        Some(Source::Microphone(microphone)) => microphone.read().await,
        Some(Source::Stdin { bytes, begun, read }) => {
            let spoken = Duration::from_secs_f64(*read as f64 / BYTES_PER_S);
            tokio::time::sleep_until(*begun + spoken.saturating_sub(LEAD)).await;
            let next = next_bytes(bytes).await?;
            *read += next.as_ref().map_or(0, Vec::len);
            Ok(next)
        }
    }
}

/// An event of the server.
#[derive(Debug, Deserialize)]
struct Event {
    #[serde(rename = "type")]
    kind: String,
    text: Option<String>,
    message: Option<String>,
    turn: Option<u64>,
    /// Of `turn.speakers`.
    #[serde(default)]
    segments: Vec<Spoken>,
}

/// What the user sees.
struct Display {
    is_json: bool,
    /// The line that shows what is being said, on a terminal.
    line: Option<ProgressBar>,
    /// The final text of the turn.
    turn: String,
    /// Turns whose speakers are told.
    spoken: Option<Turns>,
    /// The last error of the session.
    failure: Option<anyhow::Error>,
    /// Whether it was told that the microphone is open.
    is_open: bool,
}

impl Display {
    fn new(&Args { json: is_json, speakers, .. }: &Args) -> Self {
        let is_terminal = output::stdout_is_terminal() && io::stderr().is_terminal();
        let line = (is_terminal && !is_json).then(|| {
            let line = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
            match ProgressStyle::with_template("{wide_msg}") {
                Ok(style) => line.with_style(style),
                Err(_) => line,
            }
        });
        let spoken = speakers.then(Turns::default);
        Self { is_json, line, turn: String::new(), spoken, failure: None, is_open: false }
    }

    /// Tells that the dictation begins.
    fn status(&self, line: &str) {
        if !self.is_json {
            output::status(line);
        }
    }

    /// Tells in JSON that the microphone is open.
    fn opened(&mut self, microphone: &str) -> Result<()> {
        self.is_open = self.is_json;
        match self.is_json {
            true => output::print_json(&json!({ "type": "microphone.opened", "name": microphone })),
            false => Ok(()),
        }
    }

    /// Tells in JSON that the microphone is closed, if it was open.
    fn closed(&mut self) -> Result<()> {
        match std::mem::take(&mut self.is_open) {
            true => output::print_json(&json!({ "type": "microphone.closed" })),
            false => Ok(()),
        }
    }

    /// Tells what the user must know, beside the line.
    fn tell(&self, message: &str) {
        match &self.line {
            Some(line) => line.suspend(|| output::status(message)),
            None => output::status(message),
        }
    }

    fn show(&mut self, line: &str, event: &Event) -> Result<()> {
        let text = event.text.as_deref().unwrap_or_default();
        if self.is_json {
            output::print(&format!("{line}\n"))?;
        }
        match event.kind.as_str() {
            "error" => {
                let message = event.message.clone().unwrap_or_default();
                if self.failure.is_none() && !self.is_json {
                    output::status(&format!("error: {message}"));
                }
                self.failure = Some(anyhow::anyhow!(message));
            }
            _ if self.is_json => {}
            "partial" => self.draw(text),
            "committed" => {
                self.turn.push_str(text);
                match &self.line {
                    Some(_) => self.draw(""),
                    None if self.spoken.is_some() => {}
                    None => output::print(
                        text.strip_prefix(' ').filter(|_| self.turn.len() == text.len()).unwrap_or(text),
                    )?,
                }
            }
            "turn.end" => self.end_turn(event.turn)?,
            "turn.speakers" => {
                if let Some(spoken) = &mut self.spoken {
                    spoken.tell(event.turn.unwrap_or_default(), event.segments.clone());
                }
                self.print_spoken(false)?;
            }
            "session.done" => self.print_spoken(true)?,
            _ => {}
        }
        Ok(())
    }

    /// Prints the turns whose speakers are known, or all.
    fn print_spoken(&mut self, all: bool) -> Result<()> {
        let text = self.spoken.as_mut().map(|spoken| spoken.take(all)).unwrap_or_default();
        match &self.line {
            _ if text.is_empty() => Ok(()),
            None => output::print(&text),
            Some(line) => line.suspend(|| output::print(&text)),
        }
    }

    /// Shows the end of the turn's text, with `partial` after it.
    fn draw(&self, partial: &str) {
        if let Some(line) = &self.line {
            let text = format!("{}{partial}", self.turn);
            let skipped = text.chars().count().saturating_sub(width().min(SHOWN_CHARS));
            let shown = text.chars().skip(skipped).collect::<String>();
            let shown = output::printable(shown.trim_start()).replace('\n', " ");
            line.set_message(shown);
        }
    }

    fn end_turn(&mut self, number: Option<u64>) -> Result<()> {
        let turn = std::mem::take(&mut self.turn);
        if let Some(spoken) = &mut self.spoken {
            spoken.end(number.unwrap_or_default(), turn.trim_matches(' '));
            if let Some(line) = &self.line {
                line.set_message("");
            }
            return self.print_spoken(false);
        }
        match &self.line {
            _ if turn.trim_matches(' ').is_empty() => Ok(()),
            None => output::print("\n"),
            Some(line) => {
                line.set_message("");
                line.suspend(|| output::print(&format!("{}\n", turn.trim_matches(' '))))
            }
        }
    }
}

impl Drop for Display {
    fn drop(&mut self) {
        // What was said in a session that is lost; nobody is left to tell a failure to.
        let _ = (self.print_spoken(true), self.closed());
        if let Some(line) = &self.line {
            line.finish_and_clear();
        }
    }
}

/// Columns of the terminal.
fn width() -> usize {
    console::Term::stderr().size().1.into()
}
