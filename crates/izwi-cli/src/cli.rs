//! The command line: which commands there are, and which of them a process runs.
//!
//! Flags of settings are added from the table; what a command takes beside them stands in its own file.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::LazyLock;

use anyhow::Result;
use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand, ValueHint};

use crate::commands::{
    bench, chat, completions, config, docs, doctor, list, pull, rm, say, serve, transcribe, voices,
};
use crate::settings::{Section, flags, process};

/// Commands that take more settings than those that every command takes.
const TAKES_SETTINGS: [(&str, &[Section]); 8] = [
    ("say", &[Section::Engine]),
    ("transcribe", &[Section::Engine]),
    ("chat", &[Section::Engine]),
    ("serve", &[Section::Engine, Section::Server]),
    ("voices add", &[Section::Engine]),
    ("bench", &[Section::Engine]),
    ("doctor", &[Section::Engine, Section::Server]),
    ("config show", &[Section::Engine, Section::Server]),
];

/// What `--model` means to a command that listens.
const MODEL_THAT_LISTENS: &str =
    "Model that listens, as `izwi list` shows it [default: the setting asr_model] [env: IZWI_ASR_MODEL]";

/// What `--model` means to a command that converses.
const MODEL_THAT_CONVERSES: &str = "Model that converses, as `izwi list` shows it [default: the setting model, or the only installed one that does]";

/// The version with what was built in.
pub(crate) static VERSION: LazyLock<String> =
    LazyLock::new(|| format!("{} (features: {})", env!("CARGO_PKG_VERSION"), backends().join(", ")));

/// What this build can compute with.
pub(crate) fn backends() -> Vec<&'static str> {
    let optional = [
        (cfg!(feature = "metal"), "metal"),
        (cfg!(feature = "accelerate"), "accelerate"),
        (cfg!(feature = "cuda"), "cuda"),
    ];
    let built_in = optional.into_iter().filter(|(built_in, _)| *built_in).map(|(_, name)| name);
    std::iter::once("cpu").chain(built_in).collect()
}

/// Speech on this machine: speak text, write down recordings, or serve speech over HTTP and WebSocket.
#[derive(Debug, Parser)]
#[command(name = "izwi", version = VERSION.as_str(), max_term_width = 110)]
struct Cli {
    /// Configuration file [default: config.toml in the platform's configuration folder] [env: IZWI_CONFIG]
    #[arg(long, global = true, value_name = "FILE", value_hint = ValueHint::FilePath, help_heading = "Everywhere")]
    config: Option<PathBuf>,

    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Say(say::Args),
    Transcribe(transcribe::Args),
    Chat(chat::Args),
    Serve(serve::Args),
    Voices(voices::Args),
    Pull(pull::Args),
    List(list::Args),
    Rm(rm::Args),
    Config(config::Args),
    Doctor(doctor::Args),
    Bench(bench::Args),
    Completions(completions::Args),
    Docs(docs::Args),
}

/// The whole command line, settings included.
pub(crate) fn definition() -> clap::Command {
    flags::add_to(Cli::command(), &TAKES_SETTINGS).mut_subcommands(|command| match command.get_name() {
        // The setting of this name is about speaking.
        "transcribe" => command.mut_arg("model", |flag| flag.help(MODEL_THAT_LISTENS)),
        "chat" => command.mut_arg("model", |flag| flag.help(MODEL_THAT_CONVERSES)),
        _ => command,
    })
}

/// Runs what the arguments ask for.
///
/// # Errors
/// The command failed.
pub(crate) fn run(arguments: impl Iterator<Item = OsString>) -> Result<ExitCode> {
    let parsed = definition().try_get_matches_from(arguments);
    let matches = match parsed {
        Ok(matches) => matches,
        Err(told) => return Ok(tell(&told)),
    };
    let flags = flags::given(&matches);
    let Cli { config, command } = match Cli::from_arg_matches(&matches) {
        Ok(cli) => cli,
        Err(told) => return Ok(tell(&told)),
    };
    let settings = || process::load(&flags, config.as_deref());
    match command {
        Command::Say(args) => say::run(&args, &settings()?),
        Command::Transcribe(args) => transcribe::run(&args, &settings()?),
        Command::Chat(args) => chat::run(&args, &settings()?),
        Command::Serve(args) => serve::run(&args, &settings()?),
        Command::Voices(args) => voices::run(&args, &settings()?),
        Command::Pull(args) => pull::run(&args, &settings()?.settings),
        Command::List(args) => list::run(&args, &settings()?.settings),
        Command::Rm(args) => rm::run(&args, &settings()?.settings),
        Command::Config(args) => config::run(&args, config.as_deref(), settings),
        Command::Doctor(args) => doctor::run(&args, settings()),
        Command::Bench(args) => bench::run(&args, &settings()?),
        Command::Completions(args) => completions::run(&args),
        Command::Docs(args) => docs::run(&args),
    }
    .map(|()| ExitCode::SUCCESS)
}

/// Prints help, the version or what is wrong with the arguments.
fn tell(told: &clap::Error) -> ExitCode {
    // Nobody reading is no failure.
    let _ = told.print();
    u8::try_from(told.exit_code()).map_or(ExitCode::FAILURE, ExitCode::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given(line: &str) -> Vec<String> {
        let matches = definition().try_get_matches_from(line.split_whitespace()).unwrap();
        let given = flags::given(&matches);
        given.iter().map(|(name, values)| format!("{name}={}", values.join("+"))).collect()
    }

    #[test]
    fn the_definition_holds_together() {
        definition().debug_assert();
    }

    #[test]
    fn settings_are_taken_as_flags() {
        assert_eq!(given("izwi say hello --model m --threads 2"), ["model=m", "threads=2"]);
        assert_eq!(given("izwi --threads 3 say hello"), ["threads=3"]);
        assert_eq!(
            given("izwi serve --allow-host a --allow-host b --insecure --enable-preemption=false"),
            ["allow_host=a+b", "enable_preemption=false", "insecure=true"]
        );
        assert_eq!(given("izwi config show --port 1"), ["port=1"]);
        assert!(definition().try_get_matches_from(["izwi", "list", "--port", "1"]).is_err());
    }
}
