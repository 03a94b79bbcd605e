//! The course of long work on standard error: of a pull a bar for a person and plain lines for a log, of listening a
//! bar for a person.

use std::io::{self, IsTerminal as _};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use izwi_hub::ProgressSink;

use crate::listening::{self, Course};
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

/// Shows how far a number of recordings were heard, in time of audio; nothing where nobody watches.
#[derive(Debug)]
pub(crate) struct HearingProgress {
    bar: ProgressBar,
    recordings: Vec<Hearing>,
}

/// One recording, in milliseconds.
#[derive(Debug, Clone, Copy, Default)]
struct Hearing {
    /// Its length, where its file tells.
    length_ms: Option<u64>,
    reached_ms: u64,
    done: bool,
}

impl HearingProgress {
    /// Shows a bar for `count` recordings if standard error is a terminal.
    pub(crate) fn new(count: usize) -> Self {
        let bar = if io::stderr().is_terminal() { ProgressBar::new(0) } else { ProgressBar::hidden() };
        Self { bar, recordings: vec![Hearing::default(); count] }
    }

    /// Takes note of what happened.
    pub(crate) fn follow(&mut self, event: Course<'_>) {
        let (Course::Read(index, _) | Course::Reached(index, _) | Course::Done(index)) = event;
        let Some(recording) = self.recordings.get_mut(index) else { return };
        match event {
            Course::Read(_, file) => {
                recording.length_ms = listening::wav_duration(file).map(|length| length.as_millis() as u64);
            }
            Course::Reached(_, seconds) => recording.reached_ms = (seconds.max(0.0) * 1e3) as u64,
            Course::Done(_) => {
                recording.done = true;
                recording.length_ms.get_or_insert(recording.reached_ms);
            }
        }
        self.draw();
    }

    /// Prints something without the bar in the way.
    pub(crate) fn aside<T>(&self, print: impl FnOnce() -> T) -> T {
        self.bar.suspend(print)
    }

    fn draw(&self) {
        let done = self.recordings.iter().filter(|recording| recording.done).count();
        if done == self.recordings.len() {
            return self.bar.finish_and_clear();
        }
        let (reached_ms, length_ms) = self.totals();
        let clock = |ms: u64| format!("{}:{:02}", ms / 60_000, ms / 1_000 % 60);
        // The templates are fixed; a bar without style still counts.
        let style = |template| ProgressStyle::with_template(template).ok();
        let drawn = match length_ms {
            Some(length_ms) => {
                self.bar.set_length(length_ms);
                self.bar.set_message(format!("{} of {}", clock(reached_ms), clock(length_ms)));
                style("[{bar:30}] {msg} {prefix}")
            }
            None => {
                self.bar.set_message(format!("{} heard", clock(reached_ms)));
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

    /// Time heard, and the time there is; the latter only once every recording has told its length.
    fn totals(&self) -> (u64, Option<u64>) {
        let reached = |recording: &Hearing| match recording {
            Hearing { done: true, length_ms: Some(length_ms), .. } => *length_ms,
            Hearing { reached_ms, .. } => *reached_ms,
        };
        let lengths = self.recordings.iter().map(|recording| recording.length_ms);
        (self.recordings.iter().map(reached).sum(), lengths.sum())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hearing_is_counted_in_time_of_audio() {
        let mut progress = HearingProgress { bar: ProgressBar::hidden(), ..HearingProgress::new(2) };
        let wav = izwi_audio::wav::to_bytes(&[0.0; 24_000], 8_000).unwrap();
        progress.follow(Course::Read(0, &wav));
        progress.follow(Course::Reached(0, 1.5));
        assert_eq!(progress.totals(), (1_500, None), "the second has not told its length");
        progress.follow(Course::Read(1, b"not a wav"));
        progress.follow(Course::Reached(1, 4.0));
        progress.follow(Course::Done(1));
        assert_eq!(progress.totals(), (5_500, Some(7_000)));
        progress.follow(Course::Done(0));
        assert_eq!(progress.totals(), (7_000, Some(7_000)));
        assert!(progress.bar.is_finished());
    }
}
