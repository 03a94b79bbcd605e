//! Alignment of given texts on real weights.

use super::*;
use izwi_types::Word;

/// A recording and the text that is said in it, in English.
fn given(samples: &[f32], text: &str) -> ListenInput {
    let english = asking(listen(samples), |options| options.language = Some("en".to_owned()));
    ListenInput { text: Some(text.to_owned()), ..english }
}

fn timed_words(transcript: &Transcript) -> Vec<Word> {
    transcript.segments.iter().flat_map(|segment| segment.words.clone()).collect()
}

#[test]
fn a_given_text_is_aligned_alone_and_in_any_batch() {
    let clips = clips();
    let inputs = || clips.iter().map(|(samples, text)| given(samples, text));
    let alone: Vec<Transcript> = inputs().map(|input| one(&TINY, input)).collect();
    for (transcript, (samples, text)) in alone.iter().zip(&clips) {
        let words = timed_words(transcript);
        assert_eq!(words.iter().map(|word| word.text.trim()).collect::<Vec<_>>().join(" "), *text);
        assert!(words.is_sorted_by(|before, after| before.end_s <= after.start_s), "{words:?}");
        assert!(
            words.iter().all(|word| word.start_s <= word.end_s && word.end_s <= samples.len() as f64 / 16e3)
        );
        let likely: f32 = words.iter().map(|word| word.probability).sum::<f32>() / words.len() as f32;
        assert!(likely > 0.3, "{likely}: {text}");
    }
    let prepared = inputs().map(|input| prepare(&TINY, input)).collect();
    assert_same(&Engine::new(&TINY, Some(3)).run(prepared), &alone);
}

#[test]
fn a_long_text_is_aligned_window_by_window_and_what_nobody_says_is_not_found() {
    let clips = clips();
    let samples: Vec<f32> = clips.iter().flat_map(|(samples, _)| samples.clone()).collect();
    assert!(samples.len() > 30 * SAMPLE_RATE_HZ);
    let said: Vec<&str> = clips.iter().map(|(_, text)| text.as_str()).collect();
    let text = said.join("\n") + "\nNobody ever reads this line about zebras.";
    let words = timed_words(&one(&BASE, given(&samples, &text)));
    assert!(words.iter().map(|word| word.text.trim()).eq(text.split_whitespace()));
    assert!(words.is_sorted_by(|before, after| before.end_s <= after.start_s), "{words:?}");
    let (mut rest, mut start_s) = (words.as_slice(), 0.0);
    for (samples, text) in &clips {
        let (own, others) = rest.split_at(text.split(' ').count());
        rest = others;
        let end_s = start_s + samples.len() as f64 / 16e3;
        let is_within = |word: &&Word| {
            word.probability > 0.0 && start_s - 0.3 <= word.start_s && word.end_s <= end_s + 0.3
        };
        assert!(own.iter().filter(is_within).count() * 10 >= own.len() * 9, "{start_s} to {end_s}: {own:?}");
        start_s = end_s;
    }
    assert!(rest.len() == 7 && rest.iter().all(|word| word.probability == 0.0), "{rest:?}");
}

#[test]
fn what_cannot_be_aligned_is_refused() {
    let (samples, text) = clips().remove(1);
    let refused = |input: ListenInput| TINY.prepare(&Input::Listen(input), &LIMITS).unwrap_err().param;
    assert_eq!(refused(given(&samples, "…")), "text");
    assert_eq!(refused(given(&samples, &text.repeat(20))), "text");
    assert_eq!(refused(given(&noise(32_000, 0.0), &text)), "audio");
    assert_eq!(refused(given(&[], "a")), "audio");
    let special = one(&TINY, given(&samples, "<|endoftext|> he was not <|0.00|>"));
    assert_eq!(timed_words(&special)[0].probability, 0.0);
}
