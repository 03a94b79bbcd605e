//! Files of weights: one file, or the index of several.

use candle_core::{DType, Device};
use izwi_nn::checkpoint::Checkpoint;
use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView};

use crate::Target;
use crate::scratch;

pub(super) const TARGET: Target = Target { name: "safetensors", run, seeds, max_bytes: 4 << 10 };

const INDEX: &[u8] = br#"{"weight_map":{"a":"model-1.safetensors","b":"model-1.safetensors"}}"#;

fn seeds() -> Vec<Vec<u8>> {
    let bytes = [0; 48];
    let view = |dtype, shape: &[usize], bytes| TensorView::new(dtype, shape.to_vec(), bytes).unwrap();
    let of = |one, other| safetensors::serialize([("a", one), ("b", other)], None).unwrap();
    let one = of(view(Dtype::F32, &[2, 3], &bytes[..24]), view(Dtype::U8, &[4], &bytes[..4]));
    let two = of(view(Dtype::F64, &[1, 2, 3], &bytes), view(Dtype::BF16, &[0, 9], &bytes[..0]));
    let three = of(view(Dtype::F16, &[], &bytes[..2]), view(Dtype::I64, &[2], &bytes[..16]));
    let indexed = |weights: &[u8]| [INDEX, &[0], weights].concat();
    vec![indexed(&one), indexed(&three), [&[0], &two[..]].concat(), [&[0], &one[..]].concat()]
}

/// The index, a zero byte and a file. Without an index the file is `model.safetensors`.
fn run(bytes: &[u8]) {
    let Some(end) = bytes.iter().position(|byte| *byte == 0) else { return };
    let (index, weights) = (&bytes[..end], &bytes[end + 1..]);
    let folder = if index.is_empty() { "whole" } else { "indexed" };
    let name = if index.is_empty() { "model.safetensors" } else { "model-1.safetensors" };
    let path = scratch::file(&format!("{folder}/{name}"), weights);
    if !index.is_empty() {
        scratch::file(&format!("{folder}/model.safetensors.index.json"), index);
    }
    let folder = path.parent().expect("a file lies in a folder");
    let _ = izwi_nn::checkpoint::fingerprint(folder);
    let Ok(mut checkpoint) = Checkpoint::open_folder(folder, &Device::Cpu) else { return };
    let _ = checkpoint.bytes_as(DType::F32);
    for (name, tensor) in SafeTensors::deserialize(weights).iter().flat_map(SafeTensors::tensors) {
        if let Ok(taken) = checkpoint.take(&name, tensor.shape()) {
            assert_eq!(taken.dims(), tensor.shape());
        }
    }
    let _ = checkpoint.take("a", &[2, 3]);
    let _ = checkpoint.finish();
}
