//! Normalisation of English text, similar to the normaliser of the Whisper authors
//! (<https://github.com/openai/whisper/blob/main/whisper/normalizers/english.py>): texts that a
//! reader pronounces the same become the same words.
//!
//! In order:
//! 1. Lower case; remarks in brackets and the hesitations `uh um hmm mm mhm` go.
//! 2. Contractions are written out (`won't`, `it's`, `they'll`), and titles (`Mr.`, `Dr.`, `St.`).
//! 3. Addresses are written as they are spoken: `info@example.com` is `info at example dot com`.
//! 4. Numbers become digits: `twenty-first` is `21st`, `nineteen eighty-four` is `1984`, `three point five million` is
//!    `3500000`. A time is the digits of its hour and minute (`7:30`, `seven thirty`, `7.30 pm` → `730`); full hours have no
//!    minutes (`7:00`, `seven o'clock` → `7`). The day after the name of a month is a plain number (`May 3rd` → `may 3`).
//! 5. Money and percent carry their sign: `twelve dollars and fifty cents` is `$12.50`, `five percent` is `5%`. Units
//!    after a number are written out (`5 km` → `5 kilometers`).
//! 6. British spellings of a short list become American. All other punctuation goes.
//!
//! Each rule maps two correct spellings to one; no rule hides a model error.

use super::numbers::{self, BREAK};

/// The words of a text in one spelling.
pub fn normalise(text: &str) -> Vec<String> {
    let lower = text.to_lowercase().replace(['\u{2019}', '\u{2018}'], "'");
    let mut words = Vec::new();
    for written in without_remarks(&lower).split_whitespace() {
        take_apart(written, &mut words);
    }
    words.retain(|word| !HESITATIONS.contains(&word.as_str()));
    let words = numbers::to_digits(&words);
    let mut words = numbers::with_signs(&words);
    words.retain(|word| word != BREAK);
    words.iter().map(|word| american(word)).collect()
}

const HESITATIONS: [&str; 6] = ["uh", "um", "hmm", "mm", "mhm", "uhm"];

/// Written forms that stand for other words.
const WRITTEN_FOR: [(&str, &str); 51] = [
    ("won't", "will not"),
    ("can't", "can not"),
    ("cannot", "can not"),
    ("let's", "let us"),
    ("ain't", "aint"),
    ("y'all", "you all"),
    ("wanna", "want to"),
    ("gonna", "going to"),
    ("gotta", "got to"),
    ("gimme", "give me"),
    ("woulda", "would have"),
    ("coulda", "could have"),
    ("shoulda", "should have"),
    ("ma'am", "madam"),
    ("ok", "okay"),
    ("mr", "mister"),
    ("mrs", "missus"),
    ("ms", "miss"),
    ("st", "saint"),
    ("dr", "doctor"),
    ("prof", "professor"),
    ("capt", "captain"),
    ("gov", "governor"),
    ("gen", "general"),
    ("sen", "senator"),
    ("rep", "representative"),
    ("rev", "reverend"),
    ("hon", "honorable"),
    ("lt", "lieutenant"),
    ("col", "colonel"),
    ("sgt", "sergeant"),
    ("jr", "junior"),
    ("sr", "senior"),
    ("vs", "versus"),
    ("etc", "et cetera"),
    ("dept", "department"),
    ("ave", "avenue"),
    ("blvd", "boulevard"),
    ("approx", "approximately"),
    ("jan", "january"),
    ("feb", "february"),
    ("aug", "august"),
    ("sept", "september"),
    ("oct", "october"),
    ("nov", "november"),
    ("dec", "december"),
    ("mon", "monday"),
    ("tue", "tuesday"),
    ("thu", "thursday"),
    ("fri", "friday"),
    ("&", "and"),
];

/// Endings of contractions.
const ENDINGS: [(&str, &str); 7] = [
    ("n't", "not"),
    ("'re", "are"),
    ("'s", "is"),
    ("'d", "would"),
    ("'ll", "will"),
    ("'ve", "have"),
    ("'m", "am"),
];

/// British spellings and the American ones; plurals and past forms follow where they are regular.
const AMERICAN: [(&str, &str); 44] = [
    ("colour", "color"),
    ("favour", "favor"),
    ("favourite", "favorite"),
    ("honour", "honor"),
    ("humour", "humor"),
    ("labour", "labor"),
    ("neighbour", "neighbor"),
    ("neighbourhood", "neighborhood"),
    ("behaviour", "behavior"),
    ("harbour", "harbor"),
    ("flavour", "flavor"),
    ("rumour", "rumor"),
    ("centre", "center"),
    ("theatre", "theater"),
    ("metre", "meter"),
    ("kilometre", "kilometer"),
    ("centimetre", "centimeter"),
    ("litre", "liter"),
    ("fibre", "fiber"),
    ("organise", "organize"),
    ("realise", "realize"),
    ("recognise", "recognize"),
    ("apologise", "apologize"),
    ("analyse", "analyze"),
    ("organisation", "organization"),
    ("travelled", "traveled"),
    ("travelling", "traveling"),
    ("traveller", "traveler"),
    ("cancelled", "canceled"),
    ("labelled", "labeled"),
    ("modelling", "modeling"),
    ("grey", "gray"),
    ("programme", "program"),
    ("cheque", "check"),
    ("tyre", "tire"),
    ("defence", "defense"),
    ("offence", "offense"),
    ("licence", "license"),
    ("catalogue", "catalog"),
    ("dialogue", "dialog"),
    ("aluminium", "aluminum"),
    ("jewellery", "jewelry"),
    ("plough", "plow"),
    ("sceptical", "skeptical"),
];

fn american(word: &str) -> String {
    let of =
        |stem: &str| AMERICAN.iter().find(|(british, _)| *british == stem).map(|(_, american)| *american);
    for ending in ["", "s", "d"] {
        if let Some(found) = word.strip_suffix(ending).and_then(of) {
            return format!("{found}{ending}");
        }
    }
    word.to_owned()
}

/// The text without what stands in square or round brackets, which is a remark of the transcriber.
fn without_remarks(text: &str) -> String {
    let mut depth = 0_usize;
    let mut kept = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '[' | '(' => depth += 1,
            ']' | ')' if depth > 0 => {
                depth -= 1;
                kept.push(' ');
            }
            _ if depth == 0 => kept.push(character),
            _ => {}
        }
    }
    kept
}

/// The words that one written word stands for, and a break after it where punctuation follows.
fn take_apart(written: &str, words: &mut Vec<String>) {
    let is_edge = |c: char| !(c.is_alphanumeric() || "$£€¢%°&@'".contains(c));
    let minus = written.starts_with('-') && written[1..].starts_with(|c: char| c.is_ascii_digit());
    let bare = written.trim_matches(is_edge).trim_matches('\'');
    if minus {
        words.push("minus".to_owned());
    }
    if !bare.is_empty() {
        if let Some(joined) = initials(bare) {
            words.push(joined);
        } else if is_address(bare) {
            spell_address(bare, words);
        } else {
            for piece in bare.split(['-', '\u{2010}', '\u{2011}', '\u{2013}', '\u{2014}', '/', '"', '_']) {
                take_piece(piece, words);
            }
        }
    }
    if written.ends_with([',', '.', ';', ':', '!', '?', '\u{2014}']) && !is_title(bare) {
        words.push(BREAK.to_owned());
    }
}

fn is_title(bare: &str) -> bool {
    WRITTEN_FOR.iter().any(|(short, _)| *short == bare)
}

/// `a.m` as `am`, `u.s.a` as `usa`: letters with a point after each.
fn initials(bare: &str) -> Option<String> {
    let single = |part: &str| part.len() == 1 && part.chars().all(|c| c.is_ascii_alphabetic());
    let parts: Vec<&str> = bare.split('.').collect();
    (parts.len() > 1 && parts.iter().all(|part| single(part))).then(|| parts.concat())
}

/// An e-mail address or the name of a site: `@`, or a point with letters on both sides.
fn is_address(bare: &str) -> bool {
    let host = bare.split('/').next().unwrap_or(bare);
    let ends_in_letters = host.rsplit_once('.').is_some_and(|(head, tail)| {
        !head.is_empty() && tail.len() > 1 && tail.chars().all(char::is_alphabetic)
    });
    bare.contains('@') || bare.contains("://") || ends_in_letters
}

fn spell_address(bare: &str, words: &mut Vec<String>) {
    let bare = bare.split_once("://").map_or(bare, |(_, rest)| rest);
    let mut part = String::new();
    for character in bare.chars().chain([' ']) {
        let said = match character {
            '@' => "at",
            '.' => "dot",
            '/' => "slash",
            '-' => "dash",
            '_' => "underscore",
            ' ' => "",
            other => {
                part.push(other);
                continue;
            }
        };
        let finished = [std::mem::take(&mut part), said.to_owned()];
        words.extend(finished.into_iter().filter(|word| !word.is_empty()));
    }
}

/// One piece between hyphens.
fn take_piece(piece: &str, words: &mut Vec<String>) {
    let piece = piece.trim_matches(|c: char| !(c.is_alphanumeric() || "$£€¢%°&'".contains(c)));
    let mut push = |text: &str| words.extend(text.split_whitespace().map(str::to_owned));
    if piece.is_empty() || piece == "o'clock" {
        // A break: a full hour takes no minutes.
        words.extend((!piece.is_empty()).then(|| numbers::OCLOCK.to_owned()));
        return;
    }
    if let Some((_, words_for)) = WRITTEN_FOR.iter().find(|(short, _)| *short == piece) {
        return push(words_for);
    }
    if let Some((stem, word)) =
        ENDINGS.iter().find_map(|(ending, word)| Some((piece.strip_suffix(ending)?, *word)))
        && stem.starts_with(|c: char| c.is_alphabetic())
    {
        return push(&format!("{stem} {word}"));
    }
    if let Some(apart) = numbers::take_apart(piece) {
        return words.extend(apart);
    }
    let plain: String = piece.chars().map(|c| if c.is_alphanumeric() { c } else { ' ' }).collect();
    // A lone apostrophe joins: `goin'` and `o'er` stay one word.
    if piece.contains('\'') { push(&piece.replace('\'', "")) } else { push(&plain) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expected: &str) {
        assert_eq!(normalise(text).join(" "), expected, "{text}");
    }

    #[test]
    fn case_punctuation_and_remarks_go() {
        check("  Hello,  WORLD!\n", "hello world");
        check("[music] So \u{2013} um \u{2014} it (laughs) began\u{2026}", "so it began");
        check("An ill-disposed, \"cold-hearted\" man.", "an ill disposed cold hearted man");
        check("", "");
        check("\u{2026} ' - , .", "");
    }

    #[test]
    fn contractions_are_written_out() {
        check("I won't; they\u{2019}ll say it's fine.", "i will not they will say it is fine");
        check("We can't, cannot and shouldn't.", "we can not can not and should not");
        check("Rock 'n' roll, goin' o'er", "rock n roll goin oer");
    }

    #[test]
    fn titles_and_initials_are_written_out() {
        check("Mr. Smith and Dr. Jones met Mrs. Lee.", "mister smith and doctor jones met missus lee");
        check("at 7 a.m. in the U.S. today", "at 7 am in the us today");
        check("St. Mary & Prof. Hill", "saint mary and professor hill");
    }

    #[test]
    fn addresses_are_written_as_spoken() {
        check("Write to info@example.com.", "write to info at example dot com");
        check("write to info at example dot com", "write to info at example dot com");
        check(
            "See https://docs.example.org/start-here",
            "see docs dot example dot org slash start dash here",
        );
    }

    #[test]
    fn spellings_of_both_sides_meet() {
        check("The grey colours of the theatre", "the gray colors of the theater");
        check("They realised it, organised and favoured", "they realized it organized and favoured");
    }
}
