//! Compute devices: opening each once, their names, and the memory that their allocators keep. Knows no tensor.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, PoisonError, RwLock, TryLockError};

pub use candle_core::Device;
pub use izwi_cuda::free_bytes as free_cuda_bytes;
pub use izwi_metal::{Gpu, KernelCosts, gpu as metal_gpu};
use izwi_types::DeviceChoice;

use crate::Error;

/// Devices of the process: each is opened once. Tensors of two openings of one device do not fit together, and each opening
/// compiles its own shaders.
static OPENED: Mutex<Vec<(DeviceChoice, Device)>> = Mutex::new(Vec::new());

/// Held by each thread that works on a device: a check needs to be alone.
static AT_WORK: RwLock<()> = RwLock::new(());

/// Runs work of this thread on a device: loading, preparing, a step. Frees afterwards what Apple's frameworks left to the
/// thread's autorelease pool. May be nested.
pub fn at_work<T>(work: impl FnOnce() -> T) -> T {
    let _held = AT_WORK.read().unwrap_or_else(PoisonError::into_inner);
    izwi_metal::with_autorelease_pool(work)
}

/// Whether all work so far succeeded. On Metal a read tells only of the last command buffer, and a step may be several: call
/// this after a step, outside of [`at_work`]. Waits for what no read has waited for. While another thread is at work, nothing
/// is looked at: the next check tells.
///
/// # Errors
/// Work of this process failed since the last check.
pub fn check(device: &Device) -> Result<(), Error> {
    let Some(device) = izwi_metal::metal_device(device) else { return Ok(()) };
    let _alone = match AT_WORK.try_write() {
        Ok(alone) => alone,
        Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
        Err(TryLockError::WouldBlock) => return Ok(()),
    };
    Ok(izwi_metal::with_autorelease_pool(|| izwi_metal::check(device))?)
}

/// Opens a device; a later call returns the same one. `Auto` falls back to the CPU and logs why; a named device that does
/// not exist is an error.
///
/// # Errors
/// The named device cannot be opened, or this build lacks its backend.
pub fn open(choice: DeviceChoice) -> Result<Device, Error> {
    match choice {
        DeviceChoice::Cpu => Ok(Device::Cpu),
        DeviceChoice::Auto => Ok(open_gpu().unwrap_or(Device::Cpu)),
        DeviceChoice::Metal(index) => open_once(choice, || open_metal(index)),
        DeviceChoice::Cuda(index) => open_once(choice, || open_cuda(index)),
    }
}

fn open_once(choice: DeviceChoice, open: impl FnOnce() -> Result<Device, String>) -> Result<Device, Error> {
    // An opening that panicked has not added its device.
    let mut opened = OPENED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, device)) = opened.iter().find(|(known, _)| *known == choice) {
        return Ok(device.clone());
    }
    let device = open().map_err(|message| Error::Device { device: choice.to_string(), message })?;
    opened.push((choice, device.clone()));
    Ok(device)
}

fn open_metal(index: usize) -> Result<Device, String> {
    if !izwi_metal::IS_BUILT_IN {
        return Err(missing("metal"));
    }
    if let Some(reason) = izwi_metal::fault(index) {
        return Err(format!("{reason}, or use `cpu`"));
    }
    let device = caught(|| Device::new_metal(index))?;
    if let Some(Err(error)) = izwi_metal::metal_device(&device).map(izwi_metal::prepare) {
        tracing::warn!(%error, "some kernels do not compile on this GPU: models that need them cannot use it");
    }
    Ok(device)
}

fn open_cuda(index: usize) -> Result<Device, String> {
    if !izwi_cuda::IS_BUILT_IN {
        return Err(missing("cuda"));
    }
    caught(|| izwi_cuda::open(index))
}

fn missing(feature: &str) -> String {
    format!("this build lacks it; build with `--features {feature}` or use `cpu`")
}

/// Opens a device; a panic of its driver's bindings is an error too.
fn caught(open: impl FnOnce() -> candle_core::Result<Device>) -> Result<Device, String> {
    match catch_unwind(AssertUnwindSafe(open)) {
        Ok(Ok(device)) => Ok(device),
        Ok(Err(error)) => Err(format!("{error}; check its driver, or use `cpu`")),
        Err(_) => Err("opening it ended abnormally; check its driver, or use `cpu`".to_owned()),
    }
}

fn open_gpu() -> Option<Device> {
    let choices =
        [(izwi_metal::IS_BUILT_IN, DeviceChoice::Metal(0)), (izwi_cuda::IS_BUILT_IN, DeviceChoice::Cuda(0))];
    choices.into_iter().filter(|(is_built_in, _)| *is_built_in).find_map(|(_, choice)| match open(choice) {
        Ok(device) => Some(device),
        Err(error) => {
            tracing::warn!(%error, "auto uses the CPU");
            None
        }
    })
}

/// Makes the next [`open`] of the device open it anew: after a fault the driver may refuse all further work of the old opening.
/// What is on that one stays there.
pub fn forget(device: &Device) {
    OPENED.lock().unwrap_or_else(PoisonError::into_inner).retain(|(_, known)| !known.same_device(device));
}

/// Frees the buffers that the device's allocator keeps for later operations. Waits for the operations in progress.
///
/// # Errors
/// An operation in progress failed.
pub fn free_unused(device: &Device) -> Result<(), Error> {
    match izwi_metal::metal_device(device) {
        Some(device) => izwi_metal::finish(device)?,
        None if device.is_cpu() => {}
        None => device.synchronize()?,
    }
    Ok(())
}

/// Bytes that this process holds on the device, the allocator's unused buffers included; `None` if the device does not
/// tell.
pub fn allocated_bytes(device: &Device) -> Option<usize> {
    izwi_metal::metal_device(device).map(izwi_metal::allocated_bytes)
}

/// Whether the system takes back the memory of a device that rests: it does on a Mac, within seconds.
pub fn needs_beats(device: &Device) -> bool {
    device.is_metal()
}

/// Gives the device a little work and waits for it, so that what this process holds there stays resident.
///
/// # Errors
/// The device failed.
pub fn beat(device: &Device) -> Result<(), Error> {
    Ok(izwi_metal::metal_device(device).map_or(Ok(()), izwi_metal::beat)?)
}

/// Whether a codec decodes on other threads while a forward pass runs: on the CPU. Other devices run one queue.
pub fn decodes_in_parallel(device: &Device) -> bool {
    device.is_cpu()
}

/// Whether the launch of a kernel costs more than the work of a small one: few large passes are faster there.
pub fn is_launch_bound(device: &Device) -> bool {
    !device.is_cpu()
}

/// The device's name for logs, `/health` and `izwi_build_info`.
pub fn name(device: &Device) -> String {
    let opened = OPENED.lock().unwrap_or_else(PoisonError::into_inner);
    match opened.iter().find(|(_, known)| known.same_device(device)) {
        Some((choice, _)) => choice.to_string(),
        None => match device.location() {
            candle_core::DeviceLocation::Cpu => "cpu".to_owned(),
            candle_core::DeviceLocation::Cuda { gpu_id } => format!("cuda:{gpu_id}"),
            // Metal tells a number of its registry, not the index.
            candle_core::DeviceLocation::Metal { .. } => "metal".to_owned(),
        },
    }
}

/// `$IZWI_TEST_DEVICE`, or the CPU.
#[cfg(test)]
pub(crate) fn of_tests() -> Device {
    let name = std::env::var("IZWI_TEST_DEVICE").unwrap_or_else(|_| "cpu".to_owned());
    open(name.parse::<DeviceChoice>().unwrap()).unwrap()
}

#[cfg(test)]
mod tests {
    use candle_core::Tensor;

    use super::*;

    #[test]
    fn a_device_missing_from_the_build_names_its_feature() {
        if izwi_cuda::IS_BUILT_IN {
            return;
        }
        let error = open(DeviceChoice::Cuda(0)).unwrap_err().to_string();
        assert!(error.contains("--features cuda"), "{error}");
    }

    #[test]
    fn a_device_is_opened_once_and_has_its_own_name() {
        let device = of_tests();
        assert!(device.same_device(&of_tests()));
        let choice = std::env::var("IZWI_TEST_DEVICE").unwrap_or_else(|_| "cpu".to_owned());
        assert!(name(&device).starts_with(&choice), "{}", name(&device));
        beat(&device).unwrap();
        assert_eq!(needs_beats(&device), device.is_metal());
        free_unused(&device).unwrap();
        let one = Device::Cpu;
        assert_eq!((name(&one).as_str(), allocated_bytes(&one)), ("cpu", None));
        assert_eq!(at_work(|| at_work(|| 7)), 7);
    }

    #[test]
    fn tensors_of_one_thread_are_used_and_freed_on_others() {
        let device = of_tests();
        for round in 0..20u32 {
            let tensor = Tensor::full(round as f32, 1 << 16, &device).unwrap().affine(1.0, 1.0).unwrap();
            let sum = std::thread::spawn(move || tensor.mean_all().unwrap().to_scalar::<f32>().unwrap());
            assert_eq!(sum.join().unwrap(), round as f32 + 1.0);
            let tensor = Tensor::ones(1 << 16, candle_core::DType::F32, &device).unwrap();
            std::thread::spawn(move || drop(tensor)).join().unwrap();
        }
        free_unused(&device).unwrap();
        assert_ne!(free_cuda_bytes(&device), Some(0));
    }

    #[test]
    fn a_metal_gpu_is_described_without_opening_it() {
        match metal_gpu() {
            Some(gpu) => assert!(!gpu.name.is_empty() && gpu.working_set_bytes > 0, "{gpu:?}"),
            None => assert!(open(DeviceChoice::Metal(0)).is_err()),
        }
    }

    #[test]
    fn a_device_that_is_forgotten_is_opened_anew() {
        let device = of_tests();
        let before = Tensor::arange(0f32, 8.0, &device).unwrap();
        forget(&device);
        let again = of_tests();
        assert_eq!(device.same_device(&again), device.is_cpu());
        let choice = std::env::var("IZWI_TEST_DEVICE").unwrap_or_else(|_| "cpu".to_owned());
        assert!(name(&again).starts_with(&choice), "{}", name(&again));
        assert_eq!(before.to_vec1::<f32>().unwrap().len(), 8);
        assert_eq!(
            Tensor::arange(0f32, 8.0, &again).unwrap().sum_all().unwrap().to_scalar::<f32>().unwrap(),
            28.0
        );
    }

    /// Run with EMU_FAIL by the test below.
    #[test]
    fn sums_fail_or_not() {
        let device = of_tests();
        let sum = |device: &Device| {
            Tensor::ones(64, candle_core::DType::F32, device)?.affine(2.0, 0.0)?.sum_all()?.to_scalar::<f32>()
        };
        for _ in 0..3 {
            match sum(&device) {
                Ok(sum) => println!("sum {sum}"),
                Err(error) => {
                    println!("failed: {error}");
                    forget(&device);
                    println!("again {}", sum(&of_tests()).unwrap());
                }
            }
        }
    }

    #[test]
    fn work_that_the_gpu_gave_up_is_an_error_and_a_new_opening_works() {
        if std::env::var_os("EMU_OUT").is_none() {
            return;
        }
        let mut tests = std::process::Command::new(std::env::current_exe().unwrap());
        tests.args(["--exact", "device::tests::sums_fail_or_not", "--nocapture"]).env("EMU_FAIL", "2");
        let output = String::from_utf8(tests.output().unwrap().stdout).unwrap();
        assert!(output.contains("failed: ") && output.contains("GPU Timeout"), "{output}");
        assert!(output.contains("again 128") && output.contains("sum 128"), "{output}");
    }

    /// Run with EMU_FAIL by the test below: a step of several command buffers, of which the first fails.
    #[test]
    fn a_long_step_fails_or_not() {
        let device = of_tests();
        let step = || {
            let mut x = Tensor::zeros(8, candle_core::DType::F32, &device)?;
            for _ in 0..120 {
                x = x.affine(1.0, 1.0)?;
            }
            x.to_vec1::<f32>()
        };
        println!("read {:?}", at_work(step));
        at_work(|| {
            std::thread::spawn({
                let device = device.clone();
                move || println!("beside others {:?}", check(&device).is_ok())
            })
            .join()
            .unwrap()
        });
        println!("first check {:?}", check(&device).map_err(|error| error.to_string()));
        println!("second check {:?}", check(&device).map_err(|error| error.to_string()));
    }

    #[test]
    fn a_failed_command_buffer_before_the_last_fails_the_check_after_the_step() {
        if std::env::var_os("EMU_OUT").is_none() {
            return;
        }
        let run = |fails: &str| {
            let mut tests = std::process::Command::new(std::env::current_exe().unwrap());
            tests.args(["--exact", "device::tests::a_long_step_fails_or_not", "--nocapture"]);
            String::from_utf8(tests.env("EMU_FAIL", fails).output().unwrap().stdout).unwrap()
        };
        for fails in ["1", "2"] {
            let output = run(fails);
            assert!(output.contains("read Ok(["), "the read itself does not tell: {output}");
            assert!(output.contains("beside others true"), "{output}");
            assert!(output.contains("first check Err") && output.contains("GPU Timeout"), "{output}");
            assert!(output.contains("second check Ok"), "{output}");
        }
        let output = run("none");
        assert!(output.contains("read Ok([120.0") && output.contains("first check Ok"), "{output}");
    }

    #[test]
    fn auto_opens_a_device() {
        println!("opened {}", name(&open(DeviceChoice::Auto).unwrap()));
    }

    /// What a machine without Metal, and an older macOS, answers under emulation; elsewhere the variables say nothing.
    #[test]
    fn auto_falls_back_to_the_cpu_and_a_named_device_is_an_error_with_a_remedy() {
        if std::env::var_os("EMU_OUT").is_none() {
            return;
        }
        let run = |test: &str, variable: (&str, &str)| {
            let mut test_binary = std::process::Command::new(std::env::current_exe().unwrap());
            test_binary.args(["--exact", &format!("device::tests::{test}"), "--nocapture"]);
            let output = test_binary.env(variable.0, variable.1).output().unwrap();
            String::from_utf8(output.stdout).unwrap()
        };
        for (variable, reason) in
            [(("EMU_DEVICES", "0"), "no Metal device"), (("EMU_MACOS", "14"), "macOS 15 or later")]
        {
            assert!(run("auto_opens_a_device", variable).contains("opened cpu"), "{variable:?}");
            let told = run("a_named_metal_device_opens_or_tells_why", variable);
            assert!(told.contains(reason) && told.contains("use `cpu`"), "{variable:?}: {told}");
        }
        assert!(run("auto_opens_a_device", ("EMU_DEVICES", "1")).contains("opened metal:0"));
        let error = open(DeviceChoice::Metal(3)).unwrap_err().to_string();
        assert!(error.contains("1 Metal device; use metal:0"), "{error}");
    }

    #[test]
    fn a_named_metal_device_opens_or_tells_why() {
        match open(DeviceChoice::Metal(0)) {
            Ok(device) => assert_eq!(name(&device), "metal:0"),
            Err(error) => println!("{error}"),
        }
    }
}
