//! The settings of this process: reads the file and the environment, and resolves them with the flags.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use izwi_types::similar;

use super::field::Setting;
use super::file::{self, File};
use super::origin::{Origin, Problem};
use super::resolve::{Resolved, Sources, resolve};
use super::table::TABLE;
use super::template;
use crate::{failure, input, private_file};

const MAX_FILE_BYTES: u64 = 1 << 20;
/// The variable that names the configuration file.
pub(crate) const FILE_VARIABLE: &str = "IZWI_CONFIG";

/// The path of the configuration file.
#[derive(Debug, Clone)]
pub(crate) struct FilePath {
    /// The path.
    pub(crate) path: PathBuf,
    /// Whether a flag or a variable names it; then it must exist.
    pub(crate) named: bool,
}

/// The file of `--config`, `IZWI_CONFIG` or the platform's configuration folder, in this order.
pub(crate) fn file_path(flag: Option<&Path>) -> Option<FilePath> {
    let named = |path: PathBuf| FilePath { path, named: true };
    let variable = || std::env::var_os(FILE_VARIABLE).filter(|path| !path.is_empty()).map(PathBuf::from);
    flag.map(Path::to_path_buf).or_else(variable).map(named).or_else(|| {
        let path = folders()?.config_dir().join("config.toml");
        Some(FilePath { path, named: false })
    })
}

fn folders() -> Option<directories::ProjectDirs> {
    directories::ProjectDirs::from("", "", "izwi")
}

fn data_folder() -> PathBuf {
    folders().map(|folders| folders.data_dir().to_path_buf()).unwrap_or_default()
}

/// Writes a configuration file that names every setting and sets those in `set`. One that exists stays, unless `replace`.
///
/// # Errors
/// The file exists, or cannot be written.
pub(crate) fn write_template(path: &Path, set: &[(&str, u64)], replace: bool) -> Result<()> {
    let text = template::text(data_folder(), set);
    private_file::write(path, &text, replace).map_err(|error| match error.kind() {
        std::io::ErrorKind::AlreadyExists => failure::with_help(
            format!("the configuration file {} exists already", path.display()),
            "`--force` replaces it; `izwi config check` checks it",
        ),
        _ => anyhow::Error::new(error)
            .context(format!("cannot write the configuration file {}", path.display())),
    })
}

/// Resolves the settings of this process.
///
/// # Errors
/// The file cannot be read, or a value is invalid.
pub(crate) fn load(flags: &BTreeMap<&'static str, Vec<String>>, config: Option<&Path>) -> Result<Resolved> {
    load_with(flags, &|name| std::env::var_os(name), config)
}

/// Resolves the settings of a process that has this file, no flags and no variables.
///
/// # Errors
/// As [`load`].
pub(crate) fn load_file(config: Option<&Path>) -> Result<Resolved> {
    load_with(&BTreeMap::new(), &|_| None, config)
}

fn load_with(
    flags: &BTreeMap<&'static str, Vec<String>>,
    variable: &dyn Fn(&str) -> Option<OsString>,
    config: Option<&Path>,
) -> Result<Resolved> {
    let file = match file_path(config) {
        Some(file) => read(&file)?,
        None => File::default(),
    };
    let sources = Sources { flags, variable, file: &file, data_folder: data_folder() };
    let resolved = resolve(&sources).map_err(|problems| refusal(&problems))?;
    if resolved.settings.home.as_os_str().is_empty() {
        return Err(failure::with_help(
            "this platform has no folder for the model store",
            "set IZWI_HOME or --home to a folder",
        ));
    }
    Ok(resolved)
}

/// Reads and checks the configuration file. A missing file that is not named is empty.
///
/// # Errors
/// The file cannot be read, is too large, is not UTF-8, or has an invalid value.
pub(crate) fn read(file: &FilePath) -> Result<File> {
    let path = &file.path;
    let opened = match std::fs::File::open(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound && !file.named => {
            return Ok(File::default());
        }
        opened => opened,
    };
    let bytes = opened
        .and_then(|file| input::read_bounded(file, MAX_FILE_BYTES))
        .with_context(|| format!("cannot read the configuration file {}", path.display()))?;
    let Some(bytes) = bytes else {
        anyhow::bail!("the configuration file {} has more than {MAX_FILE_BYTES} bytes", path.display());
    };
    let text = String::from_utf8(bytes)
        .map_err(|_| anyhow::anyhow!("the configuration file {} is not UTF-8", path.display()))?;
    file::parse(path, &text).map_err(|problems| refusal(&problems))
}

/// Warnings about variables with the prefix `IZWI_` that set nothing; `known` are variables that are not settings.
pub(crate) fn unknown_variables(known: &[&str]) -> Vec<String> {
    let ours: Vec<String> = TABLE.iter().map(Setting::variable).collect();
    let mut found: Vec<String> = std::env::vars_os()
        .filter_map(|(name, _)| name.into_string().ok())
        .filter(|name| name.starts_with("IZWI_") && !ours.contains(name) && !known.contains(&name.as_str()))
        .map(|name| {
            let short = name.trim_start_matches("IZWI_").to_lowercase();
            match similar(&short, TABLE.iter().map(|setting| setting.name)).first() {
                Some(near) => format!("{name} sets nothing: did you mean IZWI_{}?", near.to_uppercase()),
                None => format!("{name} sets nothing"),
            }
        })
        .collect();
    found.sort();
    found
}

/// All problems as one error; an error of usage if a flag is among them.
fn refusal(problems: &[Problem]) -> anyhow::Error {
    let lines: Vec<String> = problems.iter().map(ToString::to_string).collect();
    let message = match lines.as_slice() {
        [line] => line.clone(),
        lines => format!("{} settings cannot be used\n  {}", lines.len(), lines.join("\n  ")),
    };
    if problems.iter().any(|problem| matches!(problem.origin, Origin::Flag(_))) {
        return failure::usage(message, "see `izwi help`");
    }
    failure::with_help(message, "docs/config.md lists every setting")
}
