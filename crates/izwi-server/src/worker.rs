//! Does jobs: reads what they ask for, and works on them one after another.

mod create;
mod form;
mod runner;
mod speech;
mod transcription;

pub(crate) use create::create;
pub(crate) use runner::run;
