//! Plain values, and objects that a program makes but that decide nothing here.
use objc2::rc::Retained;
use objc2::runtime::ProtocolObject;
use objc2_foundation::{NSError, NSString, NSURL};
use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::Mutex;

use crate::MTLDevice;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct MTLSize {
    pub width: usize,
    pub height: usize,
    pub depth: usize,
}
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MTLResourceOptions(pub usize);
impl MTLResourceOptions {
    pub const StorageModeShared: Self = Self(0);
    pub const StorageModeManaged: Self = Self(1 << 4);
    pub const StorageModePrivate: Self = Self(2 << 4);
    pub const HazardTrackingModeUntracked: Self = Self(1 << 8);
    pub const HazardTrackingModeTracked: Self = Self(2 << 8);
}
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MTLCommandBufferStatus {
    NotEnqueued,
    Enqueued,
    Committed,
    Scheduled,
    Completed,
    Error,
    #[doc(hidden)]
    Other,
}
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MTLDispatchType {
    Serial,
    Concurrent,
}
pub struct MTLBarrierScope;
impl MTLBarrierScope {
    pub const Buffers: Self = Self;
}
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MTLDataType {
    Float,
    UShort,
    ULong,
    Bool,
}
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MTLMathMode(pub isize);
impl MTLMathMode {
    pub const Safe: Self = Self(0);
    pub const Relaxed: Self = Self(1);
    pub const Fast: Self = Self(2);
}
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MTLMathFloatingPointFunctions(pub isize);
impl MTLMathFloatingPointFunctions {
    pub const Fast: Self = Self(0);
    pub const Precise: Self = Self(1);
}
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MTLLanguageVersion(pub usize);
impl MTLLanguageVersion {
    pub const Version3_0: Self = Self(3 << 16);
    pub const Version3_1: Self = Self((3 << 16) + 1);
    pub const Version3_2: Self = Self((3 << 16) + 2);
}
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct MTLGPUFamily(pub isize);
impl MTLGPUFamily {
    pub const Apple7: Self = Self(1007);
    pub const Apple8: Self = Self(1008);
    pub const Apple9: Self = Self(1009);
    pub const Apple10: Self = Self(1010);
    pub const Metal3: Self = Self(5001);
}
pub enum MTLCaptureDestination {
    DeveloperTools,
    GPUTraceDocument,
}

/// How a source is compiled. The emulator rounds each operation by itself whatever they say.
#[derive(Debug)]
pub struct MTLCompileOptions(());
impl MTLCompileOptions {
    pub fn new() -> Retained<Self> {
        Retained::from_value(Self(()))
    }
    pub fn setMathMode(&self, _: MTLMathMode) {}
    pub fn setMathFloatingPointFunctions(&self, _: MTLMathFloatingPointFunctions) {}
    pub fn setFastMathEnabled(&self, _: bool) {}
    pub fn setLanguageVersion(&self, _: MTLLanguageVersion) {}
    pub fn setPreserveInvariance(&self, _: bool) {}
}
/// Values of function constants: index, type, bytes.
pub struct MTLFunctionConstantValues(pub(crate) Mutex<Vec<(usize, MTLDataType, [u8; 8])>>);
impl MTLFunctionConstantValues {
    pub fn new() -> Retained<Self> {
        Retained::from_value(Self(Mutex::default()))
    }
    pub unsafe fn setConstantValue_type_atIndex(
        &self,
        value: NonNull<c_void>,
        kind: MTLDataType,
        index: usize,
    ) {
        let mut bytes = [0; 8];
        unsafe { std::ptr::copy_nonoverlapping(value.as_ptr().cast::<u8>(), bytes.as_mut_ptr(), size(kind)) };
        self.0.lock().unwrap().push((index, kind, bytes));
    }
}
pub(crate) fn size(kind: MTLDataType) -> usize {
    match kind {
        MTLDataType::Float => 4,
        MTLDataType::UShort => 2,
        MTLDataType::ULong => 8,
        MTLDataType::Bool => 1,
    }
}
pub struct MTLResidencySetDescriptor(());
impl MTLResidencySetDescriptor {
    pub fn new() -> Retained<Self> {
        Retained::from_value(Self(()))
    }
}
pub struct MTLCaptureDescriptor(());
impl MTLCaptureDescriptor {
    pub fn new() -> Retained<Self> {
        Retained::from_value(Self(()))
    }
    pub fn setDestination(&self, _: MTLCaptureDestination) {}
    pub fn set_capture_device(&self, _: &ProtocolObject<dyn MTLDevice>) {}
    pub fn setOutputURL(&self, _: Option<&NSURL>) {}
}
pub struct MTLCaptureManager(());
impl MTLCaptureManager {
    pub fn sharedCaptureManager() -> Retained<Self> {
        Retained::from_value(Self(()))
    }
    pub fn startCaptureWithDescriptor_error(
        &self,
        _: &MTLCaptureDescriptor,
    ) -> Result<(), Retained<NSError>> {
        Err(NSError::emulate("the emulator captures nothing"))
    }
}
pub struct MTLArchitecture(pub(crate) ());
impl MTLArchitecture {
    pub fn name(&self) -> Retained<NSString> {
        NSString::from_str("applegpu_g13s")
    }
}
