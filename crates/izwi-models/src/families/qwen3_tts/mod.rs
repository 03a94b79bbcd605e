//! Qwen3-TTS: the neural codec and the speaker encoder.

#[allow(dead_code, reason = "the family's speech model uses it")]
mod codec;
#[cfg(test)]
mod golden_codec;
#[cfg(test)]
mod golden_set;
#[cfg(test)]
mod golden_speaker;
#[allow(dead_code, reason = "the family's speech model uses it")]
mod speaker;
