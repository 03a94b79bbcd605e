//! Each rule of the emulator, kept and broken by a kernel of `rules.metal`.

use std::ptr::NonNull;

use objc2_foundation::NSString;
use objc2_metal::*;

struct Call {
    kernel: &'static str,
    constants: &'static [(usize, bool)],
    buffers: Vec<Option<Vec<f32>>>,
    /// Index of an argument that is inline bytes, not a buffer.
    inline: usize,
    threadgroup_bytes: usize,
    grid: usize,
    group: usize,
}

impl Call {
    fn of(kernel: &'static str, buffers: Vec<Option<Vec<f32>>>) -> Self {
        Call { kernel, constants: &[], buffers, inline: usize::MAX, threadgroup_bytes: 0, grid: 64, group: 64 }
    }

    /// What the last buffer holds, or the error of the command buffer.
    fn run(self) -> Result<Vec<f32>, String> {
        std::env::set_var("EMU_ERRORS", "report");
        let device = MTLCreateSystemDefaultDevice().unwrap();
        let source = NSString::from_str(include_str!("rules.metal"));
        let library = device.newLibraryWithSource_options_error(&source, None).unwrap();
        let values = MTLFunctionConstantValues::new();
        for (index, value) in self.constants {
            let value = NonNull::from(value).cast();
            unsafe { values.setConstantValue_type_atIndex(value, MTLDataType::Bool, *index) }
        }
        let name = NSString::from_str(self.kernel);
        let function = library.newFunctionWithName_constantValues_error(&name, &values).unwrap();
        let pipeline = device.newComputePipelineStateWithFunction_error(&function).unwrap();
        let commands = device.newCommandQueue().unwrap().commandBuffer().unwrap();
        let encoder = commands.computeCommandEncoderWithDispatchType(MTLDispatchType::Concurrent).unwrap();
        encoder.setComputePipelineState(&pipeline);
        let mut last = None;
        for (index, values) in self.buffers.iter().enumerate() {
            let Some(values) = values else { continue };
            let start = NonNull::new(values.as_ptr() as *mut _).unwrap();
            if index == self.inline {
                unsafe { encoder.setBytes_length_atIndex(start, values.len() * 4, index) };
                continue;
            }
            let shared = MTLResourceOptions::StorageModeShared;
            let buffer = unsafe { device.newBufferWithBytes_length_options(start, values.len() * 4, shared) };
            unsafe { encoder.setBuffer_offset_atIndex(buffer.as_deref(), 0, index) };
            last = buffer.map(|buffer| (buffer, values.len()));
        }
        if self.threadgroup_bytes > 0 {
            unsafe { encoder.setThreadgroupMemoryLength_atIndex(self.threadgroup_bytes, 0) };
        }
        let along = |n| MTLSize { width: n, height: 1, depth: 1 };
        encoder.dispatchThreads_threadsPerThreadgroup(along(self.grid), along(self.group));
        encoder.endEncoding();
        commands.commit();
        commands.waitUntilCompleted();
        if let Some(error) = commands.error() {
            return Err(error.to_string());
        }
        let (buffer, len) = last.unwrap();
        let start = buffer.contents().cast::<f32>();
        Ok(unsafe { std::slice::from_raw_parts(start.as_ptr(), len) }.to_vec())
    }

    #[track_caller]
    fn fails_with(self, part: &str) {
        let kernel = self.kernel;
        match self.run() {
            Ok(values) => panic!("{kernel} is accepted and gives {values:?}"),
            Err(error) => assert!(error.contains(part) && error.contains(kernel), "{error}"),
        }
    }
}

fn floats(n: usize) -> Option<Vec<f32>> {
    Some(vec![1.0; n])
}

/// Input, output, scale and third: the output is not the last, so only errors are looked at.
fn switched(constants: &'static [(usize, bool)], scale: bool, third: bool) -> Call {
    let optional = |there: bool| if there { floats(1) } else { None };
    Call { constants, ..Call::of("switched", vec![floats(64), floats(64), optional(scale), optional(third)]) }
}

#[test]
fn a_constant_of_the_last_pipeline_is_forgotten() {
    let second = |constants| Call { constants, ..Call::of("uses_the_second", vec![floats(64)]) };
    assert_eq!(second(&[(1, true)]).run().unwrap(), vec![1.0; 64]);
    assert_eq!(second(&[(1, false)]).run().unwrap(), vec![2.0; 64]);
    second(&[]).fails_with("function constant shifted is used");
}

#[test]
fn an_argument_must_be_bound_unless_a_constant_switches_it_off() {
    switched(&[(0, false), (1, true)], false, false).run().unwrap();
    switched(&[(0, true), (1, false)], true, false).run().unwrap();
    switched(&[(0, true), (1, true)], true, true).run().unwrap();
    switched(&[(0, true), (1, false)], false, false).fails_with("buffer 2 (argument 2) is not set");
    switched(&[(0, true), (1, true)], true, false).fails_with("buffer 3 (argument 3) is not set");
    switched(&[(1, true)], false, false).fails_with("function constant scaled is used");
    let unbound = vec![None, floats(64)];
    Call { constants: &[(0, false), (1, false)], ..Call::of("switched", unbound) }.fails_with("buffer 0");
}

#[test]
fn threads_of_a_simdgroup_meet_at_its_operations() {
    let sums = Call::of("sums", vec![floats(64)]).run().unwrap();
    assert_eq!((sums[0], sums[63]), (496.0, 1520.0));
    Call::of("sums_of_some", vec![floats(64)]).fails_with("diverge at a simdgroup operation");
}

#[test]
fn what_no_thread_gives_is_nan() {
    let values = Call::of("reads_beyond", vec![floats(64)]).run().unwrap();
    assert_eq!((values[0], values[30]), (1.0, 31.0));
    assert!(values[31].is_nan() && values[63].is_nan(), "{values:?}");
}

#[test]
fn threads_of_a_threadgroup_meet_at_one_barrier() {
    Call::of("barrier_of_some", vec![floats(64)]).fails_with("diverge at a barrier");
    Call::of("two_barriers", vec![floats(64)]).fails_with("diverge at a barrier");
}

#[test]
fn threadgroup_memory_is_at_most_32_kib() {
    let keeps = |threadgroup_bytes| Call { threadgroup_bytes, ..Call::of("keeps_16k", vec![floats(64)]) };
    assert_eq!(keeps(16 << 10).run().unwrap(), vec![3.0; 64]);
    keeps((16 << 10) + 16).fails_with("32784 bytes of threadgroup memory");
    keeps(0).fails_with("threadgroup memory 0 has no length");
    Call::of("keeps_too_much", vec![floats(64)]).fails_with("bytes of threadgroup memory");
}

#[test]
fn grids_and_groups_have_limits() {
    let sums = |grid, group| Call { grid, group, ..Call::of("sums", vec![floats(2048)]) };
    sums(2048, 1024).run().unwrap();
    sums(2048, 1025).fails_with("1 to 1024 threads");
    sums(64, 0).fails_with("1 to 1024 threads");
    sums(0, 64).fails_with("a grid without threads");
    sums(1 << 32, 64).fails_with("on a side");
}

#[test]
fn threadgroup_memory_is_fresh_in_each_threadgroup() {
    let call = Call { threadgroup_bytes: 128, group: 32, ..Call::of("reads_fresh_memory", vec![floats(64)]) };
    let values = call.run().unwrap();
    assert!(values.iter().all(|value| value.is_nan()), "{values:?}");
}

#[test]
fn a_kernel_reads_no_more_than_its_references_allow() {
    let call = Call {
        constants: &[(0, true), (1, false)],
        ..Call::of("switched", vec![floats(64), floats(64), Some(vec![])])
    };
    // A buffer of no bytes is nil.
    call.fails_with("buffer 2");
}

#[test]
fn inline_bytes_are_for_arguments_that_the_kernel_only_reads() {
    let with = |inline| Call { inline, ..switched(&[(0, true), (1, false)], true, false) };
    with(2).run().unwrap();
    with(0).run().unwrap();
    with(1).fails_with("buffer 1 (argument 1) is inline bytes");
}

/// Other tests do not depend on the order of threads.
#[test]
fn a_missing_barrier_shows_in_other_orders_of_threads() {
    let run = |kernel, threads: &str| {
        std::env::set_var("EMU_THREADS", threads);
        let values = Call { group: 32, ..Call::of(kernel, vec![floats(64)]) };
        let values = if kernel == "reads_the_group_before" { values } else { Call { group: 64, ..values } };
        let values = values.run();
        std::env::remove_var("EMU_THREADS");
        values.unwrap()
    };
    let orders = ["", "reverse", "random", "random:7", "random:8"];
    for threads in orders {
        assert_eq!(run("reads_the_first", threads), vec![1.0; 64], "{threads}");
        let holds = run("reads_the_first_at_once", threads) == vec![1.0; 64];
        assert_eq!(holds, threads.is_empty(), "{threads}");
    }
    assert_eq!(run("reads_the_group_before", "")[..2], [5.0, 6.0]);
    assert_eq!(run("reads_the_group_before", "reverse")[..2], [5.0, 2.0]);
    let bits = |values: Vec<f32>| values.into_iter().map(f32::to_bits).collect::<Vec<_>>();
    let [seven, again, eight] =
        ["7", "7", "8"].map(|seed| bits(run("reads_the_first_at_once", &format!("random:{seed}"))));
    assert!(seven == again && seven != eight);
}
