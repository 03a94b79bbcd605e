//! Reading a book aloud: its units, which are spoken and stored one by one, and the files that are bound of them.
//!
//! A unit is a paragraph, or a part of one. Its audio follows from its own text, voice and options alone, so that a run that
//! was cut off goes on where it was, and equals one that was not.

mod binding;
mod cast;
mod journal;
mod loudness;
mod outputs;
mod plan;
mod sound;
mod speaker;
mod subtitles;
mod tags;

pub(crate) use binding::{Binding, Bound};
pub(crate) use cast::Cast;
pub(crate) use journal::Journal;
pub(crate) use loudness::Loudness;
pub(crate) use outputs::Outputs;
pub(crate) use plan::{Plan, Unit};
pub(crate) use speaker::{Speaker, is_unspeakable};
