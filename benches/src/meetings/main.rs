//! Meetings of which it is known who speaks when: makes them of voices, and scores a model on them or on others.
//!
//! `make` writes WAV and RTTM files of which everything follows from the seed; `score` hears a folder of recordings beside RTTM
//! files of the same names, such as AMI or VoxConverse, and reports the diarization error rate.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "the report is this program's output")]

mod arriving;
mod conversation;
mod rttm;
mod score;
mod sound;
mod voices;

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use clap::{Parser, Subcommand};
use izwi_audio::wav;
use izwi_benches::{clips, engines};
use izwi_core::engine::{Engine, EngineCoreRequest};
use izwi_tests::Dice;

use self::rttm::Turn;
use self::score::Errors;

/// Makes and scores meetings.
#[derive(Debug, Parser)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Write meetings
    Make(Make),
    /// Score a model on the recordings of a folder
    Score(Score),
}

#[derive(Debug, clap::Args)]
struct Make {
    /// Folder to write to
    folder: PathBuf,
    /// Number of meetings; they have 2 to 8 speakers
    #[arg(long, default_value_t = 14)]
    count: usize,
    /// Seconds of each
    #[arg(long, default_value_t = 90)]
    seconds: usize,
    /// Seed of all choices
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// TTS model whose English voices speak
    #[arg(long, default_value = "kokoro-82m")]
    voices: String,
    /// Folder with a folder of recordings for each further speaker
    #[arg(long)]
    recorded: Option<PathBuf>,
    /// Compute threads
    #[arg(long, default_value_t = 2)]
    threads: usize,
}

#[derive(Debug, clap::Args)]
struct Score {
    /// Folder with recordings, and an RTTM file of the same name for each
    folder: PathBuf,
    /// Model with the task diarize
    #[arg(long, default_value = "pyannote-community-1")]
    model: String,
    /// Compute threads
    #[arg(long, default_value_t = 2)]
    threads: usize,
    /// Score what is told of each second once it has arrived, and what is told at the end, after all corrections
    #[arg(long)]
    live: bool,
    /// Fail if the error rate of all without a collar is above this, in percent
    #[arg(long)]
    at_most: Option<f64>,
}

#[tokio::main]
async fn main() -> Result<()> {
    match Args::parse().command {
        Command::Make(make) => make.run().await,
        Command::Score(score) => score.run().await,
    }
}

impl Make {
    async fn run(&self) -> Result<()> {
        std::fs::create_dir_all(&self.folder)?;
        let engine = engines::load(&self.voices, self.threads).await?;
        let mut cast = voices::Cast::new(engine, self.recorded.as_deref())?;
        for number in 0..self.count {
            let mut dice = Dice::new((self.seed << 16) + number as u64 + 1);
            let speakers = 2 + number % 7;
            let meeting = conversation::generate(&mut cast, speakers, self.seconds as f64, &mut dice).await?;
            let kind = sound::Kind::ALL[number % sound::Kind::ALL.len()];
            let samples = sound::render(&meeting, kind, &mut dice)?;
            let name = format!("{number:02}-{speakers}-{}", kind.name());
            wav::write_file(self.folder.join(format!("{name}.wav")), &samples, clips::RATE_HZ)?;
            std::fs::write(self.folder.join(format!("{name}.rttm")), rttm::written(&name, &meeting.turns))?;
            eprintln!("{name}: {} turns, {:.1} % overlap", meeting.turns.len(), 100.0 * meeting.overlap());
        }
        Ok(())
    }
}

impl Score {
    async fn run(&self) -> Result<()> {
        let pairs = pairs(&self.folder)?;
        ensure!(!pairs.is_empty(), "{} has no recording with an RTTM file", self.folder.display());
        let engine = engines::load(&self.model, self.threads).await?;
        let [heard, of] = if self.live { ["told", "DER, corrected"] } else { ["found", ""] };
        println!(
            "| recording | s | speakers {heard} | of | DER, no collar | DER, collar 0.25 s | RTF | {of} |"
        );
        println!("|---|---|---|---|---|---|---|---|");
        let mut all = [Errors::default(); 3];
        let (mut right, mut took_s, mut audio_s) = (0, 0.0, 0.0);
        for (recording, truth) in &pairs {
            let truth = rttm::read(truth)?;
            let begun = Instant::now();
            let Heard { found, corrected, length_s } = self.hear(&engine, recording).await?;
            let own_s = begun.elapsed().as_secs_f64();
            let plain = |found: &[Turn]| score::compare(&truth, found, 0.0);
            let last = corrected.map(|turns| plain(&turns));
            let errors = [plain(&found), score::compare(&truth, &found, 0.25), last.unwrap_or_default()];
            let [of, heard] = [&truth, &found].map(|turns| rttm::speakers(turns).len());
            all.iter_mut().zip(errors).for_each(|(sum, own)| *sum += own);
            right += usize::from(of == heard);
            took_s += own_s;
            audio_s += length_s;
            let [plain, collar, _] = errors.map(|errors| errors.rate());
            let last = last.map(|last| format!("{:.1} %", last.rate())).unwrap_or_default();
            let name = recording.file_stem().unwrap_or_default().to_string_lossy();
            println!(
                "| {name} | {length_s:.0} | {heard} | {of} | {plain:.1} % | {collar:.1} % | {:.3} | {last} |",
                own_s / length_s
            );
        }
        let [plain, collar, last] = all.map(|errors| errors.rate());
        let last = if self.live { format!("**{last:.1} %**") } else { String::new() };
        println!(
            "| **all** | {audio_s:.0} | right in {right} | {} | **{plain:.1} %** | **{collar:.1} %** | {:.3} | {last} |",
            pairs.len(),
            took_s / audio_s
        );
        let [errors, ..] = all;
        println!("\nNo collar: {}.", errors.parts());
        ensure!(self.at_most.is_none_or(|most| plain <= most), "the error rate is {plain:.1} %");
        Ok(())
    }

    async fn hear(&self, engine: &Engine, recording: &Path) -> Result<Heard> {
        if self.live {
            return arriving::hear(engine, &clips::samples(recording)?).await;
        }
        let output = engine.generate(EngineCoreRequest::diarization(std::fs::read(recording)?)).await?;
        let segments = output.transcript.unwrap_or_default().segments;
        let length_s = output.stats.audio_duration.as_secs_f64();
        Ok(Heard { found: segments.iter().filter_map(Turn::of).collect(), corrected: None, length_s })
    }
}

/// What a model tells of a recording.
struct Heard {
    found: Vec<Turn>,
    /// Of one that arrives: what is told after all corrections.
    corrected: Option<Vec<Turn>>,
    length_s: f64,
}

/// The recordings of a folder that have an RTTM file, by their names.
fn pairs(folder: &Path) -> Result<Vec<(PathBuf, PathBuf)>> {
    let entries = std::fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))?;
    let mut pairs = Vec::new();
    for entry in entries {
        let recording = entry?.path();
        let truth = recording.with_extension("rttm");
        if recording != truth && truth.exists() {
            pairs.push((recording, truth));
        }
    }
    pairs.sort();
    Ok(pairs)
}
