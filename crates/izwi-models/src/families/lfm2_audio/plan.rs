//! From a request to the passes that generate it: the prompt of a voice, texts and recordings in pieces of the length the
//! model was trained for, conversations with all their turns.
//!
//! Knows no running sequence.

use std::ops::Range;

use super::LfmAudio;
use super::generation::{Pass, Window};
use super::modality::Mode;
use super::prompt::{Prompt, Recording};
use super::tokens::Role;
use crate::frame_driver::{ChunkPolicy, PassLimits, PassPlan, Plan, max_frames, pass_seed};
use crate::regions::{self, HOP, WINDOW_FRAMES};
use crate::text::pieces::pieces;
use izwi_audio::chunk::ChunkLengths;
use izwi_audio::vad::VadModel;
use izwi_nn::sampling::Draws;
use izwi_types::{
    ConverseInput, Emission, EncoderWork, Gender, InputError, ListenInput, Message, PrepareLimits,
    SamplingParams, SpeakInput, Task, Turn, Voice, excerpt,
};

/// Sampling of codes in text to speech, and in a conversation:
/// <https://github.com/Liquid4All/liquid-audio#readme>.
pub(super) const TTS_SAMPLING: SamplingParams =
    SamplingParams { temperature: 0.8, top_k: 64, ..SamplingParams::GREEDY };
pub(super) const CHAT_SAMPLING: SamplingParams =
    SamplingParams { temperature: 1.0, top_k: 4, ..SamplingParams::GREEDY };
const ASR_INSTRUCTIONS: &str = "Perform ASR.";
const CHAT_INSTRUCTIONS: &str = "Respond with interleaved text and audio.";

/// The voices: names, descriptions, languages, genders.
const VOICES: [(&str, &str, &str, Gender); 4] = [
    ("us_male", "US male", "en-US", Gender::Male),
    ("us_female", "US female", "en-US", Gender::Female),
    ("uk_male", "UK male", "en-GB", Gender::Male),
    ("uk_female", "UK female", "en-GB", Gender::Female),
];
/// The language it was trained for.
pub(super) const LANGUAGE: &str = "en";

/// Text tokens in one pass of speech: about a minute.
const MAX_TOKENS: usize = 250;
/// The most frames of a text token, for most tempi.
const FRAMES_PER_TOKEN: usize = 5;
/// The fewest tokens a pass must have room for.
const MIN_TOKENS: usize = 16;
/// The most text tokens of a second of speech, and in addition for any recording.
const TOKENS_PER_S: usize = 12;
const TOKENS: usize = 32;
/// Positions a pass may generate besides its frames: text, and control codes.
const SPARE_POSITIONS: usize = 16;
/// Rows of the encoder that cost as much as one token of the language model.
const ROWS_PER_TOKEN: usize = 4;
/// Rows of the encoder in a second, rounded up.
const ROWS_PER_S: usize = 13;
/// Frames before the end of a window in which it may be cut, and those whose loudness is compared.
const CUT_FRAMES: usize = 500;
const QUIET_FRAMES: usize = 10;

/// The model's voices.
pub(in crate::families) fn voices() -> Vec<Voice> {
    let voice = |&(id, description, language, gender): &(&str, &str, &str, Gender)| Voice {
        id: id.to_owned(),
        language: language.to_owned(),
        gender: Some(gender),
        description: description.to_owned(),
    };
    VOICES.iter().map(voice).collect()
}

impl LfmAudio {
    /// The passes of a text to speak.
    ///
    /// # Errors
    /// As [`crate::model::SpeechModel::prepare`].
    pub(super) fn plan_speech(
        &self,
        input: &SpeakInput,
        limits: &PrepareLimits,
    ) -> Result<Plan<Self>, InputError> {
        if input.reference.is_some() {
            let message = "this model does not speak in the voice of a recording; leave it out, or choose a model that does";
            return Err(InputError { param: "ref_audio", message: message.to_owned() });
        }
        check_language(input.options.language.as_deref())?;
        let instructions = format!("Perform TTS. Use the {} voice.", voice(input.voice.as_deref())?);
        let prompt = |text: &str| {
            let mut prompt = self.single_turn(&instructions, |prompt| prompt.text(&self.vocabulary, text));
            if self.has_random_weights {
                prompt.emissions(&[Emission::Token(super::config::AUDIO_START)]);
            }
            prompt
        };
        let overhead = prompt("").positions.len();
        let positions = limits.max_positions.min(self.config.lfm.max_position_embeddings);
        let room = positions.saturating_sub(overhead) / (1 + FRAMES_PER_TOKEN);
        if room < MIN_TOKENS {
            return Err(too_small("input", overhead, positions));
        }
        let tokens = |text: &str| self.vocabulary.encode(text).len();
        let pieces = pieces(&input.text, room.min(MAX_TOKENS), tokens);
        let mode = if self.has_random_weights { Mode::Frames } else { Mode::Sequential };
        let passes = pieces.iter().enumerate().map(|(index, piece)| {
            let max_frames = (!self.has_random_weights).then(|| max_frames(tokens(piece)));
            let pass = Pass {
                prompt: prompt(piece),
                window: None,
                mode,
                text_sampling: SamplingParams::GREEDY,
                audio_sampling: greedy_if_single(input.sampling),
                draws: Draws::new(pass_seed(input.seed, index)),
            };
            PassPlan {
                max_frames,
                max_positions: max_frames.map(|frames| frames + SPARE_POSITIONS),
                ..pass_plan(pass)
            }
        });
        let passes = passes.collect();
        Ok(Plan {
            request: Task::Tts,
            passes,
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

    /// The passes of a recording to transcribe: one where a window holds it, else one for each stretch of speech.
    ///
    /// # Errors
    /// As [`crate::model::SpeechModel::prepare`].
    pub(super) fn plan_transcription(
        &self,
        input: &ListenInput,
        limits: &PrepareLimits,
    ) -> Result<Plan<Self>, InputError> {
        check_options(input)?;
        let overhead = self.single_turn(ASR_INSTRUCTIONS, |_| ()).positions.len();
        let positions = limits.max_positions.min(self.config.lfm.max_position_embeddings);
        let longest_s = positions.saturating_sub(overhead + TOKENS) / (ROWS_PER_S + TOKENS_PER_S);
        if longest_s == 0 {
            return Err(too_small("audio", overhead, positions));
        }
        let samples = &input.samples;
        let frames = WINDOW_FRAMES.min(longest_s * 100);
        let shortest = self.front_end.min_samples();
        let windows: Vec<Range<usize>> = windows(&self.vad, samples, frames * HOP)
            .into_iter()
            .filter(|window| window.len() >= shortest)
            .collect();
        let text_sampling = SamplingParams { temperature: input.temperature(), ..SamplingParams::GREEDY };
        let seconds = |samples: usize| samples as f64 / (100 * HOP) as f64;
        let passes = windows.iter().enumerate().map(|(index, window)| {
            let recording = Recording::new(&samples[window.clone()], &self.front_end);
            let pass = Pass {
                prompt: self.single_turn(ASR_INSTRUCTIONS, |prompt| prompt.recording(recording)),
                window: Some(Window {
                    start_s: seconds(window.start),
                    end_s: seconds(window.end),
                    is_first: index == 0,
                }),
                mode: Mode::Sequential,
                text_sampling: greedy_if_single(text_sampling),
                audio_sampling: SamplingParams::GREEDY,
                draws: Draws::new(pass_seed(input.seed(), index)),
            };
            let most = TOKENS + window.len().div_ceil(100 * HOP) * TOKENS_PER_S + SPARE_POSITIONS;
            PassPlan { max_positions: (!self.has_random_weights).then_some(most), ..pass_plan(pass) }
        });
        let passes = passes.collect();
        Ok(Plan {
            request: Task::Asr,
            passes,
            chunk_policy: ChunkPolicy { lengths: ChunkLengths::new(1, None), may_defer: false },
            limits: PassLimits {
                max_tokens: usize::MAX,
                max_positions: limits.max_positions,
                starts_next_pass: true,
            },
        })
    }

    /// The pass of a conversation in which the model speaks next.
    ///
    /// # Errors
    /// As [`crate::model::SpeechModel::prepare`].
    pub(super) fn plan_conversation(
        &self,
        input: &ConverseInput,
        limits: &PrepareLimits,
    ) -> Result<Plan<Self>, InputError> {
        let fault = |message: &str| InputError { param: "input", message: message.to_owned() };
        if !matches!(input.turns.last(), Some(Turn::User(_))) {
            return Err(fault("the conversation has no user turn to answer; send text or a recording"));
        }
        let mut prompt =
            Prompt::begin(&self.vocabulary, input.instructions.as_deref().unwrap_or(CHAT_INSTRUCTIONS));
        let mut known = 0;
        for turn in &input.turns {
            match turn {
                Turn::User(messages) => {
                    known = prompt.recordings.len();
                    prompt.turn(&self.vocabulary, Role::User);
                    for message in messages {
                        self.message(&mut prompt, message)?;
                    }
                }
                Turn::Model(emissions) => {
                    if !emissions.iter().all(|emission| self.is_known(emission)) {
                        return Err(fault("a turn of the conversation was not this model's"));
                    }
                    prompt.turn(&self.vocabulary, Role::Assistant);
                    prompt.emissions(emissions);
                }
                Turn::Told(text) => {
                    prompt.turn(&self.vocabulary, Role::Assistant);
                    prompt.text(&self.vocabulary, text);
                }
            }
            prompt.end(&self.vocabulary);
        }
        prompt.turn(&self.vocabulary, Role::Assistant);
        // Those of earlier turns are mostly in the prefix cache. The new ones are needed: here rather than in a step, which
        // other sequences share.
        for recording in &prompt.recordings[known..] {
            recording.mel(&self.front_end);
        }
        let positions = limits.max_positions.min(self.config.lfm.max_position_embeddings);
        let overhead = prompt.positions.len();
        if overhead + MIN_TOKENS > positions {
            return Err(too_small("input", overhead, positions));
        }
        let mode = Mode::Interleaved {
            text: self.config.interleaved_n_text as i64,
            audio: self.config.interleaved_n_audio as i64,
        };
        let pass = Pass {
            prompt,
            window: None,
            mode,
            text_sampling: greedy_if_single(input.text_sampling.unwrap_or(SamplingParams::GREEDY)),
            audio_sampling: greedy_if_single(input.sampling.unwrap_or(CHAT_SAMPLING)),
            draws: Draws::new(input.seed),
        };
        // The answer is not known: its text allows frames as it is generated.
        let max_frames = (!self.has_random_weights).then(|| max_frames(0));
        Ok(Plan {
            request: Task::Chat,
            passes: vec![PassPlan { max_frames, ..pass_plan(pass) }],
            chunk_policy: ChunkPolicy {
                lengths: ChunkLengths::new(input.chunk_samples, input.first_chunk_samples),
                may_defer: false,
            },
            limits: PassLimits {
                max_tokens: input.max_tokens,
                max_positions: limits.max_positions,
                starts_next_pass: false,
            },
        })
    }

    fn message(&self, prompt: &mut Prompt, message: &Message) -> Result<(), InputError> {
        match message {
            Message::Text(text) => prompt.text(&self.vocabulary, text),
            Message::Recording(samples) => {
                if samples.len() < self.front_end.min_samples() {
                    let message =
                        "the recording is too short to transcribe; send a tenth of a second at least";
                    return Err(InputError { param: "audio", message: message.to_owned() });
                }
                prompt.recording(Recording::deferred(samples, &self.front_end));
            }
            Message::Result { .. } => return Err(InputError::other_task("calls no tools", "tools")),
        }
        Ok(())
    }

    fn is_known(&self, emission: &Emission) -> bool {
        match emission {
            Emission::Token(id) => (*id as usize) < self.config.lfm.vocab_size,
            Emission::Frame(codes) => {
                codes.len() == self.config.codebooks
                    && codes.iter().all(|&code| (code as usize) < super::config::CODES)
            }
            Emission::Said(_) | Emission::Call(_) => false,
        }
    }

    /// A conversation of one turn of the user.
    fn single_turn(&self, instructions: &str, content: impl FnOnce(&mut Prompt)) -> Prompt {
        let mut prompt = Prompt::begin(&self.vocabulary, instructions);
        prompt.turn(&self.vocabulary, Role::User);
        content(&mut prompt);
        prompt.end(&self.vocabulary);
        prompt.turn(&self.vocabulary, Role::Assistant);
        prompt
    }
}

/// A pass without limits of its own.
fn pass_plan(pass: Pass) -> PassPlan<Pass> {
    let encoders = pass.prompt.recordings.iter().map(|recording| EncoderWork {
        end: recording.end,
        tokens: recording.rows().div_ceil(ROWS_PER_TOKEN),
    });
    PassPlan {
        prompt_keys: pass.prompt.keys(),
        encoders: encoders.collect(),
        max_frames: None,
        max_positions: None,
        pass,
    }
}

/// Description of a voice in the prompt; of the first where none is named.
fn voice(wanted: Option<&str>) -> Result<&'static str, InputError> {
    let [(_, first, ..), ..] = VOICES;
    let Some(wanted) = wanted else { return Ok(first) };
    let found = VOICES.iter().find(|(id, ..)| id.eq_ignore_ascii_case(wanted));
    found.map(|(_, description, ..)| *description).ok_or_else(|| {
        let names: Vec<&str> = VOICES.iter().map(|(id, ..)| *id).collect();
        let (wanted, names) = (excerpt(wanted), names.join(", "));
        let message = format!("voice '{wanted}' is unknown to this model; use {names}");
        InputError { param: "voice", message }
    })
}

fn check_language(wanted: Option<&str>) -> Result<(), InputError> {
    let wanted = wanted.map(|wanted| wanted.trim().to_lowercase()).unwrap_or_default();
    let primary = wanted.split(['-', '_']).next().unwrap_or_default();
    if ["", LANGUAGE, "english", "auto"].contains(&primary) {
        return Ok(());
    }
    let wanted = excerpt(&wanted);
    let message = format!("language '{wanted}' is unknown to this model; use {LANGUAGE}, or leave it out");
    Err(InputError { param: "language", message })
}

fn too_small(param: &'static str, overhead: usize, positions: usize) -> InputError {
    let message = format!(
        "the prompt takes {overhead} of {positions} positions and leaves no room for an answer; send less, or raise max_blocks"
    );
    InputError { param, message }
}

/// Greedy sampling where there is one candidate.
fn greedy_if_single(sampling: SamplingParams) -> SamplingParams {
    if sampling.top_k == 1 { SamplingParams::GREEDY } else { sampling }
}

/// The parts of a recording with speech, each of at most `longest` samples.
fn windows(vad: &VadModel, samples: &[f32], longest: usize) -> Vec<Range<usize>> {
    let whole = 0..samples.len();
    if samples.len() <= longest {
        return Vec::from([whole]);
    }
    let regions = regions::find(vad, samples, None).into_iter();
    let parts = regions.map(|region| region.frames.start * HOP..(region.frames.end * HOP).min(whole.end));
    parts.flat_map(|part| cut(samples, part, longest)).collect()
}

/// Splits a part that is too long, where it is quietest near the end of each window.
fn cut(samples: &[f32], mut part: Range<usize>, longest: usize) -> Vec<Range<usize>> {
    let mut pieces = Vec::new();
    while part.len() > longest {
        let end = part.start + longest;
        let first = end.saturating_sub((CUT_FRAMES * HOP).min(longest / 2));
        let loudness = |at: &usize| {
            let near = &samples[*at..(*at + QUIET_FRAMES * HOP).min(end)];
            near.iter().map(|sample| sample * sample).sum::<f32>()
        };
        let places = (first..end - (QUIET_FRAMES * HOP).min(longest / 2)).step_by(HOP);
        let quiet = places.min_by(|a, b| loudness(a).total_cmp(&loudness(b)));
        let at = quiet.map_or(end, |at| at + QUIET_FRAMES * HOP / 2).clamp(part.start + 1, end);
        pieces.push(part.start..at);
        part.start = at;
    }
    pieces.push(part);
    pieces
}

/// Refuses what the model does not do with a recording.
fn check_options(input: &ListenInput) -> Result<(), InputError> {
    check_language(input.options.language.as_deref())?;
    if input.window.is_some() {
        let message = "this model does not transcribe live audio; choose another for it";
        return Err(InputError { param: "model", message: message.to_owned() });
    }
    for wanted in &input.options.languages {
        check_language(Some(wanted)).map_err(|error| InputError { param: "languages", ..error })?;
    }
    input.options.check_taken(&["language", "languages", "prompt", "temperature", "seed"])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_parts_are_split_where_it_is_quiet() {
        let mut samples = vec![0.5f32; 100 * HOP * 100];
        let quiet = 26 * 100 * HOP;
        samples[quiet..quiet + 20 * HOP].fill(0.0);
        let longest = WINDOW_FRAMES * HOP;
        let pieces = cut(&samples, 0..samples.len(), longest);
        assert!(pieces.iter().all(|piece| !piece.is_empty() && piece.len() <= longest), "{pieces:?}");
        assert!((quiet..quiet + 20 * HOP).contains(&pieces[0].end), "{pieces:?}");
        assert!(pieces.windows(2).all(|pair| pair[0].end == pair[1].start));
        assert_eq!((pieces[0].start, pieces.last().unwrap().end), (0, samples.len()));
        let whole = windows(&VadModel::default(), &samples[..longest], longest);
        assert_eq!((whole.len(), whole[0].clone()), (1, 0..longest));
    }

    #[test]
    fn voice_names_ignore_case_and_unknown_ones_are_errors() {
        assert_eq!((voice(None), voice(Some("UK_Female"))), (Ok("US male"), Ok("UK female")));
        assert!(voice(Some("nobody")).unwrap_err().message.contains("us_female"));
        assert!(check_language(Some("en-GB")).is_ok() && check_language(None).is_ok());
        assert_eq!(check_language(Some("de")).unwrap_err().param, "language");
    }
}
