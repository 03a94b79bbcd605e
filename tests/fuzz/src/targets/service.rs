//! The server that requests and sessions are given to, over simulated engines. One for each thread.

use izwi_core::engine::executor::simulated::{SimulatedExecutor, SimulatedModel};
use izwi_core::engine::{Engine, EngineCoreConfig};
use izwi_hub::VoiceStore;
use izwi_server::{AppState, Recorder, Registry, RegistryConfig, ServerConfig, Slot};
use tokio::runtime::{Builder, Runtime};

use crate::scratch;

pub(super) struct Service {
    pub(super) runtime: Runtime,
    pub(super) state: AppState,
    voices: VoiceStore,
}

thread_local! {
    static SERVICE: Service = Service::new();
}

impl Service {
    /// Calls `work` with the thread's server.
    pub(super) fn with<T>(work: impl FnOnce(&Self) -> T) -> T {
        SERVICE.with(work)
    }

    fn new() -> Self {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let registry = Registry::new(RegistryConfig {
            default_asr: Some("listener".to_owned()),
            ..RegistryConfig::new("voice")
        });
        runtime.block_on(async {
            let speaker =
                SimulatedModel { autoregressive: false, samples_per_token: 10, ..SimulatedModel::default() };
            let models = [
                ("voice", SimulatedModel { clones_voices: true, times_words: true, ..speaker }),
                (
                    "reader",
                    SimulatedModel { appends_text: true, samples_per_token: 10, ..SimulatedModel::default() },
                ),
                (
                    "listener",
                    SimulatedModel { transcribes: true, sample_rate: 16_000, ..SimulatedModel::default() },
                ),
                (
                    "talker",
                    SimulatedModel { chats: true, samples_per_token: 10, ..SimulatedModel::default() },
                ),
            ];
            for (name, model) in models {
                let config = EngineCoreConfig {
                    model: name.to_owned(),
                    num_threads: 1,
                    ..EngineCoreConfig::default()
                };
                let executor = SimulatedExecutor::new(&config, model);
                let engine = Engine::with_executor(config, Box::new(executor)).unwrap();
                engine.ready().await.unwrap();
                registry.set(name, Slot::Ready(engine));
            }
        });
        let folder = scratch::path("voices-of-server");
        let voices = VoiceStore::at(folder);
        let config = ServerConfig { voices: Some(voices.clone()), ..ServerConfig::default() };
        let state = AppState::new(config, registry, Recorder::install().unwrap(), None);
        Self { runtime, state, voices }
    }

    /// Removes what requests have saved.
    pub(super) fn remove_voices(&self) {
        for name in self.voices.names().unwrap() {
            self.voices.remove(&name).unwrap();
        }
    }
}
