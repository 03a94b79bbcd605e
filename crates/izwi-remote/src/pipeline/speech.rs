//! An utterance of an answer: its text goes to the model that speaks, its samples come back with the text that they say.
//!
//! A model that takes text while it speaks gets it as it is written; others get it whole.

use futures::FutureExt;
use futures::future::BoxFuture;
use izwi_core::engine::request::LiveText;
use izwi_core::engine::{
    Engine, EngineCoreRequest, FinishReason, RemoteError, Result, SpokenWord, StreamingOutput, TextInput,
};
use tokio::sync::mpsc;

use super::of_engine;
use super::text_splitter::Piece;

/// Characters that a voice speaks in a second, where the model does not tell its words.
const CHARS_PER_S: f64 = 15.0;

/// Samples, and the text that is said by their end.
#[derive(Debug, Default)]
pub(super) struct Said {
    pub(super) samples: Vec<f32>,
    pub(super) text: String,
    pub(super) is_last: bool,
}

/// An utterance that is being spoken.
pub(super) struct Speech {
    model: String,
    stage: Stage,
    /// Takes the rest of the text, where the model does.
    live: Option<LiveText>,
    text: Text,
    samples: u64,
    sample_rate_hz: u32,
    words: Vec<SpokenWord>,
}

enum Stage {
    Starting(BoxFuture<'static, Result<mpsc::Receiver<StreamingOutput>>>),
    Speaking(mpsc::Receiver<StreamingOutput>),
}

/// What an utterance says, as it is written and as it is spoken.
#[derive(Debug, Default)]
struct Text {
    shown: String,
    spoken_bytes: usize,
    /// The ends of its pieces, spoken and shown.
    ends: Vec<(usize, usize)>,
    /// Bytes of what is shown that were said.
    said: usize,
}

impl Speech {
    /// Begins with a piece. `request` makes the request for its text.
    pub(super) fn begin(
        engine: &Engine,
        piece: &Piece,
        takes_more: bool,
        request: impl FnOnce(&str) -> EngineCoreRequest,
    ) -> Self {
        let mut speech_request = request(&piece.spoken);
        let live = takes_more.then(|| {
            let input = TextInput::new();
            speech_request.text_input = Some(input.clone());
            LiveText::new(input, &piece.spoken)
        });
        let profile = engine.profile();
        let (engine, model) = (engine.clone(), profile.model.clone());
        let sample_rate_hz = profile.info.sample_rate_hz;
        let starting = async move { Ok(engine.generate_streaming(speech_request).await?.1) };
        let mut text = Text::default();
        text.add(&piece.shown, piece.spoken.len());
        let stage = Stage::Starting(starting.boxed());
        Self { model, stage, live, text, samples: 0, sample_rate_hz, words: Vec::new() }
    }

    /// Whether it takes more text.
    pub(super) fn takes_more(&self) -> bool {
        self.live.as_ref().is_some_and(|live| !live.has_ended())
    }

    /// Takes a piece. Returns what does not belong to it any more, which begins the next.
    pub(super) fn add(&mut self, piece: &Piece) -> String {
        let mut waiting = piece.spoken.clone();
        if let Some(live) = &mut self.live {
            live.take(&mut waiting, false);
        }
        self.text.add(&piece.shown, piece.spoken.len() - waiting.len());
        waiting
    }

    /// Ends the text.
    pub(super) fn finish(&mut self) {
        if let Some(live) = self.live.as_mut().filter(|live| !live.has_ended()) {
            live.take(&mut String::new(), true);
        }
    }

    /// The next samples. Cancel-safe.
    pub(super) async fn next(&mut self) -> std::result::Result<Said, RemoteError> {
        let chunks = loop {
            match &mut self.stage {
                Stage::Speaking(chunks) => break chunks,
                Stage::Starting(started) => match started.await {
                    Ok(chunks) => self.stage = Stage::Speaking(chunks),
                    Err(error) => return Err(of_engine(&self.model, error)),
                },
            }
        };
        let Some(chunk) = chunks.recv().await else {
            return Err(RemoteError::Failed(format!("model '{}' ended within an answer", self.model)));
        };
        if let Some(stats) = &chunk.stats
            && stats.finish_reason == FinishReason::Error
        {
            let why = stats.error.as_ref().map_or_else(String::new, |error| format!(": {error}"));
            return Err(RemoteError::Failed(format!("model '{}' failed to speak{why}", self.model)));
        }
        self.samples += chunk.samples.len() as u64;
        self.words.extend(chunk.words);
        let spoken = if chunk.is_final { usize::MAX } else { self.spoken_end() };
        let text = self.text.say(spoken);
        Ok(Said { samples: chunk.samples, text, is_last: chunk.is_final })
    }

    /// Bytes of the spoken text that were said so far, where more follows.
    fn spoken_end(&self) -> usize {
        if self.words.is_empty() {
            let seconds = self.samples as f64 / f64::from(self.sample_rate_hz.max(1));
            return ((seconds * CHARS_PER_S) as usize).min(self.text.spoken_bytes.saturating_sub(1));
        }
        let ended = self.words.iter().filter(|word| word.sample_end <= self.samples);
        ended.map(|word| word.text_end).max().unwrap_or_default()
    }
}

impl Text {
    fn add(&mut self, shown: &str, spoken_bytes: usize) {
        self.shown.push_str(shown);
        self.spoken_bytes += spoken_bytes;
        self.ends.push((self.spoken_bytes, self.shown.len()));
    }

    /// What is shown of the first bytes of the spoken text, up to a word, and was not said before.
    fn say(&mut self, spoken: usize) -> String {
        let at = self.ends.partition_point(|(end, _)| *end <= spoken);
        let (before, shown) =
            at.checked_sub(1).and_then(|last| self.ends.get(last)).copied().unwrap_or_default();
        let shown = match self.ends.get(at) {
            None => self.shown.len(),
            Some((end, shown_end)) => {
                let share = (spoken - before) as f64 / (end - before) as f64;
                let part = shown + ((shown_end - shown) as f64 * share) as usize;
                let head = &self.shown[..self.shown.floor_char_boundary(part)];
                let is_whole = self.shown[head.len()..].starts_with(char::is_whitespace);
                let word = if is_whole { Some(head.len()) } else { head.rfind(char::is_whitespace) };
                word.unwrap_or(shown).max(shown)
            }
        };
        let said = self.shown.get(self.said..shown).unwrap_or_default().to_owned();
        self.said = self.said.max(shown);
        said
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_said_ends_with_a_word_and_nothing_is_said_twice() {
        let mut text = Text::default();
        text.add("One **two** three. ", 15);
        text.add("```\ncode\n```\n", 0);
        text.add("Four five.", 10);
        let said: Vec<String> = [0, 5, 6, 15, 15, 20, usize::MAX, usize::MAX].map(|end| text.say(end)).into();
        assert_eq!(said.concat(), "One **two** three. ```\ncode\n```\nFour five.");
        assert_eq!((said[0].as_str(), said[1].as_str()), ("", "One"));
        assert_eq!(said[3], " **two** three. ```\ncode\n```\n");
        assert_eq!((said[5].as_str(), said[6].as_str(), said[7].as_str()), ("Four", " five.", ""));
    }
}
