//! One request for speech: its text, whole or in pieces, and the audio events that answer it. Knows no socket.
//!
//! A stream of text is spoken as it comes, by appending to the utterance that is being spoken where the model takes that,
//! else in complete sentences. All its audio stands between one `audio-start` and one `audio-stop`.

use izwi_audio::encode::{EncodeError, EncoderConfig};
use izwi_core::engine::types::audio_duration;
use izwi_core::engine::{Engine, EngineCoreRequest, SpeechOptions, StreamingOutput, Task};
use izwi_server::encoding::{self, EncodedUtterance};
use izwi_server::speech::ResolvedSpeechOptions;
use izwi_server::voices::{self, Voice};
use izwi_server::ws::outbox::Outbox;
use izwi_server::ws::speech::TextQueue;
use izwi_server::{ApiError, AppState, Lease, ServerConfig};
use izwi_types::excerpt;
use serde_json::json;

use super::event::{VoiceFields, event};

/// Bytes of a sample that is sent: 16-bit PCM.
const WIDTH: u32 = 2;

/// A model, and the requested voice of it.
pub(super) struct Speaker {
    engine: Lease,
    /// `None` if the model has no voices.
    voice: Option<Voice>,
    seed: Option<u64>,
}

impl Speaker {
    /// Waits for the model, the default one without a name, and looks the voice up.
    pub(super) async fn load(
        state: AppState,
        model: Option<String>,
        wanted: VoiceFields,
        seed: Option<u64>,
    ) -> Result<Self, ApiError> {
        let engine = state.lease(model.as_deref(), Task::Tts).await?;
        if let Some(speaker) = wanted.speaker {
            let message = format!(
                "speaker '{}' is unknown; voices have no speakers here, leave it out",
                excerpt(&speaker)
            );
            return Err(ApiError::invalid("speaker", message));
        }
        let name = match (wanted.name, wanted.language) {
            (Some(name), _) => Some(name),
            (None, Some(language)) => Some(voice_of_language(&engine, &language)?),
            (None, None) => None,
        };
        let voice = voices::find(name.as_deref(), &engine, state.voices()).await?;
        Ok(Self { engine, voice, seed })
    }
}

/// The first voice with this language: the same tag, else the same language in another region.
fn voice_of_language(engine: &Engine, language: &str) -> Result<String, ApiError> {
    let voices = &engine.profile().info.voices;
    let primary = |tag: &str| tag.split(['-', '_']).next().unwrap_or_default().to_ascii_lowercase();
    let same = voices
        .iter()
        .find(|voice| voice.language.replace('_', "-").eq_ignore_ascii_case(&language.replace('_', "-")));
    let near = || voices.iter().find(|voice| primary(&voice.language) == primary(language));
    // A voice of many languages has the tag `mul`.
    let any = || voices.iter().find(|voice| voice.language == "mul");
    same.or_else(near).or_else(any).map(|voice| voice.id.clone()).ok_or_else(|| {
        let message = format!(
            "no voice of model '{}' has language '{}'; see the event info",
            engine.profile().model,
            excerpt(language)
        );
        ApiError::invalid("language", message)
    })
}

pub(super) struct Speech {
    engine: Lease,
    options: ResolvedSpeechOptions,
    text: TextQueue,
    encoded: EncodedUtterance,
    rate_hz: u32,
    /// Whether `synthesize-stopped` ends it.
    is_streamed: bool,
    /// Whether text may follow.
    pub(super) is_open: bool,
    sent_samples: u64,
    has_started: bool,
}

impl Speech {
    /// Speech of a text that arrives in pieces.
    pub(super) fn streamed(speaker: Speaker, config: &ServerConfig) -> Result<Self, ApiError> {
        let Speaker { engine, voice, seed } = speaker;
        let options = SpeechOptions { seed, ..SpeechOptions::default() };
        let options = ResolvedSpeechOptions::of_voice(options, voice, &engine)?;
        let rate_hz = engine.profile().info.sample_rate_hz;
        let mut text = TextQueue::new(config);
        if options.appends_text(&engine) {
            text.set_live();
        }
        Ok(Self {
            encoded: pcm(rate_hz)?,
            engine,
            options,
            text,
            rate_hz,
            is_streamed: true,
            is_open: true,
            sent_samples: 0,
            has_started: false,
        })
    }

    /// Speech of a whole text.
    pub(super) fn whole(speaker: Speaker, text: &str, config: &ServerConfig) -> Result<Self, ApiError> {
        let mut speech = Self::streamed(speaker, config)?;
        speech.text.check_whole(text)?;
        speech.text.push_last(text)?;
        Ok(Self { is_streamed: false, is_open: false, ..speech })
    }

    /// Takes a piece of text.
    pub(super) fn push(&mut self, text: &str) -> Result<(), ApiError> {
        self.text.push(text)
    }

    /// Takes no more text.
    pub(super) fn close(&mut self) {
        self.text.finish();
        self.is_open = false;
    }

    /// Drops text that is not spoken yet. False if there was none.
    pub(super) fn clear(&mut self) -> bool {
        self.text.clear()
    }

    /// The request of the next utterance, if there is enough text.
    pub(super) fn next(&mut self) -> Option<Result<(Engine, EngineCoreRequest), ApiError>> {
        let text = self.text.next_utterance()?;
        match pcm(self.rate_hz) {
            Ok(encoded) => self.encoded = encoded,
            Err(error) => {
                self.text.ended();
                return Some(Err(error));
            }
        }
        Some(Ok((Engine::clone(&self.engine), text.request(&self.options))))
    }

    /// Whether everything was spoken, once no utterance is.
    pub(super) fn is_over(&self) -> bool {
        self.text.is_over()
    }

    /// Writes the events of one chunk.
    pub(super) fn deliver(&mut self, chunk: &StreamingOutput, out: &mut Outbox) -> Result<(), EncodeError> {
        let audio = self.encoded.encode(chunk)?;
        if audio.is_empty() {
            return Ok(());
        }
        if !self.has_started {
            self.has_started = true;
            out.binary(event("audio-start", &self.format(), &[]));
        }
        out.binary(event("audio-chunk", &self.format(), &audio));
        self.sent_samples += chunk.samples.len() as u64;
        Ok(())
    }

    /// Ends an utterance.
    pub(super) fn end_utterance(&mut self) {
        self.text.ended();
    }

    /// Writes the events after the last utterance.
    pub(super) fn finish(&self, out: &mut Outbox) {
        if self.has_started {
            out.binary(event("audio-stop", &json!({"timestamp": self.timestamp()}), &[]));
        }
        if self.is_streamed {
            out.binary(event("synthesize-stopped", &json!({}), &[]));
        }
    }

    /// The format of the audio, and when the next chunk begins, in milliseconds.
    fn format(&self) -> serde_json::Value {
        json!({"rate": self.rate_hz, "width": WIDTH, "channels": 1, "timestamp": self.timestamp()})
    }

    fn timestamp(&self) -> u64 {
        u64::try_from(audio_duration(self.sent_samples, self.rate_hz).as_millis()).unwrap_or(u64::MAX)
    }
}

/// The encoder of an utterance: 16-bit PCM.
fn pcm(rate_hz: u32) -> Result<EncodedUtterance, ApiError> {
    EncodedUtterance::with(encoding::for_session(Some("pcm"))?, EncoderConfig::streamed(rate_hz))
}
