//! The networks that score frames: Silero VAD, and a small one for where its weights are not installed.
//!
//! Knows no span.

use std::fs::File;
use std::io::{self, Read as _};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use earshot::Detector;

use super::silero::{self, BATCH, Silero, WeightsError};
use super::{ScoreRules, TARGET_RMS, VadOptions, frame_rms, level_gain, spans_of};

/// Samples per score of the small network.
const SMALL_FRAME: usize = 256;
/// The small network starts from silence: noise at the start of a recording scores as speech for up to 18 frames.
const SMALL_RULES: ScoreRules = ScoreRules { frame: SMALL_FRAME, start_frames: 3, min_speech_at_start: 20 };
const SILERO_RULES: ScoreRules = ScoreRules { frame: silero::FRAME, start_frames: 0, min_speech_at_start: 0 };

/// Assumed level before anything louder was heard, and the lowest level that is amplified to the target: quieter audio
/// is silence.
const MIN_LEVEL: f32 = 0.005;
/// Share of a louder frame in the running level: it follows a voice within a few frames, and a knock only in part.
const ATTACK: f32 = 0.3;
/// Fall of the running level with every frame: half of it in ten seconds.
const RELEASE: f32 = 0.998_9;
/// Level of the noise that the small network hears always, relative to full scale after the amplification. From digital
/// silence on, it takes quiet noise for speech, for minutes.
const NOISE: f32 = 0.003;
/// Frames of noise that the small network hears before a stream: its first scores are too high.
const LEAD_FRAMES: usize = 60;

/// The most bytes of a file of weights.
const MAX_FILE: u64 = 16 << 20;

/// The network that detects speech. The default is a small one that needs no weights; it takes music with voice-like
/// harmonics for speech more often than Silero VAD. Clones share their weights.
#[derive(Debug, Clone, Default)]
pub struct VadModel(Option<Arc<Silero>>);

impl VadModel {
    /// Silero VAD with the weights in `file`, or the small network where there is no such file.
    ///
    /// # Errors
    /// The file cannot be read, or as [`Self::from_safetensors`].
    pub fn open(file: &Path) -> Result<Self, WeightsError> {
        let mut bytes = Vec::new();
        let read = File::open(file).and_then(|file| file.take(MAX_FILE).read_to_end(&mut bytes));
        match read {
            Ok(_) => Self::from_safetensors(&bytes),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(WeightsError::unreadable(file, &error)),
        }
    }

    /// Silero VAD with the weights of its published safetensors file for 16 kHz.
    ///
    /// # Errors
    /// It is no such file, or a tensor is missing or has another type or shape.
    pub fn from_safetensors(bytes: &[u8]) -> Result<Self, WeightsError> {
        Ok(Self(Some(Arc::new(Silero::from_safetensors(bytes)?))))
    }

    /// Whether it is the network without weights.
    pub fn is_small(&self) -> bool {
        self.0.is_none()
    }

    pub(super) fn rules(&self) -> ScoreRules {
        if self.0.is_some() { SILERO_RULES } else { SMALL_RULES }
    }

    /// The spans of `samples_16k` (mono, 16 kHz) that contain speech, as sample indices: sorted, disjoint, within bounds.
    pub fn speech_spans(&self, samples_16k: &[f32], options: &VadOptions) -> Vec<Range<usize>> {
        let scores = self.scores(samples_16k, level_gain(samples_16k));
        spans_of(&scores, self.rules(), samples_16k.len(), options)
    }

    /// The score of each frame of a recording, 0..=1, after amplification by `gain`. The last frame is filled with silence.
    pub fn scores(&self, samples_16k: &[f32], gain: f32) -> Vec<f32> {
        let Some(silero) = &self.0 else {
            let mut detector = Detector::default();
            return samples_16k
                .chunks(SMALL_FRAME)
                .map(|frame| small_score(&mut detector, frame, gain))
                .collect();
        };
        let (mut state, mut scores) = (silero::State::default(), Vec::new());
        let mut frames = Vec::with_capacity(BATCH * silero::FRAME);
        for part in samples_16k.chunks(BATCH * silero::FRAME) {
            frames.clear();
            frames.extend(part.iter().map(|&sample| amplified(sample, gain)));
            frames.resize(part.len().next_multiple_of(silero::FRAME), 0.0);
            silero.push(&mut state, &frames, &mut scores);
        }
        scores
    }
}

/// The network of one stream, with its state.
pub(super) enum StreamScorer {
    Silero { network: Arc<Silero>, state: Box<silero::State>, scores: Vec<f32> },
    Small(Small),
}

/// The small network, which needs a steady level and some noise.
pub(super) struct Small {
    detector: Box<Detector>,
    level: f32,
    noise: Noise,
}

/// White noise, the same in every stream.
#[derive(Debug)]
struct Noise(u64);

impl Noise {
    /// The next sample in −1.0..1.0.
    fn next(&mut self) -> f32 {
        // Knuth's generator; its high bits are good enough to listen to.
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }
}

impl StreamScorer {
    /// The network at the start of a stream.
    pub(super) fn new(model: &VadModel) -> Self {
        match &model.0 {
            Some(silero) => Self::Silero {
                network: Arc::clone(silero),
                state: Box::default(),
                scores: Vec::with_capacity(1),
            },
            None => Self::Small(Small::new()),
        }
    }

    /// The score of the next frame, which is changed.
    pub(super) fn score(&mut self, frame: &mut [f32]) -> f32 {
        match self {
            Self::Silero { network, state, scores } => {
                frame.iter_mut().for_each(|sample| *sample = amplified(*sample, 1.0));
                scores.clear();
                network.push(state, frame, scores);
                scores.first().copied().unwrap_or_default()
            }
            Self::Small(small) => small.score(frame),
        }
    }
}

impl Small {
    fn new() -> Self {
        let mut small = Self { detector: Detector::default_boxed(), level: MIN_LEVEL, noise: Noise(1) };
        for _ in 0..LEAD_FRAMES {
            small.score(&mut [0.0; SMALL_FRAME]);
        }
        small
    }

    fn score(&mut self, frame: &mut [f32]) -> f32 {
        let rms = frame_rms(frame);
        self.level = if rms > self.level {
            self.level + ATTACK * (rms.min(1.0) - self.level)
        } else {
            (self.level * RELEASE).max(MIN_LEVEL)
        };
        let gain = TARGET_RMS / self.level;
        for sample in &mut *frame {
            *sample += self.noise.next() * NOISE / gain;
        }
        small_score(&mut self.detector, frame, gain)
    }
}

/// The score of the next frame of the small network. A short frame is filled with silence.
fn small_score(detector: &mut Detector, samples: &[f32], gain: f32) -> f32 {
    let mut frame = [0.0; SMALL_FRAME];
    frame.iter_mut().zip(samples).for_each(|(to, &from)| *to = amplified(from, gain));
    detector.predict_f32(&frame)
}

/// An amplified sample within full scale; silence for what is no number.
fn amplified(sample: f32, gain: f32) -> f32 {
    if sample.is_finite() { (sample * gain).clamp(-1.0, 1.0) } else { 0.0 }
}
