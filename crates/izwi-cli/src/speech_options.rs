//! Speech options as flags: voice, style, language and sampling, and the engine request that they make.
//!
//! Knows the voice store. Knows no destination of the audio.

use std::path::PathBuf;

use anyhow::Result;
use clap::{Arg, ArgMatches, Command, ValueHint, value_parser};
use izwi_core::engine::{Engine, EngineCoreRequest, ReferenceAudio, SpeechOptions, VoiceInput};
use izwi_hub::{VoiceError, VoiceStore};
use izwi_server::OPENAI_VOICES;
use izwi_types::{Voice, suggest};

use crate::{failure, input};

/// Headings in the help.
const VOICE: &str = "Voice";
const SAMPLING: &str = "Sampling";

/// Options of a synthesis request. The model has defaults for all of them.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = VOICE)]
pub(crate) struct SpeechFlags {
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
    #[arg(long, requires = "ref_audio", hide_short_help = true)]
    timbre_only: bool,
    #[command(flatten)]
    options: OptionFlags,
}

/// A flag that sets the member of [`SpeechOptions`] with its name.
struct OptionFlag {
    member: &'static str,
    kind: FlagKind,
    value_name: &'static str,
    help: &'static str,
    /// Its heading in the help; the short help has the flags of the voice alone.
    heading: &'static str,
}

#[derive(Clone, Copy)]
enum FlagKind {
    Text,
    Integer,
    Float,
    Bool,
    /// A text for each use of the flag.
    Texts,
}

const OPTION_FLAGS: &[OptionFlag] = &[
    OptionFlag {
        member: "instructions",
        kind: FlagKind::Text,
        value_name: "TEXT",
        help: "Style prompt, if the model supports one",
        heading: VOICE,
    },
    OptionFlag {
        member: "language",
        kind: FlagKind::Text,
        value_name: "TAG",
        help: "Language of the text, as a BCP 47 tag",
        heading: VOICE,
    },
    OptionFlag {
        member: "speed",
        kind: FlagKind::Float,
        value_name: "FACTOR",
        help: "Tempo; 1 is the voice's normal tempo",
        heading: VOICE,
    },
    OptionFlag {
        member: "seed",
        kind: FlagKind::Integer,
        value_name: "N",
        help: "Random seed; the same seed gives the same speech",
        heading: VOICE,
    },
    OptionFlag {
        member: "lexicons",
        kind: FlagKind::Texts,
        value_name: "NAME",
        help: "Saved lexicon to say words by, instead of those for all texts; several flags for several (see `izwi lexicon`)",
        heading: VOICE,
    },
    OptionFlag {
        member: "temperature",
        kind: FlagKind::Float,
        value_name: "T",
        help: "Sampling temperature, 0 to 2; 0 always takes the most likely token",
        heading: SAMPLING,
    },
    OptionFlag {
        member: "top_p",
        kind: FlagKind::Float,
        value_name: "P",
        help: "Sample from the most likely tokens that together have this probability",
        heading: SAMPLING,
    },
    OptionFlag {
        member: "top_k",
        kind: FlagKind::Integer,
        value_name: "N",
        help: "Sample from this many most likely tokens; 0 for all",
        heading: SAMPLING,
    },
    OptionFlag {
        member: "repetition_penalty",
        kind: FlagKind::Float,
        value_name: "FACTOR",
        help: "Penalty for tokens that were generated before; 1 for none",
        heading: SAMPLING,
    },
    OptionFlag {
        member: "max_tokens",
        kind: FlagKind::Integer,
        value_name: "N",
        help: "Maximum number of generated tokens",
        heading: SAMPLING,
    },
    OptionFlag {
        member: "non_streaming_mode",
        kind: FlagKind::Bool,
        value_name: "true|false",
        help: "Feed the whole text to the model before it generates, instead of while it generates",
        heading: SAMPLING,
    },
];

impl OptionFlag {
    fn arg(&self) -> Arg {
        let name = self.member.replace('_', "-");
        let long = if matches!(self.kind, FlagKind::Texts) { name.trim_end_matches('s') } else { &name };
        let arg = Arg::new(self.member).long(long.to_owned());
        let arg = arg.value_name(self.value_name).help(self.help);
        let arg = arg.help_heading(self.heading).hide_short_help(self.heading == SAMPLING);
        match self.kind {
            FlagKind::Text => arg,
            FlagKind::Texts => arg.action(clap::ArgAction::Append),
            FlagKind::Integer => arg.value_parser(value_parser!(u64)),
            FlagKind::Float => arg.value_parser(finite),
            FlagKind::Bool => arg
                .value_parser(value_parser!(bool))
                .num_args(0..=1)
                .require_equals(true)
                .default_missing_value("true"),
        }
    }

    fn value(&self, matches: &ArgMatches) -> Option<serde_json::Value> {
        match self.kind {
            FlagKind::Text => matches.get_one::<String>(self.member).cloned().map(Into::into),
            FlagKind::Texts => {
                let texts: Vec<String> = matches.get_many::<String>(self.member)?.cloned().collect();
                Some(texts.into())
            }
            FlagKind::Integer => matches.get_one::<u64>(self.member).copied().map(Into::into),
            FlagKind::Float => matches.get_one::<f32>(self.member).copied().map(Into::into),
            FlagKind::Bool => matches.get_one::<bool>(self.member).copied().map(Into::into),
        }
    }
}

fn finite(text: &str) -> std::result::Result<f32, String> {
    let value = text.parse::<f32>().map_err(|error| error.to_string())?;
    if value.is_finite() { Ok(value) } else { Err("it must be a finite number".to_owned()) }
}

/// The flags of [`OPTION_FLAGS`].
#[derive(Debug)]
struct OptionFlags(SpeechOptions);

impl clap::Args for OptionFlags {
    fn augment_args(command: Command) -> Command {
        OPTION_FLAGS.iter().fold(command, |command, flag| command.arg(flag.arg()))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl clap::FromArgMatches for OptionFlags {
    fn from_arg_matches(matches: &ArgMatches) -> std::result::Result<Self, clap::Error> {
        let values =
            OPTION_FLAGS.iter().filter_map(|flag| Some((flag.member.to_owned(), flag.value(matches)?)));
        let options = serde_json::from_value(serde_json::Value::Object(values.collect()));
        options.map(Self).map_err(|error| clap::Error::raw(clap::error::ErrorKind::ValueValidation, error))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> std::result::Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl SpeechFlags {
    /// The options of a voice, and of a language where it is not that of the voice.
    pub(crate) fn of_voice(name: &str, language: Option<String>) -> Self {
        let options = OptionFlags(SpeechOptions { language, ..SpeechOptions::default() });
        Self { voice: Some(name.to_owned()), ref_audio: None, ref_text: None, timbre_only: false, options }
    }

    /// The name of the voice.
    pub(crate) fn voice(&self) -> Option<&str> {
        self.voice.as_deref()
    }

    /// The tempo.
    pub(crate) fn speed(&self) -> f32 {
        let OptionFlags(options) = &self.options;
        options.speed.unwrap_or(1.0)
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
        self.request_as(None, engine, voices, text)
    }

    /// As [`Self::request`]; `voice`, if there is one, replaces the voice of the flags.
    ///
    /// # Errors
    /// As [`Self::request`].
    pub(crate) fn request_as(
        &self,
        voice: Option<&str>,
        engine: &Engine,
        voices: &VoiceStore,
        text: String,
    ) -> Result<EngineCoreRequest> {
        let profile = engine.profile();
        let OptionFlags(options) = &self.options;
        if options.instructions.is_some() && !profile.info.takes_instructions {
            let message = format!("model '{}' supports no style prompt", profile.model);
            return Err(failure::usage(message, "leave --instructions out, or choose another --model"));
        }
        let request = EngineCoreRequest::tts(text).with_options(options.clone());
        if let Some(name) = voice {
            return with_voice(request, name, engine, voices);
        }
        match (&self.ref_audio, &self.voice) {
            (Some(path), _) => {
                let recording = ReferenceAudio {
                    audio: input::read_recording(path, engine.config().max_audio_bytes)?.into(),
                    text: self.ref_text.clone(),
                    timbre_only: self.timbre_only,
                };
                Ok(request.with_reference(VoiceInput::Recording(recording)))
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
    let own = &engine.profile().info.voices;
    if Voice::is_named(name, own) {
        return Ok(request.with_voice(name));
    }
    let alias = OPENAI_VOICES.iter().position(|alias| alias.eq_ignore_ascii_case(name));
    match (voices.read(name), alias) {
        (Ok((_, pack)), None) => Ok(saved_voice(request, name, pack)),
        (Ok((_, pack)), Some(_)) if engine.profile().info.clones_voices => {
            Ok(saved_voice(request, name, pack))
        }
        (_, Some(index)) => Ok(match own.get(index % own.len().max(1)) {
            Some(voice) => request.with_voice(voice.id.clone()),
            None => request,
        }),
        (Err(VoiceError::Unknown { .. } | VoiceError::Name { .. }), None) => {
            let message = format!("model '{}' has no voice '{name}'", engine.profile().model);
            let saved = voices.names().unwrap_or_default();
            let known = own.iter().map(|voice| voice.id.as_str()).chain(saved.iter().map(String::as_str));
            let help = format!("{}; `izwi voices` lists those of all models", suggest(name, "voices", known));
            Err(failure::with_help(message, help))
        }
        (Err(error), None) => Err(error.into()),
    }
}

fn saved_voice(request: EngineCoreRequest, name: &str, pack: Vec<u8>) -> EngineCoreRequest {
    let request = request.with_reference(VoiceInput::Pack(pack.into()));
    EngineCoreRequest { saved_voice: Some(name.to_owned()), ..request }
}

#[cfg(test)]
mod tests {
    use clap::{Args as _, FromArgMatches as _};
    use izwi_core::engine::EngineCoreConfig;
    use izwi_core::engine::executor::simulated::{SimulatedExecutor, SimulatedModel};
    use izwi_hub::VoiceNotes;

    use super::*;

    fn options(line: &str) -> SpeechFlags {
        let command = SpeechFlags::augment_args(clap::Command::new("say").no_binary_name(true));
        let matches = command.try_get_matches_from(line.split_whitespace()).unwrap();
        SpeechFlags::from_arg_matches(&matches).unwrap()
    }

    fn engine(clones: bool) -> Engine {
        let config = EngineCoreConfig::default();
        let executor =
            SimulatedExecutor::new(&config, SimulatedModel { clones_voices: clones, ..Default::default() });
        Engine::with_executor(config, Box::new(executor)).unwrap()
    }

    #[tokio::test]
    async fn every_flag_is_in_the_request() {
        let voices = VoiceStore::at("nowhere");
        let line = "--voice two --instructions softly --language de --speed 1.5 --seed 3 --temperature 0.5 \
                    --top-p 0.7 --top-k 9 --repetition-penalty 1.1 --max-tokens 70 --non-streaming-mode=false --lexicon a --lexicon b";
        let request = options(line).request(&engine(true), &voices, "hi".into()).unwrap();
        assert_eq!(request.voice.as_deref(), Some("two"));
        let expected = SpeechOptions {
            language: Some("de".to_owned()),
            instructions: Some("softly".to_owned()),
            speed: Some(1.5),
            seed: Some(3),
            max_tokens: Some(70),
            non_streaming_mode: Some(false),
            lexicons: Some(vec!["a".to_owned(), "b".to_owned()]),
            temperature: Some(0.5),
            top_p: Some(0.7),
            top_k: Some(9),
            repetition_penalty: Some(1.1),
        };
        assert_eq!(request.options, expected);
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
        let recording = ReferenceAudio { audio: audio.into(), text: None, timbre_only: true };
        let pack = engine.make_voice(recording).await.unwrap();
        for name in ["anna", "one", "nova"] {
            voices.save(name, &pack, &VoiceNotes::default(), false).unwrap();
        }
        let request = |name: &str| options(&format!("--voice {name}")).request(&engine, &voices, "hi".into());
        assert_eq!(request("one").unwrap().voice.as_deref(), Some("one"));
        assert!(matches!(request("anna").unwrap().reference, Some(VoiceInput::Pack(_))));
        assert!(matches!(request("nova").unwrap().reference, Some(VoiceInput::Pack(_))));
        assert_eq!(request("ash").unwrap().voice.as_deref(), Some("two"));
        assert!(request("../anna").unwrap_err().to_string().contains("has no voice '../anna'"));

        let line = format!("--ref-audio {} --ref-text ah --timbre-only", clip.display());
        let request = options(&line).request(&engine, &voices, "hi".into()).unwrap();
        let Some(VoiceInput::Recording(recording)) = request.reference else { panic!("no recording") };
        assert_eq!((recording.text.as_deref(), recording.timbre_only), (Some("ah"), true));
    }

    #[test]
    fn contradicting_flags_are_refused() {
        let command = || SpeechFlags::augment_args(clap::Command::new("say").no_binary_name(true));
        for line in ["--ref-text a", "--timbre-only", "--voice a --ref-audio b.wav"] {
            assert!(command().try_get_matches_from(line.split_whitespace()).is_err(), "{line}");
        }
    }
}
