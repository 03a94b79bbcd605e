//! The LFM2-Audio family: one model that speaks, listens and converses. Source of the architecture:
//! <https://github.com/Liquid4All/liquid-audio>.

#[cfg_attr(not(test), expect(dead_code, reason = "the model reads what it makes"))]
mod conformer;
#[cfg_attr(not(test), expect(dead_code, reason = "the model speaks through it"))]
mod detokenizer;
#[cfg(test)]
mod golden_audio;
#[cfg(test)]
mod golden_set;
#[cfg_attr(not(test), expect(dead_code, reason = "the model listens through it"))]
mod mel;
#[cfg_attr(not(test), expect(dead_code, reason = "the model speaks through it"))]
mod mimi;
