//! The `izwi` binary: the command line for the engine, the model store and the server.
//!
//! Owns arguments, settings and terminal output. Knows no tensor, no model code and no wire format.
#![forbid(unsafe_code)]

mod build_info;
mod cli;
mod commands;
mod engine;
mod failure;
mod input;
mod interrupt;
mod logging;
mod machine;
mod models;
mod output;
mod player;
mod progress;
mod settings;
mod sink;
mod speech_options;
mod synthesis;
mod transcription;

use std::process::ExitCode;

#[cfg(target_os = "linux")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    match cli::run(std::env::args_os()) {
        Ok(code) => code,
        Err(error) => {
            output::stderr(&failure::render(&error));
            failure::exit_code(&error)
        }
    }
}
