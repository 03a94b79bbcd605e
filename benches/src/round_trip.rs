//! The round trip: sentences spoken by the default voice and written down by the ears, and the ears on real speech.
//!
//! Writes `docs/round-trip.md`, or with `--clips` `docs/asr-accuracy.md`.

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use clap::Parser;
use izwi_benches::clips::{self, Clip};
use izwi_benches::engines;
use izwi_benches::report::{self, Item};
use izwi_core::engine::{Engine, EngineCoreRequest, FinishReason};

const VOICE: &str = "hibari";
const EARS: [&str; 2] = ["whisper-base", "whisper-tiny.en"];
/// The reader's slip in one of the LibriVox sentences, and what the book has there.
const SLIP: (&str, &str) = ("a more a amiable", "a more amiable");
/// The same speech every time.
const SEED: u64 = 1;

/// Scores what is heard against what was said.
#[derive(Debug, Parser)]
struct Args {
    /// Score real recordings instead of our own speech.
    #[arg(long)]
    clips: bool,
    /// Compute threads.
    #[arg(long, default_value_t = 2)]
    threads: usize,
    /// Where the page goes, instead of docs/.
    #[arg(long)]
    out: Option<PathBuf>,
    /// Fail if the total of the first model is above this.
    #[arg(long)]
    at_most: Option<f64>,
}

async fn speak(engine: &Engine, text: &str) -> Result<Vec<u8>> {
    let mut params = engine.profile().default_params.clone();
    params.seed = Some(SEED);
    let output = engine.generate(EngineCoreRequest::tts(text).with_params(params)).await?;
    ensure!(output.stats.finish_reason == FinishReason::Stop, "'{text}' was not spoken to its end");
    Ok(izwi_audio::wav::to_bytes(&output.audio.samples, output.audio.sample_rate)?)
}

/// Writes down every recording with every model, one model in memory at a time.
async fn listen(items: &mut [Item], files: &[Vec<u8>], threads: usize) -> Result<()> {
    for model in EARS {
        let engine = engines::load(model, threads).await?;
        let hearing = files.iter().map(|file| engines::transcribe(&engine, file.clone()));
        for (item, output) in items.iter_mut().zip(futures::future::join_all(hearing).await) {
            let output = output.with_context(|| format!("{model}: '{}'", item.said))?;
            item.heard.push(output.text.unwrap_or_default());
        }
    }
    Ok(())
}

async fn round_trip(threads: usize) -> Result<(String, Vec<Item>)> {
    let path = clips::root().join("benches/round_trip/sentences.txt");
    let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let engine = engines::load(VOICE, threads).await?;
    let (mut items, mut files) = (Vec::new(), Vec::new());
    for line in text.lines().filter(|line| !line.trim().is_empty()) {
        files.push(speak(&engine, line).await?);
        items.push(Item { name: String::new(), said: line.to_owned(), heard: Vec::new() });
    }
    drop(engine);
    listen(&mut items, &files, threads).await?;
    let page = format!(
        "# Round trip\n\nMade by `cargo run --release -p izwi-benches --bin round-trip`; do not edit.\n\nThe sentences \
         of `benches/round_trip/sentences.txt` spoken by {VOICE} (seed {SEED}) and written down by two models. WER is \
         the word error rate: substitutions, deletions and insertions over the words said, after both texts went \
         through the normaliser of `tests/src/wer/english.rs`, so that `7:30` and `seven thirty` are the same. The \
         total sums errors and words.\n\n{}",
        report::table(&EARS, &items)
    );
    Ok((page, items))
}

async fn accuracy(threads: usize) -> Result<(String, Vec<Item>)> {
    let clips = clips::all()?;
    let as_item = |clip: &Clip| Item { name: clip.name.clone(), said: clip.said.clone(), heard: Vec::new() };
    let mut items: Vec<Item> = clips.iter().map(as_item).collect();
    let files: std::io::Result<Vec<Vec<u8>>> = clips.iter().map(|clip| std::fs::read(&clip.path)).collect();
    listen(&mut items, &files?, threads).await?;
    let mut written = items.clone();
    for item in &mut written {
        item.said = item.said.replace(SLIP.0, SLIP.1);
    }
    let scores: Vec<String> = EARS
        .iter()
        .zip(report::totals(&items, EARS.len()).iter().zip(report::totals(&written, EARS.len())))
        .map(|(ear, (read, written))| format!("| {ear} | {:.3} | {:.3} |\n", read.rate(), written.rate()))
        .collect();
    let page = format!(
        "# Accuracy on recorded speech\n\nMade by `cargo run --release -p izwi-benches --bin round-trip -- --clips`; \
         do not edit.\n\nFive sentences of *Sense and Sensibility* read for LibriVox and eleven seconds of John F. \
         Kennedy's inaugural address (`assets/speech/`). Thirty-six seconds of clear English show that nothing is \
         broken; they are too little to rank models by.\n\nThe reader of sentence 0920 slips and says \"{}\", where \
         the book has \"{}\". A model that writes what the book has is scored with one error against what was read \
         and none against what was written, so both totals are given.\n\n\
         | model | WER, as read | WER, as written |\n|---|---|---|\n{}\n## As read\n\n{}\n",
        SLIP.0,
        SLIP.1,
        scores.concat(),
        report::table(&EARS, &items),
    );
    Ok((page.trim_end().to_owned() + "\n", items))
}

#[tokio::main]
async fn main() -> Result<()> {
    let args = Args::parse();
    let (name, (page, items)) = if args.clips {
        ("asr-accuracy.md", accuracy(args.threads).await?)
    } else {
        ("round-trip.md", round_trip(args.threads).await?)
    };
    let path = args.out.unwrap_or_else(|| clips::root().join("docs").join(name));
    std::fs::write(&path, &page).with_context(|| format!("cannot write {}", path.display()))?;
    print(&page);
    let total = report::totals(&items, EARS.len())[0].rate();
    if let Some(most) = args.at_most {
        ensure!(total <= most, "the total of {} is {total:.3}, above {most}", EARS[0]);
    }
    Ok(())
}

#[allow(clippy::print_stdout, reason = "the report is this program's output")]
fn print(text: &str) {
    println!("{text}");
}
