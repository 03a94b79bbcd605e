//! Loads a model on its device. With `auto` on a machine with Metal, the faster of Metal and CPU for this model: measured
//! once, then remembered next to its weights.
//!
//! Knows no schedule and allocates no KV pool.

use std::path::PathBuf;
use std::sync::Arc;

use izwi_audio::vad::VadModel;
use izwi_hub::Store;
use izwi_kernels::measure::isa_level;
use izwi_models::device_speeds::{DeviceSpeeds, SpeedFile};
use izwi_models::error::LoadError;
use izwi_models::families::{self, LoadOptions};
use izwi_models::model::SpeechModel;
use izwi_models::warm_up;
use izwi_nn::checkpoint;
use izwi_nn::device::{self, Device, Gpu};
use izwi_nn::kv_pool::KvLayout;
use izwi_nn::self_check;
use izwi_types::{DeviceChoice, PrepareLimits, Voice};

use super::ExecutorProfile;
use super::messages::{chain, load_error};
use crate::engine::config::EngineCoreConfig;
use crate::engine::error::{EngineError, Result};

/// A model on its device.
pub(super) struct Loaded {
    pub(super) model: Arc<dyn SpeechModel>,
    pub(super) device: Device,
    /// Codes of the languages that the manifest names; empty without one.
    pub(super) languages: Vec<String>,
    /// Bytes that the process held on the device before.
    pub(super) held_before: Option<usize>,
}

impl Loaded {
    /// Frees this model, and what its device's allocator keeps of it.
    fn replaced_by(self, other: Self) -> Self {
        let Self { model, device, .. } = self;
        drop(model);
        if let Err(error) = device::free_unused(&device) {
            tracing::warn!(%error, "the device did not free the memory of a model");
        }
        other
    }
}

/// Loads the configured model. Devices are compared only while no live streams of other models play, as `plays` tells: the
/// comparison would interrupt them, and they would falsify what is remembered.
///
/// # Errors
/// The model is unknown, not pulled or does not load; the device cannot be opened or is out of memory.
pub(super) fn load(config: &EngineCoreConfig, plays: &dyn Fn() -> bool) -> Result<Loaded> {
    let source = Source::find(config)?;
    let load_on = |choice| load_on(&source, config, choice);
    let auto = config.device == DeviceChoice::Auto;
    let Some(gpu) = device::metal_gpu().filter(|_| auto) else { return load_on(config.device) };
    let load_on_cpu = || load_on(DeviceChoice::Cpu);
    let file = source.speed_file(config, &gpu);
    let remembered = file.as_ref().and_then(SpeedFile::read);
    if let Some(speeds) = remembered.filter(DeviceSpeeds::prefers_cpu) {
        log_choice(config, speeds, "auto uses the CPU, which was faster when it was measured");
        return load_on_cpu();
    }
    let on_gpu = match load_on(DeviceChoice::Metal(0)) {
        Ok(on_gpu) => on_gpu,
        Err(error) => {
            tracing::warn!(%error, "auto uses the CPU");
            return load_on_cpu();
        }
    };
    if let Some(speeds) = remembered {
        log_choice(config, speeds, "auto uses Metal, which was faster when it was measured");
        return Ok(on_gpu);
    }
    if plays() {
        tracing::info!(
            model = config.model,
            "auto uses Metal unmeasured, since streams play; a later load measures"
        );
        return Ok(on_gpu);
    }
    let (loaded, speeds) = faster(config, on_gpu, load_on_cpu());
    if let Some(speeds) = speeds.filter(|_| !plays()) {
        log_choice(config, speeds, "auto measured the model on Metal and on the CPU and uses the faster one");
        file.iter().for_each(|file| file.write(speeds));
    }
    Ok(loaded)
}

/// The device that the configured model would use, and why; `None` on a machine without Metal.
///
/// # Errors
/// The model is unknown or not pulled.
pub(super) fn explain(config: &EngineCoreConfig) -> Result<Option<String>> {
    let Some(gpu) = device::metal_gpu() else { return Ok(None) };
    if config.device != DeviceChoice::Auto {
        return Ok(Some(format!("{}, as the settings say", config.device)));
    }
    let source = Source::find(config)?;
    let speeds = source.speed_file(config, &gpu).and_then(|file| file.read());
    Ok(Some(speeds.map_or_else(
        || "not measured yet: the next load with device auto measures Metal and the CPU".to_owned(),
        |DeviceSpeeds { metal, cpu }| {
            let name = if cpu > metal { "cpu" } else { "metal" };
            format!("{name}, which was faster: {metal:.1} steps/s on Metal, {cpu:.1} on the CPU")
        },
    )))
}

/// The voices of an installed model, read without its weights.
///
/// # Errors
/// The model is unknown or not pulled, or the files that name its voices cannot be read.
pub(super) fn voices(store: &Store, model: &str) -> Result<Vec<Voice>> {
    let load = |error: &dyn std::error::Error| EngineError::Load(chain(error));
    let family = &store.manifest(model).map_err(|error| load(&error))?.family;
    let folder = store.installed(model).map_err(|error| load(&error))?;
    families::voices(family, &folder).map_err(|error| load(&error))
}

/// Limits of a request's work.
pub(super) fn limits(config: &EngineCoreConfig, model: &dyn SpeechModel) -> PrepareLimits {
    PrepareLimits {
        max_tokens_per_step: config.max_tokens_per_step,
        max_positions: match model.kv_layout() {
            Some(_) => {
                config.sequence_capacity(true).min(config.pool_geometry(model.max_positions()).capacity())
            }
            None => config.sequence_capacity(false),
        },
    }
}

/// The faster of a model on the GPU and the same on the CPU, with both speeds if both were measured. The other one is
/// freed. A device that fails is not chosen, and the reason is logged.
fn faster(
    config: &EngineCoreConfig,
    on_gpu: Loaded,
    on_cpu: Result<Loaded>,
) -> (Loaded, Option<DeviceSpeeds>) {
    let on_cpu = match on_cpu {
        Ok(on_cpu) => on_cpu,
        Err(error) => {
            tracing::warn!(%error, "auto uses Metal unmeasured: the model does not load on the CPU");
            return (on_gpu, None);
        }
    };
    let both = [&on_gpu, &on_cpu].map(|loaded| (&*loaded.model, &loaded.device));
    match warm_up::measure(both, &limits(config, &*on_cpu.model)) {
        [Ok(metal), Ok(cpu)] => {
            if let Some(fault) = metal.fault(&cpu) {
                tracing::warn!(fault, "auto uses the CPU: Metal computes the model wrong");
                return (on_gpu.replaced_by(on_cpu), None);
            }
            let speeds = DeviceSpeeds { metal: metal.steps_per_second, cpu: cpu.steps_per_second };
            (if speeds.prefers_cpu() { on_gpu.replaced_by(on_cpu) } else { on_gpu }, Some(speeds))
        }
        [Err(error), _] => {
            tracing::warn!(error = chain(&error), "auto uses the CPU: Metal cannot run the model");
            (on_gpu.replaced_by(on_cpu), None)
        }
        [Ok(_), Err(error)] => {
            tracing::warn!(error = chain(&error), "auto uses Metal: the CPU cannot run the model");
            (on_gpu, None)
        }
    }
}

fn log_choice(config: &EngineCoreConfig, speeds: DeviceSpeeds, choice: &'static str) {
    let DeviceSpeeds { metal, cpu } = speeds;
    tracing::info!(model = config.model, metal_steps_per_s = metal, cpu_steps_per_s = cpu, "{choice}");
}

/// Where a model comes from.
enum Source {
    /// Random weights of a published size.
    Random,
    Checkpoint {
        family: String,
        folder: PathBuf,
        /// Codes of the languages that the manifest names.
        languages: Vec<String>,
        /// Weights of the voice activity detector, which need not exist.
        vad: PathBuf,
    },
}

impl Source {
    fn find(config: &EngineCoreConfig) -> Result<Self> {
        if config.random_weights {
            return Ok(Self::Random);
        }
        let load = |error: izwi_hub::HubError| EngineError::Load(chain(&error));
        let store = Store::open(config.home.clone()).map_err(load)?;
        let store = store.with_models_dir(config.models_dir.clone());
        let manifest = store.manifest(&config.model).map_err(load)?;
        let (family, languages) = (manifest.family.clone(), manifest.language_codes());
        let folder = store.installed(&config.model).map_err(load)?;
        Ok(Self::Checkpoint { family, folder, languages, vad: store.vad_weights() })
    }

    /// Where the speeds of its devices are remembered.
    fn speed_file(&self, config: &EngineCoreConfig, gpu: &Gpu) -> Option<SpeedFile> {
        match self {
            Self::Random => None,
            Self::Checkpoint { folder, .. } => {
                SpeedFile::of(folder, config.dtype, &gpu.name, config.num_threads)
            }
        }
    }
}

/// What the content of a block of the KV cache depends on; `None` without blocks, or where the weights cannot be identified.
pub(super) fn block_identity(
    config: &EngineCoreConfig,
    profile: &ExecutorProfile,
    layout: Option<KvLayout>,
) -> Option<String> {
    let Source::Checkpoint { folder, .. } = Source::find(config).ok()? else { return None };
    let weights = checkpoint::fingerprint(&folder)?;
    let (version, isa, size) = (env!("CARGO_PKG_VERSION"), isa_level().ok()?, config.block_size);
    let ExecutorProfile { device, precision, .. } = profile;
    Some(format!("{version} {weights} {device} {isa} {precision} {size} {:?}", layout?))
}

/// Opens a device that computes what the CPU does. `Auto` falls back to the CPU and logs why.
///
/// # Errors
/// The named device cannot be opened or computes something else, or this build lacks its backend.
pub(super) fn open(choice: DeviceChoice) -> Result<Device> {
    let device = device::open(choice).map_err(|error| EngineError::Load(chain(&error)))?;
    match self_check::check(&device) {
        Ok(()) => Ok(device),
        Err(error) if choice == DeviceChoice::Auto => {
            tracing::warn!(error = chain(&error), "auto uses the CPU");
            Ok(Device::Cpu)
        }
        Err(error) => Err(load_error(&error, &device)),
    }
}

fn load_on(source: &Source, config: &EngineCoreConfig, choice: DeviceChoice) -> Result<Loaded> {
    let device = open(choice)?;
    let held_before = device::allocated_bytes(&device);
    let vad = match source {
        Source::Random => VadModel::default(),
        Source::Checkpoint { vad, .. } => {
            VadModel::open(vad).map_err(|error| EngineError::Load(error.to_string()))?
        }
    };
    let (precision, weight_cache) = (config.dtype, config.weight_cache);
    let options = LoadOptions { device: device.clone(), precision, weight_cache, vad };
    let model = match source {
        Source::Random => families::random(&config.model, &options),
        Source::Checkpoint { family, folder, .. } => families::load(family, folder, &options),
    };
    let model = model.map_err(|error| match error {
        LoadError::Model(error) => load_error(&error, &device),
        other => EngineError::Load(chain(&other)),
    })?;
    let languages = match source {
        Source::Random => Vec::new(),
        Source::Checkpoint { languages, .. } => languages.clone(),
    };
    Ok(Loaded { model, device, languages, held_before })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use izwi_models::model::{BatchEntry, EntryResult, SequenceState};
    use izwi_nn::Error;
    use izwi_nn::kv_pool::KvPool;
    use izwi_types::{Input, InputError, ModelInfo, Prepared, SpeakInput, StepOutput, Work};

    use super::*;

    /// A model of a few units; each takes a time, or fails, and gives samples of one value.
    struct Units(Option<Duration>, f32);

    impl SpeechModel for Units {
        fn info(&self) -> &ModelInfo {
            unreachable!("nobody asks")
        }

        fn kv_layout(&self) -> Option<KvLayout> {
            None
        }

        fn prepare(&self, _: &Input, _: &PrepareLimits) -> std::result::Result<Prepared, InputError> {
            Ok(Prepared::new(Work::Units(vec![1, 1].into()), Arc::new(())))
        }

        fn start(&self, _: &Prepared) -> SequenceState {
            Box::new(())
        }

        fn forward(
            &self,
            _: &mut KvPool,
            _: &mut [BatchEntry<'_>],
        ) -> std::result::Result<Vec<EntryResult>, Error> {
            std::thread::sleep(self.0.ok_or(Error::Internal("no memory"))?);
            Ok(vec![Ok(StepOutput { samples: vec![self.1; 480], ..StepOutput::default() })])
        }

        fn warm_up_input(&self) -> Input {
            Input::Speak(SpeakInput::plain("Warm."))
        }
    }

    fn loaded(milliseconds: Option<u64>) -> Loaded {
        sounding(milliseconds, 0.5)
    }

    fn sounding(milliseconds: Option<u64>, sample: f32) -> Loaded {
        let model = Arc::new(Units(milliseconds.map(Duration::from_millis), sample));
        Loaded { model, device: Device::Cpu, languages: Vec::new(), held_before: None }
    }

    /// Whether the GPU's model is chosen, and the speeds.
    fn choice(gpu: Option<u64>, cpu: Result<Loaded>) -> (bool, Option<DeviceSpeeds>) {
        choice_of(loaded(gpu), cpu)
    }

    fn choice_of(gpu: Loaded, cpu: Result<Loaded>) -> (bool, Option<DeviceSpeeds>) {
        let of_gpu = Arc::clone(&gpu.model);
        let (chosen, speeds) = faster(&EngineCoreConfig::default(), gpu, cpu);
        (Arc::ptr_eq(&of_gpu, &chosen.model), speeds)
    }

    #[test]
    fn the_faster_device_is_chosen_with_both_speeds() {
        let (is_gpu, speeds) = choice(Some(1), Ok(loaded(Some(20))));
        let speeds = speeds.unwrap();
        assert!(is_gpu && speeds.metal > speeds.cpu, "{speeds:?}");
        let (is_gpu, speeds) = choice(Some(20), Ok(loaded(Some(1))));
        let speeds = speeds.unwrap();
        assert!(!is_gpu && speeds.cpu > speeds.metal, "{speeds:?}");
    }

    #[test]
    fn a_device_that_fails_is_not_chosen_and_nothing_is_remembered() {
        assert_eq!(choice(None, Ok(loaded(Some(1)))), (false, None));
        assert_eq!(choice(Some(1), Ok(loaded(None))), (true, None));
        assert_eq!(choice(Some(1), Err(EngineError::Load("no memory".to_owned()))), (true, None));
    }

    #[test]
    fn a_fast_device_that_computes_nothing_is_not_chosen_and_nothing_is_remembered() {
        for sample in [0.0, f32::NAN, f32::INFINITY] {
            assert_eq!(choice_of(sounding(Some(1), sample), Ok(loaded(Some(20)))), (false, None), "{sample}");
        }
    }

    #[test]
    fn a_machine_without_metal_explains_nothing() {
        if device::metal_gpu().is_none() {
            assert_eq!(explain(&EngineCoreConfig::default()).unwrap(), None);
        }
    }
}
