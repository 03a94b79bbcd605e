//! A runner: a process that loads a model, prints a line when ready, then answers each request line with a line.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context, Result, bail};
use izwi_benches::clips::{self, Clip};
use serde::{Deserialize, Serialize};

/// Beam size of Izwi with a search.
const BEAM_SIZE: u64 = 5;

/// An implementation and its settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Izwi, one recording at a time, greedy.
    Izwi,
    /// The same with a beam search, its default.
    IzwiBeams,
    /// The same with f32 weights.
    IzwiExact,
    /// Izwi, all recordings of the workload in one batch.
    IzwiAtOnce,
    /// CTranslate2 through faster-whisper.
    Faster {
        /// Compute type.
        compute: &'static str,
        /// Beam size; 1 is greedy.
        beam: u64,
    },
    /// The model of candle-transformers.
    Candle,
}

impl Kind {
    pub(crate) const ALL: [Self; 9] = [
        Self::Izwi,
        Self::Faster { compute: "int8", beam: 1 },
        Self::Faster { compute: "float32", beam: 1 },
        Self::IzwiExact,
        Self::Candle,
        Self::IzwiAtOnce,
        Self::IzwiBeams,
        Self::Faster { compute: "int8", beam: 5 },
        Self::Faster { compute: "float32", beam: 5 },
    ];

    pub(crate) fn name(self) -> String {
        match self {
            Self::Izwi => "izwi".to_owned(),
            Self::IzwiBeams => format!("izwi, beam {BEAM_SIZE}"),
            Self::IzwiExact => "izwi f32".to_owned(),
            Self::IzwiAtOnce => "izwi, 6 at once".to_owned(),
            Self::Faster { compute, beam } => format!("faster-whisper {compute}, beam {beam}"),
            Self::Candle => "candle f32".to_owned(),
        }
    }

    /// Whether it takes all recordings of a workload in one request.
    pub(crate) fn at_once(self) -> bool {
        self == Self::IzwiAtOnce
    }
}

/// One request.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Ask {
    /// WAV files at 16 kHz.
    pub(crate) files: Vec<PathBuf>,
    /// Beam size, where the runner supports it.
    pub(crate) beam: u64,
}

impl Ask {
    pub(crate) fn new(clips: &[Clip], kind: Kind) -> Self {
        let beam = match kind {
            Kind::Faster { beam, .. } => beam,
            Kind::IzwiBeams => BEAM_SIZE,
            Kind::Izwi | Kind::IzwiExact | Kind::IzwiAtOnce | Kind::Candle => 1,
        };
        Self { files: clips.iter().map(|clip| clip.path.clone()).collect(), beam }
    }
}

/// One answer.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Answer {
    /// Name and version, in the first line.
    pub(crate) ready: Option<String>,
    /// From samples in memory to text, all files together.
    pub(crate) seconds: f64,
    /// One for each file.
    pub(crate) texts: Vec<String>,
    /// Processor time of the whole process meanwhile, where the system tells.
    #[serde(skip)]
    pub(crate) cpu_seconds: Option<f64>,
    /// What failed.
    pub(crate) error: Option<String>,
}

/// A running process.
#[derive(Debug)]
pub(crate) struct Runner {
    kind: Kind,
    process: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    about: String,
}

impl Runner {
    /// Starts it and waits until its model is loaded.
    pub(crate) fn start(kind: Kind, model: &str, threads: usize, peer: &Path) -> Result<Self> {
        let mut command = command(kind, model, threads, peer)?;
        // Every library that could start threads of its own.
        for variable in ["RAYON_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"] {
            command.env(variable, threads.to_string());
        }
        command.current_dir(clips::root()).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().with_context(|| format!("cannot start {command:?}"))?;
        let input = process.stdin.take();
        let output = BufReader::new(process.stdout.take().context("the process has no output")?);
        let mut runner = Self { kind, process, input, output, about: String::new() };
        runner.about = runner.answer()?.ready.context("the first line does not say that it is ready")?;
        Ok(runner)
    }

    pub(crate) fn kind(&self) -> Kind {
        self.kind
    }

    /// Name and version.
    pub(crate) fn about(&self) -> &str {
        &self.about
    }

    /// Sends a request and waits for the answer.
    pub(crate) fn ask(&mut self, ask: &Ask) -> Result<Answer> {
        let before = cpu_seconds(self.process.id());
        let input = self.input.as_mut().context("the process has no input")?;
        writeln!(input, "{}", serde_json::to_string(ask)?)?;
        input.flush()?;
        let mut answer = self.answer()?;
        answer.cpu_seconds = cpu_seconds(self.process.id()).zip(before).map(|(after, before)| after - before);
        if answer.texts.len() != ask.files.len() {
            bail!("{} answered {} of {} files", self.kind.name(), answer.texts.len(), ask.files.len());
        }
        Ok(answer)
    }

    fn answer(&mut self) -> Result<Answer> {
        let mut line = String::new();
        if self.output.read_line(&mut line)? == 0 {
            bail!("{} ended; its last words are above", self.kind.name());
        }
        let answer: Answer = serde_json::from_str(&line).with_context(|| format!("not an answer: {line}"))?;
        match answer.error {
            Some(error) => bail!("{}: {error}", self.kind.name()),
            None => Ok(answer),
        }
    }
}

impl Drop for Runner {
    /// A runner ends with its input.
    fn drop(&mut self) {
        drop(self.input.take());
        let _ = self.process.wait();
    }
}

/// Processor time of a process so far. Linux counts it in hundredths of a second.
/// <https://man7.org/linux/man-pages/man5/proc_pid_stat.5.html>
fn cpu_seconds(process: u32) -> Option<f64> {
    const TICKS_PER_SECOND: f64 = 100.0;
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The name may hold anything; after it come the state as field 3, user and system time as 14 and 15.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks = |field: usize| fields.get(field - 3)?.parse::<f64>().ok();
    Some((ticks(14)? + ticks(15)?) / TICKS_PER_SECOND)
}

fn command(kind: Kind, model: &str, threads: usize, peer: &Path) -> Result<Command> {
    let threads = threads.to_string();
    let ours = |child: &str| -> Result<Command> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["--child", child, "--models", model, "--threads", &threads]);
        Ok(command)
    };
    match kind {
        Kind::Izwi | Kind::IzwiBeams | Kind::IzwiAtOnce => ours("izwi"),
        Kind::IzwiExact => ours("izwi-exact"),
        Kind::Candle => ours("candle"),
        Kind::Faster { compute, .. } => {
            let python = peer.join("venv/bin/python");
            if !python.exists() {
                bail!("there is no {}; run benches/asr/setup.sh", python.display());
            }
            let mut command = Command::new(python);
            command.arg(clips::root().join("benches/asr/peer.py")).arg(peer.join(model));
            command.args(["--compute", compute, "--threads", &threads]);
            Ok(command)
        }
    }
}
