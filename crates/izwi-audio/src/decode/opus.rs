//! Opus: reads the identification header and decodes packets to samples at 48 kHz.
//!
//! Header: RFC 7845 §5.1, <https://www.rfc-editor.org/rfc/rfc7845#section-5.1>; packets: RFC 6716.

use opus_rs::OpusDecoder;
use opus_rs::multistream::{ChannelMappingTable, MultistreamDecoder};
use symphonia::core::codecs::audio::AudioCodecParameters;
use symphonia::core::packet::Packet;

use super::DecodeError;

const RATE_HZ: u32 = 48_000;
/// The longest packet: 120 ms.
const MAX_FRAMES: usize = 5760;

/// The state of one Opus stream.
pub(super) struct OpusStream {
    decoder: Decoder,
    channels: usize,
    /// Frames that still have to be dropped (pre-skip).
    skip: usize,
    gain: f32,
    /// Space for the longest packet.
    packet: Vec<f32>,
}

enum Decoder {
    Single(Box<OpusDecoder>),
    Multistream(Box<MultistreamDecoder>),
}

/// The fields of an identification header that decoding needs.
struct Head {
    channels: usize,
    skip: usize,
    gain_q8_db: i16,
    mapping_family: u8,
}

impl Head {
    /// `None` without a header; the caller then uses the track's channel count.
    fn read(bytes: &[u8]) -> Option<Self> {
        if bytes.len() < 19 || !bytes.starts_with(b"OpusHead") {
            return None;
        }
        // MP4 stores the same fields in big-endian order, with version 0.
        // <https://opus-codec.org/docs/opus_in_isobmff.html>
        let two = |at: usize| {
            let pair = [bytes[at], bytes[at + 1]];
            if bytes[8] == 0 { u16::from_be_bytes(pair) } else { u16::from_le_bytes(pair) }
        };
        let gain_q8_db = two(16).cast_signed();
        Some(Self {
            channels: usize::from(bytes[9]),
            skip: usize::from(two(10)),
            gain_q8_db,
            mapping_family: bytes[18],
        })
    }
}

impl OpusStream {
    pub(super) fn new(params: &AudioCodecParameters) -> Result<Self, DecodeError> {
        let extra = params.extra_data.as_deref().unwrap_or_default();
        let channels = params.channels.as_ref().map_or(1, |channels| channels.count());
        let head = Head::read(extra).unwrap_or(Head { channels, skip: 0, gain_q8_db: 0, mapping_family: 0 });
        let damaged = |what: &str| DecodeError::Damaged(format!("opus: {what}"));
        let decoder = if head.mapping_family == 0 {
            let decoder = OpusDecoder::new(RATE_HZ.cast_signed(), head.channels).map_err(damaged)?;
            Decoder::Single(Box::new(decoder))
        } else {
            let table = mapping(&head, extra).ok_or_else(|| damaged("the channel mapping is not valid"))?;
            let decoder = MultistreamDecoder::new(RATE_HZ.cast_signed(), table).map_err(damaged)?;
            Decoder::Multistream(Box::new(decoder))
        };
        let gain = 10f32.powf(f32::from(head.gain_q8_db) / 256.0 / 20.0);
        let packet = vec![0.0; MAX_FRAMES * head.channels];
        Ok(Self { decoder, channels: head.channels, skip: head.skip, gain, packet })
    }

    /// Writes interleaved samples to `out` and returns rate and channels; `None` if all samples are skipped.
    pub(super) fn decode(
        &mut self,
        packet: &Packet,
        out: &mut Vec<f32>,
    ) -> Result<Option<(u32, usize)>, String> {
        if packet.data.is_empty() {
            return Ok(None);
        }
        out.clear();
        let space = &mut self.packet;
        let frames = match &mut self.decoder {
            Decoder::Single(decoder) => decoder.decode(&packet.data, MAX_FRAMES, space),
            Decoder::Multistream(decoder) => decoder.decode(&packet.data, MAX_FRAMES, space),
        };
        let frames = frames.map_err(|what| format!("opus: {what}"))?.min(MAX_FRAMES);
        let end = frames - frames.min(usize::try_from(packet.trim_end.get()).unwrap_or(frames));
        let start = self.skip.min(end);
        self.skip -= self.skip.min(frames);
        let heard = &self.packet[start * self.channels..end * self.channels];
        out.extend(heard.iter().map(|sample| sample * self.gain));
        Ok((!out.is_empty()).then_some((RATE_HZ, self.channels)))
    }
}

/// The mapping table, validated: the decoder uses it as indices.
fn mapping(head: &Head, extra: &[u8]) -> Option<ChannelMappingTable> {
    let channels = u8::try_from(head.channels).ok()?;
    let table = ChannelMappingTable::parse(head.mapping_family, channels, &extra[19..])?;
    let decoded = usize::from(table.stream_count) + usize::from(table.coupled_count);
    let valid = (1..=super::MAX_CHANNELS).contains(&head.channels)
        && (1..=super::MAX_CHANNELS).contains(&usize::from(table.stream_count))
        && table.coupled_count <= table.stream_count
        && table.mapping.iter().all(|&from| from == 255 || usize::from(from) < decoded);
    valid.then_some(table)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use symphonia::core::audio::layouts::{CHANNEL_LAYOUT_MONO, CHANNEL_LAYOUT_STEREO};

    use super::*;

    fn packet(data: Vec<u8>) -> Packet {
        Packet::new(0, 0i64.into(), 0u64.into(), data)
    }

    fn head(channels: u8, skip: u16, gain_q8_db: i16, tail: &[u8]) -> Vec<u8> {
        let mut head = b"OpusHead\x01".to_vec();
        head.push(channels);
        head.extend(skip.to_le_bytes());
        head.extend(48_000u32.to_le_bytes());
        head.extend(gain_q8_db.to_le_bytes());
        head.extend(tail);
        head
    }

    fn stream(extra: Vec<u8>, stereo: bool) -> Result<OpusStream, DecodeError> {
        let mut params = AudioCodecParameters::new();
        let layout = if stereo { CHANNEL_LAYOUT_STEREO } else { CHANNEL_LAYOUT_MONO };
        params.with_extra_data(extra.into()).with_channels(layout);
        OpusStream::new(&params)
    }

    #[test]
    fn the_header_is_applied_and_validated() {
        // 20 ms of CELT without bits is silence of the right length.
        let mut out = Vec::new();
        let mut single = stream(head(1, 312, 0, &[0]), false).unwrap();
        assert_eq!(single.decode(&packet(vec![0xf8, 0, 0]), &mut out), Ok(Some((48_000, 1))));
        assert_eq!(out.len(), 960 - 312);
        assert_eq!(single.decode(&packet(Vec::new()), &mut out), Ok(None));
        assert!(stream(head(2, 0, 0, &[1, 1, 1, 0, 1]), true).is_ok());
        for tail in
            [&[1, 1, 1, 0, 2][..], &[1, 0, 0, 0, 1], &[1, 1, 2, 0, 1], &[1, 1, 1, 0], &[255, 200, 0, 0, 1]]
        {
            assert!(matches!(stream(head(2, 0, 0, tail), true), Err(DecodeError::Damaged(_))), "{tail:?}");
        }
        assert!(stream(head(3, 0, 0, &[0]), true).is_err());
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: super::super::tests::cases(), ..ProptestConfig::default() })]

        #[test]
        fn any_packets_give_a_result(
            stereo: bool,
            multistream: bool,
            packets in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..200), 1..12),
        ) {
            let tail: &[u8] = if multistream && stereo { &[1, 2, 0, 0, 1] } else { &[0] };
            let mut stream = stream(head(1 + u8::from(stereo), 0, 0, tail), stereo).unwrap();
            let mut out = Vec::new();
            for data in packets {
                if let Ok(Some((_, channels))) = stream.decode(&packet(data), &mut out) {
                    prop_assert_eq!(channels, 1 + usize::from(stereo));
                }
            }
        }
    }
}
