//! The sound device of this machine, through the system's own interface: its output and its microphone.
//!
//! Samples pass between the device's thread and this program through a ring without locks. Knows no file and no format of one.

use std::sync::atomic::{AtomicU64, Ordering};
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
        let Self { device, config, mut source, report } = self;
        let channels = usize::from(config.channels()).max(1);
        let shared = Arc::clone(report);
        let fill = move |out: &mut [T], info: &OutputCallbackInfo| {
            let times = info.timestamp();
            let latency = times.playback.duration_since(times.callback);
            shared.latency_us.store(latency.as_micros() as u64, Ordering::Relaxed);
            for frame in out.chunks_mut(channels) {
                let sample = source.pop().unwrap_or(0.0);
                for (channel, out) in frame.iter_mut().enumerate() {
                    *out = T::from_sample(if channel < FRONT_CHANNELS { sample } else { 0.0 });
                }
            }
        };
        device.build_output_stream(config.into(), fill, Arc::clone(report).on_error(), None)
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
        let mut stall = Stall::new();
        while self.plays && self.samples.slots() < self.samples.buffer().capacity() {
            self.report.check(SPEAKER)?;
            stall.wait(self.samples.slots()).await?;
        }
        tokio::time::sleep(self.latency() + LATENCY_MARGIN).await;
        Ok(())
    }

    /// The audio that was heard so far.
    pub(super) fn heard(&self) -> Duration {
        let ring = self.samples.buffer().capacity() - self.samples.slots();
        let taken = self.sent.saturating_sub(ring as u64);
        Duration::from_secs_f64(taken as f64 / f64::from(self.device_hz)).saturating_sub(self.latency())
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
