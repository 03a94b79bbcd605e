//! From a request to the passes that generate it: the voice, the language, the text in pieces.
//!
//! Knows no tensor and no running sequence.

use std::sync::Arc;

use super::QwenTts;
use super::config::Kind;
use super::generation::Pass;
use super::lookup;
use super::open_text::OpenText;
use super::prompt::{Codec as CodecSide, PromptSpec};
use super::tokens::{TokenizedText, Vocabulary};
use super::voice::ClonedVoice;
use crate::frame_driver::{ChunkPolicy, PassLimits, PassPlan, Plan, max_frames, pass_seed};
use crate::text::pieces;
use izwi_audio::chunk::ChunkLengths;
use izwi_nn::sampling::Draws;
use izwi_types::{InputError, PrepareLimits, SamplingParams, SpeakInput, VoiceReference};

/// Text tokens in one pass: about a minute of speech. A longer text is split between sentences, because the models degrade
/// in long texts and a pass has to fit the KV pool.
const MAX_TOKENS: usize = 250;
/// The most frames of a text token, for most languages and tempi.
const FRAMES_PER_TOKEN: usize = 5;

/// The fewest text tokens a pass must have room for.
const MIN_TOKENS: usize = 16;

/// The voice of a request.
enum RequestVoice<'a> {
    /// A voice of the checkpoint with its token; none where the voice is described or left to the model.
    BuiltIn(Option<(&'a str, u32)>),
    /// The voice of a recording.
    Cloned(Arc<ClonedVoice>),
}

impl QwenTts {
    /// The voice of an input: one of the model, or that of a recording.
    fn voice<'a>(&'a self, input: &SpeakInput) -> Result<RequestVoice<'a>, InputError> {
        let config = &self.settings.config;
        match (&self.cloner, &input.reference) {
            (None, None) => Ok(RequestVoice::BuiltIn(lookup::voice(config, input.voice.as_deref())?)),
            (None, Some(_)) => Err(InputError {
                param: "ref_audio",
                message: "this model does not speak in the voice of a recording; leave it out, or choose a model that does".to_owned(),
            }),
            (Some(_), None) => Err(InputError {
                param: "ref_audio",
                message: "this model speaks in the voice of a recording and has none of its own; give ref_audio, or a voice that was saved".to_owned(),
            }),
            (Some(cloner), Some(VoiceReference::Recording(recording))) => {
                Ok(RequestVoice::Cloned(cloner.encode_recording(recording, &self.codec, &self.vocabulary)?))
            }
            (Some(cloner), Some(VoiceReference::Pack(pack))) => {
                Ok(RequestVoice::Cloned(cloner.load_pack(pack, &self.codec, &self.vocabulary)?))
            }
        }
    }

    /// The passes of an input.
    ///
    /// # Errors
    /// As [`crate::model::SpeechModel::prepare`].
    pub(super) fn plan_speech(
        &self,
        input: &SpeakInput,
        limits: &PrepareLimits,
    ) -> Result<Plan<Self>, InputError> {
        let config = &self.settings.config;
        let (own, cloned) = match self.voice(input)? {
            RequestVoice::BuiltIn(own) => (own, None),
            RequestVoice::Cloned(voice) => (None, Some(voice)),
        };
        let language =
            lookup::language(config, input.options.language.as_deref(), own.map(|(name, _)| name))?;
        let instructions =
            input.options.instructions.as_deref().map(str::trim).filter(|text| !text.is_empty());
        let instructions = instructions.filter(|_| config.takes_instructions());
        let instructions = instructions.map(|text| self.vocabulary.instructions(text)).unwrap_or_default();
        let speaker = match &cloned {
            Some(voice) => Some(CodecSide::Speaker(Arc::clone(&voice.speaker))),
            None => own.map(|(_, id)| CodecSide::Token(id)),
        };
        let spec = |text: TokenizedText| PromptSpec {
            text,
            instructions: instructions.clone(),
            language,
            speaker: speaker.clone(),
            reference: cloned.as_ref().and_then(|voice| voice.reference.clone()),
            streams_text: input.has_more_text
                || input.options.non_streaming_mode.map_or(config.kind == Kind::Base, |whole| !whole),
        };
        let unreadable =
            || InputError { param: "input", message: "this text cannot be tokenised".to_owned() };
        let empty = self.vocabulary.tokenize("").ok_or_else(unreadable)?;
        let most = self.text_room(spec(empty).prompt(config).positions.len(), limits)?;
        let (texts, rest) = if input.has_more_text {
            check_open(cloned.as_deref())?;
            let (start, rest) = OpenText::split(&self.vocabulary, &input.text)?;
            (vec![start], Some(rest))
        } else {
            let pieces = pieces(&input.text, &self.vocabulary, most);
            (pieces.filter(|pieces| !pieces.is_empty()).ok_or_else(unreadable)?, None)
        };
        let greedy = input.sampling.temperature <= 0.0;
        let residual = if greedy { SamplingParams::GREEDY } else { self.settings.residual_sampling };
        let passes = texts.into_iter().enumerate().map(|(index, text)| {
            let max_frames = self.has_watchdog.then(|| max_frames(text.body.len()));
            let mut prompt = spec(text).prompt(config);
            let open_text = rest.map(|rest| OpenText::new(&mut prompt, most, rest));
            PassPlan {
                prompt_keys: prompt.positions.iter().map(|position| position.key()).collect(),
                encoders: Arc::new([]),
                max_frames,
                max_positions: None,
                pass: Pass {
                    prompt,
                    open_text,
                    sampling: input.sampling,
                    residual_sampling: residual,
                    draws: Draws::new(pass_seed(input.seed, index)),
                },
            }
        });
        let passes = passes.collect();
        Ok(Plan {
            passes,
            request: cloned,
            chunk_policy: ChunkPolicy {
                lengths: ChunkLengths::new(input.chunk_samples, input.first_chunk_samples),
                may_defer: true,
            },
            limits: PassLimits {
                max_tokens: input.max_tokens,
                max_positions: limits.max_positions,
                starts_next_pass: false,
            },
        })
    }

    /// The most text tokens of a pass whose prompt has `overhead` other positions.
    fn text_room(&self, overhead: usize, limits: &PrepareLimits) -> Result<usize, InputError> {
        let most = self.settings.config.talker_config.max_position_embeddings;
        let positions = limits.max_positions.min(most);
        let room = positions.saturating_sub(overhead) / (1 + FRAMES_PER_TOKEN);
        if room < MIN_TOKENS {
            let message = format!(
                "the prompt takes {overhead} of {positions} positions and leaves no room for speech; shorten the \
                 instructions or the recording, or raise max_blocks"
            );
            return Err(InputError { param: "input", message });
        }
        Ok(room.min(MAX_TOKENS))
    }
}

/// Checks that text can be appended in this voice.
///
/// # Errors
/// It continues a recording: its prompt has a text token alongside each frame of the recording, and so most of the text.
fn check_open(voice: Option<&ClonedVoice>) -> Result<(), InputError> {
    if voice.is_none_or(|voice| voice.reference.is_none()) {
        return Ok(());
    }
    Err(InputError {
        param: "input",
        message: "this voice continues a recording and takes a text as a whole; send it at once, or leave out the text of the recording".to_owned(),
    })
}

/// Splits a text into pieces of at most `most` tokens: whole where it fits, else between sentences, and within a sentence
/// only where it alone is too long.
fn pieces(text: &str, vocabulary: &Vocabulary, most: usize) -> Option<Vec<TokenizedText>> {
    let whole = vocabulary.tokenize(text)?;
    if whole.body.len() <= most {
        return Some(vec![whole]);
    }
    let pieces = pieces::pieces(text, most, |part| vocabulary.encode(part).len());
    pieces.iter().map(|piece| vocabulary.tokenize(piece)).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::golden_set::root;
    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(40))]

        #[test]
        fn pieces_fit_and_lose_nothing(text in "[a-zA-Z .,!?é你\n]{1,400}", most in 8usize..60) {
            let vocabulary = Vocabulary::load(&root().join("cv06"), usize::MAX).unwrap();
            let pieces = pieces(&text, &vocabulary, most).unwrap();
            prop_assert!(pieces.iter().all(|piece| piece.body.len() <= most.max(8) + 1));
            let whole = vocabulary.tokenize(&text).unwrap();
            if whole.body.len() <= most {
                prop_assert_eq!(pieces, vec![whole]);
            }
        }
    }

    #[test]
    fn long_texts_are_split_between_sentences() {
        let vocabulary = Vocabulary::load(&root().join("cv06"), usize::MAX).unwrap();
        let sentence = "This is one sentence of several. ";
        let text = sentence.repeat(12);
        let most = vocabulary.encode(sentence).len() * 4;
        let pieces = pieces(&text, &vocabulary, most).unwrap();
        assert!(pieces.len() >= 3 && pieces.len() <= 6, "{}", pieces.len());
    }
}
