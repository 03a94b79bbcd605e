//! Vector instructions: the levels that processors support, and the one dispatcher that runs a kernel at the best one.
//!
//! A level is one file in the folder of its architecture, which implements [`Level`], a `mod` line there, and one line
//! in [`levels!`]. Knows no kernel.

#[cfg(target_arch = "aarch64")]
mod aarch64;
mod isa;
mod level;
mod portable;
#[cfg(target_arch = "x86_64")]
mod x86_64;

use std::sync::atomic::{AtomicUsize, Ordering};

pub use isa::Element;
pub(crate) use isa::{DEPTH, Int8Isa, Isa, LANES, LINE, load_part, scales, store_part};
use level::{Level, Run};

/// Defines [`IsaLevel`] out of the levels, the best first within each architecture.
macro_rules! levels {
    ($($(#[$attribute:meta])* $name:ident => $level:ty,)*) => {
        /// A set of vector instructions that kernels are compiled for.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(crate) enum IsaLevel {
            $($(#[$attribute])* $name,)*
        }

        impl IsaLevel {
            /// The levels of this architecture, the best first.
            pub(crate) const ALL: &[Self] = &[$($(#[$attribute])* Self::$name,)*];

            /// The name of the level.
            pub(crate) fn name(self) -> &'static str {
                match self {
                    $($(#[$attribute])* Self::$name => stringify!($name),)*
                }
            }

            /// Whether this processor has the instructions.
            pub(crate) fn is_supported(self) -> bool {
                match self {
                    $($(#[$attribute])* Self::$name => <$level>::is_supported(),)*
                }
            }

            /// Runs the job at this level.
            ///
            /// # Safety
            /// The level is supported.
            #[inline(always)]
            unsafe fn run(self, job: impl Run) {
                match self {
                    $($(#[$attribute])* Self::$name => <$level>::enter(job),)*
                }
            }
        }
    };
}

levels! {
    #[cfg(target_arch = "x86_64")]
    Avx512Bf16 => x86_64::Avx512Bf16Level,
    #[cfg(target_arch = "x86_64")]
    Avx512Vnni => x86_64::Avx512VnniLevel,
    #[cfg(target_arch = "x86_64")]
    AvxVnni => x86_64::AvxVnniLevel,
    #[cfg(target_arch = "x86_64")]
    Avx512 => x86_64::Avx512Level,
    #[cfg(target_arch = "x86_64")]
    Avx2 => x86_64::Avx2Level,
    #[cfg(target_arch = "aarch64")]
    NeonI8mm => aarch64::NeonI8mmLevel,
    #[cfg(target_arch = "aarch64")]
    NeonDotprod => aarch64::NeonDotprodLevel,
    #[cfg(target_arch = "aarch64")]
    Neon => aarch64::NeonLevel,
    Portable => portable::Portable,
}

impl IsaLevel {
    /// The best level of this processor, detected by the first call, or that of [`Self::select`]; in a test, the level
    /// that [`forced::at`] sets.
    #[inline]
    pub(crate) fn current() -> Self {
        #[cfg(test)]
        if let Some(level) = forced::level() {
            return level;
        }
        match Self::ALL.get(CURRENT.load(Ordering::Relaxed)) {
            Some(&level) => level,
            None => Self::detect(),
        }
    }

    #[cold]
    fn detect() -> Self {
        let best = Self::ALL.iter().position(|level| level.is_supported()).unwrap_or(Self::ALL.len() - 1);
        CURRENT.store(best, Ordering::Relaxed);
        Self::ALL[best]
    }

    /// Runs all kernels at this level from now on; false where the processor lacks its instructions.
    pub(crate) fn select(self) -> bool {
        let place = Self::ALL.iter().position(|&level| level == self).filter(|_| self.is_supported());
        if let Some(place) = place {
            CURRENT.store(place, Ordering::Relaxed);
        }
        place.is_some()
    }
}

/// The place of the current level in [`IsaLevel::ALL`]; that of no level before it is detected.
static CURRENT: AtomicUsize = AtomicUsize::new(usize::MAX);

/// A kernel in f32: its operands, and the work on them.
///
/// # Safety
/// [`Kernel::run`] is called by the safe [`dispatch`]: the implementor upholds that, for every value that is given to
/// it, `run` accesses only memory that the value borrows or that its pointers may access, and that no other thread
/// accesses meanwhile. A kernel of pointers is therefore private to its module, which makes it out of slices whose
/// lengths it checks, and gives each task of a call its own part of the output.
pub(crate) unsafe trait Kernel {
    /// The work; `#[inline(always)]`, so that it is compiled for the instructions of its caller.
    ///
    /// # Safety
    /// As [`Isa`].
    unsafe fn run<I: Isa>(self);
}

/// A kernel on bytes; as [`Kernel`].
///
/// # Safety
/// As [`Kernel`].
pub(crate) unsafe trait Int8Kernel {
    /// The work; `#[inline(always)]`, so that it is compiled for the instructions of its caller.
    ///
    /// # Safety
    /// As [`Int8Isa`].
    unsafe fn run<D: Int8Isa>(self);
}

/// Runs a kernel in f32 at the best level of this processor.
pub(crate) fn dispatch(kernel: impl Kernel) {
    /// The kernel with the vectors of f32 of a level.
    struct F32<K>(K);
    impl<K: Kernel> Run for F32<K> {
        #[inline(always)]
        unsafe fn run<L: Level>(self) {
            self.0.run::<L::F32>();
        }
    }
    // SAFETY: the current level is supported, and the kernel may access what it accesses: see [`Kernel`].
    unsafe { IsaLevel::current().run(F32(kernel)) }
}

/// Runs a kernel on bytes at the best level of this processor.
pub(crate) fn dispatch_int8(kernel: impl Int8Kernel) {
    /// The kernel with the vectors of bytes of a level.
    struct Int8<K>(K);
    impl<K: Int8Kernel> Run for Int8<K> {
        #[inline(always)]
        unsafe fn run<L: Level>(self) {
            self.0.run::<L::Int8>();
        }
    }
    // SAFETY: as in [`dispatch`].
    unsafe { IsaLevel::current().run(Int8(kernel)) }
}

/// Whether products of pairs of bf16 are faster than products of f32 on this processor.
pub fn has_fast_bf16_dot() -> bool {
    #[cfg(target_arch = "x86_64")]
    return x86_64::has_fast_bf16_dot();
    #[cfg(target_arch = "aarch64")]
    return aarch64::has_fast_bf16_dot();
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    false
}

/// Whether products of bytes are several times faster than products of f32 on this processor.
pub fn has_fast_int8_dot() -> bool {
    #[cfg(target_arch = "x86_64")]
    return x86_64::has_fast_int8_dot();
    #[cfg(target_arch = "aarch64")]
    return aarch64::has_fast_int8_dot();
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    false
}

/// The first-level cache, for [`prefetch`].
pub(crate) const FIRST_LEVEL: i32 = 3;
/// The second-level cache, for [`prefetch`].
pub(crate) const SECOND_LEVEL: i32 = 2;

/// Requests the cache line at `from`, which may be any address, into the cache of this level.
#[inline(always)]
pub(crate) fn prefetch<const LEVEL: i32>(from: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 processor has the instruction, and it never faults.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<LEVEL>(from.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = from;
}

/// The level that a test forces on its own thread.
#[cfg(test)]
pub(crate) mod forced {
    use std::cell::Cell;

    use super::IsaLevel;

    thread_local! {
        static LEVEL: Cell<Option<IsaLevel>> = const { Cell::new(None) };
    }

    /// The level that [`at`] sets on this thread.
    pub(super) fn level() -> Option<IsaLevel> {
        LEVEL.get()
    }

    /// Runs `work` with the kernels of this thread at a supported level.
    pub(crate) fn at<T>(level: IsaLevel, work: impl FnOnce() -> T) -> T {
        assert!(level.is_supported(), "{level:?} is not supported");
        let before = LEVEL.replace(Some(level));
        let result = work();
        LEVEL.set(before);
        result
    }
}
