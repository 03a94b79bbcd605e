//! The `izwi` binary: the command line over the engine, the model store and the server.
//!
//! Owns arguments, settings and what a person reads. Knows no tensor, no model code and no wire format.
#![forbid(unsafe_code)]

mod cli;
mod commands;
mod failure;
mod interrupt;
mod listening;
mod logging;
mod manner;
mod models;
mod output;
mod player;
mod progress;
mod settings;
mod sink;
mod speech;

use std::process::ExitCode;

#[cfg(target_os = "linux")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    match cli::run(std::env::args_os()) {
        Ok(code) => code,
        Err(error) => {
            output::complain(&failure::render(&error));
            failure::exit_code(&error)
        }
    }
}
