//! What a family of frame models implements: prompts, a batched language-model step, a streaming codec.
//!
//! Knows no scheduling of codec work and no request in progress: those are the driver's.

use std::sync::Arc;

use izwi_audio::chunk::ChunkLengths;
use izwi_nn::Error;
use izwi_nn::kv_pool::{KvLayout, KvPool};
use izwi_nn::sampling::mix;
use izwi_types::{
    Emission, EncoderWork, Input, InputError, ModelInfo, PartTimes, PrepareLimits, StepOutput, TextProgress,
    VoiceRecording, Work,
};

use crate::model::{clones_no_voices, takes_text_whole};

/// A streaming decoder of frames.
pub(crate) trait FrameCodec: Send + Sync {
    /// One frame: integer codes, or a continuous latent.
    type Frame: Clone + Send + Sync + 'static;
    /// Decoder state of one stream of frames.
    type Stream: Send + 'static;

    /// Static facts.
    fn info(&self) -> CodecInfo;

    /// A key that repeats when speech loops, such as the code of the first codebook; `None` where frames are continuous
    /// and loops cannot be told by equality.
    fn loop_key(&self, frame: &Self::Frame) -> Option<u32>;

    /// Decodes new frames of several streams in one pass per layer: [`CodecInfo::samples_per_frame`] samples for each
    /// frame, less [`CodecInfo::held_back`] for the first of a stream. The result of a stream depends on that stream
    /// alone.
    ///
    /// # Errors
    /// A frame does not fit the codec. The streams are then undefined and must be dropped.
    fn decode(&self, batch: &mut [StreamInput<'_, Self>]) -> Result<Vec<Vec<f32>>, Error>;

    /// The samples a stream holds back, none where it had no frame.
    fn finish(&self, stream: &mut Self::Stream) -> Vec<f32>;
}

/// A stream and its new frames.
pub(crate) type StreamInput<'a, C> = (&'a mut <C as FrameCodec>::Stream, &'a [<C as FrameCodec>::Frame]);

/// Static facts of a codec.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CodecInfo {
    /// Samples of one frame.
    pub(crate) samples_per_frame: usize,
    /// Samples of a stream's first frame that come with the frame after it, or at the end.
    pub(crate) held_back: usize,
    /// Rate of the samples, in Hz.
    pub(crate) sample_rate_hz: usize,
    /// Bytes of weights that a decode reads.
    pub(crate) decoder_bytes: usize,
}

/// A model that generates speech frame by frame. Weights are `&self`; all change is a `State`.
pub(crate) trait FrameModel: Send + Sync + Sized + 'static {
    /// The decoder of its frames.
    type Codec: FrameCodec;
    /// Data of a request that all of its passes share.
    type Request: Send + Sync + 'static;
    /// Data of one pass: the prompt and how to sample.
    type Pass: Send + Sync + 'static;
    /// Everything about a running pass that changes in the language model.
    type State: Send + 'static;

    /// Index of the codec in [`Self::part_times`].
    const CODEC_PART: usize;

    /// Static facts.
    fn info(&self) -> &ModelInfo;

    /// Shape of one token's keys and values; `None` where the language model keeps no KV cache.
    fn kv_layout(&self) -> Option<KvLayout>;

    /// The decoder of its frames.
    fn codec(&self) -> &Self::Codec;

    /// Bytes of language-model weights that one step of one sequence reads.
    fn step_bytes(&self) -> usize;

    /// Where the time of its steps goes.
    fn part_times(&self) -> &PartTimes;

    /// An input that touches every kernel once, for warm-up.
    fn warm_up_input(&self) -> Input;

    /// Turns an input into passes. Runs on a blocking thread.
    ///
    /// # Errors
    /// The input cannot be taken; the error names the field, the value and the remedy.
    fn plan(&self, input: &Input, limits: &PrepareLimits) -> Result<Plan<Self>, InputError>;

    /// As [`crate::model::SpeechModel::append_text`], for the only pass of an input with more text.
    ///
    /// # Errors
    /// The pass takes no more text, or not as much.
    fn append_text(
        &self,
        _pass: &Self::Pass,
        _text: &str,
        _is_last: bool,
    ) -> Result<TextProgress, InputError> {
        Err(takes_text_whole())
    }

    /// Whether the next position of a running pass can be computed, rather than waits for text.
    fn has_text(&self, _pass: &Self::Pass, _state: &Self::State) -> bool {
        true
    }

    /// Text tokens of a running pass that were not planned: it has generated them to speak them, or they were appended. Each
    /// allows the watchdog's frames of a text token more.
    fn spoken_tokens(&self, _pass: &Self::Pass, _state: &Self::State) -> usize {
        0
    }

    /// The state of a pass that starts.
    fn start(&self, request: &Self::Request, pass: &Self::Pass) -> Self::State;

    /// The decoder state of a pass that starts.
    ///
    /// # Errors
    /// The stream is to continue a recording that the codec does not take.
    fn start_stream(&self, request: &Self::Request) -> Result<<Self::Codec as FrameCodec>::Stream, Error>;

    /// Checks that the positions of a pass up to `end` exist. An entry that fails is left out of the step.
    ///
    /// # Errors
    /// One does not exist.
    fn check(&self, pass: &Self::Pass, state: &Self::State, end: usize) -> Result<(), Error>;

    /// One batched pass of the language model over the positions of all entries; the answer has one result per entry,
    /// in order. The result of an entry depends on that entry alone. All positions exist.
    ///
    /// # Errors
    /// A tensor operation failed.
    fn step(
        &self,
        kv: &mut KvPool,
        entries: &mut [StepEntry<'_, Self>],
    ) -> Result<Vec<StepResult<FrameOf<Self>>>, Error>;

    /// Adds what a pass yields at its end: the rest of its text, segments, the language.
    fn finish_pass(
        &self,
        request: &Self::Request,
        pass: &Self::Pass,
        state: &mut Self::State,
        output: &mut StepOutput,
    );

    /// As [`crate::model::SpeechModel::make_voice`].
    ///
    /// # Errors
    /// The model does not clone voices, or the recording cannot be taken.
    fn make_voice(&self, _recording: &VoiceRecording) -> Result<Vec<u8>, InputError> {
        Err(clones_no_voices("model"))
    }

    /// As [`crate::model::SpeechModel::check_voice`].
    ///
    /// # Errors
    /// The pack is damaged or was made for another checkpoint.
    fn check_voice(&self, _pack: &[u8]) -> Result<(), InputError> {
        Err(clones_no_voices("voice"))
    }
}

/// The frame type of a model.
pub(crate) type FrameOf<F> = <<F as FrameModel>::Codec as FrameCodec>::Frame;

/// What a family makes of an input.
pub(crate) struct Plan<F: FrameModel> {
    /// What all passes share.
    pub(crate) request: F::Request,
    /// The passes, in order; none where there is nothing to generate.
    pub(crate) passes: Vec<PassPlan<F::Pass>>,
    /// When frames are decoded.
    pub(crate) chunk_policy: ChunkPolicy,
    /// Where a pass ends if the model does not end it.
    pub(crate) limits: PassLimits,
}

/// One pass: a prompt, then a position a step until the model or a limit ends it.
pub(crate) struct PassPlan<P> {
    /// The family's data.
    pub(crate) pass: P,
    /// Content key of each prompt position: equal prefixes of keys may share KV blocks.
    pub(crate) prompt_keys: Arc<[u64]>,
    /// Encoders that run before the positions of the prompt.
    pub(crate) encoders: Arc<[EncoderWork]>,
    /// Frames after which the watchdog ends the pass, besides those of [`FrameModel::spoken_tokens`]; `None` turns the
    /// watchdog off.
    pub(crate) max_frames: Option<usize>,
    /// Generated positions after which the pass counts as a runaway; `None` for no such limit.
    pub(crate) max_positions: Option<usize>,
}

impl<P> PassPlan<P> {
    /// The pass as schedulable work.
    pub(crate) fn work(&self) -> Work {
        let (prompt, encoders) = (Arc::clone(&self.prompt_keys), Arc::clone(&self.encoders));
        Work::Autoregressive { prompt, encoders, branches: 1 }
    }
}

/// When the frames of a request are decoded.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ChunkPolicy {
    /// Samples the listener gets at once.
    pub(crate) lengths: ChunkLengths,
    /// Whether a chunk may be decoded alongside the next step, and so come one step late. Not in a conversation, where it
    /// has to be known at an interruption which emissions were played.
    pub(crate) may_defer: bool,
}

/// Where the engine, or the driver, ends a pass that the model does not end.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PassLimits {
    /// Generated positions after which the engine ends a pass.
    pub(crate) max_tokens: usize,
    /// Positions, prompt and generated, after which the engine ends a pass.
    pub(crate) max_positions: usize,
    /// Whether the driver ends the pass at the limit and starts the next one, as with windows of a recording. Else all
    /// pending frames are decoded there and the engine ends the request.
    pub(crate) starts_next_pass: bool,
}

impl PassLimits {
    /// Generated positions after which a pass after a prompt of `prompt` positions ends.
    pub(crate) fn max_generated(&self, prompt: usize) -> usize {
        self.max_tokens.min(self.max_positions.saturating_sub(prompt))
    }
}

/// Checks that the positions up to `end` are among the `known` ones.
///
/// # Errors
/// One does not exist.
pub(crate) fn check_positions(end: usize, known: usize) -> Result<(), Error> {
    if end > known { Err(Error::Internal("an entry asks for positions that do not exist")) } else { Ok(()) }
}

/// The seed of a pass of a request: that of the request for the first.
pub(crate) fn pass_seed(seed: u64, pass: usize) -> u64 {
    if pass == 0 { seed } else { mix(seed).wrapping_add(pass as u64) }
}

/// One sequence in a step.
pub(crate) struct StepEntry<'a, F: FrameModel> {
    pub(crate) request: &'a F::Request,
    pub(crate) pass: &'a F::Pass,
    pub(crate) state: &'a mut F::State,
    /// Positions to compute: `start..end`.
    pub(crate) start: usize,
    pub(crate) end: usize,
    /// Whether this is the first step since admission or preemption: earlier results are only in the blocks.
    pub(crate) begins: bool,
    pub(crate) block_table: &'a [u32],
}

/// What a step generated for one sequence.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Outcome<Frame> {
    /// Nothing: prompt or recomputed positions remain.
    Pending,
    /// A position with a frame to decode.
    Frame(Frame),
    /// A position without a frame to decode: text, or a control code.
    Token,
    /// The end of the pass.
    End,
    /// The end of a pass that does not end by itself.
    Runaway,
}

/// What a step generated for one sequence, with what belongs to its output.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct StepResult<Frame> {
    pub(crate) outcome: Outcome<Frame>,
    /// New text.
    pub(crate) text: String,
    /// The generated position, in a conversation.
    pub(crate) emission: Option<Emission>,
    /// Its content key, where it is known.
    pub(crate) content_key: Option<u64>,
}

impl<Frame> From<Outcome<Frame>> for StepResult<Frame> {
    fn from(outcome: Outcome<Frame>) -> Self {
        Self { outcome, text: String::new(), emission: None, content_key: None }
    }
}
