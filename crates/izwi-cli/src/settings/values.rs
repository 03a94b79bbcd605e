//! The values of the settings. Knows no source of them.

use std::path::PathBuf;

use izwi_core::engine::EngineCoreConfig;
use izwi_hub::VoiceLimits;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

use super::dictation_profile::DictationProfile;
use super::pipeline_model::PipelineModel;
use super::remote_model::RemoteModel;
use super::server::ServerSettings;

/// The value of every setting. Not changed after resolution.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    /// Folder of the model store.
    pub(crate) home: PathBuf,
    /// Limits of the saved voices.
    pub(crate) voices: VoiceLimits,
    /// Log filter in the syntax of `RUST_LOG`; `None` for the default of the command.
    pub(crate) log_level: Option<String>,
    /// Format of the log.
    pub(crate) log_format: LogFormat,
    /// Settings of the engine.
    pub(crate) engine: EngineCoreConfig,
    /// Settings of the server.
    pub(crate) server: ServerSettings,
    /// Models that other servers run.
    pub(crate) remote_models: Vec<RemoteModel>,
    /// Chat models that are composed of others.
    pub(crate) pipelines: Vec<PipelineModel>,
    /// How text is dictated into programs.
    pub(crate) dictation: Vec<DictationProfile>,
}

impl Settings {
    /// The defaults; `home` is the data folder of the platform.
    pub(crate) fn defaults(home: PathBuf) -> Self {
        Self {
            home,
            voices: VoiceLimits::default(),
            log_level: None,
            log_format: LogFormat::Text,
            engine: EngineCoreConfig::default(),
            server: ServerSettings::default(),
            remote_models: Vec::new(),
            pipelines: Vec::new(),
            dictation: Vec::new(),
        }
    }

    /// The pipeline of this name.
    pub(crate) fn pipeline(&self, name: &str) -> Option<&PipelineModel> {
        self.pipelines.iter().find(|model| model.name() == name)
    }

    /// The remote model of this name.
    pub(crate) fn remote(&self, name: &str) -> Option<&RemoteModel> {
        self.remote_models.iter().find(|model| model.config.name == name)
    }
}

/// Format of a line of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LogFormat {
    /// Plain text.
    Text,
    /// One JSON object per line.
    Json,
}

impl LogFormat {
    /// The word in flags and files.
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Json => "json",
        }
    }

    /// The format of a word.
    pub(crate) fn from_label(label: &str) -> Result<Self, String> {
        match label {
            "text" => Ok(Self::Text),
            "json" => Ok(Self::Json),
            other => Err(format!("log format '{other}' is unknown; use text or json")),
        }
    }
}

/// Whether a text is a filter of the log, in the syntax of `RUST_LOG`.
///
/// # Errors
/// It is none; the message names what is wrong and the remedy.
pub(super) fn check_log_filter(text: &str) -> Result<(), String> {
    EnvFilter::builder().parse(text).map_err(|error| format!("'{text}': {error}"))?;
    // A word alone would be the name of what logs, and misspelt levels would silence all else.
    let is_level = |word: &str| word.parse::<LevelFilter>().is_ok();
    let is_name = |word: &str| word.contains(['=', '[', ':']) || word.starts_with("izwi");
    match text.split(',').map(str::trim).find(|word| !is_level(word) && !is_name(word)) {
        None => Ok(()),
        Some(word) => Err(format!(
            "'{word}' is no level; use error, warn, info, debug, trace or off, or a filter like izwi_core=debug"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn misspelt_levels_of_the_log_are_refused() {
        for filter in
            ["warn", "INFO", "off", "izwi_core=debug", "info,izwi_server::ws=trace", "hyper=warn,izwi_nn"]
        {
            assert_eq!(check_log_filter(filter), Ok(()), "{filter}");
        }
        for filter in ["warning", "verbose", "info,loud", "izwi=loud"] {
            let error = check_log_filter(filter).unwrap_err();
            assert!(error.contains("loud") || error.contains("use error, warn"), "{error}");
        }
    }
}
