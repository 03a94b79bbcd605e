//! The log: lines on standard error, by what the settings say.

use std::io::{self, IsTerminal as _, Write};

use tracing_subscriber::EnvFilter;

use crate::settings::{LogFormat, Settings};

/// Begins to log, at `default_level` where the settings say nothing.
pub(crate) fn begin(settings: &Settings, default_level: &str) {
    let filter = EnvFilter::new(settings.log_level.as_deref().unwrap_or(default_level));
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(|| Unheard(io::stderr()));
    // A log that began already stays as it is.
    let _ = match settings.log_format {
        LogFormat::Text => log.with_ansi(io::stderr().is_terminal()).try_init(),
        LogFormat::Json => log.json().flatten_event(true).try_init(),
    };
}

/// Standard error that never fails: a log that nobody reads must not end the process, as the subscriber would do.
struct Unheard(io::Stderr);

impl Write for Unheard {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // The rest of a line that could not be written is lost, not tried again.
        let _ = self.0.write_all(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        let _ = self.0.flush();
        Ok(())
    }
}
