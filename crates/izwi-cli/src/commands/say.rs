//! `izwi say`: synthesises a text into a file, to standard output or through the sound device.

use std::io::{self, IsTerminal as _};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result};
use clap::ValueHint;
use izwi_core::engine::Engine;
use izwi_core::engine::request::MAX_TEXT_CHARS;
use izwi_hub::Store;
use izwi_types::TextNotes;
use serde::Serialize;

use crate::engine::{Loaded, incomplete, millis};
use crate::settings::Resolved;
use crate::sink::{self, StdoutStream, Target, TargetOptions};
use crate::sound::{Player, Playing};
use crate::speech_options::SpeechFlags;
use crate::synthesis::{self, Speech};
use crate::{engine, failure, input, logging, models, output};

/// A character in UTF-8 has at most four bytes.
const MAX_TEXT_BYTES: u64 = MAX_TEXT_CHARS as u64 * 4;

/// Synthesise speech from text
///
/// Without -o and --play the audio goes to izwi.wav in the current folder, replacing it. If standard output is not a
/// terminal (and --json is not given), a destination is required. A file appears whole or not at all, also after an
/// interrupt. One line on standard error reports the duration, the RTF (time to compute over time of audio) and the
/// time to the first audio. A saved voice uses the model that made it, unless --model names another. A model that is not
/// installed is pulled first.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Text to synthesise; - or nothing reads standard input
    text: Option<String>,
    /// Audio file to write, in the format of its extension (.wav, .mp3, .opus, .ogg, .flac, .ulaw, .alaw); - writes WAV to
    /// standard output
    #[arg(long, short, value_name = "FILE", value_hint = ValueHint::FilePath)]
    output: Option<PathBuf>,
    /// Play the audio while it is generated, through the sound device or else a player program
    #[arg(long, short)]
    play: bool,
    /// Pass audio on while it is generated: to -o - as a WAV of unknown length, to a player program as a stream
    #[arg(long)]
    stream: bool,
    #[command(flatten)]
    options: SpeechFlags,
    /// Print a JSON report to standard output
    #[arg(long)]
    json: bool,
    /// Fail if the model is not installed, instead of pulling it
    #[arg(long)]
    no_pull: bool,
}

/// What `--json` prints.
#[derive(Debug, Serialize)]
struct Report {
    /// Absent if no file was written.
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
    /// The same text with this seed gives the same bytes.
    seed: u64,
    finish_reason: &'static str,
    /// What the model says otherwise than it is written.
    warnings: Vec<String>,
}

pub(crate) fn run(args: &Args, resolved: &Resolved) -> Result<()> {
    logging::begin(&resolved.settings, "warn");
    let target = Target::choose(TargetOptions {
        output: args.output.as_deref(),
        play: args.play,
        json: args.json,
        stdout_is_terminal: output::stdout_is_terminal(),
    })?;
    let player = args.play.then(|| Player::find(args.stream)).transpose()?;
    if let Target::File(path) = &target {
        sink::check_file(path)?;
    }
    let text = text(args.text.as_deref())?;
    let mut config = engine::local_config(resolved);
    let store = models::open(&resolved.settings)?;
    if !resolved.is_flag("model")
        && let Some(model) = args.options.voice_model(&store)
    {
        config.model = model;
    }
    models::ensure_known(&store, &resolved.settings, &config.model, !args.no_pull)?;
    let remote = resolved.settings.remote(&config.model);

    let job = Job { args, target, player, store: &store };
    engine::run_model(config, remote, async |loaded| job.run(loaded, text).await)
}

struct Job<'a> {
    args: &'a Args,
    target: Target,
    player: Option<Player>,
    store: &'a Store,
}

impl Job<'_> {
    async fn run(&self, loaded: Loaded, text: String) -> Result<()> {
        let Loaded { engine, mut interrupt, load_time } = loaded;
        let request = self.args.options.request(&engine, self.store.voices(), text)?;
        let mut live = self.start_streams(engine.profile().info.sample_rate_hz)?;
        let is_passed_on = self.args.stream || (self.target == Target::None && live.playing.is_some());
        let keep = !is_passed_on || matches!(self.target, Target::File(_));
        let on_chunk = async |samples: &[f32]| live.write(samples).await;
        let mut warnings = Vec::new();
        let on_notes = |notes: &TextNotes| warnings = self.warn(&engine, notes);
        let speech =
            synthesis::synthesize(&engine, request, &mut interrupt, keep, on_notes, on_chunk).await?;

        match &self.target {
            Target::File(path) => sink::write_audio(path, &speech.samples, speech.sample_rate_hz)?,
            Target::Stdout if !self.args.stream => {
                sink::write_stdout(&speech.samples, speech.sample_rate_hz)?
            }
            Target::Stdout | Target::None => {}
        }
        if let Some(stdout) = live.stdout {
            stdout.finish()?;
        }
        match (live.playing, &self.player) {
            (Some(mut playing), _) => interrupt.guard(playing.finish()).await?,
            (None, Some(player)) => {
                player.play_samples(&speech.samples, speech.sample_rate_hz, &mut interrupt).await?;
            }
            (None, None) => {}
        }
        self.report(&engine, &speech, load_time, warnings)
    }

    /// Tells what the model says otherwise than it is written, and returns the sentences.
    fn warn(&self, engine: &Engine, notes: &TextNotes) -> Vec<String> {
        let model = &engine.profile().model;
        let notes = notes.sentences(model, |language| self.store.speaker_hint(language));
        let sentences: Vec<String> = notes.into_iter().map(|note| note.message).collect();
        for sentence in &sentences {
            output::status(&format!("warning: {sentence}"));
        }
        sentences
    }

    /// Starts the streams that receive audio while it is generated.
    fn start_streams(&self, sample_rate_hz: u32) -> Result<LiveStreams> {
        let streams = self.args.stream;
        let stdout = (streams && self.target == Target::Stdout).then(|| StdoutStream::start(sample_rate_hz));
        let player = self.player.as_ref().filter(|player| streams || player.prefers_streams());
        let playing = player.map(|player| player.open_stream(sample_rate_hz));
        Ok(LiveStreams { stdout: stdout.transpose()?, playing: playing.transpose()? })
    }

    fn report(
        &self,
        engine: &Engine,
        speech: &Speech,
        load_time: Duration,
        warnings: Vec<String>,
    ) -> Result<()> {
        let stats = &speech.stats;
        let seconds = stats.audio_duration.as_secs_f64();
        let ttfa_ms = stats.time_to_first_audio.map(millis);
        if let Some(warning) = incomplete(stats.finish_reason, "speech") {
            output::status(&format!("warning: {warning}"));
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
                sample_rate_hz: speech.sample_rate_hz,
                rtf: stats.rtf(),
                ttfa_ms,
                generation_ms: millis(stats.generation_time),
                load_ms: millis(load_time),
                seed: stats.seed,
                finish_reason: stats.finish_reason.label(),
                warnings,
            });
        }
        let first = ttfa_ms.map_or_else(String::new, |ttfa| format!(", first audio after {ttfa:.0} ms"));
        output::status(&format!("{}: {seconds:.2} s, RTF {:.3}{first}", self.target.label(), stats.rtf()));
        Ok(())
    }
}

/// Receivers of audio while it is generated.
#[derive(Debug, Default)]
struct LiveStreams {
    stdout: Option<StdoutStream>,
    playing: Option<Playing>,
}

impl LiveStreams {
    async fn write(&mut self, samples: &[f32]) -> Result<()> {
        if let Some(stdout) = &mut self.stdout {
            tokio::task::block_in_place(|| stdout.write(samples))?;
        }
        match &mut self.playing {
            Some(playing) => playing.write(samples).await,
            None => Ok(()),
        }
    }
}

/// The text of the argument, or of standard input.
fn text(argument: Option<&str>) -> Result<String> {
    let text = match argument {
        Some(text) if text != "-" => text.to_owned(),
        None if io::stdin().is_terminal() => {
            return Err(failure::usage("no text is given", "give the text as an argument, or pipe it in"));
        }
        _ => read(io::stdin().lock())?,
    };
    if text.trim().is_empty() {
        return Err(failure::usage("the text is empty", "give some text"));
    }
    Ok(text)
}

fn read(input: impl io::Read) -> Result<String> {
    let bytes = input::read_bounded(input, MAX_TEXT_BYTES).context("cannot read standard input")?;
    let bytes = bytes.ok_or_else(|| {
        let message = format!("the text on standard input has more than {MAX_TEXT_CHARS} characters");
        failure::usage(message, "split it into parts")
    })?;
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
    fn input_is_limited_and_must_be_utf8() {
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
