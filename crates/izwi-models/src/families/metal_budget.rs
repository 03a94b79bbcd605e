//! What a step may cost on Metal, counted by the emulated device. Knows no family.

use izwi_nn::device::KernelCosts;
use izwi_nn::emulated_metal::Counts;

/// The most launches of a prefill and of a frame, and what else differs; the other limits are the same for all families.
#[derive(Debug, Clone, Copy)]
pub(super) struct StepBudget {
    pub(super) prefill: u64,
    pub(super) frame: u64,
    /// Buffers that a frame makes: of candle's operations, and what its result is read through. Own kernels keep theirs.
    pub(super) buffers: u64,
    /// Bytes of the weights that a frame reads.
    pub(super) weight_bytes: usize,
}

impl StepBudget {
    /// Checks what `costs` counts for a prefill and a frame of one sequence, then of several.
    pub(super) fn check(self, costs: impl Fn(usize) -> [(Counts, KernelCosts); 2]) {
        let mut of_one = 0;
        for sequences in [1, 8] {
            let [(prefill, _), (frame, own)] = costs(sequences);
            println!("{sequences}: prefill {prefill:?}\n{sequences}: frame {frame:?} {own:?}");
            assert!(prefill.dispatches <= self.prefill, "prefill: {} dispatches", prefill.dispatches);
            assert!(frame.dispatches <= self.frame, "frame: {} dispatches", frame.dispatches);
            assert!(frame.uploads <= 6, "frame: {} uploads", frame.uploads);
            assert_eq!(frame.waits, 1, "frame");
            assert!(frame.buffers <= self.buffers, "frame: {} new buffers", frame.buffers);
            assert!(frame.commits <= 2, "frame: {} command buffers", frame.commits);
            let (read, expected) = (own.weight_bytes as f64, self.weight_bytes as f64);
            assert!(read <= 1.05 * expected, "{read} bytes of weights, {expected} expected");
            if sequences == 1 {
                of_one = frame.dispatches;
            }
            assert!(frame.dispatches <= of_one + 8, "{} dispatches at batch {sequences}", frame.dispatches);
        }
    }
}
