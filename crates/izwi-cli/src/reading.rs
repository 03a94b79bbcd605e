//! Reading a book aloud at the command line: where it goes, and what its voices speak with.

mod outputs;
mod speaker;

pub(crate) use outputs::Outputs;
pub(crate) use speaker::{Speaker, is_unspeakable};
