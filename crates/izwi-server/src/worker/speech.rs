//! A job that reads a text or a book aloud, unit by unit.

use std::collections::HashSet;
use std::sync::Mutex;

use futures::{StreamExt as _, TryStreamExt as _};
use izwi_core::engine::{Engine, EngineError, FinishReason, RequestId, Task};
use izwi_reading::{
    BindError, Binding, Book, BookError, Cast, Journal, Kind, Loudness, OutputFile, Outputs, Plan, Unit,
    UnitSound, book, seed, unit_key,
};
use izwi_types::excerpt;
use serde_json::{Map, Value};
use std::path::Path;
use std::sync::Arc;

use super::form::json;
use crate::dto::speech::{SpeechRequest, VoiceRef};
use crate::encoding::{self, OutputFormat};
use crate::error::ApiError;
use crate::extract::{non_blank, parse_with_options};
use crate::ignored::IgnoredFields;
use crate::jobs::{Job, Jobs, Made, internal, lock, no_parts};
use crate::registry::Lease;
use crate::speech::{Cloning, ResolvedSpeechOptions, VoiceChoice, check_text, voice_beside_recording};
use crate::state::AppState;
use crate::voices;

/// Units that are spoken at once: what a step of a small machine takes together.
const CONCURRENT: usize = 4;
/// The loudness of what is read, in LUFS, as of `izwi read`.
const LOUDNESS_LUFS: f64 = -18.0;
/// The priority of a job that asks for none.
pub(super) const PRIORITY: &str = "low";

/// A speech job that is checked, and ready to be done.
pub(crate) struct Reading {
    engine: Lease,
    options: ResolvedSpeechOptions,
    book: Book,
    plan: Plan,
    output: OutputFormat,
    media_type: &'static str,
    /// What has no effect.
    pub(crate) ignored: IgnoredFields,
}

impl Reading {
    /// Checks the fields with the model that they name. `upload` is the book, which has this name for its sender.
    ///
    /// # Errors
    /// A field cannot be used, or the book cannot be read.
    pub(crate) async fn new(
        state: &AppState,
        fields: &Map<String, Value>,
        upload: Option<(&Path, &str)>,
    ) -> Result<Self, ApiError> {
        let mut body: SpeechRequest = parse_with_options(&json(fields))?;
        let format = fields.get("input_format").and_then(Value::as_str);
        let (input, kind) = (body.input.take(), input_kind(format)?);
        match (&input, upload) {
            (Some(_), Some(_)) => {
                return Err(ApiError::invalid("input", "input and file are both given; send one"));
            }
            (None, None) => {
                let message = "input is missing; send a text in input, or a book as file of a form";
                return Err(ApiError::invalid("input", message));
            }
            (Some(text), None) => check_text("input", text, usize::MAX)?,
            (None, Some(_)) => {}
        }
        if body.stream_format.as_deref().is_some_and(|format| format != "audio") {
            let message = "a job has no stream: its result is a file; leave stream_format out";
            return Err(ApiError::invalid("stream_format", message));
        }
        let mut ignored = IgnoredFields::default();
        let unused = [
            ("word_times", body.word_times.is_some()),
            ("first_chunk_ms", body.first_chunk_ms.is_some()),
            ("live", body.live.is_some()),
        ];
        unused.iter().filter(|(_, is_given)| *is_given).for_each(|(name, _)| ignored.add(name));
        let model = non_blank(body.model.take());
        let (book, plan) = read(state, input, kind, upload).await?;
        let engine = state.lease(model.as_deref(), Task::Tts).await?;
        if model.as_deref().is_some_and(|model| state.registry().is_stand_in(model)) {
            ignored.add("model");
        }
        let (format, media_type) = encoding::for_http(body.response_format.as_deref())?;
        let rate_hz = engine.profile().info.sample_rate_hz;
        let output = OutputFormat::resolve(format, body.sample_rate, body.bit_rate, rate_hz)?;
        let options = resolve(state, body, &engine).await?;
        options.ignored().iter().for_each(|name| ignored.add(name));
        Ok(Self { engine, options, book, plan, output, media_type, ignored })
    }

    pub(crate) fn model(&self) -> &str {
        &self.engine.profile().model
    }

    /// Speaks the units that are not stored, and makes the file.
    ///
    /// # Errors
    /// The model fails, or the disk is full.
    pub(crate) async fn run(self, jobs: &Arc<Jobs>, job: &Arc<Job>) -> Result<Made, ApiError> {
        let (journal, keys) = (self.journal(jobs, job).await?, self.keys());
        let characters: Vec<f64> =
            self.plan.units.iter().map(|unit| unit.text.chars().count() as f64).collect();
        let total: f64 = characters.iter().sum();
        let mut known = HashSet::new();
        let (mut todo, mut done) = (Vec::new(), total);
        for (at, key) in keys.iter().enumerate() {
            if known.insert(key) && !journal.has(key) {
                todo.push(at);
                done -= characters[at];
            }
        }
        job.progress(done, total);
        job.begin_measuring();
        let (left_out, done) = (Mutex::new(HashSet::new()), Mutex::new(done));
        let width = CONCURRENT.min(self.engine.config().max_batch_size).max(1);
        let work = futures::stream::iter(todo).map(|at| {
            let (this, journal, jobs, keys, left_out, done) =
                (&self, &journal, jobs, &keys, &left_out, &done);
            let characters = characters[at];
            async move {
                match this.speak(&this.plan.units[at], &keys[at]).await? {
                    Some(sound) => this.store(jobs, job, journal, &keys[at], sound).await?,
                    None => drop(lock(left_out).insert(keys[at].clone())),
                }
                let done = {
                    let mut done = lock(done);
                    *done += characters;
                    *done
                };
                job.progress(done, total);
                Ok::<_, ApiError>(())
            }
        });
        work.buffer_unordered(width).try_for_each(|()| std::future::ready(Ok(()))).await?;
        let left_out = left_out.into_inner().unwrap_or_default();
        if keys.iter().all(|key| left_out.contains(key)) {
            let message =
                "the model has no sound for any of the text; send another text, or choose another model";
            return Err(ApiError::invalid("input", message));
        }
        self.bind(job, journal, &keys, &left_out).await
    }

    async fn journal(&self, jobs: &Arc<Jobs>, job: &Arc<Job>) -> Result<Arc<Journal>, ApiError> {
        let folder = job.parts();
        jobs.blocking(move |_| Journal::open(folder).map(Arc::new).map_err(no_parts)).await
    }

    /// The names of the units in the journal.
    fn keys(&self) -> Vec<String> {
        let fingerprint = self.options.fingerprint(&self.engine);
        self.plan.units.iter().map(|unit| unit_key(&fingerprint, &unit.text)).collect()
    }

    /// The sound of a unit; `None` if the model has none for it, such as one of markup alone.
    async fn speak(&self, unit: &Unit, key: &str) -> Result<Option<UnitSound>, ApiError> {
        // Nobody listens: the device may take as much at once as it can.
        let mut request = self.options.request(unit.text.clone()).with_live(false);
        request.options.seed = Some(seed(key));
        let (id, model) = (request.id.clone(), self.model());
        let output = match self.engine.generate(request).await {
            Err(EngineError::InvalidRequest { param, message }) if param == "input" => {
                tracing::debug!(message, "a unit of a job has no sound");
                return Ok(None);
            }
            output => output.map_err(|error| ApiError::from_engine(error, model, &id))?,
        };
        match output.stats.finish_reason {
            FinishReason::Error => Err(ApiError::from_failure(output.stats.error, model, &id)),
            FinishReason::Cancelled | FinishReason::Interrupted => Err(ApiError::Draining),
            _ => Ok(Some(UnitSound::new(&output.audio.samples, &[], output.audio.sample_rate))),
        }
    }

    async fn store(
        &self,
        jobs: &Arc<Jobs>,
        job: &Arc<Job>,
        journal: &Arc<Journal>,
        key: &str,
        sound: UnitSound,
    ) -> Result<(), ApiError> {
        let (job, journal, key) = (Arc::clone(job), Arc::clone(journal), key.to_owned());
        jobs.blocking(move |jobs| {
            let bytes = sound.stored_bytes();
            jobs.check_room(bytes)?;
            journal.store(&key, &sound).map_err(|error| internal(&error))?;
            job.add_bytes(bytes);
            Ok(())
        })
        .await
    }

    /// Makes the file of what is stored.
    async fn bind(
        self,
        job: &Arc<Job>,
        journal: Arc<Journal>,
        keys: &[String],
        left_out: &HashSet<String>,
    ) -> Result<Made, ApiError> {
        let keys: Vec<_> = keys.iter().map(|key| (!left_out.contains(key)).then(|| key.clone())).collect();
        let (job, runtime) = (Arc::clone(job), tokio::runtime::Handle::current());
        let bound = tokio::task::spawn_blocking(move || {
            let Self { engine, book, plan, output, media_type, .. } = self;
            let path = job.result();
            let files = vec![OutputFile { path: path.clone(), chapters: 0..plan.chapters.len() }];
            let (output_rate_hz, bit_rate) = output.rates();
            let outputs =
                Outputs { files, format: output.format, output_rate_hz, bit_rate, is_folder: false };
            let keys: Vec<_> = keys.iter().map(Option::as_deref).collect();
            let binding = Binding {
                book: &book,
                plan: &plan,
                keys: &keys,
                journal: &journal,
                outputs: &outputs,
                loudness: Loudness::Lufs(LOUDNESS_LUFS),
                sample_rate_hz: engine.profile().info.sample_rate_hz,
            };
            let goes_on = || if job.is_stopped() { Err(BindError::Stopped) } else { Ok(()) };
            runtime.block_on(binding.bind(false, goes_on)).map_err(|error| match error {
                BindError::Stopped => ApiError::Draining,
                error => internal(&error),
            })?;
            izwi_hub::close_file(&path).map_err(|error| internal(&error))?;
            let bytes = path.metadata().map_err(|error| internal(&error))?.len();
            let extension = output.format.extensions.first().unwrap_or(&output.format.name);
            Ok(Made { media_type: media_type.to_owned(), extension: (*extension).to_owned(), bytes })
        });
        bound.await.unwrap_or_else(|panic| Err(internal(&panic)))
    }
}

/// What a text is.
fn input_kind(name: Option<&str>) -> Result<Kind, ApiError> {
    match name {
        None | Some("text") => Ok(Kind::Text),
        Some("markdown") => Ok(Kind::Markdown),
        Some("html") => Ok(Kind::Html),
        Some(other) => {
            let message = format!("input_format '{}' is unknown; use text, markdown or html", excerpt(other));
            Err(ApiError::invalid("input_format", message))
        }
    }
}

async fn resolve(
    state: &AppState,
    mut body: SpeechRequest,
    engine: &Engine,
) -> Result<ResolvedSpeechOptions, ApiError> {
    let cloning = Cloning::new(body.ref_audio.take(), body.ref_text.take(), body.x_vector_only_mode);
    let has_recording = cloning.has_recording();
    let name = voice_beside_recording(body.voice.take().map(VoiceRef::into_id), has_recording)?;
    let choice = match has_recording {
        // The voice is made once for all units.
        true => VoiceChoice {
            voice: cloning.into_voice(engine, &RequestId::random()).await?,
            cloning: Cloning::default(),
        },
        false => VoiceChoice { voice: voices::find(name.as_deref(), engine, state.voices()).await?, cloning },
    };
    let priority = body.priority.as_deref().or(Some(PRIORITY));
    ResolvedSpeechOptions::resolve(body.options, choice, priority, engine)
}

/// The book and its plan. Markup of a whole text is one unit: its elements may span paragraphs.
async fn read(
    state: &AppState,
    input: Option<String>,
    kind: Kind,
    upload: Option<(&Path, &str)>,
) -> Result<(Book, Plan), ApiError> {
    if let Some(text) =
        input.as_deref().filter(|text| kind == Kind::Text && text.trim_start().starts_with("<speak"))
    {
        check_text("input", text, state.config().max_input_chars)?;
        let unit = Unit { text: text.to_owned(), voice: None, chapter: 0, pause_s: 0.0 };
        return Ok((Book::default(), Plan { chapters: vec![String::new()], units: vec![unit] }));
    }
    let upload = upload.map(|(path, name)| (path.to_owned(), name.to_owned()));
    let read = tokio::task::spawn_blocking(move || {
        let param = if upload.is_some() { "file" } else { "input" };
        let book = match (&input, &upload) {
            (_, Some((path, name))) => {
                Kind::of(Path::new(name)).and_then(|kind| book::read_as(path, kind, &excerpt(name)))
            }
            (Some(text), None) => book::of(text, kind, "input"),
            (None, None) => book::of("", kind, "input"),
        };
        let book = book.map_err(|error| match error {
            BookError::Unusable { message, remedy } => {
                ApiError::invalid(param, format!("{message}; {remedy}"))
            }
            BookError::Io(error) => internal(&error),
        })?;
        let book = Book { title: book.title.filter(|_| param == "file"), ..book };
        let plan = Plan::new(&book, &Cast::default());
        Ok((book, plan))
    });
    read.await.unwrap_or_else(|panic| Err(internal(&panic)))
}
