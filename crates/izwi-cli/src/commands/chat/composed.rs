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

use super::Args;
use crate::llm::LlmFlags;
use crate::settings::{PipelineModel, Resolved};
use crate::{engine, models, output};

/// A language model, as it is named.
pub(super) enum Composed<'a> {
    Configured(&'a PipelineModel),
    Named(&'a LlmFlags),
}

/// The pipeline that the command or the settings name; of the settings also the only one, where no chat model is installed.
///
/// # Errors
/// A manifest is invalid.
pub(super) fn of<'a>(args: &'a Args, store: &Store, resolved: &'a Resolved) -> Result<Option<Composed<'a>>> {
    let settings = &resolved.settings;
    if args.llm.are_given() {
        return Ok(Some(Composed::Named(&args.llm)));
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
            Self::Named(llm) => {
                made = llm.find().await?.context("no language model is named")?;
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
