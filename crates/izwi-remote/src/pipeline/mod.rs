//! A pipeline: a chat model of three. What the user says is transcribed, a language model at a server answers, and the answer
//! is spoken while it is written.
//!
//! It is a [`RemoteModel`], so that routes, sessions and commands use it as any other chat model. The models that listen and
//! speak are engines that its owner leases, for the time of a request. History belongs to the client, as with every chat
//! model: what was said of an answer comes back as [`Emission::Said`](izwi_types::Emission). Must not know routes and sessions.

mod answer;
mod completion;
mod language_model;
mod prompt;
mod reasoning;
mod speech;
mod text_splitter;
mod transcripts;

use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use futures::stream::{self, StreamExt};
use izwi_core::engine::executor::ExecutorProfile;
use izwi_core::engine::leases::Engines;
use izwi_core::engine::remote::RemoteOutput;
use izwi_core::engine::{
    Engine, EngineCoreConfig, EngineError, RemoteError, RemoteModel, Task, UpstreamStatus,
};
use izwi_types::{ConverseInput, Input, InputError, ModelInfo, Transcriber, TurnEnds, Voice, excerpt};
use serde_json::{Map, Value};

use self::answer::Answer;
pub use self::language_model::LanguageModel;
use self::transcripts::TranscriptCache;
use crate::client::is_loopback;
use crate::config::{self, ConfigError, RemoteConfig};
use crate::shared::Shared;

/// The system prompt without another.
const SYSTEM: &str = "You are a voice assistant. Your answers are spoken aloud: answer briefly, in plain sentences, without lists, \
    tables, code, links and emoji. What the user says is transcribed and may have mistakes.";

/// What a pipeline is made of.
#[derive(Debug, Clone, PartialEq)]
pub struct PipelineConfig {
    /// The servers of the language model. Its name is that of the pipeline; of the rest, what concerns audio has no effect.
    pub llm: RemoteConfig,
    /// System prompt, unless a client has its own.
    pub system: Option<String>,
    /// Members of every request for a completion: `temperature`, `reasoning_effort`.
    pub parameters: Map<String, Value>,
    /// Tokens of the history, about; the oldest turns are dropped beyond them.
    pub context: usize,
    /// The model that transcribes; `None` for the default.
    pub asr: Option<String>,
    /// The model that speaks; `None` for the default.
    pub tts: Option<String>,
    /// A voice of it; `None` for its default.
    pub voice: Option<String>,
    /// Language of the conversation, as a BCP 47 tag.
    pub language: Option<String>,
    /// Whether the language model is asked in a pause, before it is known that the turn has ended. If it goes on, the request was
    /// for nothing.
    pub speculates: bool,
    /// How ends of turns are found, unless a session says otherwise; `None` for the session's default.
    pub turns: Option<TurnEnds>,
}

impl PipelineConfig {
    /// A pipeline with every setting at its default. `base_urls` and `model` are those of the language model.
    pub fn new(name: impl Into<String>, base_urls: Vec<String>, model: impl Into<String>) -> Self {
        Self {
            llm: RemoteConfig::new(name, Task::Chat, base_urls, model),
            system: None,
            parameters: Map::new(),
            context: 8_192,
            asr: None,
            tts: None,
            voice: None,
            language: None,
            speculates: false,
            turns: None,
        }
    }

    /// Whether the text of conversations goes to another machine.
    pub fn leaves_machine(&self) -> bool {
        let is_local = |url: &String| config::parse(url).is_ok_and(|url| is_loopback(&url));
        !self.llm.base_urls.iter().all(is_local)
    }

    /// Checks each value.
    ///
    /// # Errors
    /// The first value that cannot be used, with the remedy.
    pub fn check(&self) -> Result<(), ConfigError> {
        self.llm.check_servers()?;
        if let Some(name) = prompt::RESERVED.iter().find(|name| self.parameters.contains_key(**name)) {
            let message = format!("has '{name}', which the pipeline sets; leave it out");
            return Err(ConfigError { field: "parameters", message });
        }
        Ok(())
    }
}

/// A pipeline cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PipelineError {
    /// It is configured wrongly.
    #[error("pipelines: {0}")]
    Config(#[from] ConfigError),
    /// A model that listens or speaks is missing.
    #[error("{0}")]
    Model(#[from] RemoteError),
}

/// A chat model that is composed of others. Clones share the connections.
#[derive(Clone)]
pub struct Pipeline {
    parts: Arc<Parts>,
}

impl std::fmt::Debug for Pipeline {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pipeline").field("config", &self.parts.config).finish_non_exhaustive()
    }
}

/// What the requests of one pipeline share.
struct Parts {
    config: PipelineConfig,
    llm: Arc<Shared>,
    engines: Arc<dyn Engines>,
    transcripts: TranscriptCache,
}

impl Pipeline {
    /// Finds the models that listen and speak. The language model is not asked.
    ///
    /// # Errors
    /// A value of the configuration cannot be used, or a model does not load.
    pub async fn connect(config: PipelineConfig, engines: Arc<dyn Engines>) -> Result<Self, PipelineError> {
        config.check()?;
        let asr = engines.lease(config.asr.as_deref(), Task::Asr).await?;
        let tts = engines.lease(config.tts.as_deref(), Task::Tts).await?;
        let (heard, spoken) = (&asr.profile().info, &tts.profile().info);
        if let Some(voice) = config.voice.as_deref().filter(|voice| !Voice::is_named(voice, &spoken.voices)) {
            let known: Vec<&str> = spoken.voices.iter().map(|voice| voice.id.as_str()).collect();
            let message = format!(
                "'{}' is unknown to model '{}'; use {}",
                excerpt(voice),
                tts.profile().model,
                known.join(", ")
            );
            return Err(ConfigError { field: "voice", message }.into());
        }
        let info = ModelInfo {
            input_sample_rate_hz: heard.input_sample_rate_hz,
            tasks: vec![Task::Chat],
            takes_instructions: true,
            clones_voices: false,
            appends_text: false,
            times_words: false,
            takes_phonemes: false,
            calls_tools: true,
            transcriber: Some(Transcriber {
                model: asr.profile().model.clone(),
                language: transcripts::spoken(&config, heard),
                speculates: config.speculates,
                turns: config.turns,
            }),
            weight_bytes: 0,
            state_bytes: 0,
            ..spoken.clone()
        };
        let llm = Arc::new(Shared::new(config.llm.clone(), info)?);
        Ok(Self { parts: Arc::new(Parts { config, llm, engines, transcripts: TranscriptCache::default() }) })
    }

    /// The engine of this model, with the limits of `base`. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// `base` is invalid.
    pub fn into_engine(self, base: EngineCoreConfig) -> Result<Engine, EngineError> {
        let PipelineConfig { llm, context, .. } = &self.parts.config;
        let config = EngineCoreConfig {
            model: llm.name.clone(),
            max_running_requests: llm.max_concurrent,
            max_seq_len: *context,
            ..base
        };
        Engine::with_remote(config, Arc::new(self))
    }
}

impl RemoteModel for Pipeline {
    fn profile(&self) -> Arc<ExecutorProfile> {
        Arc::clone(&self.parts.llm.profile)
    }

    fn check(&self, input: &Input) -> Result<(), InputError> {
        match input {
            Input::Converse(_) => Ok(()),
            Input::Speak(_) | Input::Listen(_) => Err(InputError::other_task("only converses", "model")),
        }
    }

    fn start(&self, input: Arc<Input>) -> BoxFuture<'static, Result<RemoteOutput, RemoteError>> {
        let parts = Arc::clone(&self.parts);
        async move {
            match &*input {
                Input::Converse(input) => parts.answer(input).await,
                Input::Speak(_) | Input::Listen(_) => {
                    Err(RemoteError::Refused("a pipeline only converses".to_owned()))
                }
            }
        }
        .boxed()
    }

    fn upstreams(&self) -> Vec<UpstreamStatus> {
        self.parts.llm.upstreams.statuses()
    }
}

impl Parts {
    /// Transcribes what the user said, and waits until the language model answers.
    async fn answer(self: Arc<Self>, input: &ConverseInput) -> Result<RemoteOutput, RemoteError> {
        let transcripts = self.transcripts.of(&input.turns, &self.config, &*self.engines).await?;
        if transcripts.is_silence(input.turns.last()) {
            return Ok(stream::empty().boxed());
        }
        let body = Arc::new(prompt::body(&self.config, input, &transcripts));
        let begin = |url| {
            let (llm, body) = (Arc::clone(&self.llm), Arc::clone(&body));
            async move { completion::begin(llm, &url, &body).await }
        };
        let (completion, attempt) = self.llm.tried(begin).await?;
        let completion = completion.of(attempt);
        let tts = match input.text_only {
            true => None,
            false => Some(self.engines.lease(self.config.tts.as_deref(), Task::Tts).await?),
        };
        Ok(Answer::new(&self.config, input, completion, tts).stream())
    }
}

/// The error of an engine that a pipeline uses.
fn of_engine(model: &str, error: EngineError) -> RemoteError {
    let message = format!("model '{model}': {error}");
    match error {
        EngineError::Remote(error) => error,
        EngineError::Overloaded { retry_after, .. } | EngineError::Saturated { retry_after } => {
            RemoteError::Busy { message, retry_after }
        }
        _ => RemoteError::Failed(message),
    }
}
