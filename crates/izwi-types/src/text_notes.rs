//! What a model says otherwise than it is written: told to users, since nobody hears what is missing.

use crate::{excerpt, languages};

/// What a model says otherwise than it is written; empty if it says all.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TextNotes {
    /// Characters that it cannot pronounce and leaves out, each once.
    pub unspoken: String,
    /// Markup that is not obeyed, or not wholly, each once.
    pub markup: Vec<String>,
    /// Codes of the languages that parts of the text are in and that it does not speak.
    pub foreign: Vec<String>,
}

/// One note for a user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TextNote {
    /// `unspoken_characters`, `ignored_markup` or `foreign_language`.
    pub code: &'static str,
    /// A sentence without a full stop.
    pub message: String,
    /// What it is about: the characters, the markup, the codes of the languages.
    pub subject: String,
}

impl TextNotes {
    /// The notes of one model. `remedy` tells what speaks a language, by its code.
    pub fn sentences(&self, model: &str, remedy: impl Fn(&str) -> String) -> Vec<TextNote> {
        let mut notes = Vec::new();
        let mut note = |code, message, subject| notes.push(TextNote { code, message, subject });
        if !self.unspoken.is_empty() {
            let shown = excerpt(&self.unspoken);
            let message = format!("the model cannot pronounce '{shown}' and leaves it out");
            note("unspoken_characters", message, self.unspoken.clone());
        }
        if !self.markup.is_empty() {
            let marks = self.markup.join(" ");
            let message =
                format!("markup has no effect, or not all of it, and is not spoken: {}", excerpt(&marks));
            note("ignored_markup", message, marks);
        }
        for code in &self.foreign {
            let name = languages::title_of(code);
            let message = format!("the text has {name}, which {model} does not speak; {}", remedy(code));
            note("foreign_language", message, code.clone());
        }
        notes
    }
}
