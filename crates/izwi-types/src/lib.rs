//! The types that the engine and the models share: inputs, work, results. Plain data.
//!
//! Must not know tensors, an async runtime or a wire format.
#![forbid(unsafe_code)]

mod bytes;
mod chunking_strategy;
mod conversation;
mod device;
mod excerpt;
mod input;
mod input_error;
pub mod languages;
mod lexicon;
mod model_info;
mod option_row;
mod part_times;
mod precision;
mod sampling;
mod suggest;
mod task;
mod text_boundary;
mod text_notes;
mod transcript;
mod transcription_options;
mod turn_ends;
mod voice;
mod work;

pub use bytes::format_bytes;
pub use chunking_strategy::{ChunkingStrategy, SpeechDetection, VadFields};
pub use conversation::{Emission, Message, Tool, ToolCall, ToolChoice, Turn};
pub use device::DeviceChoice;
pub use excerpt::{bounded, excerpt};
pub use input::{ConverseInput, Input, ListenInput, LiveWindow, PrepareLimits, SpeakInput, WordSounds};
pub use input_error::InputError;
pub use lexicon::{Lexicon, LexiconEntry};
pub use model_info::{ModelInfo, Transcriber};
pub use option_row::{ListLimits, OptionFlag, OptionRow, OptionValue};
pub use part_times::PartTimes;
pub use precision::Precision;
pub use sampling::{GenerationParams, SamplingParams, SpeechOptions, check_finite};
pub use suggest::{similar, suggest};
pub use task::Task;
pub use text_boundary::stable_end;
pub use text_notes::{TextNote, TextNotes};
pub use transcript::{Segment, TokenLogprob, Transcript, Word, revise_turns};
pub use transcription_options::TranscriptionOptions;
pub use turn_ends::{Eagerness, TurnEnds};
pub use voice::{Gender, Voice, VoiceRecording, VoiceReference};
pub use work::{AudioProgress, EncoderWork, Prepared, SpokenWord, StepOutput, TextProgress, Work};
