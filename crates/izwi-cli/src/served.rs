//! The models of a server: those that it offers, and how they are pulled and loaded.
//!
//! Knows no listener and no route.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use anyhow::Result;
use izwi_core::engine::leases::Engines;
use izwi_core::engine::{DeviceArbiters, Engine, EngineCoreConfig, Task};
use izwi_hub::Store;
use izwi_server::{Offer, Registry, RegistryConfig};

use crate::settings::{PipelineModel, RemoteModel, Settings};
use crate::{engine, models};

/// The models of a server, which load on first use.
pub(crate) struct Served {
    registry: Registry,
    source: Arc<Source>,
    /// Models of the settings that are to be installed, beside the default ones.
    further: Vec<String>,
}

impl Served {
    /// The models of the settings and the installed ones. Must be called within a runtime.
    ///
    /// # Errors
    /// The settings name a model that does not exist.
    pub(crate) fn new(
        settings: &Settings,
        registry_config: RegistryConfig,
        config: EngineCoreConfig,
        store: &Store,
        may_pull: bool,
    ) -> Result<Self> {
        let server = &settings.server;
        let names = named(&registry_config, &server.models, &settings.pipelines);
        check_names(store, settings, &names, registry_config.default_asr.as_ref())?;
        let offers = offers(store, &names, settings);
        // The default models are pulled when they are loaded.
        let is_default = |name: &String| {
            *name == registry_config.default_tts || Some(name) == registry_config.default_asr.as_ref()
        };
        let to_install = |name: &&String| !is_default(name) && settings.remote(name).is_none();
        let further = names.iter().filter(to_install).cloned().collect();
        let source = Arc::new(Source {
            home: settings.home.clone(),
            to_pull: if may_pull { names } else { Vec::new() },
            config: EngineCoreConfig {
                max_audio_bytes: server.config.max_upload_bytes,
                memory: registry_config.memory.clone(),
                ..config
            },
            arbiters: DeviceArbiters::default(),
            remotes: settings.remote_models.clone(),
            pipelines: settings.pipelines.clone(),
            parts: OnceLock::new(),
            runtime: tokio::runtime::Handle::current(),
        });
        let loader = Arc::clone(&source);
        let registry =
            Registry::with_loader(registry_config, offers, Arc::new(move |name| loader.engine(name)));
        // Nobody else sets it.
        let _ = source.parts.set(registry.engines_for_parts());
        Ok(Self { registry, source, further })
    }

    /// The registry, without a model loaded.
    pub(crate) fn into_registry(self) -> Registry {
        self.registry
    }

    /// The registry, and starts to load the default models and to install the others of the settings.
    pub(crate) fn load(self) -> Registry {
        let Self { registry, source, further } = self;
        registry.load_defaults();
        tokio::task::spawn_blocking(move || source.install(&further));
        registry
    }
}

/// The models of the settings without repetitions, the default ones first.
fn named(config: &RegistryConfig, models: &[String], pipelines: &[PipelineModel]) -> Vec<String> {
    let mut names = vec![config.default_tts.clone()];
    let parts = pipelines.iter().flat_map(|pipeline| [&pipeline.config.asr, &pipeline.config.tts]);
    for item in config.default_asr.iter().chain(models).chain(parts.flatten()) {
        for name in item.split(',').map(str::trim).filter(|name| !name.is_empty()) {
            if !names.iter().any(|known| known == name) {
                names.push(name.to_owned());
            }
        }
    }
    names
}

/// Refuses names of no model: that is an error now, not when the model would be loaded. A server without its ASR model
/// still synthesises: the log and /readyz report that problem.
fn check_names(store: &Store, settings: &Settings, names: &[String], asr: Option<&String>) -> Result<()> {
    for name in names.iter().filter(|name| Some(*name) != asr && settings.remote(name).is_none()) {
        store.manifest(name)?;
    }
    Ok(())
}

/// The named, the installed and the remote models and the pipelines, with their properties before loading.
fn offers(store: &Store, names: &[String], settings: &Settings) -> Vec<Offer> {
    let offered = |name: &str, installed| installed || names.iter().any(|named| named == name);
    let models = store
        .list()
        .into_iter()
        .filter(|model| !model.manifest.component && offered(&model.manifest.name, model.installed));
    let offer = |model: izwi_hub::ModelStatus<'_>| Offer {
        id: model.manifest.name.clone(),
        tasks: model.manifest.tasks.clone(),
        bytes: if model.installed { model.bytes } else { model.manifest.download_bytes().unwrap_or(0) },
    };
    let remote = |remote: &RemoteModel| Offer {
        id: remote.config.name.clone(),
        tasks: vec![remote.config.task],
        bytes: 0,
    };
    let pipeline = |pipeline: &PipelineModel| Offer {
        id: pipeline.name().to_owned(),
        tasks: vec![Task::Chat],
        bytes: 0,
    };
    let remotes = settings.remote_models.iter().map(remote);
    models.map(offer).chain(remotes).chain(settings.pipelines.iter().map(pipeline)).collect()
}

/// Loads engines from the store, which share the devices, and those of remote models and pipelines.
struct Source {
    home: PathBuf,
    /// Models that may be pulled; all others must be installed.
    to_pull: Vec<String>,
    config: EngineCoreConfig,
    arbiters: DeviceArbiters,
    /// Models that other servers run.
    remotes: Vec<RemoteModel>,
    pipelines: Vec<PipelineModel>,
    /// The engines of the models of pipelines, once there is a registry.
    parts: OnceLock<Arc<dyn Engines>>,
    runtime: tokio::runtime::Handle,
}

impl Source {
    /// Loads a model. Blocks.
    fn engine(&self, name: &str) -> Result<Engine, String> {
        let load = || {
            if let Some(remote) = self.remotes.iter().find(|remote| remote.config.name == name) {
                return self.runtime.block_on(engine::connect(remote, self.config.clone()));
            }
            let pipeline = self.pipelines.iter().find(|pipeline| pipeline.name() == name);
            if let Some((pipeline, parts)) = pipeline.zip(self.parts.get()) {
                let composed = engine::compose(pipeline, Arc::clone(parts), self.config.clone());
                return self.runtime.block_on(composed);
            }
            self.ensure(name)?;
            let config = EngineCoreConfig { model: name.to_owned(), ..self.config.clone() };
            anyhow::Ok(Engine::on_devices(config, &self.arbiters)?)
        };
        load().map_err(|error| format!("{error:#}"))
    }

    fn ensure(&self, name: &str) -> Result<()> {
        let store = models::open_at(&self.home, self.config.models_dir.clone())?;
        models::ensure(&store, name, self.to_pull.iter().any(|known| known == name))
    }

    /// Installs missing models. Blocks.
    fn install(&self, names: &[String]) {
        for name in names {
            if let Err(error) = self.ensure(name) {
                tracing::error!(model = name, reason = format!("{error:#}"), "model could not be installed");
            }
        }
    }
}
