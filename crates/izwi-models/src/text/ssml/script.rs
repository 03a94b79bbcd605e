//! From a written text to its parts: what is spoken as one, the silence before each, and how it is spoken.

use std::collections::HashMap;
use std::ops::Range;

use super::filter::{Filter, joins};
use super::manner::Manner;
use super::marks::{self, Kind, Mark};
use super::pauses::{self, Pauses};
use super::places::Places;
use super::{entities, say_as, tell};
use crate::text::ipa;
use crate::text::lexicon::{Entry, Lexicons, Pronunciation, ipa_of, short_form};
use izwi_types::WordSounds;

/// The most parts of a text; further marks that would part it are told.
const MAX_PARTS: usize = 512;
/// The most elements that are open at once; the marks of deeper ones are told.
const MAX_DEPTH: usize = 32;

/// What is known to be possible for a text.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Abilities {
    /// Whether parts of a text can be spoken one after another, with silence between them.
    pub parts: bool,
    /// Whether a part can have a tempo of its own.
    pub rates: bool,
    /// Whether words can be said by their sounds.
    pub phonemes: bool,
    /// Whether the text is read in English.
    pub english: bool,
}

/// What is spoken of a text.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Script {
    /// The parts, none of which is without words; empty if there are no words at all.
    pub parts: Vec<Part>,
    /// Milliseconds of silence behind them.
    pub silence_ms: u32,
    /// Where the written text ends, without white space.
    pub end: usize,
    /// Marks that are not obeyed, or not wholly, each once.
    pub told: Vec<String>,
    /// Whether there are marks or words of lexicons at all; without them the text is spoken just as it is written.
    pub is_marked: bool,
}

/// What is spoken as one.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Part {
    /// Its words.
    pub text: String,
    /// Where they are written.
    pub places: Places,
    /// Milliseconds of silence before it.
    pub silence_ms: u32,
    /// How it is spoken.
    pub manner: Manner,
    /// Words whose sounds are given, in order.
    pub sounds: Vec<WordSounds>,
}

impl Script {
    /// Reads a written text, its words by lexicons.
    pub fn read(text: &str, abilities: Abilities, lexicons: &Lexicons) -> Self {
        let marks: Vec<Mark<'_>> = marks::find(text).collect();
        let mut reader = Reader::new(text, abilities, lexicons, &marks);
        for mark in &marks {
            reader.text(mark.range.start);
            reader.mark(mark);
        }
        reader.text(text.len());
        reader.end()
    }

    /// Whether there is silence before, between or behind its parts.
    pub fn has_silence(&self) -> bool {
        self.silence_ms > 0 || self.parts.iter().any(|part| part.silence_ms > 0)
    }

    /// All of its words, as one text.
    pub fn text(&self) -> String {
        let texts: Vec<&str> = self.parts.iter().map(|part| part.text.as_str()).collect();
        texts.join(" ")
    }
}

/// An element that is open.
#[derive(Default)]
struct Element<'a> {
    name: &'a str,
    /// What is said in place of its content, which begins there; `None` where the content is spoken.
    replaced: Option<(Replacement<'a>, usize)>,
    /// How the text behind it is spoken.
    outer: Manner,
}

/// What is said in place of the content of an element.
enum Replacement<'a> {
    Nothing,
    Text(String),
    /// The content itself, by its sounds in misaki's alphabet.
    Sounds(String),
    /// The content as its attributes want it read.
    Reading {
        kind: &'a str,
        format: &'a str,
    },
}

/// What is read of a text so far.
struct Reader<'a> {
    written: &'a str,
    abilities: Abilities,
    lexicons: &'a Lexicons,
    /// How much of the text is read.
    at: usize,
    elements: Vec<Element<'a>>,
    /// Where the last end of the elements of a name is.
    ends: HashMap<&'a str, usize>,
    part: Part,
    /// Whether the part has letters or digits.
    has_words: bool,
    /// Whether it has more than white space since the last border.
    is_in_sentence: bool,
    /// Whether a mark came behind the last text.
    is_behind_mark: bool,
    pauses: Pauses,
    script: Script,
}

impl<'a> Reader<'a> {
    fn new(written: &'a str, abilities: Abilities, lexicons: &'a Lexicons, marks: &'a [Mark<'a>]) -> Self {
        let ends = marks.iter().filter_map(|mark| match &mark.kind {
            Kind::Close { name } => Some((name.as_str(), mark.range.start)),
            _ => None,
        });
        Self {
            written,
            abilities,
            lexicons,
            at: 0,
            elements: Vec::new(),
            ends: ends.collect(),
            part: Part::default(),
            has_words: false,
            is_in_sentence: false,
            is_behind_mark: false,
            pauses: Pauses::default(),
            script: Script::default(),
        }
    }

    /// Takes the text up to the next mark.
    fn text(&mut self, end: usize) {
        let range = self.at..end;
        self.at = end;
        if !self.is_replaced() {
            self.say_text(range);
        }
    }

    /// Says a stretch as it is written, but for the entities of a document.
    fn say_text(&mut self, range: Range<usize>) {
        let mut said = range.start;
        if self.elements.iter().any(|element| element.name == "speak") {
            for (entity, character) in entities::find(&self.written[range.clone()]) {
                let entity = range.start + entity.start..range.start + entity.end;
                self.say_words(said..entity.start);
                self.say(character.encode_utf8(&mut [0; 4]), entity.clone(), false);
                said = entity.end;
            }
        }
        self.say_words(said..range.end);
    }

    /// Says a stretch as it is written, but for the words of lexicons.
    fn say_words(&mut self, range: Range<usize>) {
        let (lexicons, text) = (self.lexicons, &self.written[range.clone()]);
        let mut said = range.start;
        for (word, found) in lexicons.find(text, true) {
            let mut word = range.start + word.start..range.start + word.end;
            self.say(&self.written[said..word.start], said..word.start, true);
            self.say_pronounced(&mut word, found);
            said = word.end;
        }
        self.say(&self.written[said..range.end], said..range.end, true);
    }

    /// Says a word of a lexicon, and the possessive ending behind it where it is said by its sounds.
    fn say_pronounced(&mut self, word: &mut Range<usize>, found: &Entry) {
        self.script.is_marked = true;
        let written = &self.written[word.clone()];
        let Abilities { phonemes, english, .. } = self.abilities;
        match found.pronunciation(phonemes, english) {
            Pronunciation::Sounds(phonemes) => {
                let ending = if english { possessive(phonemes, &self.written[word.end..]) } else { None };
                let (sound, length) = ending.unwrap_or_default();
                word.end += length;
                self.say_sounds(&format!("{phonemes}{sound}"), word.clone());
            }
            Pronunciation::Words(words) => self.say(words, word.clone(), false),
            Pronunciation::Respelled(respelled) => {
                tell(&mut self.script.told, &short_form(written, found));
                self.say(&respelled, word.clone(), false);
            }
            Pronunciation::Unchanged => {
                tell(&mut self.script.told, &short_form(written, found));
                self.say(written, word.clone(), true);
            }
        }
    }

    /// Whether something else is said in place of what is read.
    fn is_replaced(&self) -> bool {
        self.elements.iter().any(|element| element.replaced.is_some())
    }

    /// Takes a mark.
    fn mark(&mut self, mark: &'a Mark<'a>) {
        self.at = mark.range.end;
        self.is_behind_mark = true;
        self.script.is_marked = true;
        let is_replaced = self.is_replaced();
        let is_obeyed = match &mark.kind {
            Kind::Note => true,
            Kind::Cut => false,
            Kind::Close { name } => self.close(name, mark.range.start),
            // Within what is not spoken.
            Kind::Open { .. } | Kind::Pause { .. } | Kind::Sounds { .. } if is_replaced => false,
            Kind::Open { name, attributes, is_empty } => self.open(name, attributes, *is_empty),
            Kind::Pause { number, is_ms } => {
                let ms = number.map_or(Some(pauses::MEDIUM_MS), |number| pauses::of_number(number, *is_ms));
                ms.is_some_and(|ms| self.pause(ms))
            }
            Kind::Sounds { word, sounds } => {
                let phonemes = ipa::misaki(sounds).filter(|_| self.abilities.phonemes);
                match &phonemes {
                    Some(phonemes) => self.say_sounds(phonemes, word.clone()),
                    None => self.say(&self.written[word.clone()], word.clone(), true),
                }
                self.is_behind_mark = true;
                phonemes.is_some()
            }
        };
        if !is_obeyed {
            tell(&mut self.script.told, &self.written[mark.range.clone()]);
        }
    }

    /// Obeys the beginning of an element, or an empty one. Returns whether it could, wholly.
    fn open(&mut self, name: &'a str, attributes: &[(String, &'a str)], is_empty: bool) -> bool {
        let value =
            |wanted: &str| attributes.iter().find(|(name, _)| name == wanted).map(|(_, value)| *value);
        let outer = self.part.manner;
        // What is said in place of the content of one that nothing ends would be said in place of all the rest.
        let ends = !is_empty && self.ends.get(name).is_some_and(|end| *end >= self.at);
        let mut replacement = None;
        let is_obeyed = match name {
            "speak" => true,
            "p" | "s" => {
                self.border(self.at);
                true
            }
            "break" => {
                let ms = match (value("time"), value("strength")) {
                    (Some(time), _) => pauses::of_time(time),
                    (None, Some(strength)) => pauses::of_strength(strength),
                    (None, None) => Some(pauses::MEDIUM_MS),
                };
                return ms.is_some_and(|ms| self.pause(ms));
            }
            "prosody" => {
                let (manner, is_whole) = outer.with(attributes, self.abilities.rates);
                is_empty || (self.change(manner) && is_whole)
            }
            "sub" => {
                let alias = value("alias").map(entities::decoded);
                replacement = alias.filter(|alias| !alias.trim().is_empty()).map(Replacement::Text);
                replacement.is_some()
            }
            "phoneme" => {
                let sounds = value("ph").map(entities::decoded);
                let alphabet = value("alphabet").unwrap_or("ipa");
                let ipa = sounds.and_then(|sounds| ipa_of(alphabet, &sounds).ok());
                let phonemes = ipa.and_then(|ipa| ipa::misaki(&ipa)).filter(|_| self.abilities.phonemes);
                replacement = phonemes.map(Replacement::Sounds);
                replacement.is_some()
            }
            "say-as" => {
                let format = value("format").unwrap_or_default();
                let kind =
                    value("interpret-as").filter(|kind| say_as::is_known(kind, self.abilities.english));
                replacement = kind.map(|kind| Replacement::Reading { kind, format });
                replacement.is_some()
            }
            "desc" | "metadata" => {
                replacement = Some(Replacement::Nothing);
                false
            }
            _ => false,
        };
        if is_empty {
            return is_obeyed;
        }
        let is_missing = replacement.is_some() && !ends;
        if self.elements.len() >= MAX_DEPTH || is_missing {
            self.change(outer);
            return false;
        }
        let replaced = replacement.map(|replacement| (replacement, self.at));
        self.elements.push(Element { name, replaced, outer });
        is_obeyed
    }

    /// Leaves an element, and those within that were not closed. Returns whether it was open.
    fn close(&mut self, name: &str, at: usize) -> bool {
        if matches!(name, "p" | "s") && !self.is_replaced() {
            self.border(at);
        }
        let Some(place) = self.elements.iter().rposition(|element| element.name == name) else {
            // A break has no content. The others change nothing; they may have begun in an earlier text.
            return matches!(name, "break" | "speak" | "p" | "s");
        };
        let left = self.elements.split_off(place);
        let Some(outermost) = left.first() else { return true };
        if !self.is_replaced()
            && let Some((replacement, start)) = left.iter().find_map(|element| element.replaced.as_ref())
        {
            self.replace(replacement, *start..at);
        }
        // A manner that cannot be left is told where it could not be entered.
        self.change(outermost.outer);
        true
    }

    /// Says something else in place of a stretch of the text.
    fn replace(&mut self, replacement: &Replacement<'_>, written: Range<usize>) {
        let content = &self.written[written.clone()];
        match replacement {
            Replacement::Nothing => {}
            Replacement::Text(text) => self.say(text.trim(), written, false),
            Replacement::Sounds(phonemes) => self.say_sounds(phonemes, written),
            Replacement::Reading { kind, format } => {
                let content = Filter::default().push(content, true);
                match say_as::read(content.trim(), kind, format) {
                    Some(reading) => self.say(&reading, written, false),
                    None => {
                        tell(&mut self.script.told, &format!("<say-as interpret-as=\"{kind}\">{content}"));
                        self.say(content.trim(), written, false);
                    }
                }
            }
        }
        self.is_behind_mark = true;
    }

    /// Says a word by its sounds.
    fn say_sounds(&mut self, phonemes: &str, written: Range<usize>) {
        let word = Filter::default().push(&self.written[written.clone()], true);
        let word = word.trim();
        // Without letters there would be nothing to put the sounds in place of.
        let has_letters = word.contains(|c: char| c.is_ascii_alphabetic());
        let word = if has_letters || !self.abilities.english { word } else { "word" };
        self.say(word, written, false);
        let end = self.part.text.len();
        let range = end - word.len()..end;
        self.part.sounds.push(WordSounds { range, phonemes: phonemes.to_owned() });
    }

    /// Speaks what follows in another manner, as a part of its own. Returns whether that can be.
    fn change(&mut self, manner: Manner) -> bool {
        if manner == self.part.manner {
            return true;
        }
        let can_part = self.abilities.parts && self.script.parts.len() < MAX_PARTS;
        if can_part {
            self.end_part();
            self.part.manner = manner;
        }
        can_part
    }

    /// Ends a sentence.
    fn border(&mut self, at: usize) {
        if std::mem::take(&mut self.is_in_sentence) {
            let last = self.part.text.trim_end().chars().next_back();
            let mark = if last.is_some_and(char::is_alphanumeric) { ".\n" } else { "\n" };
            self.append(mark, at..at, false);
            self.is_in_sentence = false;
        }
    }

    /// Puts a pause behind what was read. Returns whether it is as long as asked for.
    fn pause(&mut self, ms: u32) -> bool {
        if ms == 0 {
            return true;
        }
        if !self.abilities.parts || self.script.parts.len() >= MAX_PARTS {
            return false;
        }
        let (ms, is_whole) = self.pauses.take(ms);
        self.end_part();
        self.part.silence_ms += ms;
        is_whole
    }

    /// Says a stretch of the text, in the words that are written if it `is_verbatim`. Words on both sides of a mark stay two.
    fn say(&mut self, spoken: &str, written: Range<usize>, is_verbatim: bool) {
        let (mut spoken, mut written) = (spoken, written);
        if self.part.text.is_empty() {
            let trimmed = spoken.trim_start();
            if is_verbatim {
                written.start += spoken.len() - trimmed.len();
            }
            spoken = trimmed;
        }
        let Some(first) = spoken.chars().next() else { return };
        let last = self.part.text.chars().next_back();
        if std::mem::take(&mut self.is_behind_mark) && last.is_some_and(|last| joins(last, first)) {
            self.append(" ", written.start..written.start, false);
        }
        self.append(spoken, written, is_verbatim);
    }

    fn append(&mut self, spoken: &str, written: Range<usize>, is_verbatim: bool) {
        self.has_words |= spoken.contains(char::is_alphanumeric);
        self.is_in_sentence |= spoken.contains(|c: char| !c.is_whitespace());
        self.part.text.push_str(spoken);
        self.part.places.push(spoken.len(), written, is_verbatim);
    }

    /// Ends the part, if it has words. Marks without words go with the part behind them.
    fn end_part(&mut self) {
        if std::mem::take(&mut self.has_words) {
            self.is_in_sentence = false;
            let next = Part { manner: self.part.manner, ..Part::default() };
            let mut part = std::mem::replace(&mut self.part, next);
            part.text.truncate(part.text.trim_end().len());
            self.script.parts.push(part);
        }
    }

    fn end(mut self) -> Script {
        self.end_part();
        self.script.end = self.written.trim_end().len();
        self.script.silence_ms = self.part.silence_ms;
        if self.script.parts.is_empty() && !self.part.text.trim().is_empty() {
            // Characters alone, which some models speak.
            self.part.text.truncate(self.part.text.trim_end().len());
            self.script.silence_ms = 0;
            self.script.parts.push(self.part);
        }
        self.script
    }
}

/// The sound of a possessive ending that a text begins with, behind a word of these sounds, and its length in the text.
fn possessive(phonemes: &str, text: &str) -> Option<(&'static str, usize)> {
    let ending = ["'s", "’s"].into_iter().find(|ending| text.starts_with(ending))?;
    let is_end = !text[ending.len()..].starts_with(char::is_alphanumeric);
    let sound = match phonemes.chars().next_back()? {
        's' | 'z' | 'ʃ' | 'ʒ' | 'ʧ' | 'ʤ' => "ɪz",
        'p' | 't' | 'k' | 'f' | 'θ' => "s",
        _ => "z",
    };
    is_end.then_some((sound, ending.len()))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::*;
    use crate::text::lexicon::{self, LexiconIndex};

    const ALL: Abilities = Abilities { parts: true, rates: true, phonemes: true, english: true };

    #[track_caller]
    fn check(written: &str, parts: &[&str], told: &[&str]) {
        let script = Script::read(written, ALL, &Lexicons::default());
        let texts: Vec<&str> = script.parts.iter().map(|part| part.text.as_str()).collect();
        assert_eq!(texts, parts, "{written}");
        assert_eq!(script.told, told, "{written}");
        for part in &script.parts {
            assert!(part.places.written(part.text.len()) <= written.len());
        }
    }

    #[test]
    fn pauses_part_a_text() {
        check("One<break time=\"1s\"/>two [pause] three.", &["One", "two", "three."], &[]);
        check("a<break strength=\"none\"/>b [PAUSE 0s]c", &["a b c"], &[]);
        check("a <break time=\"1s\"> b </break> c", &["a", "b  c"], &[]);
        check("a <break time=\"soon\"/> b", &["a  b"], &["<break time=\"soon\"/>"]);
        check("a [pause 12s] b", &["a", "b"], &["[pause 12s]"]);
        check("Cut <break time=\"1", &["Cut"], &["<break time=\"1"]);
        let script =
            Script::read("<break/> a! [pause 1s] — [pause 2s] b [pause 3s]", ALL, &Lexicons::default());
        let silences: Vec<u32> = script.parts.iter().map(|part| part.silence_ms).collect();
        assert_eq!((silences, script.silence_ms), (vec![750, 3_000], 3_000));
        assert_eq!(script.parts[1].text, "—  b");
        let alone = Script::read("a [pause] b", Abilities::default(), &Lexicons::default());
        assert_eq!((alone.text().as_str(), &alone.told[..]), ("a  b", &["[pause]".to_owned()][..]));
    }

    #[test]
    fn sentences_and_paragraphs_end() {
        check("<speak><p><s>One</s><s>Two!</s></p>\n<p>Three</p></speak>", &["One.\nTwo!\n\nThree."], &[]);
        check("<p xml:lang=\"en\">One</p>", &["One."], &[]);
    }

    #[test]
    fn other_words_are_said_in_place_of_those_that_are_written() {
        check("The <sub alias=\"World Wide Web\">WWW</sub>, of old.", &["The World Wide Web, of old."], &[]);
        check("<sub alias=\"a\">b<sub alias=\"c\">d</sub> e", &["a e"], &["<sub alias=\"c\">"]);
        check("<sub alias=\"a\">b c", &["b c"], &["<sub alias=\"a\">"]);
        check("<sub>b</sub> c", &["b c"], &["<sub>"]);
        check(
            "<audio src=\"a.wav\"><desc>a bell</desc>Ding</audio>!",
            &["Ding!"],
            &["<audio src=\"a.wav\">", "<desc>"],
        );
        check("Id <say-as interpret-as=\"digits\">407</say-as>.", &["Id 4 0 7."], &[]);
        check("<say-as interpret-as=\"ordinal\">x</say-as>", &["x"], &["<say-as interpret-as=\"ordinal\">x"]);
        check("<say-as interpret-as=\"vowels\">x</say-as>", &["x"], &["<say-as interpret-as=\"vowels\">"]);
        let written = "I <sub alias=\"you and me\">us</sub> go";
        let part = &Script::read(written, ALL, &Lexicons::default()).parts[0];
        let said: Vec<&str> = [1, 5, 12, 15].map(|at| &written[..part.places.written(at)]).into();
        assert_eq!(said, ["I", &written[..28], &written[..28], written]);
    }

    #[test]
    fn a_manner_is_that_of_its_part() {
        let script = Script::read(
            "A <prosody rate=\"50%\" volume=\"-20dB\">b <prosody rate=\"fast\">c</prosody></prosody> d",
            ALL,
            &Lexicons::default(),
        );
        let manners: Vec<(&str, f32, f32)> = script
            .parts
            .iter()
            .map(|part| (part.text.as_str(), part.manner.rate, part.manner.gain))
            .collect();
        assert_eq!(manners, [("A", 1.0, 1.0), ("b", 0.5, 0.1), ("c", 0.775, 0.1), ("d", 1.0, 1.0)]);
        assert!(script.told.is_empty());
        check("<prosody pitch=\"high\">a</prosody> b", &["a b"], &["<prosody pitch=\"high\">"]);
    }

    #[test]
    fn words_have_the_sounds_that_are_given() {
        let written =
            "A {tomato|/təˈmeɪtoʊ/}, <phoneme alphabet=\"x-sampa\" ph=\"&quot;tSIk@n\">你</phoneme>.";
        let script = Script::read(written, ALL, &Lexicons::default());
        let part = &script.parts[0];
        assert_eq!((part.text.as_str(), script.told.len()), ("A tomato, word.", 0));
        let sounds: Vec<(&str, &str)> =
            part.sounds.iter().map(|word| (&part.text[word.range.clone()], word.phonemes.as_str())).collect();
        assert_eq!(sounds, [("tomato", "təmˈAtO"), ("word", "ʧˈɪkən")]);
        let without = Script::read(written, Abilities { phonemes: false, ..ALL }, &Lexicons::default());
        assert_eq!((without.text().as_str(), without.told.len()), ("A tomato, 你.", 2));
        check("<phoneme ph=\"ǂ\">x</phoneme>", &["x"], &["<phoneme ph=\"ǂ\">"]);
        check(
            "<phoneme alphabet=\"pinyin\" ph=\"a\">x</phoneme>",
            &["x"],
            &["<phoneme alphabet=\"pinyin\" ph=\"a\">"],
        );
    }

    #[test]
    fn words_of_lexicons_are_said_as_they_say() {
        let lexicon = lexicon::read("Izwi = /ˈiːzwi/\nnginx = engine x\nLee = /liː/ = Leigh").unwrap();
        let lexicons = Lexicons::from(vec![Arc::new(LexiconIndex::new(&lexicon).unwrap())]);
        let written = "Izwi’s [pause] nginx, <sub alias=\"Lee\">x</sub> {Lee|/laɪ/} Lee<break/>.";
        let script = Script::read(written, ALL, &lexicons);
        let texts: Vec<&str> = script.parts.iter().map(|part| part.text.as_str()).collect();
        assert_eq!(texts, ["Izwi’s", "engine x, Lee Lee Lee"]);
        let sounds = script.parts.iter().flat_map(|part| &part.sounds).map(|word| word.phonemes.as_str());
        assert_eq!(sounds.collect::<Vec<_>>(), ["ˈiːzwiz", "lI", "liː"]);
        assert!(script.told.is_empty() && script.is_marked, "{:?}", script.told);
        let part = &script.parts[1];
        assert_eq!(&written[..part.places.written("engine".len())], &written[..written.find(',').unwrap()]);
        let letters = Script::read(written, Abilities { phonemes: false, ..ALL }, &lexicons);
        assert_eq!(letters.text(), "eezwee’s engine x, Lee Lee Leigh");
        assert_eq!(letters.told, ["{Izwi|/ˈiːzwi/}", "{Lee|/laɪ/}"]);
        let other = Abilities { phonemes: false, english: false, ..ALL };
        assert_eq!(Script::read("Izwi", other, &lexicons).text(), "Izwi");
        assert!(!Script::read("nothing", ALL, &lexicons).is_marked);
    }

    #[test]
    fn entities_of_a_document_are_characters() {
        check("<speak>R&amp;D &lt;3 &#8364;5 &nbsp;</speak>", &["R&D <3 €5 &nbsp;"], &[]);
        check("R&amp;D [pause 0s]", &["R&amp;D"], &[]);
    }

    #[test]
    fn what_is_not_obeyed_is_told_and_its_words_stay() {
        check("<speak>a <emphasis>b</emphasis></speak> c</voice>", &["a b c"], &["<emphasis>", "</voice>"]);
        for long in ["[pause 1h]", "[pause -1s]", "[pause 2 minutes]"] {
            check(&format!("a {long} b"), &["a  b"], &[long]);
        }
        check("a {tomato|/təˈ7toʊ/} b", &["a tomato b"], &["{tomato|/təˈ7toʊ/}"]);
        for text in [
            "3 < 4 > 2",
            "[paused]",
            "x<y",
            "if a<s and c>d",
            "<anna@example.com>",
            "[pause the film]",
            "<3 {a|b}",
        ] {
            let script = Script::read(text, ALL, &Lexicons::default());
            assert_eq!((script.text().as_str(), script.is_marked), (text, false));
        }
        assert_eq!(Script::read("<break/> [pause]", ALL, &Lexicons::default()).parts, []);
    }

    proptest! {
        #[test]
        fn garbage_is_read_and_keeps_its_places(
            parts in prop::collection::vec(
                prop_oneof![
                    any::<String>(),
                    prop::sample::select(vec![
                        "<break time='1s'/>", "<break", "[pause 1s]", "<sub alias='x'>", "</sub>", "<p>", "</p>", "<s>",
                        "<prosody rate='200%'>", "</prosody>", "<say-as interpret-as='characters'>", "</say-as>", "é",
                        "<!--", "-->", "{a|/b/}", "<speak>", "</speak>", "<desc>", "</desc>",
                        "&amp;",
                        "&#8364;",
                        "&",
                        "word", " ", ".", "<", ">",
                    ]).prop_map(str::to_owned),
                ],
                0..40,
            ),
        ) {
            let text = parts.concat();
            let script = Script::read(&text, ALL, &Lexicons::default());
            for part in &script.parts {
                let mut last = 0;
                for at in (0..=part.text.len()).filter(|&at| part.text.is_char_boundary(at)) {
                    let place = part.places.written(at);
                    prop_assert!(place >= last && place <= text.len() && text.is_char_boundary(place));
                    last = place;
                }
                prop_assert_eq!(part.text.trim(), part.text.as_str());
            }
        }
    }

    #[test]
    fn long_runs_of_marks_are_read_in_linear_time() {
        for unit in [
            "<!--[pause]",
            "<",
            "{a|/",
            "<sub alias='x'>",
            "<prosody rate='200%'>a</prosody>",
            "[pause",
            "<break time='",
            " <p>",
            "![pause]",
        ] {
            let text = unit.repeat(260_000 / unit.len());
            // A quadratic reader takes longer than a test may.
            let script = Script::read(&text, ALL, &Lexicons::default());
            assert!(script.parts.len() <= MAX_PARTS + 1, "{unit}: {} parts", script.parts.len());
        }
    }
}
