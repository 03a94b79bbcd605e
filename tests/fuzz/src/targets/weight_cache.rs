//! The cache of packed weights. The target writes the checksums, which no fuzzer finds.

use flate2::Crc;
use izwi_kernels::conv::{ConvRows, conv1d};
use izwi_kernels::linear::Rows;
use izwi_nn::checkpoint::read_weight_cache;

use crate::{Target, scratch};

pub(super) const TARGET: Target = Target { name: "weight_cache", run, seeds, max_bytes: 32 << 10 };

const KEY: &str = "key";
/// `izwipack` and the version.
const HEAD: [u8; 16] = *b"izwipack\x01\0\0\0\0\0\0\0";

/// The first byte: which checksums are right. Then the header, a zero byte, and the weights; `#` is the checksum.
fn run(bytes: &[u8]) {
    let Some((mode, rest)) = bytes.split_first() else { return };
    let end = rest.iter().position(|byte| *byte == 0).unwrap_or(rest.len());
    let (header, weights) = (&rest[..end], rest.get(end + 1..).unwrap_or_default());
    let header = String::from_utf8_lossy(header).replacen('#', &crc(weights).to_string(), 1);
    let sum = if mode % 4 == 3 { 7 } else { u64::from(crc(header.as_bytes())) };
    let length = if mode % 4 == 2 { u64::MAX } else { header.len() as u64 };
    let file = [&HEAD[..], &sum.to_le_bytes(), &length.to_le_bytes(), header.as_bytes(), weights].concat();
    let file = if mode % 4 == 1 { bytes.to_vec() } else { file };
    let (linear, conv) = read_weight_cache(&scratch::file("model.cache", &file), KEY);
    if let Some(linear) = linear {
        let x = [0.5; 3 * 96];
        assert_eq!(linear.product_to_vec(Rows { data: &x, stride: 96, count: 3 }, None).len(), 3 * 70);
    }
    if let Some(conv) = conv {
        let mut y = [0.0; 2 * 50];
        conv1d(ConvRows { data: &[0.5; 6 * 6], starts: &[0, 3], dilation: 1 }, &conv, None, &mut y);
    }
}

fn crc(bytes: &[u8]) -> u32 {
    let mut crc = Crc::new();
    crc.update(bytes);
    crc.sum()
}

fn seeds() -> Vec<Vec<u8>> {
    let of = |kind: &str, bytes: usize| {
        let entry = format!(
            "{{\"name\":\"a\",\"kind\":\"{kind}\",\"sizes\":[1,96,70],\"start\":0,\"bytes\":{bytes}}}"
        );
        let header = format!("{{\"key\":\"{KEY}\",\"crc\":#,\"entries\":[{entry}]}}");
        [&[0], header.as_bytes(), &[0], &vec![0x3c; bytes]].concat()
    };
    // Panels of 96 inputs and 70 outputs, and blocks of them: `replay.rs` checks that each is taken.
    let mut seeds: Vec<Vec<u8>> = [("single", 30_720), ("half", 15_360), ("eight", 8_640), ("four", 4_800)]
        .map(|(kind, bytes)| of(kind, bytes))
        .into();
    let entry = "{\"name\":\"b\",\"kind\":\"conv\",\"sizes\":[3,6,50],\"start\":0,\"bytes\":4608}";
    let header = format!("{{\"key\":\"{KEY}\",\"crc\":#,\"entries\":[{entry}]}}");
    seeds.push([&[0], header.as_bytes(), &[0], &vec![0x3c; 4_608]].concat());
    seeds
}
