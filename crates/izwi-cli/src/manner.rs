//! How to speak: what flags say about the voice, the style and the choice of tokens, and the engine's request made of it.
//!
//! Knows where voices and recordings lie, and not where audio goes.

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use clap::ValueHint;
use izwi_core::engine::{AudioInput, Engine, EngineCoreRequest, ReferenceAudio, VoiceInput};
use izwi_hub::{Store, VoiceError, VoiceStore};
use izwi_server::OPENAI_VOICES;

use crate::failure;

/// How to speak. What is not given is the model's own way.
#[derive(Debug, clap::Args)]
pub(crate) struct Manner {
    /// Voice: one of the model's, or one that `izwi voices` lists
    #[arg(long, value_name = "NAME")]
    voice: Option<String>,
    /// Speak like the voice in this recording, if the model clones voices
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, conflicts_with = "voice")]
    ref_audio: Option<PathBuf>,
    /// What is said in that recording; without it only the timbre is taken
    #[arg(long, value_name = "TEXT", requires = "ref_audio")]
    ref_text: Option<String>,
    /// Take the timbre of that recording alone
    #[arg(long, requires = "ref_audio")]
    timbre_only: bool,
    /// How it is to sound, in words, if the model takes a style prompt
    #[arg(long, value_name = "TEXT")]
    instructions: Option<String>,
    /// Language of the text, as a BCP 47 tag
    #[arg(long, value_name = "TAG")]
    language: Option<String>,
    /// Tempo; 1 is the voice's own
    #[arg(long, value_name = "FACTOR")]
    speed: Option<f32>,
    /// Seed; the same seed gives the same speech
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Randomness of the choice of tokens, 0 to 2; 0 takes the likeliest
    #[arg(long, value_name = "T")]
    temperature: Option<f32>,
    /// Choose among the likeliest tokens that together have this probability
    #[arg(long, value_name = "P")]
    top_p: Option<f32>,
    /// Choose among this many tokens; 0 for all
    #[arg(long, value_name = "N")]
    top_k: Option<usize>,
    /// Penalty of tokens that were chosen before; 1 for none
    #[arg(long, value_name = "FACTOR")]
    repetition_penalty: Option<f32>,
    /// The most tokens to generate
    #[arg(long, value_name = "N")]
    max_tokens: Option<usize>,
    /// Give the text to the model whole before it speaks, or as it speaks
    #[arg(long, value_name = "true|false", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    non_streaming_mode: Option<bool>,
}

impl Manner {
    /// The model that made the saved voice to speak in, as far as the voice is a saved one and the model is known.
    pub(crate) fn maker(&self, store: &Store) -> Option<String> {
        let (voice, _) = store.voices().read(self.voice.as_deref()?).ok()?;
        voice.made_by.filter(|model| store.manifest(model).is_ok())
    }

    /// The request to say `text` so.
    ///
    /// # Errors
    /// The model does not take what is asked for, or the voice's file cannot be read.
    pub(crate) fn request(
        &self,
        engine: &Engine,
        voices: &VoiceStore,
        text: String,
    ) -> Result<EngineCoreRequest> {
        let profile = engine.profile();
        let mut params = profile.default_params();
        params.speed = self.speed.unwrap_or(params.speed);
        params.seed = self.seed.or(params.seed);
        params.sampling.temperature = self.temperature.unwrap_or(params.sampling.temperature);
        params.sampling.top_p = self.top_p.unwrap_or(params.sampling.top_p);
        params.sampling.top_k = self.top_k.unwrap_or(params.sampling.top_k);
        params.sampling.repetition_penalty =
            self.repetition_penalty.unwrap_or(params.sampling.repetition_penalty);
        params.max_tokens = self.max_tokens.unwrap_or(params.max_tokens);
        if self.instructions.is_some() && !profile.info.takes_instructions {
            let message = format!("model '{}' takes no style prompt", profile.model);
            return Err(failure::usage(message, "leave --instructions out, or choose another --model"));
        }
        let mut request = EngineCoreRequest::tts(text).with_params(params);
        request.language.clone_from(&self.language);
        request.instructions.clone_from(&self.instructions);
        request.streams_text = self.non_streaming_mode.map(|whole| !whole);
        match (&self.ref_audio, &self.voice) {
            (Some(path), _) => {
                let recording = ReferenceAudio {
                    audio: read_recording(path, engine.config().max_audio_bytes)?,
                    text: self.ref_text.clone(),
                    timbre_only: self.timbre_only,
                };
                Ok(request.with_reference(VoiceInput::Recording(recording)))
            }
            (None, Some(name)) => in_voice(request, name, engine, voices),
            (None, None) => Ok(request),
        }
    }
}

/// The request in the voice that `name` means: the model's own first, then saved ones, then OpenAI's names, which are
/// spread over the voices there are.
fn in_voice(
    request: EngineCoreRequest,
    name: &str,
    engine: &Engine,
    voices: &VoiceStore,
) -> Result<EngineCoreRequest> {
    let own = &engine.profile().info.voices;
    if own.iter().any(|voice| voice.id == name) {
        return Ok(request.with_voice(name));
    }
    let alias = OPENAI_VOICES.iter().position(|alias| alias.eq_ignore_ascii_case(name));
    match (voices.read(name), alias) {
        (Ok((_, pack)), None) => Ok(request.with_reference(VoiceInput::Pack(pack.into()))),
        (Ok((_, pack)), Some(_)) if engine.profile().info.clones_voices => {
            Ok(request.with_reference(VoiceInput::Pack(pack.into())))
        }
        (_, Some(index)) => Ok(match own.get(index % own.len().max(1)) {
            Some(voice) => request.with_voice(voice.id.clone()),
            None => request,
        }),
        (Err(VoiceError::Unknown { .. } | VoiceError::Name { .. }), None) => {
            let known: Vec<&str> = own.iter().map(|voice| voice.id.as_str()).collect();
            let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
            let message = format!("voice '{name}' is unknown");
            let help = format!(
                "model '{}' has {known} of its own; `izwi voices` lists saved ones",
                engine.profile().model
            );
            Err(failure::with_help(message, help))
        }
        (Err(error), None) => Err(error.into()),
    }
}

/// A recording of at most `max_bytes`.
///
/// # Errors
/// It cannot be read, or is larger.
pub(crate) fn read_recording(path: &Path, max_bytes: usize) -> Result<AudioInput> {
    let mut bytes = Vec::new();
    File::open(path)
        .and_then(|file| file.take(max_bytes as u64 + 1).read_to_end(&mut bytes))
        .with_context(|| format!("cannot read the recording {}", path.display()))?;
    if bytes.len() > max_bytes {
        let message = format!("the recording {} has more than {max_bytes} bytes", path.display());
        return Err(failure::usage(message, "some seconds of one clear voice are enough"));
    }
    Ok(bytes.into())
}

#[cfg(test)]
mod tests {
    use clap::{Args as _, FromArgMatches as _};
    use izwi_core::engine::EngineCoreConfig;
    use izwi_core::engine::executor::simulated::{SimulatedExecutor, SimulatedModel};
    use izwi_hub::VoiceNotes;

    use super::*;

    fn manner(line: &str) -> Manner {
        let command = Manner::augment_args(clap::Command::new("say").no_binary_name(true));
        let matches = command.try_get_matches_from(line.split_whitespace()).unwrap();
        Manner::from_arg_matches(&matches).unwrap()
    }

    fn engine(clones: bool) -> Engine {
        let config = EngineCoreConfig::default();
        let executor =
            SimulatedExecutor::new(&config, SimulatedModel { clones_voices: clones, ..Default::default() });
        Engine::with_executor(config, Box::new(executor)).unwrap()
    }

    #[tokio::test]
    async fn every_flag_reaches_the_request() {
        let voices = VoiceStore::at("nowhere");
        let line = "--voice two --instructions softly --language de --speed 1.5 --seed 3 --temperature 0.5 \
                    --top-p 0.7 --top-k 9 --repetition-penalty 1.1 --max-tokens 70 --non-streaming-mode=false";
        let request = manner(line).request(&engine(true), &voices, "hi".into()).unwrap();
        assert_eq!((request.voice.as_deref(), request.language.as_deref()), (Some("two"), Some("de")));
        assert_eq!((request.instructions.as_deref(), request.streams_text), (Some("softly"), Some(true)));
        let params = request.params.unwrap();
        assert_eq!((params.speed, params.seed, params.sampling.temperature), (1.5, Some(3), 0.5));
        assert_eq!(
            (params.sampling.top_p, params.sampling.top_k, params.sampling.repetition_penalty),
            (0.7, 9, 1.1)
        );
        assert_eq!(params.max_tokens, 70);
        let refused = manner("--instructions softly").request(&engine(false), &voices, "hi".into());
        assert!(refused.unwrap_err().to_string().contains("no style prompt"));
    }

    #[tokio::test]
    async fn a_name_means_the_models_own_then_a_saved_voice_then_any() {
        let engine = engine(true);
        let folder = tempfile::tempdir().unwrap();
        let voices = VoiceStore::at(folder.path());
        let clip = folder.path().join("clip.wav");
        std::fs::write(&clip, izwi_audio::wav::to_bytes(&[0.1; 2_400], 24_000).unwrap()).unwrap();
        let audio = read_recording(&clip, 1 << 20).unwrap();
        let recording = ReferenceAudio { audio, text: None, timbre_only: true };
        let pack = engine.make_voice(recording).await.unwrap();
        for name in ["anna", "one", "nova"] {
            voices.save(name, &pack, &VoiceNotes::default(), false).unwrap();
        }
        let asked = |name: &str| manner(&format!("--voice {name}")).request(&engine, &voices, "hi".into());
        assert_eq!(asked("one").unwrap().voice.as_deref(), Some("one"));
        assert!(matches!(asked("anna").unwrap().reference, Some(VoiceInput::Pack(_))));
        assert!(matches!(asked("nova").unwrap().reference, Some(VoiceInput::Pack(_))));
        assert_eq!(asked("ash").unwrap().voice.as_deref(), Some("two"));
        assert!(asked("../anna").unwrap_err().to_string().contains("is unknown"));

        let line = format!("--ref-audio {} --ref-text ah --timbre-only", clip.display());
        let request = manner(&line).request(&engine, &voices, "hi".into()).unwrap();
        let Some(VoiceInput::Recording(recording)) = request.reference else { panic!("no recording") };
        assert_eq!((recording.text.as_deref(), recording.timbre_only), (Some("ah"), true));
        assert!(read_recording(&clip, 10).unwrap_err().to_string().contains("more than 10 bytes"));
    }

    #[test]
    fn what_does_not_go_together_is_wrong_usage() {
        let command = || Manner::augment_args(clap::Command::new("say").no_binary_name(true));
        for line in ["--ref-text a", "--timbre-only", "--voice a --ref-audio b.wav"] {
            assert!(command().try_get_matches_from(line.split_whitespace()).is_err(), "{line}");
        }
    }
}
