//! One request for a transcript, and the events that answer it: `transcript-start`, `transcript-chunk` as text is
//! transcribed, `transcript` with the whole text for clients that know no other, `transcript-stop`. Knows no socket.

use izwi_core::engine::{Engine, EngineCoreRequest, StreamingOutput, TranscriptionOptions};
use izwi_server::extract::non_blank;
use izwi_server::transcription::{CheckedRequest, TextDeltas};
use izwi_server::upload;
use izwi_server::ws::outbox::Outbox;
use izwi_server::{ApiError, Lease};
use serde_json::{Map, Value, json};

use super::event::{TranscribeFields, event};
use super::recording::Recording;

/// The most characters of names and terms that become the prompt. A prompt takes room that the transcript needs.
const MAX_PROMPT_CHARS: usize = 400;

pub(super) struct Transcription {
    engine: Lease,
    request: Option<EngineCoreRequest>,
    /// The language that was asked for, or detected.
    language: Option<String>,
    deltas: TextDeltas,
    has_started: bool,
}

impl Transcription {
    pub(super) fn new(
        engine: Lease,
        fields: TranscribeFields,
        recording: Recording,
    ) -> Result<Self, ApiError> {
        let language = non_blank(fields.language);
        let words = fields.transcript_names.into_iter().chain(fields.transcript_terms).flatten();
        let options = TranscriptionOptions {
            language: language.clone(),
            prompt: prompt(words),
            ..TranscriptionOptions::default()
        };
        // Somebody waits for the answer to a command.
        let checked = CheckedRequest::of_options(&engine.profile().model, options, None, true)?;
        let request = checked.request(upload::Recording::file(recording.finish()?, "audio"), &engine)?;
        Ok(Self {
            engine,
            request: Some(request),
            language,
            deltas: TextDeltas::default(),
            has_started: false,
        })
    }

    /// The request, once.
    pub(super) fn next(&mut self) -> Option<(Engine, EngineCoreRequest)> {
        Some((Engine::clone(&self.engine), self.request.take()?))
    }

    /// Writes the events of one chunk.
    pub(super) fn deliver(&mut self, chunk: &StreamingOutput, out: &mut Outbox) {
        self.language = chunk.language.clone().or(self.language.take());
        if !std::mem::replace(&mut self.has_started, true) {
            out.binary(event("transcript-start", &self.with_language(Map::new()), &[]));
        }
        if let Some(text) = chunk.text.as_deref().and_then(|text| self.deltas.push(text)) {
            out.binary(event("transcript-chunk", &json!({"text": text}), &[]));
        }
    }

    /// Writes the events after the last chunk.
    pub(super) fn finish(mut self, out: &mut Outbox) {
        let text = Value::String(std::mem::take(&mut self.deltas).into_text());
        let transcript = self.with_language(Map::from_iter([("text".to_owned(), text)]));
        out.binary(event("transcript", &transcript, &[]));
        out.binary(event("transcript-stop", &json!({}), &[]));
    }

    fn with_language(&self, mut data: Map<String, Value>) -> Map<String, Value> {
        if let Some(language) = &self.language {
            data.insert("language".to_owned(), Value::String(language.clone()));
        }
        data
    }
}

/// Words that are likely, the first of them if there are too many.
fn prompt(words: impl Iterator<Item = String>) -> Option<String> {
    let mut prompt = String::new();
    let mut chars = 0;
    for word in words.filter(|word| !word.trim().is_empty()) {
        chars += word.chars().count() + 2;
        if chars > MAX_PROMPT_CHARS {
            break;
        }
        if !prompt.is_empty() {
            prompt.push_str(", ");
        }
        prompt.push_str(word.trim());
    }
    non_blank(Some(prompt))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_prompt_has_the_first_words() {
        let of = |words: &[&str]| prompt(words.iter().map(|word| (*word).to_owned()));
        assert_eq!(of(&[]), None);
        assert_eq!(of(&[" ", "Anna ", "Küche"]).as_deref(), Some("Anna, Küche"));
        let many = of(&["twenty letters long."; 100]).unwrap();
        assert!(many.len() <= MAX_PROMPT_CHARS && many.len() > MAX_PROMPT_CHARS - 25, "{}", many.len());
    }
}
