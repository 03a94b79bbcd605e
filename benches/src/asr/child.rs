//! The side of a runner that computes: reads requests from standard input, answers on standard output.

use std::io::{BufRead as _, Write as _};
use std::time::Instant;

use anyhow::{Context, Result};
use izwi_benches::{clips, engines};
use izwi_core::engine::Engine;
use izwi_core::engine::Precision;
use tokio::runtime::Runtime;

use crate::candle;
use crate::runner::{Answer, Ask};

/// The implementation that computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Child {
    /// The engine.
    Izwi,
    /// The engine with the checkpoint's own weights.
    IzwiExact,
    /// candle-transformers' model as it is.
    Candle,
}

/// Answers until standard input ends.
pub(crate) fn run(child: Child, model: &str, threads: usize) -> Result<()> {
    rayon::ThreadPoolBuilder::new()
        .num_threads(threads)
        .build_global()
        .context("cannot start the threads")?;
    match child {
        Child::Izwi | Child::IzwiExact => {
            let dtype = if child == Child::Izwi { Precision::Auto } else { Precision::F32 };
            let runtime =
                tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
            let engine = runtime.block_on(engines::load_as(model, threads, dtype))?;
            serve("izwi", |ask| izwi(&runtime, &engine, ask))
        }
        Child::Candle => {
            let mut model = candle::Transcriber::load(&engines::folder(model)?)?;
            serve("candle-transformers 0.11, f32", |ask| {
                let mut answer = Answer::default();
                for file in &ask.files {
                    let samples = clips::samples(file)?;
                    let begun = Instant::now();
                    answer.texts.push(model.transcribe(&samples)?);
                    answer.seconds += begun.elapsed().as_secs_f64();
                }
                Ok(answer)
            })
        }
    }
}

/// All files at once. Reading a WAV at the model's rate is counted; it takes a millisecond.
fn izwi(runtime: &Runtime, engine: &Engine, ask: &Ask) -> Result<Answer> {
    let read: std::io::Result<Vec<Vec<u8>>> = ask.files.iter().map(std::fs::read).collect();
    let read = read?;
    let begun = Instant::now();
    let transcriptions = read.into_iter().map(|file| engines::transcribe(engine, file, Some(ask.beam)));
    let hypothesis = runtime.block_on(futures::future::join_all(transcriptions));
    let seconds = begun.elapsed().as_secs_f64();
    let texts: Result<Vec<String>> =
        hypothesis.into_iter().map(|output| Ok(output?.text.unwrap_or_default())).collect();
    Ok(Answer { seconds, texts: texts?, ..Answer::default() })
}

fn serve(about: &str, mut answer: impl FnMut(&Ask) -> Result<Answer>) -> Result<()> {
    let mut out = std::io::stdout();
    let mut tell = |answer: &Answer| -> Result<()> {
        writeln!(out, "{}", serde_json::to_string(answer)?)?;
        Ok(out.flush()?)
    };
    tell(&Answer { ready: Some(about.to_owned()), ..Answer::default() })?;
    for line in std::io::stdin().lock().lines() {
        let ask: Ask = serde_json::from_str(&line?)?;
        let failed = |error: anyhow::Error| Answer { error: Some(format!("{error:#}")), ..Answer::default() };
        tell(&answer(&ask).unwrap_or_else(failed))?;
    }
    Ok(())
}
