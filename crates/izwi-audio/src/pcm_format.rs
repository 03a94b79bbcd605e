//! What samples without a header are. Knows no file and no stream.

/// How the samples are encoded, one channel each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PcmEncoding {
    /// Signed 16-bit little-endian.
    S16Le,
    /// G.711 µ-law, 8 bits.
    MuLaw,
    /// G.711 A-law, 8 bits.
    ALaw,
}

impl PcmEncoding {
    /// Bytes of one sample.
    pub fn sample_bytes(self) -> usize {
        match self {
            Self::S16Le => 2,
            Self::MuLaw | Self::ALaw => 1,
        }
    }
}

/// Samples of one channel without a header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PcmFormat {
    /// How each is encoded.
    pub encoding: PcmEncoding,
    /// Their rate, in Hz.
    pub rate_hz: u32,
}
