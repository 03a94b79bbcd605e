//! Containers and codecs: finds the audio track, decodes it packet by packet, passes over what is damaged.

use symphonia::core::codecs::audio::well_known as codec;
use symphonia::core::codecs::audio::{AudioCodecId, AudioCodecParameters, AudioDecoder, AudioDecoderOptions};
use symphonia::core::codecs::registry::CodecRegistry;
use symphonia::core::errors::Error;
use symphonia::core::formats::probe::{Hint, Probe, ProbeOptions};
use symphonia::core::formats::{FormatReader, TrackType};
use symphonia::core::io::MediaSourceStream;
use symphonia::core::packet::Packet;
use symphonia::default::{register_enabled_codecs, register_enabled_formats};

use super::opus::OpusStream;
use super::sink::Sink;
use super::wav_header::Source;
use super::{DecodeError, check_channels, check_rate};

/// How far into a file a container may begin; metadata in front of it does not count.
const MAX_PROBE_BYTES: u32 = 64 * 1024;
/// Packets that may fail before more of them than good ones mean a file that is damaged beyond use.
const FAILURES_FORGIVEN: usize = 100;

/// Decodes the first audio track of `source` into `sink`.
pub(super) fn read<B>(source: Source<B>, mut sink: Sink) -> Result<Vec<f32>, DecodeError>
where
    B: AsRef<[u8]> + Send + Sync + 'static,
{
    let mut format = open(source)?;
    let mut track = Track::of(format.as_mut())?;
    let mut tally = Tally::default();
    loop {
        let packet = match format.next_packet() {
            Ok(Some(packet)) => packet,
            Ok(None) => break,
            // The next link of a chained file.
            Err(Error::ResetRequired) => {
                track = Track::of(format.as_mut())?;
                continue;
            }
            // Cut off: what came before is used.
            Err(Error::IoError(error)) => {
                tally.last = Some(error.to_string());
                break;
            }
            Err(error) => {
                tally.failed(error.to_string())?;
                continue;
            }
        };
        if packet.track_id != track.id {
            continue;
        }
        match track.decode(&packet) {
            Ok(Some((rate_hz, channels))) => {
                tally.good += 1;
                sink.push(rate_hz, channels, &track.samples)?;
            }
            Ok(None) => {}
            Err(reason) => tally.failed(reason)?,
        }
    }
    match (sink.finish(), tally.last) {
        (Err(DecodeError::Empty), Some(reason)) if tally.good == 0 => Err(DecodeError::Damaged(reason)),
        (result, _) => result,
    }
}

#[derive(Default)]
struct Tally {
    good: usize,
    bad: usize,
    last: Option<String>,
}

impl Tally {
    fn failed(&mut self, reason: String) -> Result<(), DecodeError> {
        self.bad += 1;
        if self.bad > FAILURES_FORGIVEN && self.bad > self.good {
            return Err(DecodeError::Damaged(format!("{} packets cannot be decoded: {reason}", self.bad)));
        }
        self.last = Some(reason);
        Ok(())
    }
}

fn open<B>(source: Source<B>) -> Result<Box<dyn FormatReader>, DecodeError>
where
    B: AsRef<[u8]> + Send + Sync + 'static,
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
        // The probe ends with it when no container was recognised before the file was over.
        Error::IoError(_) => {
            let opening = opening.join(" ");
            DecodeError::UnknownFormat(format!(
                "the file begins with {opening} and holds no stream that is read"
            ))
        }
        _ => DecodeError::Damaged(error.to_string()),
    })
}

enum Codec {
    Symphonia(Box<dyn AudioDecoder>),
    Opus(Box<OpusStream>),
}

/// The chosen track, its decoder and the interleaved samples of its last packet.
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

    /// Rate and channels of what now lies in `samples`; `None` when the packet holds no audio.
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
        // Samples of 0 bits are a damaged header; the PCM decoder would shift by the whole width of its type.
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
