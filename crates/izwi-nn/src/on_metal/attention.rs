//! Attention within packed sequences, and to an encoder's output.

use candle_core::{DType, Device, Tensor};

use super::{device, worst};
use crate::attention::{CrossKv, bidirectional, cross};

#[test]
fn packed_sequences_equal_the_cpu_and_each_sequence_alone() {
    let Some(device) = device() else { return };
    let shapes = [(1, 3), (2, 16), (3, 40), (2, 64), (1, 96), (1, 128)];
    for (heads, head_dim) in shapes {
        let spans = [33, 1, 70, 32, 4];
        let random = || Tensor::randn(0f32, 1.0, (140, heads * head_dim), &Device::Cpu).unwrap();
        let [q, k, v] = [random(), random(), random()];
        let expected = bidirectional(&q, &k, &v, heads, &spans).unwrap();
        let [q, k, v] = [q, k, v].map(|x| x.to_device(&device).unwrap());
        let y = bidirectional(&q, &k, &v, heads, &spans).unwrap();
        assert!(worst(&y, &expected) < 1e-5, "{heads} heads of {head_dim}");
        let part = |x: &Tensor| x.narrow(0, 34, 70).unwrap();
        let alone = bidirectional(&part(&q), &part(&k), &part(&v), heads, &[70]).unwrap();
        let bits = |x: &Tensor| x.to_vec2::<f32>().unwrap();
        assert_eq!(bits(&alone), bits(&part(&y)), "{heads} heads of {head_dim}");
    }
}

#[test]
fn columns_of_one_tensor_and_hundreds_of_sequences_are_read_in_place() {
    let Some(device) = device() else { return };
    let qkv = Tensor::randn(0f32, 1.0, (600, 144), &device).unwrap();
    let spans = [2; 300];
    let part = |at: usize| qkv.narrow(1, 48 * at, 48).unwrap();
    let y = bidirectional(&part(0), &part(1), &part(2), 2, &spans).unwrap();
    let part = |at| part(at).to_device(&Device::Cpu).unwrap().contiguous().unwrap();
    let expected = bidirectional(&part(0), &part(1), &part(2), 2, &spans).unwrap();
    assert!(worst(&y, &expected) < 1e-5);
}

#[test]
fn rows_of_many_windows_and_their_recorded_weights_equal_the_cpu() {
    let Some(device) = device() else { return };
    let random = |shape: (usize, usize)| Tensor::randn(0f32, 1.0, shape, &Device::Cpu).unwrap();
    for (heads, head_dim, counts) in
        [(2, 64, &[(1, 300), (3, 70), (12, 33)][..]), (3, 8, &[(1, 5); 18]), (1, 128, &[(9, 1500)])]
    {
        let width = heads * head_dim;
        let rows = counts.iter().map(|(rows, _)| rows).sum();
        let kv: Vec<_> = counts.iter().map(|&(_, n)| (random((n, width)), random((n, width)))).collect();
        let q = random((rows, width));
        for dtype in [DType::F32, DType::F16] {
            let on = |device: &Device, record: Option<&[usize]>| {
                let to = |x: &Tensor| x.to_device(device).unwrap();
                let kv: Vec<_> =
                    kv.iter().map(|(k, v)| CrossKv::new(&to(k), &to(v), heads, dtype).unwrap()).collect();
                let spans: Vec<_> = counts.iter().zip(&kv).map(|((rows, _), kv)| (*rows, kv)).collect();
                cross(&to(&q), &spans, heads, record).unwrap()
            };
            let (expected, weights) = on(&Device::Cpu, Some(&[heads - 1]));
            let (y, recorded) = on(&device, Some(&[heads - 1]));
            assert!(worst(&y, &expected) < 1e-4, "{heads} {head_dim} {dtype:?}");
            assert!(worst(&on(&device, None).0, &expected) < 1e-4, "{heads} {head_dim} {dtype:?}");
            for (weights, recorded) in weights.iter().zip(recorded) {
                assert_eq!(weights.len(), recorded.len());
                let off = weights.iter().zip(recorded).map(|(a, b)| (a - b).abs()).fold(0f32, f32::max);
                assert!(off < 1e-5, "{heads} {head_dim} {dtype:?}: {off}");
            }
        }
    }
}
