//! Spoken commands of dictation: punctuation, brackets, quotes, new lines.
//!
//! Models write a command as a word among others, often between marks of their own (`Hello, comma, world.`). Those marks go
//! with it. A word is no command behind an article or a number, or before a word such as `of`: `a period of time`.

use std::collections::VecDeque;

use super::cursor::{around, bare};
use super::said::Said;

/// How a command changes the case of the next word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    /// A sentence begins with it.
    Sentence,
    /// A sentence continues with it: a capital that the model wrote after a full stop of its own goes.
    Clause,
    /// As it was before the command.
    Same,
}

/// A command.
#[derive(Debug, PartialEq)]
struct Command {
    phrase: &'static [&'static str],
    /// With a space before it unless it joins the word before.
    text: &'static str,
    /// Whether the next word joins it.
    joins: bool,
    next: Next,
}

const fn mark(phrase: &'static [&'static str], text: &'static str) -> Command {
    let next = if matches!(text.as_bytes(), b"." | b"?" | b"!") { Next::Sentence } else { Next::Clause };
    Command { phrase, text, joins: false, next }
}

const fn lines(phrase: &'static [&'static str], text: &'static str) -> Command {
    Command { phrase, text, joins: true, next: Next::Sentence }
}

const fn open(phrase: &'static [&'static str], text: &'static str) -> Command {
    Command { phrase, text, joins: true, next: Next::Same }
}

const fn close(phrase: &'static [&'static str], text: &'static str) -> Command {
    Command { phrase, text, joins: false, next: Next::Same }
}

/// The commands of a language.
#[derive(Debug)]
struct Table {
    language: &'static str,
    commands: &'static [Command],
    /// Words behind which a command is a word like any other.
    before: &'static [&'static str],
    /// Words before which it is.
    after: &'static [&'static str],
    /// Whether nouns have capitals, so that a capital says nothing.
    has_capital_nouns: bool,
    /// Whether a command stands in decimals, as in `3 Komma 5`.
    says_decimals: bool,
}

const TABLES: [Table; 4] = [
    Table {
        language: "en",
        commands: &[
            lines(&["new", "paragraph"], "\n\n"),
            lines(&["new", "line"], "\n"),
            lines(&["newline"], "\n"),
            mark(&["comma"], ","),
            mark(&["full", "stop"], "."),
            mark(&["period"], "."),
            mark(&["question", "mark"], "?"),
            mark(&["exclamation", "mark"], "!"),
            mark(&["exclamation", "point"], "!"),
            mark(&["semicolon"], ";"),
            mark(&["colon"], ":"),
            open(&["open", "quote"], " \""),
            open(&["open", "quotes"], " \""),
            close(&["close", "quote"], "\""),
            close(&["close", "quotes"], "\""),
            open(&["open", "bracket"], " ("),
            open(&["open", "parenthesis"], " ("),
            close(&["close", "bracket"], ")"),
            close(&["close", "parenthesis"], ")"),
            mark(&["dash"], " –"),
            open(&["hyphen"], "-"),
        ],
        before: &[
            "a", "an", "the", "this", "that", "these", "those", "my", "your", "his", "her", "its", "our",
            "their", "some", "any", "each", "every", "what", "which", "first", "last", "next", "same",
            "another", "of", "with", "without", "word",
        ],
        after: &["of", "is", "was", "are", "were", "has", "had", "between"],
        has_capital_nouns: false,
        says_decimals: false,
    },
    Table {
        language: "de",
        commands: &[
            lines(&["neuer", "absatz"], "\n\n"),
            lines(&["neue", "zeile"], "\n"),
            mark(&["komma"], ","),
            mark(&["punkt"], "."),
            mark(&["fragezeichen"], "?"),
            mark(&["ausrufezeichen"], "!"),
            mark(&["semikolon"], ";"),
            mark(&["strichpunkt"], ";"),
            mark(&["doppelpunkt"], ":"),
            open(&["anführungszeichen", "auf"], " „"),
            close(&["anführungszeichen", "zu"], "“"),
            open(&["klammer", "auf"], " ("),
            close(&["klammer", "zu"], ")"),
            mark(&["gedankenstrich"], " –"),
            open(&["bindestrich"], "-"),
        ],
        before: &[
            "ein", "eine", "einen", "einem", "einer", "eines", "der", "die", "das", "den", "dem", "des",
            "dieser", "diese", "diesen", "diesem", "dieses", "jeder", "jede", "jeden", "kein", "keine",
            "keinen", "mein", "meine", "meinen", "ihr", "sein", "am", "im", "zum", "auf", "mit", "ohne",
            "wort", "null", "eins", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun",
            "zehn", "elf", "zwölf",
        ],
        after: &["ist", "war", "sind", "null", "eins"],
        has_capital_nouns: true,
        says_decimals: true,
    },
    Table {
        language: "fr",
        commands: &[
            lines(&["nouveau", "paragraphe"], "\n\n"),
            lines(&["à", "la", "ligne"], "\n"),
            lines(&["nouvelle", "ligne"], "\n"),
            mark(&["virgule"], ","),
            mark(&["point", "d'interrogation"], " ?"),
            mark(&["point", "d'exclamation"], " !"),
            mark(&["point", "virgule"], " ;"),
            mark(&["point-virgule"], " ;"),
            mark(&["deux", "points"], " :"),
            mark(&["point"], "."),
            open(&["ouvrez", "les", "guillemets"], " « "),
            close(&["fermez", "les", "guillemets"], " »"),
            open(&["ouvrez", "la", "parenthèse"], " ("),
            close(&["fermez", "la", "parenthèse"], ")"),
            mark(&["tiret"], " –"),
            open(&["trait", "d'union"], "-"),
        ],
        before: &[
            "un", "une", "le", "la", "les", "ce", "cet", "cette", "ces", "du", "des", "de", "au", "aux",
            "mon", "ma", "ton", "ta", "son", "sa", "notre", "votre", "leur", "chaque", "aucun", "quel",
            "premier", "dernier", "même", "autre", "mot", "zéro", "deux", "trois", "quatre", "cinq", "six",
            "sept", "huit", "neuf", "dix", "à", "ne", "n'est",
        ],
        after: &["de", "du", "des", "est", "était", "sont", "zéro", "un", "cinq"],
        has_capital_nouns: false,
        says_decimals: true,
    },
    Table {
        language: "es",
        commands: &[
            lines(&["nuevo", "párrafo"], "\n\n"),
            lines(&["punto", "y", "aparte"], ".\n\n"),
            lines(&["nueva", "línea"], "\n"),
            mark(&["coma"], ","),
            mark(&["punto", "y", "coma"], ";"),
            mark(&["dos", "puntos"], ":"),
            mark(&["punto"], "."),
            open(&["abrir", "interrogación"], " ¿"),
            mark(&["cerrar", "interrogación"], "?"),
            open(&["abrir", "exclamación"], " ¡"),
            mark(&["cerrar", "exclamación"], "!"),
            open(&["abrir", "comillas"], " \""),
            close(&["cerrar", "comillas"], "\""),
            open(&["abrir", "paréntesis"], " ("),
            close(&["cerrar", "paréntesis"], ")"),
            mark(&["raya"], " –"),
            open(&["guion"], "-"),
            open(&["guión"], "-"),
        ],
        before: &[
            "un", "una", "el", "la", "los", "las", "este", "esta", "ese", "esa", "aquel", "cada", "ningún",
            "mi", "tu", "su", "nuestro", "al", "del", "de", "en", "a", "qué", "primer", "último", "mismo",
            "otro", "palabra", "cero", "dos", "tres", "cuatro", "cinco", "seis", "siete", "ocho", "nueve",
            "diez", "que",
        ],
        after: &["de", "del", "es", "era", "son", "cero", "uno", "cinco"],
        has_capital_nouns: false,
        says_decimals: true,
    },
];

/// The marks that models add between words.
const MARKS: [char; 7] = [',', '.', ';', ':', '?', '!', '…'];

/// Whether a command begins at a word.
enum Found {
    No,
    /// It depends on words that have not come.
    Wait,
    Yes {
        command: &'static Command,
        /// Its words, and marks alone behind them.
        words: usize,
    },
}

/// Carries out the commands among words that come.
#[derive(Debug, Clone)]
pub(super) struct Commands<W> {
    table: Option<&'static Table>,
    waiting: VecDeque<W>,
    /// The word before them, bare and in lower case; empty after a mark.
    before: String,
    /// Whether the next word joins a command.
    joins: bool,
    next: Next,
    /// Whether the model has ended a sentence where a command continues one.
    has_ended: bool,
}

impl<W> Default for Commands<W> {
    fn default() -> Self {
        Self {
            table: None,
            waiting: VecDeque::new(),
            before: String::new(),
            joins: false,
            next: Next::Same,
            has_ended: false,
        }
    }
}

/// Whether a word is marks alone that join the word before.
fn is_mark(word: &str) -> bool {
    !word.starts_with(char::is_whitespace) && !word.is_empty() && bare(word).is_empty()
}

/// Whether marks end a sentence.
fn ends_sentence(marks: &str) -> bool {
    marks.contains(['.', '?', '!', '…'])
}

impl<W: Said> Commands<W> {
    /// Takes a word, in a language that may have commands.
    pub(super) fn push(&mut self, word: W, language: Option<&str>) {
        self.table = TABLES.iter().find(|table| Some(table.language) == language);
        self.waiting.push_back(word);
    }

    pub(super) fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// The next words, whose commands are carried out; `None` if what they become depends on words that have not come, or
    /// there are none.
    pub(super) fn next(&mut self, ends: bool) -> Option<Vec<W>> {
        let text = self.waiting.front()?.text().to_owned();
        let Some(table) = self.table else { return Some(self.waiting.drain(..).collect()) };
        match self.command(table, 0, &self.before, ends) {
            Found::Wait => return None,
            Found::Yes { command, words } => return Some(self.carry_out(command, words)),
            Found::No => {}
        }
        // Of a word, or marks alone, the marks go that belong to a command behind it.
        let marks = if is_mark(&text) { &text } else { around(&text).1 };
        let follows = if marks.is_empty() { Found::No } else { self.command(table, 1, "", ends) };
        let (mut kept, mut has_ended) = (marks.to_owned(), false);
        match follows {
            Found::Wait => return None,
            Found::Yes { command, .. } => {
                has_ended = ends_sentence(marks);
                kept.retain(|c| !MARKS.contains(&c) || command.text.contains('\n') && c != ',');
            }
            Found::No => {}
        }
        let written = format!("{}{kept}", &text[..text.len() - marks.len()]);
        let key = bare(&text).to_lowercase();
        let written = self.joined(written, table);
        self.has_ended |= has_ended;
        self.before = if marks.is_empty() { key } else { String::new() };
        let word = self.waiting.pop_front()?;
        if written.is_empty() {
            return Some(Vec::new());
        }
        Some(vec![if written == word.text() { word } else { W::merged(&[word], written) }])
    }

    /// The command that begins at a word, behind the word `before`.
    fn command(&self, table: &'static Table, at: usize, before: &str, ends: bool) -> Found {
        let word = |n: usize| self.waiting.get(at + n).map(W::text);
        let is_decimal = table.says_decimals && before.ends_with(|c: char| c.is_ascii_digit());
        if is_decimal || table.before.contains(&before) {
            return Found::No;
        }
        for command in table.commands {
            let last = command.phrase.len() - 1;
            let mut matched = 0;
            for (n, phrase) in command.phrase.iter().enumerate() {
                let Some(text) = word(n) else {
                    if ends || n == 0 {
                        break;
                    }
                    return Found::Wait;
                };
                let is_whole = n == last || around(text).1.is_empty();
                let is_apart = n == 0 || text.starts_with(char::is_whitespace);
                if !is_whole || !is_apart || bare(text).to_lowercase() != *phrase {
                    break;
                }
                matched += 1;
            }
            if matched <= last {
                continue;
            }
            if word(last).is_some_and(|text| !around(text).1.is_empty()) {
                return Found::Yes { command, words: matched };
            }
            return match word(matched) {
                None if !ends => Found::Wait,
                Some(text) if is_mark(text) => Found::Yes { command, words: matched + 1 },
                Some(text) if table.after.contains(&bare(text).to_lowercase().as_str()) => Found::No,
                _ => Found::Yes { command, words: matched },
            };
        }
        // The first word of a longer phrase than has come.
        if word(0).is_none() && !ends { Found::Wait } else { Found::No }
    }

    /// Puts a command in place of its words.
    fn carry_out(&mut self, command: &'static Command, words: usize) -> Vec<W> {
        let said: Vec<W> = self.waiting.drain(..words).collect();
        let marks: String =
            said.iter().map(|word| around(word.text()).1.to_owned() + mark_of(word.text())).collect();
        self.has_ended |= ends_sentence(&marks);
        let text = if self.joins { command.text.trim_start_matches(' ') } else { command.text };
        self.joins = command.joins;
        if command.next != Next::Same {
            self.next = command.next;
        }
        self.before.clear();
        vec![W::merged(&said, text.to_owned())]
    }

    /// A word as it is behind the last command.
    fn joined(&mut self, word: String, table: &Table) -> String {
        if bare(&word).is_empty() {
            return word;
        }
        let has_ended = std::mem::take(&mut self.has_ended);
        let joins = std::mem::take(&mut self.joins);
        let word = if joins { word.trim_start().to_owned() } else { word };
        let first = bare(&word);
        let is_pronoun = first == "I" || first.starts_with("I'");
        match std::mem::replace(&mut self.next, Next::Same) {
            Next::Sentence => with_case(&word, |c| c.to_uppercase().collect()),
            Next::Clause if has_ended && !table.has_capital_nouns && !is_pronoun => {
                with_case(&word, |c| c.to_lowercase().collect())
            }
            Next::Clause | Next::Same => word,
        }
    }
}

/// Marks alone.
fn mark_of(word: &str) -> &str {
    if is_mark(word) { word } else { "" }
}

/// A word with the case of its first letter changed.
fn with_case(word: &str, change: impl Fn(char) -> String) -> String {
    let Some((at, first)) = word.char_indices().find(|(_, c)| c.is_alphanumeric()) else {
        return word.to_owned();
    };
    format!("{}{}{}", &word[..at], change(first), &word[at + first.len_utf8()..])
}
