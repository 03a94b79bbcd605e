//! The archive: a tar file, compressed or not. A member's name never becomes a path.

use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Read};
use std::path::Path;

use flate2::read::GzDecoder;

use super::{SETTINGS, TOKENIZER};
use crate::convert::error::{ConversionError, malformed};
use crate::io_error::IoError;

/// The member with the weights.
const WEIGHTS: &str = "model_weights.ckpt";
/// The most bytes of the settings and of the tokenizer.
const MAX_BESIDE_BYTES: u64 = 64 << 20;
/// The most members.
const MAX_MEMBERS: usize = 10_000;
/// Weights hardly shrink: a file that grows by more is not one of them.
const MAX_GROWTH: u64 = 8;
/// The first bytes of a compressed file.
const GZIP: [u8; 2] = [0x1f, 0x8b];

/// What is wanted of an archive.
#[derive(Debug, Default)]
pub(super) struct Members {
    pub(super) weights: Vec<u8>,
    pub(super) settings: Vec<u8>,
    /// `None` for a model that writes no text.
    pub(super) tokenizer: Option<Vec<u8>>,
}

impl Members {
    /// Reads the file `source`.
    pub(super) fn read(source: &Path) -> Result<Self, ConversionError> {
        let file = File::open(source).map_err(IoError::at("read", source))?;
        let length = file.metadata().map_err(IoError::at("read", source))?.len();
        let mut reader = BufReader::new(file);
        let begin = reader.fill_buf().map_err(IoError::at("read", source))?;
        if begin.starts_with(&GZIP) {
            return Self::of(GzDecoder::new(reader).take(length.saturating_mul(MAX_GROWTH)));
        }
        Self::of(reader)
    }

    fn of(reader: impl Read) -> Result<Self, ConversionError> {
        let unreadable = |error: io::Error| malformed(format!("the archive cannot be read: {error}"));
        let (mut weights, mut settings, mut tokenizer) = (None, None, None);
        let mut archive = tar::Archive::new(reader);
        // Raw: headers with times or long names are members of their own, which nobody wants.
        for (index, member) in archive.entries().map_err(unreadable)?.raw(true).enumerate() {
            let member = member.map_err(unreadable)?;
            if index >= MAX_MEMBERS {
                return Err(malformed(format!("the archive has more than {MAX_MEMBERS} members")));
            }
            if !member.header().entry_type().is_file() {
                continue;
            }
            let name = String::from_utf8_lossy(&member.header().path_bytes()).into_owned();
            let name = name.strip_prefix("./").unwrap_or(&name);
            let (wanted, most) = match name {
                WEIGHTS => (&mut weights, u64::MAX),
                SETTINGS => (&mut settings, MAX_BESIDE_BYTES),
                // Its name begins with a hash.
                _ if name.ends_with(TOKENIZER) => (&mut tokenizer, MAX_BESIDE_BYTES),
                _ => continue,
            };
            let size = member.header().entry_size().map_err(unreadable)?;
            if wanted.is_some() || size > most {
                return Err(malformed(format!("the archive has several '{name}', or one of {size} bytes")));
            }
            let mut bytes = Vec::new();
            member.take(size).read_to_end(&mut bytes).map_err(unreadable)?;
            if bytes.len() as u64 != size {
                return Err(malformed(format!("the archive ends inside '{name}'")));
            }
            *wanted = Some(bytes);
        }
        let found = |member: Option<Vec<u8>>, name: &str| {
            member
                .ok_or_else(|| malformed(format!("the archive has no '{name}', so it holds no speech model")))
        };
        Ok(Self { weights: found(weights, WEIGHTS)?, settings: found(settings, SETTINGS)?, tokenizer })
    }
}
