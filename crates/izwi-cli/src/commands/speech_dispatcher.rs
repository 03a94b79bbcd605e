//! `izwi speech-dispatcher`: the output module of Speech Dispatcher.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::interrupt::Interrupt;
use crate::settings::Resolved;
use crate::speech_dispatcher::{self, Speaker};
use crate::{engine, logging};

/// Speak for screen readers, as an output module of Speech Dispatcher
///
/// Speech Dispatcher starts this command under the name sd_izwi, which `izwi service install --speech-dispatcher` gives it,
/// and speaks its protocol of modules on standard input and output; Orca, `spd-say` and browsers speak through it. Speech
/// comes from the server on the configured host and port, if one runs there; else the model loads in this process.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Configuration of the module, which Speech Dispatcher names; it is not read
    #[arg(hide = true)]
    module_configuration: Option<PathBuf>,
    /// Use this server, such as http://127.0.0.1:8080; its key is the setting api_key
    #[arg(long, value_name = "URL")]
    server: Option<String>,
}

pub(crate) fn run(args: &Args, resolved: &Resolved) -> Result<()> {
    // Speech Dispatcher keeps the standard error of a module in a file of its log folder.
    logging::begin(&resolved.settings, "warn");
    let runtime = engine::runtime()?;
    let served = runtime.block_on(async {
        let mut interrupt = Interrupt::listen()?;
        let speaker = || Speaker::new(args.server.as_deref(), resolved.clone());
        interrupt.guard_to_end(speech_dispatcher::serve(speaker)).await
    });
    // A read of standard input may still block.
    runtime.shutdown_background();
    served
}

/// Names this command where the program is called by the name of the module.
pub(crate) fn name_command(arguments: &mut Vec<OsString>) {
    let called = arguments.first().and_then(|program| Path::new(program).file_name());
    if called.is_some_and(|name| name == speech_dispatcher::MODULE) {
        arguments.insert(1, "speech-dispatcher".into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_the_module_names_the_command() {
        let named = |line: &str| {
            let mut arguments: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            name_command(&mut arguments);
            arguments.join(std::ffi::OsStr::new(" "))
        };
        assert_eq!(named("/x/sd_izwi /y/izwi.conf"), "/x/sd_izwi speech-dispatcher /y/izwi.conf");
        assert_eq!(named("sd_izwi"), "sd_izwi speech-dispatcher");
        assert_eq!(named("/sd_izwi/izwi say x"), "/sd_izwi/izwi say x");
    }
}
