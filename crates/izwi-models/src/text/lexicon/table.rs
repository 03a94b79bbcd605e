//! Lexicons as a table: a line for each word.

use izwi_types::{Lexicon, LexiconEntry};

/// Reads lines such as `nginx = engine x`, `Izwi = /ˈiːzwi/` and `GIF = /dʒɪf/ = jiff`; a tab may stand for `=`, and `#` begins a
/// line that is a remark.
pub(super) fn read(text: &str) -> Result<Lexicon, String> {
    let mut entries = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let mut columns = line.split(['=', '\t']).map(str::trim);
        let word = columns.next().unwrap_or_default();
        let mut entry = LexiconEntry { word: word.to_owned(), ..LexiconEntry::default() };
        for column in columns.filter(|column| !column.is_empty()) {
            let sounds = column.strip_prefix('/').and_then(|column| column.strip_suffix('/'));
            let place = if sounds.is_some() { &mut entry.ipa } else { &mut entry.alias };
            if place.replace(sounds.unwrap_or(column).to_owned()).is_some() {
                let word = izwi_types::excerpt(word);
                return Err(format!(
                    "line {number} of the lexicon says '{word}' twice; write another line for it"
                ));
            }
        }
        if word.is_empty() || (entry.ipa.is_none() && entry.alias.is_none()) {
            let line = izwi_types::excerpt(line);
            return Err(format!(
                "line {number} of the lexicon, '{line}', is no entry; write 'word = other words' or 'word = /ipa/'"
            ));
        }
        entries.push(entry);
    }
    Ok(Lexicon { language: None, entries })
}
