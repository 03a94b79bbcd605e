//! Neural audio codecs: streaming causal convolutions and transformers, residual vector quantisation, SEANet, the Mimi
//! decoder; and the signal processing around them: mel spectra, STFT, inverse STFT.
//!
//! Rows are time: activations are `[rows, channels]`, the new rows of several sequences one after another. The state of a
//! sequence between chunks is a [`stream::StreamState`] of constant size; on the CPU rows are the same bits for any
//! chunking and any batch. Knows no family.

pub mod conv;
pub mod istft;
pub mod mel;
pub mod mimi;
pub mod quantiser;
pub mod seanet;
pub mod short_conv;
pub mod snake;
pub mod stft;
pub mod stream;
pub mod transformer;
