//! Hashes of files.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use sha1::Sha1;
use sha2::{Digest, Sha256};

use crate::io_error::IoError;

const BUFFER_BYTES: usize = 1 << 20;

/// Hash and length of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Fingerprint {
    /// SHA-256 in lower-case hex.
    pub(crate) sha256: String,
    /// Length in bytes.
    pub(crate) size: u64,
}

/// Reads the file at `path` once, in pieces.
pub(crate) fn of_file(path: &Path) -> Result<Fingerprint, IoError> {
    let mut file = File::open(path).map_err(IoError::at("open", path))?;
    let mut digest = Sha256::new();
    let mut size = 0;
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        let read = file.read(&mut buffer).map_err(IoError::at("read", path))?;
        if read == 0 {
            break;
        }
        digest.update(&buffer[..read]);
        size += read as u64;
    }
    Ok(Fingerprint { sha256: hex(&digest.finalize()), size })
}

/// The git id of the file at `path`: SHA-1 over a header with the length, then the contents.
/// <https://git-scm.com/book/en/v2/Git-Internals-Git-Objects>
pub(crate) fn git_blob(path: &Path) -> Result<String, IoError> {
    let bytes = std::fs::read(path).map_err(IoError::at("read", path))?;
    let mut digest = Sha1::new();
    digest.update(format!("blob {}\0", bytes.len()));
    digest.update(&bytes);
    Ok(hex(&digest.finalize()))
}

/// The fingerprint of a file with the contents `bytes`.
pub(crate) fn of_bytes(bytes: &[u8]) -> Fingerprint {
    Fingerprint { sha256: sha256(bytes), size: bytes.len() as u64 }
}

/// The SHA-256 of `bytes` in lower-case hex.
pub fn sha256(bytes: impl AsRef<[u8]>) -> String {
    hex(&Sha256::digest(bytes))
}

fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digit = |value: u8| char::from(DIGITS[usize::from(value & 15)]);
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(*byte)]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_known_digest() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("abc");
        std::fs::write(&path, "abc").unwrap();
        // https://csrc.nist.gov/projects/cryptographic-standards-and-guidelines/example-values
        let sha256 = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad".to_owned();
        assert_eq!(of_file(&path).unwrap(), Fingerprint { sha256, size: 3 });
    }

    #[test]
    fn a_known_git_id() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("hello");
        std::fs::write(&path, "what is up, doc?").unwrap();
        // https://git-scm.com/book/en/v2/Git-Internals-Git-Objects
        assert_eq!(git_blob(&path).unwrap(), "bd9dbf5aae1a3862dd1526723246b20206e5fc37");
    }
}
