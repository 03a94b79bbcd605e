//! What `driver` is without Metal: nothing can be opened.

use candle_core::{DType, MetalDevice, Result, Shape, Tensor, bail};

use crate::Gpu;
use crate::kernel::{Grid, Kernel};

#[derive(Clone, Copy)]
enum Never {}

pub(crate) struct Encoder<'a>(Never, std::marker::PhantomData<&'a ()>);

impl<'a> Encoder<'a> {
    pub(crate) fn open(_: &'a MetalDevice) -> Result<Self> {
        missing()
    }

    pub(crate) fn choose(&self, _: &MetalDevice, _: Kernel, _: usize) -> Result<()> {
        match self.0 {}
    }

    pub(crate) fn read(&self, _: usize, _: &Tensor) -> Result<()> {
        match self.0 {}
    }

    pub(crate) fn write(&self, _: usize, _: &Tensor) -> Result<()> {
        match self.0 {}
    }

    pub(crate) fn copy(&self, _: usize, _: &[u32]) {
        match self.0 {}
    }

    pub(crate) fn launch(&self, _: Grid) {
        match self.0 {}
    }
}

// As the encoder of a device, which ends when it is dropped.
impl Drop for Encoder<'_> {
    fn drop(&mut self) {
        match self.0 {}
    }
}

pub(crate) fn empty(_: &MetalDevice, _: impl Into<Shape>, _: DType) -> Result<Tensor> {
    missing()
}

pub(crate) fn upload(_: &MetalDevice, _: &[u8]) -> Result<Tensor> {
    missing()
}

fn missing<T>() -> Result<T> {
    bail!("this build has no Metal")
}

/// As of a device, which does not exist.
///
/// # Errors
/// Always.
pub fn prepare(_: &MetalDevice) -> Result<()> {
    missing()
}

/// As of a device, which does not exist.
///
/// # Errors
/// Always.
pub fn finish(_: &MetalDevice) -> Result<()> {
    missing()
}

/// As of a device, which does not exist.
///
/// # Errors
/// Always.
pub fn check(_: &MetalDevice) -> Result<()> {
    missing()
}

/// Of no tensor.
#[derive(Debug, Default)]
pub struct OwnBuffers(());

impl OwnBuffers {
    /// # Errors
    /// Always.
    pub fn empty(&mut self, _: &MetalDevice, _: impl Into<Shape>, _: DType) -> Result<Tensor> {
        missing()
    }
}

/// None: nobody asks.
pub fn fault(_: usize) -> Option<String> {
    None
}

/// None.
pub fn gpu() -> Option<Gpu> {
    None
}

/// Runs `work`.
pub fn with_autorelease_pool<T>(work: impl FnOnce() -> T) -> T {
    work()
}

/// None.
pub fn allocated_bytes(_: &MetalDevice) -> usize {
    0
}
