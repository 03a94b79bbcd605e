//! How many threads compute by default. Knows no pool.

/// More threads than this wait for the memory.
const MOST: usize = 8;

/// Compute threads where the user chose no number: the physical cores, at most 8; on Apple's processors the performance
/// cores alone, because the threads of a step wait for the slowest.
pub fn default_threads() -> usize {
    performance_cores().unwrap_or_else(num_cpus::get_physical).clamp(1, MOST)
}

/// Cores of the fastest kind, where the system tells kinds apart.
#[cfg(target_vendor = "apple")]
fn performance_cores() -> Option<usize> {
    let mut count: libc::c_int = 0;
    let mut size = size_of_val(&count);
    // SAFETY: the name ends with a zero byte, and the system writes at most `size` bytes to `count`.
    let result = unsafe {
        libc::sysctlbyname(
            c"hw.perflevel0.physicalcpu".as_ptr(),
            std::ptr::from_mut(&mut count).cast(),
            &raw mut size,
            std::ptr::null_mut(),
            0,
        )
    };
    // Macs with Intel processors have no such name.
    (result == 0).then(|| usize::try_from(count).ok()).flatten().filter(|&count| count > 0)
}

#[cfg(not(target_vendor = "apple"))]
fn performance_cores() -> Option<usize> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_a_thread_and_none_beyond_the_cores() {
        assert!((1..=MOST.min(num_cpus::get_physical().max(1))).contains(&default_threads()));
    }
}
