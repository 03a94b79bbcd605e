//! `izwi pull`: fetches models into the store.

use anyhow::Result;
use serde::Serialize;

use crate::progress::PullProgress;
use crate::settings::Settings;
use crate::{models, output};

/// Fetch models and install them
///
/// Every file is checked against its hash. What an interrupted pull left is used again. The sources are tried in the
/// order of the model's manifest; HF_ENDPOINT names a mirror of the hub, HF_TOKEN a token for it, HF_HUB_OFFLINE=1
/// leaves it out.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Models, as `izwi list` shows them
    #[arg(required = true, value_name = "NAME")]
    names: Vec<String>,
    /// Print what was installed as JSON
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
    // A slip in one name is told before anything is fetched.
    for name in &args.names {
        store.manifest(name)?;
    }
    let mut pulled = Vec::new();
    for name in &args.names {
        if store.installed(name).is_err() {
            output::say(&format!("pulling {name}: {}", models::what_comes(store.manifest(name)?)));
        }
        let folder = store.pull(name, &mut PullProgress::new())?.display().to_string();
        let status = store.list().into_iter().find(|status| status.manifest.name == *name);
        let (bytes, source) = status.map(|status| (status.bytes, status.source)).unwrap_or_default();
        if !args.json {
            output::print(&format!("{name} is installed in {folder} ({})\n", output::bytes(bytes)))?;
        }
        pulled.push(Pulled { name: name.clone(), folder, bytes, source });
    }
    if args.json { output::print_json(&pulled) } else { Ok(()) }
}
