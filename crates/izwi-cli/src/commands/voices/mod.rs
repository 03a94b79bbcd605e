//! `izwi voices`: what the installed models can speak with: their own voices, and saved ones, made from recordings.

mod add;
mod list;
mod sample;

use anyhow::Result;
use clap::Subcommand;
use izwi_hub::{SavedVoice, VoiceStore};

use crate::settings::Resolved;
use crate::{failure, logging, models, output};

/// List the voices of all installed models, try them, make voices of recordings
///
/// A model has voices of its own, or speaks in saved ones. A saved voice is made from a few seconds of a recording and
/// stored in the `voices` folder of the model store. It works with the model that made it. Use either with
/// `izwi say --voice NAME`, and by its name over HTTP and WebSocket.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Option<VoicesCommand>,
    #[command(flatten)]
    list: list::Args,
}

#[derive(Debug, Subcommand)]
enum VoicesCommand {
    /// List voices; the default of `izwi voices`
    #[command(visible_alias = "ls")]
    List(list::Args),
    Try(sample::Try),
    Add(add::Add),
    /// Remove saved voices
    #[command(visible_alias = "remove")]
    Rm {
        /// Voices, as `izwi voices` shows them
        #[arg(required = true, value_name = "NAME")]
        names: Vec<String>,
    },
    /// Show the properties of a saved voice
    Show {
        /// A voice, as `izwi voices` shows it
        #[arg(value_name = "NAME")]
        name: String,
        /// Print as JSON
        #[arg(long)]
        json: bool,
    },
}

pub(crate) fn run(args: &Args, resolved: &Resolved) -> Result<()> {
    logging::begin(&resolved.settings, "warn,symphonia=off");
    if args.command.is_some() && args.list.is_given() {
        let help = "give them after it, as in `izwi voices list --json`";
        return Err(failure::usage("the options of a list stand before the name of a command", help));
    }
    let store = models::open(&resolved.settings)?;
    match &args.command {
        None => args.list.run(&store, resolved),
        Some(VoicesCommand::List(list)) => list.run(&store, resolved),
        Some(VoicesCommand::Try(sample)) => sample.run(&store, resolved),
        Some(VoicesCommand::Add(add)) => add.run(&store, resolved),
        Some(VoicesCommand::Rm { names }) => remove(store.voices(), names),
        Some(VoicesCommand::Show { name, json }) => show(&store.voices().read(name)?.0, *json),
    }
}

fn remove(voices: &VoiceStore, names: &[String]) -> Result<()> {
    for name in names {
        voices.remove(name)?;
        output::print(&format!("{name} is removed\n"))?;
    }
    Ok(())
}

fn show(voice: &SavedVoice, json: bool) -> Result<()> {
    if json {
        return output::print_json(&list::saved_json(voice));
    }
    let unknown = || "(unknown)".to_owned();
    let rows = [
        ["name", &voice.name],
        ["made by", voice.made_by.as_ref().unwrap_or(&unknown())],
        ["family", &voice.family],
        ["checkpoint", &voice.model],
        ["created", &voice.created],
        ["size", &output::format_bytes(voice.bytes)],
        ["text", voice.text.as_ref().unwrap_or(&unknown())],
    ]
    .map(|row| row.map(str::to_owned));
    output::print(&output::format_columns(&rows))
}
