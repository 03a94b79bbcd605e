//! `izwi voices try`: a sample sentence in a voice.

use std::path::PathBuf;

use anyhow::Result;
use clap::ValueHint;
use izwi_audio::encode::Format;
use izwi_hub::Store;
use izwi_types::suggest;

use crate::settings::Resolved;
use crate::sink::{self, Target, TargetOptions};
use crate::sound::Player;
use crate::speaking::Speaking;
use crate::speech_options::SpeechFlags;
use crate::voice_list::{self, Found};
use crate::{engine, failure, models, output};

/// Speak a sample sentence with a voice
///
/// Plays it, or writes it with -o. The model is that of the voice, unless --model names another.
#[derive(Debug, clap::Args)]
pub(super) struct Try {
    /// A voice, as `izwi voices` shows it, or a blend of some: 'af_heart(2)+am_adam(1)'
    #[arg(value_name = "NAME")]
    name: String,
    /// Text to speak instead of the sample sentence
    #[arg(long, value_name = "TEXT")]
    text: Option<String>,
    /// Audio file to write instead of playing it; - writes to standard output
    #[arg(long, short, value_name = "FILE", value_hint = ValueHint::FilePath)]
    output: Option<PathBuf>,
    /// Format of the audio file [default: that of its extension]
    #[arg(long, value_parser = sink::format_parser())]
    format: Option<&'static Format>,
    /// Fail if the model is not installed, instead of pulling it
    #[arg(long)]
    no_pull: bool,
}

/// What a voice says, by the primary subtag of its language; the first where it is none of these.
const SENTENCES: [(&str, &str); 12] = [
    ("en", "Good morning. This is how I sound when I read you the news, a letter or a story."),
    (
        "de",
        "Guten Morgen. So klinge ich, wenn ich Ihnen die Nachrichten, einen Brief oder eine Geschichte vorlese.",
    ),
    ("es", "Buenos días. Así sueno cuando leo las noticias, una carta o un cuento."),
    ("fr", "Bonjour. Voici ma voix quand je lis les nouvelles, une lettre ou une histoire."),
    ("hi", "सुप्रभात। जब मैं समाचार, पत्र या कहानी पढ़ता हूँ, तो मेरी आवाज़ ऐसी लगती है।"),
    ("it", "Buongiorno. Questa è la mia voce quando leggo le notizie, una lettera o una storia."),
    ("ja", "おはようございます。ニュースや手紙や物語を読むとき、私の声はこのように聞こえます。"),
    ("ko", "좋은 아침입니다. 뉴스나 편지, 이야기를 읽을 때 제 목소리는 이렇습니다."),
    ("nl", "Goedemorgen. Zo klink ik als ik het nieuws, een brief of een verhaal voorlees."),
    ("pt", "Bom dia. É assim que eu soo quando leio as notícias, uma carta ou uma história."),
    ("ru", "Доброе утро. Так звучит мой голос, когда я читаю новости, письмо или рассказ."),
    ("zh", "早上好。这就是我朗读新闻、书信或故事时的声音。"),
];

impl Try {
    pub(super) fn run(&self, store: &Store, resolved: &Resolved) -> Result<()> {
        let mut config = engine::local_config(resolved);
        let found = voice_list::find(store, &self.name, &config.model, resolved.is_flag("model"));
        let found = match found {
            Some(found) => found,
            // A remote model may have it.
            None if resolved.settings.remote(&config.model).is_some() => Found::of(&config.model),
            None => return Err(self.unknown(store, &config.model)),
        };
        config.model.clone_from(&found.model);
        let target = Target::choose(TargetOptions {
            output: self.output.as_deref(),
            format: self.format,
            play: self.output.is_none(),
            json: false,
            stdout_is_terminal: output::stdout_is_terminal(),
        })?;
        let player = match target {
            Target::None => Some(Player::find(false)?),
            Target::File(..) | Target::Stdout(_) => None,
        };
        models::ensure_known(store, &resolved.settings, &config.model, !self.no_pull)?;
        let remote = resolved.settings.remote(&config.model);
        let (text, language) = self.sample(store, &found);
        let options = SpeechFlags::of_voice(&self.name, language);
        let speaking = Speaking { options: &options, target, player, stream: false, json: false, store };
        engine::run_model(config, remote, async |loaded| speaking.run(loaded, text).await)
    }

    /// The text, and its language where it is not that of the voice.
    fn sample(&self, store: &Store, found: &Found) -> (String, Option<String>) {
        let primary = |tag: &str| tag.split('-').next().unwrap_or_default().to_lowercase();
        if let Some(text) = &self.text {
            return (text.clone(), None);
        }
        let own = found.language.as_deref().map(primary);
        let manifest = store.manifest(&found.model).ok();
        let is_spoken = |tag: &str| {
            let spoken =
                |manifest: &izwi_hub::Manifest| manifest.languages.iter().any(|known| primary(known) == tag);
            manifest.is_none_or(spoken)
        };
        let [(_, english), ..] = SENTENCES;
        match own {
            // A voice of any language, or of none that is known, or of one whose texts its model does not read.
            None => (english.to_owned(), None),
            Some(tag) if tag == "mul" || tag == "und" || tag.is_empty() => (english.to_owned(), None),
            Some(tag) if !is_spoken(&tag) => (english.to_owned(), Some("en".to_owned())),
            Some(tag) => {
                let sentence = SENTENCES.iter().find(|(known, _)| *known == tag);
                (sentence.map_or(english, |(_, sentence)| *sentence).to_owned(), None)
            }
        }
    }

    fn unknown(&self, store: &Store, model: &str) -> anyhow::Error {
        let listed = voice_list::installed(store, model);
        let own = listed.iter().flat_map(|model| &model.voices).map(|voice| voice.id.clone());
        let names: Vec<String> = own.chain(store.voices().names().unwrap_or_default()).collect();
        let hint = suggest(&self.name, "voices", names.iter().map(String::as_str));
        failure::with_help(
            format!("no installed model has a voice '{}'", self.name),
            format!("{hint}; `izwi voices` lists all"),
        )
    }
}
