//! The command line for the engine, the model store and the server: all of the `izwi` binary but its allocator.
//!
//! Owns arguments, settings and terminal output. Knows no tensor, no model code and no wire format.
#![forbid(unsafe_code)]

mod address;
mod audio_file;
mod build_info;
mod cli;
mod commands;
mod control;
mod desktop;
mod engine;
mod failure;
mod help;
mod input;
mod interrupt;
mod llm;
mod logging;
mod machine;
mod meeting;
mod models;
mod output;
mod pending_file;
mod private_file;
mod progress;
mod reading;
mod rttm;
mod running_server;
mod served;
mod service;
mod settings;
mod sink;
mod sound;
mod speaking;
mod speech_dispatcher;
mod speech_options;
mod synthesis;
mod transcription;
mod transcription_options;
mod voice_list;
mod web_socket;

use std::path::Path;
use std::process::ExitCode;

/// Runs the command that the process' arguments name.
#[must_use]
pub fn run() -> ExitCode {
    match cli::run(std::env::args_os()) {
        Ok(code) => code,
        Err(error) => {
            output::stderr(&failure::render(&error));
            failure::exit_code(&error)
        }
    }
}

/// Reads a configuration file: its values, or its problems. What a fuzz target calls.
///
/// # Errors
/// A message for each problem.
#[doc(hidden)]
pub fn read_config(path: &Path, text: &str) -> Result<Vec<String>, Vec<String>> {
    let lines = |entry: settings::file::Entry| format!("{} = {}", entry.setting.key(), entry.value);
    match settings::file::parse(path, text) {
        Ok(file) => Ok(file.entries.into_iter().map(lines).collect()),
        Err(problems) => Err(problems.iter().map(ToString::to_string).collect()),
    }
}
