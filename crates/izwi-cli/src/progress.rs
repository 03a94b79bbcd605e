//! Progress on standard error: bars on a terminal; without one, lines for pulls and nothing for transcriptions.

use std::io::{self, IsTerminal as _};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use izwi_hub::ProgressSink;

use crate::output;
use crate::transcription::{self, Event};

/// Progress of a pull.
#[derive(Debug)]
pub(crate) struct PullProgress {
    /// The current file.
    current: Option<Current>,
    is_terminal: bool,
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
        Self { current: None, is_terminal: io::stderr().is_terminal() }
    }
}

impl ProgressSink for PullProgress {
    fn start(&mut self, file: &str, total: u64) {
        self.finish();
        let bar = if self.is_terminal {
            let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr());
            let template = "{msg:24!} [{bar:30}] {bytes:>10}/{total_bytes} {bytes_per_sec} {eta}";
            // The template is a constant; without a style the bar still counts.
            if let Ok(style) = ProgressStyle::with_template(template) {
                bar.set_style(style.progress_chars("=> "));
            }
            bar.set_message(file.to_owned());
            bar
        } else {
            output::status(&format!("fetching {file} ({})", output::format_bytes(total)));
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
            output::status(&format!(
                "{file}: {} of {}",
                output::format_bytes(done),
                output::format_bytes(total)
            ));
        } else {
            bar.finish();
        }
    }

    fn note(&mut self, message: &str) {
        match &self.current {
            Some(current) => current.bar.suspend(|| output::status(message)),
            None => output::status(message),
        }
    }
}

/// Progress of a transcription, in time of audio; shown on a terminal only.
#[derive(Debug)]
pub(crate) struct TranscriptionProgress {
    bar: ProgressBar,
    recordings: Vec<RecordingProgress>,
}

/// One recording, in milliseconds.
#[derive(Debug, Clone, Copy, Default)]
struct RecordingProgress {
    /// Duration, if known.
    length_ms: Option<u64>,
    reached_ms: u64,
    done: bool,
}

impl TranscriptionProgress {
    /// Shows a bar for `count` recordings if standard error is a terminal.
    pub(crate) fn new(count: usize) -> Self {
        let bar = if io::stderr().is_terminal() { ProgressBar::new(0) } else { ProgressBar::hidden() };
        Self { bar, recordings: vec![RecordingProgress::default(); count] }
    }

    /// Updates the progress.
    pub(crate) fn update(&mut self, event: Event<'_>) {
        let (Event::Read(index, _) | Event::Reached(index, _) | Event::Done(index)) = event;
        let Some(recording) = self.recordings.get_mut(index) else { return };
        match event {
            Event::Read(_, file) => {
                recording.length_ms =
                    transcription::wav_duration(file).map(|length| length.as_millis() as u64);
            }
            Event::Reached(_, seconds) => recording.reached_ms = (seconds.max(0.0) * 1e3) as u64,
            Event::Done(_) => {
                recording.done = true;
                recording.length_ms.get_or_insert(recording.reached_ms);
            }
        }
        self.draw();
    }

    /// Hides the bar while `print` runs.
    pub(crate) fn suspend<T>(&self, print: impl FnOnce() -> T) -> T {
        self.bar.suspend(print)
    }

    fn draw(&self) {
        let done = self.recordings.iter().filter(|recording| recording.done).count();
        if done == self.recordings.len() {
            return self.bar.finish_and_clear();
        }
        let (reached_ms, length_ms) = self.totals();
        let clock = |ms: u64| format!("{}:{:02}", ms / 60_000, ms / 1_000 % 60);
        // The templates are constants; without a style the bar still counts.
        let style = |template| ProgressStyle::with_template(template).ok();
        let drawn = match length_ms {
            Some(length_ms) => {
                self.bar.set_length(length_ms);
                self.bar.set_message(format!("{} of {}", clock(reached_ms), clock(length_ms)));
                style("[{bar:30}] {msg} {prefix}")
            }
            None => {
                self.bar.set_message(format!("{} transcribed", clock(reached_ms)));
                style("{spinner} {msg} {prefix}")
            }
        };
        if let Some(style) = drawn {
            self.bar.set_style(style.progress_chars("=> "));
        }
        if self.recordings.len() > 1 {
            self.bar.set_prefix(format!("({done} of {} recordings)", self.recordings.len()));
        }
        self.bar.set_position(reached_ms);
    }

    /// Transcribed time and total time, in milliseconds; the total only once all durations are known.
    fn totals(&self) -> (u64, Option<u64>) {
        let reached = |recording: &RecordingProgress| match recording {
            RecordingProgress { done: true, length_ms: Some(length_ms), .. } => *length_ms,
            RecordingProgress { reached_ms, .. } => *reached_ms,
        };
        let lengths = self.recordings.iter().map(|recording| recording.length_ms);
        (self.recordings.iter().map(reached).sum(), lengths.sum())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_is_counted_in_time_of_audio() {
        let mut progress =
            TranscriptionProgress { bar: ProgressBar::hidden(), ..TranscriptionProgress::new(2) };
        let wav = izwi_audio::wav::to_bytes(&[0.0; 24_000], 8_000).unwrap();
        progress.update(Event::Read(0, &wav));
        progress.update(Event::Reached(0, 1.5));
        assert_eq!(progress.totals(), (1_500, None), "the duration of the second is unknown");
        progress.update(Event::Read(1, b"not a wav"));
        progress.update(Event::Reached(1, 4.0));
        progress.update(Event::Done(1));
        assert_eq!(progress.totals(), (5_500, Some(7_000)));
        progress.update(Event::Done(0));
        assert_eq!(progress.totals(), (7_000, Some(7_000)));
        assert!(progress.bar.is_finished());
    }
}
