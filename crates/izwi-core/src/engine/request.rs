//! Requests: how they are built, checked, completed and prepared before the loop sees them.
//!
//! Everything here happens outside the loop, the costly part on a blocking thread. Touches no queue and no state of
//! the engine.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use izwi_audio::decode::{self, DecodeError, DecodeLimits};

use super::config::EngineCoreConfig;
use super::conversation::Conversation;
use super::error::{EngineError, Result};
use super::executor::{
    Decoded, ExecutorProfile, Message, PreparedRequest, PreparedWork, Reference, RequestPreparer, Turn,
    VoiceRecording,
};
use super::kv_cache::PrefixChain;
use super::reference::{self, ReferenceRecording, VoiceReference};
use super::scheduler::Workload;
use super::types::{GenerationParams, Priority, RequestId, TaskType, audio_duration};

/// The most characters of text in one request.
pub const MAX_TEXT_CHARS: usize = 65_536;
/// Range of `temperature`.
const TEMPERATURE: (f32, f32) = (0.0, 2.0);
/// Range of `repetition_penalty`.
const REPETITION_PENALTY: (f32, f32) = (0.5, 2.0);

/// A recording as a client hands it over.
#[derive(Debug, Clone, PartialEq)]
pub enum AudioInput {
    /// Base64 of an audio file, or a `data:` URL of one.
    Base64(String),
    /// An audio file.
    File(Bytes),
}

impl From<String> for AudioInput {
    fn from(base64: String) -> Self {
        Self::Base64(base64)
    }
}

impl From<&str> for AudioInput {
    fn from(base64: &str) -> Self {
        Self::Base64(base64.to_owned())
    }
}

impl From<Bytes> for AudioInput {
    fn from(file: Bytes) -> Self {
        Self::File(file)
    }
}

impl From<Vec<u8>> for AudioInput {
    fn from(file: Vec<u8>) -> Self {
        Self::File(file.into())
    }
}

impl AudioInput {
    pub(super) fn is_empty(&self) -> bool {
        match self {
            Self::Base64(text) => text.is_empty(),
            Self::File(bytes) => bytes.is_empty(),
        }
    }
}

/// How a recording is to be transcribed.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct TranscriptionOptions {
    /// Text that might have come before: names, spellings, style.
    pub prompt: Option<String>,
    /// Render in English instead of transcribing.
    pub translate: bool,
    /// Tell when each word was said.
    pub word_timestamps: bool,
}

/// How a conversation goes on.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ChatOptions {
    /// What was said before. If the user spoke last in it, the request needs neither text nor audio.
    pub conversation: Conversation,
    /// Whether sound is drawn the model's own way, whatever the request's parameters say.
    pub own_sampling: bool,
    /// Randomness of the text; `None` for the model's own way.
    pub text_temperature: Option<f32>,
}

/// What a client asks for.
#[derive(Debug, Clone, PartialEq)]
pub struct EngineCoreRequest {
    /// Its id.
    pub id: RequestId,
    /// What to do.
    pub task_type: TaskType,
    /// Text to speak, or of the turn.
    pub text: Option<String>,
    /// Recording.
    pub audio_input: Option<AudioInput>,
    /// How the recording is to be transcribed.
    pub transcription: TranscriptionOptions,
    /// How the conversation goes on.
    pub chat: ChatOptions,
    /// A name out of the model's voices; `None` for its default. In a conversation a model keeps the voice it was
    /// trained to converse in.
    pub voice: Option<String>,
    /// BCP 47 tag.
    pub language: Option<String>,
    /// Style prompt.
    pub instructions: Option<String>,
    /// A voice to take in place of the model's own.
    pub reference: Option<VoiceReference>,
    /// Whether the text is given to the model as it speaks (`true`) or whole before it does (`false`); `None` for the
    /// model's own way.
    pub streams_text: Option<bool>,
    /// How to generate; `None` for the model's own parameters.
    pub params: Option<GenerationParams>,
    /// Urgency.
    pub priority: Priority,
    /// Whether the caller wants chunks.
    pub streaming: bool,
    /// Samples in a chunk; `None` for the engine's default.
    pub chunk_samples: Option<usize>,
}

impl EngineCoreRequest {
    fn new(task_type: TaskType) -> Self {
        Self {
            id: RequestId::random(),
            task_type,
            text: None,
            audio_input: None,
            transcription: TranscriptionOptions::default(),
            chat: ChatOptions::default(),
            voice: None,
            language: None,
            instructions: None,
            reference: None,
            streams_text: None,
            params: None,
            priority: Priority::Normal,
            streaming: false,
            chunk_samples: None,
        }
    }

    /// Speak `text`.
    pub fn tts(text: impl Into<String>) -> Self {
        Self { text: Some(text.into()), ..Self::new(TaskType::Tts) }
    }

    /// Transcribe a recording: base64 of an audio file, a `data:` URL, or the bytes of the file.
    pub fn asr(audio: impl Into<AudioInput>) -> Self {
        Self { audio_input: Some(audio.into()), ..Self::new(TaskType::Asr) }
    }

    /// One turn of a spoken conversation: audio, text or both.
    pub fn audio_chat(audio_base64: Option<String>, text: Option<String>) -> Self {
        Self { audio_input: audio_base64.map(AudioInput::Base64), text, ..Self::new(TaskType::AudioChat) }
    }

    /// The model's turn in a conversation in which the user spoke last.
    pub fn converse(conversation: Conversation) -> Self {
        Self::audio_chat(None, None).with_chat(ChatOptions { conversation, ..ChatOptions::default() })
    }

    /// Sets how the conversation goes on.
    #[must_use]
    pub fn with_chat(mut self, chat: ChatOptions) -> Self {
        self.chat = chat;
        self
    }

    /// Sets the id.
    #[must_use]
    pub fn with_id(mut self, id: RequestId) -> Self {
        self.id = id;
        self
    }

    /// Sets the voice.
    #[must_use]
    pub fn with_voice(mut self, voice: impl Into<String>) -> Self {
        self.voice = Some(voice.into());
        self
    }

    /// Sets the language, a BCP 47 tag.
    #[must_use]
    pub fn with_language(mut self, language: impl Into<String>) -> Self {
        self.language = Some(language.into());
        self
    }

    /// Sets the style prompt.
    #[must_use]
    pub fn with_instructions(mut self, instructions: impl Into<String>) -> Self {
        self.instructions = Some(instructions.into());
        self
    }

    /// Sets a voice to take in place of the model's own.
    #[must_use]
    pub fn with_reference(mut self, reference: VoiceReference) -> Self {
        self.reference = Some(reference);
        self
    }

    /// Says whether the text is given to the model as it speaks, or whole before it does.
    #[must_use]
    pub fn with_streams_text(mut self, streams_text: bool) -> Self {
        self.streams_text = Some(streams_text);
        self
    }

    /// Sets how to transcribe.
    #[must_use]
    pub fn with_transcription(mut self, options: TranscriptionOptions) -> Self {
        self.transcription = options;
        self
    }

    /// Sets how to generate.
    #[must_use]
    pub fn with_params(mut self, params: GenerationParams) -> Self {
        self.params = Some(params);
        self
    }

    /// Sets the urgency.
    #[must_use]
    pub fn with_priority(mut self, priority: Priority) -> Self {
        self.priority = priority;
        self
    }

    /// Says whether chunks are wanted.
    #[must_use]
    pub fn with_streaming(mut self, streaming: bool) -> Self {
        self.streaming = streaming;
        self
    }

    /// Sets the chunk size in samples.
    #[must_use]
    pub fn with_chunk_samples(mut self, samples: usize) -> Self {
        self.chunk_samples = Some(samples);
        self
    }
}

/// A request that was checked, completed and prepared.
#[derive(Debug, Clone)]
pub struct AdmissibleRequest {
    /// The request as it came, its texts emptied: the prepared form has them.
    pub request: EngineCoreRequest,
    /// Complete and clamped parameters.
    pub params: Arc<GenerationParams>,
    /// The executor's form of it.
    pub prepared: PreparedRequest,
    /// The scheduler's form of it.
    pub work: Workload,
    /// Tokens of the prepared input.
    pub prompt_tokens: usize,
    /// The most tokens to generate in a pass, as asked for.
    pub max_tokens: usize,
    /// Length of the recording, where there is one.
    pub heard: Option<Duration>,
    /// Length of all recordings that came with it.
    pub open_audio: Duration,
}

/// Checks and prepares requests for one model.
#[derive(Clone)]
pub struct RequestProcessor {
    config: Arc<EngineCoreConfig>,
    profile: Arc<ExecutorProfile>,
    preparer: Arc<dyn RequestPreparer>,
}

impl std::fmt::Debug for RequestProcessor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RequestProcessor").field("model", &self.profile.model).finish_non_exhaustive()
    }
}

impl RequestProcessor {
    /// A processor for the model that `profile` describes.
    pub fn new(
        config: Arc<EngineCoreConfig>,
        profile: Arc<ExecutorProfile>,
        preparer: Arc<dyn RequestPreparer>,
    ) -> Self {
        Self { config, profile, preparer }
    }

    /// Checks, completes and prepares. Costly: call it on a blocking thread.
    ///
    /// # Errors
    /// The request cannot be taken; the error names the field, the value and the remedy.
    pub fn process(&self, mut request: EngineCoreRequest) -> Result<AdmissibleRequest> {
        self.check(&request)?;
        let mut params = self.complete(&request)?;
        let (decoded, heard, open_audio) = self.decode_all(&mut request)?;
        let prepared = self.preparer.prepare(&request, decoded, &params)?;
        request.text = None;
        let max_tokens = params.max_tokens;
        let (work, prompt_tokens) = workload(&self.config, &prepared.work, max_tokens)?;
        if let Workload::Autoregressive { max_tokens, .. } = &work {
            params.max_tokens = *max_tokens;
        }
        let params = Arc::new(params);
        Ok(AdmissibleRequest {
            request,
            params,
            prepared,
            work,
            prompt_tokens,
            max_tokens,
            heard,
            open_audio,
        })
    }

    /// Decodes everything that was recorded, out of the request. Answers also with the length of the recording that is
    /// transcribed, and of all together.
    fn decode_all(&self, request: &mut EngineCoreRequest) -> Result<(Decoded, Option<Duration>, Duration)> {
        let length = |samples: usize, rate| audio_duration(samples as u64, rate);
        let heard_rate = self.profile.heard_rate;
        let mut decoded = Decoded::default();
        if request.task_type == TaskType::AudioChat {
            decoded.turns = self.turns(request)?;
            let samples = decoded.turns.iter().map(recorded).sum();
            return Ok((decoded, None, length(samples, heard_rate)));
        }
        decoded.audio = request.audio_input.take().map(|audio| self.decode(audio)).transpose()?;
        let heard = decoded.audio.as_ref().map(|audio| length(audio.len(), heard_rate));
        let mut open_audio = heard.unwrap_or_default();
        decoded.reference = match request.reference.take() {
            None => None,
            Some(VoiceReference::Pack(pack)) => Some(Reference::Pack(pack)),
            Some(VoiceReference::Recording(recording)) => {
                let recording = self.decode_reference(recording)?;
                open_audio += length(recording.samples.len(), self.profile.sample_rate);
                Some(Reference::Recording(recording))
            }
        };
        Ok((decoded, heard, open_audio))
    }

    /// All turns of a conversation, what the request itself says as the last.
    fn turns(&self, request: &mut EngineCoreRequest) -> Result<Vec<Turn>> {
        let mut conversation = std::mem::take(&mut request.chat.conversation);
        let mut messages = Vec::new();
        if let Some(audio) = request.audio_input.take().filter(|audio| !audio.is_empty()) {
            messages.push(Message::Recording(self.hear(audio)?));
        }
        if let Some(text) = request.text.take().filter(|text| !text.trim().is_empty()) {
            messages.push(Message::Text(text));
        }
        if !messages.is_empty() {
            conversation.ask(messages);
        }
        Ok(conversation.into_turns())
    }

    /// A recording of what a user says in a turn, mono at the rate the model listens at. Costly: call it on a blocking
    /// thread.
    ///
    /// # Errors
    /// It cannot be decoded, or is longer than a turn may be.
    pub fn hear(&self, audio: AudioInput) -> Result<Arc<[f32]>> {
        Ok(self.decode_up_to(audio, self.config.max_turn_duration, self.profile.heard_rate)?)
    }

    /// Makes a voice pack of a recording. Costly: call it on a blocking thread.
    ///
    /// # Errors
    /// The model clones no voices, or the recording cannot be used; the error names the field.
    pub fn make_voice(&self, recording: ReferenceRecording) -> Result<Vec<u8>> {
        recording.check(&self.profile)?;
        self.preparer.make_voice(&self.decode_reference(recording)?)
    }

    /// Checks that a voice pack fits the model.
    ///
    /// # Errors
    /// It does not, or the model clones no voices; the error names the remedy.
    pub fn check_voice(&self, pack: &[u8]) -> Result<()> {
        if !self.profile.clones_voices {
            return Err(reference::clones_none("voice", &self.profile));
        }
        reference::check_pack_size(pack)?;
        self.preparer.check_voice(pack)
    }

    /// The recording, mono at the rate the model listens at.
    fn decode(&self, audio: AudioInput) -> Result<Arc<[f32]>> {
        Ok(self.decode_up_to(audio, self.config.max_audio_duration, self.profile.heard_rate)?)
    }

    fn decode_up_to(
        &self,
        audio: AudioInput,
        max_duration: Duration,
        rate: u32,
    ) -> std::result::Result<Arc<[f32]>, DecodeError> {
        let limits = DecodeLimits { max_bytes: self.config.max_audio_bytes, max_duration };
        let file = match audio {
            AudioInput::Base64(text) => decode::from_base64(&text, limits.max_bytes)?.into(),
            AudioInput::File(bytes) => bytes,
        };
        Ok(decode::decode(file, rate, &limits)?.into())
    }

    /// The recording of a voice, mono at the model's rate.
    fn decode_reference(&self, recording: ReferenceRecording) -> Result<VoiceRecording> {
        let (text, timbre_only) = (recording.given_text(), recording.timbre_only);
        let longest = self.config.max_reference_duration;
        let rate = self.profile.sample_rate;
        let samples = self.decode_up_to(recording.audio, longest, rate).map_err(|error| match error {
            DecodeError::TooLong { limit_s } => EngineError::invalid(
                "ref_audio",
                format!("ref_audio is longer than {limit_s} s; send some seconds of one clear voice"),
            ),
            error => EngineError::ReferenceAudio(error),
        })?;
        Ok(VoiceRecording { samples, text, timbre_only })
    }

    fn check(&self, request: &EngineCoreRequest) -> Result<()> {
        let profile = &self.profile;
        if !profile.tasks.contains(&request.task_type) {
            return Err(EngineError::UnsupportedTask {
                model: profile.model.clone(),
                task: request.task_type.label(),
            });
        }
        let text = request.text.as_deref().unwrap_or_default();
        if request.task_type == TaskType::Tts && text.trim().is_empty() {
            return Err(EngineError::invalid("input", "input is empty; give some text to speak"));
        }
        let chars = text.chars().take(MAX_TEXT_CHARS + 1).count();
        if chars > MAX_TEXT_CHARS {
            let message = format!("input has more than {MAX_TEXT_CHARS} characters; send it in parts");
            return Err(EngineError::invalid("input", message));
        }
        let no_audio = request.audio_input.as_ref().is_none_or(AudioInput::is_empty);
        if request.task_type == TaskType::Asr && no_audio {
            return Err(EngineError::invalid("audio", "audio is empty; send a recording as base64"));
        }
        if request.task_type == TaskType::AudioChat {
            self.check_chat(&request.chat, no_audio && text.trim().is_empty())?;
        }
        if let Some(voice) = &request.voice
            && !profile.voices.iter().any(|known| known.id == *voice)
        {
            let known: Vec<&str> = profile.voices.iter().map(|voice| voice.id.as_str()).collect();
            let message =
                format!("voice '{voice}' is unknown to model '{}'; use {}", profile.model, known.join(", "));
            return Err(EngineError::invalid("voice", message));
        }
        reference::check(request, profile)?;
        if request.chunk_samples == Some(0) {
            return Err(EngineError::invalid("chunk_samples", "chunk_samples is 0; it must be at least 1"));
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
        match chat.text_temperature {
            Some(value) if !(TEMPERATURE.0..=TEMPERATURE.1).contains(&value) => {
                let (low, high) = TEMPERATURE;
                let message = format!("text_temperature is {value}; it must be between {low} and {high}");
                Err(EngineError::invalid("text_temperature", message))
            }
            _ => Ok(()),
        }
    }

    /// The parameters with defaults filled in and values in range.
    fn complete(&self, request: &EngineCoreRequest) -> Result<GenerationParams> {
        let mut params = request.params.clone().unwrap_or_else(|| self.profile.default_params.clone());
        if request.params.is_none() && request.task_type == TaskType::Asr {
            // The model's own is for speech.
            params.temperature = 0.0;
        }
        let floats = [
            ("temperature", params.temperature),
            ("top_p", params.top_p),
            ("repetition_penalty", params.repetition_penalty),
            ("speed", params.speed),
        ];
        if let Some((name, value)) = floats.iter().find(|(_, value)| !value.is_finite()) {
            return Err(EngineError::invalid(name, format!("{name} is {value}; it must be a finite number")));
        }
        if params.max_tokens == 0 {
            return Err(EngineError::invalid("max_tokens", "max_tokens is 0; it must be at least 1"));
        }
        match self.profile.speed_range {
            Some((low, high)) if !(low..=high).contains(&params.speed) => {
                let message = format!("speed is {}; it must be between {low} and {high}", params.speed);
                return Err(EngineError::invalid("speed", message));
            }
            None if params.speed != 1.0 => {
                let model = &self.profile.model;
                let message = format!(
                    "speed is {}, but model '{model}' cannot change tempo; leave it out",
                    params.speed
                );
                return Err(EngineError::invalid("speed", message));
            }
            _ => {}
        }
        params.temperature = params.temperature.clamp(TEMPERATURE.0, TEMPERATURE.1);
        params.top_p = params.top_p.clamp(f32::EPSILON, 1.0);
        params.repetition_penalty =
            params.repetition_penalty.clamp(REPETITION_PENALTY.0, REPETITION_PENALTY.1);
        // Drawn seeds fit a JSON number, so that they can be reported and given again.
        params.seed = Some(params.seed.unwrap_or_else(|| uuid::Uuid::new_v4().as_u64_pair().0 >> 11));
        Ok(params)
    }
}

/// Samples of the recordings in a turn.
fn recorded(turn: &Turn) -> usize {
    let samples = |message: &Message| match message {
        Message::Recording(samples) => samples.len(),
        Message::Text(_) => 0,
    };
    match turn {
        Turn::User(messages) => messages.iter().map(samples).sum(),
        Turn::Model(_) => 0,
    }
}

/// The scheduler's view of prepared work, with the number of its prompt tokens; cuts `max_tokens` to what a sequence
/// can hold.
///
/// # Errors
/// The work does not fit the configured limits.
pub(super) fn workload(
    config: &EngineCoreConfig,
    work: &PreparedWork,
    max_tokens: usize,
) -> Result<(Workload, usize)> {
    match work {
        PreparedWork::Units(units) => {
            let budget = config.max_tokens_per_step;
            if units.is_empty() || units.iter().any(|&unit| unit == 0 || unit > budget) {
                let message =
                    format!("input cannot be cut into pieces of at most {budget} tokens; shorten it");
                return Err(EngineError::invalid("input", message));
            }
            Ok((Workload::Units(Arc::clone(units)), units.iter().sum()))
        }
        PreparedWork::Autoregressive { prompt, encoder_tokens } => {
            let capacity = config.sequence_capacity(true);
            let prompt_tokens = prompt.len();
            if prompt_tokens == 0 || prompt_tokens >= capacity {
                let message = format!("input has {prompt_tokens} tokens; it must have 1 to {}", capacity - 1);
                return Err(EngineError::invalid("input", message));
            }
            if !config.enable_chunked_prefill && prompt_tokens > config.max_tokens_per_step {
                let message = format!(
                    "input has {prompt_tokens} tokens, a step takes {}; shorten it or enable chunked prefill",
                    config.max_tokens_per_step
                );
                return Err(EngineError::invalid("input", message));
            }
            let work = Workload::Autoregressive {
                prompt_tokens,
                max_tokens: max_tokens.min(capacity - prompt_tokens),
                encoder_tokens: *encoder_tokens,
                prefix: Arc::new(PrefixChain::of(prompt, config.block_size)),
            };
            Ok((work, prompt_tokens))
        }
    }
}
