//! `izwi chat`: a spoken conversation in the terminal: text or a recording as input, text and audio as output.

mod composed;
mod session;
mod spoken;

use std::io::{self, BufRead as _, IsTerminal as _};
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use clap::ValueHint;
use izwi_audio::encode::Format;
use izwi_core::engine::request::MAX_TEXT_CHARS;
use izwi_core::engine::{AudioInput, DeviceArbiters, EngineCoreConfig, EngineError, Message};
use izwi_hub::{Store, Task};

use crate::engine::Loaded;
use crate::interrupt::Interrupt;
use crate::llm::LlmFlags;
use crate::settings::Resolved;
use crate::sink::{self, Target};
use crate::sound::Player;
use crate::{engine, failure, input, logging, models, output};

use session::{AnswerOptions, ChatSession};

/// A character in UTF-8 has at most four bytes.
const MAX_LINE_BYTES: u64 = MAX_TEXT_CHARS as u64 * 4;

/// Have a spoken conversation with a model
///
/// Each line of standard input is a turn. The text of the answer goes to standard output while it is generated, its audio
/// to -o or the player. The model sees the previous turns, as many as fit its context. The conversation ends with the
/// input. With --llm, or with the name of a pipeline as the model, any language model answers: what you say is transcribed,
/// and its answer is spoken by the TTS model. One line on standard error for each answer reports the duration, the RTF (time to compute over time of audio)
/// and the time to the first audio. A model that is not installed is pulled first.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Text of a single turn, instead of standard input
    text: Option<String>,
    /// Recording of the first turn, in any common format
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    recording: Option<PathBuf>,
    /// Audio file for all answers, one after another, in the format of its extension; written at the end
    #[arg(long, short, value_name = "FILE", value_hint = ValueHint::FilePath)]
    output: Option<PathBuf>,
    /// Play each answer: while it is generated through the sound device, or else as a whole through a player program
    #[arg(long, short)]
    play: bool,
    /// Speak with the model: the microphone instead of text, answers played as they are generated; speaking interrupts
    /// them. Use headphones, or the model hears itself
    #[arg(long, conflicts_with_all = ["text", "recording", "output", "play"])]
    mic: bool,
    #[command(flatten)]
    llm: LlmFlags,
    #[command(flatten)]
    options: AnswerOptions,
    /// Fail if the model is not installed, instead of pulling it
    #[arg(long)]
    no_pull: bool,
}

pub(crate) fn run(args: &Args, resolved: &Resolved) -> Result<()> {
    // Errors of the decoder are reported by this command.
    logging::begin(&resolved.settings, "warn,symphonia=off");
    let file = args.output.as_deref().map(output_file).transpose()?;
    if args.mic {
        spoken::check(&args.options)?;
    }
    let player = (args.play || args.mic).then(|| Player::find(args.mic)).transpose()?;
    let mut config = engine::local_config(resolved);
    let store = models::open(&resolved.settings)?;
    let composed = composed::of(args, &store, resolved)?;
    if composed.is_none() {
        config.model = model(&store, resolved)?;
    }
    let recording = args.recording.as_deref();
    let recording = recording.map(|path| input::read_recording(path, config.max_audio_bytes)).transpose()?;
    if composed.is_none() {
        models::ensure(&store, &config.model, !args.no_pull)?;
    }
    let arbiters = Arc::new(DeviceArbiters::default());
    let load = async |interrupt: &mut Interrupt| match &composed {
        Some(composed) => {
            let place = (&store, Arc::clone(&arbiters));
            interrupt.guard(composed.engine(place, resolved, config.clone(), !args.no_pull)).await
        }
        None => interrupt.guard(engine::load_beside(config.clone(), Arc::clone(&arbiters))).await,
    };

    engine::run_loaded(config.num_threads, load, async |loaded| {
        let Loaded { engine, mut interrupt, .. } = loaded;
        if let Some(player) = player.as_ref().filter(|_| args.mic) {
            let turn_model = models::turn_model(&store);
            let turn_model = turn_model.map(|model| EngineCoreConfig { model, ..config.clone() });
            let conversation = async {
                let turn_model = match turn_model {
                    Some(config) => Some(engine::load_beside(config, Arc::clone(&arbiters)).await?),
                    None => None,
                };
                spoken::converse(&args.options, (engine, turn_model), &store, player).await
            };
            return interrupt.guard_to_end(conversation).await;
        }
        let mut session = ChatSession::new(&args.options, engine, player, interrupt, file.is_some());
        let answered = answer_all(&mut session, args, recording).await;
        let (samples, sample_rate_hz) = session.finish();
        // What was spoken before an error is kept.
        if let Some((path, format)) = file.filter(|_| answered.is_ok() || !samples.is_empty()) {
            sink::write_audio(&path, format, &samples, sample_rate_hz)?;
        }
        answered
    })
}

/// Answers the recording, and the text or else each line of standard input.
async fn answer_all(
    session: &mut ChatSession<'_>,
    args: &Args,
    recording: Option<impl Into<AudioInput>>,
) -> Result<()> {
    if let Some(recording) = recording {
        session.recorded_turn(recording.into()).await?;
    }
    match &args.text {
        Some(text) => session.turn(Message::Text(turn_text(text)?)).await,
        None if args.recording.is_none() || !io::stdin().is_terminal() => converse(session).await,
        None => Ok(()),
    }
}

/// Answers each line of standard input. One that the engine or a language model cannot answer is told, and the next is
/// answered.
async fn converse(session: &mut ChatSession<'_>) -> Result<()> {
    let mut failures = 0;
    loop {
        let reading = async {
            let reading = tokio::task::spawn_blocking(read_line);
            reading.await.context("standard input cannot be read")?
        };
        let Some(text) = session.interrupt.guard(reading).await? else { break };
        if text.trim().is_empty() {
            continue;
        }
        match session.turn(Message::Text(turn_text(&text)?)).await {
            Err(error) if error.is::<EngineError>() => {
                output::status(&format!("error: {error}"));
                failures += 1;
            }
            answered => answered?,
        }
    }
    match failures {
        0 => Ok(()),
        1 => Err(anyhow::anyhow!("one message was not answered")),
        many => Err(anyhow::anyhow!("{many} messages were not answered")),
    }
}

/// The next line of standard input; `None` at its end.
fn read_line() -> Result<Option<String>> {
    let mut bytes = Vec::new();
    let mut input = io::Read::take(io::stdin().lock(), MAX_LINE_BYTES + 1);
    input.read_until(b'\n', &mut bytes).context("cannot read standard input")?;
    if bytes.is_empty() {
        return Ok(None);
    }
    let text = String::from_utf8(bytes).map_err(|_| {
        failure::usage("a line on standard input is not UTF-8", "convert it, e.g. with iconv")
    })?;
    Ok(Some(text))
}

/// The text of a turn, checked.
fn turn_text(text: &str) -> Result<String> {
    let text = text.trim().to_owned();
    if text.is_empty() {
        return Err(failure::usage("the text is empty", "give some text"));
    }
    if text.chars().nth(MAX_TEXT_CHARS).is_some() {
        let message = format!("the text has more than {MAX_TEXT_CHARS} characters");
        return Err(failure::usage(message, "split it into several turns"));
    }
    Ok(text)
}

/// The audio file. Standard output is for the text.
fn output_file(path: &std::path::Path) -> Result<(PathBuf, &'static Format)> {
    if path == std::path::Path::new("-") {
        return Err(failure::usage("standard output has the text of the answers", "give -o a file"));
    }
    let (path, format) = Target::file(path)?;
    sink::check_file(&path)?;
    Ok((path, format))
}

/// The model of the flag or the setting if it supports chat, else the only installed one that does.
fn model(store: &Store, resolved: &Resolved) -> Result<String> {
    let chosen = &resolved.settings.engine.model;
    let has_chat = |tasks: &[Task]| tasks.contains(&Task::Chat);
    let manifest = store.manifest(chosen)?;
    if has_chat(&manifest.tasks) {
        return Ok(manifest.name.clone());
    }
    let chat_models: Vec<_> =
        store.list().into_iter().filter(|status| has_chat(&status.manifest.tasks)).collect();
    let names = |installed: bool| {
        let named = chat_models.iter().filter(|status| status.installed || !installed);
        named.map(|status| status.manifest.name.clone()).collect::<Vec<_>>()
    };
    let remedy = format!("name one with --model: {}", names(false).join(", "));
    if resolved.is_flag("model") {
        return Err(failure::usage(format!("model '{chosen}' does not support chat"), remedy));
    }
    match &names(true)[..] {
        [only] => Ok(only.clone()),
        [] => Err(failure::with_help("no chat model is installed", remedy)),
        [..] => Err(failure::with_help("several chat models are installed", remedy)),
    }
}
