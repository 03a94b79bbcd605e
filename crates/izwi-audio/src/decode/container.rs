//! Containers and codecs: finds the audio track, decodes it packet by packet, skips damaged packets.

use symphonia::core::codecs::audio::well_known as codec;
use symphonia::core::codecs::audio::{AudioCodecId, AudioCodecParameters, AudioDecoder, AudioDecoderOptions};
use symphonia::core::codecs::registry::CodecRegistry;
use symphonia::core::errors::Error;
use symphonia::core::formats::probe::{Hint, Probe, ProbeOptions};
use symphonia::core::formats::{FormatReader, TrackType};
use symphonia::core::io::MediaSourceStream;
use symphonia::core::packet::Packet;
use symphonia::default::{register_enabled_codecs, register_enabled_formats};

use super::bytes::Bytes;
use super::opus::OpusStream;
use super::sink::Sink;
use super::wav_header::Source;
use super::{DecodeError, check_channels, check_rate};

/// Bytes in front of a container that are searched for it, metadata not counted.
const MAX_PROBE_BYTES: u32 = 64 * 1024;
/// Failed packets that are tolerated; beyond them, a file with more failed than good packets is damaged.
const TOLERATED_FAILURES: usize = 100;

/// Decodes the first audio track of `source` into `sink`.
pub(super) fn read<B>(source: Source<B>, mut sink: Sink<'_>) -> Result<(), DecodeError>
where
    B: Bytes,
{
    let mut format = open(source)?;
    let mut track = Track::of(format.as_mut())?;
    let mut packets = PacketCounts::default();
    loop {
        sink.begin_packet()?;
        let packet = match format.next_packet() {
            Ok(Some(packet)) => packet,
            Ok(None) => break,
            // The next link of a chained file.
            Err(Error::ResetRequired) => {
                sink.begin_link()?;
                track = Track::of(format.as_mut())?;
                continue;
            }
            // A truncated file: the packets before are used.
            Err(Error::IoError(error)) => {
                packets.last_error = Some(error.to_string());
                break;
            }
            Err(error) => {
                packets.count_failed(error.to_string())?;
                continue;
            }
        };
        if packet.track_id != track.id {
            continue;
        }
        match track.decode(&packet) {
            Ok(Some((rate_hz, channels))) => {
                packets.decoded += 1;
                sink.push(rate_hz, channels, &track.samples)?;
            }
            Ok(None) => {}
            Err(reason) => packets.count_failed(reason)?,
        }
    }
    match (sink.finish(), packets.last_error) {
        (Err(DecodeError::Empty), Some(reason)) if packets.decoded == 0 => Err(DecodeError::Damaged(reason)),
        (result, _) => result,
    }
}

#[derive(Default)]
struct PacketCounts {
    decoded: usize,
    failed: usize,
    last_error: Option<String>,
}

impl PacketCounts {
    fn count_failed(&mut self, reason: String) -> Result<(), DecodeError> {
        self.failed += 1;
        if self.failed > TOLERATED_FAILURES && self.failed > self.decoded {
            return Err(DecodeError::Damaged(format!("{} packets cannot be decoded: {reason}", self.failed)));
        }
        self.last_error = Some(reason);
        Ok(())
    }
}

fn open<B>(source: Source<B>) -> Result<Box<dyn FormatReader>, DecodeError>
where
    B: Bytes,
{
    let opening: Vec<String> = source.opening().iter().map(|b| format!("{b:02x}")).collect();
    let options = ProbeOptions { max_probe_depth: MAX_PROBE_BYTES, ..ProbeOptions::default() };
    let mut probe = Probe::new_with_options(&options);
    register_enabled_formats(&mut probe);
    let stream = MediaSourceStream::new(Box::new(source), Default::default());
    probe.probe(&Hint::new(), stream, Default::default(), Default::default()).map_err(|error| match error {
        Error::Unsupported(_) => {
            DecodeError::UnknownFormat(format!("the file begins with {}; {error}", opening.join(" ")))
        }
        // The probe reached the end of the file without a container.
        Error::IoError(_) => {
            let opening = opening.join(" ");
            DecodeError::UnknownFormat(format!(
                "the file begins with {opening} and contains no supported stream"
            ))
        }
        _ => DecodeError::Damaged(error.to_string()),
    })
}

enum Codec {
    Symphonia(Box<dyn AudioDecoder>),
    Opus(Box<OpusStream>),
}

/// The selected track, its decoder and the interleaved samples of its last packet.
struct Track {
    id: u32,
    codec: Codec,
    samples: Vec<f32>,
}

impl Track {
    fn of(format: &mut (dyn FormatReader + '_)) -> Result<Self, DecodeError> {
        let name = format.format_info().short_name;
        let unknown = |what: String| DecodeError::UnknownFormat(format!("{name} {what}"));
        let track = format.default_track(TrackType::Audio).or_else(|| format.first_track(TrackType::Audio));
        let Some(track) = track else { return Err(unknown("without an audio track".to_owned())) };
        let Some(params) = track.codec_params.as_ref().and_then(|params| params.audio()) else {
            return Err(unknown("with an audio track of unknown codec".to_owned()));
        };
        if let Some(rate_hz) = params.sample_rate {
            check_rate(rate_hz)?;
        }
        if let Some(channels) = &params.channels {
            check_channels(channels.count())?;
        }
        Ok(Self { id: track.id, codec: Codec::of(params, unknown)?, samples: Vec::new() })
    }

    /// Decodes into `samples` and returns rate and channels; `None` for a packet without audio.
    fn decode(&mut self, packet: &Packet) -> Result<Option<(u32, usize)>, String> {
        match &mut self.codec {
            Codec::Opus(stream) => stream.decode(packet, &mut self.samples),
            Codec::Symphonia(decoder) => {
                let buffer = decoder.decode(packet).map_err(|error| error.to_string())?;
                buffer.copy_to_vec_interleaved(&mut self.samples);
                let spec = buffer.spec();
                let found = (spec.rate(), spec.channels().count());
                Ok((!self.samples.is_empty()).then_some(found))
            }
        }
    }
}

impl Codec {
    fn of(
        params: &AudioCodecParameters,
        unknown: impl Fn(String) -> DecodeError,
    ) -> Result<Self, DecodeError> {
        if params.codec == codec::CODEC_ID_OPUS {
            return Ok(Self::Opus(Box::new(OpusStream::new(params)?)));
        }
        let mut registry = CodecRegistry::new();
        register_enabled_codecs(&mut registry);
        // Samples of 0 bits come from a damaged header; the PCM decoder would shift by the full width of its type.
        let mut params = params.clone();
        params.bits_per_sample = params.bits_per_sample.filter(|&bits| bits > 0);
        params.bits_per_coded_sample = params.bits_per_coded_sample.filter(|&bits| bits > 0);
        match registry.make_audio_decoder(&params, &AudioDecoderOptions::default()) {
            Ok(decoder) => Ok(Self::Symphonia(decoder)),
            Err(Error::Unsupported(what)) => {
                Err(unknown(format!("with {}, which cannot be decoded: {what}", codec_name(params.codec))))
            }
            Err(error) => Err(DecodeError::Damaged(error.to_string())),
        }
    }
}

fn codec_name(id: AudioCodecId) -> String {
    let name = match id {
        codec::CODEC_ID_AAC => "aac",
        codec::CODEC_ID_AC3 => "ac-3",
        codec::CODEC_ID_EAC3 => "e-ac-3",
        codec::CODEC_ID_DCA => "dts",
        codec::CODEC_ID_MP1 => "mp1",
        codec::CODEC_ID_MP2 => "mp2",
        codec::CODEC_ID_TRUEHD => "truehd",
        codec::CODEC_ID_TTA => "tta",
        codec::CODEC_ID_WAVPACK => "wavpack",
        codec::CODEC_ID_SPEEX => "speex",
        codec::CODEC_ID_ADPCM_G722 => "g.722",
        codec::CODEC_ID_ADPCM_G726 => "g.726",
        other => return format!("codec {other}"),
    };
    name.to_owned()
}
