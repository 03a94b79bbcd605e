//! Compute pipelines of the kernels: all of a source at once, so that none is compiled in the middle of speech. Knows no
//! tensor.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock, PoisonError, RwLock};
use std::thread;

use candle_core::{MetalDevice, Result};
use candle_metal_kernels::metal::{ComputePipeline, Library};
use objc2::rc::{Retained, autoreleasepool};
use objc2_foundation::NSString;
use objc2_metal::{MTLCompileOptions, MTLDevice, MTLLibrary};

use crate::kernel::{Kernel, Source};

/// The pipelines of a source, by the names of its kernels.
type Pipelines = Arc<HashMap<String, ComputePipeline>>;
/// What is compiled for one device.
type Compiled = Arc<RwLock<HashMap<Source, Pipelines>>>;

/// Compiles all sources for `device`, side by side.
///
/// # Errors
/// A source does not compile on this system; the others are compiled.
pub fn prepare(device: &MetalDevice) -> Result<()> {
    let compiled = of_device(device);
    thread::scope(|scope| {
        let compile = |source| {
            scope.spawn({
                let compiled = &compiled;
                move || autoreleasepool(|_| pipelines(device, compiled, source).map(drop))
            })
        };
        let threads = Source::ALL.map(compile);
        let join = |thread: thread::ScopedJoinHandle<'_, Result<()>>| {
            thread.join().unwrap_or_else(|_| bail("compiling shaders ended abnormally"))
        };
        threads.into_iter().try_for_each(join)
    })
}

fn bail<T>(message: &str) -> Result<T> {
    Err(candle_core::Error::Msg(format!("metal: {message}")))
}

/// The pipeline of a kernel; its source is compiled at its first use on `device`, if it is not prepared.
///
/// # Errors
/// The source does not compile on this system, or lacks the kernel.
pub(crate) fn pipeline(device: &MetalDevice, kernel: Kernel) -> Result<ComputePipeline> {
    let Kernel(source, name) = kernel;
    match pipelines(device, &of_device(device), source)?.get(name) {
        Some(pipeline) => Ok(pipeline.clone()),
        None => bail(&format!("{source:?} has no kernel {name}")),
    }
}

fn of_device(device: &MetalDevice) -> Compiled {
    static DEVICES: OnceLock<RwLock<HashMap<String, Compiled>>> = OnceLock::new();
    let devices = DEVICES.get_or_init(Default::default);
    let key = format!("{:?}", device.id());
    let known = devices.read().unwrap_or_else(PoisonError::into_inner).get(&key).cloned();
    known.unwrap_or_else(|| {
        let mut devices = devices.write().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(devices.entry(key).or_default())
    })
}

fn pipelines(device: &MetalDevice, compiled: &Compiled, source: Source) -> Result<Pipelines> {
    if let Some(pipelines) = compiled.read().unwrap_or_else(PoisonError::into_inner).get(&source) {
        return Ok(Arc::clone(pipelines));
    }
    // Without the lock: sources compile side by side, and one that two threads want at once is compiled twice.
    let new = Arc::new(compile(device, source)?);
    let mut compiled = compiled.write().unwrap_or_else(PoisonError::into_inner);
    Ok(Arc::clone(compiled.entry(source).or_insert(new)))
}

fn compile(device: &MetalDevice, source: Source) -> Result<HashMap<String, ComputePipeline>> {
    let fault = |what: &str, error: &dyn std::fmt::Display| {
        candle_core::Error::Msg(format!("metal: {what} of {source:?} cannot be used: {error}"))
    };
    let device = device.metal_device();
    let text = NSString::from_str(source.text());
    let library = device.as_ref().newLibraryWithSource_options_error(&text, Some(&options()));
    let library = library.map_err(|error| fault("the source", &*error))?;
    let names = library.functionNames().to_vec();
    let library = Library::new(library);
    let pipeline = |name: Retained<NSString>| {
        let name = name.to_string();
        let function = library.get_function(&name, None).map_err(|error| fault(&name, &error))?;
        let pipeline = device.new_compute_pipeline_state_with_function(&function);
        Ok((name.clone(), pipeline.map_err(|error| fault(&name, &error))?))
    };
    names.into_iter().map(pipeline).collect()
}

/// Without fast math: the kernels compare with infinities, and sums keep their order.
fn options() -> Retained<MTLCompileOptions> {
    let options = MTLCompileOptions::new();
    #[allow(deprecated, reason = "its successor does not exist before macOS 15")]
    options.setFastMathEnabled(false);
    options
}
