//! What the talker reads before it speaks: for each position a text token and what the codec's side says there.
//!
//! Owns the layouts the checkpoints were trained with. Computes no embedding.

use std::sync::Arc;

use super::config::Config;
use super::tokens::Script;
use izwi_nn::sampling::mix;

/// Codes of one frame, the first book first.
pub(super) type Frame = Arc<[u32]>;

/// The codec's side of a position.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Codec {
    /// Nothing: the position is text alone.
    None,
    /// A token of the talker's vocabulary.
    Token(u32),
    /// A speaker's embedding.
    Speaker(Arc<[f32]>),
    /// A frame that was spoken.
    Frame(Frame),
}

/// One position of the talker: the two sides are added.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Position {
    pub(super) text: u32,
    pub(super) codec: Codec,
}

/// Positions before the first frame, and the text that is given frame by frame after it.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Prompt {
    pub(super) positions: Vec<Position>,
    /// Text token that goes with each generated frame; padding where they have run out.
    pub(super) trailing: Vec<u32>,
}

/// A recording to go on from.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Spoken {
    /// What is said in it.
    pub(super) body: Vec<u32>,
    /// Its frames.
    pub(super) frames: Vec<Frame>,
}

/// Everything a prompt is made of.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Order {
    pub(super) script: Script,
    /// Style prompt with its turn around it; empty for none.
    pub(super) instructions: Vec<u32>,
    /// Id of the language; `None` lets the model find out.
    pub(super) language: Option<u32>,
    /// Who speaks: a token or an embedding.
    pub(super) speaker: Option<Codec>,
    pub(super) spoken: Option<Arc<Spoken>>,
    /// Whether the text is given frame by frame.
    pub(super) streams_text: bool,
}

impl Order {
    /// Lays the prompt out.
    pub(super) fn prompt(&self, config: &Config) -> Prompt {
        let talker = &config.talker_config;
        let text = |text: u32| Position { text, codec: Codec::None };
        let with = |text: u32, codec: u32| Position { text, codec: Codec::Token(codec) };
        let pad = config.tts_pad_token_id;
        let mut positions: Vec<Position> =
            self.instructions.iter().chain(&self.script.role).map(|&id| text(id)).collect();
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
        match &self.spoken {
            Some(spoken) => self.go_on(spoken, config, positions),
            None => self.begin(config, positions),
        }
    }

    /// The layouts without a recording.
    fn begin(&self, config: &Config, mut positions: Vec<Position>) -> Prompt {
        let talker = &config.talker_config;
        let with = |text: u32, codec: u32| Position { text, codec: Codec::Token(codec) };
        let body = &self.script.body;
        if self.streams_text {
            positions.push(with(self.script.first, talker.codec_bos_id));
            let rest = body.iter().skip(1).copied();
            return Prompt { positions, trailing: rest.chain([config.tts_eos_token_id]).collect() };
        }
        let whole = body.iter().copied().chain([config.tts_eos_token_id]);
        positions.extend(whole.map(|id| with(id, talker.codec_pad_id)));
        positions.push(with(config.tts_pad_token_id, talker.codec_bos_id));
        Prompt { positions, trailing: Vec::new() }
    }

    /// The layouts that go on from a recording.
    fn go_on(&self, spoken: &Spoken, config: &Config, mut positions: Vec<Position>) -> Prompt {
        let talker = &config.talker_config;
        let pad = config.tts_pad_token_id;
        let text: Vec<u32> =
            spoken.body.iter().chain(&self.script.body).copied().chain([config.tts_eos_token_id]).collect();
        let codec = spoken.frames.iter().cloned().map(Codec::Frame);
        let codec = std::iter::once(Codec::Token(talker.codec_bos_id)).chain(codec);
        let frames = spoken.frames.len() + 1;
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
