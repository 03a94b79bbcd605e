//! Meetings of which it is known who speaks when: makes them of voices, and scores a model on them or on others.
//!
//! `make` writes WAV and RTTM files of which everything follows from the seed; `score` hears a folder of recordings beside RTTM
//! files of the same names, such as AMI or VoxConverse, and reports the diarization error rate.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "the report is this program's output")]

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
use izwi_core::engine::EngineCoreRequest;
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
        println!("| recording | s | speakers found | of | DER, no collar | DER, collar 0.25 s | RTF |");
        println!("|---|---|---|---|---|---|---|");
        let mut all = [Errors::default(); 2];
        let (mut right, mut took_s, mut audio_s) = (0, 0.0, 0.0);
        for (recording, truth) in &pairs {
            let truth = rttm::read(truth)?;
            let file = std::fs::read(recording)?;
            let begun = Instant::now();
            let output = engine.generate(EngineCoreRequest::diarization(file)).await?;
            let own_s = begun.elapsed().as_secs_f64();
            let found: Vec<Turn> =
                output.transcript.unwrap_or_default().segments.iter().filter_map(Turn::of).collect();
            let length_s = output.stats.audio_duration.as_secs_f64();
            let errors = [0.0, 0.25].map(|collar_s| score::compare(&truth, &found, collar_s));
            let [of, heard] = [&truth, &found].map(|turns| rttm::speakers(turns).len());
            all.iter_mut().zip(errors).for_each(|(sum, own)| *sum += own);
            right += usize::from(of == heard);
            took_s += own_s;
            audio_s += length_s;
            let [plain, collar] = errors.map(|errors| errors.rate());
            let name = recording.file_stem().unwrap_or_default().to_string_lossy();
            println!(
                "| {name} | {length_s:.0} | {heard} | {of} | {plain:.1} % | {collar:.1} % | {:.3} |",
                own_s / length_s
            );
        }
        let [plain, collar] = all.map(|errors| errors.rate());
        println!(
            "| **all** | {audio_s:.0} | right in {right} | {} | **{plain:.1} %** | **{collar:.1} %** | {:.3} |",
            pairs.len(),
            took_s / audio_s
        );
        let [errors, _] = all;
        println!("\nNo collar: {}.", errors.parts());
        ensure!(self.at_most.is_none_or(|most| plain <= most), "the error rate is {plain:.1} %");
        Ok(())
    }
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
