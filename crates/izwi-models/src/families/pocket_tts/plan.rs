//! From a request to the passes that generate it: the voice, and the text in pieces.
//!
//! Knows no tensor and no running sequence.

use std::sync::Arc;

use super::PocketTts;
use super::generation::Pass;
use super::noise::Noise;
use super::text::{self, PreparedText};
use super::voice::Voice;
use crate::frame_driver::{ChunkPolicy, PassLimits, PassPlan, Plan, pass_seed};
use crate::text::pieces;
use izwi_audio::chunk::ChunkLengths;
use izwi_types::{InputError, PrepareLimits, SpeakInput};

/// What the package expects of a text: tokens of a second of speech, and seconds more.
const TOKENS_PER_S: f64 = 3.0;
const PADDING_S: f64 = 2.0;
/// Frames that the package generates after its guess.
pub(super) const MORE_FRAMES: usize = 2;
/// The fewest text tokens a pass must have room for.
const MIN_TOKENS: usize = 8;

impl PocketTts {
    /// The passes of an input.
    ///
    /// # Errors
    /// As [`crate::model::SpeechModel::prepare`].
    pub(super) fn plan_speech(
        &self,
        input: &SpeakInput,
        limits: &PrepareLimits,
    ) -> Result<Plan<Self>, InputError> {
        let voice = self.voices.choose(input.voice.as_deref(), input.reference.as_ref())?;
        let room = self.text_room(&voice, limits)?;
        // An empty text is spoken as silence: by no pass.
        let chunks = text::split(&input.text, &self.config, &self.tokenizer).unwrap_or_default();
        let chunks = chunks.iter().flat_map(|chunk| self.shortened(chunk, room));
        let texts = chunks.filter_map(|chunk| text::prepare(&chunk, &self.config));
        let passes = texts.enumerate().map(|(index, text)| self.pass(&text, &voice, (input, index)));
        Ok(Plan {
            passes: passes.collect(),
            chunk_policy: ChunkPolicy {
                lengths: ChunkLengths::new(input.chunk_samples, input.first_chunk_samples),
                may_defer: true,
            },
            limits: PassLimits {
                max_tokens: input.max_tokens,
                max_positions: limits.max_positions,
                starts_next_pass: false,
            },
            request: (),
        })
    }

    /// The pass of a piece of the text.
    fn pass(
        &self,
        text: &PreparedText,
        voice: &Arc<Voice>,
        (input, index): (&SpeakInput, usize),
    ) -> PassPlan<Pass> {
        let tokens = self.tokenizer.encode(&text.text);
        let most = self.has_end.then(|| self.most_frames(tokens.len()));
        let guess = text.frames_after_eos_guess + MORE_FRAMES;
        let pass = Pass {
            voice: Arc::clone(voice),
            temperature: input.sampling.temperature,
            noise: Noise::new(pass_seed(input.seed, index)),
            frames_after_eos: self.config.model_recommended_frames_after_eos.unwrap_or(guess),
            tokens,
        };
        PassPlan {
            prompt_keys: pass.prompt_keys(),
            encoders: Arc::new([]),
            max_frames: most,
            max_positions: most,
            pass,
        }
    }

    /// The frames after which the speech of `tokens` text tokens has no end.
    pub(super) fn most_frames(&self, tokens: usize) -> usize {
        let seconds = tokens as f64 / TOKENS_PER_S + PADDING_S;
        (seconds * self.config.mimi.frame_rate).ceil() as usize
    }

    /// A piece as it is, or in parts of at most `room` tokens where it has no mark to be cut at.
    fn shortened(&self, chunk: &str, room: usize) -> Vec<String> {
        pieces::pieces(chunk, room, |part| self.tokenizer.encode(part).len())
    }

    /// The most text tokens of a pass in this voice.
    fn text_room(&self, voice: &Voice, limits: &PrepareLimits) -> Result<usize, InputError> {
        let overhead = voice.positions() + 1 + self.most_frames(0);
        let per_token = 1.0 + self.config.mimi.frame_rate / TOKENS_PER_S;
        let room = (limits.max_positions.saturating_sub(overhead) as f64 / per_token) as usize;
        if room < MIN_TOKENS {
            let message = format!(
                "the voice takes {} of {} positions and leaves no room for speech; use a shorter recording, or raise max_blocks",
                voice.positions(),
                limits.max_positions
            );
            return Err(InputError { param: "voice", message });
        }
        Ok(room)
    }
}
