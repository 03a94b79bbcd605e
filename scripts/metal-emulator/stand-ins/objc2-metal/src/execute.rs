//! What was encoded, and how it runs.
use block2::DynBlock;
use objc2::runtime::ProtocolObject;
use std::collections::VecDeque;
use std::ffi::{c_int, c_uint, c_void};
use std::ptr::NonNull;
use std::sync::Mutex;

use crate::kernels::{Lib, RawKernel};
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
    if let Some(e) = &error {
        eprintln!("emulated Metal: {e}");
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
fn one(c: &Command) -> Result<(), String> {
    let start = |b: &Obj<dyn MTLBuffer>| b.state::<Bytes>().start;
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
            let k = f.kernel as *mut RawKernel;
            let (threads, per) =
                (grid.width * grid.height * grid.depth, group.width * group.height * group.depth);
            if per == 0 || per > 1024 || threads == 0 {
                return Err(format!("{}: grid {grid:?} in groups of {group:?}", f.name));
            }
            let mut buffers: Vec<*mut c_void> = slots
                .iter()
                .map(|s| match s {
                    Slot::None => std::ptr::null_mut(),
                    Slot::Buffer(b, o) => unsafe { start(b).add(*o).cast() },
                    Slot::Bytes(v, _) => v.as_ptr() as *mut c_void,
                })
                .collect();
            let memory: Vec<Vec<u128>> = tg.iter().map(|n| vec![u128::MAX; n.div_ceil(16)]).collect();
            let tgmem: Vec<*mut c_void> = memory.iter().map(|m| m.as_ptr() as *mut c_void).collect();
            let (mut i, mut kind, mut index, mut least) = (0, 0, 0, 0);
            while unsafe { (f.lib.arg)(k, i, &mut kind, &mut index, &mut least) } == 1 {
                if kind == 0 {
                    let have = match &slots[index as usize] {
                        Slot::None => usize::MAX,
                        Slot::Buffer(b, o) => b.length() - o,
                        Slot::Bytes(_, n) => *n,
                    };
                    if have == usize::MAX {
                        if f.constants.is_empty() && std::env::var_os("EMU_TRACE").is_some() {
                            eprintln!("{}: buffer {index} (argument {i}) is not set", f.name);
                        }
                        buffers[index as usize] = ZEROS.as_ptr() as *mut c_void;
                    } else if have < least as usize {
                        return Err(format!(
                            "{}: buffer {index} (argument {i}) has {have} bytes, the kernel reads {least}",
                            f.name
                        ));
                    }
                }
                if kind == 1 && tg[index as usize] == 0 {
                    return Err(format!("{}: threadgroup memory {index} has no length", f.name));
                }
                i += 1;
            }
            for (n, kind, bytes) in &f.constants {
                unsafe { (f.lib.constant)(*n as c_int, bytes.as_ptr().cast(), size(*kind) as c_uint) }
            }
            let g = [grid.width as c_uint, grid.height as c_uint, grid.depth as c_uint];
            let t = [group.width as c_uint, group.height as c_uint, group.depth as c_uint];
            let mut a = [0u64; 6];
            let mut b = [0u64; 6];
            unsafe { (f.lib.stats)(a.as_mut_ptr()) };
            let at = std::time::Instant::now();
            unsafe { (f.lib.dispatch)(k, buffers.as_ptr(), tgmem.as_ptr(), g.as_ptr(), t.as_ptr()) };
            let took = at.elapsed().as_secs_f64();
            unsafe { (f.lib.stats)(b.as_mut_ptr()) };
            if std::env::var_os("EMU_TRACE").is_some() {
                eprintln!(
                    "{} {threads} threads in {per}s: {:.0} us, {} switches, {} simd ops, {} barriers; divergent {} {} {}",
                    f.name,
                    took * 1e6,
                    b[0] - a[0],
                    b[1] - a[1],
                    b[2] - a[2],
                    b[3] - a[3],
                    b[4] - a[4],
                    b[5] - a[5]
                );
            }
        }
    }
    Ok(())
}
