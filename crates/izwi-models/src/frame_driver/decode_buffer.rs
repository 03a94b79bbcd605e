//! The decode buffer of one sequence: frames that wait for the codec, its decoder state, and how many samples came out.
//!
//! Owns when a chunk is due and the watchdog over decoded frames. Knows no codec's frames.

use super::frame_model::{ChunkPolicy, CodecInfo, FrameCodec, StreamInput};
use super::watchdog::{Limits, Watchdog};

/// The most frames that wait for the codec, however large the listener's chunk: a larger decode delays the step of all
/// other sequences.
pub(crate) const MAX_FRAMES_PER_CHUNK: usize = 4;
/// Frames the watchdog allows for each text token, and in addition for any text.
pub(super) const MAX_FRAMES_PER_TOKEN: usize = 12;
const MAX_FRAMES_BASE: usize = 60;
/// Seconds of repetition and of silence that do not occur in speech.
const LOOP_S: f64 = 4.0;
const SILENCE_S: f64 = 4.0;

/// Frames after which the watchdog ends a pass over a text of `tokens` tokens.
pub(crate) fn max_frames(tokens: usize) -> usize {
    MAX_FRAMES_BASE + MAX_FRAMES_PER_TOKEN * tokens
}

/// The decode buffer of one sequence.
pub(crate) struct DecodeBuffer<C: FrameCodec> {
    /// Decoder state of the pass; `None` until its first decode.
    pub(super) stream: Option<C::Stream>,
    /// Frames that are not decoded yet, oldest first.
    pub(super) pending: Vec<C::Frame>,
    /// How many of them, the oldest, are decoded alongside the next step.
    num_deferred: usize,
    /// Samples of all passes.
    num_samples: usize,
    /// Whether the pass has samples.
    has_samples: bool,
    watchdog: Option<Watchdog>,
    /// Whether the watchdog ended a pass.
    pub(super) ran_away: bool,
}

impl<C: FrameCodec> Default for DecodeBuffer<C> {
    fn default() -> Self {
        Self {
            stream: None,
            pending: Vec::new(),
            num_deferred: 0,
            num_samples: 0,
            has_samples: false,
            watchdog: None,
            ran_away: false,
        }
    }
}

impl<C: FrameCodec> DecodeBuffer<C> {
    /// Whether the pending frames complete a chunk.
    pub(super) fn is_due(&self, policy: &ChunkPolicy, info: &CodecInfo) -> bool {
        let held_back = if self.has_samples { 0 } else { info.held_back };
        let (before, after) =
            (self.num_samples, self.num_samples + self.pending.len() * info.samples_per_frame);
        let after = after.saturating_sub(held_back);
        !self.pending.is_empty()
            && (self.pending.len() >= MAX_FRAMES_PER_CHUNK
                || policy.lengths.complete(after) > policy.lengths.complete(before))
    }

    /// Whether the pending frames may be decoded alongside the next step: never the first chunk of a pass, so that the time
    /// to first audio does not grow, and none of the short chunks at the start, which are played sooner than a step lasts.
    pub(super) fn may_defer(&self, policy: &ChunkPolicy) -> bool {
        let is_early = policy.lengths.is_early(self.num_samples);
        policy.may_defer && self.has_samples && self.stream.is_some() && !is_early
    }

    /// Leaves the pending frames to be decoded alongside the next step.
    pub(super) fn defer(&mut self) {
        self.num_deferred = self.pending.len();
    }

    /// The stream and the frames to decode alongside this step, if there are any.
    pub(super) fn deferred(&mut self) -> Option<StreamInput<'_, C>> {
        let num_deferred = self.num_deferred.min(self.pending.len());
        self.stream
            .as_mut()
            .filter(|_| num_deferred > 0)
            .map(|stream| (stream, &self.pending[..num_deferred]))
    }

    /// Whether frames are to be decoded alongside this step.
    pub(crate) fn has_deferred(&self) -> bool {
        self.stream.is_some() && self.num_deferred.min(self.pending.len()) > 0
    }

    /// Accounts for the decoded samples of the deferred frames, or of all pending ones where none was deferred. Returns
    /// whether the watchdog ends the pass, over `max_frames` frames, in a loop or in silence; samples after that point
    /// are cut off.
    pub(super) fn take_samples(
        &mut self,
        codec: &C,
        max_frames: Option<usize>,
        samples: &mut Vec<f32>,
    ) -> bool {
        let info = codec.info();
        let count = match std::mem::take(&mut self.num_deferred) {
            0 => self.pending.len(),
            deferred => deferred,
        };
        let decoded: Vec<_> = self.pending.drain(..count.min(self.pending.len())).collect();
        let frames = decoded.iter().zip(samples.chunks(info.samples_per_frame)).enumerate();
        let end = max_frames.and_then(|max_frames| {
            let watchdog =
                self.watchdog.get_or_insert_with(|| Watchdog::new(watchdog_limits(&info, max_frames)));
            watchdog.set_max_frames(max_frames);
            let mut runaways =
                frames.filter(|(_, (frame, samples))| watchdog.observe(codec.loop_key(frame), samples));
            runaways.next().map(|(at, _)| (at + 1) * info.samples_per_frame)
        });
        samples.truncate(end.unwrap_or(usize::MAX));
        self.num_samples += samples.len();
        self.has_samples = true;
        self.ran_away |= end.is_some();
        end.is_some()
    }

    /// The buffer of the next pass of the same request.
    pub(super) fn next_pass(&mut self) {
        let Self { num_samples, ran_away, .. } = *self;
        *self = Self { num_samples, ran_away, ..Self::default() };
    }
}

fn watchdog_limits(info: &CodecInfo, max_frames: usize) -> Limits {
    let frames_per_s = info.sample_rate_hz as f64 / info.samples_per_frame.max(1) as f64;
    Limits { frames_per_s, max_frames, loop_s: LOOP_S, silence_s: SILENCE_S }
}

#[cfg(test)]
mod tests {
    use izwi_audio::chunk::ChunkLengths;
    use izwi_nn::Error;

    use super::*;

    struct Codec;

    impl FrameCodec for Codec {
        type Frame = u32;
        type Stream = ();

        fn info(&self) -> CodecInfo {
            CodecInfo { samples_per_frame: 100, held_back: 30, sample_rate_hz: 1000, decoder_bytes: 0 }
        }

        fn loop_key(&self, frame: &u32) -> Option<u32> {
            Some(*frame)
        }

        fn decode(&self, _batch: &mut [StreamInput<'_, Self>]) -> Result<Vec<Vec<f32>>, Error> {
            Ok(Vec::new())
        }

        fn finish(&self, (): &mut ()) -> Vec<f32> {
            Vec::new()
        }
    }

    #[test]
    fn held_back_samples_do_not_count_towards_a_chunk() {
        let policy = ChunkPolicy { lengths: ChunkLengths::new(100, None), may_defer: true };
        let info = Codec.info();
        let mut buffer = DecodeBuffer::<Codec> { stream: Some(()), ..DecodeBuffer::default() };
        assert!(!buffer.is_due(&policy, &info), "an empty buffer completes no chunk");
        buffer.pending.push(1);
        assert!(!buffer.is_due(&policy, &info), "70 samples complete no chunk");
        buffer.pending.push(2);
        assert!(buffer.is_due(&policy, &info) && !buffer.may_defer(&policy));
        assert!(!buffer.take_samples(&Codec, Some(3), &mut vec![0.5; 170]));
        buffer.pending.push(3);
        assert!(buffer.is_due(&policy, &info) && buffer.may_defer(&policy), "nothing more is held back");
        let mut samples = vec![0.5; 100];
        assert!(buffer.take_samples(&Codec, Some(3), &mut samples) && buffer.ran_away);
        buffer.next_pass();
        assert!(buffer.ran_away && !buffer.has_samples && buffer.pending.is_empty());
        assert_eq!(buffer.num_samples, 270);
    }

    #[test]
    fn a_first_chunk_of_its_own_size_is_due_earlier_and_the_others_behind_it() {
        let policy = ChunkPolicy { lengths: ChunkLengths::new(300, Some(70)), may_defer: true };
        let mut buffer = DecodeBuffer::<Codec> { stream: Some(()), ..DecodeBuffer::default() };
        buffer.pending.push(1);
        assert!(buffer.is_due(&policy, &Codec.info()), "70 samples complete the first chunk");
        assert!(!buffer.take_samples(&Codec, None, &mut vec![0.5; 70]));
        buffer.pending.push(2);
        assert!(
            buffer.is_due(&policy, &Codec.info()) && !buffer.may_defer(&policy),
            "nor is the second one late"
        );
        assert!(!buffer.take_samples(&Codec, None, &mut vec![0.5; 1500]));
        assert!(buffer.may_defer(&policy), "later ones may be");
    }
}
