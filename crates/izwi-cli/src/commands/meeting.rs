//! `izwi meeting`: who said what in a meeting, and its minutes, as one file.

use std::cell::RefCell;
use std::ops::Range;
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use clap::ValueHint;
use izwi_audio::wav;
use izwi_core::engine::known_speakers::{KnownSpeaker, named};
use izwi_core::engine::speakers::SpeakerJoin;
use izwi_core::engine::{EngineCoreConfig, EngineCoreRequest, Segment, TranscriptionOptions, Word};
use izwi_hub::{Task, WorkFolder, sha256};
use izwi_remote::LanguageModel;
use serde::{Deserialize, Serialize};

use crate::engine::{Loaded, incomplete};
use crate::interrupt::Interrupt;
use crate::llm::LlmFlags;
use crate::meeting::{self, Format, Notes, RATE_HZ, Track, Utterance};
use crate::progress::{TranscriptionProgress, clock};
use crate::settings::Resolved;
use crate::transcription::{self, Transcription};
use crate::transcription_options::TranscriptionFlags;
use crate::{engine, failure, logging, models, output, sink};

/// Limits of a recording, unless the settings have others.
const MAX_BYTES: usize = 4 << 30;
const LONGEST: std::time::Duration = std::time::Duration::from_secs(24 * 3_600);

/// Write down who said what in a meeting
///
/// Of one recording, a model with the task `diarize` tells speakers apart: they are A, B and so on, or have the names of saved ones (`izwi
/// speakers`). Of several, each is of the microphone of one who takes part, and has their name (ann.wav, bob.wav): a word is whose microphone is
/// loudest. They are aligned by what they hear in common, and otherwise begin together. With --llm a language model writes minutes. Recordings are
/// transcribed in parts of about five minutes, which are kept in OUTPUT.izwi-meeting as they are done: a run that is interrupted or killed goes on
/// there when the same command is given again. A model that is not installed is pulled first.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Recording of the meeting, or one of each who takes part
    #[arg(required = true, value_name = "RECORDING", value_hint = ValueHint::FilePath)]
    recordings: Vec<PathBuf>,
    /// File to write: .md, or .json
    #[arg(long, short, value_name = "OUTPUT", value_hint = ValueHint::FilePath)]
    output: PathBuf,
    #[command(flatten)]
    llm: LlmFlags,
    /// Keep the folder of transcribed parts at the end
    #[arg(long)]
    keep: bool,
    #[command(flatten)]
    options: TranscriptionFlags,
    /// Fail if the model is not installed, instead of pulling it
    #[arg(long)]
    no_pull: bool,
}

pub(crate) fn run(args: &Args, resolved: &Resolved) -> Result<()> {
    // Errors of the decoder are reported by this command.
    logging::begin(&resolved.settings, "warn,symphonia=off");
    let format = Format::of(&args.output)?;
    sink::check_file(&args.output)?;
    let TranscriptionFlags(options) = &args.options;
    if options.words() {
        return Err(failure::usage("--words has no effect on meetings", "leave it out"));
    }
    let is_single = args.recordings.len() == 1;
    if options.max_speakers.is_some() && !is_single {
        return Err(failure::usage("--max-speakers is for one recording of all", "leave it out"));
    }
    let options = options.clone().checked();
    let options = options.map_err(|error| failure::usage(error.message, "see `izwi help meeting`"))?;
    let mut config = engine::local_config(resolved);
    config.max_audio_bytes = MAX_BYTES;
    if !resolved.is_set("max_audio_s") {
        config.max_audio_duration = LONGEST;
    }
    let store = models::open(&resolved.settings)?;
    let speakers = is_single.then(|| models::installed_with(&store, Task::Diarize)).transpose()?;
    config.model = models::asr_model(&store, resolved)?;
    models::ensure_known(&store, &resolved.settings, &config.model, !args.no_pull)?;
    let remote = resolved.settings.remote(&config.model);
    let known = speakers.as_ref().map(|model| models::known_speakers(&store, model)).transpose()?;
    let mut tracks = Vec::new();
    for path in &args.recordings {
        tracks.push(Track::read(path, MAX_BYTES)?);
    }
    check_names(&tracks)?;
    for name in meeting::align(&mut tracks)? {
        output::status(&format!(
            "{name} has nothing in common with {}: they are taken to begin together",
            tracks[0].name
        ));
    }
    let mut work = args.output.clone().into_os_string();
    work.push(".izwi-meeting");
    let job = Job {
        args,
        format,
        max_speakers: options.max_speakers,
        options: TranscriptionOptions { max_speakers: None, ..options }.with_words(),
        speakers: speakers.map(|model| EngineCoreConfig { model, ..config.clone() }),
        known: known.unwrap_or_default(),
        tracks,
        work: WorkFolder::open(work.into()).map_err(failure::of_work)?,
    };
    let result = engine::run_model(config, remote, async |loaded| job.run(loaded).await);
    let Job { work, .. } = job;
    if result.is_ok() && !args.keep {
        work.remove()?;
    } else if result.is_err() && work.has_none(PART) && work.has_none("answer") {
        // The error says more than that this failed as well.
        let _ = work.remove();
    }
    result
}

/// Names tell speakers.
fn check_names(tracks: &[Track]) -> Result<()> {
    for (at, track) in tracks.iter().enumerate() {
        if tracks[..at].iter().any(|other| other.name == track.name) {
            return Err(failure::usage(
                format!("two recordings are called {}", track.name),
                "give each the name of who speaks in it",
            ));
        }
    }
    Ok(())
}

/// Extension of what is stored.
const PART: &str = "json";

/// What is stored of a part, or of the turns of speakers.
#[derive(Debug, Default, Serialize, Deserialize)]
struct StoredPart {
    segments: Vec<StoredSegment>,
}

#[derive(Debug, Serialize, Deserialize)]
struct StoredSegment {
    start: f64,
    end: f64,
    text: String,
    words: Vec<(String, f64, f64, f32)>,
    speaker: Option<u32>,
    name: Option<String>,
}

impl StoredPart {
    fn of(segments: &[Segment]) -> Self {
        let kept = segments.iter().map(|segment| StoredSegment {
            start: segment.start_s,
            end: segment.end_s,
            text: segment.text.clone(),
            words: segment
                .words
                .iter()
                .map(|word| (word.text.clone(), word.start_s, word.end_s, word.probability))
                .collect(),
            speaker: segment.speaker,
            name: segment.speaker_name.as_deref().map(str::to_owned),
        });
        Self { segments: kept.collect() }
    }

    /// The segments, so much later.
    fn segments(self, later_s: f64) -> Vec<Segment> {
        let segment = |stored: StoredSegment| Segment {
            start_s: stored.start + later_s,
            end_s: stored.end + later_s,
            text: stored.text,
            words: stored
                .words
                .into_iter()
                .map(|(text, start, end, probability)| Word {
                    text,
                    start_s: start + later_s,
                    end_s: end + later_s,
                    probability,
                })
                .collect(),
            speaker: stored.speaker,
            speaker_name: stored.name.map(Into::into),
            ..Segment::default()
        };
        self.segments.into_iter().map(segment).collect()
    }
}

/// A part of a track, and the file that keeps its transcript.
#[derive(Debug)]
struct Part {
    track: usize,
    samples: Range<usize>,
    file: String,
}

struct Job<'a> {
    args: &'a Args,
    format: Format,
    options: TranscriptionOptions,
    max_speakers: Option<u64>,
    /// The model that tells speakers, of one recording.
    speakers: Option<EngineCoreConfig>,
    /// Speakers whose names are known to it.
    known: Vec<KnownSpeaker>,
    tracks: Vec<Track>,
    work: WorkFolder,
}

impl Job<'_> {
    async fn run(&self, loaded: Loaded) -> Result<()> {
        let Loaded { engine, mut interrupt, .. } = loaded;
        // Before hours of work.
        let llm = interrupt.guard(self.language_model()).await?;
        let parts = self.parts(&engine.config().model);
        self.transcribe(&engine, &parts, &mut interrupt).await.inspect_err(|_| self.report_stored(&parts))?;
        drop(engine);
        let utterances =
            self.utterances(&parts, &mut interrupt).await.inspect_err(|_| self.report_stored(&parts))?;
        let duration = self.tracks.iter().map(|track| track.start_s + track.duration_s()).fold(0.0, f64::max);
        let name = self.args.output.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let mut notes = Notes { name, duration, minutes: None, utterances };
        let minutes = match &llm {
            Some((llm, name)) if !notes.utterances.is_empty() => {
                output::status("writing the minutes");
                let transcript = notes.transcript();
                let writing = meeting::write_minutes(llm, name, &transcript, &self.work);
                interrupt.guard(writing).await.map(Some)
            }
            _ => Ok(None),
        };
        let failed = match minutes {
            Ok(minutes) => {
                notes.minutes = minutes;
                None
            }
            Err(error) => Some(error),
        };
        // The transcript is there also without its minutes.
        sink::write_bytes(&self.args.output, notes.render(self.format)?.as_bytes())?;
        let path = self.args.output.display();
        if let Some(error) = failed {
            let message = format!("{path} has no minutes: {error:#}");
            return Err(failure::with_help(message, "the same command asks the language model again"));
        }
        let speakers = notes.speakers().len();
        output::status(&format!("{path}: {}, {speakers} speakers", clock(duration)));
        Ok(())
    }

    /// The language model, and what it is called.
    async fn language_model(&self) -> Result<Option<(LanguageModel, String)>> {
        let Some(pipeline) = self.args.llm.find().await? else { return Ok(None) };
        output::status(&format!("minutes come from {}", pipeline.place()));
        let config = pipeline.with_key()?;
        let name = config.llm.model.clone();
        let llm = LanguageModel::new(config)
            .map_err(|error| failure::usage(format!("--llm: {error}"), "see `izwi help meeting`"))?;
        Ok(Some((llm, name)))
    }

    fn parts(&self, model: &str) -> Vec<Part> {
        let options = format!("{model}\n{:?}\n", self.options);
        let of_track = |(track, own): (usize, &Track)| {
            let part = |samples: Range<usize>| {
                let file = format!("{}.{PART}", key(&options, &own.samples[samples.clone()]));
                Part { track, samples, file }
            };
            own.parts().into_iter().filter(|samples| !samples.is_empty()).map(part).collect::<Vec<_>>()
        };
        self.tracks.iter().enumerate().flat_map(of_track).collect()
    }

    fn stored(&self, file: &str) -> Option<StoredPart> {
        let bytes = std::fs::read(self.work.file(file)).ok()?;
        serde_json::from_slice(&bytes).ok()
    }

    fn report_stored(&self, parts: &[Part]) {
        let done = parts.iter().filter(|part| self.stored(&part.file).is_some()).count();
        if done > 0 {
            let folder = self.work.path().display();
            output::status(&format!(
                "{done} of {} parts are transcribed and kept in {folder}; the same command goes on from there",
                parts.len()
            ));
        }
    }

    /// Transcribes the parts that are not kept.
    async fn transcribe(
        &self,
        engine: &izwi_core::engine::Engine,
        parts: &[Part],
        interrupt: &mut Interrupt,
    ) -> Result<()> {
        let todo: Vec<&Part> = parts.iter().filter(|part| self.stored(&part.file).is_none()).collect();
        if todo.len() < parts.len() {
            output::status(&format!(
                "{} of {} parts were transcribed before",
                parts.len() - todo.len(),
                parts.len()
            ));
        }
        let progress = RefCell::new(TranscriptionProgress::new(todo.len()));
        let recordings =
            todo.iter().map(|part| async move { Ok(self.wav(part.track, part.samples.clone())) }).collect();
        let on_event = |event: transcription::Event<'_>| progress.borrow_mut().update(event);
        let deliver = |index: usize, result: Result<Transcription>| {
            let part = todo[index];
            let place = || {
                let begin = self.tracks[part.track].start_s + part.samples.start as f64 / RATE_HZ as f64;
                format!("cannot transcribe {} from {} on", self.recording(part.track), clock(begin))
            };
            let done = result.with_context(place)?;
            if let Some(warning) = incomplete(done.stats.finish_reason, "transcript") {
                progress.borrow().suspend(|| output::status(&format!("warning: {}: {warning}", place())));
            }
            let kept = serde_json::to_vec(&StoredPart::of(&done.transcript.segments))
                .context("cannot keep a part")?;
            self.work.store(&part.file, &kept).map_err(failure::of_storing)
        };
        let request = |audio| EngineCoreRequest::asr(audio).with_transcription(self.options.clone());
        transcription::transcribe_all(engine, recordings, request, interrupt, on_event, deliver).await
    }

    fn recording(&self, track: usize) -> String {
        self.args.recordings.get(track).map_or_else(String::new, |path| path.display().to_string())
    }

    fn wav(&self, track: usize, samples: Range<usize>) -> Vec<u8> {
        wav::from_i16(&self.tracks[track].samples[samples], RATE_HZ as u32)
    }

    /// Who says what, once all parts are there.
    async fn utterances(&self, parts: &[Part], interrupt: &mut Interrupt) -> Result<Vec<Utterance>> {
        let mut segments = vec![Vec::new(); self.tracks.len()];
        for part in parts {
            let kept = self.stored(&part.file).context("a part that was kept is gone")?;
            segments[part.track].extend(kept.segments(part.samples.start as f64 / RATE_HZ as f64));
        }
        let Some(config) = &self.speakers else {
            let words =
                |segments: Vec<Segment>| segments.into_iter().flat_map(|segment| segment.words).collect();
            let words: Vec<Vec<Word>> = segments.into_iter().map(words).collect();
            return Ok(meeting::of_tracks(&self.tracks, &words));
        };
        let segments = segments.into_iter().flatten().collect();
        Ok(meeting::of_segments(&SpeakerJoin::whole(segments, self.turns(config, interrupt).await?)))
    }

    /// Who speaks when in the one recording.
    async fn turns(&self, config: &EngineCoreConfig, interrupt: &mut Interrupt) -> Result<Vec<Segment>> {
        let [track] = &self.tracks[..] else { return Ok(Vec::new()) };
        if track.samples.is_empty() {
            return Ok(Vec::new());
        }
        let names: Vec<_> = self.known.iter().map(|known| (&known.name, &known.embedding)).collect();
        let on = format!("{}\n{:?}\n{names:?}\n", config.model, self.max_speakers);
        let file = format!("speakers-{}.{PART}", key(&on, &track.samples));
        if let Some(kept) = self.stored(&file) {
            return Ok(kept.segments(0.0));
        }
        output::status("telling who speaks");
        let engine = engine::load(config.clone(), interrupt).await?;
        let options =
            TranscriptionOptions { max_speakers: self.max_speakers, ..TranscriptionOptions::default() };
        let request = |audio| EngineCoreRequest::diarization(audio).with_transcription(options.clone());
        let recording = std::future::ready(Ok(self.wav(0, 0..track.samples.len())));
        let mut turns = Vec::new();
        let deliver = |_, result: Result<Transcription>| {
            let done =
                result.with_context(|| format!("cannot tell the speakers of {}", self.recording(0)))?;
            turns = named(done.transcript.segments, &self.known)?;
            Ok(())
        };
        transcription::transcribe_all(&engine, vec![recording], request, interrupt, |_| {}, deliver).await?;
        let kept = serde_json::to_vec(&StoredPart::of(&turns)).context("cannot keep the speakers")?;
        self.work.store(&file, &kept).map_err(failure::of_storing)?;
        Ok(turns)
    }
}

/// The name of what a model with these options makes of samples.
fn key(options: &str, samples: &[i16]) -> String {
    let mut bytes = options.as_bytes().to_vec();
    bytes.extend(samples.iter().flat_map(|sample| sample.to_le_bytes()));
    sha256(bytes)
}
