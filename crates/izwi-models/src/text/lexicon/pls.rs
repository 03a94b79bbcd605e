//! W3C Pronunciation Lexicon Specification 1.0: <https://www.w3.org/TR/pronunciation-lexicon/>.

use std::fmt::Write as _;

use izwi_types::{Lexicon, LexiconEntry, excerpt};
use roxmltree::{Document, Node, ParsingOptions};

use super::ipa_of;

/// The most nodes of a document.
const MAX_NODES: u32 = 500_000;

/// Reads a document. Every grapheme of a lexeme is an entry, with the preferred or first phoneme and alias.
pub(super) fn read(text: &str) -> Result<Lexicon, String> {
    let options = ParsingOptions { nodes_limit: MAX_NODES, ..ParsingOptions::default() };
    let document = Document::parse_with_options(text, options)
        .map_err(|error| format!("the lexicon is no XML: {error}"))?;
    let root = document.root_element();
    if root.tag_name().name() != "lexicon" {
        let name = excerpt(root.tag_name().name());
        return Err(format!("the document is a '{name}'; it must be a 'lexicon' of PLS"));
    }
    let mut entries = Vec::new();
    for lexeme in children(root, "lexeme") {
        let line = document.text_pos_at(lexeme.range().start).row;
        let at = |message: String| format!("line {line} of the lexicon: {message}");
        let alias = preferred(lexeme, "alias").and_then(content);
        let ipa =
            preferred(lexeme, "phoneme").map(|phoneme| sounds(root, phoneme)).transpose().map_err(at)?;
        let words: Vec<String> = children(lexeme, "grapheme").filter_map(content).collect();
        if words.is_empty() {
            return Err(at("the lexeme has no grapheme; add one".to_owned()));
        }
        entries.extend(words.into_iter().map(|word| LexiconEntry {
            word,
            ipa: ipa.clone(),
            alias: alias.clone(),
            case_sensitive: None,
        }));
    }
    let language = root.attribute(("http://www.w3.org/XML/1998/namespace", "lang"));
    Ok(Lexicon { language: language.map(str::to_owned), entries })
}

fn children<'a>(parent: Node<'a, 'a>, name: &'static str) -> impl Iterator<Item = Node<'a, 'a>> {
    parent.children().filter(move |child| child.tag_name().name() == name)
}

/// The child of this name that is preferred, or the first.
fn preferred<'a>(lexeme: Node<'a, 'a>, name: &'static str) -> Option<Node<'a, 'a>> {
    let is_preferred = |child: &Node<'_, '_>| child.attribute("prefer") == Some("true");
    children(lexeme, name).find(is_preferred).or_else(|| children(lexeme, name).next())
}

/// The text of an element; `None` without one.
fn content(node: Node<'_, '_>) -> Option<String> {
    let text = node.text()?.split_whitespace().collect::<Vec<_>>().join(" ");
    Some(text).filter(|text| !text.is_empty())
}

/// The sounds of a phoneme, in IPA.
fn sounds(root: Node<'_, '_>, phoneme: Node<'_, '_>) -> Result<String, String> {
    let written = content(phoneme).unwrap_or_default();
    ipa_of(phoneme.attribute("alphabet").or(root.attribute("alphabet")).unwrap_or("ipa"), &written)
}

/// A lexicon as a document.
pub fn to_pls(lexicon: &Lexicon) -> String {
    let language = lexicon.language.as_ref().map(|tag| format!(" xml:lang=\"{}\"", escaped(tag)));
    let mut document = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<lexicon version=\"1.0\" xmlns=\"http://www.w3.org/2005/01/pronunciation-lexicon\" \
         alphabet=\"ipa\"{}>\n",
        language.unwrap_or_default()
    );
    for LexiconEntry { word, ipa, alias, .. } in &lexicon.entries {
        let mut lexeme = format!("  <lexeme><grapheme>{}</grapheme>", escaped(word));
        for (name, said) in [("phoneme", ipa), ("alias", alias)] {
            if let Some(said) = said {
                // Writing to a string cannot fail.
                let _ = write!(lexeme, "<{name}>{}</{name}>", escaped(said));
            }
        }
        document += &(lexeme + "</lexeme>\n");
    }
    document + "</lexicon>\n"
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLS: &str = r#"<?xml version="1.0" encoding="UTF-8"?>
<lexicon version="1.0" xmlns="http://www.w3.org/2005/01/pronunciation-lexicon" alphabet="ipa" xml:lang="en-US">
  <lexeme>
    <grapheme>tomato</grapheme><grapheme>Tomato &amp; Co</grapheme>
    <phoneme>təˈmeɪtoʊ</phoneme><phoneme prefer="true">təˈmɑːtoʊ</phoneme>
    <example>not read</example>
  </lexeme>
  <lexeme><grapheme> W3C </grapheme><alias>World Wide Web
    Consortium</alias></lexeme>
  <lexeme><grapheme>chicken</grapheme><phoneme alphabet="x-sampa">"tSIk@n</phoneme></lexeme>
</lexicon>"#;

    #[test]
    fn documents_are_read_and_written() {
        let lexicon = read(PLS).unwrap();
        assert_eq!(lexicon.language.as_deref(), Some("en-US"));
        let told: Vec<_> = lexicon
            .entries
            .iter()
            .map(|entry| (&*entry.word, entry.ipa.as_deref().or(entry.alias.as_deref()).unwrap()))
            .collect();
        assert_eq!(
            told,
            [
                ("tomato", "təˈmɑːtoʊ"),
                ("Tomato & Co", "təˈmɑːtoʊ"),
                ("W3C", "World Wide Web Consortium"),
                ("chicken", "ˈtʃɪkən"),
            ]
        );
        assert_eq!(read(&to_pls(&lexicon)).unwrap(), lexicon);
    }

    #[test]
    fn other_documents_are_refused() {
        let bomb =
            "<!DOCTYPE l [<!ENTITY a \"aa\">]><lexicon><lexeme><grapheme>&a;</grapheme></lexeme></lexicon>";
        for (text, expected) in [
            ("<lexicon>", "no XML"),
            ("<speak/>", "a 'speak'"),
            (bomb, "no XML"),
            (
                "<lexicon>\n<lexeme><alias>a</alias></lexeme></lexicon>",
                "line 2 of the lexicon: the lexeme has no grapheme",
            ),
            (
                "<lexicon><lexeme><grapheme>a</grapheme><phoneme alphabet='maru'>AH</phoneme></lexeme></lexicon>",
                "alphabet 'maru'",
            ),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }
}
