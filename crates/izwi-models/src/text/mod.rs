//! From what a user writes to what a model reads: markup, normalisation, sentences, phonemes.
//!
//! English, and other languages by an external program. Knows no family. One file has a network: the reader of words
//! outside the lexicon.

pub mod alignment;
pub(crate) mod byte_pairs;
mod calendar;
pub mod emoji;
pub(crate) mod english;
mod espeak;
mod figures;
pub(crate) mod front_end;
pub(crate) mod front_ends;
pub(crate) mod heard;
pub(crate) mod ipa;
pub(crate) mod json_file;
pub mod lexicon;
pub mod markup;
mod measures;
mod money;
mod names;
pub mod normalise;
mod numbers;
mod numerals;
pub mod phonemes;
pub(crate) mod pieces;
pub mod rewrite;
pub(crate) mod sentencepiece;
pub mod sentences;
pub(crate) mod spoken_words;
pub mod ssml;
mod technical;
pub(crate) mod tokenizer_file;
pub(crate) mod units;
pub(crate) mod unknown_word_net;
mod words;
pub mod written;
