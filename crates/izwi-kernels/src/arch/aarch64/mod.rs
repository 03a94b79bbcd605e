//! NEON: vectors of f32 and dot products of bytes.

pub(crate) mod int8;
pub(crate) mod neon;
