//! Words that a recording may contain: what tokens that spell them gain in the search for the likeliest text.
//!
//! Owns the trie of a request and the rules of the gain. Every way to spell a word in tokens counts. Knows no tensor, no family and no
//! search: a search keeps a [`Place`] for each of its texts.

use std::ops::Range;
use std::sync::Arc;

use izwi_nn::sampling::argmax;

/// What a token that begins a word gains at most, in nats, and what a byte of a word gains.
const FIRST_GAIN: f32 = 3.0;
const GAIN_PER_BYTE: f32 = 1.0;
/// A token gains nothing if the likeliest one is likelier by more than this, in nats: the first of a word, and those after it. What
/// nobody says stays far behind.
const FIRST_MARGIN: f32 = 6.0;
const MARGIN: f32 = 9.0;
/// Longest token that is looked for, in bytes.
const LONGEST_TOKEN: usize = 32;

/// The place before a word, where any may begin.
const START: u32 = 0;
/// The place inside a word that is none of them.
const INSIDE: u32 = 1;

/// The bytes of the tokens of a vocabulary; none of those that are no text.
#[derive(Debug)]
pub(crate) struct TokenBytes {
    bytes: Vec<Box<[u8]>>,
    /// Tokens in the order of their bytes.
    sorted: Vec<u32>,
}

impl TokenBytes {
    /// Bytes by id.
    pub(crate) fn new(bytes: Vec<Box<[u8]>>) -> Self {
        let mut sorted: Vec<u32> =
            (0..bytes.len() as u32).filter(|&id| !bytes[id as usize].is_empty()).collect();
        sorted.sort_by(|&a, &b| bytes[a as usize].cmp(&bytes[b as usize]));
        Self { bytes, sorted }
    }

    /// The bytes of a token.
    pub(crate) fn of(&self, token: u32) -> &[u8] {
        self.bytes.get(token as usize).map_or(&[], |bytes| bytes)
    }

    /// Of the places `within` the sorted tokens, which share `at` bytes, those whose next byte is `byte`.
    fn narrowed(&self, within: Range<usize>, at: usize, byte: u8) -> Range<usize> {
        let tokens = &self.sorted[within.clone()];
        let next = |token: &u32| self.of(*token).get(at).copied();
        let start = tokens.partition_point(|token| next(token) < Some(byte));
        let end = tokens.partition_point(|token| next(token) <= Some(byte));
        within.start + start..within.start + end
    }
}

/// The words of a request.
#[derive(Debug)]
pub(crate) struct Keywords {
    words: Vec<String>,
    nodes: Vec<Node>,
    tokens: Arc<TokenBytes>,
}

/// How far a text is in the words.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Place {
    node: u32,
    /// What the word has gained so far.
    gained: f32,
}

impl Default for Place {
    fn default() -> Self {
        Self { node: START, gained: 0.0 }
    }
}

/// What is read of some words.
#[derive(Debug, Default)]
struct Node {
    /// Nodes by the next byte.
    children: Vec<(u8, u32)>,
    /// The node of the longest end of it that begins a word, too.
    fallback: u32,
    /// Whether it is a whole word.
    is_word: bool,
    /// Tokens that go on, in order, and the nodes that they lead to.
    arcs: Vec<(u32, u32)>,
}

impl Node {
    fn child(&self, byte: u8) -> Option<u32> {
        self.children.iter().find(|(own, _)| *own == byte).map(|&(_, node)| node)
    }
}

impl Keywords {
    /// The trie of `words` over the tokens of a vocabulary; `None` without words. A word that follows no space has no space.
    pub(crate) fn new(words: &[String], tokens: &Arc<TokenBytes>) -> Option<Self> {
        let words = words.iter().map(|word| word.split_whitespace().collect::<Vec<_>>().join(" "));
        let words: Vec<String> = words.filter(|word| !word.is_empty()).collect();
        if words.is_empty() {
            return None;
        }
        let nodes = vec![Node::default(), Node::default()];
        let mut trie = Self { words: Vec::new(), nodes, tokens: Arc::clone(tokens) };
        for word in &words {
            trie.insert(word.bytes());
            trie.insert(std::iter::once(b' ').chain(word.bytes()));
        }
        trie.words = words;
        let spaced =
            trie.nodes[START as usize].children.iter().copied().filter(|(byte, _)| is_boundary(*byte));
        trie.nodes[INSIDE as usize].children = spaced.collect();
        trie.link();
        for node in 0..trie.nodes.len() {
            trie.nodes[node].arcs = trie.arcs(node as u32);
        }
        Some(trie)
    }

    /// The words, with single spaces.
    pub(crate) fn words(&self) -> &[String] {
        &self.words
    }

    fn insert(&mut self, word: impl Iterator<Item = u8>) {
        let mut at = START as usize;
        for byte in word {
            let next = self.nodes[at].child(byte).unwrap_or_else(|| {
                let new = self.nodes.len() as u32;
                self.nodes[at].children.push((byte, new));
                self.nodes.push(Node::default());
                new
            });
            at = next as usize;
        }
        self.nodes[at].is_word = true;
    }

    /// Sets the fallbacks, those of short nodes first.
    fn link(&mut self) {
        let mut level = vec![(START, START)];
        while !level.is_empty() {
            let mut next = Vec::new();
            for (parent, fallback) in level {
                for (byte, node) in self.nodes[parent as usize].children.clone() {
                    // The end of the first byte alone is a place before or inside a word.
                    let end = (parent != START).then(|| self.after(fallback, byte)).flatten();
                    let end = end.unwrap_or_else(|| outside(byte));
                    self.nodes[node as usize].fallback = end;
                    next.push((node, end));
                }
            }
            level = next;
        }
    }

    /// The longest end of a node and a byte that begins a word.
    fn after(&self, mut node: u32, byte: u8) -> Option<u32> {
        loop {
            let found = self.nodes[node as usize].child(byte);
            if found.is_some() || node <= INSIDE {
                return found;
            }
            node = self.nodes[node as usize].fallback;
        }
    }

    /// The tokens that go on from a node.
    fn arcs(&self, node: u32) -> Vec<(u32, u32)> {
        let (mut arcs, tokens) = (Vec::new(), &self.tokens);
        let mut open = vec![(node, 0, 0..tokens.sorted.len())];
        while let Some((node, length, within)) = open.pop() {
            for &(byte, child) in &self.nodes[node as usize].children {
                let within = tokens.narrowed(within.clone(), length, byte);
                // Of equal tokens the first is meant.
                let exact = tokens.sorted.get(within.start).filter(|_| !within.is_empty());
                arcs.extend(
                    exact.filter(|&&token| tokens.of(token).len() == length + 1).map(|&token| (token, child)),
                );
                if !within.is_empty() && length + 1 < LONGEST_TOKEN {
                    open.push((child, length + 1, within));
                }
            }
        }
        arcs.sort_unstable();
        arcs
    }

    /// The nodes of which a text at `node` is an end, the longest first.
    fn ends(&self, node: u32) -> impl Iterator<Item = u32> {
        let next = |&node: &u32| (node > INSIDE).then(|| self.nodes[node as usize].fallback);
        std::iter::successors(Some(node), next)
    }

    /// What the score of a text at `place` changes by with a token that is less likely than the likeliest by `behind` nats, and the
    /// place after it. What a word gained is taken back where it does not go on.
    pub(crate) fn score(&self, place: Place, token: u32, behind: f32) -> (f32, Place) {
        let bytes = self.tokens.of(token);
        let next = |node: u32| {
            let arcs = &self.nodes[node as usize].arcs;
            arcs.binary_search_by_key(&token, |arc| arc.0).ok().map(|at| (node, arcs[at].1))
        };
        let found = self.ends(place.node).find_map(next);
        let goes_on = found.is_some_and(|(from, _)| from == place.node && from > INSIDE);
        let gain = bytes.len() as f32 * GAIN_PER_BYTE;
        let (gain, margin) = if goes_on { (gain, MARGIN) } else { (gain.min(FIRST_GAIN), FIRST_MARGIN) };
        let is_whole =
            self.nodes[place.node as usize].is_word && bytes.first().is_none_or(|&byte| is_boundary(byte));
        // What a whole word has gained is its own.
        let open = if is_whole { 0.0 } else { place.gained };
        match found.filter(|_| behind <= margin) {
            Some((_, node)) if goes_on => (gain, Place { node, gained: open + gain }),
            Some((_, node)) => (gain - open, Place { node, gained: gain }),
            None => {
                let node = bytes.last().map_or(START, |&byte| outside(byte));
                (-open, Place { node, gained: 0.0 })
            }
        }
    }

    /// The tokens that may follow at `place`, each of which begins or goes on with a word, in order.
    pub(crate) fn tokens(&self, place: Place) -> Vec<u32> {
        let arcs = self.ends(place.node).flat_map(|node| &self.nodes[node as usize].arcs);
        let mut tokens: Vec<u32> = arcs.map(|arc| arc.0).collect();
        tokens.sort_unstable();
        tokens.dedup();
        tokens
    }

    /// By how much the likeliest of the tokens with `logits` is likelier than `token`; infinite where the likeliest is no text, so that no
    /// word is put where none is heard.
    pub(crate) fn behind(&self, logits: &[f32], best: usize, token: u32) -> f32 {
        if self.tokens.of(best as u32).is_empty() {
            f32::INFINITY
        } else {
            logits[best] - logits[token as usize]
        }
    }

    /// The place after a token that was taken by these logits.
    pub(crate) fn next(&self, place: Place, logits: &[f32], token: usize) -> Place {
        self.score(place, token as u32, self.behind(logits, argmax(logits), token as u32)).1
    }

    /// The likeliest token after `place`.
    pub(crate) fn likeliest(&self, place: Place, logits: &[f32]) -> usize {
        let mut raised = logits.to_vec();
        self.raise(place, &mut raised);
        argmax(&raised)
    }

    /// Adds to the logits after `place` what their tokens gain.
    pub(crate) fn raise(&self, place: Place, logits: &mut [f32]) {
        let best = argmax(logits);
        let tokens = self.tokens(place).into_iter().filter(|&token| (token as usize) < logits.len());
        // The others lose what is gained so far, unless that is a whole word.
        let others = if self.nodes[place.node as usize].is_word { 0.0 } else { -place.gained };
        let gains: Vec<(usize, f32)> = tokens
            .map(|token| (token as usize, self.score(place, token, self.behind(logits, best, token)).0))
            .collect();
        for (token, change) in gains {
            logits[token] += (change - others).max(0.0);
        }
    }
}

/// A phonetic key of a word, to compare with those of others: letters of one sound become one, and so do all vowels.
pub(crate) fn phonetic_key(word: &str) -> String {
    let letters: Vec<char> =
        word.chars().flat_map(char::to_lowercase).filter(|c| c.is_alphanumeric()).collect();
    let mut key = String::with_capacity(letters.len());
    let mut push = |c: char| {
        if !key.ends_with(c) {
            key.push(c);
        }
    };
    for (at, &c) in letters.iter().enumerate() {
        let next = letters.get(at + 1).copied().unwrap_or(' ');
        let is_soft = matches!(next, 'e' | 'i' | 'y');
        let is_after_vowel = at > 0 && is_vowel(letters[at - 1]);
        match c {
            'c' if is_soft => push('s'),
            'c' | 'q' => push('k'),
            'x' => {
                push('k');
                push('s');
            }
            'z' => push('s'),
            'g' if is_soft => push('j'),
            'p' if next == 'h' => push('f'),
            'h' if at > 0 && matches!(letters[at - 1], 'p' | 't') => {}
            'h' | 'w' if is_after_vowel => {}
            _ if is_vowel(c) => push('a'),
            _ => push(c),
        }
    }
    key
}

fn is_vowel(c: char) -> bool {
    matches!(c, 'a' | 'e' | 'i' | 'o' | 'u' | 'y')
}

/// The place after a byte that goes on with no word.
fn outside(byte: u8) -> u32 {
    if is_boundary(byte) { START } else { INSIDE }
}

/// Whether a word may begin after a byte. Words of scripts without spaces follow one another.
fn is_boundary(byte: u8) -> bool {
    !byte.is_ascii_alphanumeric()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TEXTS: [&str; 14] =
        ["", " K", "el", " Kel", "Kel", "vin", "vora", ".", "s", " New", " York", " Town", "é", " "];

    fn tokens(texts: &[&str]) -> Arc<TokenBytes> {
        Arc::new(TokenBytes::new(texts.iter().map(|text| text.as_bytes().into()).collect()))
    }

    fn keywords(words: &[&str]) -> Keywords {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        Keywords::new(&words, &tokens(&TEXTS)).unwrap()
    }

    fn id(text: &str) -> u32 {
        TEXTS.iter().position(|own| *own == text).unwrap() as u32
    }

    /// What a text has gained after each of its tokens, none of which is behind another.
    fn gained(keywords: &Keywords, texts: &[&str]) -> Vec<f32> {
        let (mut place, mut sum) = (Place::default(), 0.0);
        let mut after = |text: &&str| {
            let (change, next) = keywords.score(place, id(text), 0.0);
            (place, sum) = (next, sum + change);
            sum
        };
        texts.iter().map(&mut after).collect()
    }

    #[test]
    fn a_word_gains_by_each_spelling_and_loses_it_where_it_does_not_go_on() {
        let words = keywords(&["Kelvora"]);
        let whole = FIRST_GAIN + 4.0 * GAIN_PER_BYTE;
        assert_eq!(gained(&words, &[" Kel", "vora", "."]), [FIRST_GAIN, whole, whole]);
        assert_eq!(gained(&words, &["Kel", "vora", ""]), [FIRST_GAIN, whole, whole]);
        let first = FIRST_GAIN.min(2.0 * GAIN_PER_BYTE);
        let whole = first + 6.0 * GAIN_PER_BYTE;
        assert_eq!(gained(&words, &[" K", "el", "vora", ""])[2..], [whole, whole]);
        assert_eq!(gained(&words, &[" Kel", "vin", " Kel", " Town"]), [FIRST_GAIN, 0.0, FIRST_GAIN, 0.0]);
        assert_eq!(gained(&words, &[" Kel", ""]), [FIRST_GAIN, 0.0], "the text ends within the word");
    }

    #[test]
    fn words_that_sound_alike_are_alike() {
        let pairs = [
            ("Zelus", "zealous"),
            ("Bilin", "Billon"),
            ("Kumett", "CUMET"),
            ("Revus", "reviews"),
            ("Phil", "fill"),
        ];
        for (word, other) in pairs {
            assert_eq!(phonetic_key(word), phonetic_key(other), "{word} {other}");
        }
        assert_ne!(phonetic_key("Fordis"), phonetic_key("Cervus"));
        assert_eq!(phonetic_key("—"), "");
    }

    #[test]
    fn a_word_begins_and_ends_where_words_do() {
        let words = keywords(&["Kel"]);
        assert_eq!(gained(&words, &["s", "Kel", "."]), [0.0; 3], "inside another word");
        assert_eq!(gained(&words, &["s", ".", "Kel", "."])[3], FIRST_GAIN);
        assert_eq!(gained(&words, &["é", "Kel", "."])[2], FIRST_GAIN, "scripts without spaces");
        assert_eq!(gained(&words, &[" Kel", "vin"]), [FIRST_GAIN, 0.0], "a longer word");
        assert_eq!(gained(&words, &[" ", "Kel", " Kel", ""])[3], 4.0 * GAIN_PER_BYTE + FIRST_GAIN);
    }

    #[test]
    fn the_end_of_one_phrase_may_begin_another() {
        let words = keywords(&["New  York Mets", "York Town", " "]);
        let gains = gained(&words, &[" New", " York", " Town", "."]);
        assert_eq!(gains[1], FIRST_GAIN + 5.0 * GAIN_PER_BYTE);
        assert_eq!(gains[3], FIRST_GAIN, "only what follows the end is sure of the other");
        assert!(Keywords::new(&[" ".to_owned()], &tokens(&TEXTS)).is_none());
    }

    #[test]
    fn only_what_is_nearly_as_likely_is_raised() {
        let words = keywords(&["Kelvora"]);
        let raised = |place, set: &[(&str, f32)]| {
            let mut logits = vec![-20.0; TEXTS.len()];
            set.iter().for_each(|(text, logit)| logits[id(text) as usize] = *logit);
            let before = logits.clone();
            words.raise(place, &mut logits);
            let changed =
                logits.iter().zip(before).enumerate().filter(|(_, (after, before))| *after != before);
            changed.map(|(at, _)| TEXTS[at]).collect::<Vec<_>>()
        };
        let start = Place::default();
        assert_eq!(raised(start, &[(" New", 0.0), (" Kel", 0.1 - FIRST_MARGIN)]), [" Kel"]);
        assert_eq!(raised(start, &[(" New", 0.0), (" Kel", -0.1 - FIRST_MARGIN)]), [""; 0]);
        assert_eq!(raised(start, &[("", 0.0), (" Kel", -0.1)]), [""; 0], "nothing is heard");
        let inside = words.score(start, id(" Kel"), 0.0).1;
        assert_eq!(raised(inside, &[("vin", 0.0), ("vora", 0.1 - MARGIN)]), ["vora"]);
        assert_eq!(raised(inside, &[("vin", 0.0), ("vora", -0.1 - MARGIN)]), [""; 0]);
        // A word that was begun far behind gains nothing later.
        let far = words.score(start, id(" Kel"), 2.0 * MARGIN);
        assert_eq!((far.0, words.score(far.1, id("vora"), 0.0).0), (0.0, 0.0));
    }

    proptest! {
        #[test]
        fn a_text_without_the_words_ends_as_it_began(
            words in prop::collection::vec("[ab]{1,4}( [ab]{1,3})?", 1..6),
            texts in prop::collection::vec("[ab .]{1,3}", 1..12),
        ) {
            let mut vocabulary: Vec<&str> = texts.iter().map(String::as_str).collect();
            vocabulary.sort_unstable();
            vocabulary.dedup();
            vocabulary.push("");
            let trie = Keywords::new(&words, &tokens(&vocabulary)).unwrap();
            let (mut place, mut sum) = (Place::default(), 0.0);
            for text in texts.iter().map(String::as_str).chain([""]) {
                let token = vocabulary.iter().position(|own| *own == text).unwrap() as u32;
                let (change, next) = trie.score(place, token, 0.0);
                (place, sum) = (next, sum + change);
                prop_assert!(sum > -1e-3, "{sum} after '{text}'");
            }
            let text = texts.concat().replace('.', " . ");
            let text = format!(" {text} ");
            if !words.iter().any(|word| text.contains(&format!(" {word} "))) {
                prop_assert!(sum.abs() < 1e-3, "{sum}");
            }
        }
    }
}
