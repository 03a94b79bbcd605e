//! `izwi voices list`.

use anyhow::Result;
use izwi_hub::{SavedVoice, Store};
use izwi_types::{Gender, Voice};
use serde::Serialize;

use crate::output;
use crate::settings::Resolved;
use crate::voice_list::{self, ModelVoices};

#[derive(Debug, clap::Args)]
// A group has the name of its type, and those of the command above are `Args` too.
#[group(id = "list")]
pub(super) struct Args {
    /// Only voices of this model
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    /// Only voices of this language, as a BCP 47 tag: en, or en-GB
    #[arg(long, value_name = "TAG")]
    language: Option<String>,
    /// Print as JSON
    #[arg(long)]
    json: bool,
}

/// A voice in the output of `--json`.
#[derive(Debug, Serialize)]
#[serde(untagged)]
enum VoiceJson<'a> {
    Own(OwnJson<'a>),
    Saved(SavedJson<'a>),
}

/// A model's own voice.
#[derive(Debug, Serialize)]
struct OwnJson<'a> {
    name: &'a str,
    saved: bool,
    model: &'a str,
    /// BCP 47 tag; `mul` where it speaks every language of the model.
    language: &'a str,
    gender: Option<&'static str>,
    description: &'a str,
    /// Whether the model uses it where no voice is named.
    default: bool,
}

/// A saved voice.
#[derive(Debug, Serialize)]
pub(super) struct SavedJson<'a> {
    name: &'a str,
    saved: bool,
    /// The model that made it, if known.
    made_by: Option<&'a str>,
    family: &'a str,
    /// Fingerprint of the checkpoint that it works with.
    fingerprint: &'a str,
    created: &'a str,
    text: Option<&'a str>,
    bytes: u64,
}

pub(super) fn saved_json(voice: &SavedVoice) -> SavedJson<'_> {
    SavedJson {
        name: &voice.name,
        saved: true,
        made_by: voice.made_by.as_deref(),
        family: &voice.family,
        fingerprint: &voice.model,
        created: &voice.created,
        text: voice.text.as_deref(),
        bytes: voice.bytes,
    }
}

impl Args {
    /// Whether an option is given.
    pub(super) fn is_given(&self) -> bool {
        self.model.is_some() || self.language.is_some() || self.json
    }

    pub(super) fn run(&self, store: &Store, resolved: &Resolved) -> Result<()> {
        let default = resolved.settings.engine.model.as_str();
        if let Some(model) = &self.model {
            store.manifest(model)?;
        }
        let models = voice_list::installed(store, default);
        let own: Vec<(&str, &Voice, bool)> = models.iter().flat_map(|model| self.chosen(model)).collect();
        let saved: Vec<SavedVoice> =
            store.voices().list()?.into_iter().filter(|voice| self.takes_saved(voice)).collect();
        if self.json {
            let own = own.iter().map(|(model, voice, is_first)| {
                VoiceJson::Own(OwnJson {
                    name: &voice.id,
                    saved: false,
                    model,
                    language: &voice.language,
                    gender: voice.gender.map(Gender::name),
                    description: &voice.description,
                    default: *is_first,
                })
            });
            let saved = saved.iter().map(|voice| VoiceJson::Saved(saved_json(voice)));
            return output::print_json(&own.chain(saved).collect::<Vec<_>>());
        }
        if !own.is_empty() || !saved.is_empty() {
            let mut rows = vec![["VOICE", "LANGUAGE", "GENDER", "MODEL", "DESCRIPTION"].map(str::to_owned)];
            rows.extend(own.iter().map(|(model, voice, is_first)| own_row(model, voice, *is_first)));
            rows.extend(saved.iter().map(saved_row));
            output::print(&output::format_columns(&rows))?;
        }
        self.remarks(&models, own.len() + saved.len(), store);
        Ok(())
    }

    /// The voices of a model that were asked for, and whether each is its default.
    fn chosen<'a>(&'a self, model: &'a ModelVoices) -> impl Iterator<Item = (&'a str, &'a Voice, bool)> {
        let is_asked = self.model.as_ref().is_none_or(|name| *name == model.model);
        let voices = model.voices.iter().enumerate().filter(move |_| is_asked);
        let voices = voices.filter(|(_, voice)| self.language.as_ref().is_none_or(|tag| speaks(voice, tag)));
        voices.map(|(at, voice)| (model.model.as_str(), voice, at == 0))
    }

    /// A saved voice speaks every language of its model.
    fn takes_saved(&self, voice: &SavedVoice) -> bool {
        self.model.is_none() || self.model == voice.made_by
    }

    /// Says what the list does not show.
    fn remarks(&self, models: &[ModelVoices], count: usize, store: &Store) {
        if self.model.is_some() || self.language.is_some() {
            if count == 0 {
                output::status("no voice fits; `izwi voices` lists those of all installed models");
            }
            return;
        }
        if models.is_empty() {
            output::status("no TTS model is installed; `izwi list` shows all, `izwi pull NAME` installs one");
        }
        let cloners =
            store.list().into_iter().filter(|status| status.installed && status.manifest.clones_voices);
        let cloners: Vec<&str> = cloners.map(|status| status.manifest.name.as_str()).collect();
        if !cloners.is_empty() {
            let names = cloners.join(", ");
            output::status(&format!(
                "{names}: any voice of which `izwi voices add NAME FILE` has a recording"
            ));
        } else if count == 0 {
            output::status("no voice is saved; `izwi voices add NAME FILE` makes one");
        }
        if count > 0 {
            output::status("`izwi voices try NAME` speaks a sentence with one");
        }
    }
}

/// Whether a voice speaks a language: the same tag, or one within it (`en-GB` within `en`).
fn speaks(voice: &Voice, tag: &str) -> bool {
    let (own, tag) = (voice.language.to_lowercase(), tag.to_lowercase());
    own == "mul" || own == tag || own.strip_prefix(&tag).is_some_and(|rest| rest.starts_with('-'))
}

fn own_row(model: &str, voice: &Voice, is_first: bool) -> [String; 5] {
    let language = match voice.language.as_str() {
        "mul" => "any",
        "" | "und" => "-",
        language => language,
    };
    let default = if is_first { " (default of the model)" } else { "" };
    [
        voice.id.clone(),
        language.to_owned(),
        voice.gender.map_or("-", Gender::name).to_owned(),
        model.to_owned(),
        format!("{}{default}", voice.description),
    ]
}

fn saved_row(voice: &SavedVoice) -> [String; 5] {
    let text = voice.text.as_ref().map(|text| format!(": {text}")).unwrap_or_default();
    [
        voice.name.clone(),
        "any".to_owned(),
        "-".to_owned(),
        voice.made_by.as_ref().unwrap_or(&voice.family).clone(),
        format!("saved {}, {}{text}", voice.created, output::format_bytes(voice.bytes)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_has_its_regions() {
        let speaks = |language: &str, tag| {
            let voice = Voice {
                id: String::new(),
                language: language.to_owned(),
                gender: None,
                description: String::new(),
            };
            speaks(&voice, tag)
        };
        for (language, tag) in [("en-GB", "en"), ("en-GB", "EN-gb"), ("mul", "de"), ("hi", "hi")] {
            assert!(speaks(language, tag), "{language} {tag}");
        }
        for (language, tag) in [("en", "en-GB"), ("hil", "hi"), ("", "en"), ("und", "en")] {
            assert!(!speaks(language, tag), "{language} {tag}");
        }
    }
}
