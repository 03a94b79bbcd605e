//! Compiled shaders: the C interface of runtime.cpp.
use std::ffi::{c_char, c_int, c_uint, c_void, CStr, CString};

#[repr(C)]
pub(crate) struct RawKernel([u8; 0]);
/// What a kernel wants for one of its arguments.
#[repr(C)]
#[derive(Default)]
pub(crate) struct Argument {
    pub(crate) kind: c_int,
    pub(crate) index: c_int,
    /// Bytes, at least.
    pub(crate) size: c_uint,
    /// Whether the function constants switch it on.
    pub(crate) is_used: bool,
    /// Whether the kernel may write through it.
    pub(crate) is_written: bool,
}
/// Kinds of arguments; the others are positions of the thread.
pub(crate) const BUFFER: c_int = 0;
pub(crate) const THREADGROUP_MEMORY: c_int = 1;
type Find = unsafe extern "C" fn(*const c_char) -> *mut RawKernel;
type Name = unsafe extern "C" fn(c_int) -> *const c_char;
type ResetConstants = unsafe extern "C" fn();
type SetConstant = unsafe extern "C" fn(c_int, *const c_void, c_uint) -> bool;
type ArgumentOf = unsafe extern "C" fn(*mut RawKernel, c_int, *mut Argument) -> bool;
type Dispatch = unsafe extern "C" fn(
    *mut RawKernel,
    *const *mut c_void,
    *const *mut c_void,
    *const usize,
    c_int,
    *const c_uint,
    *const c_uint,
);
type Fault = unsafe extern "C" fn() -> *const c_char;
extern "C" {
    fn dlopen(path: *const c_char, flags: c_int) -> *mut c_void;
    fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void;
    fn dlerror() -> *const c_char;
}
/// A compiled .metal source.
#[derive(Clone, Copy)]
pub(crate) struct Lib {
    pub(crate) find: Find,
    name: Name,
    pub(crate) reset_constants: ResetConstants,
    pub(crate) constant: SetConstant,
    pub(crate) argument: ArgumentOf,
    pub(crate) dispatch: Dispatch,
    fault: Fault,
}
impl Lib {
    pub(crate) fn names(&self) -> Vec<String> {
        let name = |i| unsafe { (self.name)(i) };
        let names = (0..).map(name).take_while(|name| !name.is_null());
        names.map(|name| unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()).collect()
    }
    /// The fault of the last dispatch or of what prepared it.
    pub(crate) fn fault(&self) -> Option<String> {
        let text = unsafe { (self.fault)() };
        (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
    }
}

fn load(path: &std::path::Path) -> Result<Lib, String> {
    let c = CString::new(path.to_string_lossy().as_bytes()).map_err(|e| e.to_string())?;
    unsafe {
        let h = dlopen(c.as_ptr(), 2);
        if h.is_null() {
            return Err(CStr::from_ptr(dlerror()).to_string_lossy().into_owned());
        }
        let sym = |n: &CStr| {
            let p = dlsym(h, n.as_ptr());
            assert!(!p.is_null(), "{}: no {n:?}", path.display());
            p
        };
        Ok(Lib {
            find: std::mem::transmute::<*mut c_void, Find>(sym(c"emu_find")),
            name: std::mem::transmute::<*mut c_void, Name>(sym(c"emu_name")),
            reset_constants: std::mem::transmute::<*mut c_void, ResetConstants>(sym(c"emu_reset_constants")),
            constant: std::mem::transmute::<*mut c_void, SetConstant>(sym(c"emu_constant")),
            argument: std::mem::transmute::<*mut c_void, ArgumentOf>(sym(c"emu_argument")),
            dispatch: std::mem::transmute::<*mut c_void, Dispatch>(sym(c"emu_dispatch")),
            fault: std::mem::transmute::<*mut c_void, Fault>(sym(c"emu_fault")),
        })
    }
}

/// The shared object that build.py made of this very text: `$EMU_OUT/<FNV-1a of the text>.so`.
pub(crate) fn of_source(text: &str) -> Result<Lib, String> {
    let folder = std::env::var_os("EMU_OUT").ok_or("EMU_OUT names no folder of compiled shaders")?;
    let hash =
        text.bytes().fold(0xcbf2_9ce4_8422_2325u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3));
    let path = std::path::Path::new(&folder).join(format!("{hash:016x}.so"));
    if !path.exists() {
        let first = text.lines().find(|l| !l.trim().is_empty()).unwrap_or_default();
        return Err(format!(
            "{} is not there: no shader of this text was compiled ({first} ...)",
            path.display()
        ));
    }
    load(&path)
}
