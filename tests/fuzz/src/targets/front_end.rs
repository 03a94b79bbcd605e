//! Texts to speak: markup, normalisation, sentences, phonemes, and which part of the text has been said after each word.

use izwi_models::families::phonemes;

use crate::Target;

pub(super) const TARGET: Target = Target { name: "front_end", run, seeds, max_bytes: 600 };

fn seeds() -> Vec<Vec<u8>> {
    [
        "Dr. Smith paid $5.50 (about £4) on 3/4/2021 at 10:30 p.m. — e.g. 1,234.5 km/h, 3rd floor, No. 7.",
        "# Title\n\n* **bold** and `code`\n* [link](http://a.b/c?d=e) <b>x</b>\n\n```\nlet x = 1;\n```\n| a | b |\n",
        "King Henry VIII., 1990s, 2.5x, 50%, -3°C, 10^6, a+b=c; NASA, U.S.A., iPhone12, xkcdq, don't, O'Neil\u{2019}s",
        "Straße ÄÖÜ 東京 مرحبا 👩‍👩‍👧 e\u{301} \u{200b}\u{feff}\u{202e}x 1️⃣ ½ ² ﬁ Ⅷ",
        "9999999999999999999999999 0.000000000000001 1/2 00:00:00 31/12 2024-02-30 1st 2nd 111th 21:59 $1,000,000.99m",
    ]
    .map(|text| text.as_bytes().to_vec())
    .into()
}

fn run(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let sentences = phonemes(&text).expect("the rules for texts");
    let mut end = 0;
    for (_, said) in &sentences {
        for said in said {
            assert!(*said >= end && text.is_char_boundary(*said), "{said} bytes said after {end}");
            end = *said;
        }
    }
    let length: usize = sentences.iter().map(|(phonemes, _)| phonemes.len()).sum();
    assert!(length <= 200 * text.len() + 1_000, "{length} bytes of phonemes for {} of text", text.len());
}
