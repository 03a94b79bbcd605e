//! Sounds in which nobody speaks: the words that an ASR model writes of silence, noise, hum and music, of files and live.
//!
//! Half of each sound is quiet, half loud. Fails if there is a word.

#![allow(clippy::print_stdout, reason = "the report is this program's output")]

use anyhow::{Result, ensure};
use clap::Parser;
use izwi_audio::wav;
use izwi_benches::dictation::{self, Dictation};
use izwi_benches::{clips, engines};
use izwi_core::engine::EngineCoreRequest;
use izwi_tests::synthetic::wordless;
use serde::Serialize;

/// Counts words where nobody speaks.
#[derive(Debug, Parser)]
struct Args {
    /// ASR model of the store.
    #[arg(long, default_value = "whisper-base")]
    model: String,
    /// Seconds of all sounds together.
    #[arg(long, default_value_t = 3_600)]
    seconds: usize,
    /// Compute threads.
    #[arg(long, default_value_t = 2)]
    threads: usize,
    /// Print the frames of live sessions.
    #[arg(long)]
    trace: bool,
}

/// Levels of the sounds, RMS: that of a quiet room with its gain up, and that of speech.
const LEVELS: [f32; 2] = [0.005, 0.1];
/// Seconds of a file and of a session.
const PIECE_S: usize = 60;

#[derive(Debug, Serialize)]
struct Report {
    model: String,
    sound: &'static str,
    minutes: f64,
    words_per_minute_of_files: f64,
    words_per_minute_live: f64,
}

#[tokio::main]
async fn main() -> Result<()> {
    let args = Args::parse();
    let engine = engines::load(&args.model, args.threads).await?;
    let mut server = dictation::serve(&args.model, engine.clone()).await?;
    let kinds = 1 + wordless(0, 0.0).len();
    let seconds = (args.seconds / kinds / LEVELS.len()).max(1);
    let levels = LEVELS.map(|rms| wordless(seconds, rms));
    let mut sounds = vec![("silence", vec![0.0; LEVELS.len() * seconds * clips::RATE_HZ as usize])];
    for ((name, quiet), (_, loud)) in levels[0].iter().zip(&levels[1]) {
        sounds.push((name, [quiet.as_slice(), loud].concat()));
    }
    let mut all = 0;
    for (sound, samples) in sounds {
        let (mut of_files, mut live) = (0, 0);
        for piece in samples.chunks(PIECE_S * clips::RATE_HZ as usize) {
            let file = wav::to_bytes(piece, clips::RATE_HZ)?;
            let output = engine.generate(EngineCoreRequest::asr(file)).await?;
            of_files += words(&output.text.unwrap_or_default());
            let client = Dictation {
                model: args.model.clone(),
                latency_ms: None,
                samples: piece.to_vec(),
                is_paced: false,
                trace: args.trace,
            };
            live += words(&client.run(server.address).await?.text);
        }
        let minutes = samples.len() as f64 / f64::from(clips::RATE_HZ) / 60.0;
        let report = Report {
            model: args.model.clone(),
            sound,
            minutes,
            words_per_minute_of_files: of_files as f64 / minutes,
            words_per_minute_live: live as f64 / minutes,
        };
        println!("{}", serde_json::to_string(&report)?);
        all += of_files + live;
    }
    server.stop();
    ensure!(all == 0, "{all} words were found where nobody speaks");
    Ok(())
}

fn words(text: &str) -> usize {
    text.split_whitespace().count()
}
