//! Opus packets without a container, as RTP carries them: mono at 24 kHz, 20 ms each.
//!
//! RFC 6716 and RFC 7587. Knows no network.

use std::fmt;

use opus_rs::{Application, OpusDecoder, OpusEncoder};

use crate::pcm;

/// Samples per second of what is encoded and decoded.
pub const RATE_HZ: u32 = 24_000;
/// Samples of a packet that is written: 20 ms.
pub const PACKET_SAMPLES: usize = 480;
/// The longest packet, 120 ms.
const MAX_SAMPLES: usize = 2_880;
/// Bits per second: wideband speech without audible loss.
const BIT_RATE: i32 = 40_000;
/// The longest frame, RFC 6716 §3.4.
const MAX_PACKET_BYTES: usize = 1_275;

/// Why a packet cannot be coded.
#[derive(Debug, thiserror::Error)]
#[error("opus: {0}")]
pub struct OpusError(&'static str);

/// Writes the packets of one stream.
pub struct OpusPacketEncoder(Box<OpusEncoder>);

impl fmt::Debug for OpusPacketEncoder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OpusPacketEncoder")
    }
}

impl OpusPacketEncoder {
    /// An encoder at the start of a stream.
    ///
    /// # Errors
    /// The codec refuses its settings.
    pub fn new() -> Result<Self, OpusError> {
        let encoder = OpusEncoder::new(RATE_HZ.cast_signed(), 1, Application::RestrictedLowDelay);
        let mut encoder = encoder.map_err(OpusError)?;
        encoder.bitrate_bps = BIT_RATE;
        Ok(Self(Box::new(encoder)))
    }

    /// The packet of [`PACKET_SAMPLES`] samples.
    ///
    /// # Errors
    /// The number of samples is another, or the codec fails.
    pub fn encode(&mut self, samples: &[f32]) -> Result<Vec<u8>, OpusError> {
        if samples.len() != PACKET_SAMPLES {
            return Err(OpusError("a packet has 20 ms"));
        }
        let samples: Vec<f32> = samples.iter().map(|&sample| pcm::bounded(sample)).collect();
        let mut packet = vec![0; MAX_PACKET_BYTES];
        let length = self.0.encode(&samples, PACKET_SAMPLES, &mut packet).map_err(OpusError)?;
        packet.truncate(length);
        Ok(packet)
    }
}

/// Reads the packets of one stream.
pub struct OpusPacketDecoder {
    decoder: Box<OpusDecoder>,
    samples: Vec<f32>,
}

impl fmt::Debug for OpusPacketDecoder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OpusPacketDecoder")
    }
}

impl OpusPacketDecoder {
    /// A decoder at the start of a stream.
    ///
    /// # Errors
    /// The codec refuses its settings.
    pub fn new() -> Result<Self, OpusError> {
        let decoder = OpusDecoder::new(RATE_HZ.cast_signed(), 1).map_err(OpusError)?;
        Ok(Self { decoder: Box::new(decoder), samples: vec![0.0; MAX_SAMPLES] })
    }

    /// The samples of a packet.
    ///
    /// # Errors
    /// The packet is damaged; the stream can go on with the next one.
    pub fn decode(&mut self, packet: &[u8]) -> Result<&[f32], OpusError> {
        let length = self.decoder.decode(packet, MAX_SAMPLES, &mut self.samples).map_err(OpusError)?;
        Ok(&self.samples[..length.min(MAX_SAMPLES)])
    }

    /// What stands for the 20 ms of a packet that was lost.
    ///
    /// # Errors
    /// The codec fails.
    pub fn conceal(&mut self) -> Result<&[f32], OpusError> {
        let length = self.decoder.decode(&[], PACKET_SAMPLES, &mut self.samples).map_err(OpusError)?;
        Ok(&self.samples[..length.min(PACKET_SAMPLES)])
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn tone(at: usize) -> f32 {
        0.5 * (std::f32::consts::TAU * 300.0 * at as f32 / RATE_HZ as f32).sin()
    }

    #[test]
    fn a_tone_survives_and_a_lost_packet_is_20_ms() {
        let (mut encoder, mut decoder) =
            (OpusPacketEncoder::new().unwrap(), OpusPacketDecoder::new().unwrap());
        let sent: Vec<f32> = (0..50 * PACKET_SAMPLES).map(tone).collect();
        let mut heard = Vec::new();
        for (at, samples) in sent.chunks(PACKET_SAMPLES).enumerate() {
            let packet = encoder.encode(samples).unwrap();
            let decoded = if at == 40 { decoder.conceal() } else { decoder.decode(&packet) };
            heard.extend_from_slice(decoded.unwrap());
        }
        assert_eq!(heard.len(), sent.len());
        // The overlap of the transform, 2.5 ms, is the codec's delay.
        let (a, b) = (&sent[2_400..12_000], &heard[2_400 + 60..12_000 + 60]);
        let error: f32 = a.iter().zip(b).map(|(a, b)| (a - b).powi(2)).sum();
        let power: f32 = a.iter().map(|a| a.powi(2)).sum();
        assert!(error < 0.02 * power, "{error} of {power}");
        assert!(encoder.encode(&sent[..100]).is_err());
    }

    proptest! {
        #[test]
        fn any_packet_is_samples_or_an_error(packets in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..200), 1..8)) {
            let mut decoder = OpusPacketDecoder::new().unwrap();
            for packet in packets {
                if let Ok(samples) = decoder.decode(&packet) {
                    prop_assert!(samples.len() <= MAX_SAMPLES);
                }
            }
        }
    }
}
