//! The sound device of this machine, through the system's own interface: its output and its microphone.
//!
//! Samples pass between the device's thread and this program through a ring without locks. Knows no file and no format of one.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Result;
use cpal::traits::{DeviceTrait, HostTrait, StreamTrait};
use cpal::{
    ErrorKind, FromSample, I24, InputCallbackInfo, OutputCallbackInfo, Sample, SampleFormat, SizedSample,
    SupportedStreamConfig,
};
use izwi_audio::encode::{self, EncoderConfig};
use izwi_audio::resample::Resampler;
use izwi_audio::stretch::Stretcher;
use rtrb::{Consumer, Producer, RingBuffer};

use crate::failure;

/// Audio that waits for the device, and audio of the microphone that waits for this program.
const RING_S: usize = 10;
/// Interval at which a full or empty ring is looked at.
const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// A device that takes or gives nothing for this long has failed.
const MAX_STALL: Duration = Duration::from_secs(5);
/// Added to the latency that the device tells, which leaves out its own buffer on some systems.
const LATENCY_MARGIN: Duration = Duration::from_millis(50);
/// Samples that are made at a time.
const BLOCK: usize = 128;
/// Channels of a device that get the sound; further ones are for other loudspeakers.
const FRONT_CHANNELS: usize = 2;

/// The interface of the system.
fn host() -> cpal::Host {
    // ALSA's library prints to standard error what each device lacks, also where another one works.
    #[cfg(not(any(target_os = "macos", windows)))]
    let _ = alsa::Output::local_error_handler();
    cpal::default_host()
}

/// What the thread of a device tells.
#[derive(Debug, Default)]
struct Report {
    failure: Mutex<Option<String>>,
    /// From a sample's way to the device until it is heard.
    latency_us: AtomicU64,
    /// Samples that the device took, each counted once.
    played: AtomicU64,
    /// Silent samples that it took between these, because none were there.
    missed: AtomicU64,
    /// Whether no samples follow those in the ring.
    ended: AtomicBool,
}

impl Report {
    /// What a device calls with its errors. A change of device or a late thread does not end the sound.
    fn on_error(self: Arc<Self>) -> impl FnMut(cpal::Error) + Send + 'static {
        move |error| match error.kind() {
            ErrorKind::Xrun | ErrorKind::DeviceChanged | ErrorKind::RealtimeDenied => {}
            _ => *self.failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(error.to_string()),
        }
    }

    fn check(&self, what: &str) -> Result<()> {
        match &*self.failure.lock().unwrap_or_else(PoisonError::into_inner) {
            None => Ok(()),
            Some(error) => Err(failed(what, error)),
        }
    }
}

fn failed(what: &str, error: impl std::fmt::Display) -> anyhow::Error {
    let help = "check the sound settings of this machine, and that this program may use the device";
    failure::with_help(format!("{what} failed: {error}"), help)
}

const SPEAKER: &str = "the sound device";
const MICROPHONE: &str = "the microphone";

/// The default output of this machine.
#[derive(Debug, Clone)]
pub(crate) struct Speaker {
    device: cpal::Device,
    config: SupportedStreamConfig,
}

impl Speaker {
    /// `None` if there is none.
    pub(super) fn find() -> Option<Self> {
        let device = host().default_output_device()?;
        let config = device.default_output_config().ok()?;
        Some(Self { device, config })
    }

    /// A stream of mono samples at `rate_hz`, which plays from its first samples on.
    pub(super) fn open(&self, rate_hz: u32) -> Result<SpeakerStream> {
        let device_hz = self.config.sample_rate();
        let resampler = Resampler::streamed(rate_hz, device_hz)?;
        let (samples, source) = RingBuffer::new(RING_S * device_hz as usize);
        let report = Arc::new(Report::default());
        let output = Output { device: &self.device, config: self.config, source, report: &report };
        let stream = match self.config.sample_format() {
            SampleFormat::F32 => output.start::<f32>(),
            SampleFormat::I16 => output.start::<i16>(),
            SampleFormat::I24 => output.start::<I24>(),
            SampleFormat::I32 => output.start::<i32>(),
            SampleFormat::U16 => output.start::<u16>(),
            other => return Err(failed(SPEAKER, format!("it wants samples of the format {other}"))),
        };
        let stream = stream.map_err(|error| failed(SPEAKER, error))?;
        Ok(SpeakerStream {
            stream,
            samples,
            resampler,
            device_hz,
            sent: 0,
            waiting: Vec::new(),
            report,
            plays: false,
            ended: false,
        })
    }
}

/// What an output stream is made of.
struct Output<'a> {
    device: &'a cpal::Device,
    config: SupportedStreamConfig,
    source: Consumer<f32>,
    report: &'a Arc<Report>,
}

impl Output<'_> {
    fn start<T: SizedSample + FromSample<f32>>(self) -> Result<cpal::Stream, cpal::Error> {
        let Self { device, config, source, report } = self;
        let channels = usize::from(config.channels()).max(1);
        let shared = Arc::clone(report);
        let mut source = Source::new(source, config.sample_rate());
        let fill = move |out: &mut [T], info: &OutputCallbackInfo| {
            let times = info.timestamp();
            let latency = times.playback.duration_since(times.callback);
            shared.latency_us.store(latency.as_micros() as u64, Ordering::Relaxed);
            for frames in out.chunks_mut(channels * BLOCK) {
                let mut block = [0.0; BLOCK];
                let block = &mut block[..frames.len().div_ceil(channels)];
                source.fill(block, &shared);
                for (frame, sample) in frames.chunks_mut(channels).zip(block) {
                    for (channel, out) in frame.iter_mut().enumerate() {
                        *out = T::from_sample(if channel < FRONT_CHANNELS { *sample } else { 0.0 });
                    }
                }
            }
        };
        device.build_output_stream(config.into(), fill, Arc::clone(report).on_error(), None)
    }
}

/// The ring as the device reads it: more slowly while little is in it.
struct Source {
    ring: Consumer<f32>,
    stretcher: Stretcher,
}

impl Source {
    fn new(ring: Consumer<f32>, rate_hz: u32) -> Self {
        Self { ring, stretcher: Stretcher::new(rate_hz) }
    }

    /// Fills `out` with what is next, then with silence, and reports what that was. Neither waits nor allocates.
    fn fill(&mut self, out: &mut [f32], report: &Report) {
        // Before the ring is read: nothing follows what is in it then.
        let has_ended = report.ended.load(Ordering::Acquire);
        let wanted = (out.len() + self.stretcher.lookahead()).saturating_sub(self.stretcher.waiting());
        if let Ok(chunk) = self.ring.read_chunk(wanted.min(self.ring.slots())) {
            self.stretcher.push(chunk);
        }
        let behind = (!has_ended).then(|| self.ring.slots());
        let count = self.stretcher.pull(out, behind);
        out[count..].fill(0.0);
        if !has_ended && self.stretcher.played() > 0 {
            report.missed.fetch_add((out.len() - count) as u64, Ordering::Relaxed);
        }
        report.played.store(self.stretcher.played(), Ordering::Release);
    }
}

/// A stream that is played. Dropping it stops it at once.
pub(crate) struct SpeakerStream {
    stream: cpal::Stream,
    samples: Producer<f32>,
    resampler: Resampler,
    device_hz: u32,
    /// Samples that were in the ring.
    sent: u64,
    /// Samples at the rate of the device that are not in the ring yet.
    waiting: Vec<f32>,
    report: Arc<Report>,
    plays: bool,
    /// Whether the resampler has given its rest.
    ended: bool,
}

impl std::fmt::Debug for SpeakerStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SpeakerStream").field("resampler", &self.resampler).finish_non_exhaustive()
    }
}

impl SpeakerStream {
    /// Plays more samples; waits while the ring is full.
    pub(super) async fn write(&mut self, samples: &[f32]) -> Result<()> {
        // The end of what was played before may have been awaited.
        self.report.ended.store(false, Ordering::Release);
        self.resampler.push(samples, &mut self.waiting)?;
        self.send().await
    }

    /// Waits until the last sample was heard.
    pub(super) async fn finish(&mut self) -> Result<()> {
        if !self.ended {
            self.resampler.finish(&mut self.waiting)?;
            self.ended = true;
        }
        self.send().await?;
        self.report.ended.store(true, Ordering::Release);
        let mut stall = Stall::new();
        while self.plays && self.played() < self.sent {
            self.report.check(SPEAKER)?;
            stall.wait(self.played() as usize).await?;
        }
        tokio::time::sleep(self.latency() + LATENCY_MARGIN).await;
        Ok(())
    }

    /// The audio that was heard so far.
    pub(super) fn heard(&self) -> Duration {
        self.duration(self.played()).saturating_sub(self.latency())
    }

    /// The silence that was heard between audio, because none was there.
    pub(super) fn missed(&self) -> Duration {
        self.duration(self.report.missed.load(Ordering::Relaxed))
    }

    fn played(&self) -> u64 {
        self.report.played.load(Ordering::Acquire)
    }

    fn duration(&self, samples: u64) -> Duration {
        Duration::from_secs_f64(samples as f64 / f64::from(self.device_hz))
    }

    fn latency(&self) -> Duration {
        Duration::from_micros(self.report.latency_us.load(Ordering::Relaxed)).min(MAX_STALL)
    }

    async fn send(&mut self) -> Result<()> {
        let mut stall = Stall::new();
        while !self.waiting.is_empty() {
            self.report.check(SPEAKER)?;
            let count = self.samples.slots().min(self.waiting.len());
            if let Ok(chunk) = self.samples.write_chunk_uninit(count) {
                self.sent += chunk.fill_from_iter(self.waiting.drain(..count)) as u64;
            }
            if !self.plays {
                self.stream.play().map_err(|error| failed(SPEAKER, error))?;
                self.plays = true;
            }
            if !self.waiting.is_empty() {
                stall.wait(self.waiting.len()).await?;
            }
        }
        Ok(())
    }
}

/// Notices that a device stands still.
struct Stall {
    since: Instant,
    last: Option<usize>,
}

impl Stall {
    fn new() -> Self {
        Self { since: Instant::now(), last: None }
    }

    /// Waits a moment for `progress`, a figure that changes while the device works.
    async fn wait(&mut self, progress: usize) -> Result<()> {
        if self.last != Some(progress) {
            (self.since, self.last) = (Instant::now(), Some(progress));
        } else if self.since.elapsed() > MAX_STALL {
            return Err(failed("the sound", format!("nothing moved for {} s", MAX_STALL.as_secs())));
        }
        tokio::time::sleep(POLL_INTERVAL).await;
        Ok(())
    }
}

/// The default microphone. Dropping it stops it.
pub(crate) struct MicrophoneStream {
    _stream: cpal::Stream,
    samples: Consumer<f32>,
    resampler: Resampler,
    rate_hz: u32,
    report: Arc<Report>,
}

impl std::fmt::Debug for MicrophoneStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MicrophoneStream").field("resampler", &self.resampler).finish_non_exhaustive()
    }
}

/// The name of the default microphone; `None` without one.
pub(super) fn microphone_name() -> Option<String> {
    let device = host().default_input_device()?;
    device.default_input_config().ok()?;
    Some(device.description().ok()?.name().to_owned())
}

impl MicrophoneStream {
    /// Starts it; `None` if there is none.
    pub(super) fn open(rate_hz: u32) -> Result<Option<Self>> {
        let Some(device) = host().default_input_device() else { return Ok(None) };
        let Ok(config) = device.default_input_config() else { return Ok(None) };
        let device_hz = config.sample_rate();
        let resampler = Resampler::live(device_hz, rate_hz)?;
        let (sink, samples) = RingBuffer::new(RING_S * device_hz as usize);
        let report = Arc::new(Report::default());
        let input = Input { device: &device, config, sink, report: &report };
        let stream = match config.sample_format() {
            SampleFormat::F32 => input.start::<f32>(),
            SampleFormat::I16 => input.start::<i16>(),
            SampleFormat::I24 => input.start::<I24>(),
            SampleFormat::I32 => input.start::<i32>(),
            SampleFormat::U16 => input.start::<u16>(),
            other => return Err(failed(MICROPHONE, format!("it gives samples of the format {other}"))),
        };
        let stream = stream.map_err(|error| failed(MICROPHONE, error))?;
        stream.play().map_err(|error| failed(MICROPHONE, error))?;
        Ok(Some(Self { _stream: stream, samples, resampler, rate_hz, report }))
    }

    /// The next audio: 16-bit little-endian samples.
    pub(super) async fn read(&mut self) -> Result<Vec<u8>> {
        let mut stall = Stall::new();
        let mut out = Vec::new();
        loop {
            self.report.check(MICROPHONE)?;
            let count = self.samples.slots();
            if let Ok(chunk) = self.samples.read_chunk(count) {
                let heard: Vec<f32> = chunk.into_iter().collect();
                self.resampler.push(&heard, &mut out)?;
            }
            if !out.is_empty() {
                let mut encoder = encode::S16LE.encoder(&EncoderConfig::streamed(self.rate_hz))?;
                return Ok(encoder.push(&out)?);
            }
            stall.wait(0).await?;
        }
    }
}

/// What an input stream is made of.
struct Input<'a> {
    device: &'a cpal::Device,
    config: SupportedStreamConfig,
    sink: Producer<f32>,
    report: &'a Arc<Report>,
}

impl Input<'_> {
    fn start<T: SizedSample>(self) -> Result<cpal::Stream, cpal::Error>
    where
        f32: FromSample<T>,
    {
        let Self { device, config, mut sink, report } = self;
        let channels = usize::from(config.channels()).max(1);
        let take = move |heard: &[T], _: &InputCallbackInfo| {
            for frame in heard.chunks(channels) {
                let sum: f32 = frame.iter().map(|&sample| f32::from_sample(sample)).sum();
                // Audio that nobody reads is lost.
                let _ = sink.push(sum / frame.len() as f32);
            }
        };
        device.build_input_stream(config.into(), take, Arc::clone(report).on_error(), None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATE_HZ: u32 = 48_000;

    fn sine(samples: usize) -> Vec<f32> {
        (0..samples).map(|n| 0.5 * (n as f32 * 0.02).sin()).collect()
    }

    /// What the device is given of `samples` that come in `pieces`, with the report of it.
    fn play(samples: &[f32], piece: usize) -> (Vec<f32>, Report) {
        let (mut ring, source) = RingBuffer::new(RING_S * RATE_HZ as usize);
        let (mut source, report) = (Source::new(source, RATE_HZ), Report::default());
        let mut played = Vec::new();
        let mut block = [0.0; BLOCK];
        let mut sent = 0;
        for piece in samples.chunks(piece) {
            for &sample in piece {
                ring.push(sample).unwrap();
            }
            sent += piece.len();
            report.ended.store(sent == samples.len(), Ordering::Release);
            for _ in 0..piece.len() / BLOCK {
                source.fill(&mut block, &report);
                played.extend_from_slice(&block);
            }
        }
        while report.played.load(Ordering::Acquire) < samples.len() as u64 {
            source.fill(&mut block, &report);
            played.extend_from_slice(&block);
        }
        (played, report)
    }

    #[test]
    fn what_has_arrived_whole_is_played_as_it_is() {
        let samples = sine(BLOCK * 1_000);
        let (played, report) = play(&samples, samples.len());
        assert!(played == samples);
        assert_eq!(report.missed.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn what_comes_as_it_is_played_is_played_more_slowly_and_silence_is_counted() {
        let samples = sine(BLOCK * 1_000);
        let (played, report) = play(&samples, BLOCK * 75);
        let added = played.len() - samples.len();
        assert!((4_000..samples.len() / 10).contains(&added), "{added}");
        assert_eq!(report.missed.load(Ordering::Relaxed), 0);

        let (mut ring, source) = RingBuffer::new(RING_S * RATE_HZ as usize);
        let (mut source, report) = (Source::new(source, RATE_HZ), Report::default());
        let mut block = [1.0; BLOCK];
        source.fill(&mut block, &report);
        assert_eq!((block[0], report.missed.load(Ordering::Relaxed)), (0.0, 0), "nothing has begun");
        ring.push(0.5).unwrap();
        source.fill(&mut block, &report);
        source.fill(&mut block, &report);
        assert_eq!(report.missed.load(Ordering::Relaxed), 2 * BLOCK as u64 - 1);
        assert_eq!(report.played.load(Ordering::Acquire), 1);
    }
}
