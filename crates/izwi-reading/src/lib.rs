//! Reading a book aloud: its text, its units, which are spoken and stored one by one, and the files that are bound of them.
//!
//! A unit is a paragraph, or a part of one. Its audio follows from its own text, voice and options alone, so that a run that
//! was cut off goes on where it was, and equals one that was not. Knows no request, no command and no server: who speaks the units
//! is the caller.

#![forbid(unsafe_code)]

mod binding;
pub mod book;
mod cast;
mod error;
mod journal;
mod keys;
mod loudness;
mod plan;
mod sound;
mod subtitles;
mod tags;

pub use binding::{Binding, Bound, OutputFile, Outputs};
pub use book::{Book, Kind};
pub use cast::Cast;
pub use error::{BindError, BookError};
pub use journal::Journal;
pub use keys::{seed, unit_key};
pub use loudness::Loudness;
pub use plan::{Plan, Unit};
pub use sound::UnitSound;
