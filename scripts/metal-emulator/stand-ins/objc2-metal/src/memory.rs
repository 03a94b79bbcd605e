//! Memory of buffers.
use std::ffi::{c_int, c_void};

use crate::counters;

/// Memory of a buffer.
pub(crate) struct Bytes {
    pub(crate) start: *mut u8,
    pub(crate) len: usize,
    map: *mut u8,
    mapped: usize,
    pub(crate) private: bool,
}
unsafe impl Send for Bytes {}
unsafe impl Sync for Bytes {}
extern "C" {
    fn mmap(a: *mut c_void, n: usize, prot: c_int, flags: c_int, fd: c_int, off: i64) -> *mut c_void;
    fn munmap(a: *mut c_void, n: usize) -> c_int;
    fn mprotect(a: *mut c_void, n: usize, prot: c_int) -> c_int;
}
fn guard() -> bool {
    std::env::var_os("EMU_GUARD").is_some()
}
impl Bytes {
    /// With EMU_GUARD the end of the buffer lies at the end of a page that no page follows, and its content is 0xff (NaN).
    pub(crate) fn new(len: usize, private: bool) -> Self {
        let pages = len.max(1).div_ceil(4096) * 4096;
        let g = guard();
        let mapped = pages + if g { 4096 } else { 0 };
        let map = unsafe { mmap(std::ptr::null_mut(), mapped, 3, 0x22, -1, 0) }.cast::<u8>();
        let start = if g {
            unsafe {
                mprotect(map.add(pages).cast(), 4096, 0);
                map.add(pages - len.next_multiple_of(16).min(pages))
            }
        } else {
            map
        };
        if g {
            unsafe { std::ptr::write_bytes(map, 0xff, pages) }
        }
        counters::allocated(len);
        Bytes { start, len, map, mapped, private }
    }
}
impl Drop for Bytes {
    fn drop(&mut self) {
        counters::freed(self.len);
        unsafe {
            munmap(self.map.cast(), self.mapped);
        }
    }
}
