//! `izwi say`: speaks a text into a file, to standard output or through the platform's player.

use std::io::{self, IsTerminal as _, Read as _};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use clap::ValueHint;
use izwi_core::engine::Engine;
use izwi_core::engine::request::MAX_TEXT_CHARS;
use izwi_hub::VoiceStore;
use serde::Serialize;

use crate::interrupt::Interrupt;
use crate::manner::Manner;
use crate::player::{Player, Playing};
use crate::settings::Resolved;
use crate::sink::{self, Target};
use crate::speech::{self, Spoken};
use crate::{failure, logging, models, output};

/// UTF-8 needs at most four bytes a character.
const MAX_TEXT_BYTES: u64 = MAX_TEXT_CHARS as u64 * 4;
/// The one reader is a pipe or a player, which may be stopped for a while; nobody else waits.
const PATIENCE: Duration = Duration::from_secs(86_400);

/// Speak a text
///
/// Without -o and --play the speech goes to izwi.wav in the current folder, replacing it; where standard output is not
/// a terminal (and --json is not given), say where it goes. A file appears whole or not at all, also when interrupted.
/// One line about the speech goes to standard error: its length, RTF (time to compute over time of audio) and the time
/// to the first audio. A saved voice is spoken in by the model that made it, unless --model names another. A model that is
/// not installed is pulled first.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// What to say; - or nothing reads standard input
    text: Option<String>,
    /// WAV file to write; - is standard output
    #[arg(long, short, value_name = "FILE", value_hint = ValueHint::FilePath)]
    output: Option<PathBuf>,
    /// Play it through the platform's player
    #[arg(long, short)]
    play: bool,
    /// Pass audio on as it is made: to -o - as a WAV of unknown length, to the player as a stream
    #[arg(long)]
    stream: bool,
    #[command(flatten)]
    manner: Manner,
    /// Print a JSON object about the speech to standard output
    #[arg(long)]
    json: bool,
    /// Fail if the model is not installed, instead of pulling it
    #[arg(long)]
    no_pull: bool,
}

/// What `--json` prints.
#[derive(Debug, Serialize)]
struct Report {
    /// Absent where nothing was written.
    file: Option<String>,
    player: Option<&'static str>,
    model: String,
    device: String,
    seconds: f64,
    samples: u64,
    sample_rate_hz: u32,
    rtf: f32,
    ttfa_ms: Option<f64>,
    generation_ms: f64,
    load_ms: f64,
    /// With it the same text gives the same bytes.
    seed: u64,
    finish_reason: &'static str,
}

pub(crate) fn run(args: &Args, resolved: &Resolved) -> Result<()> {
    logging::begin(&resolved.settings, "warn");
    let target = Target::choose(sink::Request {
        output: args.output.as_deref(),
        play: args.play,
        json: args.json,
        stdout_is_terminal: output::is_read_by_person(),
    })?;
    let player = args.play.then(|| Player::find(args.stream)).transpose()?;
    if let Target::File(path) = &target {
        sink::check_file(path)?;
    }
    let text = text(args.text.as_deref())?;
    let mut config = speech::engine_config(resolved);
    config.slow_client_timeout = PATIENCE;
    let store = models::open(&resolved.settings)?;
    if !resolved.is_flag("model")
        && let Some(model) = args.manner.maker(&store)
    {
        config.model = model;
    }
    models::ensure(&store, &config.model, !args.no_pull)?;

    speech::start_threads(config.num_threads);
    let runtime = speech::runtime()?;
    let job = Job { args, target, player, voices: store.voices() };
    let spoken = runtime.block_on(async {
        let mut interrupt = Interrupt::listen()?;
        let begun = Instant::now();
        let engine = speech::load(config, &mut interrupt).await?;
        job.say(&engine, text, speech::millis(begun.elapsed()), &mut interrupt).await
    });
    // A model that still loads after an interrupt is not waited for.
    runtime.shutdown_background();
    spoken
}

struct Job<'a> {
    args: &'a Args,
    target: Target,
    player: Option<Player>,
    voices: &'a VoiceStore,
}

impl Job<'_> {
    async fn say(
        &self,
        engine: &Engine,
        text: String,
        load_ms: f64,
        interrupt: &mut Interrupt,
    ) -> Result<()> {
        let request = self.args.manner.request(engine, self.voices, text)?;
        let mut outlets = self.open_outlets(engine.profile().info.sample_rate_hz)?;
        let keep = !self.args.stream || matches!(self.target, Target::File(_));
        let spoken =
            speech::speak(engine, request, interrupt, keep, |samples| outlets.write(samples)).await?;

        match &self.target {
            Target::File(path) => sink::write_file(path, &spoken.samples, spoken.sample_rate_hz)?,
            Target::Stdout if !self.args.stream => {
                sink::write_stdout(&spoken.samples, spoken.sample_rate_hz)?
            }
            Target::Stdout | Target::None => {}
        }
        match (outlets.playing, &self.player) {
            (Some(playing), _) => playing.finish(interrupt).await?,
            (None, Some(player)) => self.play(player, &spoken, interrupt).await?,
            (None, None) => {}
        }
        self.report(engine, &spoken, load_ms)
    }

    /// The outlets that take audio while it is made.
    fn open_outlets(&self, sample_rate_hz: u32) -> Result<Outlets> {
        if !self.args.stream {
            return Ok(Outlets::default());
        }
        let stdout = self.target == Target::Stdout;
        if stdout {
            sink::begin_stdout_stream(sample_rate_hz)?;
        }
        let playing = self.player.as_ref().map(|player| player.open_stream(sample_rate_hz)).transpose()?;
        Ok(Outlets { stdout, playing })
    }

    async fn play(&self, player: &Player, spoken: &Spoken, interrupt: &mut Interrupt) -> Result<()> {
        if let Target::File(path) = &self.target {
            return player.play_file(path, interrupt).await;
        }
        let folder = tempfile::tempdir().context("cannot make a folder for the player's file")?;
        let file = folder.path().join("izwi.wav");
        sink::write_file(&file, &spoken.samples, spoken.sample_rate_hz)?;
        player.play_file(&file, interrupt).await
    }

    fn report(&self, engine: &Engine, spoken: &Spoken, load_ms: f64) -> Result<()> {
        let stats = &spoken.stats;
        let seconds = stats.audio_duration.as_secs_f64();
        let ttfa_ms = stats.time_to_first_audio.map(speech::millis);
        if let Some(warning) = speech::cut_short(stats.finish_reason) {
            output::say(&format!("warning: {warning}"));
        }
        if self.args.json {
            let file = match &self.target {
                Target::File(path) => Some(path.display().to_string()),
                Target::Stdout | Target::None => None,
            };
            return output::print_json(&Report {
                file,
                player: self.player.as_ref().map(Player::name),
                model: engine.profile().model.clone(),
                device: engine.profile().device.clone(),
                seconds,
                samples: stats.samples,
                sample_rate_hz: spoken.sample_rate_hz,
                rtf: stats.rtf(),
                ttfa_ms,
                generation_ms: speech::millis(stats.generation_time),
                load_ms,
                seed: stats.seed,
                finish_reason: stats.finish_reason.label(),
            });
        }
        let first = ttfa_ms.map_or_else(String::new, |ttfa| format!(", first audio after {ttfa:.0} ms"));
        output::say(&format!("{}: {seconds:.2} s, RTF {:.3}{first}", self.target.label(), stats.rtf()));
        Ok(())
    }
}

/// What takes audio while it is made.
#[derive(Debug, Default)]
struct Outlets {
    stdout: bool,
    playing: Option<Playing>,
}

impl Outlets {
    fn write(&mut self, samples: &[f32]) -> Result<()> {
        if self.stdout {
            sink::stream_to_stdout(samples)?;
        }
        match &mut self.playing {
            Some(playing) => playing.write(samples),
            None => Ok(()),
        }
    }
}

/// The text of the argument, or of standard input.
fn text(argument: Option<&str>) -> Result<String> {
    let text = match argument {
        Some(text) if text != "-" => text.to_owned(),
        None if io::stdin().is_terminal() => {
            return Err(failure::usage(
                "there is nothing to say",
                "give the text as an argument, or pipe it in",
            ));
        }
        _ => read(io::stdin().lock())?,
    };
    if text.trim().is_empty() {
        return Err(failure::usage("the text is empty", "give some words"));
    }
    Ok(text)
}

fn read(input: impl io::Read) -> Result<String> {
    let mut bytes = Vec::new();
    input.take(MAX_TEXT_BYTES + 1).read_to_end(&mut bytes).context("cannot read standard input")?;
    if bytes.len() as u64 > MAX_TEXT_BYTES {
        return Err(failure::usage(
            format!("the text on standard input has more than {MAX_TEXT_CHARS} characters"),
            "speak it in parts",
        ));
    }
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        failure::usage(
            format!("the text on standard input is not UTF-8 (byte {at})"),
            "convert it, e.g. with iconv",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn input_is_bounded_and_must_be_text() {
        assert_eq!(read("héllo".as_bytes()).unwrap(), "héllo");
        assert!(read(&b"ab\xff"[..]).unwrap_err().to_string().contains("byte 2"));
        assert!(read(io::repeat(b'a')).unwrap_err().to_string().contains("more than"));
    }

    #[test]
    fn an_empty_text_is_refused() {
        assert!(text(Some(" \n")).is_err());
        assert_eq!(text(Some("hello")).unwrap(), "hello");
    }
}
