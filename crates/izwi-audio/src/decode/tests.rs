//! Decoding as a whole.
