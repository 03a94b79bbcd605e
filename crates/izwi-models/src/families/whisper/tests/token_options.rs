//! Log-probabilities, bytes of tokens, languages to choose from, and keywords.

use super::super::rescoring::Rescoring;
use super::super::segments::DecodingResult;
use super::*;

#[test]
fn log_probabilities_belong_to_the_tokens_of_the_text() {
    let (samples, _) = clips().remove(0);
    let plain = one(&TINY, listen(&samples));
    assert!(plain.segments.iter().all(|segment| segment.logprobs.is_empty()), "only where asked");
    let options = listen(&samples).options.with_words().with_logprobs();
    let told = one(&TINY, ListenInput { options, ..listen(&samples) });
    assert_eq!(told.text, plain.text);
    for segment in &told.segments {
        let bytes: Vec<u8> = segment.logprobs.iter().flat_map(|token| token.bytes.clone()).collect();
        assert_eq!(String::from_utf8(bytes).unwrap(), segment.text);
        assert!(segment.logprobs.iter().all(|token| (-20.0..=0.0).contains(&token.logprob)), "{segment:?}");
        // A word's probability is the mean over its tokens without the punctuation after it.
        let mut tokens = segment.logprobs.iter();
        for word in &segment.words {
            let (mut length, mut probabilities) = (0, Vec::new());
            while length < word.text.len() {
                let token = tokens.next().unwrap();
                length += token.bytes.len();
                if token.text().contains(char::is_alphanumeric) {
                    probabilities.push(token.logprob.exp());
                }
            }
            let mean = probabilities.iter().sum::<f32>() / probabilities.len() as f32;
            assert!((mean - word.probability).abs() < 1e-4, "{word:?} {mean}");
        }
    }
}

#[test]
fn tokens_that_are_parts_of_characters_keep_their_bytes() {
    for model in [&*BASE, &*TINY] {
        let vocabulary = &model.window_decoder.vocabulary;
        for text in [" Hello, world!", " naïve café", "漢字かな", " 🙂🙃"] {
            let bytes: Vec<u8> =
                vocabulary.encode(text).into_iter().flat_map(|id| vocabulary.bytes.of(id).to_vec()).collect();
            assert_eq!(String::from_utf8_lossy(&bytes), text);
        }
    }
}

#[test]
fn languages_are_accepted_by_code_tag_or_name() {
    let order = |model: &Whisper, language: &str, translate| {
        let input = asking(listen(&[]), |options| {
            (options.language, options.translate) = (Some(language.to_owned()), translate);
        });
        model.decoding_options(&input, &LIMITS)
    };
    let german = BASE.window_decoder.vocabulary.language("de");
    for name in ["de", "de-AT", "German"] {
        assert_eq!(order(&BASE, name, false).unwrap().language, german);
    }
    assert_eq!(BASE.info().languages.len(), 99);
    assert_eq!(TINY.info().languages, ["en"]);
    assert!(order(&TINY, "en-GB", false).is_ok());
    let check = |model, language: &str, translate, param, expected: &str| {
        let error = order(model, language, translate).unwrap_err();
        assert_eq!(error.param, param);
        assert!(error.message.contains(expected), "{error}");
    };
    check(
        &BASE,
        "germn",
        false,
        "language",
        "'germn' is unknown to this model, perhaps 'german'; use one of en, zh, de",
    );
    check(&BASE, "yue", false, "language", "'yue'");
    check(&TINY, "de", false, "language", "use one of en, or leave it out");
    check(&TINY, "en", true, "model", "does not translate");
    let narrow = PrepareLimits { max_positions: 16, ..LIMITS };
    assert!(BASE.decoding_options(&listen(&[]), &narrow).unwrap_err().message.contains("raise max_blocks"));
}

#[test]
fn one_of_the_given_languages_is_detected() {
    let (samples, _) = clips().remove(0);
    let languages = vec!["German".to_owned(), "fr".to_owned()];
    let transcript = one(&BASE, asking(listen(&samples), |options| options.languages = languages));
    assert!(["de", "fr"].contains(&transcript.language.as_deref().unwrap()), "{transcript:?}");
    let refused = asking(listen(&[]), |options| options.languages = vec!["de".to_owned()]);
    assert_eq!(TINY.decoding_options(&refused, &LIMITS).unwrap_err().param, "languages");
}

/// The first clip, greedy or searched, with keywords.
fn named(beam_size: u64, keywords: &[&str]) -> ListenInput {
    asking(listen(&clips()[0].0), |options| {
        options.beam_size = Some(beam_size);
        options.keywords = keywords.iter().map(|word| (*word).to_owned()).collect();
    })
}

#[test]
fn keywords_that_nobody_says_are_not_written_and_change_no_other_recording() {
    let inputs = || {
        let lists: [&[&str]; 3] = [&["Kelvora", "Dash Woodward"], &[], &["leisurely", "powers"]];
        lists.into_iter().flat_map(|words| [1, 3].map(|beam_size| named(beam_size, words)))
    };
    let alone: Vec<Transcript> = inputs().map(|input| one(&TINY, input)).collect();
    assert_eq!(alone[0].text, alone[2].text);
    assert!(["Kelvora", "Woodward"].iter().all(|word| !alone[1].text.contains(word)), "{}", alone[1].text);
    let prepared = inputs().map(|input| prepare(&TINY, input)).collect();
    assert_same(&Engine::new(&TINY, Some(2)).run(prepared), &alone);
}

#[test]
fn unsure_words_are_rescored_as_keywords_that_sound_alike() {
    let vocabulary = &TINY.window_decoder.vocabulary;
    let keywords = ["Zelus", "Kumett", "late"].map(str::to_owned);
    let encode = |text: &str| vocabulary.encode(text);
    let (before, word, after) =
        (encode(" Nobody told"), encode(" zealous"), encode(" that the train was late."));
    let result = |logprob: f32| DecodingResult {
        tokens: [&[vocabulary.first_timestamp], &before[..], &word, &after].concat(),
        logprobs: [vec![-0.01; 1 + before.len()], vec![logprob; word.len()], vec![-0.01; after.len()]]
            .concat(),
        text: String::new(),
        avg_logprob: -0.1,
        compression_ratio: 1.0,
        no_speech_prob: 0.0,
        temperature: 0.0,
    };
    let begun = |logprob| Rescoring::new(result(logprob), vec![vocabulary.start], &keywords, vocabulary);
    assert!(begun(-0.1).next_tokens().is_none(), "what is sure stays");
    // The keyword has one chance, by as much as its length is worth.
    let keyword = encode(" Zelus");
    for (behind, expected) in [(8.0, " Nobody told Zelus that the train was late."), (10.0, "")] {
        let mut rescoring = begun(-1.0);
        let (tokens, prompt_len) = rescoring.next_tokens().unwrap();
        assert_eq!(vocabulary.text(&tokens), " Nobody told Zelus that the train was late.");
        let mut logprobs = vec![-0.01; tokens.len() - prompt_len];
        logprobs[1 + before.len()] = -(word.len() as f32) - behind;
        rescoring.take_scores(&logprobs, vocabulary);
        assert!(rescoring.next_tokens().is_none(), "{behind}");
        let DecodingResult { tokens, logprobs, text, .. } = rescoring.into_result();
        assert_eq!((text.as_str(), tokens.len()), (expected, logprobs.len()));
        assert_eq!(tokens[1 + before.len()..].starts_with(&keyword), !expected.is_empty());
    }
}

#[test]
fn passes_over_keywords_are_the_same_alone_and_in_a_batch() {
    let plain = one(&TINY, named(1, &[]));
    // Each word as somebody else may spell it.
    let alike: Vec<String> = plain.text.split_whitespace().map(|word| word.replace('e', "i")).collect();
    let alike: Vec<&str> = alike.iter().map(String::as_str).collect();
    let inputs = || [named(1, &alike), named(1, &[]), named(3, &alike), with_words(named(3, &alike))];
    let alone: Vec<Transcript> = inputs().map(|input| one(&TINY, input)).into();
    assert!(alone[0].passes > alone[1].passes, "{alone:?}");
    let prepared = inputs().map(|input| prepare(&TINY, input)).into();
    assert_same(&Engine::new(&TINY, Some(2)).run(prepared), &alone);
}
