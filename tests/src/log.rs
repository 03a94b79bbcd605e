//! The log of the process, collected for assertions.

use std::io::{self, Write};
use std::sync::{Mutex, OnceLock, PoisonError};

use anyhow::Result;
use serde_json::Value;
use tracing_subscriber::EnvFilter;

use crate::eventually;

static LOG: OnceLock<Log> = OnceLock::new();

/// Everything that our crates log in this process, as JSON.
#[derive(Debug, Default)]
pub struct Log {
    bytes: Mutex<Vec<u8>>,
}

impl Log {
    /// The log, which is collected from the first call on.
    pub fn collect() -> &'static Self {
        LOG.get_or_init(|| {
            // A process has one log. The tests have no other.
            let _ = tracing_subscriber::fmt()
                .with_env_filter(EnvFilter::new("izwi=trace"))
                .with_writer(|| Writer)
                .json()
                .flatten_event(true)
                .try_init();
            Self::default()
        })
    }

    /// All of it.
    pub fn text(&self) -> String {
        let bytes = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// The line of the access log about a request or a session, once it is there.
    ///
    /// # Errors
    /// It does not come.
    pub async fn access(&self, request_id: &str) -> Result<Value> {
        eventually("the line of the access log", || async { Ok(!self.lines(request_id).is_empty()) }).await?;
        let mut lines = self.lines(request_id);
        anyhow::ensure!(lines.len() == 1, "{lines:?}");
        Ok(lines.remove(0))
    }

    fn lines(&self, request_id: &str) -> Vec<Value> {
        let text = self.text();
        let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        lines.filter(|line| line["target"] == "izwi::access" && line["request_id"] == request_id).collect()
    }
}

struct Writer;

impl Write for Writer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if let Some(log) = LOG.get() {
            log.bytes.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bytes);
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
