//! The course of a pull on standard error: a bar for a person, plain lines for a log.

use std::io::{self, IsTerminal as _};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use izwi_core::hub::ProgressSink;

use crate::output;

/// Shows a pull.
#[derive(Debug)]
pub(crate) struct PullProgress {
    /// The file under way; a bar on a terminal.
    current: Option<Current>,
    draws: bool,
}

#[derive(Debug)]
struct Current {
    file: String,
    total: u64,
    done: u64,
    bar: ProgressBar,
}

impl PullProgress {
    /// Shows bars if standard error is a terminal.
    pub(crate) fn new() -> Self {
        Self { current: None, draws: io::stderr().is_terminal() }
    }
}

impl ProgressSink for PullProgress {
    fn start(&mut self, file: &str, total: u64) {
        self.finish();
        let bar = if self.draws {
            let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr());
            let template = "{msg:24!} [{bar:30}] {bytes:>10}/{total_bytes} {bytes_per_sec} {eta}";
            // The template is fixed; a bar without style still counts.
            if let Ok(style) = ProgressStyle::with_template(template) {
                bar.set_style(style.progress_chars("=> "));
            }
            bar.set_message(file.to_owned());
            bar
        } else {
            output::say(&format!("fetching {file} ({})", output::bytes(total)));
            ProgressBar::hidden()
        };
        self.current = Some(Current { file: file.to_owned(), total, done: 0, bar });
    }

    fn advance(&mut self, bytes: u64) {
        if let Some(current) = &mut self.current {
            current.done += bytes;
            current.bar.inc(bytes);
        }
    }

    fn finish(&mut self) {
        let Some(Current { file, total, done, bar }) = self.current.take() else { return };
        if done < total {
            bar.abandon();
            output::say(&format!("{file}: {} of {}", output::bytes(done), output::bytes(total)));
        } else {
            bar.finish();
        }
    }

    fn note(&mut self, message: &str) {
        match &self.current {
            Some(current) => current.bar.suspend(|| output::say(message)),
            None => output::say(message),
        }
    }
}
