//! The LFM2-Audio family: one model that speaks, listens and converses. Source of the architecture:
//! <https://github.com/Liquid4All/liquid-audio>.

#[cfg(test)]
mod golden_set;
