//! The interface of what turns a text into the phonemes of its sentences. Knows no language.

use std::fmt::Debug;

use super::units::Sentence;

/// A text front end of one language, in misaki's alphabet.
pub(crate) trait FrontEnd: Debug + Send + Sync {
    /// The sentences of `text`.
    ///
    /// # Errors
    /// A program that the front end needs is missing, fails or does not end.
    fn sentences(&self, text: &str) -> Result<Vec<Sentence>, FrontEndError>;

    /// Phonemes that users wrote, in the symbols that networks learnt for the language.
    fn own_symbols(&self, phonemes: &str) -> String;

    /// Characters of `text` that nothing is said for, as far as the front end can tell.
    fn unspoken(&self, text: &str) -> String;
}

/// Why a text has no phonemes.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FrontEndError {
    /// No front end speaks the language.
    #[error("there is no phonemiser for {0}")]
    NoLanguage(String),
    /// A program is not installed.
    #[error(
        "the phonemes of {language} need the program {program}, which is not on PATH; install it ({remedy})"
    )]
    NoProgram {
        /// English name of the language.
        language: &'static str,
        /// Name of the program.
        program: &'static str,
        /// Commands that install it.
        remedy: &'static str,
    },
    /// A program that is installed gives no phonemes.
    #[error("the program {program} gives no phonemes: {message}")]
    Program {
        /// Where it is.
        program: String,
        /// What happened.
        message: String,
    },
    /// The English front end cannot be loaded.
    #[error("{0}")]
    Load(String),
}
