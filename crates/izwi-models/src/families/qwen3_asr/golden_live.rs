//! The official streaming session on top of this model: all audio so far is heard again, and the answer begins with the last
//! one but for its last tokens.

use serde::Deserialize;

use super::golden::{SET, generate, model, recording, wave, whole};
use super::tokens::Vocabulary;
use super::{Qwen3Asr, answer, tokens};
use crate::log_mel::SAMPLE_RATE_HZ;

#[derive(Debug, Deserialize)]
struct Init {
    context: String,
    chunk_size_samples: usize,
    unfixed_chunk_num: usize,
    unfixed_token_num: usize,
    force_language: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Step {
    prefix: String,
    prompt_ids: Vec<u32>,
    samples: usize,
    generated_ids: Vec<u32>,
    raw_after: String,
    language_after: String,
    text_after: String,
    finish: bool,
}

#[derive(Debug, Deserialize)]
struct Last {
    language: String,
    text: String,
    raw: String,
}

#[derive(Debug, Deserialize)]
struct Golden {
    init: Init,
    pieces: Vec<usize>,
    max_tokens: usize,
    steps: Vec<Step>,
    r#final: Last,
}

/// A session.
struct Live<'a> {
    model: &'a Qwen3Asr,
    golden: &'a Golden,
    samples: Vec<f32>,
    heard: usize,
    raw: String,
    step: usize,
}

impl Live<'_> {
    /// What of the last answer stays.
    fn prefix(&self, is_last: bool) -> String {
        let init = &self.golden.init;
        if self.step < init.unfixed_chunk_num {
            return String::new();
        }
        kept(&self.model.vocabulary, &self.raw, init.unfixed_token_num, is_last)
    }

    /// Hears everything up to `heard`.
    fn run(&mut self, is_last: bool) {
        let (golden, model) = (self.golden, self.model);
        let theirs = &golden.steps[self.step];
        let name = format!("step {}", self.step);
        assert_eq!((self.heard, is_last), (theirs.samples, theirs.finish), "{name}");
        let prefix = self.prefix(is_last);
        assert_eq!(prefix, theirs.prefix, "{name}");
        let forced = golden.init.force_language.as_deref();
        let begun = forced.map(tokens::header).unwrap_or_default() + &prefix;
        let stretch = whole(model, &self.samples[..self.heard]);
        let recording = recording(model, stretch, &golden.init.context, &begun);
        let heard = vec![recording.audio_token; recording.stretches[0].rows()];
        let tokens::Prompt { before, after } = &recording.prompt;
        assert_eq!([&before[..], &heard, after].concat(), theirs.prompt_ids, "{name}");
        let (generated, _) = generate(model, &[recording], golden.max_tokens).remove(0);
        assert_eq!(generated, theirs.generated_ids, "{name}");
        self.raw = prefix + &model.vocabulary.text(&generated);
        assert_eq!(self.raw, theirs.raw_after, "{name}");
        let parsed = answer::parse(&self.raw, forced);
        assert_eq!(parsed, (theirs.language_after.clone(), theirs.text_after.clone()), "{name}");
        self.step += 1;
    }
}

/// An answer without its last `dropped` tokens, or more until it ends with a whole character; the last step of a session keeps
/// a token at least, and half characters.
fn kept(vocabulary: &Vocabulary, raw: &str, dropped: usize, is_last: bool) -> String {
    let tokens = vocabulary.encode(raw);
    let most = tokens.len().saturating_sub(dropped);
    if is_last {
        return vocabulary.text(&tokens[..most.max(1).min(tokens.len())]);
    }
    let prefixes = (0..=most).rev().map(|end| vocabulary.text(&tokens[..end]));
    prefixes.into_iter().find(|prefix| !prefix.contains('\u{fffd}')).unwrap_or_default()
}

fn check(name: &str) {
    let (model, golden): (_, Golden) = (model("asr06"), SET.json(&format!("asr06.{name}")));
    let samples = wave(golden.pieces.iter().sum());
    let mut live = Live { model: &model, golden: &golden, samples, heard: 0, raw: String::new(), step: 0 };
    let (chunk, mut pushed) = (golden.init.chunk_size_samples, 0);
    for piece in &golden.pieces {
        pushed += piece;
        while live.heard + chunk <= pushed {
            live.heard += chunk;
            live.run(false);
        }
    }
    if live.heard < pushed {
        live.heard = pushed;
        live.run(true);
    }
    assert_eq!(live.step, golden.steps.len(), "{name}");
    let Last { language, text, raw } = &golden.r#final;
    assert_eq!(&live.raw, raw, "{name}");
    let forced = golden.init.force_language.as_deref();
    assert_eq!(answer::parse(&live.raw, forced), (language.clone(), text.clone()), "{name}");
    assert!(pushed > SAMPLE_RATE_HZ, "{name}");
}

#[test]
fn qwen3_asr_golden_streams() {
    for name in ["stream_auto", "stream_forced", "stream_defaults", "stream_rollback_all"] {
        check(name);
    }
}
