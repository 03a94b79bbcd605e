//! The work of a request for an executor without weights. Must not know steps.

use std::sync::Arc;
use std::time::Duration;

use izwi_types::{EncoderWork, Input, InputError, Prepared, SpokenWord, TextProgress, VoiceRecording, Work};

use super::{Job, chat, open_text, voice_pack};
use crate::engine::executor::RequestPreparer;

/// The character that it does not pronounce.
const UNSPOKEN: char = '☃';

/// Lengths of the sentences of `text`, which become units.
fn sentences(text: &str) -> Vec<usize> {
    text.split_inclusive('.').map(|part| part.trim().len()).filter(|&len| len > 0).collect()
}

/// The words of each sentence of `text`; their times count bytes of the sentence.
fn sentence_words(text: &str) -> Vec<Vec<SpokenWord>> {
    let place = |part: &str, whole: &str| part.as_ptr() as usize - whole.as_ptr() as usize;
    let mut text_start = 0;
    let parts = text.split_inclusive('.').map(str::trim).filter(|part| !part.is_empty());
    let sentences = parts.map(|sentence| {
        let words = sentence.split_whitespace().map(|word| {
            let (at, text_end) = (place(word, sentence), place(word, text) + word.len());
            let (sample_start, sample_end) = (at as u64, (at + word.len()) as u64);
            let spoken = SpokenWord { text_start, text_end, sample_start, sample_end };
            text_start = text_end;
            spoken
        });
        words.collect()
    });
    sentences.collect()
}

/// Prepares requests for an executor without weights.
pub(super) struct SimulatedPreparer {
    pub(super) model: String,
    pub(super) autoregressive: bool,
    pub(super) clones_voices: bool,
    pub(super) appends_text: bool,
    pub(super) passes: usize,
    pub(super) length: fn(&str, u64) -> usize,
    pub(super) window_samples: usize,
    pub(super) encoder_rows: usize,
    pub(super) encoder_parts: usize,
    pub(super) branches: usize,
    pub(super) is_simulated: bool,
    /// Time of cloning, for a second of the recording.
    pub(super) cloned_second: Duration,
}

impl SimulatedPreparer {
    fn prepare_text(&self, text: &str, passes: usize, encoder_tokens: usize, seed: u64) -> Prepared {
        let prompt: Vec<u64> = text.bytes().map(u64::from).collect();
        let work = if !self.autoregressive {
            Work::Units(sentences(text).into())
        } else if encoder_tokens > 0 && self.encoder_parts > 1 {
            Work::Encoder(vec![encoder_tokens.div_ceil(self.encoder_parts); self.encoder_parts].into())
        } else {
            let encoders = Arc::new([EncoderWork { end: text.len(), tokens: encoder_tokens }]);
            Work::Autoregressive { prompt: prompt.clone().into(), encoders, branches: self.branches }
        };
        let (length, words) = ((self.length)(text, seed), sentence_words(text));
        let job = Job { length, passes, words, is_chat: false, seed, prompt, open_text: None };
        Prepared::new(work, Arc::new(job))
    }
}

impl RequestPreparer for SimulatedPreparer {
    fn prepare(&self, input: &Input) -> Result<Prepared, InputError> {
        Ok(match input {
            Input::Speak(input)
                if self.appends_text
                    && (input.has_more_text || input.options.non_streaming_mode == Some(false)) =>
            {
                open_text::prepare(&input.text, input.has_more_text, input.seed)?
            }
            Input::Speak(input) if !self.autoregressive && !input.text.contains(char::is_alphanumeric) => {
                let message = "nothing speakable remains of the text; write words";
                return Err(InputError { param: "input", message: message.to_owned() });
            }
            Input::Speak(input) => {
                let trace = if self.clones_voices { voice_pack::trace(&self.model, input)? } else { 0 };
                let prepared = self.prepare_text(&input.text, self.passes, 0, input.seed ^ trace);
                let unspoken = if input.text.contains(UNSPOKEN) { UNSPOKEN.into() } else { String::new() };
                Prepared { unspoken, ..prepared }
            }
            Input::Listen(input) => {
                let passes = input.samples.len().div_ceil(self.window_samples);
                self.prepare_text(&format!("{passes} seconds"), passes, self.encoder_rows, input.seed())
            }
            Input::Converse(input) => {
                let (prompt, last_turn) = chat::prompt(&input.turns);
                let work =
                    Work::Autoregressive { prompt: prompt.into(), encoders: Arc::new([]), branches: 1 };
                let (length, words) = (6 + last_turn, Vec::new());
                let (prompt, seed) = (Vec::new(), input.seed);
                let job = Job { length, passes: 1, words, is_chat: true, seed, prompt, open_text: None };
                Prepared::new(work, Arc::new(job))
            }
        })
    }

    fn append_text(
        &self,
        prepared: &Prepared,
        text: &str,
        is_last: bool,
    ) -> Result<TextProgress, InputError> {
        let open_text = prepared.payload.downcast_ref::<Job>().and_then(|job| job.open_text.as_ref());
        let whole = || InputError::other_task("takes a text as a whole", "input");
        open_text.ok_or_else(whole)?.append(text, is_last)
    }

    fn make_voice(&self, recording: &VoiceRecording) -> Result<Vec<u8>, InputError> {
        voice_pack::pack(&self.model, recording)
    }

    fn check_voice(&self, pack: &[u8]) -> Result<(), InputError> {
        voice_pack::unpack(&self.model, pack).map(drop)
    }

    fn is_simulated(&self) -> bool {
        self.is_simulated
    }

    fn simulated_cloning(&self, length: Duration) -> Duration {
        self.cloned_second.mul_f64(length.as_secs_f64())
    }
}
