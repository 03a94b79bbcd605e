//! The one layer of markup of a text to speak: elements of SSML 1.1 and short forms, read before any model.
//!
//! Owns what is markup, what it asks for, and what is told as ignored. Knows no model and no sound. A text is no document:
//! faulty markup is told, and its words are spoken.

mod entities;
mod filter;
mod manner;
mod marks;
mod pauses;
mod places;
mod say_as;
mod script;

pub use filter::Filter;
pub use manner::Manner;
pub use places::Places;
pub use script::{Abilities, Part, Script};

use izwi_types::excerpt;

/// Marks that are told of one text.
const MAX_TOLD: usize = 8;

/// Adds a mark to those that are told, each once.
fn tell(told: &mut Vec<String>, mark: &str) {
    let shown = excerpt(mark);
    if told.len() < MAX_TOLD && !told.contains(&shown) {
        told.push(shown);
    }
}
