//! `izwi say`: synthesises a text into a file, to standard output or through the sound device.

use std::io::{self, IsTerminal as _};
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use clap::ValueHint;
use izwi_audio::encode::Format;
use izwi_core::engine::request::MAX_TEXT_CHARS;

use crate::settings::Resolved;
use crate::sink::{self, Target, TargetOptions};
use crate::sound::Player;
use crate::speaking::{self, Speaking};
use crate::speech_options::SpeechFlags;
use crate::{engine, failure, input, logging, output};

/// A character in UTF-8 has at most four bytes.
const MAX_TEXT_BYTES: u64 = MAX_TEXT_CHARS as u64 * 4;

/// Synthesise speech from text
///
/// Without -o and --play the audio goes to izwi.wav in the current folder, replacing it. If standard output is not a
/// terminal (and --json is not given), a destination is required. The audio of a file is written while it is generated,
/// to FILE.XXXXXX.part, and appears at its end. Ctrl-C ends it there: the file is valid, and a line says where in the text
/// it ends. On a terminal a long text shows its progress and the remaining time. One line on standard error reports the
/// duration, the RTF (time to compute over time of audio) and the time to the first audio. Without --model, a voice
/// brings its model: the one that made a saved voice, or an installed one that has the voice where the default model has
/// not. A model that is not installed is pulled first.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Text to synthesise; - or nothing reads standard input
    text: Option<String>,
    /// Audio file to write, in the format of its extension (.wav, .mp3, .opus, .ogg, .flac, .ulaw, .alaw); a name without
    /// one needs --format; - writes to standard output
    #[arg(long, short, value_name = "FILE", value_hint = ValueHint::FilePath)]
    output: Option<PathBuf>,
    /// Format of the audio [default: that of the extension; wav for standard output, devices and pipes]
    #[arg(long, value_parser = sink::format_parser())]
    format: Option<&'static Format>,
    /// Play the audio while it is generated, through the sound device or else a player program
    #[arg(long, short)]
    play: bool,
    /// Pass audio on while it is generated: to -o - with a header of unknown length, to a player program as a stream
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

pub(crate) fn run(args: &Args, resolved: &Resolved) -> Result<()> {
    logging::begin(&resolved.settings, "warn");
    let target = Target::choose(TargetOptions {
        output: args.output.as_deref(),
        format: args.format,
        play: args.play,
        json: args.json,
        stdout_is_terminal: output::stdout_is_terminal(),
    })?;
    let player = args.play.then(|| Player::find(args.stream)).transpose()?;
    if let Target::File(path, _) = &target {
        sink::check_file(path)?;
    }
    let text = text(args.text.as_deref())?;
    let (config, store) = speaking::choose_model(&args.options, resolved, !args.no_pull)?;
    let remote = resolved.settings.remote(&config.model);

    let (stream, json) = (args.stream, args.json);
    let speaking = Speaking { options: &args.options, target, player, stream, json, store: &store };
    engine::run_model(config, remote, async |loaded| speaking.run(loaded, text).await)
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
