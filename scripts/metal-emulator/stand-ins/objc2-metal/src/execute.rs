//! What was encoded, and how it runs.
use block2::DynBlock;
use objc2::runtime::ProtocolObject;
use std::collections::VecDeque;
use std::ffi::{c_int, c_uint, c_void};
use std::ptr::NonNull;
use std::sync::Mutex;

use crate::kernels::{Argument, Lib, RawKernel, BUFFER, THREADGROUP_MEMORY};
use crate::memory::Bytes;
use crate::types::{size, MTLCommandBufferStatus, MTLDataType, MTLSize};
use crate::{MTLBuffer, MTLCommandBuffer, MTLComputePipelineState, Obj};

pub(crate) struct Library {
    pub(crate) lib: Lib,
}
pub(crate) struct Function {
    pub(crate) lib: Lib,
    pub(crate) kernel: usize,
    pub(crate) name: String,
    pub(crate) constants: Vec<(usize, MTLDataType, [u8; 8])>,
}
/// Threads of a threadgroup, at most.
pub(crate) const MAX_THREADS: usize = 1024;
/// Threads that a threadgroup of any pipeline may have: fewer where a kernel takes many registers.
pub(crate) fn most_threads() -> usize {
    let asked = std::env::var("EMU_MAX_THREADS").ok().and_then(|n| n.parse().ok());
    asked.unwrap_or(MAX_THREADS).min(MAX_THREADS)
}
/// Bytes of threadgroup memory, at most.
pub(crate) const MAX_THREADGROUP_MEMORY: usize = 32 << 10;
/// What an argument of a kernel is bound to.
#[derive(Clone)]
pub(crate) enum Slot {
    None,
    Buffer(Obj<dyn MTLBuffer>, usize),
    Bytes(Vec<u64>, usize),
}
impl Slot {
    /// Bytes that the kernel may touch.
    pub(crate) fn len(&self) -> usize {
        match self {
            Slot::None => 0,
            Slot::Buffer(b, o) => b.length() - o,
            Slot::Bytes(_, n) => *n,
        }
    }
}
pub(crate) enum Command {
    Dispatch {
        pipeline: Obj<dyn MTLComputePipelineState>,
        slots: Vec<Slot>,
        tg: Vec<usize>,
        grid: MTLSize,
        group: MTLSize,
    },
    Barrier,
    Copy {
        src: Obj<dyn MTLBuffer>,
        so: usize,
        dst: Obj<dyn MTLBuffer>,
        d: usize,
        n: usize,
    },
    Fill {
        dst: Obj<dyn MTLBuffer>,
        at: usize,
        n: usize,
        value: u8,
    },
}
pub(crate) struct CommandBuffer {
    pub(crate) inner: Mutex<CbInner>,
}
pub(crate) struct CbInner {
    pub(crate) ran: bool,
    pub(crate) commands: Vec<Command>,
    pub(crate) handlers: Vec<DynBlock<NonNull<ProtocolObject<dyn MTLCommandBuffer>>>>,
    pub(crate) status: MTLCommandBufferStatus,
    pub(crate) error: Option<String>,
}
unsafe impl Send for CbInner {}
pub(crate) struct Encoder {
    pub(crate) cb: Obj<dyn MTLCommandBuffer>,
    pub(crate) s: Mutex<EncInner>,
}
pub(crate) struct EncInner {
    pub(crate) pipeline: Option<Obj<dyn MTLComputePipelineState>>,
    pub(crate) slots: Vec<Slot>,
    pub(crate) tg: Vec<usize>,
    pub(crate) ended: bool,
}
/// An object without a state.
pub(crate) struct Nothing;

/// Committed and not yet waited for, in order. As on a GPU that is behind the CPU, a buffer is completed only when somebody
/// waits for it or for a later one. Its work runs at the commit, or with EMU_COMPLETE=late not before the wait.
pub(crate) static QUEUE: Mutex<VecDeque<Obj<dyn MTLCommandBuffer>>> = Mutex::new(VecDeque::new());
pub(crate) fn late() -> bool {
    std::env::var("EMU_COMPLETE").is_ok_and(|v| v == "late")
}
/// A fault ends the process, as Metal's validation does: a program may not look at the error of each command buffer. With
/// EMU_ERRORS=report it is the command buffer's error.
fn reports() -> bool {
    std::env::var("EMU_ERRORS").is_ok_and(|v| v == "report")
}
pub(crate) fn run(cb: &Obj<dyn MTLCommandBuffer>) {
    let state: &CommandBuffer = cb.state();
    let commands = {
        let mut i = state.inner.lock().unwrap();
        if i.ran {
            return;
        }
        i.ran = true;
        std::mem::take(&mut i.commands)
    };
    let error = execute(commands).err();
    if error.is_none() {
        return;
    }
    if let Some(e) = &error {
        eprintln!("emulated Metal: {e}");
        if !reports() {
            std::process::abort();
        }
    }
    state.inner.lock().unwrap().error = error;
}
pub(crate) fn finish(cb: &Obj<dyn MTLCommandBuffer>) {
    let state: &CommandBuffer = cb.state();
    let handlers = {
        let mut i = state.inner.lock().unwrap();
        i.status =
            if i.error.is_some() { MTLCommandBufferStatus::Error } else { MTLCommandBufferStatus::Completed };
        std::mem::take(&mut i.handlers)
    };
    for h in handlers {
        h(NonNull::from(&**cb));
    }
}
// An argument whose function constant is false: the GPU reads nothing harmful there (gemm does read addmm_params)
static ZEROS: [u64; 512] = [0; 512];
static GPU: Mutex<()> = Mutex::new(());
/// What a concurrent encoder allows: dispatches between two barriers in any order. EMU_ORDER=reverse runs them backwards.
fn execute(commands: Vec<Command>) -> Result<(), String> {
    let _one_at_a_time = GPU.lock().unwrap_or_else(|e| e.into_inner());
    let reverse = std::env::var("EMU_ORDER").is_ok_and(|v| v == "reverse");
    for part in commands.split(|c| matches!(c, Command::Barrier)) {
        if reverse && part.iter().all(|c| matches!(c, Command::Dispatch { .. })) {
            for c in part.iter().rev() {
                one(c)?;
            }
        } else {
            for c in part {
                one(c)?;
            }
        }
    }
    Ok(())
}
fn start(b: &Obj<dyn MTLBuffer>) -> *mut u8 {
    b.state::<Bytes>().start
}
fn one(c: &Command) -> Result<(), String> {
    match c {
        Command::Barrier => {}
        Command::Copy { src, so, dst, d, n } => unsafe {
            std::ptr::copy(start(src).add(*so), start(dst).add(*d), *n)
        },
        Command::Fill { dst, at, n, value } => unsafe {
            std::ptr::write_bytes(start(dst).add(*at), *value, *n)
        },
        Command::Dispatch { pipeline, slots, tg, grid, group } => {
            let f: &Function = pipeline.state();
            if std::env::var("EMU_SKIP").is_ok_and(|name| f.name.starts_with(&name)) {
                return Ok(());
            }
            dispatch(f, slots, tg, *grid, *group).map_err(|fault| format!("{}: {fault}", f.name))?;
        }
    }
    Ok(())
}
fn dispatch(f: &Function, slots: &[Slot], tg: &[usize], grid: MTLSize, group: MTLSize) -> Result<(), String> {
    check_sizes(grid, group)?;
    f.lib.fault();
    unsafe { (f.lib.reset_constants)() };
    for (n, kind, bytes) in &f.constants {
        if !unsafe { (f.lib.constant)(*n as c_int, bytes.as_ptr().cast(), size(*kind) as c_uint) } {
            return Err(format!(
                "function constant {n} is set as {kind:?}, which has another size than its type"
            ));
        }
    }
    let buffers = bound_buffers(f, slots, tg)?;
    let memory: Vec<Vec<u128>> = tg.iter().map(|n| vec![0; n.div_ceil(16)]).collect();
    let memory: Vec<*mut c_void> = memory.iter().map(|m| m.as_ptr() as *mut c_void).collect();
    let as_c = |s: MTLSize| [s.width as c_uint, s.height as c_uint, s.depth as c_uint];
    let (grid, group) = (as_c(grid), as_c(group));
    let began = std::time::Instant::now();
    unsafe {
        (f.lib.dispatch)(
            f.kernel as *mut RawKernel,
            buffers.as_ptr(),
            memory.as_ptr(),
            tg.as_ptr(),
            tg.len() as c_int,
            grid.as_ptr(),
            group.as_ptr(),
        )
    };
    if std::env::var_os("EMU_TRACE").is_some() {
        eprintln!(
            "{} {grid:?} threads in groups of {group:?}: {:.0} us",
            f.name,
            began.elapsed().as_secs_f64() * 1e6
        );
    }
    f.lib.fault().map_or(Ok(()), Err)
}
/// A grid is in threads, each of whose positions has 32 bits.
fn check_sizes(grid: MTLSize, group: MTLSize) -> Result<(), String> {
    let sides = [grid.width, grid.height, grid.depth];
    let threads = group.width.checked_mul(group.height).and_then(|n| n.checked_mul(group.depth));
    if sides.contains(&0) {
        return Err(format!("a grid without threads: {grid:?}"));
    }
    if sides.iter().any(|n| u32::try_from(*n).is_err()) {
        return Err(format!("a grid of more than 2^32 - 1 threads on a side: {grid:?}"));
    }
    match threads {
        Some(n) if (1..=most_threads()).contains(&n) => Ok(()),
        _ => Err(format!("a threadgroup has 1 to {} threads, not {group:?}", most_threads())),
    }
}
/// The memory of each buffer that the kernel uses with these constants.
fn bound_buffers(f: &Function, slots: &[Slot], tg: &[usize]) -> Result<Vec<*mut c_void>, String> {
    let bound = |slot: &Slot| match slot {
        // Kernels may read an argument that is switched off, without using the value.
        Slot::None => ZEROS.as_ptr() as *mut c_void,
        Slot::Buffer(b, o) => unsafe { start(b).add(*o).cast() },
        Slot::Bytes(v, _) => v.as_ptr() as *mut c_void,
    };
    let mut argument = Argument::default();
    for i in 0.. {
        if !unsafe { (f.lib.argument)(f.kernel as *mut RawKernel, i, &mut argument) } {
            break;
        }
        if let Some(fault) = f.lib.fault() {
            return Err(fault);
        }
        let index = argument.index as usize;
        match argument.kind {
            BUFFER if argument.is_used => match &slots[index] {
                // Metal's debug layer refuses it, too.
                Slot::Bytes(..) if argument.is_written => {
                    return Err(format!("buffer {index} (argument {i}) is inline bytes, and the kernel may write it"));
                }
                Slot::None => return Err(format!("buffer {index} (argument {i}) is not set")),
                slot if slot.len() < argument.size as usize => {
                    let (have, size) = (slot.len(), argument.size);
                    return Err(format!(
                        "buffer {index} (argument {i}) has {have} bytes, the kernel reads {size}"
                    ));
                }
                _ => {}
            },
            THREADGROUP_MEMORY if tg[index] == 0 => {
                return Err(format!("threadgroup memory {index} has no length"));
            }
            _ => {}
        }
    }
    Ok(slots.iter().map(bound).collect())
}
