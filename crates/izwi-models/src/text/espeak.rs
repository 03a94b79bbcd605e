//! Phonemes of other languages by the external program eSpeak NG, which is never linked: its licence is GPL-3.0.
//!
//! Owns what is written to the program and how its symbols become those of misaki 0.9.4 (`EspeakG2P`). Knows no vocabulary.

use std::ffi::{OsStr, OsString};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use super::alignment::spoken_ends;
use super::front_end::{FrontEnd, FrontEndError};
use super::markup::Markup;
use super::sentences;
use super::units::Sentence;
use izwi_nn::Error;
use izwi_types::excerpt;

const PROGRAM: &str = "espeak-ng";
const REMEDY: &str = "apt install espeak-ng, brew install espeak-ng, winget install eSpeak-NG.eSpeak-NG";
/// Code, English name and the program's voice of each language.
const LANGUAGES: [(&str, &str, &str); 5] = [
    ("es", "Spanish", "es"),
    ("fr", "French", "fr-fr"),
    ("hi", "Hindi", "hi"),
    ("it", "Italian", "it"),
    ("pt", "Portuguese", "pt-br"),
];
/// The most time of one call.
const TIME_LIMIT: Duration = Duration::from_secs(20);
/// How often a process is asked whether it has ended.
const POLL: Duration = Duration::from_millis(2);
/// The most bytes of a line: the program reads 1000, and cuts a clause of many sounds.
const MAX_LINE_BYTES: usize = 300;
/// Bytes of output for each byte of input that a program may give, and in any case.
const MAX_GROWTH: usize = 64;
const MIN_OUTPUT_BYTES: usize = 64 * 1024;
/// Marks that end a line and stay between the phonemes, as in misaki.
const MARKS: &[char] = &[
    ';', ':', ',', '.', '!', '?', '¡', '¿', '—', '…', '"', '«', '»', '“', '”', '(', ')', '{', '}', '[', ']',
    '।', '॥',
];
/// Quotes, which running text of other languages is spoken without, and brackets that no vocabulary has.
const SILENT: &[char] = &['"', '«', '»', '“', '”', '{', '}', '[', ']'];
/// What the program takes for its own within a line.
const OWN: &[char] = &['[', ']', '<', '>', '|'];
/// Two symbols tied together, and the one that misaki has for them.
const SINGLE: [(&str, &str); 11] = [
    ("a^ɪ", "I"),
    ("a^ʊ", "W"),
    ("d^z", "ʣ"),
    ("d^ʒ", "ʤ"),
    ("e^ɪ", "A"),
    ("o^ʊ", "O"),
    ("ə^ʊ", "Q"),
    ("s^s", "S"),
    ("t^s", "ʦ"),
    ("t^ʃ", "ʧ"),
    ("ɔ^ɪ", "Y"),
];

/// The front end of one language.
#[derive(Debug)]
pub(super) struct Espeak {
    code: &'static str,
    name: &'static str,
    voice: &'static str,
    /// Folders where the program may be.
    search: OsString,
    markup: Markup,
}

/// Some words between marks.
#[derive(Debug, Default, PartialEq, Eq)]
struct Clause {
    /// Marks before and after the words.
    marks: [String; 2],
    /// The words without marks at their ends.
    words: Vec<String>,
    /// The place of the last word among all of the text.
    last: usize,
}

impl Espeak {
    /// One for each language; `search` is the search path of programs, in which the program is looked for at each call.
    ///
    /// # Errors
    /// A rule for texts is faulty.
    pub(super) fn all(search: &OsStr) -> Result<Vec<Self>, Error> {
        let faulty = |_| Error::Internal("a text rule is not a regular expression");
        let make = |(code, name, voice)| {
            let markup = Markup::new().map_err(faulty)?;
            Ok(Self { code, name, voice, search: search.to_owned(), markup })
        };
        LANGUAGES.into_iter().map(make).collect()
    }

    /// ISO 639-1 code of the language.
    pub(super) fn code(&self) -> &'static str {
        self.code
    }

    /// The phonemes of each line of words.
    fn phonemes(&self, lines: &[String]) -> Result<Vec<String>, FrontEndError> {
        let program = find(PROGRAM, &self.search).ok_or(FrontEndError::NoProgram {
            language: self.name,
            program: PROGRAM,
            remedy: REMEDY,
        })?;
        let deadline = Instant::now() + TIME_LIMIT;
        // A blank line gives one, which parts the answers: words of a line may give several.
        let answer = self.run(&program, &lines.join("\n\n"), deadline)?;
        let answers: Vec<String> = answer.split("\n\n").map(misaki).collect();
        if answers.len() == lines.len() {
            return Ok(answers);
        }
        lines.iter().map(|line| Ok(misaki(&self.run(&program, line, deadline)?))).collect()
    }

    /// What the program prints for some lines.
    fn run(&self, program: &Path, lines: &str, deadline: Instant) -> Result<String, FrontEndError> {
        let fault =
            |message: String| FrontEndError::Program { program: program.display().to_string(), message };
        let mut command = Command::new(program);
        command.args(["-q", "--ipa", "--tie=^", "-b", "1", "-v", self.voice]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        if let Some(folder) = program.parent() {
            command.current_dir(folder);
        }
        for (name, _) in std::env::vars_os() {
            let is_secret = |name: &str| name.starts_with("IZWI_") || name.starts_with("HF_");
            if name.to_str().is_some_and(is_secret) {
                command.env_remove(name);
            }
        }
        let mut child = command.spawn().map_err(|error| fault(error.to_string()))?;
        let most = (lines.len() * MAX_GROWTH).max(MIN_OUTPUT_BYTES);
        let (input, output) = (child.stdin.take(), child.stdout.take());
        let lines = format!("{lines}\n");
        // A program that ends early reads no more. Neither thread is waited for: a process that the program has left
        // after may keep both ends open.
        std::thread::spawn(move || input.map(|mut input| input.write_all(lines.as_bytes())));
        let (sender, receiver) = mpsc::channel();
        std::thread::spawn(move || {
            let mut bytes = Vec::new();
            let read = output.map(|output| output.take(most as u64 + 1).read_to_end(&mut bytes));
            sender.send(read.transpose().map(|_| bytes))
        });
        let late = || fault(format!("it did not end within {} s", TIME_LIMIT.as_secs()));
        let read = receiver.recv_timeout(deadline.saturating_duration_since(Instant::now()));
        let is_whole = matches!(&read, Ok(Ok(bytes)) if bytes.len() <= most);
        let ended =
            end(&mut child, is_whole.then_some(deadline)).map_err(|error| fault(error.to_string()))?;
        let bytes = read.map_err(|_| late())?.map_err(|error| fault(error.to_string()))?;
        if !is_whole {
            return Err(fault(format!("it printed more than {most} bytes")));
        }
        let status = ended.ok_or_else(late)?;
        if !status.success() {
            let printed = excerpt(String::from_utf8_lossy(&bytes).trim());
            return Err(fault(format!("{status}: {printed}")));
        }
        String::from_utf8(bytes).map_err(|_| fault("it printed other bytes than UTF-8".to_owned()))
    }
}

/// Waits until the process ends or the deadline is reached, if there is one, and kills it; `None` if it was killed.
fn end(child: &mut Child, deadline: Option<Instant>) -> io::Result<Option<ExitStatus>> {
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if deadline.is_none_or(|deadline| Instant::now() >= deadline) {
            child.kill()?;
            child.wait()?;
            return Ok(None);
        }
        std::thread::sleep(POLL);
    }
}

/// The program of this name in the absolute folders of a search path: others mean the working folder.
fn find(name: &str, search: &OsStr) -> Option<PathBuf> {
    let name = format!("{name}{}", std::env::consts::EXE_SUFFIX);
    let mut places = std::env::split_paths(search).filter(|folder| folder.is_absolute());
    places.find_map(|folder| Some(folder.join(&name)).filter(|path| path.is_file()))
}

/// The program's answer for a line in misaki's alphabet.
fn misaki(answer: &str) -> String {
    let mut phonemes = String::with_capacity(answer.len());
    // Words of another language are in the symbols of that one, between its names: `(en)hello(fr)`.
    let mut depth = 0_usize;
    for symbol in answer.chars() {
        match symbol {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            _ if depth == 0 => phonemes.push(symbol),
            _ => {}
        }
    }
    for (tied, single) in SINGLE {
        phonemes = phonemes.replace(tied, single);
    }
    phonemes.retain(|symbol| symbol != '^' && symbol != '-');
    phonemes.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Cuts a sentence at marks and at the limit of a line; `first` is the place of its first word.
fn clauses(sentence: &str, first: usize) -> Vec<Clause> {
    let mut clauses: Vec<Clause> = Vec::new();
    let mut open = Clause::default();
    for (at, word) in sentence.split_whitespace().enumerate() {
        let spoken = word.trim_start_matches(MARKS);
        let before = &word[..word.len() - spoken.len()];
        let core = spoken.trim_end_matches(MARKS);
        let behind = &spoken[core.len()..];
        if core.is_empty() {
            clauses.push(std::mem::take(&mut open));
            let marks = [before.to_owned(), String::new()];
            clauses.push(Clause { marks, words: Vec::new(), last: first + at });
            continue;
        }
        let core: String = core.chars().filter(|c| !OWN.contains(c) && !c.is_control()).collect();
        let length: usize = open.words.iter().map(|word| word.len() + 1).sum();
        let is_full = !open.words.is_empty() && length + core.len() > MAX_LINE_BYTES;
        if !before.is_empty() || is_full {
            clauses.push(std::mem::take(&mut open));
            open.marks[0] = before.to_owned();
        }
        open.last = first + at;
        if core.chars().any(char::is_alphanumeric) {
            open.words.push(cut(core));
        }
        if !behind.is_empty() {
            open.marks[1] = behind.to_owned();
            clauses.push(std::mem::take(&mut open));
        }
    }
    clauses.push(open);
    clauses.retain(|Clause { marks: [before, behind], words, .. }| {
        !(before.is_empty() && behind.is_empty() && words.is_empty())
    });
    clauses
}

/// A word that fits into a line.
fn cut(mut word: String) -> String {
    let end = (0..=word.len().min(MAX_LINE_BYTES)).rev().find(|&end| word.is_char_boundary(end));
    word.truncate(end.unwrap_or(0));
    word
}

/// The marks that a network may have learned.
fn marks(marks: &str) -> String {
    let known = marks.chars().filter(|mark| !SILENT.contains(mark));
    known.map(|mark| if matches!(mark, '।' | '॥') { '.' } else { mark }).collect()
}

impl FrontEnd for Espeak {
    /// Where the program makes more or fewer words of a clause than there are, these share its text evenly.
    fn sentences(&self, text: &str) -> Result<Vec<Sentence>, FrontEndError> {
        let plain = self.markup.strip(text);
        // The danda ends a sentence of Hindi.
        let plain = plain.replace('।', "।\n");
        let written: Vec<&str> = plain.split_whitespace().collect();
        let ends = spoken_ends(text, &written);
        let mut first = 0;
        let sentences: Vec<Vec<Clause>> = sentences::split(&plain)
            .into_iter()
            .map(|sentence| {
                let clauses = clauses(sentence, first);
                first += sentence.split_whitespace().count();
                clauses
            })
            .collect();
        let spoken = sentences.iter().flatten().filter(|clause| !clause.words.is_empty());
        let lines: Vec<String> = spoken.map(|clause| clause.words.join(" ")).collect();
        let answers = if lines.is_empty() { Vec::new() } else { self.phonemes(&lines)? };
        let mut answers = answers.into_iter();
        let mut sentence = |clauses: &Vec<Clause>| {
            let mut made = Sentence { phonemes: String::new(), said: Vec::new() };
            for clause in clauses {
                let phonemes =
                    if clause.words.is_empty() { String::new() } else { answers.next().unwrap_or_default() };
                let count = phonemes.split(' ').count();
                let spoken = format!("{}{phonemes}{}", marks(&clause.marks[0]), marks(&clause.marks[1]));
                if spoken.is_empty() {
                    continue;
                }
                if !made.phonemes.is_empty() {
                    made.phonemes.push(' ');
                }
                made.phonemes.push_str(&spoken);
                let words = clause.words.len().max(1);
                let end = |at: usize| {
                    let behind = words - ((at + 1) * words).div_ceil(count).max(1);
                    ends.get(clause.last.saturating_sub(behind)).copied().unwrap_or(text.len())
                };
                made.said.extend((0..count).map(end));
            }
            made
        };
        Ok(sentences.iter().map(&mut sentence).collect())
    }

    fn own_symbols(&self, phonemes: &str) -> String {
        phonemes.to_owned()
    }

    fn unspoken(&self, _text: &str) -> String {
        String::new()
    }
}

#[cfg(test)]
mod tests;
