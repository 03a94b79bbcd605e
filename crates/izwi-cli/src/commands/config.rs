//! `izwi config`: shows the settings with their origins, checks a file, and writes a new one.

use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::{Subcommand, ValueHint};

use crate::failure;
use crate::output;
use crate::settings::process::{self, FILE_VARIABLE, FilePath};
use crate::settings::{Origin, Resolved};

/// Show the settings and their origins, check a file, or write a new one
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: ConfigCommand,
}

#[derive(Debug, Subcommand)]
enum ConfigCommand {
    /// Print every setting with its value and its origin
    ///
    /// A flag overrides a variable, a variable the file, the file the default. Accepts the flags of all settings, to show
    /// their effect.
    Show {
        /// Print as JSON
        #[arg(long)]
        json: bool,
    },
    /// Check a configuration file for unknown keys, wrong types and values out of range
    Check {
        /// The file [default: the file that other commands read]
        #[arg(value_hint = ValueHint::FilePath)]
        file: Option<PathBuf>,
    },
    /// Write a configuration file with every setting commented out
    ///
    /// Each setting has its description, its values and its default. Only the user who runs this can read the file.
    Init {
        /// The file [default: the file that other commands read]
        #[arg(value_hint = ValueHint::FilePath)]
        file: Option<PathBuf>,
        /// Replace a file that exists
        #[arg(long)]
        force: bool,
    },
}

pub(crate) fn run(
    args: &Args,
    config: Option<&Path>,
    settings: impl FnOnce() -> Result<Resolved>,
) -> Result<()> {
    match &args.command {
        ConfigCommand::Show { json } => show(*json, &settings()?),
        ConfigCommand::Check { file } => check(&file_path(file.as_deref().or(config))?),
        ConfigCommand::Init { file, force } => init(&file_path(file.as_deref().or(config))?, *force),
    }
}

fn show(json: bool, resolved: &Resolved) -> Result<()> {
    for warning in process::unknown_variables(&[FILE_VARIABLE]) {
        output::status(&format!("warning: {warning}"));
    }
    let values =
        resolved.origins.iter().map(|(setting, origin)| (setting, (setting.get)(&resolved.settings), origin));
    let remotes = resolved.settings.remote_models.iter().map(|remote| {
        let config = &remote.config;
        let value = format!("{}, {} at {}", config.task.name(), config.model, remote.place());
        (format!("remote_models.{}", config.name), value, remote.origin.to_string())
    });
    let pipelines = resolved.settings.pipelines.iter().map(|pipeline| {
        (format!("pipelines.{}", pipeline.name()), pipeline.place(), pipeline.origin.to_string())
    });
    let dictation = resolved.settings.dictation.iter().map(|profile| {
        let names =
            if profile.applications.is_empty() { "*".to_owned() } else { profile.applications.join(",") };
        (format!("dictation.{names}"), profile.summary(), profile.origin.to_string())
    });
    let remotes = remotes.chain(pipelines).chain(dictation);
    if json {
        let mut object: serde_json::Map<String, serde_json::Value> = values
            .map(|(setting, value, origin)| {
                let (kind, place) = match origin {
                    Origin::Flag(_) => ("flag", Some(origin.to_string())),
                    Origin::Environment(_) => ("environment", Some(origin.to_string())),
                    Origin::File(..) => ("file", Some(origin.to_string())),
                    Origin::Default => ("default", None),
                };
                let entry = serde_json::json!({ "value": value.to_json(), "origin": kind, "from": place });
                (setting.key(), entry)
            })
            .collect();
        object.extend(remotes.map(|(key, value, origin)| {
            (key, serde_json::json!({ "value": value, "origin": "file", "from": origin }))
        }));
        return output::print_json(&object);
    }
    let rows: Vec<[String; 3]> = values
        .map(|(setting, value, origin)| (setting.key(), value.to_string(), origin.to_string()))
        .chain(remotes)
        .map(|(key, value, origin)| [key, format!("= {value}"), format!("({origin})")])
        .collect();
    output::print(&output::format_columns(&rows))
}

fn file_path(named: Option<&Path>) -> Result<FilePath> {
    process::file_path(named)
        .ok_or_else(|| failure::usage("this platform has no configuration folder", "name a file"))
}

fn init(file: &FilePath, force: bool) -> Result<()> {
    process::write_template(&file.path, &[], force)?;
    output::print(&format!("{}\n", file.path.display()))
}

fn check(file: &FilePath) -> Result<()> {
    if !file.named && !file.path.exists() {
        return output::print(&format!(
            "{}: does not exist; every setting has its default\n",
            file.path.display()
        ));
    }
    let path = &file.path;
    let read = process::read(file)?;
    let counted = |count: usize, what: &str| match count {
        0 => String::new(),
        count => format!(" and {count} {what}"),
    };
    let remotes = counted(read.remote_models.len(), "remote models");
    let pipelines = counted(read.pipelines.len(), "pipelines");
    let dictation = counted(read.dictation.len(), "profiles of dictation");
    output::print(&format!(
        "{}: valid, sets {} settings{remotes}{pipelines}{dictation}\n",
        path.display(),
        read.entries.len()
    ))
}
