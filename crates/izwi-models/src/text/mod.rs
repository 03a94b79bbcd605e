//! From what a user writes to what a model reads: markup, normalisation, sentences, phonemes.
//!
//! English, and other languages by an external program. Knows no family. One file has a network: the reader of words
//! outside the lexicon.

pub mod alignment;
pub(crate) mod byte_pairs;
mod calendar;
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
pub mod normalise;
mod numerals;
pub mod phonemes;
pub(crate) mod pieces;
pub mod rewrite;
pub(crate) mod sentencepiece;
pub mod sentences;
pub(crate) mod spoken_words;
pub mod ssml;
pub(crate) mod tokenizer_file;
pub(crate) mod units;
pub(crate) mod unknown_word_net;
mod words;
pub mod written;
