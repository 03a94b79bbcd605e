//! Log-probabilities, bytes of tokens, languages to choose from, and keywords.

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
        // A word's probability is the mean over its tokens without the punctuation behind it.
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
                vocabulary.encode(text).into_iter().flat_map(|id| vocabulary.bytes(id)).collect();
            assert_eq!(String::from_utf8_lossy(&bytes), text);
        }
    }
}

#[test]
fn one_of_the_given_languages_is_detected_and_keywords_stay_in_the_prompt() {
    let (samples, _) = clips().remove(0);
    let languages = vec!["German".to_owned(), "fr".to_owned()];
    let transcript = one(&BASE, asking(listen(&samples), |options| options.languages = languages));
    assert!(["de", "fr"].contains(&transcript.language.as_deref().unwrap()), "{transcript:?}");
    let refused = asking(listen(&[]), |options| options.languages = vec!["de".to_owned()]);
    assert_eq!(TINY.decoding_options(&refused, &LIMITS).unwrap_err().param, "languages");

    let decoding_options = |keywords| {
        BASE.decoding_options(&asking(listen(&[]), |options| options.keywords = keywords), &LIMITS).unwrap()
    };
    let keywords = vec!["Izwi".to_owned(), " ".to_owned(), "kestrel".to_owned()];
    let options = decoding_options(keywords);
    assert_eq!(BASE.window_decoder.vocabulary.text(&options.keywords), " Izwi, kestrel.");
    let keywords = vec!["word".to_owned(); 500];
    let options = decoding_options(keywords);
    assert!(options.keywords.len() <= options.max_positions / MAX_KEYWORD_SHARE);
    let named = asking(listen(&samples), |options| options.keywords = vec!["Izwi".to_owned()]);
    assert!(!one(&BASE, named).text.is_empty());
}
