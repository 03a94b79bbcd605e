//! Requests and how they are built.
//!
//! Must not know queues or the state of the engine.

mod audio_input;
mod audio_stream;
mod foreign;
mod intake;
mod lexicons;
mod live_text;
mod open_input;
mod parts;
mod processor;
mod text_input;
mod voice_input;
mod workload;
mod written_text;

use izwi_types::{GenerationParams, LiveWindow, SpeechOptions, Task, Tool, ToolChoice, TranscriptionOptions};

use super::conversation::Conversation;
use super::types::{Priority, RequestId};

pub use audio_input::AudioInput;
pub use audio_stream::AudioStream;
pub(super) use intake::{Abandoned, AudioIntake};
pub use lexicons::{check_lexicon, ipa_of, lexicon_as_pls, read_lexicon};
pub use live_text::{LiveText, first_end, sentence_ends, utterance_end};
pub(super) use open_input::OpenInput;
pub(super) use processor::{PreparedRequest, RequestInfo, RequestProcessor};
pub use text_input::{MAX_TEXT_CHARS, TextInput};
pub use voice_input::{MAX_REFERENCE_CHARS, ReferenceAudio, VoiceInput};
pub(super) use workload::workload;
pub use written_text::plain_text;

/// Tells the engine that input has arrived or ended.
pub(super) type Wake = Box<dyn Fn() + Send>;

/// Options of a turn in a conversation.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ChatOptions {
    /// The turns so far. If the last one is the user's, the request needs neither text nor audio.
    pub conversation: Conversation,
    /// Temperature of the text; `None` for the model's default.
    pub text_temperature: Option<f32>,
    /// Tools that may be called, only for models that call tools.
    pub tools: Vec<Tool>,
    /// Whether they are called.
    pub tool_choice: ToolChoice,
    /// Whether nobody hears the answer: a model that speaks after it writes does not speak.
    pub text_only: bool,
}

/// A request of a client.
#[derive(Debug, Clone, PartialEq)]
pub struct EngineCoreRequest {
    /// Unique id.
    pub id: RequestId,
    /// The task.
    pub task_type: Task,
    /// Text to synthesise, of the user's turn, or to align with the recording in place of a transcription.
    pub text: Option<String>,
    /// Text to synthesise that arrives while it is spoken, behind `text`. Only for models that append text.
    pub text_input: Option<TextInput>,
    /// Recording to transcribe or to align with `text`, or of the user's turn.
    pub audio_input: Option<AudioInput>,
    /// Audio to transcribe that arrives while it is transcribed. Only for models that take it in chunks.
    pub audio_stream: Option<AudioStream>,
    /// Options of a transcription.
    pub transcription: TranscriptionOptions,
    /// Whether the result is delivered while it is made. A transcript is then not searched for unless its options say so;
    /// speech is the same either way.
    pub streaming: bool,
    /// Set if the recording is a window of live audio: somebody waits for it, so it is no bulk work.
    pub window: Option<LiveWindow>,
    /// Options of a turn in a conversation.
    pub chat: ChatOptions,
    /// Id of one of the model's voices; `None` for its default. Conversations always use the model's own voice.
    pub voice: Option<String>,
    /// A voice to clone instead of using the model's own.
    pub reference: Option<VoiceInput>,
    /// Name of the saved voice that `reference` is, for the lexicons of that voice.
    pub saved_voice: Option<String>,
    /// Options of the speech. Absent ones take their values from `params`.
    pub options: SpeechOptions,
    /// Generation parameters; `None` for the model's own.
    pub params: Option<GenerationParams>,
    /// Urgency.
    pub priority: Priority,
    /// Whether somebody listens while it is generated. Only streams with audio are live; all else is bulk work, which
    /// runs in the time that live streams leave.
    pub live: bool,
    /// Samples in a chunk; `None` for the engine's default.
    pub chunk_samples: Option<usize>,
    /// Samples of the first chunk; `None` for the size of all others.
    pub first_chunk_samples: Option<usize>,
}

impl EngineCoreRequest {
    fn new(task_type: Task) -> Self {
        Self {
            id: RequestId::random(),
            task_type,
            text: None,
            text_input: None,
            audio_input: None,
            audio_stream: None,
            transcription: TranscriptionOptions::default(),
            streaming: false,
            window: None,
            chat: ChatOptions::default(),
            voice: None,
            reference: None,
            saved_voice: None,
            options: SpeechOptions::default(),
            params: None,
            priority: Priority::Normal,
            live: true,
            chunk_samples: None,
            first_chunk_samples: None,
        }
    }

    /// Text to speech.
    ///
    /// ```
    /// use izwi_core::engine::{EngineCoreRequest, GenerationParams};
    ///
    /// let request = EngineCoreRequest::tts("Hello, world!")
    ///     .with_voice("us_female")
    ///     .with_params(GenerationParams {
    ///         temperature: 0.7,
    ///         max_tokens: 2048,
    ///         ..Default::default()
    ///     });
    /// ```
    pub fn tts(text: impl Into<String>) -> Self {
        Self { text: Some(text.into()), ..Self::new(Task::Tts) }
    }

    /// Speech to text. `audio` is base64 of an audio file, a `data:` URL, or the bytes of the file.
    pub fn asr(audio: impl Into<AudioInput>) -> Self {
        Self { audio_input: Some(audio.into()), ..Self::new(Task::Asr) }
    }

    /// Speech to text, of audio that arrives while it is transcribed.
    pub fn listen(audio: AudioStream) -> Self {
        Self { audio_stream: Some(audio), streaming: true, ..Self::new(Task::Asr) }
    }

    /// The times of the words of `text`, which is said in `audio`: a transcript of this text. Only for models that align
    /// texts. Of the options of a transcription only the language has an effect.
    pub fn alignment(audio: impl Into<AudioInput>, text: impl Into<String>) -> Self {
        Self { text: Some(text.into()), ..Self::asr(audio) }
    }

    /// Who speaks when in `audio`: a transcript whose segments have a speaker and no text.
    pub fn diarization(audio: impl Into<AudioInput>) -> Self {
        Self { audio_input: Some(audio.into()), ..Self::new(Task::Diarize) }
    }

    /// Who speaks in audio that arrives: turns as they are known so far, and [revisions](crate::engine::Segment::revision) of those
    /// that were told before.
    pub fn live_diarization(audio: AudioStream) -> Self {
        Self { audio_stream: Some(audio), streaming: true, ..Self::new(Task::Diarize) }
    }

    /// The request for who speaks in the recording of this one, with the options of that, which this one loses.
    #[must_use]
    pub fn split_diarization(&mut self) -> Self {
        let max_speakers = self.transcription.max_speakers.take();
        Self {
            audio_input: self.audio_input.clone(),
            priority: self.priority,
            transcription: TranscriptionOptions { max_speakers, ..TranscriptionOptions::default() },
            ..Self::new(Task::Diarize)
        }
    }

    /// Whether who speaks in `audio` has finished at its end: a transcript of one segment with
    /// [`end_of_turn`](crate::engine::Segment::end_of_turn) and no text. Somebody waits for it, so it is no bulk work.
    pub fn end_of_turn(audio: impl Into<AudioInput>) -> Self {
        Self { audio_input: Some(audio.into()), ..Self::new(Task::Turn) }
    }

    /// A turn of a spoken conversation, with a user's message of audio, text or both.
    pub fn audio_chat(audio_base64: Option<String>, text: Option<String>) -> Self {
        Self { audio_input: audio_base64.map(AudioInput::Base64), text, ..Self::new(Task::Chat) }
    }

    /// The model's turn in a conversation whose last turn is the user's.
    pub fn converse(conversation: Conversation) -> Self {
        Self::audio_chat(None, None).with_chat(ChatOptions { conversation, ..ChatOptions::default() })
    }

    /// Sets an input of more text, which is spoken as it arrives.
    #[must_use]
    pub fn with_text_input(mut self, input: TextInput) -> Self {
        self.text_input = Some(input);
        self
    }

    /// Sets the options of a turn in a conversation.
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

    /// Sets the language of the text, a BCP 47 tag.
    #[must_use]
    pub fn with_language(mut self, language: impl Into<String>) -> Self {
        self.options.language = Some(language.into());
        self
    }

    /// Sets the style prompt.
    #[must_use]
    pub fn with_instructions(mut self, instructions: impl Into<String>) -> Self {
        self.options.instructions = Some(instructions.into());
        self
    }

    /// Sets a voice to clone.
    #[must_use]
    pub fn with_reference(mut self, reference: VoiceInput) -> Self {
        self.reference = Some(reference);
        self
    }

    /// Sets whether the text is interleaved with generation.
    #[must_use]
    pub fn with_streams_text(mut self, streams_text: bool) -> Self {
        self.options.non_streaming_mode = Some(!streams_text);
        self
    }

    /// Sets the options of the speech.
    #[must_use]
    pub fn with_options(mut self, options: SpeechOptions) -> Self {
        self.options = options;
        self
    }

    /// Sets the options of a transcription.
    #[must_use]
    pub fn with_transcription(mut self, options: TranscriptionOptions) -> Self {
        self.transcription = options;
        self
    }

    /// Sets whether the result is delivered while it is made, for [`Engine::generate_streaming`](super::Engine::generate_streaming).
    #[must_use]
    pub fn with_streaming(mut self, streaming: bool) -> Self {
        self.streaming = streaming;
        self
    }

    /// Makes the recording a window of live audio.
    #[must_use]
    pub fn with_window(mut self, window: LiveWindow) -> Self {
        self.window = Some(window);
        self
    }

    /// Sets the generation parameters.
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

    /// Sets whether somebody listens while it is generated.
    #[must_use]
    pub fn with_live(mut self, live: bool) -> Self {
        self.live = live;
        self
    }

    /// Sets the chunk size in samples.
    #[must_use]
    pub fn with_chunk_samples(mut self, samples: usize) -> Self {
        self.chunk_samples = Some(samples);
        self
    }

    /// Sets the size of the first chunk in samples; `None` for the size of all others.
    #[must_use]
    pub fn with_first_chunk_samples(mut self, samples: Option<usize>) -> Self {
        self.first_chunk_samples = samples;
        self
    }
}
