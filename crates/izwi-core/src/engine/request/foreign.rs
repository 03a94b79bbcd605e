//! Languages of a text that a model does not speak: by script, and for Latin letters by statistics.
//!
//! Must not know models.

use std::ops::RangeInclusive;

use whatlang::{Detector, Lang};

/// Bytes of a text that are looked at.
const MAX_BYTES: usize = 8192;
/// Letters of a script that make it more than a symbol: π, Ω and µ are said in every language.
const MIN_LETTERS: usize = 3;
/// Fewer Latin letters tell no language.
const MIN_LATIN_LETTERS: usize = 40;
/// Confidence from which a language is reported.
const MIN_CONFIDENCE: f64 = 0.9;

/// Scripts: their letters, and the codes of languages that are written in them, the likeliest first.
const SCRIPTS: &[(&[RangeInclusive<char>], &[&str])] = &[
    // Before Han: Japanese has both.
    (&['\u{3041}'..='\u{30ff}', '\u{31f0}'..='\u{31ff}', '\u{ff66}'..='\u{ff9f}'], &["ja"]),
    (&['\u{3400}'..='\u{9fff}', '\u{f900}'..='\u{faff}', '\u{20000}'..='\u{323af}'], &["zh", "ja", "yue"]),
    (&['\u{1100}'..='\u{11ff}', '\u{3130}'..='\u{318f}', '\u{ac00}'..='\u{d7af}'], &["ko"]),
    (&['\u{400}'..='\u{52f}'], &["ru", "uk", "bg", "sr", "mk", "be", "kk", "mn", "tg", "tt", "ba"]),
    (&['\u{370}'..='\u{3ff}', '\u{1f00}'..='\u{1fff}'], &["el"]),
    (
        &['\u{600}'..='\u{6ff}', '\u{750}'..='\u{77f}', '\u{fb50}'..='\u{fdff}', '\u{fe70}'..='\u{feff}'],
        &["ar", "fa", "ur", "ps", "sd"],
    ),
    (&['\u{590}'..='\u{5ff}'], &["he", "yi"]),
    (&['\u{900}'..='\u{97f}'], &["hi", "mr", "ne", "sa"]),
    (&['\u{980}'..='\u{9ff}'], &["bn", "as"]),
    (&['\u{a00}'..='\u{a7f}'], &["pa"]),
    (&['\u{a80}'..='\u{aff}'], &["gu"]),
    (&['\u{b80}'..='\u{bff}'], &["ta"]),
    (&['\u{c00}'..='\u{c7f}'], &["te"]),
    (&['\u{c80}'..='\u{cff}'], &["kn"]),
    (&['\u{d00}'..='\u{d7f}'], &["ml"]),
    (&['\u{d80}'..='\u{dff}'], &["si"]),
    (&['\u{e00}'..='\u{e7f}'], &["th"]),
    (&['\u{e80}'..='\u{eff}'], &["lo"]),
    (&['\u{f00}'..='\u{fff}'], &["bo"]),
    (&['\u{1000}'..='\u{109f}'], &["my"]),
    (&['\u{10a0}'..='\u{10ff}'], &["ka"]),
    (&['\u{530}'..='\u{58f}'], &["hy"]),
    (&['\u{1200}'..='\u{139f}'], &["am"]),
    (&['\u{1780}'..='\u{17ff}'], &["km"]),
];

/// Scripts of which a single character is a word.
const WORD_SCRIPTS: usize = 3;

/// Languages in Latin letters that are told apart, and their codes.
const LATIN: [(Lang, &str); 19] = [
    (Lang::Eng, "en"),
    (Lang::Deu, "de"),
    (Lang::Spa, "es"),
    (Lang::Fra, "fr"),
    (Lang::Por, "pt"),
    (Lang::Ita, "it"),
    (Lang::Nld, "nl"),
    (Lang::Cat, "ca"),
    (Lang::Pol, "pl"),
    (Lang::Tur, "tr"),
    (Lang::Swe, "sv"),
    (Lang::Dan, "da"),
    (Lang::Nob, "no"),
    (Lang::Fin, "fi"),
    (Lang::Ces, "cs"),
    (Lang::Ron, "ro"),
    (Lang::Hun, "hu"),
    (Lang::Vie, "vi"),
    (Lang::Ind, "id"),
];

/// Codes of the languages of `text`, as far as they can be told, of which a model that speaks `spoken` speaks none.
/// Nothing is told where `spoken` is empty.
pub(super) fn languages(text: &str, spoken: &[String]) -> Vec<String> {
    if spoken.is_empty() {
        return Vec::new();
    }
    let end = (0..=text.len().min(MAX_BYTES)).rev().find(|&end| text.is_char_boundary(end));
    let text = &text[..end.unwrap_or(0)];
    let speaks = |code: &str| spoken.iter().any(|known| known == code);
    let count = |letters: &[RangeInclusive<char>]| {
        text.chars().filter(|c| letters.iter().any(|range| range.contains(c))).take(MIN_LETTERS).count()
    };
    let mut found: Vec<String> = Vec::new();
    for (at, (letters, codes)) in SCRIPTS.iter().enumerate() {
        let least = if at < WORD_SCRIPTS { 1 } else { MIN_LETTERS };
        if codes.iter().any(|code| speaks(code)) || count(letters) < least {
            continue;
        }
        // Kanji between kana are Japanese.
        let is_told = codes.iter().any(|code| found.iter().any(|told| told == code));
        if !is_told {
            found.push(codes[0].to_owned());
        }
    }
    found.extend(latin(text).filter(|code| !speaks(code)).map(str::to_owned));
    found
}

/// The language of a text in Latin letters, where it is certain.
fn latin(text: &str) -> Option<&'static str> {
    let is_latin = |c: &char| c.is_alphabetic() && *c < '\u{250}';
    if text.chars().filter(is_latin).take(MIN_LATIN_LETTERS).count() < MIN_LATIN_LETTERS {
        return None;
    }
    let words: String = text.chars().map(|c| if is_latin(&c) { c } else { ' ' }).collect();
    let detector = Detector::with_allowlist(LATIN.map(|(lang, _)| lang).to_vec());
    let found = detector.detect(&words).filter(|found| found.confidence() >= MIN_CONFIDENCE)?;
    LATIN.iter().find(|(lang, _)| *lang == found.lang()).map(|(_, code)| *code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, spoken: &[&str], expected: &[&str]) {
        let spoken: Vec<String> = spoken.iter().map(|&code| code.to_owned()).collect();
        assert_eq!(languages(text, &spoken), expected, "{text}");
    }

    #[test]
    fn scripts_that_a_model_does_not_speak_are_told() {
        check("Привет, как дела?", &["en"], &["ru"]);
        check("She said 你好 and left.", &["en"], &["zh"]);
        check("東京へようこそ", &["en"], &["ja"]);
        check("東京へようこそ", &["ja"], &[]);
        check("안녕하세요 and नमस्ते", &["en"], &["ko", "hi"]);
        check("Привет", &["uk", "en"], &[]);
        check("Привет", &[], &[]);
        check("The area is πr², 5 µm at 3 Ω.", &["en"], &[]);
        check("Καλημέρα", &["en"], &["el"]);
    }

    #[test]
    fn a_language_in_latin_letters_is_told_where_it_is_certain() {
        let german =
            "Guten Morgen, wie geht es Ihnen heute? Das Wetter ist schön, und wir gehen nachher spazieren.";
        check(german, &["en"], &["de"]);
        check(german, &["en", "de"], &[]);
        check(
            "Bonjour à tous, nous sommes très heureux de vous accueillir dans notre maison ce soir.",
            &["en"],
            &["fr"],
        );
        check("Guten Morgen!", &["en"], &[]);
    }

    #[test]
    fn english_is_not_taken_for_another_language() {
        for text in [
            "The lighthouse keeper counted twelve ships before breakfast, and wrote each name in the ledger.",
            "Call me at 555-1234 or write to anna@example.com before 5 pm, please, or the order is lost.",
            "Kubernetes pods restart; nginx, grafana, prometheus and postgres do too, or so docker compose says.",
            "Dr. Müller and Señora García ate crème brûlée at the café in Zürich with Mr. O'Brien.",
            "Nothing that you say here leaves your desk. The tide came in at a quarter past six.",
            "OK OK OK yes yes no no wow wow hmm hmm uh uh huh, la la la la la, na na na na na na.",
        ] {
            check(text, &["en"], &[]);
        }
    }
}
