//! Transcription of audio while it is spoken: which part of it is transcribed next, and which words are decided.
//!
//! Common to the sessions that transcribe live, those of dialects included: a session hands the audio and its turns to a
//! [`LiveTranscriber`], gets the jobs for the engine from it, and tells its client the events. Knows samples, milliseconds
//! and words; knows no frame.

mod agreement;
mod listener;
mod rewriting;
mod settings;
mod speakers;
mod step;
mod transcriber;
mod turn;
mod turns;

pub use agreement::LiveWord;
pub use listener::{ListenerReply, LiveListener};
pub use settings::LiveSettings;
pub use transcriber::{LiveReply, LiveTranscriber};
pub use turn::{LiveEvent, Stretch};
