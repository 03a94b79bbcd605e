//! What the benches of listening share: the recordings with what is said in them, and engines with real models.
#![forbid(unsafe_code)]

pub mod clips;
pub mod engines;
pub mod report;
