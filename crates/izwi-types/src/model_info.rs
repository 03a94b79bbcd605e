//! Static facts about a loaded checkpoint.

use crate::{SamplingParams, Task, TurnEnds, Voice};

/// Static facts about a loaded checkpoint.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelInfo {
    /// Sample rate of generated audio and of reference recordings, in Hz; for ASR models, of their input.
    pub sample_rate_hz: u32,
    /// Sample rate of input recordings, in Hz.
    pub input_sample_rate_hz: u32,
    /// Supported tasks.
    pub tasks: Vec<Task>,
    /// Built-in voices; the first is the default. Empty for models without speech synthesis.
    pub voices: Vec<Voice>,
    /// Supported range of `speed`; `None` if the tempo is fixed.
    pub speed_range: Option<(f32, f32)>,
    /// Whether it supports a style prompt.
    pub takes_instructions: bool,
    /// Whether it transcribes with likely words in mind.
    pub takes_keywords: bool,
    /// Whether its transcripts have numbers, times and amounts in figures. Otherwise they are words, which
    /// [`TranscriptionOptions::inverse_normalization`](crate::TranscriptionOptions::inverse_normalization) rewrites.
    pub writes_figures: bool,
    /// Whether it detects the language of a recording among several.
    pub detects_language: bool,
    /// Whether it transcribes with the text before a recording in mind.
    pub takes_prompt: bool,
    /// Codes of the languages that it transcribes or speaks; empty if they are not known.
    pub languages: Vec<String>,
    /// Whether it translates speech into English.
    pub translates: bool,
    /// Whether it supports voice cloning from a [`VoiceReference`](crate::VoiceReference).
    pub clones_voices: bool,
    /// Whether text can be appended while it is spoken. Not to a voice that continues a recording.
    pub appends_text: bool,
    /// Lengths of the chunks in which it transcribes audio that is appended, in milliseconds, the default first; empty if it
    /// takes recordings whole.
    pub chunks_ms: Vec<u32>,
    /// Whether it transcribes windows of live audio, with the times of their words.
    pub live_windows: bool,
    /// Whether it tells when the words of a text are spoken.
    pub times_words: bool,
    /// Whether it says words by their sounds.
    pub takes_phonemes: bool,
    /// Whether it tells when the words of a given text are said in a recording.
    pub aligns_text: bool,
    /// Whether it calls tools in a conversation, and may begin one.
    pub calls_tools: bool,
    /// Of a chat model that reads what the user said: who writes it, and a transcript may stand for each recording.
    pub transcriber: Option<Transcriber>,
    /// Default sampling.
    pub sampling: SamplingParams,
    /// Bytes of the loaded weights.
    pub weight_bytes: usize,
    /// Upper bound on the bytes of one running sequence's state, KV blocks not included.
    pub state_bytes: usize,
}

/// The ASR model of a chat model that reads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Transcriber {
    /// Its name.
    pub model: String,
    /// Code of the language of the conversation; `None` if it is detected.
    pub language: Option<String>,
    /// Whether answers may begin in a pause, before it is known that the turn has ended: some are for nothing.
    pub speculates: bool,
    /// How ends of turns are found in its conversations, unless a session says otherwise; `None` for the session's default.
    pub turns: Option<TurnEnds>,
}

impl ModelInfo {
    /// The facts of a model that transcribes recordings of `rate_hz`, without languages and state.
    pub fn listening(rate_hz: u32, weight_bytes: usize) -> Self {
        Self {
            sample_rate_hz: rate_hz,
            input_sample_rate_hz: rate_hz,
            tasks: vec![Task::Asr],
            voices: Vec::new(),
            speed_range: None,
            takes_instructions: false,
            takes_keywords: false,
            writes_figures: true,
            detects_language: false,
            takes_prompt: false,
            languages: Vec::new(),
            translates: false,
            clones_voices: false,
            appends_text: false,
            chunks_ms: Vec::new(),
            live_windows: false,
            times_words: false,
            takes_phonemes: false,
            aligns_text: false,
            calls_tools: false,
            transcriber: None,
            sampling: SamplingParams::GREEDY,
            weight_bytes,
            state_bytes: 0,
        }
    }
}
