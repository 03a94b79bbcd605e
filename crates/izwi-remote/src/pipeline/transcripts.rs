//! Transcripts of the recordings of conversations, each made once. Knows no server.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use bytes::Bytes;
use izwi_audio::wav;
use izwi_core::engine::leases::Engines;
use izwi_core::engine::{
    AudioInput, Engine, EngineCoreRequest, Priority, RemoteError, Task, TranscriptionOptions,
};
use izwi_types::{Message, ModelInfo, Turn, languages};

use super::{PipelineConfig, of_engine};

/// Recordings and their transcripts.
type Known = Vec<(Weak<[f32]>, Arc<str>)>;

/// The transcripts of recordings that a conversation still holds.
#[derive(Debug, Default)]
pub(super) struct TranscriptCache {
    known: Mutex<Known>,
}

/// The transcripts of a conversation, by the address of its recordings.
#[derive(Debug, Default)]
pub(super) struct Transcripts(HashMap<usize, Arc<str>>);

impl Transcripts {
    /// What is said in a recording.
    pub(super) fn text(&self, samples: &Arc<[f32]>) -> &str {
        self.0.get(&address(samples)).map_or("", |text| text)
    }

    /// Whether a turn of the user has messages, and none that says anything.
    pub(super) fn is_silence(&self, turn: Option<&Turn>) -> bool {
        let Some(Turn::User(messages)) = turn else { return false };
        let is_silent = |message: &Message| match message {
            Message::Recording(samples) => self.text(samples).is_empty(),
            Message::Text(text) => text.trim().is_empty(),
            Message::Result { .. } => false,
        };
        !messages.is_empty() && messages.iter().all(is_silent)
    }
}

impl TranscriptCache {
    /// Transcribes the recordings of `turns` that are not known yet.
    ///
    /// # Errors
    /// The model that listens fails, or is busy.
    pub(super) async fn of(
        &self,
        turns: &[Turn],
        config: &PipelineConfig,
        engines: &dyn Engines,
    ) -> Result<Transcripts, RemoteError> {
        let mut transcripts = Transcripts::default();
        let mut asr = None;
        for samples in recordings(turns) {
            let text = match self.known(samples) {
                Some(text) => text,
                None => {
                    let asr = match &asr {
                        Some(asr) => asr,
                        None => asr.insert(engines.lease(config.asr.as_deref(), Task::Asr).await?),
                    };
                    let text: Arc<str> = transcribe(asr, samples, config).await?.trim().into();
                    self.keep(samples, &text);
                    text
                }
            };
            transcripts.0.insert(address(samples), text);
        }
        Ok(transcripts)
    }

    fn known(&self, samples: &Arc<[f32]>) -> Option<Arc<str>> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let found = known.iter().find(|(kept, _)| std::ptr::addr_eq(kept.as_ptr(), Arc::as_ptr(samples)));
        found.map(|(_, text)| Arc::clone(text))
    }

    /// Remembers a transcript as long as somebody holds its recording.
    fn keep(&self, samples: &Arc<[f32]>, text: &Arc<str>) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|(kept, _)| kept.strong_count() > 0);
        known.push((Arc::downgrade(samples), Arc::clone(text)));
    }
}

fn address(samples: &Arc<[f32]>) -> usize {
    samples.as_ptr().addr()
}

fn recordings(turns: &[Turn]) -> impl Iterator<Item = &Arc<[f32]>> {
    let messages = turns.iter().flat_map(|turn| match turn {
        Turn::User(messages) => messages.as_slice(),
        Turn::Model(_) | Turn::Told(_) => &[],
    });
    messages.filter_map(|message| match message {
        Message::Recording(samples) => Some(samples),
        Message::Text(_) | Message::Result { .. } => None,
    })
}

/// Code of the language of a conversation; one that the model has no code for is detected.
pub(super) fn spoken(config: &PipelineConfig, asr: &ModelInfo) -> Option<String> {
    let known = |code: &String| asr.languages.is_empty() || asr.languages.contains(code);
    config.language.as_deref().and_then(languages::code_of).filter(known)
}

async fn transcribe(
    asr: &Engine,
    samples: &Arc<[f32]>,
    config: &PipelineConfig,
) -> Result<String, RemoteError> {
    let (model, info) = (&asr.profile().model, &asr.profile().info);
    let (samples, rate_hz) = (Arc::clone(samples), info.input_sample_rate_hz);
    let file = tokio::task::spawn_blocking(move || wav::to_bytes(&samples, rate_hz)).await;
    let file: Bytes = match file {
        Ok(Ok(file)) => file.into(),
        _ => return Err(RemoteError::Failed("the recording could not be encoded".to_owned())),
    };
    let language = spoken(config, info);
    let options = TranscriptionOptions { language, ..TranscriptionOptions::default() };
    let request = EngineCoreRequest::asr(AudioInput::File(file))
        .with_transcription(options)
        .with_priority(Priority::High);
    let output = asr.generate(request).await.map_err(|error| of_engine(model, error))?;
    Ok(output.text.unwrap_or_default())
}
