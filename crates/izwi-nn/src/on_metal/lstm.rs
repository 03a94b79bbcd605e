//! The recurrence of LSTMs.

use candle_core::{DType, Device, Tensor};
use izwi_types::Precision;

use super::{device, random, worst};
use crate::checkpoint::Checkpoint;
use crate::device::KernelCosts;
use crate::layers::{BiLstm, PackedRows};

#[test]
fn both_directions_equal_the_cpu_and_a_sequence_alone_in_two_launches() {
    let Some(device) = device() else { return };
    for (inputs, hidden, lengths) in [(12, 20, vec![7, 40, 1, 40]), (64, 300, vec![5, 33]), (8, 512, vec![3])]
    {
        for precision in [Precision::F32, Precision::F16, Precision::Bf16, Precision::Q8, Precision::Q4] {
            let mut from = Checkpoint::random(&device, DType::F32);
            let lstm = BiLstm::load(&mut from, "l", 0, (inputs, hidden), precision).unwrap();
            let pack = |lengths: &[usize], device: &Device| PackedRows::new(lengths, 2, device).unwrap();
            let (cpu, packed) = (pack(&lengths, &Device::Cpu), pack(&lengths, &device));
            let x = random((cpu.rows(), inputs));
            let expected = lstm.dequantised().forward(&x, &cpu).unwrap();
            let x = x.to_device(&device).unwrap();
            let before = KernelCosts::so_far();
            let y = lstm.forward(&x, &packed).unwrap();
            assert_eq!(KernelCosts::since(before).launches, 2);
            // Gaps too: they are zero.
            let off = worst(&y, &expected);
            assert!(off < 1e-5, "{hidden} {precision}: {off}");
            let span = packed.spans().last().unwrap();
            let alone = pack(&[span.len()], &device);
            let part = x.narrow(0, span.start, span.len()).unwrap();
            let part = part.pad_with_zeros(0, 0, alone.rows() - span.len()).unwrap();
            let bits =
                |y: &Tensor, start: usize| y.narrow(0, start, span.len()).unwrap().to_vec2::<f32>().unwrap();
            // More than 16 rows of inputs go through tiles, whose sums are in another order.
            if packed.rows() <= 16 || span.len() > 16 {
                assert_eq!(bits(&lstm.forward(&part, &alone).unwrap(), 0), bits(&y, span.start));
            }
        }
    }
}
