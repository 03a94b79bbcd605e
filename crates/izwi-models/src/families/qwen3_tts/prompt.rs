//! The prompt of the talker: for each position a text token and an input of the codec side.
//!
//! Owns the layouts the checkpoints were trained with. Computes no embedding.

use std::sync::Arc;

use super::config::Config;
use super::tokens::TokenizedText;
use izwi_nn::sampling::mix;

/// Codes of one frame, in the order of codebooks.
pub(super) type Frame = Arc<[u32]>;

/// The input of the codec side at a position.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Codec {
    /// None: the position is text alone.
    None,
    /// A token of the talker's vocabulary.
    Token(u32),
    /// A speaker's embedding.
    Speaker(Arc<[f32]>),
    /// A generated or reference frame.
    Frame(Frame),
}

/// One position of the talker: the embeddings of both sides are added.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Position {
    pub(super) text: u32,
    pub(super) codec: Codec,
}

/// Positions before the first frame, and text tokens that are given one a frame.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Prompt {
    pub(super) positions: Vec<Position>,
    /// The text token of each generated frame; padding after the last.
    pub(super) trailing: Vec<u32>,
}

/// A reference recording that the generated speech continues.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct ReferenceSpeech {
    /// Tokens of its text.
    pub(super) body: Vec<u32>,
    /// Its frames.
    pub(super) frames: Vec<Frame>,
}

/// The parts of a prompt.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct PromptSpec {
    pub(super) text: TokenizedText,
    /// Tokens of the turn with the style prompt; empty for none.
    pub(super) instructions: Vec<u32>,
    /// Id of the language; `None` leaves it to the model.
    pub(super) language: Option<u32>,
    /// The speaker: a token or an embedding.
    pub(super) speaker: Option<Codec>,
    pub(super) reference: Option<Arc<ReferenceSpeech>>,
    /// Whether text tokens are given one a frame rather than whole before the first frame.
    pub(super) streams_text: bool,
}

impl PromptSpec {
    /// The prompt in the layout the checkpoint was trained with.
    pub(super) fn prompt(&self, config: &Config) -> Prompt {
        let talker = &config.talker_config;
        let text = |text: u32| Position { text, codec: Codec::None };
        let with = |text: u32, codec: u32| Position { text, codec: Codec::Token(codec) };
        let pad = config.tts_pad_token_id;
        let mut positions: Vec<Position> =
            self.instructions.iter().chain(&self.text.role).map(|&id| text(id)).collect();
        let preamble = match self.language {
            None => vec![talker.codec_nothink_id, talker.codec_think_bos_id, talker.codec_think_eos_id],
            Some(language) => {
                vec![talker.codec_think_id, talker.codec_think_bos_id, language, talker.codec_think_eos_id]
            }
        };
        positions.extend(preamble.into_iter().map(|id| with(pad, id)));
        let speaker = self.speaker.iter().cloned();
        positions.extend(speaker.map(|codec| Position { text: pad, codec }));
        positions.push(with(config.tts_bos_token_id, talker.codec_pad_id));
        match &self.reference {
            Some(reference) => self.continue_from(reference, config, positions),
            None => self.begin(config, positions),
        }
    }

    /// The layouts without a recording.
    fn begin(&self, config: &Config, mut positions: Vec<Position>) -> Prompt {
        let talker = &config.talker_config;
        let with = |text: u32, codec: u32| Position { text, codec: Codec::Token(codec) };
        let body = &self.text.body;
        if self.streams_text {
            positions.push(with(self.text.first, talker.codec_bos_id));
            let rest = body.iter().skip(1).copied();
            return Prompt { positions, trailing: rest.chain([config.tts_eos_token_id]).collect() };
        }
        let whole = body.iter().copied().chain([config.tts_eos_token_id]);
        positions.extend(whole.map(|id| with(id, talker.codec_pad_id)));
        positions.push(with(config.tts_pad_token_id, talker.codec_bos_id));
        Prompt { positions, trailing: Vec::new() }
    }

    /// The layouts that continue a reference recording.
    fn continue_from(
        &self,
        reference: &ReferenceSpeech,
        config: &Config,
        mut positions: Vec<Position>,
    ) -> Prompt {
        let talker = &config.talker_config;
        let pad = config.tts_pad_token_id;
        let text: Vec<u32> =
            reference.body.iter().chain(&self.text.body).copied().chain([config.tts_eos_token_id]).collect();
        let codec = reference.frames.iter().cloned().map(Codec::Frame);
        let codec = std::iter::once(Codec::Token(talker.codec_bos_id)).chain(codec);
        let frames = reference.frames.len() + 1;
        if !self.streams_text {
            let texts =
                text.into_iter().map(|text| Position { text, codec: Codec::Token(talker.codec_pad_id) });
            positions.extend(texts);
            positions.extend(codec.map(|codec| Position { text: pad, codec }));
            return Prompt { positions, trailing: Vec::new() };
        }
        let padded = text.iter().copied().chain(std::iter::repeat(pad));
        positions.extend(padded.zip(codec).map(|(text, codec)| Position { text, codec }));
        Prompt { positions, trailing: text.get(frames..).unwrap_or_default().to_vec() }
    }
}

impl Position {
    /// Equal keys stand for equal content.
    pub(super) fn key(&self) -> u64 {
        let text = mix(u64::from(self.text));
        let chain = |kind: u64, values: &mut dyn Iterator<Item = u64>| {
            values.fold(mix(text ^ kind), |key, value| mix(key ^ value))
        };
        match &self.codec {
            Codec::None => text,
            Codec::Token(id) => chain(1, &mut std::iter::once(u64::from(*id))),
            Codec::Speaker(vector) => chain(2, &mut vector.iter().map(|value| u64::from(value.to_bits()))),
            Codec::Frame(codes) => chain(3, &mut codes.iter().map(|&code| u64::from(code))),
        }
    }
}
