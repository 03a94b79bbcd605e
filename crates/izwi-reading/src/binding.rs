//! Binding: stored units become files, in two passes over them. The first measures the loudness, the second encodes. Both hold a block
//! of audio at a time.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write as _};
use std::ops::Range;
use std::path::{Path, PathBuf};

use izwi_audio::encode::{EncoderConfig, Format, MP3};
use izwi_hub::IoError;
use izwi_types::Segment;

use crate::book::Book;
use crate::error::{BindError, Result};
use crate::journal::Journal;
use crate::loudness::{Limiter, Loudness, Meter};
use crate::plan::Plan;
use crate::sound::EDGE_S;
use crate::subtitles;
use crate::tags::Tags;

/// Silence at both ends of a file, in seconds.
const MARGIN_S: f64 = 0.5;
/// The longest MP3 whose first frame tells its length, for which all frames wait in memory: 22 MB.
const MAX_WHOLE_MP3_S: f64 = 1_800.0;
/// Samples of silence that are made at a time.
const SILENCE_SAMPLES: usize = 1 << 12;

/// The files of a book.
#[derive(Debug)]
pub struct Outputs {
    pub files: Vec<OutputFile>,
    pub format: &'static Format,
    /// Samples per second and bits per second of the files; `None` for those of the format.
    pub output_rate_hz: Option<u32>,
    pub bit_rate: Option<u32>,
    /// Whether there is a file for each chapter.
    pub is_folder: bool,
}

/// A file and the chapters in it.
#[derive(Debug)]
pub struct OutputFile {
    pub path: PathBuf,
    pub chapters: Range<usize>,
}

/// What is bound.
#[derive(Debug)]
pub struct Binding<'a> {
    pub book: &'a Book,
    pub plan: &'a Plan,
    /// The units' keys in the journal; `None` for those that are left out.
    pub keys: &'a [Option<&'a str>],
    pub journal: &'a Journal,
    pub outputs: &'a Outputs,
    pub loudness: Loudness,
    pub sample_rate_hz: u32,
}

/// What was bound.
#[derive(Debug)]
pub struct Bound {
    pub seconds: f64,
    /// The loudness of the result; `None` of silence, and where none is asked for.
    pub lufs: Option<f64>,
    /// The subtitles of a book in one file.
    pub cues: Vec<Segment>,
}

/// A unit in a file.
#[derive(Debug)]
struct Placed {
    unit: usize,
    /// Silence before it, and its own samples.
    silence: u64,
    samples: u64,
    /// Its first sample in the file.
    start: u64,
}

impl Binding<'_> {
    /// Writes all files. `on_unit` is called for each unit of each pass, and its error ends the work.
    ///
    /// # Errors
    /// A file cannot be written, a unit cannot be read, or a format cannot hold the audio.
    pub async fn bind(&self, with_cues: bool, on_unit: impl Fn() -> Result<()>) -> Result<Bound> {
        let files: Vec<_> =
            self.outputs.files.iter().map(|file| (file, self.place(&file.chapters))).collect();
        let gain_db = match self.loudness {
            Loudness::Off => None,
            Loudness::Lufs(target) => {
                let mut meter = Meter::new(self.sample_rate_hz)?;
                for (_, placed) in &files {
                    self.stream(placed, &on_unit, &mut |samples| meter.push(samples)).await?;
                }
                Some(meter.lufs().map_or(0.0, |lufs| target - lufs))
            }
        };
        let mut meter = gain_db.map(|_| Meter::new(self.sample_rate_hz)).transpose()?;
        let (mut total, mut cues) = (0, Vec::new());
        for (file, placed) in &files {
            self.write(file, placed, gain_db, &mut meter, &on_unit).await?;
            total += self.length(placed);
            if with_cues {
                cues.extend(placed.iter().flat_map(|placed| self.cues(placed)));
            }
        }
        let lufs = meter.as_ref().and_then(Meter::lufs);
        Ok(Bound { seconds: self.seconds(total), lufs, cues })
    }

    fn seconds(&self, samples: u64) -> f64 {
        samples as f64 / f64::from(self.sample_rate_hz)
    }

    fn samples(&self, seconds: f64) -> u64 {
        (seconds * f64::from(self.sample_rate_hz)).round() as u64
    }

    /// The units of chapters, one behind the other. Silence counts from sound to sound: units have some at their ends.
    fn place(&self, chapters: &Range<usize>) -> Vec<Placed> {
        let (mut placed, mut end) = (Vec::<Placed>::new(), 0);
        for (unit, (planned, key)) in self.plan.units.iter().zip(self.keys).enumerate() {
            let Some(key) = key.filter(|_| chapters.contains(&planned.chapter)) else { continue };
            let Some(header) = self.journal.header(key) else { continue };
            let pause_s = if placed.is_empty() { MARGIN_S - EDGE_S } else { planned.pause_s - 2.0 * EDGE_S };
            let silence = self.samples(pause_s);
            let start = end + silence;
            end = start + header.samples;
            placed.push(Placed { unit, silence, samples: header.samples, start });
        }
        placed
    }

    /// Samples of a file.
    fn length(&self, placed: &[Placed]) -> u64 {
        placed.last().map_or(0, |last| last.start + last.samples) + self.samples(MARGIN_S - EDGE_S)
    }

    /// Passes the samples of a file on. Between units the process may be interrupted.
    async fn stream(
        &self,
        placed: &[Placed],
        on_unit: &impl Fn() -> Result<()>,
        sink: &mut impl FnMut(&[f32]) -> Result<()>,
    ) -> Result<()> {
        for unit in placed {
            silence(unit.silence, sink)?;
            if let Some(key) = self.keys[unit.unit] {
                self.journal.read(key, sink)?;
            }
            on_unit()?;
            tokio::task::yield_now().await;
        }
        silence(self.samples(MARGIN_S - EDGE_S), sink)
    }

    /// Writes a file in the folder of the journal, and lets it appear at its path.
    async fn write(
        &self,
        file: &OutputFile,
        placed: &[Placed],
        gain_db: Option<f64>,
        meter: &mut Option<Meter>,
        on_unit: &impl Fn() -> Result<()>,
    ) -> Result<()> {
        let length = self.length(placed);
        let format: &Format = self.outputs.format;
        let is_long_mp3 = format.name == MP3.name && self.seconds(length) > MAX_WHOLE_MP3_S;
        let config = match is_long_mp3 {
            true => EncoderConfig::streamed(self.sample_rate_hz),
            false => EncoderConfig::whole(self.sample_rate_hz, length),
        };
        let Outputs { output_rate_hz, bit_rate, .. } = *self.outputs;
        let mut encoder = format.encoder(&EncoderConfig { output_rate_hz, bit_rate, ..config })?;
        let tags = self.tags(file, placed, length);
        encoder.set_comments(&tags.comments());
        let part = self.journal.part("output");
        let failed = |error: io::Error| cannot(&file.path, error);
        let mut out = BufWriter::new(File::create(&part).map_err(failed)?);
        if format.name == MP3.name {
            out.write_all(&tags.id3()?).map_err(failed)?;
        }
        let mut limiter = gain_db.map(|gain_db| Limiter::new(gain_db, self.sample_rate_hz)).transpose()?;
        let mut encode = |samples: &[f32]| {
            meter.as_mut().map_or(Ok(()), |meter| meter.push(samples))?;
            out.write_all(&encoder.push(samples)?).map_err(failed)
        };
        let mut limit = |samples: &[f32]| match &mut limiter {
            Some(limiter) => encode(&limiter.push(samples)?),
            None => encode(samples),
        };
        self.stream(placed, on_unit, &mut limit).await?;
        if let Some(limiter) = limiter {
            encode(&limiter.finish()?)?;
        }
        out.write_all(&encoder.finish()?).map_err(failed)?;
        let whole = out.into_inner().map_err(|error| failed(error.into_error()))?;
        whole.sync_data().map_err(failed)?;
        // A link stays; the file that it points to is replaced.
        let path = fs::canonicalize(&file.path).unwrap_or_else(|_| file.path.clone());
        fs::rename(&part, path).map_err(failed)
    }

    fn tags<'a>(&'a self, file: &OutputFile, placed: &[Placed], length: u64) -> Tags<'a> {
        let (book, titles) = (self.book, &self.plan.chapters);
        let album = book.title.as_deref().unwrap_or_default();
        let first =
            |chapter: usize| placed.iter().find(|placed| self.plan.units[placed.unit].chapter == chapter);
        let start = |chapter| {
            first(chapter).map(|placed| if chapter == 0 { 0.0 } else { self.seconds(placed.start) })
        };
        let is_chapter = self.outputs.is_folder;
        let chapters = file.chapters.clone().filter(|_| !is_chapter && titles.len() > 1);
        Tags {
            title: if is_chapter { &titles[file.chapters.start] } else { album },
            author: book.author.as_deref(),
            album,
            track: is_chapter.then_some((file.chapters.end, titles.len())),
            cover: book.cover.as_ref(),
            chapters: chapters.filter_map(|chapter| Some((&*titles[chapter], start(chapter)?))).collect(),
            seconds: self.seconds(length),
        }
    }

    fn cues(&self, placed: &Placed) -> Vec<Segment> {
        let header = self.keys[placed.unit].and_then(|key| self.journal.header(key));
        let (text, words) =
            (&self.plan.units[placed.unit].text, header.map(|header| header.words).unwrap_or_default());
        let (start_s, seconds) = (self.seconds(placed.start), self.seconds(placed.samples));
        subtitles::cues(text, &words, start_s, seconds, self.sample_rate_hz)
    }
}

/// Passes silence on.
fn silence(samples: u64, sink: &mut impl FnMut(&[f32]) -> Result<()>) -> Result<()> {
    let zeros = [0.0; SILENCE_SAMPLES];
    let mut left = samples as usize;
    while left > 0 {
        let block = left.min(SILENCE_SAMPLES);
        sink(&zeros[..block])?;
        left -= block;
    }
    Ok(())
}

fn cannot(path: &Path, error: io::Error) -> BindError {
    BindError::Io(IoError::at("write", path)(error))
}
