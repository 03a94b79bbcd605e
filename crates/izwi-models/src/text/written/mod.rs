//! From the words that were said to a text that can be used: numbers in figures, and spoken commands carried out.
//!
//! Rules look at the next words only as far as [`Cursor`] lets them, and wait where more words could change what they say.
//! So the text of words that come one by one is that of all at once. Knows no clock, no model and no wire format.

mod commands;
mod cursor;
mod figures;
mod numbers;
mod said;
mod writer;

pub use said::Said;
pub use writer::{Writer, WriterOptions, normalised, words_of};
