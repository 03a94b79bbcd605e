//! The front ends by language. Knows no vocabulary, no voice and no family.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use super::english::{Accent, EnglishFrontEnd, unknown_words};
use super::espeak::Espeak;
use super::front_end::{FrontEnd, FrontEndError};
use izwi_nn::Error;
use izwi_types::languages;

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
