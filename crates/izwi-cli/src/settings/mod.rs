//! Settings: what can be set, where a value came from, and how the sources are combined.
//!
//! One row of [`table`] gives a setting its flag, its variable, its key in the file, its line in `izwi config show`
//! and its row in `docs/config.md`. Knows no command.

mod field;
pub(crate) mod file;
pub(crate) mod flags;
pub(crate) mod process;
pub(crate) mod resolve;
mod server;
mod table;

use std::path::PathBuf;

use izwi_core::engine::EngineCoreConfig;

pub(crate) use field::{Section, Setting};
pub(crate) use resolve::{Origin, Resolved};
pub(crate) use server::ServerSettings;
pub(crate) use table::TABLE;

/// Every setting, resolved. Nobody changes it after that.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    /// Folder of the model store.
    pub(crate) home: PathBuf,
    /// What is logged, in the syntax of `RUST_LOG`; `None` leaves it to the command.
    pub(crate) log_level: Option<String>,
    /// How the log looks.
    pub(crate) log_format: LogFormat,
    /// The engine's own.
    pub(crate) engine: EngineCoreConfig,
    /// The server's own.
    pub(crate) server: ServerSettings,
}

impl Settings {
    /// The defaults on a machine whose data folder for Izwi is `home`.
    pub(crate) fn defaults(home: PathBuf) -> Self {
        Self {
            home,
            log_level: None,
            log_format: LogFormat::Text,
            engine: EngineCoreConfig::default(),
            server: ServerSettings::default(),
        }
    }
}

/// How a line of the log looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

impl LogFormat {
    fn label(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Json => "json",
        }
    }

    fn from_label(label: &str) -> Result<Self, String> {
        match label {
            "text" => Ok(Self::Text),
            "json" => Ok(Self::Json),
            other => Err(format!("log format '{other}' is unknown; use text or json")),
        }
    }
}

/// The names nearest to `wanted`, best first, for "did you mean".
pub(crate) fn near_names<'a>(wanted: &str, names: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    const SIMILAR_ENOUGH: f64 = 0.75;
    const WORSE_THAN_BEST: f64 = 0.1;
    const MOST: usize = 3;
    let wanted = wanted.to_lowercase().replace('-', "_");
    let mut ranked: Vec<(f64, &str)> = names
        .map(|name| (strsim::jaro_winkler(&wanted, name), name))
        .filter(|(similarity, _)| *similarity >= SIMILAR_ENOUGH)
        .collect();
    ranked.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(b.1)));
    let best = ranked.first().map_or(0.0, |(similarity, _)| *similarity);
    let close = ranked.into_iter().take_while(|(similarity, _)| *similarity >= best - WORSE_THAN_BEST);
    close.map(|(_, name)| name).take(MOST).collect()
}
