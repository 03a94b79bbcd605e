//! The log on standard error, as the settings say.

use std::io::{self, IsTerminal as _, Write};

use tracing_subscriber::EnvFilter;

use crate::settings::{LogFormat, Settings};

/// Starts the log, at `default_level` unless the settings give a level.
pub(crate) fn begin(settings: &Settings, default_level: &str) {
    let filter = EnvFilter::new(settings.log_level.as_deref().unwrap_or(default_level));
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(|| LossyStderr(io::stderr()));
    // A log that is already started is kept.
    let _ = match settings.log_format {
        LogFormat::Text => log.with_ansi(io::stderr().is_terminal()).try_init(),
        LogFormat::Json => log.json().flatten_event(true).try_init(),
    };
}

/// Standard error without failures: the subscriber would end the process when it is closed.
struct LossyStderr(io::Stderr);

impl Write for LossyStderr {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // The rest of a failed line is dropped, not retried.
        let _ = self.0.write_all(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        let _ = self.0.flush();
        Ok(())
    }
}
