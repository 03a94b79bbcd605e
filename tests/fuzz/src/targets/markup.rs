//! Markup of texts to speak: SSML and short forms, read as a whole and left out of pieces.

use izwi_models::text::lexicon::Lexicons;
use izwi_models::text::ssml::{Abilities, Filter, Script};

use crate::Target;

pub(super) const TARGET: Target = Target { name: "markup", run, seeds, max_bytes: 2 << 10 };

/// The first byte tells what is possible for the text, and where its pieces end.
fn run(bytes: &[u8]) {
    let Some((choices, body)) = bytes.split_first() else { return };
    let text = String::from_utf8_lossy(body);
    let has = |bit: u8| choices >> bit & 1 == 1;
    let abilities = Abilities { parts: has(0), rates: has(1), phonemes: has(2), english: has(3) };
    check(&text, &Script::read(&text, abilities, &Lexicons::default()), abilities);

    let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let whole = Filter::default().push(&text, true);
    let (mut filter, mut got, mut piece) = (Filter::default(), String::new(), String::new());
    for (at, c) in text.chars().enumerate() {
        piece.push(c);
        if at % (1 + usize::from(*choices)) == 0 {
            got += &filter.push(&std::mem::take(&mut piece), false);
            assert!(filter.held_bytes() <= text.len());
        }
    }
    got += &filter.push(&piece, true);
    assert_eq!(words(&got), words(&whole), "pieces give other words than the whole");
}

fn check(text: &str, script: &Script, abilities: Abilities) {
    assert!(script.end <= text.len() && text.is_char_boundary(script.end), "the end is {}", script.end);
    assert!(script.told.len() <= 8 && script.parts.len() <= 513);
    assert!(abilities.parts || script.parts.len() <= 1, "parts that cannot be spoken");
    let mut last = 0;
    let mut silence = u64::from(script.silence_ms);
    for part in &script.parts {
        silence += u64::from(part.silence_ms);
        for (spoken, _) in part.text.char_indices() {
            let written = part.places.written(spoken);
            assert!(written >= last && written <= text.len(), "{written} bytes said after {last}");
            last = written;
        }
    }
    assert!(silence <= 300_000, "{silence} ms of silence");
    // A digit is read as a word, and a date as several.
    let length: usize = script.parts.iter().map(|part| part.text.len()).sum();
    assert!(length <= 64 * text.len() + 64, "{length} bytes to say for {}", text.len());
}

fn seeds() -> Vec<Vec<u8>> {
    [
        "<speak version=\"1.1\"><p><s>One.</s> <s>Two<break time=\"500ms\"/>three.</s></p></speak> [pause 2s] end",
        "<say-as interpret-as=\"digits\">12 34</say-as> <say-as interpret-as='date' format=\"mdy\">3/4/2021</say-as>, \
         <say-as interpret-as=\"currency\">$5.50</say-as> <say-as interpret-as=\"time\">10:30pm</say-as>",
        "<prosody rate=\"slow\" volume='+6dB' pitch=\"x-high\">a <sub alias=\"b &amp; c\">d</sub></prosody> {to|/t\u{259}/} <",
        "<phoneme alphabet=\"ipa\" ph=\"t\u{259}m\u{2c8}e\u{26a}to\u{28a}\">tomato</phoneme><phoneme alphabet=\"x-sampa\" ph=\"t@\">to</phoneme>",
        "<![CDATA[ <b> ]]> <!-- no --> <?xml version='1.0'?> &#x41; &lt; <mark name=\"m\"/> <voice name=\"v\">x</voice></p></s> [[",
    ]
    .map(|text| [&[0b1111], text.as_bytes()].concat())
    .into()
}
