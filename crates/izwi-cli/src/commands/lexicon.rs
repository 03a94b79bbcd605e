//! `izwi lexicon`: how words are said.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use clap::{Subcommand, ValueHint};
use izwi_core::engine::{lexicon_as_pls, read_lexicon};
use izwi_hub::{SavedError, SavedLexicon, Store};
use izwi_types::{excerpt, languages};
use serde_json::json;

use crate::settings::Resolved;
use crate::{failure, logging, models, output};

/// The most bytes of a file.
const MAX_BYTES: u64 = 8 << 20;

/// Save lexicons: words, and how they are said
///
/// A lexicon has words and their sounds in IPA, or other words that are said in their place. It is used where speech names it (`izwi
/// say --lexicon`, `lexicons` of requests), and with `--always` or `--voice` where speech names none. A running server uses it at once.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: LexiconCommand,
}

#[derive(Debug, Subcommand)]
enum LexiconCommand {
    Add(Add),
    /// List saved lexicons
    #[command(visible_alias = "ls")]
    List {
        /// Print as JSON
        #[arg(long)]
        json: bool,
    },
    /// Print a lexicon as a document of W3C PLS
    Show {
        /// Name of the lexicon
        #[arg(value_name = "NAME")]
        name: String,
    },
    /// Remove saved lexicons
    #[command(visible_alias = "remove")]
    Rm {
        /// Lexicons, as `izwi lexicon list` shows them
        #[arg(required = true, value_name = "NAME")]
        names: Vec<String>,
    },
}

/// Save a lexicon
///
/// The file is a document of W3C PLS 1.0, or has a line for each word: `nginx = engine x`, `Izwi = /ˈiːzwi/`, or both for models that
/// take no sounds: `GIF = /dʒɪf/ = jiff`. A word with capital letters means these alone.
#[derive(Debug, clap::Args)]
// A group has the name of its type, and those of the command above are `Args` too.
#[group(id = "add")]
struct Add {
    /// Name of the lexicon: a-z, 0-9, '.', '_' and '-'
    #[arg(value_name = "NAME")]
    name: String,
    /// File with its words
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
    file: PathBuf,
    /// Language of the texts that it is for, as a BCP 47 tag [default: that of a PLS document, else all]
    #[arg(long, value_name = "TAG")]
    language: Option<String>,
    /// Use it for all texts
    #[arg(long, conflicts_with = "voices")]
    always: bool,
    /// Use it for texts that this voice speaks; several flags for several voices
    #[arg(long = "voice", value_name = "NAME")]
    voices: Vec<String>,
    /// Replace a lexicon of the same name
    #[arg(long)]
    replace: bool,
}

pub(crate) fn run(args: Args, resolved: &Resolved) -> Result<()> {
    logging::begin(&resolved.settings, "warn");
    let store = models::open(&resolved.settings)?;
    match args.command {
        LexiconCommand::Add(add) => add.run(&store),
        LexiconCommand::List { json } => list(&store, json),
        LexiconCommand::Show { name } => {
            output::print(&lexicon_as_pls(&store.lexicons().read(&name)?.lexicon))
        }
        LexiconCommand::Rm { names } => names.iter().try_for_each(|name| {
            store.lexicons().remove(name)?;
            output::print(&format!("{name} is removed\n"))
        }),
    }
}

impl Add {
    fn run(self, store: &Store) -> Result<()> {
        let Self { name, file, language, always, voices, replace } = self;
        let shown = file.display();
        let size = fs::metadata(&file).with_context(|| format!("cannot read {shown}"))?.len();
        if size > MAX_BYTES {
            let message = format!("{shown} has {size} bytes, and a lexicon has at most {MAX_BYTES}");
            return Err(failure::with_help(message, "split it into several lexicons"));
        }
        let text = fs::read_to_string(&file).with_context(|| format!("cannot read {shown}"))?;
        let mut lexicon = read_lexicon(&text).map_err(|error| {
            failure::with_help(
                format!("{shown}: {}", error.message),
                "`izwi lexicon add --help` shows the format",
            )
        })?;
        let tag = |language: String| {
            languages::tag_of(&language).ok_or_else(|| {
                failure::usage(
                    format!("the language '{}' is unknown", excerpt(&language)),
                    "give a code such as en or en-US, or a name such as English",
                )
            })
        };
        lexicon.language = language.or(lexicon.language).map(tag).transpose()?;
        let saved = SavedLexicon { always, voices, ..SavedLexicon::new(&name, lexicon) };
        let lexicons = store.lexicons();
        if replace { lexicons.replace(&saved) } else { lexicons.save(&saved) }.map_err(with_remedy)?;
        let words = saved.lexicon.entries.len();
        let used = match (always, saved.voices.is_empty()) {
            (true, _) => "all texts use it".to_owned(),
            (false, false) => format!("texts in the voice {} use it", saved.voices.join(", ")),
            (false, true) => format!("`izwi say --lexicon {name}` uses it"),
        };
        output::print(&format!(
            "{name} is saved, {words} {}; {used}\n",
            if words == 1 { "word" } else { "words" }
        ))
    }
}

fn list(store: &Store, json: bool) -> Result<()> {
    let lexicons = store.lexicons().list()?;
    if json {
        let shown = lexicons.iter().map(|saved| {
            json!({
                "name": saved.name,
                "language": saved.lexicon.language,
                "always": saved.always,
                "voices": saved.voices,
                "words": saved.lexicon.entries.len(),
            })
        });
        return output::print_json(&shown.collect::<Vec<_>>());
    }
    if lexicons.is_empty() {
        output::status("no lexicon is saved; `izwi lexicon add` saves one");
        return Ok(());
    }
    let mut rows = vec![["LEXICON", "WORDS", "LANGUAGE", "USED FOR"].map(str::to_owned)];
    rows.extend(lexicons.into_iter().map(|saved| {
        let used = match (saved.always, saved.voices.is_empty()) {
            (true, _) => "all texts".to_owned(),
            (false, false) => format!("voice {}", saved.voices.join(", ")),
            (false, true) => "texts that name it".to_owned(),
        };
        let language = saved.lexicon.language.unwrap_or_else(|| "all".to_owned());
        [saved.name, saved.lexicon.entries.len().to_string(), language, used]
    }));
    output::print(&output::format_columns(&rows))
}

/// Adds the flag that resolves the error.
fn with_remedy(error: SavedError) -> anyhow::Error {
    match error {
        SavedError::Exists { name, .. } => failure::with_help(
            format!("a lexicon '{name}' is saved already"),
            "add --replace to replace it, or choose another name",
        ),
        other => other.into(),
    }
}
