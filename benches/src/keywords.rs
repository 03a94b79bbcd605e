//! Keywords: invented names that a TTS model speaks, and how many of them an ASR model writes with and without them as keywords; how
//! many it writes where nobody says one.

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Parser;
use izwi_benches::clips;
use izwi_benches::engines;
use izwi_core::engine::{Engine, EngineCoreRequest, TranscriptionOptions};
use izwi_tests::Dice;
use izwi_tests::wer::{self, Score};

const TTS_MODEL: &str = "hibari";
/// Seed of the names and of the speech.
const SEED: u64 = 1;
const NAMES: usize = 100;
/// What names are made of.
const BEGINS: [&str; 24] = [
    "b", "br", "c", "cl", "d", "dr", "f", "fl", "g", "gr", "h", "j", "k", "l", "m", "n", "p", "qu", "r", "s",
    "st", "t", "v", "z",
];
const MIDDLES: [&str; 6] = ["a", "e", "i", "o", "u", "ee"];
const JOINTS: [&str; 12] = ["l", "nd", "rv", "m", "lb", "x", "st", "v", "rd", "mp", "n", "sk"];
const ENDS: [&str; 16] =
    ["a", "o", "on", "in", "ick", "el", "us", "ora", "ent", "any", "ard", "ix", "eth", "oni", "is", "ett"];
/// What is said with a name, and of real people with whom a name may be confused.
const SENTENCES: [&str; 10] = [
    "Please send the report to {} before Friday.",
    "Yesterday {} called about the broken window.",
    "We are meeting {} at the station after lunch.",
    "I asked {} to look at the numbers again.",
    "The new office of {} is next to the river.",
    "Nobody told {} that the train was late.",
    "Can you add {} to the list of guests?",
    "According to {}, the plan is ready.",
    "The doctor gave {} some medicine for the cough.",
    "My brother works with {} on the same project.",
];
const REAL: [&str; 30] = [
    "Kelly",
    "Brandon",
    "Martin",
    "Sandra",
    "Victor",
    "Steven",
    "Gordon",
    "Linda",
    "Melissa",
    "Henry",
    "Calvin",
    "Denise",
    "Felix",
    "Grandpa",
    "Harold",
    "Jennifer",
    "Kevin",
    "Leonard",
    "Monica",
    "Norman",
    "Patrick",
    "Quentin",
    "Robert",
    "Sullivan",
    "Stella",
    "Trevor",
    "Valentine",
    "Zachary",
    "Boston",
    "Florida",
];

/// Scores keywords.
#[derive(Debug, Parser)]
struct Args {
    /// ASR model.
    #[arg(long, default_value = "whisper-base")]
    model: String,
    /// Texts that are continued side by side; the model's own number without it.
    #[arg(long)]
    beam_size: Option<u64>,
    /// Compute threads.
    #[arg(long, default_value_t = 2)]
    threads: usize,
    /// Folder that keeps the generated speech for the next run.
    #[arg(long)]
    speech: Option<PathBuf>,
    /// Only this way to give the names.
    #[arg(long)]
    only: Option<String>,
    /// Show what is written in place of names, and names that nobody says.
    #[arg(long)]
    errors: bool,
}

/// A recording, what is said in it, and the name in that.
struct Item {
    text: String,
    name: Option<String>,
    file: Vec<u8>,
}

/// Different names, none of which is within another.
fn names() -> Vec<String> {
    let mut dice = Dice::new(SEED);
    let mut names: Vec<String> = Vec::new();
    while names.len() < NAMES {
        let mut pick = |parts: &[&'static str]| parts[dice.roll(parts.len())];
        let name = [pick(&BEGINS), pick(&MIDDLES), pick(&JOINTS), pick(&ENDS)].concat();
        let name = name[..1].to_uppercase() + &name[1..];
        let is_within = |other: &String| other.contains(&name) || name.contains(other.as_str());
        if !names.iter().any(is_within) {
            names.push(name);
        }
    }
    names
}

/// Sentences with names, then others, then recorded speech.
async fn items(args: &Args, names: &[String]) -> Result<Vec<Item>> {
    let named = names
        .iter()
        .zip(SENTENCES.iter().cycle())
        .map(|(name, sentence)| (sentence.replace("{}", name), Some(name)));
    let real = REAL
        .iter()
        .flat_map(|name| SENTENCES.iter().map(move |sentence| (sentence.replace("{}", name), None)));
    let path = clips::root().join("benches/round_trip/sentences.txt");
    let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let plain = text.lines().filter(|line| !line.trim().is_empty()).map(|line| (line.to_owned(), None));
    // Every third pair of a real name and a sentence.
    let texts: Vec<(String, Option<&String>)> = named.chain(real.step_by(3)).chain(plain).collect();
    if let Some(folder) = &args.speech {
        std::fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    }
    let engine = engines::load(TTS_MODEL, args.threads).await?;
    let mut items = Vec::new();
    for (index, (text, name)) in texts.into_iter().enumerate() {
        let kept = args.speech.as_ref().map(|folder| folder.join(format!("{index}.wav")));
        let file = match kept {
            Some(path) if path.exists() => std::fs::read(path)?,
            Some(path) => {
                let file = engines::speak(&engine, &text, SEED).await?;
                std::fs::write(path, &file)?;
                file
            }
            None => engines::speak(&engine, &text, SEED).await?,
        };
        items.push(Item { text, name: name.cloned(), file });
    }
    for clip in clips::all()? {
        items.push(Item { text: clip.reference, name: None, file: std::fs::read(&clip.path)? });
    }
    Ok(items)
}

/// What was counted over all recordings.
#[derive(Default)]
struct Counts {
    said: usize,
    found: usize,
    /// Words without names, and names among what is written of them.
    words: usize,
    inserted: usize,
    /// Errors in all words but the names.
    others: Score,
}

impl Counts {
    fn add(&mut self, item: &Item, written: &str, names: &[String]) -> bool {
        let reference = wer::normalise(&item.text);
        let hypothesis = wer::normalise(written);
        let written: Vec<&String> = hypothesis
            .iter()
            .filter(|word| names.iter().any(|name| name.eq_ignore_ascii_case(word)))
            .collect();
        let is_found = |name: &String| written.iter().any(|word| name.eq_ignore_ascii_case(word));
        let found = item.name.as_ref().is_some_and(is_found);
        let inserted = written.len() - usize::from(found);
        self.said += usize::from(item.name.is_some());
        self.found += usize::from(found);
        self.words += reference.len() - usize::from(item.name.is_some());
        self.inserted += inserted;
        // A name that is written as one other word costs one error, which is not counted.
        let score = wer::compare(&item.text, &hypothesis.join(" ")).score();
        let of_name = usize::from(item.name.is_some() && !found);
        self.others.errors += score.errors.saturating_sub(of_name);
        self.others.words += score.words - usize::from(item.name.is_some());
        inserted > 0 || (item.name.is_some() && !found)
    }
}

async fn transcribe(engine: &Engine, item: &Item, options: TranscriptionOptions) -> Result<String> {
    let language = (engine.profile().info.languages.len() > 1).then(|| "en".to_owned());
    let options = TranscriptionOptions { language, ..options };
    let request = EngineCoreRequest::asr(item.file.clone()).with_transcription(options);
    let output = engine.generate(request).await.with_context(|| format!("'{}'", item.text))?;
    Ok(output.text.unwrap_or_default())
}

#[tokio::main]
async fn main() -> Result<()> {
    let args = Args::parse();
    let names = names();
    print(&format!("names: {}\n", names.join(", ")));
    let items = items(&args, &names).await?;
    let engine = engines::load(&args.model, args.threads).await?;
    let prompt = Some(names.join(", "));
    let plain = TranscriptionOptions { beam_size: args.beam_size, ..Default::default() };
    print(
        "| names | found | written where nobody says one | WER of other words | s |\n|---|---|---|---|---|",
    );
    for (way, options) in [
        ("not given", plain.clone()),
        ("prompt", TranscriptionOptions { prompt: prompt.clone(), ..plain.clone() }),
        ("keywords", TranscriptionOptions { keywords: names.clone(), ..plain.clone() }),
        ("both", TranscriptionOptions { keywords: names.clone(), prompt, ..plain.clone() }),
    ] {
        if args.only.as_ref().is_some_and(|only| only != way) {
            continue;
        }
        let (mut counts, begin) = (Counts::default(), std::time::Instant::now());
        for item in &items {
            let text = transcribe(&engine, item, options.clone()).await?;
            if counts.add(item, &text, &names) && args.errors {
                print(&format!("{} → {text}", item.text));
            }
        }
        let Counts { said, found, words, inserted, others } = counts;
        print(&format!(
            "| {way} | {found} of {said} | {inserted} in {words} words ({:.2} %) | {:.4} ({} errors) | {:.0} |",
            100.0 * inserted as f64 / words.max(1) as f64,
            others.rate(),
            others.errors,
            begin.elapsed().as_secs_f64(),
        ));
    }
    Ok(())
}

#[allow(clippy::print_stdout, reason = "the report is this program's output")]
fn print(text: &str) {
    println!("{text}");
}
