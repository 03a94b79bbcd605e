//! `izwi chat`: a spoken conversation in the terminal, text or a recording in, text and sound out.

mod talk;

use std::io::{self, BufRead as _, IsTerminal as _};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result};
use clap::ValueHint;
use izwi_core::engine::Message;
use izwi_core::engine::request::MAX_TEXT_CHARS;
use izwi_hub::{Store, Task};

use crate::failure::Failure;
use crate::interrupt::Interrupt;
use crate::player::Player;
use crate::settings::Resolved;
use crate::sink::{self, Target};
use crate::{failure, logging, manner, models, output, speech};

use talk::Talk;

/// UTF-8 needs at most four bytes a character.
const MAX_LINE_BYTES: u64 = MAX_TEXT_CHARS as u64 * 4;
/// The one reader is a pipe or a player, which may be stopped for a while; nobody else waits.
const PATIENCE: Duration = Duration::from_secs(86_400);

/// Converse with a model that hears and speaks
///
/// Each line of standard input is a turn; the text of the answer goes to standard output as it comes, its sound to -o or
/// the player. The model remembers the turns before, as many as it has room for. The conversation ends with the input.
/// One line about each answer goes to standard error: its length, RTF (time to compute over time of audio) and the time
/// to the first audio. A model that is not installed is pulled first.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// What to say instead of reading standard input: one turn
    text: Option<String>,
    /// Recording to say first, of any common format
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    recording: Option<PathBuf>,
    /// WAV file for all that the model says, one answer behind the other; it appears whole at the end
    #[arg(long, short, value_name = "FILE", value_hint = ValueHint::FilePath)]
    output: Option<PathBuf>,
    /// Play each answer through the platform's player
    #[arg(long, short)]
    play: bool,
    /// What the model is told before the conversation [default: the model's own]
    #[arg(long, value_name = "TEXT")]
    instructions: Option<String>,
    /// Seed; the same seed gives the same answers
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Randomness of the sound, 0 to 2 [default: the model's own]
    #[arg(long, value_name = "T")]
    temperature: Option<f32>,
    /// Randomness of the text, 0 to 2 [default: the model's own]
    #[arg(long, value_name = "T")]
    text_temperature: Option<f32>,
    /// The most tokens and frames of one answer
    #[arg(long, value_name = "N")]
    max_tokens: Option<usize>,
    /// Fail if the model is not installed, instead of pulling it
    #[arg(long)]
    no_pull: bool,
}

pub(crate) fn run(args: &Args, resolved: &Resolved) -> Result<()> {
    // What a decoder logs about a file that is no recording is told as the error.
    logging::begin(&resolved.settings, "warn,symphonia=off");
    let file = args.output.as_deref().map(output_file).transpose()?;
    let player = args.play.then(|| Player::find(false)).transpose()?;
    let mut config = speech::engine_config(resolved);
    config.slow_client_timeout = PATIENCE;
    let store = models::open(&resolved.settings)?;
    config.model = model(&store, resolved)?;
    let recording = args
        .recording
        .as_deref()
        .map(|path| manner::read_recording(path, config.max_audio_bytes))
        .transpose()?;
    models::ensure(&store, &config.model, !args.no_pull)?;

    speech::start_threads(config.num_threads);
    let runtime = speech::runtime()?;
    let ended = runtime.block_on(async {
        let mut interrupt = Interrupt::listen()?;
        let engine = speech::load(config, &mut interrupt).await?;
        let mut talk = Talk::new(args, engine, player);
        if let Some(recording) = recording {
            let heard = talk.engine.decode_message(recording).await?;
            talk.turn(Message::Recording(heard), &mut interrupt).await?;
        }
        match &args.text {
            Some(text) => talk.turn(Message::Text(line(text.clone())?), &mut interrupt).await?,
            None if args.recording.is_none() || !io::stdin().is_terminal() => {
                converse(&mut talk, &mut interrupt).await?;
            }
            None => {}
        }
        let (samples, sample_rate_hz) = talk.finish();
        file.map_or(Ok(()), |file| sink::write_file(&file, &samples, sample_rate_hz))
    });
    // A line that is still waited for after an interrupt does not come.
    runtime.shutdown_background();
    ended
}

/// Answers line after line of standard input.
async fn converse(talk: &mut Talk<'_>, interrupt: &mut Interrupt) -> Result<()> {
    loop {
        let reading = tokio::task::spawn_blocking(read_line);
        let read = tokio::select! {
            read = reading => read.context("standard input cannot be read")??,
            () = interrupt.requested() => return Err(Failure::Interrupted.into()),
        };
        let Some(text) = read else { return Ok(()) };
        if !text.trim().is_empty() {
            talk.turn(Message::Text(line(text)?), interrupt).await?;
        }
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

/// What is said in one turn.
fn line(text: String) -> Result<String> {
    let text = text.trim().to_owned();
    if text.is_empty() {
        return Err(failure::usage("the text is empty", "give some words"));
    }
    if text.chars().nth(MAX_TEXT_CHARS).is_some() {
        let message = format!("the text has more than {MAX_TEXT_CHARS} characters");
        return Err(failure::usage(message, "say it in several turns"));
    }
    Ok(text)
}

/// The file that the sound goes to. Standard output has the text.
fn output_file(path: &std::path::Path) -> Result<PathBuf> {
    if path == std::path::Path::new("-") {
        return Err(failure::usage("standard output has the text of the answers", "give -o a file"));
    }
    let request = sink::Request { output: Some(path), play: false, json: false, stdout_is_terminal: true };
    let Target::File(path) = Target::choose(request)? else { return Ok(path.to_path_buf()) };
    sink::check_file(&path)?;
    Ok(path)
}

/// The model of the flag or the setting if it converses, else the only installed one that does.
fn model(store: &Store, resolved: &Resolved) -> Result<String> {
    let set = &resolved.settings.engine.model;
    let converses = |tasks: &[Task]| tasks.contains(&Task::Chat);
    let manifest = store.manifest(set)?;
    if converses(&manifest.tasks) {
        return Ok(manifest.name.clone());
    }
    let able: Vec<_> = store.list().into_iter().filter(|status| converses(&status.manifest.tasks)).collect();
    let names = |installed: bool| {
        let named = able.iter().filter(|status| status.installed || !installed);
        named.map(|status| status.manifest.name.clone()).collect::<Vec<_>>()
    };
    let remedy = format!("name one with --model: {}", names(false).join(", "));
    if resolved.is_flag("model") {
        return Err(failure::usage(format!("model '{set}' cannot converse"), remedy));
    }
    match &names(true)[..] {
        [only] => Ok(only.clone()),
        [] => Err(failure::with_help("no model that converses is installed", remedy)),
        [..] => Err(failure::with_help("several models that converse are installed", remedy)),
    }
}

/// Says how an answer went.
fn report(stats: &izwi_core::engine::RequestStats) {
    if let Some(warning) = speech::cut_short(stats.finish_reason) {
        output::say(&format!("warning: {warning}"));
    }
    let first = stats.time_to_first_audio.map(speech::millis);
    let first = first.map_or_else(String::new, |first| format!(", first audio after {first:.0} ms"));
    let seconds = stats.audio_duration.as_secs_f64();
    output::say(&format!("{seconds:.2} s, RTF {:.3}{first}", stats.rtf()));
}
