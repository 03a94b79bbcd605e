//! Placement of a model's replicas on devices by memory.
//!
//! The need of the first replica is known once it is loaded; devices after it that tell less free memory are left out, and
//! so is one on which the model does not load.

use izwi_nn::device;
use izwi_types::DeviceChoice;
use sysinfo::{ProcessRefreshKind, ProcessesToUpdate};

use super::{ModelExecutor, build_beside};
use crate::engine::config::EngineCoreConfig;
use crate::engine::error::{EngineError, Result};

/// Total and available memory of the CPU in bytes, within the limits of the cgroup that the process is in.
pub fn cpu_memory() -> Option<(u64, u64)> {
    let mut system = sysinfo::System::new().ok()?;
    system.refresh_memory();
    let (total, available) = (system.total_memory(), system.available_memory());
    let own = sysinfo::get_current_pid().ok().and_then(|pid| {
        let nothing = ProcessRefreshKind::nothing();
        system.refresh_processes_specifics(ProcessesToUpdate::Some(&[pid]), true, nothing);
        // A limit that is set on the process (systemd, `docker run --memory`) and not on the whole machine.
        system.process(pid)?.cgroup_limits()
    });
    Some(match own.or_else(|| system.cgroup_limits()) {
        Some(limits) => (total.min(limits.total_memory), available.min(limits.free_memory)),
        None => (total, available),
    })
}

/// Free memory of a device in bytes; `None` if it does not tell.
fn free_bytes(choice: DeviceChoice) -> Option<u64> {
    match choice {
        DeviceChoice::Cpu => cpu_memory().map(|(_, available)| available),
        DeviceChoice::Metal(0) => {
            let held = device::open(choice).ok().and_then(|device| device::allocated_bytes(&device));
            let all = device::metal_gpu()?.working_set_bytes;
            Some(all.saturating_sub(held.unwrap_or(0)) as u64)
        }
        DeviceChoice::Cuda(_) => {
            device::open(choice).ok().and_then(|device| device::free_cuda_bytes(&device))
        }
        DeviceChoice::Metal(_) | DeviceChoice::Auto => None,
    }
}

/// Loads the configured model on each of the configured devices that has room for it. `plays`: as of [`build_beside`].
///
/// # Errors
/// The model loads on none of them.
pub(in crate::engine) fn place(
    config: &EngineCoreConfig,
    plays: &dyn Fn() -> bool,
) -> Result<Vec<Box<dyn ModelExecutor>>> {
    place_with(&config.devices, free_bytes, |device| {
        build_beside(&EngineCoreConfig { device, devices: Vec::new(), ..config.clone() }, plays)
    })
}

fn place_with(
    devices: &[DeviceChoice],
    free_bytes: impl Fn(DeviceChoice) -> Option<u64>,
    load: impl Fn(DeviceChoice) -> Result<Box<dyn ModelExecutor>>,
) -> Result<Vec<Box<dyn ModelExecutor>>> {
    let mut placed: Vec<Box<dyn ModelExecutor>> = Vec::new();
    let mut reasons = Vec::new();
    for &device in devices {
        let need = placed.first().map(|executor| executor.profile().memory_bytes as u64);
        if let Some((need, free)) = need.zip(free_bytes(device)).filter(|(need, free)| free < need) {
            let (need_mib, free_mib) = (need >> 20, free >> 20);
            tracing::warn!(%device, need_mib, free_mib, "a device has no room for the model and is left out");
            continue;
        }
        match load(device) {
            Ok(executor) => placed.push(executor),
            Err(error) => {
                tracing::warn!(%device, %error, "the model does not load on a device, which is left out");
                reasons.push(format!("{device}: {error}"));
            }
        }
    }
    if placed.is_empty() {
        return Err(EngineError::Load(format!(
            "the model loads on none of the devices; name others in devices: {}",
            reasons.join("; ")
        )));
    }
    Ok(placed)
}

#[cfg(all(test, feature = "simulated"))]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::engine::executor::simulated::{SimulatedExecutor, SimulatedModel};
    use crate::engine::executor::{ExecutorError, ExecutorProfile, ItemResult, RequestPreparer, StepPlan};
    use crate::engine::qos::cost::StepShape;
    use crate::engine::types::SequenceId;

    const DEVICES: [DeviceChoice; 3] = [DeviceChoice::Metal(0), DeviceChoice::Cuda(0), DeviceChoice::Cpu];

    const NEED: u64 = 3 << 30;

    /// An executor of a model that takes [`NEED`].
    struct Large(SimulatedExecutor, DeviceChoice);

    impl ModelExecutor for Large {
        fn profile(&self) -> Arc<ExecutorProfile> {
            let (memory_bytes, device) = (NEED as usize, self.1.to_string());
            Arc::new(ExecutorProfile { memory_bytes, device, ..(*self.0.profile()).clone() })
        }

        fn preparer(&self) -> Arc<dyn RequestPreparer> {
            self.0.preparer()
        }

        fn initialize(&mut self) -> std::result::Result<Option<StepShape>, ExecutorError> {
            self.0.initialize()
        }

        fn execute(&mut self, plan: &StepPlan) -> std::result::Result<Vec<ItemResult>, ExecutorError> {
            self.0.execute(plan)
        }

        fn release(&mut self, sequences: &[SequenceId]) {
            self.0.release(sequences);
        }

        fn shutdown(&mut self) {
            self.0.shutdown();
        }
    }

    fn simulated(device: DeviceChoice) -> Result<Box<dyn ModelExecutor>> {
        let executor = SimulatedExecutor::new(&EngineCoreConfig::default(), SimulatedModel::default());
        Ok(Box::new(Large(executor, device)))
    }

    fn names(placed: &[Box<dyn ModelExecutor>]) -> Vec<String> {
        placed.iter().map(|executor| executor.profile().device.clone()).collect()
    }

    #[test]
    fn a_device_without_room_is_left_out_and_one_that_tells_nothing_is_tried() {
        let free = |cpu: u64| {
            move |device| match device {
                DeviceChoice::Cpu => Some(cpu),
                _ => None,
            }
        };
        let all = place_with(&DEVICES, free(NEED), simulated).unwrap();
        assert_eq!(names(&all), ["metal:0", "cuda:0", "cpu"]);
        let two = place_with(&DEVICES, free(NEED - 1), simulated).unwrap();
        assert_eq!(names(&two), ["metal:0", "cuda:0"]);
    }

    #[test]
    fn a_device_on_which_the_model_does_not_load_is_left_out() {
        let fails = |device| match device {
            DeviceChoice::Cuda(_) => Err(EngineError::Load("out of memory".to_owned())),
            _ => simulated(device),
        };
        assert_eq!(names(&place_with(&DEVICES, |_| None, fails).unwrap()), ["metal:0", "cpu"]);
        let nowhere = place_with(&DEVICES[1..2], |_| None, fails).err().unwrap().to_string();
        assert!(nowhere.contains("cuda:0: out of memory") && nowhere.contains("devices"), "{nowhere}");
    }

    #[test]
    fn the_memory_of_the_cpu_is_known() {
        let (total, available) = cpu_memory().unwrap();
        assert!(available > 0 && available <= total, "{available} of {total}");
    }
}
