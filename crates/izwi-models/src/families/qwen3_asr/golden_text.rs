//! Parity of tokens, prompts and answers with the official package.

use serde::Deserialize;

use super::golden::{SET, model};
use super::{answer, tokens};
use izwi_types::languages;

#[test]
fn qwen3_asr_golden_tokens_of_texts() {
    #[derive(Deserialize)]
    struct Row {
        text: String,
        ids: Vec<u32>,
        decoded_skip_special: String,
    }
    for kind in ["asr06", "asr17"] {
        let vocabulary = model(kind).vocabulary;
        for row in SET.json::<Vec<Row>>(&format!("{kind}.tokenizer")) {
            assert_eq!(vocabulary.encode(&row.text), row.ids, "{}", row.text);
            assert_eq!(vocabulary.text(&row.ids), row.decoded_skip_special, "{}", row.text);
        }
    }
}

#[test]
fn qwen3_asr_golden_prompts() {
    #[derive(Deserialize)]
    struct Row {
        context: String,
        language: Option<String>,
        prompt: String,
        ids: Vec<u32>,
    }
    let model = model("asr06");
    let mut plain = 0;
    for row in SET.json::<Vec<Row>>("asr06.prompts") {
        assert_eq!(model.vocabulary.encode(&row.prompt), row.ids);
        let header = row.language.as_deref().map(tokens::header).unwrap_or_default();
        let tokens::Prompt { before, after } = model.vocabulary.prompt(&row.context, &header);
        let ours = [&before[..], &[model.config.audio_token], &after].concat();
        // A context is only text here: the package reads tokens in it.
        let is_plain = model.vocabulary.plain(&row.context) == row.context;
        assert_eq!(ours == row.ids, is_plain, "{}", row.context);
        plain += usize::from(is_plain);
    }
    assert!(plain > 0);
}

#[test]
fn qwen3_asr_golden_answers() {
    #[derive(Deserialize)]
    struct Parsed {
        raw: String,
        user_language: Option<String>,
        language: String,
        text: String,
    }
    #[derive(Deserialize)]
    struct Name {
        name: String,
        normalized: Option<String>,
        supported: bool,
    }
    #[derive(Deserialize)]
    struct Texts {
        parse: Vec<Parsed>,
        repetitions: Vec<Repetitions>,
        language_names: Vec<Name>,
        supported_languages: Vec<String>,
    }
    #[derive(Deserialize)]
    struct Repetitions {
        input: String,
        output: String,
    }
    let texts: Texts = SET.json("text");
    for case in texts.parse {
        let ours = answer::parse(&case.raw, case.user_language.as_deref());
        assert_eq!(ours, (case.language, case.text), "{}", case.raw);
    }
    for case in texts.repetitions {
        assert_eq!(answer::without_repetitions(&case.input), case.output);
    }
    let known = answer::LANGUAGES.map(str::to_owned);
    for case in texts.language_names.into_iter().filter(|case| case.supported) {
        let code = languages::supported(&case.name, &known).unwrap();
        assert_eq!(Some(answer::language_name(&code)), case.normalized);
    }
    let mut ours = known.map(|code| answer::language_name(&code));
    let mut theirs = texts.supported_languages;
    ours.sort();
    theirs.sort();
    assert_eq!(ours.as_slice(), theirs);
    for (code, name) in answer::LANGUAGES.map(|code| (code, answer::language_name(code))) {
        assert_eq!(languages::code_of(&name).as_deref(), Some(code));
    }
}
