//! A meeting: its recordings, who says what in them, and what is written of it. Knows no command and no engine.

mod alignment;
mod minutes;
mod notes;
mod track;

pub(crate) use minutes::write as write_minutes;
pub(crate) use notes::{Format, Notes, Utterance, of_segments, of_tracks};
pub(crate) use track::{RATE_HZ, Track, align};
