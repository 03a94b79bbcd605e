//! Speech options as flags: voice, style, language and sampling, and the engine request that they make.
//!
//! Knows the voice store. Knows no destination of the audio.

use std::path::PathBuf;

use anyhow::Result;
use clap::ValueHint;
use izwi_core::engine::{Engine, EngineCoreRequest, ReferenceRecording, VoiceReference};
use izwi_hub::{Store, VoiceError, VoiceStore};
use izwi_server::OPENAI_VOICES;

use crate::{failure, input};

/// Options of a synthesis request. The model has defaults for all of them.
#[derive(Debug, clap::Args)]
pub(crate) struct SpeechOptions {
    /// Voice: one of the model's voices, or a saved voice (see `izwi voices`)
    #[arg(long, value_name = "NAME")]
    voice: Option<String>,
    /// Clone the voice of this recording, if the model supports it
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, conflicts_with = "voice")]
    ref_audio: Option<PathBuf>,
    /// Transcript of that recording; without it only its timbre is used
    #[arg(long, value_name = "TEXT", requires = "ref_audio")]
    ref_text: Option<String>,
    /// Use only the timbre of that recording
    #[arg(long, requires = "ref_audio")]
    timbre_only: bool,
    /// Style prompt, if the model supports one
    #[arg(long, value_name = "TEXT")]
    instructions: Option<String>,
    /// Language of the text, as a BCP 47 tag
    #[arg(long, value_name = "TAG")]
    language: Option<String>,
    /// Tempo; 1 is the voice's normal tempo
    #[arg(long, value_name = "FACTOR")]
    speed: Option<f32>,
    /// Random seed; the same seed gives the same speech
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Sampling temperature, 0 to 2; 0 always takes the most likely token
    #[arg(long, value_name = "T")]
    temperature: Option<f32>,
    /// Sample from the most likely tokens that together have this probability
    #[arg(long, value_name = "P")]
    top_p: Option<f32>,
    /// Sample from this many most likely tokens; 0 for all
    #[arg(long, value_name = "N")]
    top_k: Option<usize>,
    /// Penalty for tokens that were generated before; 1 for none
    #[arg(long, value_name = "FACTOR")]
    repetition_penalty: Option<f32>,
    /// Maximum number of generated tokens
    #[arg(long, value_name = "N")]
    max_tokens: Option<usize>,
    /// Feed the whole text to the model before it generates, instead of while it generates
    #[arg(long, value_name = "true|false", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    non_streaming_mode: Option<bool>,
}

impl SpeechOptions {
    /// The model that made the voice, if it is a saved voice of a known model.
    pub(crate) fn voice_model(&self, store: &Store) -> Option<String> {
        let (voice, _) = store.voices().read(self.voice.as_deref()?).ok()?;
        voice.made_by.filter(|model| store.manifest(model).is_ok())
    }

    /// The engine request for `text`.
    ///
    /// # Errors
    /// The model does not support an option, the voice is unknown, or a file cannot be read.
    pub(crate) fn request(
        &self,
        engine: &Engine,
        voices: &VoiceStore,
        text: String,
    ) -> Result<EngineCoreRequest> {
        let profile = engine.profile();
        let mut params = profile.default_params.clone();
        params.speed = self.speed.unwrap_or(params.speed);
        params.seed = self.seed.or(params.seed);
        params.temperature = self.temperature.unwrap_or(params.temperature);
        params.top_p = self.top_p.unwrap_or(params.top_p);
        params.top_k = self.top_k.unwrap_or(params.top_k);
        params.repetition_penalty = self.repetition_penalty.unwrap_or(params.repetition_penalty);
        params.max_tokens = self.max_tokens.unwrap_or(params.max_tokens);
        if self.instructions.is_some() && !profile.takes_instructions {
            let message = format!("model '{}' supports no style prompt", profile.model);
            return Err(failure::usage(message, "leave --instructions out, or choose another --model"));
        }
        let mut request = EngineCoreRequest::tts(text).with_params(params);
        request.language.clone_from(&self.language);
        request.instructions.clone_from(&self.instructions);
        request.streams_text = self.non_streaming_mode.map(|whole| !whole);
        match (&self.ref_audio, &self.voice) {
            (Some(path), _) => {
                let recording = ReferenceRecording {
                    audio: input::read_recording(path, engine.config().max_audio_bytes)?.into(),
                    text: self.ref_text.clone(),
                    timbre_only: self.timbre_only,
                };
                Ok(request.with_reference(VoiceReference::Recording(recording)))
            }
            (None, Some(name)) => with_voice(request, name, engine, voices),
            (None, None) => Ok(request),
        }
    }
}

/// Sets the voice called `name`: a voice of the model, else a saved voice, else one of OpenAI's names, which are mapped
/// to the model's voices in order.
fn with_voice(
    request: EngineCoreRequest,
    name: &str,
    engine: &Engine,
    voices: &VoiceStore,
) -> Result<EngineCoreRequest> {
    let own = &engine.profile().voices;
    if own.iter().any(|voice| voice.id == name) {
        return Ok(request.with_voice(name));
    }
    let alias = OPENAI_VOICES.iter().position(|alias| alias.eq_ignore_ascii_case(name));
    match (voices.read(name), alias) {
        (Ok((_, pack)), None) => Ok(request.with_reference(VoiceReference::Pack(pack.into()))),
        (Ok((_, pack)), Some(_)) if engine.profile().clones_voices => {
            Ok(request.with_reference(VoiceReference::Pack(pack.into())))
        }
        (_, Some(index)) => Ok(match own.get(index % own.len().max(1)) {
            Some(voice) => request.with_voice(voice.id.clone()),
            None => request,
        }),
        (Err(VoiceError::Unknown { .. } | VoiceError::Name { .. }), None) => {
            let known: Vec<&str> = own.iter().map(|voice| voice.id.as_str()).collect();
            let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
            let message = format!("voice '{name}' is unknown");
            let model = &engine.profile().model;
            let help = format!("voices of model '{model}': {known}; `izwi voices` lists saved ones");
            Err(failure::with_help(message, help))
        }
        (Err(error), None) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use clap::{Args as _, FromArgMatches as _};
    use izwi_core::engine::EngineCoreConfig;
    use izwi_core::engine::executor::simulated::{SimulatedExecutor, SimulatedModel};
    use izwi_hub::VoiceNotes;

    use super::*;

    fn options(line: &str) -> SpeechOptions {
        let command = SpeechOptions::augment_args(clap::Command::new("say").no_binary_name(true));
        let matches = command.try_get_matches_from(line.split_whitespace()).unwrap();
        SpeechOptions::from_arg_matches(&matches).unwrap()
    }

    fn engine(clones: bool) -> Engine {
        let config = EngineCoreConfig::default();
        let executor = SimulatedExecutor::new(&config, SimulatedModel { clones, ..Default::default() });
        Engine::with_executor(config, Box::new(executor)).unwrap()
    }

    #[tokio::test]
    async fn every_flag_is_in_the_request() {
        let voices = VoiceStore::at("nowhere");
        let line = "--voice two --instructions softly --language de --speed 1.5 --seed 3 --temperature 0.5 \
                    --top-p 0.7 --top-k 9 --repetition-penalty 1.1 --max-tokens 70 --non-streaming-mode=false";
        let request = options(line).request(&engine(true), &voices, "hi".into()).unwrap();
        assert_eq!((request.voice.as_deref(), request.language.as_deref()), (Some("two"), Some("de")));
        assert_eq!((request.instructions.as_deref(), request.streams_text), (Some("softly"), Some(true)));
        let params = request.params.unwrap();
        assert_eq!((params.speed, params.seed, params.temperature), (1.5, Some(3), 0.5));
        assert_eq!((params.top_p, params.top_k, params.repetition_penalty), (0.7, 9, 1.1));
        assert_eq!(params.max_tokens, 70);
        let refused = options("--instructions softly").request(&engine(false), &voices, "hi".into());
        assert!(refused.unwrap_err().to_string().contains("no style prompt"));
    }

    #[tokio::test]
    async fn a_name_is_looked_up_in_the_model_then_the_store_then_the_aliases() {
        let engine = engine(true);
        let folder = tempfile::tempdir().unwrap();
        let voices = VoiceStore::at(folder.path());
        let clip = folder.path().join("clip.wav");
        let audio = izwi_audio::wav::to_bytes(&[0.1; 2_400], 24_000).unwrap();
        std::fs::write(&clip, &audio).unwrap();
        let recording = ReferenceRecording { audio: audio.into(), text: None, timbre_only: true };
        let pack = engine.make_voice(recording).await.unwrap();
        for name in ["anna", "one", "nova"] {
            voices.save(name, &pack, &VoiceNotes::default(), false).unwrap();
        }
        let request = |name: &str| options(&format!("--voice {name}")).request(&engine, &voices, "hi".into());
        assert_eq!(request("one").unwrap().voice.as_deref(), Some("one"));
        assert!(matches!(request("anna").unwrap().reference, Some(VoiceReference::Pack(_))));
        assert!(matches!(request("nova").unwrap().reference, Some(VoiceReference::Pack(_))));
        assert_eq!(request("ash").unwrap().voice.as_deref(), Some("two"));
        assert!(request("../anna").unwrap_err().to_string().contains("is unknown"));

        let line = format!("--ref-audio {} --ref-text ah --timbre-only", clip.display());
        let request = options(&line).request(&engine, &voices, "hi".into()).unwrap();
        let Some(VoiceReference::Recording(recording)) = request.reference else { panic!("no recording") };
        assert_eq!((recording.text.as_deref(), recording.timbre_only), (Some("ah"), true));
    }

    #[test]
    fn contradicting_flags_are_refused() {
        let command = || SpeechOptions::augment_args(clap::Command::new("say").no_binary_name(true));
        for line in ["--ref-text a", "--timbre-only", "--voice a --ref-audio b.wav"] {
            assert!(command().try_get_matches_from(line.split_whitespace()).is_err(), "{line}");
        }
    }
}
