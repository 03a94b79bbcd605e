//! The command line: all commands, and the dispatch to the one that the arguments name.
//!
//! Flags of settings come from the table; the other flags of a command are in its own file.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand, ValueHint};
use izwi_core::engine::executor::{isa_level, isa_levels};
use izwi_types::excerpt;

use crate::build_info::VERSION;
use crate::commands::{
    align, bench, chat, completions, config, diarize, dictate, docs, doctor, lexicon, list, logs, man, mcp,
    meeting, open, plan, pull, read, rm, say, serve, service, speak_selection, speakers, speech_dispatcher,
    status, transcribe, tray, voices,
};
use crate::failure;
use crate::help;
use crate::settings::flags::Chosen;
use crate::settings::{Section, flags, process};

/// Commands with flags for these settings.
const SETTINGS_FLAGS: [(&str, Chosen); 23] = [
    ("say", Chosen::Sections(&[Section::Engine])),
    ("speak-selection", Chosen::Sections(&[Section::Engine])),
    ("read", Chosen::Sections(&[Section::Engine])),
    ("transcribe", Chosen::Sections(&[Section::Engine])),
    ("align", Chosen::Sections(&[Section::Engine])),
    ("diarize", Chosen::Sections(&[Section::Engine])),
    ("meeting", Chosen::Sections(&[Section::Engine])),
    ("dictate", Chosen::Sections(&[Section::Engine])),
    ("chat", Chosen::Sections(&[Section::Engine])),
    ("serve", Chosen::Sections(&[Section::Top, Section::Engine, Section::Server])),
    ("mcp", Chosen::Sections(&[Section::Engine])),
    ("speech-dispatcher", Chosen::Sections(&[Section::Engine])),
    ("status", Chosen::Names(&["host", "port"])),
    ("open", Chosen::Names(&["host", "port"])),
    ("tray", Chosen::Names(&["host", "port"])),
    ("voices add", Chosen::Sections(&[Section::Top, Section::Engine])),
    ("speakers add", Chosen::Sections(&[Section::Engine])),
    ("speakers identify", Chosen::Sections(&[Section::Engine])),
    ("voices try", Chosen::Sections(&[Section::Engine])),
    ("bench", Chosen::Sections(&[Section::Engine])),
    ("plan", Chosen::Sections(&[Section::Engine])),
    ("doctor", Chosen::Sections(&[Section::Engine, Section::Server])),
    ("config show", Chosen::Sections(&[Section::Top, Section::Engine, Section::Server])),
];

/// Help of `--model` for commands with an ASR model.
const ASR_MODEL: &str =
    "ASR model, as `izwi list` shows it [default: the setting asr_model] [env: IZWI_ASR_MODEL]";

/// Help of `--model` for commands with a model that tells speakers apart.
const DIARIZATION_MODEL: &str =
    "Model with the task diarize, as `izwi list` shows it [default: the first installed one]";

/// Help of `--model` for commands with a chat model.
const CHAT_MODEL: &str =
    "Chat model, as `izwi list` shows it [default: the setting model, or the only installed chat model]";

/// Speech on this machine: synthesise text, transcribe recordings, serve both over HTTP and WebSocket
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
    SpeakSelection(speak_selection::Args),
    Read(read::Args),
    Transcribe(transcribe::Args),
    Align(align::Args),
    Diarize(diarize::Args),
    Meeting(meeting::Args),
    Dictate(dictate::Args),
    Tray(tray::Args),
    Chat(chat::Args),
    Serve(serve::Args),
    Mcp(mcp::Args),
    SpeechDispatcher(speech_dispatcher::Args),
    Service(service::Args),
    Status(status::Args),
    Logs(logs::Args),
    Open(open::Args),
    Voices(voices::Args),
    Speakers(speakers::Args),
    Lexicon(lexicon::Args),
    Pull(pull::Args),
    List(list::Args),
    Rm(rm::Args),
    Config(config::Args),
    Doctor(doctor::Args),
    Bench(bench::Args),
    Plan(plan::Args),
    Completions(completions::Args),
    Docs(docs::Args),
    Man(man::Args),
}

/// The complete command line with the flags of the settings.
pub(crate) fn definition() -> clap::Command {
    let root = flags::add_to(Cli::command(), &SETTINGS_FLAGS).mut_subcommands(|command| {
        match command.get_name() {
            // The setting of this name is the TTS model.
            "transcribe" | "align" | "dictate" | "meeting" => {
                for_one(command).mut_arg("model", |flag| flag.help(ASR_MODEL))
            }
            "diarize" => for_one(command).mut_arg("model", |flag| flag.help(DIARIZATION_MODEL)),
            "chat" => for_one(command).mut_arg("model", |flag| flag.help(CHAT_MODEL)),
            "say" | "speak-selection" | "read" => for_one(command),
            "speakers" => command.mut_subcommands(|inner| match inner.get_name() {
                "add" | "identify" => for_one(inner).mut_arg("model", |flag| flag.help(DIARIZATION_MODEL)),
                _ => inner,
            }),
            "voices" => command.mut_subcommands(|inner| match inner.get_name() {
                "add" | "try" => for_one(inner),
                _ => inner,
            }),
            _ => command,
        }
    });
    help::prepare(root)
}

/// A command that loads one model for itself: several devices are for several clients.
fn for_one(command: clap::Command) -> clap::Command {
    command.mut_arg("devices", |flag| flag.hide_short_help(true).hide_long_help(true))
}

/// Runs the command of the arguments.
///
/// # Errors
/// The command failed.
pub(crate) fn run(arguments: impl Iterator<Item = OsString>) -> Result<ExitCode> {
    let mut arguments: Vec<OsString> = arguments.collect();
    speech_dispatcher::name_command(&mut arguments);
    let shown = match help::take_help_all(&mut arguments) {
        true => help::in_full(definition()),
        false => definition(),
    };
    let matches = match shown.clone().try_get_matches_from(&arguments) {
        Ok(matches) => matches,
        Err(message) => match help::unknown_command(&message, &shown, &arguments) {
            Some(error) => return Err(error),
            None => return Ok(print_message(&message)),
        },
    };
    let flags = flags::given(&matches);
    let Cli { config, command } = match Cli::from_arg_matches(&matches) {
        Ok(cli) => cli,
        Err(message) => return Ok(print_message(&message)),
    };
    if let Err(level) = isa_level() {
        let message =
            format!("IZWI_ISA is '{}', which is no instruction level of this processor", excerpt(&level));
        return Err(failure::usage(
            message,
            format!("unset it, or choose one of {}", isa_levels().join(", ")),
        ));
    }
    let settings = || process::load(&flags, config.as_deref());
    match command {
        Command::Say(args) => say::run(&args, &settings()?),
        Command::SpeakSelection(args) => speak_selection::run(&args, &settings()?),
        Command::Read(args) => read::run(&args, &settings()?),
        Command::Transcribe(args) => transcribe::run(&args, &settings()?),
        Command::Align(args) => align::run(&args, &settings()?),
        Command::Diarize(args) => diarize::run(&args, &settings()?),
        Command::Meeting(args) => meeting::run(&args, &settings()?),
        Command::Dictate(args) => dictate::run(&args, &settings()?),
        Command::Tray(args) => tray::run(&args, config.as_deref(), &settings()?),
        Command::Chat(args) => chat::run(&args, &settings()?),
        Command::Serve(args) => serve::run(&args, &settings()?),
        Command::Mcp(args) => mcp::run(&args, &settings()?),
        Command::SpeechDispatcher(args) => speech_dispatcher::run(&args, &settings()?),
        Command::Service(args) => service::run(&args, config.as_deref(), settings),
        Command::Status(args) => status::run(&args, &settings()?),
        Command::Logs(args) => logs::run(&args),
        Command::Open(args) => open::run(&args, &settings()?),
        Command::Voices(args) => voices::run(&args, &settings()?),
        Command::Speakers(args) => speakers::run(&args, &settings()?),
        Command::Lexicon(args) => lexicon::run(args, &settings()?),
        Command::Pull(args) => pull::run(&args, &settings()?.settings),
        Command::List(args) => list::run(&args, &settings()?.settings),
        Command::Rm(args) => rm::run(&args, &settings()?.settings),
        Command::Config(args) => config::run(&args, config.as_deref(), settings),
        Command::Doctor(args) => doctor::run(&args, settings()),
        Command::Bench(args) => bench::run(&args, &settings()?),
        Command::Plan(args) => plan::run(&args, &settings()?),
        Command::Completions(args) => completions::run(&args, definition()),
        Command::Docs(args) => docs::run(&args, definition()),
        Command::Man(args) => man::run(&args, help::in_full(definition())),
    }
    .map(|()| ExitCode::SUCCESS)
}

/// Prints help, the version, or the error in the arguments.
fn print_message(message: &clap::Error) -> ExitCode {
    // A closed output is ignored.
    let _ = message.print();
    u8::try_from(message.exit_code()).map_or(ExitCode::FAILURE, ExitCode::from)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::TABLE;

    fn given(line: &str) -> Vec<String> {
        let matches = definition().try_get_matches_from(line.split_whitespace()).unwrap();
        let given = flags::given(&matches);
        given.iter().map(|(name, values)| format!("{name}={}", values.join("+"))).collect()
    }

    #[test]
    fn the_definition_is_consistent() {
        definition().debug_assert();
    }

    #[test]
    fn settings_are_accepted_as_flags() {
        assert_eq!(given("izwi say hello --model m --threads 2"), ["model=m", "threads=2"]);
        assert_eq!(given("izwi --threads 3 say hello"), ["threads=3"]);
        assert_eq!(
            given("izwi serve --allow-host a --allow-host b --insecure --enable-preemption=false"),
            ["allow_host=a+b", "enable_preemption=false", "insecure=true"]
        );
        assert_eq!(given("izwi config show --port 1"), ["port=1"]);
        assert_eq!(given("izwi status --port 1"), ["port=1"]);
        assert!(definition().try_get_matches_from(["izwi", "status", "--insecure"]).is_err());
        assert!(definition().try_get_matches_from(["izwi", "list", "--port", "1"]).is_err());
    }

    #[test]
    fn the_short_help_has_common_flags_and_the_longest_all() {
        let help = |command: clap::Command, path: &str, long: bool| {
            let mut command = command;
            command.build();
            for name in path.split(' ') {
                command = command.find_subcommand(name).unwrap().clone();
            }
            if long { command.render_long_help() } else { command.render_help() }.to_string()
        };
        for (path, common) in [
            ("say", &["--output", "--format", "--voice", "--model", "--speed"][..]),
            ("read", &["--output", "--voice", "--model", "--cast", "--loudness"]),
            ("transcribe", &["--output", "--format", "--model", "--language"]),
            ("align", &["--text", "--output", "--format", "--model", "--language"]),
            ("diarize", &["--output", "--format", "--model"]),
            ("meeting", &["--output", "--llm", "--model"]),
            ("voices try", &["--output", "--model"]),
            ("serve", &["--host", "--port", "--devices", "--wyoming-open"]),
        ] {
            let (short, long) = (help(definition(), path, false), help(definition(), path, true));
            let full = help(help::in_full(definition()), path, true);
            for flag in common {
                assert!(
                    short.contains(&format!("{flag} ")) || short.contains(&format!("{flag}[")),
                    "{path} {flag}: {short}"
                );
            }
            for flag in ["--block-size", "--scheduling-policy", "--enable-preemption"] {
                assert!(
                    !short.contains(flag) && !long.contains(flag) && full.contains(flag),
                    "{path} {flag}"
                );
            }
            assert!(!short.contains("--weight-cache") && long.contains("--weight-cache"), "{path}");
            assert!(short.contains("`--help-all`") && long.contains("`--help-all`"), "{path}");
        }
        assert!(!help(definition(), "say", true).contains("--devices"));
        assert!(
            help(definition(), "say", false).lines().count() < 45,
            "{}",
            help(definition(), "say", false)
        );
    }

    #[test]
    fn unknown_commands_get_the_nearest() {
        let refusal = |line: &str| {
            let arguments: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            let error = definition().try_get_matches_from(&arguments).unwrap_err();
            let error = help::unknown_command(&error, &definition(), &arguments);
            error.map(|error| crate::failure::render(&error)).unwrap_or_default()
        };
        for (line, expected) in [
            ("izwi sya hello", "error: 'sya' is no command of `izwi`\nhelp: did you mean 'say'?"),
            ("izwi voices lst", "error: 'lst' is no command of `izwi voices`\nhelp: did you mean 'list'"),
            (
                "izwi --threads 2 voices tyr heart",
                "'tyr' is no command of `izwi voices`\nhelp: did you mean 'try'?",
            ),
            ("izwi voices heart", "the commands are 'add', 'list', 'ls', 'remove', 'rm', 'show', 'try'"),
            ("izwi service instal", "'instal' is no command of `izwi service`\nhelp: did you mean 'install'"),
        ] {
            assert!(refusal(line).contains(expected), "{line}: {}", refusal(line));
        }
        assert_eq!(refusal("izwi say --no-such-flag"), "", "another error");
    }

    #[test]
    fn help_all_is_taken_before_a_double_dash() {
        let taken = |line: &str| {
            let mut arguments: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            help::take_help_all(&mut arguments).then(|| arguments.join(std::ffi::OsStr::new(" ")))
        };
        assert_eq!(taken("izwi say --help-all").unwrap(), "izwi say --help");
        assert_eq!(taken("izwi say -- --help-all"), None);
        assert_eq!(taken("izwi say --help"), None);
    }

    #[test]
    fn every_listed_command_has_a_manual_page() {
        let pages = man::pages(help::in_full(definition())).unwrap();
        let names: Vec<&str> = pages.iter().map(|(name, _)| name.as_str()).collect();
        for name in
            ["izwi.1", "izwi-man.1", "izwi-say.1", "izwi-serve.1", "izwi-config-show.1", "izwi-voices-add.1"]
        {
            assert!(names.contains(&name), "{name} is not in {names:?}");
        }
        assert!(!names.contains(&"izwi-docs.1"), "a hidden command has no page");
        let text = |page: &[u8]| String::from_utf8_lossy(page).into_owned();
        assert!(pages.iter().all(|(_, page)| text(page).contains(".SH NAME")));
    }

    #[test]
    fn pages_name_every_command_and_setting() {
        let pages = || (docs::cli_page(definition()), docs::config_page());
        let (cli, config) = pages();
        for command in [
            "izwi say",
            "izwi transcribe",
            "izwi align",
            "izwi diarize",
            "izwi serve",
            "izwi service install",
            "izwi config show",
            "izwi completions",
        ] {
            assert!(cli.contains(&format!("\n## {command}\n")), "{command}");
        }
        assert_eq!(cli.matches("--threads <N>").count(), 1, "a global flag is listed once");
        assert!(!cli.contains("izwi docs\n"), "a hidden command is not listed");
        for setting in TABLE {
            assert!(config.contains(&format!("| `{}` |", setting.name)), "{}", setting.name);
        }
        assert_eq!(pages(), (cli, config), "two runs give the same bytes");
    }
}
