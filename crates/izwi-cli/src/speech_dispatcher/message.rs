//! From a message of a screen reader to the text that a model speaks, and the places in it at which something is told.
//!
//! Pure. The text is marked up for the server, so that nothing that an application writes is obeyed by chance.

use std::fmt::Write as _;
use std::ops::Range;

use roxmltree::{Document, Node};

use super::names;
use super::parameters::{Capitals, Parameters};
use super::protocol::Kind;

/// Elements of SSML that are passed on with their attributes. Within some, the text is left as it is.
const KEPT: [(&str, bool); 7] = [
    ("break", false),
    ("p", false),
    ("s", false),
    ("prosody", false),
    ("sub", true),
    ("say-as", true),
    ("phoneme", true),
];
/// Deeper elements are read as text.
const MAX_DEPTH: usize = 64;
const OPEN: &str = "<speak>";
const CLOSE: &str = "</speak>";

/// What is told at a place of a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Cue {
    /// An index mark.
    Mark(String),
    /// The sound of a capital letter.
    Capital,
}

/// Bytes of markup after which a part ends with its sentence, so that speech begins early, after which with a word, and after
/// which anywhere: a server takes no long text.
const SENTENCE_BYTES: usize = 400;
const WORD_BYTES: usize = 2_000;
const MAX_BYTES: usize = 3_000;
/// A longer word is none, and takes models long.
const WORD_CHARS: usize = 40;
/// Bytes of markup in which the next word of a server is looked for.
const WINDOW_BYTES: usize = 16 << 10;

/// A part of a message, which is spoken by one request.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Utterance {
    /// SSML; empty if there are no words.
    pub(super) markup: String,
    /// Cues and their places in the markup, in order.
    pub(super) cues: Vec<(usize, Cue)>,
}

impl Utterance {
    /// Reads a message: one part or more.
    pub(super) fn parts(kind: Kind, text: &str, parameters: &Parameters) -> Vec<Self> {
        let mut builder = Builder::new(parameters);
        match kind {
            Kind::Text => builder.text(text),
            Kind::Char => builder.spell(if text == "space" { " " } else { text }),
            Kind::Key => builder.key(text),
            Kind::SoundIcon => builder.plain(&text.replace(['-', '_'], " ")),
        }
        builder.finish()
    }

    /// The cues that are due when `word`, a part of the markup from `from` on, is spoken: how many of those after the first
    /// `told`, and where the word ends.
    pub(super) fn due(&self, word: &str, from: usize, told: usize) -> Option<(usize, usize)> {
        let Range { start, end } = find(&self.markup, word, from)?;
        // Cues behind the word stand before its closing tags.
        let content = start + without_closing_tags(word).len();
        let due = self.cues[told..].iter().take_while(|(at, _)| *at < content).count();
        Some((due, end))
    }
}

fn find(markup: &str, word: &str, from: usize) -> Option<Range<usize>> {
    let window = markup.get(from..markup.floor_char_boundary(from + WINDOW_BYTES))?;
    let start = from + window.find(word)?;
    Some(start..start + word.len())
}

fn without_closing_tags(word: &str) -> &str {
    let mut rest = word.trim_end();
    while rest.ends_with('>')
        && let Some(tag) = rest.rfind('<')
    {
        rest = rest[..tag].trim_end();
    }
    rest
}

struct Builder<'a> {
    parameters: &'a Parameters,
    markup: String,
    cues: Vec<(usize, Cue)>,
    /// Whether there is a word.
    has_words: bool,
    /// Whether the last character ends a sentence.
    is_ended: bool,
    /// The elements that are open: their names and tags.
    open: Vec<(String, String)>,
    /// The parts before.
    parts: Vec<Utterance>,
}

impl<'a> Builder<'a> {
    fn new(parameters: &'a Parameters) -> Self {
        let (cues, open, parts) = (Vec::new(), Vec::new(), Vec::new());
        Self { parameters, markup: OPEN.to_owned(), cues, has_words: false, is_ended: false, open, parts }
    }

    fn finish(mut self) -> Vec<Utterance> {
        self.cut();
        self.parts
    }

    /// Ends a part; elements that are open go on in the next one.
    fn cut(&mut self) {
        for (name, _) in self.open.iter().rev() {
            let _ = write!(self.markup, "</{name}>");
        }
        self.markup.push_str(CLOSE);
        let tags: String = self.open.iter().map(|(_, tag)| tag.as_str()).collect();
        let markup = std::mem::replace(&mut self.markup, format!("{OPEN}{tags}"));
        let markup = if self.has_words { markup } else { String::new() };
        self.parts.push(Utterance { markup, cues: std::mem::take(&mut self.cues) });
        self.has_words = false;
    }

    /// A text, which is a document of SSML or plain. What is no document in spite of its beginning is read as text.
    fn text(&mut self, text: &str) {
        let trimmed = text.trim_start();
        let document = if trimmed.starts_with("<speak") || trimmed.starts_with("<?xml") {
            Document::parse(trimmed).ok()
        } else {
            None
        };
        match document {
            Some(document) => self.children(document.root(), 0),
            None => self.words(text),
        }
    }

    fn children(&mut self, parent: Node<'_, '_>, depth: usize) {
        for node in parent.children() {
            if let Some(text) = node.text().filter(|_| node.is_text()) {
                self.words(text);
            } else if node.is_element() && depth < MAX_DEPTH {
                self.element(node, depth);
            }
        }
    }

    fn element(&mut self, node: Node<'_, '_>, depth: usize) {
        let name = node.tag_name().name();
        if name == "mark" {
            if let Some(mark) = node.attribute("name").filter(|mark| !mark.contains(['\n', '\r'])) {
                self.cue(Cue::Mark(mark.to_owned()));
            }
            return;
        }
        let Some((_, is_verbatim)) = KEPT.iter().find(|(kept, _)| *kept == name) else {
            return self.children(node, depth + 1);
        };
        let mut tag = format!("<{name}");
        for attribute in node.attributes() {
            let _ = write!(tag, " {}=\"{}\"", attribute.name(), escaped(attribute.value()));
        }
        tag.push('>');
        self.markup.push_str(&tag);
        if *is_verbatim {
            let text: String =
                node.descendants().filter(Node::is_text).filter_map(|text| text.text()).collect();
            self.plain(&text);
        } else {
            self.open.push((name.to_owned(), tag));
            self.children(node, depth + 1);
            self.open.pop();
        }
        let _ = write!(self.markup, "</{name}>");
    }

    fn cue(&mut self, cue: Cue) {
        self.cues.push((self.markup.len(), cue));
    }

    /// Text as it is.
    fn plain(&mut self, text: &str) {
        self.has_words |= text.chars().any(char::is_alphanumeric);
        self.markup.push_str(&escaped(text));
    }

    /// Words, with what the parameters ask for.
    fn words(&mut self, text: &str) {
        if self.parameters.spells {
            return self.spell(text.trim());
        }
        let (mut is_within, mut run) = (false, 0);
        for (at, character) in text.char_indices() {
            let bytes = self.markup.len();
            let is_due = bytes > WORD_BYTES || (self.is_ended && bytes > SENTENCE_BYTES);
            if bytes > MAX_BYTES || (is_due && character.is_whitespace()) {
                self.cut();
            }
            run = if character.is_alphanumeric() { run + 1 } else { 0 };
            if run > WORD_CHARS {
                self.plain(" ");
                run = 1;
            }
            self.is_ended = matches!(character, '.' | '!' | '?' | '…' | '\n');
            let begins = character.is_alphanumeric() && !is_within;
            is_within = character.is_alphanumeric() || (is_within && matches!(character, '\'' | '’'));
            if begins {
                self.capitals(&text[at..]);
            }
            if let Some(name) = names::within(character, self.parameters.punctuation) {
                self.plain(&format!(" {name}"));
                // Only these shape the melody.
                if !matches!(character, '.' | ',' | ';' | ':' | '!' | '?') {
                    self.plain(" ");
                    continue;
                }
            }
            self.plain(character.encode_utf8(&mut [0; 4]));
        }
    }

    /// Tells that the word at the start of `text` has capital letters.
    fn capitals(&mut self, text: &str) {
        let letters = text.chars().take_while(|character| character.is_alphanumeric());
        let count = letters.clone().filter(|letter| letter.is_uppercase()).count();
        let is_all = count > 1 && !letters.clone().any(char::is_lowercase);
        match (self.parameters.capitals, count, is_all) {
            (Capitals::None, _, _) | (_, 0, _) => {}
            (Capitals::Icon, _, _) => self.cue(Cue::Capital),
            (Capitals::Spell, _, true) => self.plain("all caps "),
            (Capitals::Spell, _, false) => self.plain("capital "),
        }
    }

    /// The names of characters.
    fn spell(&mut self, text: &str) {
        for (count, character) in text.chars().enumerate() {
            if self.markup.len() > WORD_BYTES {
                self.cut();
            } else if count > 0 {
                self.plain(", ");
            }
            self.character(character);
        }
    }

    fn character(&mut self, character: char) {
        if let Some(name) = names::of_character(character) {
            return self.plain(name);
        }
        if !character.is_alphanumeric() {
            let code = format!("{:X}", u32::from(character));
            self.plain("character ");
            return self.as_characters(&code);
        }
        if character.is_uppercase() {
            match self.parameters.capitals {
                Capitals::None => {}
                Capitals::Spell => self.plain("capital "),
                Capitals::Icon => self.cue(Cue::Capital),
            }
        }
        self.as_characters(character.encode_utf8(&mut [0; 4]));
    }

    fn as_characters(&mut self, text: &str) {
        self.markup.push_str("<say-as interpret-as=\"characters\">");
        self.plain(text);
        self.markup.push_str("</say-as>");
    }

    fn key(&mut self, key: &str) {
        // The character that stands for itself, also that of `space`.
        for (count, part) in names::of_key(key).into_iter().enumerate() {
            if count > 0 {
                self.plain(" ");
            }
            let mut characters = part.chars();
            match (characters.next(), characters.next()) {
                (Some(character), None) => self.character(character),
                _ => self.plain(part),
            }
        }
        if key == " " {
            self.plain("space");
        }
    }
}

/// Text in which nothing is markup.
fn escaped(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => plain.push_str("&amp;"),
            '<' => plain.push_str("&lt;"),
            '>' => plain.push_str("&gt;"),
            '"' => plain.push_str("&quot;"),
            // They begin the short forms of markup.
            '[' => plain.push_str("&#91;"),
            '{' => plain.push_str("&#123;"),
            control if control.is_control() => plain.push(' '),
            other => plain.push(other),
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parameters(lines: &str) -> Parameters {
        let mut parameters = Parameters::default();
        for line in lines.split_whitespace() {
            assert!(parameters.set(line), "{line}");
        }
        parameters
    }

    /// The only part.
    fn of(kind: Kind, text: &str, parameters: &Parameters) -> Utterance {
        let [part] = Utterance::parts(kind, text, parameters).try_into().unwrap();
        part
    }

    fn spoken(kind: Kind, text: &str, lines: &str) -> String {
        let markup = of(kind, text, &parameters(lines)).markup;
        let inner = markup.replace(OPEN, "").replace(CLOSE, "");
        // Shorter for the tests.
        inner.replace("<say-as interpret-as=\"characters\">", "{").replace("</say-as>", "}")
    }

    #[test]
    fn texts_are_passed_on_without_effect() {
        assert_eq!(super::tests::of(Kind::Text, "<speak> \n</speak>", &Parameters::default()).markup, "");
        let of = |text| spoken(Kind::Text, text, "");
        assert_eq!(of("<speak>a &lt;b&gt; &amp; c</speak>"), "a &lt;b&gt; &amp; c");
        assert_eq!(of("a <b> [pause 9s] {x|/y/}"), "a &lt;b&gt; &#91;pause 9s] &#123;x|/y/}");
        assert_eq!(
            of("<speak>a <voice name='x'>b</voice><break time=\"1s\"/>c"),
            of("<speak>a <voice name='x'>b</voice><break time=\"1s\"/>c")
        );
        assert_eq!(
            of("<speak>a<break time='1s'/><sub alias=\"x\">y</sub> <emphasis>b</emphasis></speak>"),
            "a<break time=\"1s\"></break><sub alias=\"x\">y</sub> b"
        );
    }

    #[test]
    fn punctuation_is_named() {
        let of = |mode| spoken(Kind::Text, "<speak>Yes, it is: C# (1).</speak>", mode);
        assert_eq!(of("punctuation_mode=none"), "Yes, it is: C# (1).");
        assert_eq!(of("punctuation_mode=some"), "Yes, it is: C number sign  (1).");
        assert_eq!(
            of("punctuation_mode=most"),
            "Yes, it is colon: C number sign   left paren 1 right paren ."
        );
        assert!(of("punctuation_mode=all").starts_with("Yes comma, it is colon:"));
    }

    #[test]
    fn capitals_are_told() {
        let text = "<speak>The NATO's end</speak>";
        assert_eq!(spoken(Kind::Text, text, "cap_let_recogn=spell"), "capital The all caps NATO's end");
        let icons = of(Kind::Text, text, &parameters("cap_let_recogn=icon"));
        let at = |word: &str| icons.markup.find(word).unwrap();
        assert_eq!(icons.cues, [(at("The"), Cue::Capital), (at("NATO"), Cue::Capital)]);
    }

    #[test]
    fn characters_and_keys_have_names() {
        let char = |text, lines| spoken(Kind::Char, text, lines);
        assert_eq!(char("a", ""), "{a}");
        assert_eq!(char("A", "cap_let_recogn=spell"), "capital {A}");
        assert_eq!(
            (char("space", ""), char(" ", ""), char(".", "")),
            ("space".into(), "space".into(), "dot".into())
        );
        assert_eq!(char("☃", ""), "character {2603}");
        assert_eq!(spoken(Kind::Key, "control_a", ""), "control {a}");
        assert_eq!(spoken(Kind::Key, "shift_underscore", ""), "shift underscore");
        assert_eq!(spoken(Kind::Key, "_", ""), "underscore");
        assert_eq!(spoken(Kind::Text, "<speak>No 1</speak>", "spelling_mode=on"), "{N}, {o}, space, {1}");
        assert_eq!(spoken(Kind::SoundIcon, "message-new", ""), "message new");
    }

    #[test]
    fn cues_are_due_at_their_words() {
        let text = "<speak><mark name=\"a\"/>One.<mark name=\"b\"/> Two <mark name=\"c\"/>three.<mark name=\"d\"/></speak>";
        let utterance = of(Kind::Text, text, &Parameters::default());
        let (mut told, mut from, mut seen) = (0, 0, Vec::new());
        // Words come with the tags around them.
        for word in ["<speak>One.", "Two", "three.</speak>"] {
            let (due, end) = utterance.due(word, from, told).unwrap();
            seen.push(format!("{due} {word}"));
            (told, from) = (told + due, end);
        }
        assert_eq!(seen, ["1 <speak>One.", "1 Two", "1 three.</speak>"]);
        assert_eq!(utterance.cues[told..].len(), 1, "the last one is behind the last word");
        assert_eq!(utterance.due("four", 0, 0), None);
    }

    #[test]
    fn long_messages_are_parted_between_sentences_or_words() {
        let words = |sentence: &str| {
            let text = format!("<speak><prosody rate=\"90%\">{}</prosody></speak>", sentence.repeat(100));
            let parts = Utterance::parts(Kind::Text, &text, &Parameters::default());
            assert!(parts.len() > 2, "{}", parts.len());
            for part in &parts {
                assert!(Document::parse(&part.markup).is_ok() && part.markup.len() < WORD_BYTES + 100);
                assert!(part.markup.starts_with("<speak><prosody rate=\"90%\">"), "{}", part.markup);
            }
            parts.iter().map(|part| part.markup.matches("rain").count()).sum::<usize>()
        };
        assert_eq!(words("The rain has <mark name=\"m\"/>stopped. "), 100);
        for lines in ["spelling_mode=on", "spelling_mode=off"] {
            let parts = Utterance::parts(Kind::Text, &"<x>".repeat(4_000), &parameters(lines));
            assert!(
                parts.len() > 5 && parts.iter().all(|part| part.markup.len() < MAX_BYTES + 100),
                "{lines}"
            );
        }
        assert_eq!(words("the rain that falls and falls on hills of stone and on the fields of green "), 100);
    }

    proptest! {
        #[test]
        fn any_message_gives_a_document(text in ".{0,80}", speak in any::<bool>(), mode in 0usize..4, icon in any::<bool>()) {
            let mode = ["none", "some", "most", "all"][mode];
            let lines = format!("punctuation_mode={mode} cap_let_recogn={}", if icon { "icon" } else { "spell" });
            let text = if speak { format!("<speak>{text}</speak>") } else { text };
            for kind in [Kind::Text, Kind::Char, Kind::Key, Kind::SoundIcon] {
                for utterance in Utterance::parts(kind, &text, &parameters(&lines)) {
                prop_assert!(utterance.markup.is_empty() || Document::parse(&utterance.markup).is_ok());
                let ends = utterance.cues.iter().all(|(at, _)| utterance.markup.is_empty() || utterance.markup.is_char_boundary(*at));
                prop_assert!(ends);
                }
            }
        }
    }
}
