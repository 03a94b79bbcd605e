//! Progress on standard error: bars on a terminal; without one, lines for pulls and nothing for transcriptions.

use std::fmt::{self, Display, Formatter};
use std::io::{self, IsTerminal as _};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use izwi_core::engine::StreamingOutput;
use izwi_hub::ProgressSink;

use crate::output;
use crate::transcription::{self, Event};

/// Time of a synthesis before its progress is shown.
const QUIET: Duration = Duration::from_secs(2);
/// Steps of the bar of a synthesis.
const STEPS: u64 = 1_000;

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
            output::status(&format!("downloading {file} ({})", output::format_bytes(total)));
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
        let clock = |ms: u64| clock(ms as f64 / 1e3);
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

/// Progress of a synthesis, in time of audio; shown on a terminal only, once it has taken some time.
#[derive(Debug)]
pub(crate) struct SpeechProgress {
    bar: ProgressBar,
    begun: Instant,
    text_bytes: usize,
    /// Expected duration of the audio, in seconds.
    expected_s: f64,
    /// The part of the text that is spoken, in bytes, where the model tells.
    said: usize,
}

/// How far a synthesis is.
#[derive(Debug, PartialEq)]
struct SpeechState {
    /// The part that is done, if it can be told.
    done: Option<f64>,
    audio_s: f64,
    elapsed_s: f64,
}

impl SpeechProgress {
    /// Shows a line for `text` if standard error is a terminal. `speed` is the tempo.
    pub(crate) fn new(text: &str, speed: f32) -> Self {
        let bar = if io::stderr().is_terminal() { ProgressBar::new(STEPS) } else { ProgressBar::hidden() };
        let expected_s = expected_seconds(text) / f64::from(speed.max(0.1));
        Self { bar, begun: Instant::now(), text_bytes: text.len(), expected_s, said: 0 }
    }

    /// Updates the progress.
    pub(crate) fn update(&mut self, chunk: &StreamingOutput) {
        if let Some(word) = chunk.words.last() {
            self.said = word.text_end.min(self.text_bytes);
        }
        let samples = chunk.sample_offset + chunk.samples.len() as u64;
        let audio_s = samples as f64 / f64::from(chunk.sample_rate.max(1));
        let elapsed = self.begun.elapsed();
        if elapsed >= QUIET {
            self.draw(&self.state(audio_s, elapsed.as_secs_f64()));
        }
    }

    /// Bytes of the text that are spoken, as far as it is known.
    pub(crate) fn said(&self) -> usize {
        self.said
    }

    /// Removes the line.
    pub(crate) fn clear(&self) {
        self.bar.finish_and_clear();
    }

    fn state(&self, audio_s: f64, elapsed_s: f64) -> SpeechState {
        let done = match self.said {
            0 => Some(audio_s / self.expected_s).filter(|done| *done < 1.0),
            said => Some(said as f64 / self.text_bytes as f64),
        };
        SpeechState { done: done.filter(|done| *done > 0.0), audio_s, elapsed_s }
    }

    fn draw(&self, state: &SpeechState) {
        // The templates are constants; without a style the bar still counts.
        let template = if state.done.is_some() { "[{bar:30}] {msg}" } else { "{spinner} {msg}" };
        if let Ok(style) = ProgressStyle::with_template(template) {
            self.bar.set_style(style.progress_chars("=> "));
        }
        self.bar.set_message(state.to_string());
        self.bar.set_position((state.done.unwrap_or(0.0) * STEPS as f64) as u64);
    }
}

/// Progress of a book, in characters of its text; shown on a terminal only.
#[derive(Debug)]
pub(crate) struct ReadingProgress {
    bar: ProgressBar,
    begun: Instant,
    total: u64,
    /// Spoken now and before.
    done: u64,
    spoken: u64,
    audio_s: f64,
}

impl ReadingProgress {
    /// Shows a line for a book of which `done` of `total` are spoken, if standard error is a terminal.
    pub(crate) fn new(total: u64, done: u64) -> Self {
        let bar = if io::stderr().is_terminal() { ProgressBar::new(total) } else { ProgressBar::hidden() };
        // The template is a constant; without a style the bar still counts.
        if let Ok(style) = ProgressStyle::with_template("[{bar:20}] {percent} % {msg}") {
            bar.set_style(style.progress_chars("=> "));
        }
        bar.set_position(done);
        Self { bar, begun: Instant::now(), total, done, spoken: 0, audio_s: 0.0 }
    }

    /// A part of the text is spoken, in a chapter that `place` names.
    pub(crate) fn spoken(&mut self, characters: u64, audio_s: f64, place: &str) {
        self.done += characters;
        self.spoken += characters;
        self.audio_s += audio_s;
        self.bar.set_position(self.done);
        self.bar.set_message(format!("{place}, {}", self.rate(self.begun.elapsed().as_secs_f64())));
    }

    /// Counts the steps of binding in place of the text.
    pub(crate) fn bind(&self, steps: u64) {
        self.bar.set_length(steps);
        self.bar.set_position(0);
        self.bar.set_message("binding");
    }

    /// A step of binding is done.
    pub(crate) fn bound(&self) {
        self.bar.inc(1);
    }

    /// Hides the line while `print` runs.
    pub(crate) fn suspend<T>(&self, print: impl FnOnce() -> T) -> T {
        self.bar.suspend(print)
    }

    /// Removes the line.
    pub(crate) fn clear(&self) {
        self.bar.finish_and_clear();
    }

    fn rate(&self, elapsed_s: f64) -> String {
        let left_s = elapsed_s * self.total.saturating_sub(self.done) as f64 / self.spoken.max(1) as f64;
        format!("RTF {:.2}, about {} left", elapsed_s / self.audio_s.max(1e-3), clock(left_s))
    }
}

impl Display for SpeechState {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self { done, audio_s, elapsed_s } = self;
        let rtf = elapsed_s / audio_s.max(1e-3);
        match done {
            Some(done) => {
                let (audio, all) = (clock(*audio_s), clock(audio_s / done));
                let left = clock(elapsed_s * (1.0 - done) / done);
                write!(f, "{audio} of about {all} spoken, RTF {rtf:.2}, about {left} left")
            }
            None => write!(f, "{} spoken, RTF {rtf:.2}", clock(*audio_s)),
        }
    }
}

/// Seconds as minutes and seconds, with hours where there are some.
pub(crate) fn clock(seconds: f64) -> String {
    let seconds = seconds as u64;
    let (hours, minutes) = (seconds / 3_600, seconds / 60 % 60);
    if hours > 0 {
        format!("{hours}:{minutes:02}:{:02}", seconds % 60)
    } else {
        format!("{minutes}:{:02}", seconds % 60)
    }
}

/// The expected duration of a text that is read at an average tempo.
fn expected_seconds(text: &str) -> f64 {
    let per_character = |character: char| match character {
        // Ideographs, kana and Hangul are syllables.
        '\u{3040}'..='\u{30ff}' | '\u{3400}'..='\u{9fff}' | '\u{ac00}'..='\u{d7a3}' => 0.2,
        _ => 1.0 / 15.0,
    };
    text.chars().map(per_character).sum::<f64>().max(0.1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_remaining_time_of_speech_follows_the_words_or_the_usual_tempo() {
        let mut progress = SpeechProgress::new(&"A word. ".repeat(1_500), 1.0);
        assert!((progress.expected_s - 800.0).abs() < 1.0, "{}", progress.expected_s);
        let shown = progress.state(200.0, 50.0).to_string();
        assert_eq!(shown, "3:20 of about 13:20 spoken, RTF 0.25, about 2:30 left");
        let late = progress.state(900.0, 90.0);
        assert_eq!((late.done, late.to_string()), (None, "15:00 spoken, RTF 0.10".to_owned()));
        progress.said = 6_000;
        let shown = progress.state(4_000.0, 400.0).to_string();
        assert_eq!(shown, "1:06:40 of about 2:13:20 spoken, RTF 0.10, about 6:40 left");
        assert!(SpeechProgress::new("早上好。", 2.0).expected_s < 0.5);
    }

    #[test]
    fn the_remaining_time_of_a_book_follows_what_this_run_spoke() {
        let mut progress = ReadingProgress::new(100_000, 50_000);
        progress.spoken(5_000, 300.0, "chapter 3 of 9");
        assert_eq!(progress.rate(60.0), "RTF 0.20, about 9:00 left");
    }

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
