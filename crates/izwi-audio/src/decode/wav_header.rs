//! Repairs WAV headers before the demuxer reads them.
//!
//! Streams have sizes of 0 or 2³² − 1, recorders that crash leave wrong ones, writers fill `fmt ` in many ways. The
//! sample bytes are not copied; a new header is put in front of them.
//! Layout: <http://soundfile.sapp.org/doc/WaveFormat/>, RF64: <https://tech.ebu.ch/docs/tech/tech3306v1_1.pdf>.

use std::io::{Error, ErrorKind, Read, Result as IoResult, Seek, SeekFrom};
use std::ops::Range;
use std::sync::Arc;

use symphonia::core::io::MediaSource;

use super::budget::ReadMeter;
use super::bytes::Bytes;
use super::{DecodeError, check_channels, check_rate};
use crate::pcm_format::{PcmEncoding, PcmFormat};

/// A repaired header, and the range of the sample bytes that follow it.
pub(super) struct Wav {
    pub(super) head: Vec<u8>,
    pub(super) body: Range<usize>,
}

impl Wav {
    fn new(format: &[u8], body: Range<usize>) -> Self {
        let mut head = b"RIFF\xff\xff\xff\xffWAVEfmt ".to_vec();
        // Both fit: a format has at most MAX_FORMAT_BYTES, and bodies of 4 GiB cannot be told apart from streams.
        head.extend_from_slice(&(format.len() as u32).to_le_bytes());
        head.extend_from_slice(format);
        head.extend_from_slice(b"data");
        head.extend_from_slice(&u32::try_from(body.len()).unwrap_or(u32::MAX).to_le_bytes());
        Self { head, body }
    }
}

/// `fmt ` chunks have 16, 18, 40 or (ADPCM) 50 bytes.
const MAX_FORMAT_BYTES: usize = 1024;
/// The most chunks before the samples.
const MAX_CHUNKS: usize = 100_000;
/// The end of the GUID of the extensible sub-format, the same for every tag.
/// <https://learn.microsoft.com/en-us/windows-hardware/drivers/audio/extensible-wave-format-descriptors>
const GUID_TAIL: [u8; 14] = [0, 0, 0, 0, 0x10, 0, 0x80, 0, 0, 0xaa, 0, 0x38, 0x9b, 0x71];

mod tag {
    pub(super) const PCM: u16 = 1;
    pub(super) const MS_ADPCM: u16 = 2;
    pub(super) const FLOAT: u16 = 3;
    pub(super) const A_LAW: u16 = 6;
    pub(super) const MU_LAW: u16 = 7;
    pub(super) const IMA_ADPCM: u16 = 0x11;
    pub(super) const EXTENSIBLE: u16 = 0xfffe;
}

/// Repairs the header; `None` if the bytes are not WAV.
///
/// The length of the `data` chunk is used if the file has as many bytes; otherwise, and for 0 and 2³² − 1, the samples
/// extend to the end of the file. Bytes after the chunk are not audio and are dropped.
pub(super) fn repair(file: &mut impl Bytes) -> Result<Option<Wav>, DecodeError> {
    let opening = part(file, 0, 12)?;
    let is_wav = opening.get(8..) == Some(b"WAVE");
    match opening.get(..4) {
        Some(b"RIFF" | b"RF64" | b"BW64") if is_wav => {}
        Some(b"RIFX") if is_wav => {
            return Err(DecodeError::UnknownFormat("big-endian wav, RIFX".to_owned()));
        }
        _ => return Ok(None),
    }
    let (format, body) = chunks(file)?;
    let format = strict_format(&format)?;
    Ok(Some(Wav::new(&format, body)))
}

/// The header of `bytes` bytes of samples without one, of one channel. What is left of a sample is dropped.
pub(super) fn of_pcm(format: PcmFormat, bytes: usize) -> Result<Wav, DecodeError> {
    let PcmFormat { encoding, rate_hz } = format;
    check_rate(rate_hz)?;
    let tag = match encoding {
        PcmEncoding::S16Le => tag::PCM,
        PcmEncoding::MuLaw => tag::MU_LAW,
        PcmEncoding::ALaw => tag::A_LAW,
    };
    let align = encoding.sample_bytes() as u16;
    let mut format = Vec::with_capacity(16);
    format.extend_from_slice(&tag.to_le_bytes());
    format.extend_from_slice(&1u16.to_le_bytes());
    format.extend_from_slice(&rate_hz.to_le_bytes());
    format.extend_from_slice(&(rate_hz * u32::from(align)).to_le_bytes());
    format.extend_from_slice(&align.to_le_bytes());
    format.extend_from_slice(&(8 * align).to_le_bytes());
    Ok(Wav::new(&strict_format(&format)?, 0..bytes - bytes % usize::from(align)))
}

/// The bytes of `fmt ` and the range of the samples, in any order.
fn chunks(file: &mut impl Bytes) -> Result<(Vec<u8>, Range<usize>), DecodeError> {
    let (mut at, mut format, mut data, mut long_data) = (12, None, None, None);
    for _ in 0..MAX_CHUNKS {
        let header = part(file, at, 8)?;
        if header.len() < 8 {
            break;
        }
        let start = at + 8;
        let claimed = le_u32(&header, 4).unwrap_or_default();
        let left = file.len() - start;
        let held = (claimed as usize).min(left);
        match &header[..4] {
            b"fmt " => format = Some(part(file, start, held.min(MAX_FORMAT_BYTES))?),
            b"ds64" => long_data = part(file, start + 8, 8)?.try_into().ok(),
            b"data" => {
                let long = long_data.map(u64::from_le_bytes).and_then(|n| usize::try_from(n).ok());
                let length = match claimed {
                    u32::MAX => long.filter(|&n| n > 0 && n <= left).unwrap_or(left),
                    0 if is_chunk_header(&part(file, start, 4)?) => 0,
                    0 => left,
                    _ => held,
                };
                data = data.or(Some(start..start + length));
                at = start + length + length % 2;
                if format.is_some() {
                    break;
                }
                continue;
            }
            _ => {}
        }
        at = start + held + held % 2;
    }
    match (format, data) {
        (Some(format), Some(data)) => Ok((format, data)),
        (None, _) => Err(DecodeError::Damaged("the wav has no fmt chunk".to_owned())),
        (_, None) => Err(DecodeError::Damaged("the wav has no data chunk".to_owned())),
    }
}

fn part(file: &mut impl Bytes, at: usize, count: usize) -> Result<Vec<u8>, DecodeError> {
    file.part(at, count).map_err(|error| DecodeError::Damaged(format!("it cannot be read: {error}")))
}

/// Whether `bytes` start with a chunk that writers put after the samples.
fn is_chunk_header(bytes: &[u8]) -> bool {
    let known = [&b"LIST"[..], b"id3 ", b"ID3 ", b"fact", b"cue ", b"bext", b"smpl", b"fmt "];
    known.iter().any(|id| bytes.starts_with(id))
}

/// `fmt ` with its dependent fields recomputed; compressed formats are unchanged.
fn strict_format(format: &[u8]) -> Result<Vec<u8>, DecodeError> {
    let fields =
        (le_u16(format, 0), le_u16(format, 2), le_u32(format, 4), le_u16(format, 12), le_u16(format, 14));
    let (Some(mut tag), Some(channels), Some(rate_hz), Some(align), Some(bits)) = fields else {
        return Err(DecodeError::Damaged("the wav's fmt chunk is cut off".to_owned()));
    };
    check_channels(usize::from(channels))?;
    check_rate(rate_hz)?;
    if tag == tag::EXTENSIBLE && format.get(26..40) == Some(&GUID_TAIL) {
        tag = le_u16(format, 24).unwrap_or(tag);
    }
    let bytes = match tag {
        // A container of 3 bytes may have 20 valid bits, the upper ones.
        tag::PCM => Some(if bits == 0 { align / channels } else { bits.div_ceil(8) }),
        tag::FLOAT => Some(bits / 8),
        tag::A_LAW | tag::MU_LAW => Some(1),
        _ => None,
    };
    let allowed: &[u16] = match tag {
        tag::PCM => &[1, 2, 3, 4],
        tag::FLOAT => &[4, 8],
        _ => &[1],
    };
    let bytes = match bytes {
        Some(bytes) => bytes,
        None if matches!(tag, tag::MS_ADPCM | tag::IMA_ADPCM) => {
            return Ok(format[..format.len().min(MAX_FORMAT_BYTES)].to_vec());
        }
        None => return Err(DecodeError::UnknownFormat(format!("wav with codec {tag:#06x}"))),
    };
    if !allowed.contains(&bytes) {
        return Err(DecodeError::UnknownFormat(format!("wav with samples of {bits} bits, codec {tag:#06x}")));
    }
    let align = channels * bytes;
    let mut strict = Vec::with_capacity(16);
    strict.extend_from_slice(&tag.to_le_bytes());
    strict.extend_from_slice(&channels.to_le_bytes());
    strict.extend_from_slice(&rate_hz.to_le_bytes());
    strict.extend_from_slice(&rate_hz.saturating_mul(u32::from(align)).to_le_bytes());
    strict.extend_from_slice(&align.to_le_bytes());
    strict.extend_from_slice(&(bytes * 8).to_le_bytes());
    if matches!(tag, tag::A_LAW | tag::MU_LAW) {
        strict.extend_from_slice(&[0, 0]);
    }
    Ok(strict)
}

fn le_u16(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..at + 2)?.try_into().ok().map(u16::from_le_bytes)
}

fn le_u32(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..at + 4)?.try_into().ok().map(u32::from_le_bytes)
}

/// A new header followed by a range of the file, read as one stream without copying the file. Reading is metered.
pub(super) struct Source<B> {
    head: Vec<u8>,
    file: B,
    /// The first bytes of the file.
    opening: Vec<u8>,
    body: Range<usize>,
    at: u64,
    meter: Arc<ReadMeter>,
}

impl<B: Bytes> Source<B> {
    pub(super) fn new(
        head: Vec<u8>,
        mut file: B,
        body: Range<usize>,
        meter: Arc<ReadMeter>,
    ) -> Result<Self, DecodeError> {
        let opening = part(&mut file, 0, 4)?;
        Ok(Self { head, file, opening, body, at: 0, meter })
    }

    fn len(&self) -> u64 {
        (self.head.len() + self.body.len()) as u64
    }

    /// The first bytes of the file, for error messages.
    pub(super) fn opening(&self) -> &[u8] {
        &self.opening
    }
}

impl<B: Bytes> Read for Source<B> {
    fn read(&mut self, into: &mut [u8]) -> IoResult<usize> {
        let at = usize::try_from(self.at).unwrap_or(usize::MAX);
        let count = match self.head.get(at..) {
            Some(rest) if !rest.is_empty() => {
                let count = rest.len().min(into.len());
                into[..count].copy_from_slice(&rest[..count]);
                count
            }
            _ => {
                let begin = self.body.start.saturating_add(at - self.head.len().min(at));
                let count = self.body.end.saturating_sub(begin).min(into.len());
                self.file.read_at(begin, &mut into[..count])?
            }
        };
        if !self.meter.take(count) {
            return Err(Error::other("the file was read too often"));
        }
        self.at += count as u64;
        Ok(count)
    }
}

impl<B: Bytes> Seek for Source<B> {
    fn seek(&mut self, to: SeekFrom) -> IoResult<u64> {
        let target = match to {
            SeekFrom::Start(at) => Some(at),
            SeekFrom::Current(by) => self.at.checked_add_signed(by),
            SeekFrom::End(by) => self.len().checked_add_signed(by),
        };
        self.at = target.ok_or_else(|| Error::new(ErrorKind::InvalidInput, "seek before the start"))?;
        Ok(self.at)
    }
}

impl<B: Bytes> MediaSource for Source<B> {
    fn is_seekable(&self) -> bool {
        true
    }

    fn byte_len(&self) -> Option<u64> {
        Some(self.len())
    }
}
