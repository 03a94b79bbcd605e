//! What users write to be spoken: takes the text that has arrived, leaves markup out, and notes what is said otherwise.
//!
//! Must not know queues or the state of the engine.

use izwi_types::{Task, TextNotes, excerpt};

use super::EngineCoreRequest;
use super::text_input::MAX_TEXT_CHARS;
use super::{foreign, markup};
use crate::engine::error::{EngineError, Result};
use crate::engine::executor::ExecutorProfile;

/// Moves the text that has arrived so far into the request, and leaves markup out. An input that has ended is complete
/// text.
///
/// # Errors
/// The model takes no text that arrives while it is spoken, or there is nothing but markup.
pub(super) fn take(request: &mut EngineCoreRequest, profile: &ExecutorProfile) -> Result<TextNotes> {
    if request.task_type != Task::Tts && request.text_input.is_none() {
        return Ok(TextNotes::default());
    }
    let markup = match (&request.text_input, &mut request.text) {
        (Some(_), _) => take_open(request, profile)?,
        (None, Some(text)) if text.len() <= MAX_TEXT_CHARS * 4 => {
            let (plain, found) = markup::strip(text, profile.info.times_words);
            check_plain(&plain, &found)?;
            // Places of words count from the start of the written text.
            let is_bare = found.is_empty() || profile.info.times_words;
            *text = if is_bare { plain } else { plain.trim().to_owned() };
            found
        }
        (None, _) => Vec::new(),
    };
    let foreign = foreign::languages(request.text.as_deref().unwrap_or_default(), &profile.languages);
    Ok(TextNotes { markup, foreign, ..TextNotes::default() })
}

/// Moves the text of an input that has arrived so far into the request. Returns the markup that was left out.
fn take_open(request: &mut EngineCoreRequest, profile: &ExecutorProfile) -> Result<Vec<String>> {
    let Some(input) = &request.text_input else { return Ok(Vec::new()) };
    if !profile.info.appends_text || request.task_type != Task::Tts {
        let model = &profile.model;
        let message = format!("model '{model}' takes a text as a whole; send it without a text input");
        return Err(EngineError::invalid("input", message));
    }
    let (text, is_complete) = input.take_pending(request.text.as_deref().unwrap_or_default());
    let markup = input.take_markup();
    request.text = Some(text);
    if is_complete {
        request.text_input = None;
        // As the text would have been spoken, had its end come later.
        request.options.non_streaming_mode = Some(false);
        request.text = request.text.take().map(|text| text.trim_end().to_owned());
    }
    Ok(markup)
}

/// Refuses a text of which nothing but markup was there.
fn check_plain(plain: &str, markup: &[String]) -> Result<()> {
    if plain.trim().is_empty() && !markup.is_empty() {
        let marks = markup.join(" ");
        let message = format!("input is markup alone: {}; it is not spoken, send the words", excerpt(&marks));
        return Err(EngineError::invalid("input", message));
    }
    Ok(())
}
