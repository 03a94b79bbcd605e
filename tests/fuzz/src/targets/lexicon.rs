//! Lexicons of users in their three formats, and a text that is read by them, whole and in pieces.

use std::sync::Arc;

use izwi_models::text::lexicon::{self, LexiconIndex, Lexicons};
use izwi_models::text::ssml::{Abilities, Filter, Script};

use crate::Target;

pub(super) const TARGET: Target = Target { name: "lexicon", run, seeds, max_bytes: 4 << 10 };

/// A lexicon, a byte of zero, and a text.
fn run(bytes: &[u8]) {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    let (written, text) = (String::from_utf8_lossy(&bytes[..end]), String::from_utf8_lossy(&bytes[end..]));
    let Ok(read) = lexicon::read(&written) else { return };
    assert_eq!(lexicon::read(&lexicon::to_pls(&read)).is_ok(), read.entries.iter().all(is_plain), "{read:?}");
    let Ok(index) = LexiconIndex::new(&read) else { panic!("a lexicon that was read cannot be used") };
    let lexicons = Lexicons::from(vec![Arc::new(index)]);
    for phonemes in [false, true] {
        let abilities = Abilities { parts: true, rates: true, phonemes, english: true };
        let script = Script::read(&text, abilities, &lexicons);
        assert!(script.end <= text.len() && text.is_char_boundary(script.end), "the end is {}", script.end);
    }
    let mut filter = Filter::with_lexicons(lexicons.clone(), true);
    let mut pieces = String::new();
    for c in text.chars() {
        pieces += &filter.push(c.encode_utf8(&mut [0; 4]), false);
        assert!(filter.held_bytes() <= text.len());
    }
    pieces += &filter.push("", true);
    let whole = Filter::with_lexicons(lexicons, true).push(&text, true);
    let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(words(&pieces), words(&whole), "pieces give other words than the whole");
}

/// Whether XML can hold an entry.
fn is_plain(entry: &izwi_types::LexiconEntry) -> bool {
    let texts = [Some(&entry.word), entry.ipa.as_ref(), entry.alias.as_ref()];
    let is_text = |c: char| matches!(c, '\t' | '\n' | '\r' | ' '..='\u{fffd}' | '\u{10000}'..);
    texts.into_iter().flatten().all(|text| text.chars().all(is_text))
}

fn seeds() -> Vec<Vec<u8>> {
    [
        "# names\nIzwi = /\u{2c8}i\u{2d0}zwi/\nnginx = engine x\nNew York = /nu\u{2d0} j\u{254}\u{279}k/ = the city\n\u{6771}\u{4eac}\tTokyo\0Izwi's nginx in New  York.",
        "<?xml version=\"1.0\"?><lexicon version=\"1.0\" alphabet=\"x-sampa\" xml:lang=\"en\"><lexeme><grapheme>a&amp;b</grapheme><grapheme>C++</grapheme><phoneme prefer=\"true\">t@</phoneme><alias>c</alias></lexeme></lexicon>\0a&b c++ C++17 <break/>",
        "{\"language\":\"en\",\"entries\":[{\"word\":\"SQL\",\"alias\":\"sequel\",\"case_sensitive\":false}]}\0sql SQL2 [pause] {sql|/a/}",
    ]
    .map(|text| text.as_bytes().to_vec())
    .into()
}
