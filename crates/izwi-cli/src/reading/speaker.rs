//! A voice of the cast: what it speaks with, and the names of its sounds.

use std::path::Path;

use anyhow::Result;
use izwi_core::engine::{Engine, EngineCoreRequest, EngineError, FinishReason, VoiceInput};
use izwi_hub::{Store, sha256};
use izwi_reading::{UnitSound, seed, unit_key};
use izwi_types::{TextNotes, excerpt};

use crate::build_info::VERSION;
use crate::engine::{OutputStream, incomplete};
use crate::speech_options::SpeechFlags;

/// How one voice speaks.
#[derive(Debug)]
pub(crate) struct Speaker {
    request: EngineCoreRequest,
    /// All that its sound depends on, except for the text.
    fingerprint: String,
}

impl Speaker {
    /// The voice of the flags, or the one called `voice`.
    ///
    /// # Errors
    /// The model does not have it, or does not support an option.
    pub(crate) fn new(
        flags: &SpeechFlags,
        voice: Option<&str>,
        engine: &Engine,
        store: &Store,
    ) -> Result<Self> {
        let request = flags.request_as(voice, engine, store.voices(), String::new())?;
        let revision = revision(store, &engine.profile().model) + &lexicons(store, &request)?;
        let fingerprint = fingerprint(engine, &revision, &request);
        Ok(Self { request, fingerprint })
    }

    /// The name of a text's sound in the journal.
    pub(crate) fn key(&self, text: &str) -> String {
        unit_key(&self.fingerprint, text)
    }

    /// Speaks a unit. Its seed follows from its key, so that it sounds the same in every run. Returns warnings too.
    ///
    /// # Errors
    /// The model refuses the text, or fails.
    pub(crate) async fn speak(
        &self,
        engine: &Engine,
        store: &Store,
        text: &str,
    ) -> Result<(UnitSound, Vec<String>)> {
        let mut request = EngineCoreRequest::tts(text).with_options(self.request.options.clone());
        request.voice.clone_from(&self.request.voice);
        request.reference.clone_from(&self.request.reference);
        request.saved_voice.clone_from(&self.request.saved_voice);
        // Nobody listens: the device may take as much at once as it can.
        request.live = false;
        request.options.seed = Some(seed(&self.key(text)));
        let mut chunks = OutputStream::start(engine, request).await?;
        let (mut samples, mut words, mut notes) = (Vec::new(), Vec::new(), TextNotes::default());
        loop {
            let chunk = chunks.next().await?;
            samples.extend(chunk.samples);
            words.extend(chunk.words);
            if chunk.sequence == 0 {
                notes = chunk.notes;
            }
            let Some(stats) = chunk.stats else { continue };
            if matches!(stats.finish_reason, FinishReason::Cancelled | FinishReason::Interrupted) {
                anyhow::bail!("the engine stopped");
            }
            let cut = incomplete(stats.finish_reason, "speech");
            let cut = cut.map(|warning| format!("'{}': {warning}", excerpt(text)));
            let notes = notes.sentences(&engine.profile().model, |code| store.speaker_hint(code));
            let warnings = notes.into_iter().map(|note| note.message).chain(cut).collect();
            return Ok((UnitSound::new(&samples, &words, chunk.sample_rate), warnings));
        }
    }
}

/// Which weights a model has: its manifest with the digests of its files, and for a folder of the user's the age of its weights.
fn revision(store: &Store, model: &str) -> String {
    let Ok(status) = store.status(model) else { return String::new() };
    let folder = status.source.as_deref().map(Path::new).filter(|source| source.is_dir());
    let files = folder.and_then(|folder| std::fs::read_dir(folder).ok()).into_iter().flatten().flatten();
    let weights =
        files.filter(|file| file.path().extension().is_some_and(|extension| extension == "safetensors"));
    let age = |file: std::fs::DirEntry| file.metadata().ok()?.modified().ok();
    format!("{:?} {:?} {:?}", status.manifest, status.source, weights.filter_map(age).max())
}

/// The lexicons that a request may use.
fn lexicons(store: &Store, request: &EngineCoreRequest) -> Result<String> {
    let mut used = store.lexicons().list()?;
    used.retain(|saved| match &request.options.lexicons {
        Some(named) => named.contains(&saved.name),
        None => saved.always || !saved.voices.is_empty(),
    });
    let words: Vec<_> = used.iter().map(|saved| (&saved.name, &saved.lexicon)).collect();
    Ok(if used.is_empty() { String::new() } else { sha256(format!("{words:?}")) })
}

/// What the sound of a voice depends on.
fn fingerprint(engine: &Engine, revision: &str, request: &EngineCoreRequest) -> String {
    let profile = engine.profile();
    let reference = match &request.reference {
        Some(VoiceInput::Pack(pack)) => sha256(pack),
        Some(recording) => sha256(format!("{recording:?}")),
        None => String::new(),
    };
    let model = format!("{} {} {:?} {revision}", profile.model, profile.device, profile.precision);
    format!("{} {model} {:?} {:?} {reference}", VERSION.as_str(), request.voice, request.options)
}

/// Whether the model has no sound for a text, such as one of markup alone.
pub(crate) fn is_unspeakable(error: &anyhow::Error) -> bool {
    let error = error.downcast_ref::<EngineError>();
    error.is_some_and(|error| matches!(error, EngineError::InvalidRequest { param, .. } if param == "input"))
}
