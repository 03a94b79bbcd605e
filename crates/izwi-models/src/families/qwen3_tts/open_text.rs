//! Text that arrives while it is spoken: its tokens so far, one for each generated frame, and the rest of an unfinished
//! word.
//!
//! Tokens are only added, so that a position, once computed, can be computed again. Knows no prompt but its length.

use std::sync::{Mutex, MutexGuard, PoisonError};

use izwi_types::{InputError, TextProgress, stable_end};

use super::config::Config;
use super::prompt::Prompt;
use super::tokens::{TokenizedText, Vocabulary};

/// The text of a pass after its first token, which is part of the prompt.
#[derive(Debug)]
pub(super) struct OpenText {
    /// Positions of the prompt.
    prompt: usize,
    /// Tokens the text began with, the first included.
    begun_with: usize,
    /// The most tokens of the text.
    most: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The token of each generated frame.
    trailing: Vec<u32>,
    /// Text whose tokens may depend on what follows.
    rest: String,
    has_ended: bool,
}

impl OpenText {
    /// The start of a text, up to where its tokens are stable, and the rest.
    ///
    /// # Errors
    /// No word of the text is complete.
    pub(super) fn split<'a>(
        vocabulary: &Vocabulary,
        text: &'a str,
    ) -> Result<(TokenizedText, &'a str), InputError> {
        let (start, rest) = text.split_at(stable_end(text));
        let start = vocabulary.tokenize_start(start).ok_or_else(|| InputError {
            param: "input",
            message: "the text so far has no complete word; begin once a space follows the first".to_owned(),
        })?;
        Ok((start, rest))
    }

    /// The open text of a pass with this `prompt` in the layout of streamed text, for a text of at most `most` tokens that
    /// continues with `rest`. The prompt gives its trailing text to it.
    pub(super) fn new(prompt: &mut Prompt, most: usize, rest: &str) -> Self {
        let mut trailing = std::mem::take(&mut prompt.trailing);
        // The token of the end.
        trailing.pop();
        Self {
            prompt: prompt.positions.len(),
            begun_with: 1 + trailing.len(),
            most,
            state: Mutex::new(State { trailing, rest: rest.to_owned(), has_ended: false }),
        }
    }

    /// Appends text, or ends it: white space at the end is dropped.
    ///
    /// # Errors
    /// The text has ended, or has too many tokens; nothing is appended then.
    pub(super) fn append(
        &self,
        vocabulary: &Vocabulary,
        text: &str,
        is_last: bool,
    ) -> Result<TextProgress, InputError> {
        let mut state = self.lock();
        let refuse = |message: String| Err(InputError { param: "input", message });
        if state.has_ended {
            return refuse("the text has ended already; send more as another request".to_owned());
        }
        let joined = format!("{}{text}", state.rest);
        let end = if is_last { joined.trim_end().len() } else { stable_end(&joined) };
        let (known, rest) = joined.split_at(end);
        let rest = if is_last { "" } else { rest };
        let tokens = if known.is_empty() { Vec::new() } else { vocabulary.encode(known) };
        // The rest has at most one token a byte.
        let total = 1 + state.trailing.len() + tokens.len() + rest.len();
        if total > self.most {
            let most = self.most;
            return refuse(format!(
                "the text has more than {most} tokens with this part; end it and send the part as another request"
            ));
        }
        state.trailing.extend(tokens);
        rest.clone_into(&mut state.rest);
        state.has_ended = is_last;
        let positions = self.prompt + state.trailing.len();
        Ok(TextProgress { positions: (!is_last).then_some(positions), tokens_left: self.most - total })
    }

    /// The text token of a generated frame: padding after the end; `None` where it has not arrived.
    pub(super) fn token(&self, frame: usize, config: &Config) -> Option<u32> {
        let state = self.lock();
        let end = state.trailing.len();
        match state.trailing.get(frame) {
            Some(&token) => Some(token),
            None if !state.has_ended => None,
            None if frame == end => Some(config.tts_eos_token_id),
            None => Some(config.tts_pad_token_id),
        }
    }

    /// Generated frames whose text token is known.
    pub(super) fn frames(&self) -> usize {
        let state = self.lock();
        if state.has_ended { usize::MAX } else { state.trailing.len() }
    }

    /// Tokens that were appended.
    pub(super) fn appended_tokens(&self) -> usize {
        1 + self.lock().trailing.len() - self.begun_with
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // No method leaves the state half changed.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use proptest::prelude::*;

    use super::super::config::Settings;
    use super::super::golden_set::root;
    use super::super::prompt::PromptSpec;
    use super::*;

    static FILES: LazyLock<(Vocabulary, Config)> = LazyLock::new(|| {
        let folder = root().join("cv06");
        (Vocabulary::load(&folder, usize::MAX).unwrap(), Settings::load(&folder).unwrap().config)
    });

    fn spec(text: TokenizedText) -> PromptSpec {
        let (instructions, streams_text) = (Vec::new(), true);
        PromptSpec { text, instructions, language: None, speaker: None, reference: None, streams_text }
    }

    /// Tokens of a text that arrives as `pieces`: of the prompt, and of as many frames as have one, the end included.
    fn tokens(vocabulary: &Vocabulary, config: &Config, pieces: &[String]) -> Option<(Prompt, Vec<u32>)> {
        let mut text = String::new();
        let mut pieces = pieces.iter();
        let (start, rest) = loop {
            text.push_str(pieces.next()?);
            if let Ok((start, rest)) = OpenText::split(vocabulary, &text) {
                break (start, rest);
            }
        };
        let mut prompt = spec(start).prompt(config);
        let open = OpenText::new(&mut prompt, 10_000, rest);
        let mut known = Vec::new();
        for piece in pieces {
            let progress = open.append(vocabulary, piece, false).unwrap();
            let frames = progress.positions.unwrap() - prompt.positions.len();
            let all: Vec<u32> = (0..frames).map(|frame| open.token(frame, config).unwrap()).collect();
            assert!(open.token(frames, config).is_none(), "a token that has not arrived is unknown");
            assert!(all.starts_with(&known), "known tokens changed");
            known = all;
        }
        assert_eq!(open.append(vocabulary, "", true).unwrap().positions, None);
        let end = (0..).find(|&frame| open.token(frame, config) == Some(config.tts_eos_token_id)).unwrap();
        assert_eq!(open.token(end + 1, config), Some(config.tts_pad_token_id));
        Some((prompt, (0..=end).map(|frame| open.token(frame, config).unwrap()).collect()))
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(400))]

        #[test]
        fn a_text_in_pieces_has_the_tokens_of_the_whole(
            pieces in prop::collection::vec("(\\PC|[a-zA-Z0-9 .,!?'éÉ你好，。\u{301}\u{3099}か\u{1100}\n\r\t-]){0,12}", 1..8)
        ) {
            let (vocabulary, config) = &*FILES;
            if let Some((prompt, trailing)) = tokens(vocabulary, config, &pieces) {
                let whole = vocabulary.tokenize(pieces.concat().trim_end()).unwrap();
                let whole = spec(whole).prompt(config);
                prop_assert_eq!(prompt.positions, whole.positions);
                prop_assert_eq!(trailing, whole.trailing);
            }
        }
    }

    #[test]
    fn a_text_that_is_too_long_or_over_takes_nothing_more() {
        let (vocabulary, config) = &*FILES;
        assert!(OpenText::split(vocabulary, "Hel").unwrap_err().message.contains("complete word"));
        let (start, rest) = OpenText::split(vocabulary, "Hello there").unwrap();
        let mut prompt = spec(start).prompt(config);
        let open = OpenText::new(&mut prompt, 30, rest);
        let before = open.append(vocabulary, "", false).unwrap();
        let error = open.append(vocabulary, &" word".repeat(30), false).unwrap_err();
        assert!(error.param == "input" && error.message.contains("more than 30 tokens"), "{error}");
        assert_eq!(open.append(vocabulary, "", false).unwrap(), before, "a refused part changes nothing");
        assert_eq!(open.append(vocabulary, ".", true).unwrap().positions, None);
        assert!(open.append(vocabulary, "More.", false).unwrap_err().message.contains("ended already"));
    }
}
