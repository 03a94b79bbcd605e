//! Where speech comes from: a server that runs, or one in this process, and the voices that it has.
//!
//! Knows no message and no protocol of modules.

use anyhow::{Context as _, Result};
use serde::Deserialize;
use serde_json::json;
use tokio::sync::{Mutex, OnceCell};

use super::parameters::Parameters;
use crate::models;
use crate::settings::Resolved;
use crate::web_socket::Place;

/// The most bytes of a refusal that are told.
const MAX_REFUSAL_BYTES: usize = 4 << 10;
/// Length of the first chunk, which is heard before the others are made.
const FIRST_CHUNK_MS: u64 = 20;

/// A voice of the server.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(super) struct Voice {
    pub(super) name: String,
    #[serde(default)]
    models: Vec<String>,
    language: Option<String>,
    gender: Option<String>,
    #[serde(default)]
    default: bool,
}

#[derive(Deserialize)]
struct Voices {
    voices: Vec<Voice>,
}

impl Voice {
    /// The language as Speech Dispatcher writes it; `en` for a voice that speaks several.
    pub(super) fn language(&self) -> &str {
        self.language.as_deref().filter(|language| *language != "mul").unwrap_or("en")
    }

    pub(super) fn variant(&self) -> &str {
        self.gender.as_deref().unwrap_or("none")
    }

    /// Whether it speaks this language; a language without a region has all of them.
    pub(super) fn speaks(&self, language: &str) -> bool {
        let own = self.language();
        own.eq_ignore_ascii_case(language)
            || own.split('-').next().is_some_and(|own| own.eq_ignore_ascii_case(language))
    }
}

/// A client of the server.
#[derive(Debug)]
pub(crate) struct Speaker {
    resolved: Resolved,
    /// The server that the user named.
    given: Option<Place>,
    /// The one that is asked now.
    place: Mutex<Option<Place>>,
    /// The one in this process, once there is one.
    own: OnceCell<Place>,
    client: reqwest::Client,
    voices: Mutex<Vec<Voice>>,
}

impl Speaker {
    /// A client of the server at `url`, else of one that runs, else of one in this process.
    ///
    /// # Errors
    /// The URL is none of HTTP, or no server runs and the model is not installed.
    pub(crate) async fn new(url: Option<&str>, resolved: Resolved) -> Result<Self> {
        let key = resolved.settings.server.config.api_key.clone();
        let speaker = Self {
            given: url.map(|url| Place::of(url, key)).transpose()?,
            resolved,
            place: Mutex::default(),
            own: OnceCell::new(),
            client: izwi_remote::plain_client().context("cannot make a client of HTTP")?,
            voices: Mutex::default(),
        };
        speaker.list().await?;
        Ok(speaker)
    }

    /// The server to ask; looked for again after it was lost.
    async fn place(&self) -> Result<Place> {
        let mut place = self.place.lock().await;
        if let Some(place) = &*place {
            return Ok(place.clone());
        }
        let running = || tokio::task::block_in_place(|| Place::running(&self.resolved));
        let found = match self.given.clone().or_else(running) {
            Some(found) => found,
            None => self.own.get_or_try_init(|| self.start()).await?.clone(),
        };
        tracing::debug!(url = found.url(""), "speech comes from this server");
        *place = Some(found.clone());
        Ok(found)
    }

    /// A server in this process.
    async fn start(&self) -> Result<Place> {
        let settings = &self.resolved.settings;
        models::ensure_known(&models::open(settings)?, settings, &settings.engine.model, false)?;
        Place::of_models(&self.resolved, false).await
    }

    /// Sends a request, and once more to the server that is found after the first one was lost.
    async fn send(&self, request: impl Fn(&Place) -> reqwest::RequestBuilder) -> Result<reqwest::Response> {
        let send = async || {
            let place = self.place().await?;
            let request = request(&place);
            let request = match place.key() {
                Some(key) => request.bearer_auth(key),
                None => request,
            };
            anyhow::Ok((request.send().await, place))
        };
        let (answer, place) = send().await?;
        let answer = match answer {
            Ok(answer) => Ok(answer),
            Err(error) => {
                tracing::warn!(url = place.url(""), %error, "the server is lost");
                *self.place.lock().await = None;
                send().await?.0
            }
        };
        let mut answer = answer.with_context(|| format!("no answer of the server at {}", place.url("")))?;
        if answer.status().is_success() {
            return Ok(answer);
        }
        let mut body = Vec::new();
        while body.len() < MAX_REFUSAL_BYTES
            && let Some(bytes) = answer.chunk().await?
        {
            body.extend_from_slice(&bytes);
        }
        anyhow::bail!("the server refuses the text: {}", String::from_utf8_lossy(&body))
    }

    /// The voices, asked for again.
    ///
    /// # Errors
    /// The server does not answer.
    pub(super) async fn list(&self) -> Result<Vec<Voice>> {
        let answer = self.send(|place| self.client.get(place.url("/v1/audio/voices"))).await?;
        let Voices { voices } = answer.json().await.context("the server sent no list of voices")?;
        // A name stands on a line, between tabs.
        let is_plain = |voice: &Voice| !voice.name.chars().any(char::is_control);
        let voices: Vec<Voice> = voices.into_iter().filter(is_plain).collect();
        self.voices.lock().await.clone_from(&voices);
        Ok(voices)
    }

    /// Starts to speak; the answer has events with audio and words.
    ///
    /// # Errors
    /// No server answers, or it refuses.
    pub(super) async fn speak(&self, markup: &str, parameters: &Parameters) -> Result<reqwest::Response> {
        let mut body = json!({
            "input": markup, "response_format": "pcm", "stream_format": "sse", "word_times": true,
            "first_chunk_ms": FIRST_CHUNK_MS, "priority": "high",
        });
        if let Some(voice) = choose(&self.voices.lock().await, parameters) {
            body["voice"] = json!(voice.name);
            body["model"] = json!(voice.models.first());
        }
        self.send(|place| self.client.post(place.url("/v1/audio/speech")).json(&body)).await
    }
}

/// The voice that the parameters ask for; `None` for the default one.
fn choose<'a>(voices: &'a [Voice], parameters: &Parameters) -> Option<&'a Voice> {
    let named = parameters.voice.as_ref().and_then(|name| voices.iter().find(|voice| voice.name == *name));
    if named.is_some() {
        return named;
    }
    let first = voices.iter().find(|voice| voice.default);
    let fits = |voice: &&Voice| {
        let language = parameters.language.as_deref();
        let speaks = language.is_none_or(|language| {
            voice.speaks(language)
                || language.split('-').next().is_some_and(|language| voice.speaks(language))
        });
        speaks && parameters.gender.is_none_or(|gender| voice.gender.as_deref() == Some(gender))
    };
    match first {
        Some(first) if fits(&first) => None,
        _ => voices.iter().find(fits),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_voice_is_chosen_by_name_then_by_language_and_gender() {
        let voice = |name: &str, language: &str, gender: &str, default| Voice {
            name: name.to_owned(),
            models: Vec::new(),
            language: Some(language.to_owned()),
            gender: Some(gender.to_owned()),
            default,
        };
        let voices = [
            voice("heart", "en-US", "female", true),
            voice("emma", "en-GB", "female", false),
            voice("adam", "en-US", "male", false),
            voice("dora", "es", "female", false),
        ];
        let chosen = |lines: &[&str]| {
            let mut parameters = Parameters::default();
            assert!(lines.iter().all(|line| parameters.set(line)));
            choose(&voices, &parameters).map_or("default", |voice| voice.name.as_str()).to_owned()
        };
        assert_eq!(chosen(&[]), "default");
        assert_eq!(chosen(&["synthesis_voice=dora", "language=en"]), "dora");
        assert_eq!(chosen(&["synthesis_voice=nobody", "language=en"]), "default");
        assert_eq!(chosen(&["language=es-MX"]), "dora");
        assert_eq!(chosen(&["language=en", "voice=MALE1"]), "adam");
        assert_eq!(chosen(&["language=ja"]), "default");
        assert!(voices[1].speaks("en") && voices[1].speaks("EN-gb") && !voices[1].speaks("en-US"));
    }
}
