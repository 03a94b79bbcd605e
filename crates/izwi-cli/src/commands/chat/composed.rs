//! The pipeline of a conversation: that of the settings, or one of the command line.
//!
//! Knows no turn.

use std::sync::Arc;

use anyhow::{Context as _, Result};
use futures::FutureExt as _;
use futures::future::BoxFuture;
use izwi_core::engine::leases::{Engines, Leased};
use izwi_core::engine::{DeviceArbiters, Engine, EngineCoreConfig, RemoteError, Task};
use izwi_hub::Store;
use izwi_remote::{LOCAL_LLMS, PipelineConfig, Secret, listed_models};

use super::Args;
use crate::settings::{Origin, PipelineModel, Resolved};
use crate::{engine, failure, models, output};

/// Stands for a server on this machine.
const AUTO: &str = "auto";
/// Its name where the command line makes it.
const NAME: &str = "llm";

/// A language model, as it is named.
pub(super) enum Composed<'a> {
    Configured(&'a PipelineModel),
    Named { url: &'a str, model: Option<&'a str>, key: Option<&'a str> },
}

/// The pipeline that the command or the settings name; of the settings also the only one, where no chat model is installed.
///
/// # Errors
/// A manifest is invalid.
pub(super) fn of<'a>(args: &'a Args, store: &Store, resolved: &'a Resolved) -> Result<Option<Composed<'a>>> {
    let settings = &resolved.settings;
    if let Some(url) = &args.llm {
        let (model, key) = (args.llm_model.as_deref(), args.llm_key_env.as_deref());
        return Ok(Some(Composed::Named { url, model, key }));
    }
    if let Some(pipeline) = settings.pipeline(&settings.engine.model) {
        return Ok(Some(Composed::Configured(pipeline)));
    }
    let chats =
        |status: &izwi_hub::ModelStatus<'_>| status.installed && status.manifest.tasks.contains(&Task::Chat);
    match settings.pipelines.as_slice() {
        [only] if !resolved.is_flag("model") && !store.list().iter().any(chats) => {
            Ok(Some(Composed::Configured(only)))
        }
        _ => Ok(None),
    }
}

impl Composed<'_> {
    /// Its engine, with those of its models, which are pulled if that is allowed.
    ///
    /// # Errors
    /// There is no language model, or a model does not load.
    pub(super) async fn engine(
        &self,
        (store, arbiters): (&Store, Arc<DeviceArbiters>),
        resolved: &Resolved,
        config: EngineCoreConfig,
        may_pull: bool,
    ) -> Result<Engine> {
        let made;
        let pipeline = match self {
            Self::Configured(pipeline) => *pipeline,
            Self::Named { url, model, key } => {
                let key = key.map(key_of).transpose()?;
                let (url, model) = found(url, *model, key.as_ref()).await?;
                let config = PipelineConfig::new(NAME, vec![url], model);
                made = PipelineModel::new(config, Origin::Flag("llm".to_owned())).keyed(key);
                &made
            }
        };
        output::status(&format!("answers come from {}", pipeline.place()));
        let settings = &resolved.settings;
        let default_asr = settings.server.default_asr_model().map(str::to_owned);
        let asr = pipeline.config.asr.clone().or(default_asr).context("asr_model is none; name one")?;
        let default_tts = Some(&settings.engine.model).filter(|name| *name != pipeline.name());
        let default_tts = default_tts.map_or_else(|| EngineCoreConfig::default().model, String::clone);
        let tts = pipeline.config.tts.clone().unwrap_or(default_tts);
        let load = async |name: &str| {
            models::ensure_known(store, settings, name, may_pull)?;
            let config = EngineCoreConfig { model: name.to_owned(), ..config.clone() };
            if let Some(remote) = settings.remote(name) {
                return engine::connect(remote, config).await;
            }
            engine::load_beside(config, Arc::clone(&arbiters)).await
        };
        let parts = Parts { asr: Arc::new(load(&asr).await?), tts: Arc::new(load(&tts).await?) };
        engine::compose(pipeline, Arc::new(parts), config.clone()).await
    }
}

/// The key in a variable of the environment.
fn key_of(variable: &str) -> Result<Secret> {
    std::env::var(variable).map(|key| Secret::new(key.trim())).map_err(|_| {
        let message = format!("--llm-key-env: the variable {variable} is not set");
        failure::with_help(message, "set it to the key of the server")
    })
}

/// The server and the model that are meant.
async fn found(url: &str, model: Option<&str>, key: Option<&Secret>) -> Result<(String, String)> {
    let urls: Vec<&str> = if url == AUTO { LOCAL_LLMS.to_vec() } else { vec![url] };
    for url in &urls {
        let listed = listed_models(url, key).await.unwrap_or_default();
        let first = listed.first().map(String::as_str);
        match model {
            // A server may list none.
            Some(model) if !listed.is_empty() || urls.len() == 1 => {
                return Ok(((*url).to_owned(), model.to_owned()));
            }
            None if first.is_some() => return Ok(((*url).to_owned(), first.unwrap_or_default().to_owned())),
            _ => {}
        }
    }
    let remedy = match url {
        AUTO => "start Ollama or LM Studio, or give the address of another server to --llm".to_owned(),
        _ => "check the address and the key of --llm-key-env, or name the model with --llm-model".to_owned(),
    };
    Err(failure::with_help(format!("no language model is listed at {}", urls.join(" or ")), remedy))
}

/// The engines of one conversation.
struct Parts {
    asr: Arc<Engine>,
    tts: Arc<Engine>,
}

impl Engines for Parts {
    fn lease(&self, _model: Option<&str>, task: Task) -> BoxFuture<'static, Result<Leased, RemoteError>> {
        let engine = Arc::clone(if task == Task::Asr { &self.asr } else { &self.tts });
        async move { Ok(Box::new(engine) as Leased) }.boxed()
    }
}
