//! Compiled shaders: the C interface of runtime.cpp.
use std::ffi::{c_char, c_int, c_uint, c_void, CStr, CString};

#[repr(C)]
pub(crate) struct RawKernel([u8; 0]);
type Find = unsafe extern "C" fn(*const c_char) -> *mut RawKernel;
type SetConst = unsafe extern "C" fn(c_int, *const c_void, c_uint);
type ArgOf = unsafe extern "C" fn(*mut RawKernel, c_int, *mut c_int, *mut c_int, *mut c_uint) -> c_int;
type Dispatch = unsafe extern "C" fn(
    *mut RawKernel,
    *const *mut c_void,
    *const *mut c_void,
    *const c_uint,
    *const c_uint,
);
type Stats = unsafe extern "C" fn(*mut u64);
extern "C" {
    fn dlopen(path: *const c_char, flags: c_int) -> *mut c_void;
    fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void;
    fn dlerror() -> *const c_char;
}
#[derive(Clone, Copy)]
/// A compiled .metal source.
pub(crate) struct Lib {
    pub(crate) find: Find,
    pub(crate) constant: SetConst,
    pub(crate) arg: ArgOf,
    pub(crate) dispatch: Dispatch,
    pub(crate) stats: Stats,
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
            constant: std::mem::transmute::<*mut c_void, SetConst>(sym(c"emu_const")),
            arg: std::mem::transmute::<*mut c_void, ArgOf>(sym(c"emu_arg")),
            dispatch: std::mem::transmute::<*mut c_void, Dispatch>(sym(c"emu_dispatch")),
            stats: std::mem::transmute::<*mut c_void, Stats>(sym(c"emu_stats")),
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
