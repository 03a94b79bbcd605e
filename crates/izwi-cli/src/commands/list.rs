//! `izwi list`: the known models, and which of them are installed.

use anyhow::Result;
use izwi_hub::{ModelStatus, Source, Task};
use serde::Serialize;

use crate::settings::{PipelineModel, RemoteModel, Settings};
use crate::{models, output};

/// List the known models, and which of them are installed
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Print as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct Listed<'a> {
    name: &'a str,
    installed: bool,
    /// Bytes on disk.
    bytes: u64,
    /// From the first source of known size; absent if only the hub states sizes.
    download_bytes: Option<u64>,
    /// From the first mirror, whose archives may hold more than the model.
    mirror_bytes: Option<u64>,
    tasks: Vec<&'static str>,
    default_for: Vec<&'static str>,
    languages: &'a [String],
    licence: &'a str,
    licence_url: Option<&'a str>,
    description: &'a str,
    source: Option<&'a str>,
    /// The servers that run a remote model, or the language model of a pipeline; empty for all others.
    servers: &'a [String],
}

pub(crate) fn run(args: &Args, settings: &Settings) -> Result<()> {
    let store = models::open(settings)?;
    let list = store.list();
    let (remotes, pipelines) = (&settings.remote_models, &settings.pipelines);
    if args.json {
        let all = list.iter().map(listed).chain(remotes.iter().map(listed_remote));
        let all = all.chain(pipelines.iter().map(listed_pipeline));
        return output::print_json(&all.collect::<Vec<_>>());
    }
    let mut rows =
        vec![["NAME", "INSTALLED", "SIZE", "TASK", "LANGUAGES", "LICENCE", "DESCRIPTION"].map(str::to_owned)];
    rows.extend(list.iter().map(row));
    rows.extend(remotes.iter().map(remote_row));
    rows.extend(pipelines.iter().map(pipeline_row));
    output::print(&output::format_columns(&rows))
}

fn listed<'a>(status: &'a ModelStatus<'a>) -> Listed<'a> {
    let manifest = status.manifest;
    Listed {
        name: &manifest.name,
        installed: status.installed,
        bytes: status.bytes,
        download_bytes: manifest.download_bytes(),
        mirror_bytes: manifest.sources.iter().find(|source| !source.is_hub()).and_then(Source::bytes),
        tasks: names(&manifest.tasks),
        default_for: names(&manifest.default_for),
        languages: &manifest.languages,
        licence: &manifest.licence,
        licence_url: manifest.licence_url.as_deref(),
        description: &manifest.description,
        source: status.source.as_deref(),
        servers: &[],
    }
}

fn listed_remote(remote: &RemoteModel) -> Listed<'_> {
    let config = &remote.config;
    Listed {
        name: &config.name,
        installed: false,
        bytes: 0,
        download_bytes: None,
        mirror_bytes: None,
        tasks: vec![config.task.name()],
        default_for: Vec::new(),
        languages: &config.languages,
        licence: "",
        licence_url: None,
        description: "",
        source: None,
        servers: &config.base_urls,
    }
}

fn listed_pipeline(pipeline: &PipelineModel) -> Listed<'_> {
    Listed {
        name: pipeline.name(),
        installed: false,
        bytes: 0,
        download_bytes: None,
        mirror_bytes: None,
        tasks: vec![Task::Chat.name()],
        default_for: Vec::new(),
        languages: pipeline.config.language.as_slice(),
        licence: "",
        licence_url: None,
        description: "",
        source: None,
        servers: &pipeline.config.llm.base_urls,
    }
}

fn pipeline_row(pipeline: &PipelineModel) -> [String; 7] {
    [
        pipeline.name().to_owned(),
        "pipeline".to_owned(),
        "-".to_owned(),
        Task::Chat.name().to_owned(),
        languages(pipeline.config.language.as_slice()),
        "-".to_owned(),
        pipeline.place(),
    ]
}

fn remote_row(remote: &RemoteModel) -> [String; 7] {
    let config = &remote.config;
    [
        config.name.clone(),
        "remote".to_owned(),
        "-".to_owned(),
        config.task.name().to_owned(),
        languages(&config.languages),
        "-".to_owned(),
        format!("{} at {}: inputs leave this machine", config.model, remote.place()),
    ]
}

fn row(status: &ModelStatus<'_>) -> [String; 7] {
    let manifest = status.manifest;
    let tasks: Vec<String> = manifest
        .tasks
        .iter()
        .map(|task| {
            let star = if manifest.default_for.contains(task) { " (default)" } else { "" };
            format!("{}{star}", task.name())
        })
        .collect();
    let size = if status.installed {
        output::format_bytes(status.bytes)
    } else {
        manifest
            .download_bytes()
            .map_or_else(|| "to pull".to_owned(), |bytes| format!("{} to pull", output::format_bytes(bytes)))
    };
    [
        manifest.name.clone(),
        if status.installed { "yes" } else { "no" }.to_owned(),
        size,
        if manifest.component { "component".to_owned() } else { tasks.join(", ") },
        languages(&manifest.languages),
        manifest.licence.clone(),
        manifest.description.clone(),
    ]
}

/// The first languages, and how many there are besides.
fn languages(tags: &[String]) -> String {
    const SHOWN: usize = 3;
    match tags.len() {
        0 => "-".to_owned(),
        count if count <= SHOWN + 1 => tags.join(" "),
        count => format!("{} and {} more", tags[..SHOWN].join(" "), count - SHOWN),
    }
}

fn names(tasks: &[Task]) -> Vec<&'static str> {
    tasks.iter().map(|task| task.name()).collect()
}
