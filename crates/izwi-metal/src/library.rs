//! Compute pipelines of the kernels, compiled once for each device. Knows no tensor.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock, PoisonError, RwLock};

use candle_core::{MetalDevice, Result};
use candle_metal_kernels::metal::{ComputePipeline, Library};
use objc2_metal::MTLCompileOptions;

use crate::kernel::{Kernel, Source};

/// What is compiled for one device.
#[derive(Debug, Default)]
struct Compiled {
    libraries: HashMap<Source, Library>,
    pipelines: HashMap<Kernel, ComputePipeline>,
}

type Devices = HashMap<String, Arc<RwLock<Compiled>>>;

/// The pipeline of a kernel, compiled at its first use on `device`.
///
/// # Errors
/// The source does not compile on this system, or lacks the kernel.
pub(crate) fn pipeline(device: &MetalDevice, kernel: Kernel) -> Result<ComputePipeline> {
    static DEVICES: OnceLock<RwLock<Devices>> = OnceLock::new();
    let devices = DEVICES.get_or_init(Default::default);
    let key = format!("{:?}", device.id());
    let known = devices.read().unwrap_or_else(PoisonError::into_inner).get(&key).cloned();
    let compiled = known.unwrap_or_else(|| {
        let mut devices = devices.write().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(devices.entry(key).or_default())
    });
    if let Some(pipeline) = compiled.read().unwrap_or_else(PoisonError::into_inner).pipelines.get(&kernel) {
        return Ok(pipeline.clone());
    }
    compiled.write().unwrap_or_else(PoisonError::into_inner).add(device, kernel)
}

impl Compiled {
    fn add(&mut self, device: &MetalDevice, kernel: Kernel) -> Result<ComputePipeline> {
        if let Some(pipeline) = self.pipelines.get(&kernel) {
            return Ok(pipeline.clone());
        }
        let Kernel(source, name) = kernel;
        let fault = |error: &dyn std::fmt::Display| {
            candle_core::Error::Msg(format!("metal: kernel {name} of {source:?} cannot be used: {error}"))
        };
        let library = match self.libraries.get(&source) {
            Some(library) => library.clone(),
            None => {
                let compiled = device.metal_device().new_library_with_source(source.text(), Some(&options()));
                let library = compiled.map_err(|error| fault(&error))?;
                self.libraries.insert(source, library.clone());
                library
            }
        };
        let function = library.get_function(name, None).map_err(|error| fault(&error))?;
        let pipeline = device.metal_device().new_compute_pipeline_state_with_function(&function);
        let pipeline = pipeline.map_err(|error| fault(&error))?;
        self.pipelines.insert(kernel, pipeline.clone());
        Ok(pipeline)
    }
}

/// Without fast math: the kernels compare with infinities, and sums keep their order.
fn options() -> objc2::rc::Retained<MTLCompileOptions> {
    let options = MTLCompileOptions::new();
    #[allow(deprecated, reason = "its successor does not exist before macOS 15")]
    options.setFastMathEnabled(false);
    options
}
