//! Opens `tokenizer.json`, a file that may come from anybody. Knows no family.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use izwi_nn::Error;
use tokenizers::Tokenizer;

/// Reads the tokenizer at `path`, for a network of `size` tokens.
///
/// # Errors
/// The file is unreadable or malformed, or has the id of a token that the network does not know.
pub(crate) fn open(path: &Path, size: usize) -> Result<Tokenizer, Error> {
    let fault = |message: String| Error::File { path: path.display().to_string(), message };
    // tokenizers 0.23.2 panics at some malformed files (seen by fuzzing).
    let read = AssertUnwindSafe(|| Tokenizer::from_file(path).map_err(|error| error.to_string()));
    let read = catch_unwind(read);
    let tokenizer =
        read.unwrap_or_else(|_| Err("its parts contradict each other".to_owned())).map_err(fault)?;
    match tokenizer.get_vocab(true).into_values().max() {
        Some(highest) if highest as usize >= size => {
            Err(fault(format!("has a token of id {highest}, the network knows {size}")))
        }
        _ => Ok(tokenizer),
    }
}
