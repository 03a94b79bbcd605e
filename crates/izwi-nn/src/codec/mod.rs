//! Parts of neural audio codecs that families share: causal convolutions and transformers that run in pieces, residual
//! vector quantisation, SEANet's encoder and decoder, the Mimi decoder, mel spectra, the inverse of spectra.
//!
//! Rows are time: activations are `[rows, channels]`, the new rows of several sequences one after another. What a
//! sequence carries from piece to piece is a [`stream::StreamState`] of constant size; on the CPU the rows computed in
//! pieces, whole, alone or among others are the same bits. Knows no family.

pub mod conv;
pub mod istft;
pub mod mel;
pub mod mimi;
pub mod quantiser;
pub mod seanet;
pub mod snake;
pub mod stft;
pub mod stream;
pub mod transformer;
