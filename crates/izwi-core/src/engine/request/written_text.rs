//! What users write to be spoken: takes the text that has arrived, reads its markup, and notes what is said otherwise.
//!
//! Must not know queues or the state of the engine.

use std::sync::LazyLock;

use izwi_types::{Task, TextNotes, excerpt, languages};

use super::EngineCoreRequest;
use super::foreign;
use super::lexicons::LexiconCache;
use super::text_input::MAX_TEXT_CHARS;
use crate::engine::error::{EngineError, Result};
use crate::engine::executor::{Abilities, ExecutorProfile, Lexicons, Markup, Script};

/// Lines of a text as they are spoken: without the marks of Markdown and HTML, addresses in words.
pub fn plain_text(text: &str) -> String {
    static MARKS: LazyLock<Option<Markup>> = LazyLock::new(|| {
        let compiled = Markup::new();
        compiled.inspect_err(|error| tracing::error!(%error, "marks are not left out")).ok()
    });
    MARKS.as_ref().map_or_else(|| text.to_owned(), |marks| marks.strip(text))
}

/// Moves the words of the text that has arrived so far into the request. An input that has ended is complete text. Returns
/// what is said otherwise, and the script of a text with markup or words of lexicons.
///
/// # Errors
/// The model takes no text that arrives while it is spoken, there is nothing but markup, or a lexicon cannot be used.
pub(super) fn take(
    request: &mut EngineCoreRequest,
    profile: &ExecutorProfile,
    lexicons: &LexiconCache,
) -> Result<(TextNotes, Option<Script>)> {
    if request.task_type != Task::Tts && request.text_input.is_none() {
        return Ok((TextNotes::default(), None));
    }
    let language = language(request, profile);
    let is_english = language.as_deref().and_then(languages::code_of) == Some("en".to_owned());
    let lexicons = lexicons.of(request, language.as_deref())?;
    let (markup, script) = match (&request.text_input, &mut request.text) {
        (Some(_), _) => (take_open(request, profile, lexicons, is_english)?, None),
        (None, Some(text)) if text.len() <= MAX_TEXT_CHARS * 4 => {
            let abilities = Abilities {
                parts: profile.speaks_parts,
                rates: profile.speaks_parts && profile.info.speed_range.is_some(),
                phonemes: profile.speaks_parts && profile.info.takes_phonemes,
                english: is_english,
            };
            let mut script = Script::read(text, abilities, &lexicons);
            let told = std::mem::take(&mut script.told);
            if script.is_marked {
                check_words(&script, text)?;
                *text = script.text();
            }
            (told, Some(script).filter(|script| script.is_marked && profile.speaks_parts))
        }
        (None, _) => (Vec::new(), None),
    };
    let foreign = foreign::languages(request.text.as_deref().unwrap_or_default(), &profile.languages);
    Ok((TextNotes { markup, foreign, ..TextNotes::default() }, script))
}

/// Tag of the language that a text is read in: the one asked for, or that of its voice.
fn language(request: &EngineCoreRequest, profile: &ExecutorProfile) -> Option<String> {
    let known = |tag: &str| {
        let code = languages::code_of(tag)?;
        let has_region = tag.get(..code.len()).is_some_and(|start| start.eq_ignore_ascii_case(&code));
        Some(if has_region { tag.to_owned() } else { code })
    };
    let asked = request.options.language.as_deref().and_then(known);
    let voices = &profile.info.voices;
    let named = request.voice.as_deref().and_then(|name| voices.iter().find(|voice| voice.id == name));
    let voice = || known(&named.or(voices.first())?.language);
    asked.or_else(voice).or_else(|| profile.languages.first().cloned())
}

/// Moves the text of an input that has arrived so far into the request. Returns the markup that was left out.
fn take_open(
    request: &mut EngineCoreRequest,
    profile: &ExecutorProfile,
    lexicons: Lexicons,
    is_english: bool,
) -> Result<Vec<String>> {
    let Some(input) = &request.text_input else { return Ok(Vec::new()) };
    if !profile.info.appends_text || request.task_type != Task::Tts {
        let model = &profile.model;
        let message = format!("model '{model}' takes a text as a whole; send it without a text input");
        return Err(EngineError::invalid("input", message));
    }
    input.use_lexicons(lexicons, is_english);
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
fn check_words(script: &Script, text: &str) -> Result<()> {
    if script.parts.is_empty() {
        let message = format!("input is markup alone: {}; send words to speak with it", excerpt(text.trim()));
        return Err(EngineError::invalid("input", message));
    }
    Ok(())
}
