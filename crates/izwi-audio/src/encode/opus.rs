//! Opus at 48 kHz, mono, in Ogg (RFC 7845): 20 ms a packet, 60 ms a page.
//!
//! The identification header tells how much the codec delays, the last page where the audio ends: a stream decodes to exactly
//! its samples. Uses the CELT layer alone, whose delay is constant.

use ogg::{PacketWriteEndInfo, PacketWriter};
use opus_rs::{Application, OpusEncoder};

use super::comments::vorbis_comments;
use super::encoder::{EncodeError, Encoder, EncoderConfig};
use super::format::Format;
use crate::pcm;

/// Opus in Ogg.
pub const OPUS: Format = Format {
    name: "opus",
    encoding: "ogg_opus",
    media_type: Some("audio/ogg"),
    extensions: &["opus", "ogg", "oga"],
    sample_bytes: None,
    streams: true,
    sample_rates_hz: &[RATE_HZ],
    keeps_rate: false,
    bit_rates: Some(6_000..=256_000),
    new_encoder: |config| Ok(Box::new(OggOpus::new(config)?)),
};

const RATE_HZ: u32 = 48_000;
/// Bits per second without a request for a bit rate.
const DEFAULT_BIT_RATE: u32 = 64_000;
/// Samples of a packet: 20 ms.
const PACKET_SAMPLES: usize = 960;
/// Samples by which the codec delays: the overlap of its transform, 2.5 ms.
const PRE_SKIP: u16 = 120;
/// Packets of a page, so that a listener waits 60 ms for the first of them.
const PAGE_PACKETS: u64 = 3;
/// The longest packet of 20 ms, RFC 6716 §3.4.
const MAX_PACKET_BYTES: usize = 1275;
/// Each file has one logical stream, so every number is unique in it.
const SERIAL: u32 = 0x697a_7769;

struct OggOpus {
    encoder: OpusEncoder,
    writer: PacketWriter<'static, Vec<u8>>,
    /// The second packet; `None` once the headers were written.
    comments: Option<Vec<u8>>,
    /// Samples of the packet that is being filled.
    pending: Vec<f32>,
    samples_in: u64,
    packets: u64,
}

impl std::fmt::Debug for OggOpus {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OggOpus")
            .field("samples_in", &self.samples_in)
            .field("packets", &self.packets)
            .finish_non_exhaustive()
    }
}

impl OggOpus {
    fn new(config: &EncoderConfig) -> Result<Self, EncodeError> {
        let rate = config.sample_rate_hz.cast_signed();
        let mut encoder = OpusEncoder::new(rate, 1, Application::RestrictedLowDelay).map_err(failed)?;
        encoder.bitrate_bps = config.bit_rate.unwrap_or(DEFAULT_BIT_RATE).cast_signed();
        let (writer, comments) = (PacketWriter::new(Vec::new()), Some(comments(&[])));
        Ok(Self { encoder, writer, comments, pending: Vec::new(), samples_in: 0, packets: 0 })
    }

    fn write_headers(&mut self) -> Result<(), EncodeError> {
        if let Some(comments) = self.comments.take() {
            self.writer.write_packet(identification(), SERIAL, PacketWriteEndInfo::EndPage, 0)?;
            self.writer.write_packet(comments, SERIAL, PacketWriteEndInfo::EndPage, 0)?;
        }
        Ok(())
    }

    /// Encodes one packet; `end` is its place in the stream.
    fn write(&mut self, samples: &[f32], end: PacketWriteEndInfo, position: u64) -> Result<(), EncodeError> {
        let mut packet = vec![0; MAX_PACKET_BYTES];
        let length = self.encoder.encode(samples, PACKET_SAMPLES, &mut packet).map_err(failed)?;
        packet.truncate(length);
        self.writer.write_packet(packet, SERIAL, end, position)?;
        self.packets += 1;
        Ok(())
    }

    fn write_full_packets(&mut self) -> Result<(), EncodeError> {
        let pending = std::mem::take(&mut self.pending);
        let packets = pending.chunks_exact(PACKET_SAMPLES);
        self.pending = packets.remainder().to_vec();
        for samples in packets {
            let ends_page = (self.packets + 1).is_multiple_of(PAGE_PACKETS);
            let end = if ends_page { PacketWriteEndInfo::EndPage } else { PacketWriteEndInfo::NormalPacket };
            self.write(samples, end, (self.packets + 1) * PACKET_SAMPLES as u64)?;
        }
        Ok(())
    }

    fn take(&mut self) -> Vec<u8> {
        std::mem::take(self.writer.inner_mut())
    }
}

impl Encoder for OggOpus {
    fn set_comments(&mut self, comments: &[(String, String)]) {
        self.comments = self.comments.take().map(|_| self::comments(comments));
    }

    fn push(&mut self, samples: &[f32]) -> Result<Vec<u8>, EncodeError> {
        self.write_headers()?;
        self.samples_in += samples.len() as u64;
        self.pending.extend(samples.iter().map(|&sample| pcm::bounded(sample)));
        self.write_full_packets()?;
        Ok(self.take())
    }

    fn finish(&mut self) -> Result<Vec<u8>, EncodeError> {
        self.write_headers()?;
        // What the codec holds back leaves it with the last packet, so there is at least one.
        let end = self.samples_in + u64::from(PRE_SKIP);
        let last = end.div_ceil(PACKET_SAMPLES as u64).saturating_sub(1);
        let padded = (last as usize * PACKET_SAMPLES).saturating_sub(self.packets as usize * PACKET_SAMPLES);
        self.pending.resize(padded.max(self.pending.len()), 0.0);
        self.write_full_packets()?;
        let mut samples = std::mem::take(&mut self.pending);
        samples.resize(PACKET_SAMPLES, 0.0);
        self.write(&samples, PacketWriteEndInfo::EndStream, end)?;
        Ok(self.take())
    }
}

/// RFC 7845 §5.1.
fn identification() -> Vec<u8> {
    let mut header = b"OpusHead".to_vec();
    // Version and channels.
    header.extend([1, 1]);
    header.extend(PRE_SKIP.to_le_bytes());
    header.extend(RATE_HZ.to_le_bytes());
    // Gain of 0 dB and mapping family 0.
    header.extend([0, 0, 0]);
    header
}

/// RFC 7845 §5.2.
fn comments(comments: &[(String, String)]) -> Vec<u8> {
    let mut header = b"OpusTags".to_vec();
    header.extend(vorbis_comments(comments));
    header
}

fn failed(error: impl std::fmt::Display) -> EncodeError {
    EncodeError::Codec { format: OPUS.name, reason: error.to_string() }
}
