//! A job that transcribes a recording of any length, part by part.

use std::fs::{self, File};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use izwi_audio::decode::{DecodeError, DecodeLimits, decode_blocks};
use izwi_audio::parts::{part_end, part_samples};
use izwi_audio::wav;
use izwi_core::engine::speakers::SpeakerJoin;
use izwi_core::engine::{AudioInput, EngineCoreRequest, RequestId, Segment, Transcript};
use izwi_hub::{WorkFolder, write_private};
use tokio::sync::mpsc;

use super::form::transcription_fields;
use super::speech::PRIORITY;
use crate::error::ApiError;
use crate::ignored::IgnoredFields;
use crate::jobs::record::Part;
use crate::jobs::{Job, Jobs, Made, internal, no_parts};
use crate::registry::Lease;
use crate::speakers::Speakers;
use crate::state::AppState;
use crate::transcript_format::{AsrTask, FinishedTranscript, TokenUsage};
use crate::transcription::CheckedRequest;
use crate::upload::Recording;

/// The longest recording.
const LONGEST: Duration = Duration::from_secs(24 * 3_600);
/// The field that carries the recording.
const FILE: &str = "file";
/// Parts that wait for the model.
const PARTS_AHEAD: usize = 1;

/// A part of the recording.
#[derive(Debug)]
struct Piece {
    number: usize,
    start_s: f64,
    seconds: f64,
    samples: Vec<f32>,
}

/// A transcription that is checked, and ready to be done.
pub(crate) struct Transcribing {
    checked: CheckedRequest,
    engine: Lease,
    speakers: Option<Speakers>,
    upload: PathBuf,
    limits: DecodeLimits,
    /// What has no effect.
    pub(crate) ignored: IgnoredFields,
}

impl Transcribing {
    /// Checks the fields with the model that they name, and how the recording begins.
    ///
    /// # Errors
    /// A field or the recording cannot be used.
    pub(crate) async fn new(
        state: &AppState,
        parts: &[(String, String)],
        upload: &Path,
    ) -> Result<Self, ApiError> {
        let (mut fields, mut ignored) = transcription_fields(parts)?;
        if fields.stream == Some(true) {
            let message = "a job has no stream: its result is a file, and its events tell its progress; leave stream out";
            return Err(ApiError::invalid("stream", message));
        }
        fields.priority.get_or_insert_with(|| PRIORITY.to_owned());
        let checked = CheckedRequest::check(fields, AsrTask::Transcribe)?;
        let (speakers, engine) = checked.lease(state, &mut ignored).await?;
        let max_bytes = usize::try_from(state.config().max_job_bytes).unwrap_or(usize::MAX);
        let limits = DecodeLimits { max_bytes, max_duration: LONGEST };
        let this = Self { checked, engine, speakers, upload: upload.to_owned(), limits, ignored };
        // It is refused as a route refuses it, before there is a job.
        this.checked.request(Recording::file(Vec::new().into(), FILE), &this.engine)?;
        match this.blocks((), |(), _| ControlFlow::Break(())).await {
            Ok(()) | Err(ApiError::Audio { error: DecodeError::Stopped, .. }) => Ok(this),
            Err(error) => Err(error),
        }
    }

    pub(crate) fn model(&self) -> &str {
        &self.engine.profile().model
    }

    fn rate_hz(&self) -> u32 {
        self.engine.profile().info.input_sample_rate_hz
    }

    /// Decodes the recording into `state` where that may block.
    async fn blocks<S: Send + 'static>(
        &self,
        mut state: S,
        on_block: impl Fn(&mut S, &[f32]) -> ControlFlow<()> + Send + 'static,
    ) -> Result<S, ApiError> {
        let (path, rate_hz, limits) = (self.upload.clone(), self.rate_hz(), self.limits);
        let decoded = tokio::task::spawn_blocking(move || {
            let file = File::open(&path).map_err(|error| internal(&error))?;
            decode_blocks(file, rate_hz, &limits, &mut |block| on_block(&mut state, block))
                .map_err(|error| ApiError::Audio { param: FILE, error })?;
            Ok(state)
        });
        decoded.await.unwrap_or_else(|panic| Err(internal(&panic)))
    }

    /// Transcribes the parts that are not stored, and writes the transcript.
    ///
    /// # Errors
    /// The recording is damaged, a model fails, or the disk is full.
    pub(crate) async fn run(self, jobs: &Arc<Jobs>, job: &Arc<Job>) -> Result<Made, ApiError> {
        let folder = job.parts();
        let folder = jobs.blocking(move |_| WorkFolder::open(folder).map(Arc::new).map_err(no_parts)).await?;
        let duration_s = self.measure(job).await?;
        job.progress(0.0, duration_s);
        let speakers = self.turns(jobs, &folder, duration_s).await?;
        let count = self.transcribe(jobs, job, &folder, duration_s).await?;
        let parts = (0..count).map(|number| stored(&folder, &part_name(number)));
        let parts = parts.collect::<Option<Vec<Part>>>().ok_or_else(|| internal(&"a stored part is gone"))?;
        self.write(jobs, job, parts, speakers, duration_s).await
    }

    /// The length of the recording in seconds: all of it is decoded once.
    async fn measure(&self, job: &Arc<Job>) -> Result<f64, ApiError> {
        let job = Arc::clone(job);
        let counted = self.blocks(0, move |samples, block| {
            *samples += block.len();
            if job.is_stopped() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        Ok(counted.await.map_err(stopped)? as f64 / f64::from(self.rate_hz()))
    }

    /// When each speaker speaks, where that is asked: told of the whole recording at once.
    async fn turns(
        &self,
        jobs: &Arc<Jobs>,
        folder: &Arc<WorkFolder>,
        duration_s: f64,
    ) -> Result<Option<Vec<Segment>>, ApiError> {
        const NAME: &str = "speakers.json";
        let Some(speakers) = &self.speakers else { return Ok(None) };
        let turns = match stored(folder, NAME) {
            Some(Part { segments, .. }) => segments,
            None => {
                let request =
                    EngineCoreRequest::diarization(self.file(jobs, duration_s, &speakers.engine).await?)
                        .with_priority(self.checked.priority);
                let segments = self.answer(&speakers.engine, request).await?.segments;
                store(jobs, folder, NAME, &Part { segments: segments.clone(), ..Part::default() }).await?;
                segments
            }
        };
        speakers.known.name(turns).map(Some)
    }

    /// The upload itself, for a model that hears all of it at once.
    async fn file(&self, jobs: &Arc<Jobs>, duration_s: f64, engine: &Lease) -> Result<AudioInput, ApiError> {
        let (config, bytes) = (engine.config(), self.upload_bytes()?);
        let longest_s = config.max_audio_duration.as_secs();
        if duration_s > longest_s as f64 || bytes > config.max_audio_bytes as u64 {
            let message = format!(
                "response_format 'diarized_json' hears the whole recording at once: at most {longest_s} s and {} bytes; \
                 compress or divide it, or choose another format",
                config.max_audio_bytes
            );
            return Err(ApiError::invalid("response_format", message));
        }
        Ok(AudioInput::from(self.read(jobs).await?))
    }

    async fn read(&self, jobs: &Arc<Jobs>) -> Result<Vec<u8>, ApiError> {
        let path = self.upload.clone();
        jobs.blocking(move |_| fs::read(&path).map_err(|error| internal(&error))).await
    }

    fn upload_bytes(&self) -> Result<u64, ApiError> {
        Ok(self.upload.metadata().map_err(|error| internal(&error))?.len())
    }

    /// Stores the transcripts of all parts, and returns their number.
    async fn transcribe(
        &self,
        jobs: &Arc<Jobs>,
        job: &Arc<Job>,
        folder: &Arc<WorkFolder>,
        duration_s: f64,
    ) -> Result<usize, ApiError> {
        let rate_hz = self.rate_hz() as usize;
        let is_one = duration_s * rate_hz as f64 <= part_samples(rate_hz) as f64;
        // A short recording is what the route transcribes, to the bit.
        let whole = is_one && self.upload_bytes()? <= self.engine.config().max_audio_bytes as u64;
        let (sender, mut pieces) = mpsc::channel(PARTS_AHEAD);
        let cutter = Cutter { rate_hz, buffer: Vec::new(), number: 0, start: 0, sender };
        let goes_on = Arc::clone(job);
        let decode = async {
            let decoded =
                self.blocks(cutter, move |cutter, block| match cutter.push(block) && !goes_on.is_stopped() {
                    true => ControlFlow::Continue(()),
                    false => ControlFlow::Break(()),
                });
            decoded.await.map_err(stopped)?.finish().await;
            Ok(())
        };
        let listen = async {
            let (mut measured, mut count) = (false, 0);
            while let Some(Piece { number, start_s, seconds, samples }) = pieces.recv().await {
                let name = part_name(number);
                if stored(folder, &name).is_none() {
                    if !std::mem::replace(&mut measured, true) {
                        job.begin_measuring();
                    }
                    let audio = match whole {
                        true => self.read(jobs).await?,
                        false => wav::to_bytes(&samples, self.rate_hz()).map_err(|error| internal(&error))?,
                    };
                    let request = self.checked.request(Recording::file(audio.into(), FILE), &self.engine)?;
                    let part = later(self.answer(&self.engine, request).await?, start_s);
                    store(jobs, folder, &name, &part).await?;
                }
                job.progress(start_s + seconds, duration_s);
                count = number + 1;
            }
            Ok(count)
        };
        tokio::try_join!(decode, listen).map(|((), count)| count)
    }

    async fn answer(&self, engine: &Lease, request: EngineCoreRequest) -> Result<Part, ApiError> {
        let (id, model) = (request.id.clone(), &engine.profile().model);
        let answered = engine.generate(request).await;
        let output =
            answered.map_err(|error| ApiError::from_engine(error, model, &id).about_recording(FILE))?;
        let Transcript { language, language_probability, segments } = output.transcript.unwrap_or_default();
        Ok(Part {
            segments,
            language,
            language_probability,
            prompt_tokens: output.stats.prompt_tokens,
            generated_tokens: output.stats.generated_tokens,
        })
    }

    /// Writes the transcript of all parts.
    async fn write(
        &self,
        jobs: &Arc<Jobs>,
        job: &Arc<Job>,
        parts: Vec<Part>,
        turns: Option<Vec<Segment>>,
        duration_s: f64,
    ) -> Result<Made, ApiError> {
        let tokens = TokenUsage {
            input: parts.iter().map(|part| part.prompt_tokens).sum(),
            output: parts.iter().map(|part| part.generated_tokens).sum(),
        };
        let mut transcript = Transcript::default();
        for part in parts {
            if transcript.language.is_none() {
                transcript.language = part.language;
                transcript.language_probability = part.language_probability;
            }
            transcript.segments.extend(part.segments);
        }
        if let Some(turns) = turns {
            transcript.segments = SpeakerJoin::whole(transcript.segments, turns);
        }
        let format = self.checked.format;
        let text = format.render(&FinishedTranscript {
            transcript: &transcript,
            task: AsrTask::Transcribe,
            duration_s,
            with_words: self.checked.with_words,
            extras: self.checked.extras_of(tokens),
        });
        let text = text.map_err(|error| ApiError::internal(&error.to_string(), &RequestId::random()))?;
        let (bytes, path) = (text.len() as u64, job.result());
        jobs.blocking(move |_| write_private(&path, text.as_bytes()).map_err(|error| internal(&error)))
            .await?;
        let media_type = format.media_type().to_owned();
        Ok(Made { media_type, extension: format.extension().to_owned(), bytes })
    }
}

/// Cuts samples that come in blocks into parts, and passes them on as they are complete.
struct Cutter {
    rate_hz: usize,
    buffer: Vec<f32>,
    number: usize,
    /// First sample of the buffer in the recording.
    start: usize,
    sender: mpsc::Sender<Piece>,
}

impl Cutter {
    /// Returns whether somebody still takes the parts.
    fn push(&mut self, block: &[f32]) -> bool {
        self.buffer.extend_from_slice(block);
        while self.buffer.len() > part_samples(self.rate_hz) {
            let end = part_end(&self.buffer, self.rate_hz);
            let piece = self.take(end);
            if self.sender.blocking_send(piece).is_err() {
                return false;
            }
        }
        true
    }

    fn take(&mut self, end: usize) -> Piece {
        let rest = self.buffer.split_off(end);
        let samples = std::mem::replace(&mut self.buffer, rest);
        let seconds = |samples: usize| samples as f64 / self.rate_hz as f64;
        let piece =
            Piece { number: self.number, start_s: seconds(self.start), seconds: seconds(end), samples };
        (self.number, self.start) = (self.number + 1, self.start + end);
        piece
    }

    /// Passes on the end of the recording.
    async fn finish(mut self) {
        if !self.buffer.is_empty() {
            let last = self.take(self.buffer.len());
            // Whoever takes no more parts knows why.
            let _ = self.sender.send(last).await;
        }
    }
}

fn part_name(number: usize) -> String {
    format!("part-{number:05}.json")
}

/// A part that is stored whole.
fn stored(folder: &WorkFolder, name: &str) -> Option<Part> {
    serde_json::from_slice(&fs::read(folder.file(name)).ok()?).ok()
}

async fn store(jobs: &Arc<Jobs>, folder: &Arc<WorkFolder>, name: &str, part: &Part) -> Result<(), ApiError> {
    let bytes = serde_json::to_vec(part).map_err(|error| internal(&error))?;
    let (folder, name) = (Arc::clone(folder), name.to_owned());
    jobs.blocking(move |jobs| {
        jobs.check_room(bytes.len() as u64)?;
        folder.store(&name, &bytes).map_err(|error| internal(&error))
    })
    .await
}

/// The same part, so much later.
fn later(mut part: Part, start_s: f64) -> Part {
    for segment in &mut part.segments {
        segment.window_start_s += start_s;
        segment.start_s += start_s;
        segment.end_s += start_s;
        for word in &mut segment.words {
            word.start_s += start_s;
            word.end_s += start_s;
        }
    }
    part
}

/// What ends a decoding that was stopped is the wish that the job stops.
fn stopped(error: ApiError) -> ApiError {
    match error {
        ApiError::Audio { error: DecodeError::Stopped, .. } => ApiError::Draining,
        error => error,
    }
}
