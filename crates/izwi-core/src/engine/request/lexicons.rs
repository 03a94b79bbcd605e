//! The lexicons of requests, which are read when they are needed first and whenever they have changed.
//!
//! Must not know queues or the state of the engine. Blocks on the disk.

use std::collections::HashMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use izwi_hub::{LexiconStore, SavedError, SavedLexicon, Stamp};
use izwi_types::{InputError, Lexicon};

use super::EngineCoreRequest;
use crate::engine::error::{EngineError, Result};
use crate::engine::executor::{LexiconIndex, Lexicons, lexicon};

/// Reads a lexicon: W3C PLS 1.0, JSON with `entries`, or lines such as `word = other words` and `word = /ipa/`.
///
/// # Errors
/// The text is none of these; the error names the line or the entry.
pub fn read_lexicon(text: &str) -> std::result::Result<Lexicon, InputError> {
    lexicon::read(text)
}

/// Checks that all words of a lexicon can be said.
///
/// # Errors
/// There are none or too many, or one is faulty; the error names it.
pub fn check_lexicon(lexicon: &Lexicon) -> std::result::Result<(), InputError> {
    LexiconIndex::new(lexicon).map(drop)
}

/// Sounds in an alphabet, `ipa`, `x-sampa` or `cmu-arpabet`, in IPA.
///
/// # Errors
/// The alphabet is another one.
pub fn ipa_of(alphabet: &str, sounds: &str) -> std::result::Result<String, String> {
    lexicon::ipa_of(alphabet, sounds)
}

/// A lexicon as a document of W3C PLS 1.0.
pub fn lexicon_as_pls(lexicon: &Lexicon) -> String {
    lexicon::to_pls(lexicon)
}

/// The most lexicons that a request may name.
const MAX_NAMED: usize = 16;

/// The saved lexicons that were read.
pub(super) struct LexiconCache {
    store: Option<LexiconStore>,
    read: Mutex<Known>,
}

/// Lexicons as they were at some time; `None` where one could not be used.
type Known = HashMap<String, (Stamp, Option<Arc<Read>>)>;

/// A lexicon that was read.
struct Read {
    index: Arc<LexiconIndex>,
    always: bool,
    voices: Vec<String>,
}

impl fmt::Debug for LexiconCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LexiconCache").finish_non_exhaustive()
    }
}

impl LexiconCache {
    /// Of the store in this home folder.
    pub(super) fn new(home: Option<PathBuf>) -> Self {
        Self { store: LexiconStore::open(home), read: Mutex::default() }
    }

    /// The lexicons of a request whose text has the language of a BCP 47 tag.
    ///
    /// # Errors
    /// A lexicon that it names does not exist, or cannot be used.
    pub(super) fn of(&self, request: &EngineCoreRequest, language: Option<&str>) -> Result<Lexicons> {
        let invalid = |message: String| EngineError::invalid("lexicons", message);
        let named = request.options.lexicons.as_deref();
        if named.is_some_and(|named| named.len() > MAX_NAMED) {
            return Err(invalid(format!("lexicons has more than {MAX_NAMED} names; send fewer")));
        }
        let Some(store) = self.store.as_ref().filter(|_| named.is_none_or(|named| !named.is_empty())) else {
            return Ok(Lexicons::default());
        };
        let stamps = match (store.stamps(), named) {
            (Ok(stamps), _) => stamps,
            (Err(error), Some(_)) => return Err(invalid(error.to_string())),
            (Err(error), None) => {
                tracing::warn!(%error, "no lexicon is used");
                Vec::new()
            }
        };
        let used = match named {
            None => self.default_lexicons(store, &stamps, request),
            Some(named) => {
                let read = |name: &String| {
                    let stamp = stamps.iter().find(|(known, _)| known == name).map(|(_, stamp)| *stamp);
                    match self.read(store, name, stamp.unwrap_or_default()) {
                        Some(read) => Ok(read),
                        // Reading again tells why.
                        None => Err(invalid(store.read(name).map_or_else(
                            |error| error.to_string(),
                            |_| format!("lexicon '{name}' cannot be used; remove it and add it again"),
                        ))),
                    }
                };
                named.iter().map(read).collect::<Result<Vec<_>>>()?
            }
        };
        let indexes = used.into_iter().map(|read| Arc::clone(&read.index));
        Ok(indexes.filter(|index| index.is_for(language)).collect::<Vec<_>>().into())
    }

    /// The lexicons for all texts, and for the voice of a request.
    fn default_lexicons(
        &self,
        store: &LexiconStore,
        stamps: &[(String, Stamp)],
        request: &EngineCoreRequest,
    ) -> Vec<Arc<Read>> {
        let voices = [request.voice.as_ref(), request.saved_voice.as_ref()];
        let read = stamps.iter().filter_map(|(name, stamp)| self.read(store, name, *stamp));
        read.filter(|read| read.always || voices.iter().flatten().any(|voice| read.voices.contains(voice)))
            .collect()
    }

    /// Reads a lexicon if it has changed; `None` if it cannot be used.
    fn read(&self, store: &LexiconStore, name: &str, stamp: Stamp) -> Option<Arc<Read>> {
        // A panic leaves no entry half changed.
        let mut known = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((read_at, read)) = known.get(name)
            && *read_at == stamp
        {
            return read.clone();
        }
        let read = match store.read(name).map(indexed) {
            Ok(Ok(read)) => Some(Arc::new(read)),
            Ok(Err(error)) => {
                tracing::warn!(lexicon = name, %error, "the lexicon is not used");
                None
            }
            // Names of requests are not kept.
            Err(SavedError::Unknown { .. } | SavedError::Name { .. }) => return None,
            Err(error) => {
                tracing::warn!(lexicon = name, %error, "the lexicon is not used");
                None
            }
        };
        known.insert(name.to_owned(), (stamp, read.clone()));
        read
    }
}

fn indexed(saved: SavedLexicon) -> std::result::Result<Read, InputError> {
    let index = Arc::new(LexiconIndex::new(&saved.lexicon)?);
    Ok(Read { index, always: saved.always, voices: saved.voices })
}
