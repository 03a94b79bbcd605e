//! Validates, completes and prepares requests, outside the step loop and on blocking threads.
//!
//! Must not know queues or the state of the engine.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use izwi_audio::chunk::ChunkLengths;
use izwi_audio::decode::{DecodeError, DecodeLimits};
use izwi_types::{
    ConverseInput, GenerationParams, Input, InputError, ListenInput, Message, Prepared, SamplingParams,
    SpeakInput, Task, TextNotes, Turn, Voice, VoiceRecording, VoiceReference, check_finite, excerpt,
    languages,
};

use super::intake::AudioIntake;
use super::text_input::MAX_TEXT_CHARS;
use super::workload::workload;
use super::{AudioInput, ChatOptions, EngineCoreRequest, OpenInput, ReferenceAudio, VoiceInput};
use super::{audio_stream, lexicons::LexiconCache, parts, voice_input, written_text};
use crate::engine::config::EngineCoreConfig;
use crate::engine::error::{EngineError, Result};
use crate::engine::executor::{ExecutorProfile, RequestPreparer, Script};
use crate::engine::kv_swap::{KvSwap, SwappedBlock};
use crate::engine::scheduler::Workload;
use crate::engine::types::{Priority, RequestId, audio_duration};

/// Range of `temperature`.
const TEMPERATURE: (f32, f32) = (0.0, 2.0);

/// A valid request with its defaults filled in: what the loop must know of it.
#[derive(Debug, Clone)]
pub(in crate::engine) struct RequestInfo {
    pub(in crate::engine) id: RequestId,
    pub(in crate::engine) task: Task,
    pub(in crate::engine) priority: Priority,
    /// Whether somebody listens to generated audio, if it is delivered in chunks.
    pub(in crate::engine) live: bool,
    /// Characters of the text to speak; `None` for other tasks.
    pub(in crate::engine) text_chars: Option<usize>,
    pub(in crate::engine) chunk_lengths: ChunkLengths,
    /// The seed that was given or chosen.
    pub(in crate::engine) seed: u64,
    /// The most tokens to generate in a pass, as requested.
    pub(in crate::engine) max_tokens: usize,
    /// Where more text or audio comes from; `None` where the input is complete.
    pub(in crate::engine) open_input: Option<OpenInput>,
    /// Duration of its recordings.
    pub(in crate::engine) recorded: Duration,
    /// Tokens of the prepared input; 0 before.
    pub(in crate::engine) prompt_tokens: usize,
    /// What the model says otherwise than it is written.
    pub(in crate::engine) notes: TextNotes,
    /// Whether the numbers of its transcript become figures.
    pub(in crate::engine) writes_figures: bool,
    /// The language of the recording, as far as it is known before.
    pub(in crate::engine) language: Option<String>,
    /// Whether its audio has silence that was asked for.
    pub(in crate::engine) has_silence: bool,
    /// The parts of a text with markup, until they are prepared.
    pub(in crate::engine) script: Option<Box<Script>>,
}

impl RequestInfo {
    /// Characters of the whole text to speak; `None` for other tasks, and while more text may come.
    pub(in crate::engine) fn known_chars(&self) -> Option<usize> {
        self.text_chars.filter(|_| self.open_input.is_none())
    }
}

/// A validated and prepared request.
#[derive(Debug, Clone)]
pub(in crate::engine) struct PreparedRequest {
    pub(in crate::engine) info: RequestInfo,
    /// The executor's form of the input.
    pub(in crate::engine) prepared: Prepared,
    /// The scheduler's form of the work.
    pub(in crate::engine) work: Workload,
    /// Blocks of its prompt that are not in the pool.
    pub(in crate::engine) swapped: Vec<SwappedBlock>,
}

/// Validates and prepares requests for one model.
#[derive(Clone)]
pub(in crate::engine) struct RequestProcessor {
    config: Arc<EngineCoreConfig>,
    profile: Arc<ExecutorProfile>,
    preparer: Arc<dyn RequestPreparer>,
    lexicons: Arc<LexiconCache>,
    swap: Option<Arc<KvSwap>>,
}

impl std::fmt::Debug for RequestProcessor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RequestProcessor").field("model", &self.profile.model).finish_non_exhaustive()
    }
}

impl RequestProcessor {
    /// A processor for the model of `profile`.
    pub(in crate::engine) fn new(
        config: Arc<EngineCoreConfig>,
        profile: Arc<ExecutorProfile>,
        preparer: Arc<dyn RequestPreparer>,
    ) -> Self {
        let lexicons = LexiconCache::new(config.home.clone()).into();
        Self { lexicons, config, profile, preparer, swap: None }
    }

    /// Reads blocks of prompts from files.
    pub(in crate::engine) fn with_swap(mut self, swap: Option<Arc<KvSwap>>) -> Self {
        self.swap = swap;
        self
    }

    /// Whether preparation blocks no thread, since time is simulated.
    pub(in crate::engine) fn is_simulated(&self) -> bool {
        self.preparer.is_simulated()
    }

    /// How long the networks that clone a voice take in simulated time, for a recording of `length`.
    pub(in crate::engine) fn simulated_cloning(&self, length: Duration) -> Duration {
        self.preparer.simulated_cloning(length)
    }

    /// Validates and completes a request, and decodes its recordings into `intake`. Blocks.
    ///
    /// # Errors
    /// The request is invalid; the error names the field, the value and the remedy. Or its caller has gone, or recordings
    /// take all memory that they may.
    pub(in crate::engine) fn read(
        &self,
        mut request: EngineCoreRequest,
        intake: &mut AudioIntake,
    ) -> Result<(RequestInfo, Input)> {
        let (notes, script) = written_text::take(&mut request, &self.profile, &self.lexicons)?;
        let (writes_figures, language) = self.figures(&mut request)?;
        let open_text = request.text_input.clone().map(OpenInput::Text);
        let open_input = open_text.or(request.audio_stream.clone().map(OpenInput::Audio));
        self.check(&request)?;
        let params = self.complete(&request)?;
        let chunk_samples = request.chunk_samples.unwrap_or(self.config.streaming_chunk_size);
        let chunk_lengths = ChunkLengths::new(chunk_samples, request.first_chunk_samples);
        let (id, task, priority) = (request.id.clone(), request.task_type, request.priority);
        let is_window = request.window.is_some() || request.task_type == Task::Turn;
        let is_heard = is_window || request.audio_stream.is_some();
        let live = request.live && (!task.listens() || is_heard);
        let text_chars =
            request.text.as_deref().filter(|_| task == Task::Tts).map(|text| text.chars().count());
        let input = match task {
            Task::Tts => self.speak_input(request, &params, chunk_samples, intake)?,
            Task::Asr | Task::Diarize | Task::Turn => self.listen_input(request, &params, intake)?,
            Task::Chat => self.converse_input(request, &params, chunk_samples, intake)?,
        };
        if let Input::Listen(input) = &input {
            intake.cover(input.samples.len() as u64)?;
        }
        let recorded = self.recorded(&input);
        let info = RequestInfo {
            id,
            task,
            priority,
            live,
            text_chars,
            chunk_lengths,
            seed: params.seed.unwrap_or_default(),
            max_tokens: params.max_tokens,
            open_input,
            recorded,
            prompt_tokens: 0,
            notes,
            writes_figures,
            language,
            has_silence: script.as_ref().is_some_and(Script::has_silence),
            script: script.map(Box::new),
        };
        Ok((info, input))
    }

    /// Prepares a request that was read. Blocks.
    ///
    /// # Errors
    /// The model refuses the input; the error names the field, the value and the remedy.
    pub(in crate::engine) fn finish(&self, mut info: RequestInfo, input: &Input) -> Result<PreparedRequest> {
        let mut prepared = match (info.script.take(), input) {
            (Some(script), Input::Speak(input)) => {
                parts::prepare(*script, input, &*self.preparer, &self.profile.info)?
            }
            _ => self.preparer.prepare(input)?,
        };
        info.notes.unspoken = std::mem::take(&mut prepared.unspoken);
        let (work, prompt_tokens) = workload(&self.config, &prepared.work, info.max_tokens)?;
        info.prompt_tokens = prompt_tokens;
        let swapped = self.swap.as_ref().map_or_else(Vec::new, |swap| swap.read(work.prefix()));
        Ok(PreparedRequest { info, prepared, work, swapped })
    }

    /// The preparer of the model.
    pub(in crate::engine) fn preparer(&self) -> Arc<dyn RequestPreparer> {
        Arc::clone(&self.preparer)
    }

    /// Whether the numbers of a transcript are to become figures, which its model does not write, and the language of the
    /// recording as far as it is known. The model is not asked for it.
    ///
    /// # Errors
    /// The audio is live.
    fn figures(&self, request: &mut EngineCoreRequest) -> Result<(bool, Option<String>)> {
        let options = &mut request.transcription;
        let is_asked = std::mem::take(&mut options.inverse_normalization);
        if is_asked && (request.window.is_some() || request.audio_stream.is_some()) {
            let message = "the words of live audio are rewritten once they are settled; use a Writer, without inverse_normalization";
            return Err(InputError { param: "inverse_normalization", message: message.to_owned() }.into());
        }
        let only = || Some(&self.profile.languages).filter(|known| known.len() == 1)?.first().cloned();
        let language = options.language.as_deref().and_then(languages::code_of).or_else(only);
        Ok((is_asked && !self.profile.info.writes_figures && request.text.is_none(), language))
    }

    fn speak_input(
        &self,
        request: EngineCoreRequest,
        params: &GenerationParams,
        chunk_samples: usize,
        intake: &mut AudioIntake,
    ) -> Result<Input> {
        let reference = match request.reference {
            None => None,
            Some(VoiceInput::Pack(pack)) => Some(VoiceReference::Pack(pack)),
            Some(VoiceInput::Recording(reference)) => {
                Some(VoiceReference::Recording(self.decode_reference(reference, intake)?))
            }
        };
        Ok(Input::Speak(SpeakInput {
            text: request.text.unwrap_or_default(),
            sounds: Vec::new(),
            voice: request.voice,
            options: request.options,
            reference,
            has_more_text: request.text_input.is_some(),
            speed: params.speed,
            sampling: params.sampling(),
            seed: params.seed.unwrap_or_default(),
            max_tokens: params.max_tokens,
            chunk_samples,
            first_chunk_samples: request.first_chunk_samples,
        }))
    }

    fn listen_input(
        &self,
        request: EngineCoreRequest,
        params: &GenerationParams,
        intake: &mut AudioIntake,
    ) -> Result<Input> {
        let mut options = request.transcription.checked()?;
        options.temperature.get_or_insert_default();
        options.seed = params.seed;
        if self.profile.info.takes_keywords {
            options.keywords.extend_from_slice(&self.config.keywords);
        }
        let longest = self.config.max_audio_duration;
        let audio = request.audio_input.map(|audio| self.decode(audio, longest, intake));
        let samples = audio.transpose()?.unwrap_or_default();
        let (is_streamed, window, text) = (request.streaming, request.window, request.text);
        let chunk_ms = request.audio_stream.map(|audio| audio.chunk_ms());
        Ok(Input::Listen(ListenInput { samples, options, is_streamed, window, chunk_ms, text }))
    }

    /// The input of a turn: the conversation so far, with the request's own message appended.
    fn converse_input(
        &self,
        request: EngineCoreRequest,
        params: &GenerationParams,
        chunk_samples: usize,
        intake: &mut AudioIntake,
    ) -> Result<Input> {
        let ChatOptions { mut conversation, text_temperature, tools, tool_choice, text_only } = request.chat;
        let mut messages = Vec::new();
        if let Some(audio) = request.audio_input.filter(|audio| !audio.is_empty()) {
            messages.push(Message::Recording(self.decode_message(audio, intake)?));
        }
        if let Some(text) = request.text.filter(|text| !text.trim().is_empty()) {
            messages.push(Message::Text(text));
        }
        if !messages.is_empty() {
            conversation.ask(messages);
        }
        let turns = conversation.into_turns();
        let (options, greedy) = (request.options, SamplingParams::GREEDY);
        let is_sampled = request.params.is_some() || options.sets_sampling();
        Ok(Input::Converse(ConverseInput {
            instructions: options.instructions,
            turns,
            sampling: is_sampled.then_some(params.sampling()),
            text_sampling: text_temperature.map(|temperature| SamplingParams { temperature, ..greedy }),
            seed: params.seed.unwrap_or_default(),
            max_tokens: params.max_tokens,
            tools,
            tool_choice,
            text_only,
            voice: request.voice,
            speed: params.speed,
            chunk_samples,
            first_chunk_samples: request.first_chunk_samples,
        }))
    }

    /// Duration of the recordings of an input.
    fn recorded(&self, input: &Input) -> Duration {
        let (info, rate_hz) = (&self.profile.info, self.profile.info.input_sample_rate_hz);
        let (samples, rate_hz) = match input {
            Input::Speak(input) => (reference_samples(input), info.sample_rate_hz),
            Input::Listen(input) => (input.samples.len(), rate_hz),
            Input::Converse(input) => (input.turns.iter().map(recorded_samples).sum(), rate_hz),
        };
        audio_duration(samples as u64, rate_hz)
    }

    /// Decodes the recording of a user's message: mono samples at the model's input rate. Blocks.
    ///
    /// # Errors
    /// The recording cannot be decoded or is longer than `max_turn_duration`.
    pub(in crate::engine) fn decode_message(
        &self,
        audio: AudioInput,
        intake: &mut AudioIntake,
    ) -> Result<Arc<[f32]>> {
        self.decode(audio, self.config.max_turn_duration, intake)
    }

    /// Decodes a recording to make a voice of. Blocks.
    ///
    /// # Errors
    /// The model does not support voice cloning, or the recording is invalid; the error names the field.
    pub(in crate::engine) fn read_voice(
        &self,
        recording: ReferenceAudio,
        intake: &mut AudioIntake,
    ) -> Result<VoiceRecording> {
        recording.check(&self.profile)?;
        self.decode_reference(recording, intake)
    }

    /// Makes a voice pack of a recording. Blocks.
    ///
    /// # Errors
    /// The model refuses the recording; the error names the field.
    pub(in crate::engine) fn make_voice(&self, recording: &VoiceRecording) -> Result<Vec<u8>> {
        Ok(self.preparer.make_voice(recording)?)
    }

    /// Checks that a voice pack fits the model.
    ///
    /// # Errors
    /// It does not, or the model does not support voice cloning; the error names the remedy.
    pub(in crate::engine) fn check_voice(&self, pack: &[u8]) -> Result<()> {
        if !self.profile.info.clones_voices {
            return Err(voice_input::no_cloning("voice", &self.profile));
        }
        voice_input::check_pack_size(pack)?;
        Ok(self.preparer.check_voice(pack)?)
    }

    /// Decodes a recording to mono samples at the model's input rate.
    fn decode(
        &self,
        audio: AudioInput,
        max_duration: Duration,
        intake: &mut AudioIntake,
    ) -> Result<Arc<[f32]>> {
        self.decode_at(self.profile.info.input_sample_rate_hz, audio, max_duration, intake)
    }

    /// Decodes a recording to mono samples at `rate_hz`, as long as `intake` takes them.
    fn decode_at(
        &self,
        rate_hz: u32,
        audio: AudioInput,
        max_duration: Duration,
        intake: &mut AudioIntake,
    ) -> Result<Arc<[f32]>> {
        let limits = DecodeLimits { max_bytes: self.config.max_audio_bytes, max_duration };
        let (mut samples, mut refusal) = (0, None);
        let mut watch = |more: usize| {
            samples += more as u64;
            match intake.grow(samples) {
                Ok(()) => ControlFlow::Continue(()),
                Err(error) => {
                    refusal = Some(error);
                    ControlFlow::Break(())
                }
            }
        };
        let decoded = audio.decode(rate_hz, &limits, &mut watch);
        refusal.map_or(decoded.map_err(EngineError::Audio), Err)
    }

    /// Decodes a reference recording to mono samples at the model's output rate.
    fn decode_reference(
        &self,
        recording: ReferenceAudio,
        intake: &mut AudioIntake,
    ) -> Result<VoiceRecording> {
        let (text, timbre_only) = (recording.transcript(), recording.timbre_only);
        let longest = self.config.max_reference_duration;
        let decoded = self.decode_at(self.profile.info.sample_rate_hz, recording.audio, longest, intake);
        let samples = decoded.map_err(|error| match error {
            EngineError::Audio(DecodeError::TooLong { limit_s }) => EngineError::invalid(
                "ref_audio",
                format!("ref_audio is longer than {limit_s} s; send some seconds of one clear voice"),
            ),
            EngineError::Audio(error) => EngineError::ReferenceAudio(error),
            error => error,
        })?;
        Ok(VoiceRecording { samples, text, timbre_only })
    }

    fn check(&self, request: &EngineCoreRequest) -> Result<()> {
        let profile = &self.profile;
        if !profile.info.tasks.contains(&request.task_type) {
            return Err(EngineError::UnsupportedTask {
                model: profile.model.clone(),
                task: request.task_type.name(),
            });
        }
        let text = request.text.as_deref().unwrap_or_default();
        if request.task_type == Task::Tts && text.trim().is_empty() {
            return Err(EngineError::invalid("input", "input is empty; send some text"));
        }
        let listens = request.task_type.listens();
        let param = if listens { "text" } else { "input" };
        let chars = text.chars().take(MAX_TEXT_CHARS + 1).count();
        if chars > MAX_TEXT_CHARS {
            let message = format!("{param} has more than {MAX_TEXT_CHARS} characters; send it in parts");
            return Err(EngineError::invalid(param, message));
        }
        let no_audio = request.audio_input.as_ref().is_none_or(AudioInput::is_empty);
        audio_stream::check(request, profile)?;
        if listens && no_audio && request.audio_stream.is_none() {
            return Err(EngineError::invalid("audio", "audio is empty; it needs a recording"));
        }
        if listens && request.text.is_some() && !profile.info.aligns_text {
            let message =
                format!("model '{}' does not align a text with a recording; choose another", profile.model);
            return Err(EngineError::invalid("model", message));
        }
        if request.task_type == Task::Chat {
            self.check_chat(&request.chat, no_audio && text.trim().is_empty())?;
        }
        if let Some(voice) = &request.voice
            && !Voice::is_named(voice, &profile.info.voices)
        {
            let known: Vec<&str> = profile.info.voices.iter().map(|voice| voice.id.as_str()).collect();
            let message = format!(
                "voice '{}' is unknown to model '{}'; use {}",
                excerpt(voice),
                profile.model,
                known.join(", ")
            );
            return Err(EngineError::invalid("voice", message));
        }
        voice_input::check(request, profile)?;
        let sizes =
            [("chunk_samples", request.chunk_samples), ("first_chunk_samples", request.first_chunk_samples)];
        if let Some((name, _)) = sizes.into_iter().find(|(_, size)| *size == Some(0)) {
            return Err(EngineError::invalid(name, format!("{name} is 0; it must be at least 1")));
        }
        Ok(())
    }

    fn check_chat(&self, chat: &ChatOptions, is_silent: bool) -> Result<()> {
        if is_silent && !chat.conversation.is_asked() {
            return Err(EngineError::invalid("input", "a turn needs text or audio; both are empty"));
        }
        let limit = self.config.max_conversation_turns;
        if chat.conversation.answered() > limit {
            let message = format!("the conversation has more than {limit} turns; forget the oldest");
            return Err(EngineError::invalid("conversation", message));
        }
        if !chat.tools.is_empty() && !self.profile.info.calls_tools {
            let message = format!("model '{}' calls no tools; leave them out", self.profile.model);
            return Err(EngineError::invalid("tools", message));
        }
        match chat.text_temperature {
            Some(value) if !(TEMPERATURE.0..=TEMPERATURE.1).contains(&value) => {
                let (low, high) = TEMPERATURE;
                let message = format!("text_temperature is {value}; it must be between {low} and {high}");
                Err(EngineError::invalid("text_temperature", message))
            }
            _ => Ok(()),
        }
    }

    /// The request's parameters with defaults filled in. Values out of range are refused.
    fn complete(&self, request: &EngineCoreRequest) -> Result<GenerationParams> {
        let defaults = request.params.clone().unwrap_or_else(|| self.profile.default_params());
        let mut params = defaults.with(&request.options);
        if request.task_type.listens() {
            params.seed = request.transcription.seed.or(params.seed);
        }
        params.sampling().check()?;
        check_finite("speed", params.speed.into())?;
        if params.max_tokens == 0 {
            return Err(EngineError::invalid("max_tokens", "max_tokens is 0; it must be at least 1"));
        }
        match self.profile.info.speed_range {
            Some((low, high)) if !(low..=high).contains(&params.speed) => {
                let message = format!("speed is {}; it must be between {low} and {high}", params.speed);
                return Err(EngineError::invalid("speed", message));
            }
            None if params.speed != 1.0 => {
                let model = &self.profile.model;
                let message =
                    format!("speed is {}, but model '{model}' has a fixed tempo; leave it out", params.speed);
                return Err(EngineError::invalid("speed", message));
            }
            _ => {}
        }
        // Random seeds fit the integers of a 64-bit float, so that every client can send them back.
        params.seed = Some(params.seed.unwrap_or_else(|| uuid::Uuid::new_v4().as_u64_pair().0 >> 11));
        Ok(params)
    }
}

/// Samples of the recording to clone.
fn reference_samples(input: &SpeakInput) -> usize {
    match &input.reference {
        Some(VoiceReference::Recording(recording)) => recording.samples.len(),
        Some(VoiceReference::Pack(_)) | None => 0,
    }
}

/// Samples of the recordings in a turn.
fn recorded_samples(turn: &Turn) -> usize {
    let samples = |message: &Message| match message {
        Message::Recording(samples) => samples.len(),
        Message::Text(_) | Message::Result { .. } => 0,
    };
    match turn {
        Turn::User(messages) => messages.iter().map(samples).sum(),
        Turn::Model(_) | Turn::Told(_) => 0,
    }
}
