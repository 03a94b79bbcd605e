//! What turns a text into the phonemes of its sentences, by language. Knows no vocabulary, no voice and no family.

use std::ffi::OsString;
use std::fmt::Debug;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use super::english::{Accent, EnglishFrontEnd, unknown_words};
use super::espeak::Espeak;
use super::units::Sentence;
use izwi_nn::Error;
use izwi_types::languages;

/// A text front end of one language, in misaki's alphabet.
pub(crate) trait FrontEnd: Debug + Send + Sync {
    /// The sentences of `text`.
    ///
    /// # Errors
    /// A program that the front end needs is missing, fails or does not end.
    fn sentences(&self, text: &str) -> Result<Vec<Sentence>, FrontEndError>;

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

/// The front ends of all languages. The lexicons of British English are loaded when they are first needed.
#[derive(Debug)]
pub(crate) struct FrontEnds {
    folder: PathBuf,
    american: EnglishFrontEnd,
    british: OnceLock<Result<EnglishFrontEnd, Error>>,
    espeak: Vec<Espeak>,
}

impl FrontEnds {
    /// With the reader of unknown English words in `folder`, or letter names, and programs in the folders of the search path
    /// `programs`.
    ///
    /// # Errors
    /// The reader cannot be loaded, or a rule for texts is faulty.
    pub(crate) fn new(folder: &Path, programs: OsString) -> Result<Self, Error> {
        let american = EnglishFrontEnd::new(unknown_words(folder)?)?;
        let espeak = Espeak::all(&programs)?;
        Ok(Self { folder: folder.to_owned(), american, british: OnceLock::new(), espeak })
    }

    /// The one of a language tag such as `en-GB`; one without a region is American English.
    ///
    /// # Errors
    /// There is none, or it cannot be loaded.
    pub(crate) fn of(&self, tag: &str) -> Result<&dyn FrontEnd, FrontEndError> {
        let code = languages::code_of(tag);
        if code.as_deref() == Some("en") {
            let is_british = tag.eq_ignore_ascii_case("en-GB");
            return if is_british { self.british() } else { Ok(&self.american) };
        }
        let found = self.espeak.iter().find(|espeak| Some(espeak.code()) == code.as_deref());
        let none = || FrontEndError::NoLanguage(tag.to_owned());
        found.map(|espeak| espeak as &dyn FrontEnd).ok_or_else(none)
    }

    /// Codes of all languages, English first.
    pub(crate) fn languages(&self) -> Vec<String> {
        ["en"].into_iter().chain(self.espeak.iter().map(Espeak::code)).map(str::to_owned).collect()
    }

    fn british(&self) -> Result<&dyn FrontEnd, FrontEndError> {
        let make = || EnglishFrontEnd::with_accent(Accent::British, unknown_words(&self.folder)?);
        let british = self.british.get_or_init(make).as_ref();
        british
            .map(|british| british as &dyn FrontEnd)
            .map_err(|error| FrontEndError::Load(error.to_string()))
    }
}
