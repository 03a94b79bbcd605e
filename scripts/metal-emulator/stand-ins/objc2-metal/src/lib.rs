//! Stand-in for objc2-metal: the part of Metal's compute API that candle uses, on the CPU.
//!
//! Encoders record; a command buffer runs when it is committed and completes when somebody waits for it. Environment:
//!
//! - `EMU_OUT`: folder of compiled shaders, see `shaders/build.py`. Needed.
//! - `EMU_ORDER=reverse`: dispatches between two barriers run last to first. A concurrent encoder promises no order.
//! - `EMU_THREADS=reverse`: threadgroups, simdgroups and lanes take turns last to first; `random` or `random:SEED` in an order
//!   of their own.
//! - `EMU_GUARD=1`: buffers end at a page that cannot be touched and begin as 0xff bytes, as do those of a program that
//!   relies on memory being zero.
//! - `EMU_COMPLETE=late`: the work of a command buffer runs when somebody waits for it, not at its commit.
//! - `EMU_EMPTY=buffer`: a buffer of no bytes is a buffer, where otherwise it is nil.
//! - `EMU_COUNTERS=FILE`: counters are appended to a file when the process ends, see `counters`.
//! - `EMU_ERRORS=report`: a fault is the error of its command buffer; otherwise it ends the process.
//! - `EMU_FAIL=N`: the N-th command buffer that is committed fails as with a time-out, and its work is not done.
//! - `EMU_MAX_THREADS=N`: threadgroups have N threads at most, as where a kernel takes many registers.
//! - `EMU_SKIP=NAME`: kernels whose names begin with it do nothing, as those of a broken GPU.
//! - `EMU_TRACE=1`: a line for every dispatch.
#![allow(non_snake_case, non_upper_case_globals, clippy::missing_safety_doc, clippy::new_ret_no_self)]
use block2::DynBlock;
use objc2::{rc::Retained, runtime::ProtocolObject};
use objc2_foundation::{NSArray, NSError, NSRange, NSString};
use std::ffi::{c_void, CString};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Mutex;

pub mod counters;
mod execute;
mod kernels;
mod memory;
mod types;

use counters::{add, Counter};
use execute::{
    finish, late, run, CbInner, Command, CommandBuffer, EncInner, Encoder, Function, Library, Nothing, Slot,
    QUEUE,
};
use memory::Bytes;
pub use types::*;

pub type Obj<P> = Retained<ProtocolObject<P>>;

struct Device;

pub trait MTLAllocation {}
pub trait MTLFence {}
pub trait MTLFunction {}
pub trait MTLResource {
    fn setLabel(&self, _: Option<&NSString>) {}
}
pub trait MTLBuffer {
    fn contents(&self) -> NonNull<c_void>;
    fn length(&self) -> usize;
    fn didModifyRange(&self, range: NSRange);
}
impl MTLResource for ProtocolObject<dyn MTLBuffer> {}
impl MTLBuffer for ProtocolObject<dyn MTLBuffer> {
    fn contents(&self) -> NonNull<c_void> {
        add(Counter::contents, 1);
        let b: &Bytes = self.state();
        assert!(!b.private, "contents of a private buffer");
        NonNull::new(b.start.cast()).unwrap()
    }
    fn length(&self) -> usize {
        self.state::<Bytes>().len
    }
    fn didModifyRange(&self, r: NSRange) {
        assert!(r.location + r.length <= self.length());
    }
}
/// Whether a buffer of no bytes is one. What Apple's drivers answer is not documented.
fn empty_buffers() -> bool {
    std::env::var("EMU_EMPTY").is_ok_and(|v| v == "buffer")
}
pub trait MTLDevice {
    fn name(&self) -> Retained<NSString>;
    fn registryID(&self) -> u64;
    fn supportsFamily(&self, family: MTLGPUFamily) -> bool;
    fn hasUnifiedMemory(&self) -> bool;
    fn maxThreadsPerThreadgroup(&self) -> MTLSize;
    fn maxThreadgroupMemoryLength(&self) -> usize;
    fn maxBufferLength(&self) -> usize;
    fn newBufferWithLength_options(&self, length: usize, o: MTLResourceOptions)
        -> Option<Obj<dyn MTLBuffer>>;
    unsafe fn newBufferWithBytes_length_options(
        &self,
        p: NonNull<c_void>,
        length: usize,
        o: MTLResourceOptions,
    ) -> Option<Obj<dyn MTLBuffer>>;
    fn newLibraryWithSource_options_error(
        &self,
        source: &NSString,
        o: Option<&MTLCompileOptions>,
    ) -> Result<Obj<dyn MTLLibrary>, Retained<NSError>>;
    fn newComputePipelineStateWithFunction_error(
        &self,
        f: &ProtocolObject<dyn MTLFunction>,
    ) -> Result<Obj<dyn MTLComputePipelineState>, Retained<NSError>>;
    fn newCommandQueue(&self) -> Option<Obj<dyn MTLCommandQueue>>;
    fn recommendedMaxWorkingSetSize(&self) -> u64;
    fn currentAllocatedSize(&self) -> usize;
    fn architecture(&self) -> Retained<MTLArchitecture>;
    fn newFence(&self) -> Option<Obj<dyn MTLFence>>;
    fn newResidencySetWithDescriptor_error(
        &self,
        d: &MTLResidencySetDescriptor,
    ) -> Result<Obj<dyn MTLResidencySet>, Retained<NSError>>;
}
/// One, or none where `EMU_DEVICES` is 0.
fn devices() -> Vec<Obj<dyn MTLDevice>> {
    counters::start();
    let none = std::env::var("EMU_DEVICES").is_ok_and(|count| count == "0");
    if none { Vec::new() } else { vec![ProtocolObject::emulate(Device)] }
}
pub fn MTLCreateSystemDefaultDevice() -> Option<Obj<dyn MTLDevice>> {
    devices().pop()
}
pub fn MTLCopyAllDevices() -> Retained<NSArray<ProtocolObject<dyn MTLDevice>>> {
    Retained::from_value(NSArray(devices()))
}
impl MTLDevice for ProtocolObject<dyn MTLDevice> {
    fn name(&self) -> Retained<NSString> {
        NSString::from_str("Emulated Metal")
    }
    fn supportsFamily(&self, family: MTLGPUFamily) -> bool {
        family <= MTLGPUFamily::Apple7 || family == MTLGPUFamily::Metal3
    }
    fn hasUnifiedMemory(&self) -> bool {
        true
    }
    fn maxThreadsPerThreadgroup(&self) -> MTLSize {
        MTLSize { width: execute::MAX_THREADS, height: execute::MAX_THREADS, depth: execute::MAX_THREADS }
    }
    fn maxThreadgroupMemoryLength(&self) -> usize {
        execute::MAX_THREADGROUP_MEMORY
    }
    fn maxBufferLength(&self) -> usize {
        8 << 30
    }
    fn registryID(&self) -> u64 {
        1
    }
    fn newBufferWithLength_options(
        &self,
        length: usize,
        o: MTLResourceOptions,
    ) -> Option<Obj<dyn MTLBuffer>> {
        if length == 0 && !empty_buffers() {
            return None;
        }
        add(Counter::buffers, 1);
        add(Counter::buffer_bytes, length);
        Some(ProtocolObject::emulate(Bytes::new(length, o.0 & 0xf0 == 2 << 4)))
    }
    unsafe fn newBufferWithBytes_length_options(
        &self,
        p: NonNull<c_void>,
        length: usize,
        o: MTLResourceOptions,
    ) -> Option<Obj<dyn MTLBuffer>> {
        if length == 0 && !empty_buffers() {
            return None;
        }
        add(Counter::uploads, 1);
        add(Counter::upload_bytes, length);
        let b: Obj<dyn MTLBuffer> = ProtocolObject::emulate(Bytes::new(length, false));
        let _ = o;
        unsafe { std::ptr::copy_nonoverlapping(p.as_ptr().cast::<u8>(), b.state::<Bytes>().start, length) };
        Some(b)
    }
    fn newLibraryWithSource_options_error(
        &self,
        source: &NSString,
        _: Option<&MTLCompileOptions>,
    ) -> Result<Obj<dyn MTLLibrary>, Retained<NSError>> {
        add(Counter::libraries, 1);
        let lib = kernels::of_source(source.as_str()).map_err(NSError::emulate)?;
        Ok(ProtocolObject::emulate(Library { lib }))
    }
    fn newComputePipelineStateWithFunction_error(
        &self,
        f: &ProtocolObject<dyn MTLFunction>,
    ) -> Result<Obj<dyn MTLComputePipelineState>, Retained<NSError>> {
        add(Counter::pipelines, 1);
        let f: &Function = f.state();
        Ok(ProtocolObject::emulate(Function {
            lib: f.lib,
            kernel: f.kernel,
            name: f.name.clone(),
            constants: f.constants.clone(),
        }))
    }
    fn newCommandQueue(&self) -> Option<Obj<dyn MTLCommandQueue>> {
        Some(ProtocolObject::emulate(Nothing))
    }
    fn recommendedMaxWorkingSetSize(&self) -> u64 {
        16 << 30
    }
    fn currentAllocatedSize(&self) -> usize {
        counters::allocated_bytes() as usize
    }
    fn architecture(&self) -> Retained<MTLArchitecture> {
        Retained::from_value(MTLArchitecture(()))
    }
    fn newFence(&self) -> Option<Obj<dyn MTLFence>> {
        Some(ProtocolObject::emulate(Nothing))
    }
    fn newResidencySetWithDescriptor_error(
        &self,
        _: &MTLResidencySetDescriptor,
    ) -> Result<Obj<dyn MTLResidencySet>, Retained<NSError>> {
        Ok(ProtocolObject::emulate(Resident::default()))
    }
}
pub trait MTLResidencySet {
    fn requestResidency(&self) {}
    fn addAllocation(&self, _: &ProtocolObject<dyn MTLAllocation>);
    fn removeAllocation(&self, _: &ProtocolObject<dyn MTLAllocation>);
    fn commit(&self) {}
    fn allocationCount(&self) -> usize;
}
type Resident = Mutex<std::collections::HashSet<usize>>;
impl MTLResidencySet for ProtocolObject<dyn MTLResidencySet> {
    fn addAllocation(&self, a: &ProtocolObject<dyn MTLAllocation>) {
        self.state::<Resident>().lock().unwrap().insert(a as *const _ as usize);
    }
    fn removeAllocation(&self, a: &ProtocolObject<dyn MTLAllocation>) {
        self.state::<Resident>().lock().unwrap().remove(&(a as *const _ as usize));
    }
    fn allocationCount(&self) -> usize {
        self.state::<Resident>().lock().unwrap().len()
    }
}
pub trait MTLLibrary {
    fn functionNames(&self) -> Retained<NSArray<NSString>>;
    fn newFunctionWithName(&self, n: &NSString) -> Option<Obj<dyn MTLFunction>>;
    fn newFunctionWithName_constantValues_error(
        &self,
        n: &NSString,
        c: &MTLFunctionConstantValues,
    ) -> Result<Obj<dyn MTLFunction>, Retained<NSError>>;
}
impl MTLLibrary for ProtocolObject<dyn MTLLibrary> {
    fn functionNames(&self) -> Retained<NSArray<NSString>> {
        let names = self.state::<Library>().lib.names();
        Retained::from_value(NSArray(names.iter().map(|name| NSString::from_str(name)).collect()))
    }
    fn newFunctionWithName(&self, n: &NSString) -> Option<Obj<dyn MTLFunction>> {
        let lib = self.state::<Library>().lib;
        let c = CString::new(n.as_str()).unwrap();
        let kernel = unsafe { (lib.find)(c.as_ptr()) };
        (!kernel.is_null()).then(|| {
            ProtocolObject::emulate(Function {
                lib,
                kernel: kernel as usize,
                name: n.to_string(),
                constants: vec![],
            })
        })
    }
    fn newFunctionWithName_constantValues_error(
        &self,
        n: &NSString,
        c: &MTLFunctionConstantValues,
    ) -> Result<Obj<dyn MTLFunction>, Retained<NSError>> {
        let f = self.newFunctionWithName(n).ok_or_else(|| NSError::emulate(format!("no function {n}")))?;
        let f: &Function = f.state();
        Ok(ProtocolObject::emulate(Function {
            lib: f.lib,
            kernel: f.kernel,
            name: f.name.clone(),
            constants: c.0.lock().unwrap().clone(),
        }))
    }
}
pub trait MTLComputePipelineState {
    fn maxTotalThreadsPerThreadgroup(&self) -> usize;
    fn threadExecutionWidth(&self) -> usize;
}
impl MTLComputePipelineState for ProtocolObject<dyn MTLComputePipelineState> {
    fn maxTotalThreadsPerThreadgroup(&self) -> usize {
        execute::most_threads()
    }
    fn threadExecutionWidth(&self) -> usize {
        32
    }
}
pub trait MTLCommandQueue {
    fn commandBuffer(&self) -> Option<Obj<dyn MTLCommandBuffer>>;
    fn device(&self) -> Obj<dyn MTLDevice>;
    fn addResidencySet(&self, _: &ProtocolObject<dyn MTLResidencySet>) {}
    fn setLabel(&self, _: Option<&NSString>) {}
}
impl MTLCommandQueue for ProtocolObject<dyn MTLCommandQueue> {
    fn commandBuffer(&self) -> Option<Obj<dyn MTLCommandBuffer>> {
        add(Counter::command_buffers, 1);
        counters::autoreleased();
        Some(ProtocolObject::emulate(CommandBuffer {
            inner: Mutex::new(CbInner {
                ran: false,
                commands: vec![],
                handlers: vec![],
                status: MTLCommandBufferStatus::NotEnqueued,
                error: None,
            }),
        }))
    }
    fn device(&self) -> Obj<dyn MTLDevice> {
        ProtocolObject::emulate(Device)
    }
}
pub trait MTLCommandBuffer {
    fn computeCommandEncoderWithDispatchType(
        &self,
        t: MTLDispatchType,
    ) -> Option<Obj<dyn MTLComputeCommandEncoder>>;
    fn blitCommandEncoder(&self) -> Option<Obj<dyn MTLBlitCommandEncoder>>;
    fn commit(&self);
    fn enqueue(&self) {}
    fn setLabel(&self, _: Option<&NSString>) {}
    fn status(&self) -> MTLCommandBufferStatus;
    fn error(&self) -> Option<Retained<NSError>>;
    fn waitUntilCompleted(&self);
    fn device(&self) -> Obj<dyn MTLDevice>;
    unsafe fn addCompletedHandler(&self, block: *mut DynBlock<NonNull<ProtocolObject<dyn MTLCommandBuffer>>>);
}
impl MTLCommandBuffer for ProtocolObject<dyn MTLCommandBuffer> {
    fn computeCommandEncoderWithDispatchType(
        &self,
        _: MTLDispatchType,
    ) -> Option<Obj<dyn MTLComputeCommandEncoder>> {
        add(Counter::compute_encoders, 1);
        counters::autoreleased();
        Some(ProtocolObject::emulate(encoder(self)))
    }
    fn blitCommandEncoder(&self) -> Option<Obj<dyn MTLBlitCommandEncoder>> {
        add(Counter::blit_encoders, 1);
        counters::autoreleased();
        Some(ProtocolObject::emulate(encoder(self)))
    }
    fn commit(&self) {
        let cb: &CommandBuffer = self.state();
        {
            let mut i = cb.inner.lock().unwrap();
            assert!(i.status == MTLCommandBufferStatus::NotEnqueued, "committed twice");
            i.status = MTLCommandBufferStatus::Committed;
            add(Counter::commits, 1);
            if fails() {
                i.commands.clear();
                i.error = Some(TIMEOUT.to_owned());
            }
            if i.commands.iter().all(|c| matches!(c, Command::Barrier)) {
                add(Counter::empty_commits, 1);
            }
        }
        let mut queue = QUEUE.lock().unwrap_or_else(|e| e.into_inner());
        queue.push_back(unsafe { Retained::again(self) });
        if !late() {
            for cb in queue.iter() {
                run(cb);
            }
        }
    }
    fn waitUntilCompleted(&self) {
        add(Counter::waits, 1);
        let mut queue = QUEUE.lock().unwrap_or_else(|e| e.into_inner());
        assert!(
            self.status() != MTLCommandBufferStatus::NotEnqueued,
            "waiting for a command buffer that was not committed"
        );
        while self.status() == MTLCommandBufferStatus::Committed {
            let cb = queue.pop_front().expect("a committed buffer is in the queue");
            run(&cb);
            finish(&cb);
        }
    }
    fn status(&self) -> MTLCommandBufferStatus {
        self.state::<CommandBuffer>().inner.lock().unwrap().status
    }
    fn error(&self) -> Option<Retained<NSError>> {
        self.state::<CommandBuffer>().inner.lock().unwrap().error.clone().map(NSError::emulate)
    }
    fn device(&self) -> Obj<dyn MTLDevice> {
        ProtocolObject::emulate(Device)
    }
    unsafe fn addCompletedHandler(
        &self,
        block: *mut DynBlock<NonNull<ProtocolObject<dyn MTLCommandBuffer>>>,
    ) {
        self.state::<CommandBuffer>().inner.lock().unwrap().handlers.push(unsafe { (*block).clone() });
    }
}
/// What macOS says of a command buffer that the watchdog of the GPU ended.
const TIMEOUT: &str = "Caused GPU Timeout Error (00000002:kIOGPUCommandBufferCallbackErrorTimeout)";
/// Whether the command buffer that is being committed is to fail.
fn fails() -> bool {
    static COMMITTED: AtomicUsize = AtomicUsize::new(1);
    let number = COMMITTED.fetch_add(1, Ordering::Relaxed);
    std::env::var("EMU_FAIL").is_ok_and(|wanted| wanted == number.to_string())
}
fn encoder(cb: &ProtocolObject<dyn MTLCommandBuffer>) -> Encoder {
    Encoder {
        cb: unsafe { Retained::again(cb) },
        s: Mutex::new(EncInner {
            pipeline: None,
            slots: vec![Slot::None; 31],
            tg: vec![0; 31],
            ended: false,
        }),
    }
}
impl Encoder {
    fn push(&self, c: Command) {
        assert!(!self.s.lock().unwrap().ended, "encoding after endEncoding");
        self.cb.state::<CommandBuffer>().inner.lock().unwrap().commands.push(c);
    }
    fn dispatch(&self, grid: MTLSize, group: MTLSize) {
        let s = self.s.lock().unwrap();
        let c = Command::Dispatch {
            pipeline: s.pipeline.clone().expect("no pipeline state"),
            slots: s.slots.clone(),
            tg: s.tg.clone(),
            grid,
            group,
        };
        let bytes = s.slots.iter().map(Slot::len).sum();
        let f: &Function = s.pipeline.as_ref().unwrap().state();
        let threads = grid.width.saturating_mul(grid.height).saturating_mul(grid.depth);
        counters::kernel(&f.name, threads, bytes);
        drop(s);
        self.push(c);
    }
}
pub trait MTLCommandEncoder {
    fn setLabel(&self, _: Option<&NSString>) {}
    fn endEncoding(&self);
    fn pushDebugGroup(&self, _: &NSString) {}
    fn popDebugGroup(&self) {}
}
impl MTLCommandEncoder for ProtocolObject<dyn MTLComputeCommandEncoder> {
    fn endEncoding(&self) {
        let e: &Encoder = self.state();
        e.push(Command::Barrier);
        e.s.lock().unwrap().ended = true;
    }
}
impl MTLCommandEncoder for ProtocolObject<dyn MTLBlitCommandEncoder> {
    fn endEncoding(&self) {
        let e: &Encoder = self.state();
        e.push(Command::Barrier);
        e.s.lock().unwrap().ended = true;
    }
}
pub trait MTLComputeCommandEncoder {
    unsafe fn setThreadgroupMemoryLength_atIndex(&self, n: usize, i: usize);
    fn dispatchThreads_threadsPerThreadgroup(&self, g: MTLSize, t: MTLSize);
    fn dispatchThreadgroups_threadsPerThreadgroup(&self, g: MTLSize, t: MTLSize);
    unsafe fn setBuffer_offset_atIndex(&self, b: Option<&ProtocolObject<dyn MTLBuffer>>, o: usize, i: usize);
    unsafe fn setBytes_length_atIndex(&self, p: NonNull<c_void>, n: usize, i: usize);
    fn setComputePipelineState(&self, p: &ProtocolObject<dyn MTLComputePipelineState>);
    fn memoryBarrierWithScope(&self, s: MTLBarrierScope);
    fn waitForFence(&self, _: &ProtocolObject<dyn MTLFence>) {
        add(Counter::fence_waits, 1);
    }
    fn updateFence(&self, _: &ProtocolObject<dyn MTLFence>) {}
}
impl MTLComputeCommandEncoder for ProtocolObject<dyn MTLComputeCommandEncoder> {
    unsafe fn setThreadgroupMemoryLength_atIndex(&self, n: usize, i: usize) {
        self.state::<Encoder>().s.lock().unwrap().tg[i] = n;
    }
    fn dispatchThreads_threadsPerThreadgroup(&self, g: MTLSize, t: MTLSize) {
        self.state::<Encoder>().dispatch(g, t);
    }
    fn dispatchThreadgroups_threadsPerThreadgroup(&self, g: MTLSize, t: MTLSize) {
        self.state::<Encoder>().dispatch(
            MTLSize {
                width: g.width.saturating_mul(t.width),
                height: g.height.saturating_mul(t.height),
                depth: g.depth.saturating_mul(t.depth),
            },
            t,
        );
    }
    unsafe fn setBuffer_offset_atIndex(&self, b: Option<&ProtocolObject<dyn MTLBuffer>>, o: usize, i: usize) {
        self.state::<Encoder>().s.lock().unwrap().slots[i] = match b {
            Some(b) => {
                assert!(o <= b.length(), "offset {o} of a buffer of {}", b.length());
                Slot::Buffer(unsafe { Retained::again(b) }, o)
            }
            None => Slot::None,
        };
    }
    unsafe fn setBytes_length_atIndex(&self, p: NonNull<c_void>, n: usize, i: usize) {
        add(Counter::set_bytes, 1);
        add(Counter::set_bytes_bytes, n);
        assert!(n > 0 && n <= 4096, "setBytes of {n} bytes");
        let mut v = vec![0u64; n.div_ceil(8)];
        unsafe { std::ptr::copy_nonoverlapping(p.as_ptr().cast::<u8>(), v.as_mut_ptr().cast::<u8>(), n) };
        self.state::<Encoder>().s.lock().unwrap().slots[i] = Slot::Bytes(v, n);
    }
    fn setComputePipelineState(&self, p: &ProtocolObject<dyn MTLComputePipelineState>) {
        self.state::<Encoder>().s.lock().unwrap().pipeline = Some(unsafe { Retained::again(p) });
    }
    fn memoryBarrierWithScope(&self, _: MTLBarrierScope) {
        add(Counter::barriers, 1);
        self.state::<Encoder>().push(Command::Barrier);
    }
}
pub trait MTLBlitCommandEncoder {
    fn waitForFence(&self, _: &ProtocolObject<dyn MTLFence>) {
        add(Counter::fence_waits, 1);
    }
    fn updateFence(&self, _: &ProtocolObject<dyn MTLFence>) {}
    unsafe fn copyFromBuffer_sourceOffset_toBuffer_destinationOffset_size(
        &self,
        s: &ProtocolObject<dyn MTLBuffer>,
        so: usize,
        d: &ProtocolObject<dyn MTLBuffer>,
        dof: usize,
        n: usize,
    );
    fn fillBuffer_range_value(&self, b: &ProtocolObject<dyn MTLBuffer>, r: NSRange, v: u8);
}
impl MTLBlitCommandEncoder for ProtocolObject<dyn MTLBlitCommandEncoder> {
    unsafe fn copyFromBuffer_sourceOffset_toBuffer_destinationOffset_size(
        &self,
        s: &ProtocolObject<dyn MTLBuffer>,
        so: usize,
        d: &ProtocolObject<dyn MTLBuffer>,
        dof: usize,
        n: usize,
    ) {
        assert!(so + n <= s.length() && dof + n <= d.length(), "blit outside of its buffers");
        add(Counter::copies, 1);
        add(Counter::copy_bytes, n);
        self.state::<Encoder>().push(Command::Copy {
            src: unsafe { Retained::again(s) },
            so,
            dst: unsafe { Retained::again(d) },
            d: dof,
            n,
        });
    }
    fn fillBuffer_range_value(&self, b: &ProtocolObject<dyn MTLBuffer>, r: NSRange, value: u8) {
        assert!(r.location + r.length <= b.length());
        add(Counter::fills, 1);
        add(Counter::fill_bytes, r.length);
        self.state::<Encoder>().push(Command::Fill {
            dst: unsafe { Retained::again(b) },
            at: r.location,
            n: r.length,
            value,
        });
    }
}
