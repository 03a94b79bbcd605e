//! From what a user writes to what a model reads: markup, normalisation, sentences, phonemes.
//!
//! English. Knows no tensor and no family; a family brings its reader of unknown words.

pub mod alignment;
mod calendar;
mod figures;
pub mod markup;
pub mod normalise;
mod numerals;
pub mod phonemes;
pub(crate) mod pieces;
pub mod rewrite;
pub mod sentences;
pub(crate) mod tokenizer_file;
mod words;
