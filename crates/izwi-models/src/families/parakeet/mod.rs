//! The parakeet family: recordings to text by a conformer and a transducer or CTC, a stretch of speech of at most 30 s in
//! each step. Models whose rows see nothing after their chunk take stretches of any length, some chunks in each step, and
//! audio that is appended while it is transcribed ([`live`]).
//!
//! The encoder computes all stretches of a step together; the search follows in lockstep. Source of the architecture: the
//! Python package `nemo-toolkit` 3.0.0; checkpoints in its layout or in that of `transformers` 5.24.0.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use candle_core::Tensor;
use izwi_audio::vad::VadModel;

use self::config::{Config, HOP, HeadShape, ROW_S, SAMPLE_RATE_HZ, nemo_name};
use self::given::Given;
use self::live::Live;
use self::transducer::{Search, Transducer};
use self::vocabulary::{Timed, TimedWord, Vocabulary};
use super::LoadOptions;
use crate::conformer::{Encoder, FRAMES_PER_ROW, FrontEnd, Mel, Stream};
use crate::given_text::{self, GivenText};
use crate::keywords::{Keywords, Place};
use crate::model::{BatchEntry, EntryResult, SequenceState, SpeechModel};
use crate::regions::{self, Region, WINDOW_FRAMES};
use crate::text::spoken_words::WordFinder;
use crate::warm_up;
use izwi_nn::Error;
use izwi_nn::checkpoint::Checkpoint;
use izwi_nn::kv_pool::{KvLayout, KvPool};
use izwi_nn::layers::Linear;
use izwi_nn::sampling::{argmax, logprob};
use izwi_types::{
    AudioProgress, Input, InputError, ListenInput, ModelInfo, Precision, PrepareLimits, Prepared, Segment,
    StepOutput, TokenLogprob, Word, Work, excerpt, languages,
};

mod config;
mod given;
#[cfg(test)]
mod golden;
mod live;
mod transducer;
mod vocabulary;

/// Rows of a step where stretches are computed chunk by chunk.
const ROWS_OF_STEP: usize = 112;

/// Loads the checkpoint in `folder`: `config.json` or `model_config.yaml`, `tokenizer.json` or `tokenizer.model`, and
/// `model.safetensors` or its parts.
///
/// # Errors
/// A file is missing or unreadable, a setting is not supported, or a tensor is missing, unknown or mis-shaped; the error
/// names it.
pub(super) fn load(folder: &Path, options: &LoadOptions) -> Result<Arc<dyn SpeechModel>, Error> {
    Ok(Arc::new(Parakeet::load(folder, options)?))
}

#[derive(Debug)]
struct Parakeet {
    info: ModelInfo,
    front_end: FrontEnd,
    encoder: Encoder,
    /// Rows of a chunk that can be chosen, the default first, where stretches are computed chunk by chunk.
    chunks: Vec<usize>,
    head: Head,
    vocabulary: Vocabulary,
    words: WordFinder,
    vad: VadModel,
    /// Samples of [`SpeechModel::warm_up_input`].
    warm_up: Arc<[f32]>,
}

/// What makes tokens of rows.
#[derive(Debug)]
enum Head {
    Ctc { output: Linear, blank: usize },
    Transducer(Box<Transducer>),
}

/// A prepared recording.
#[derive(Debug)]
struct Recording {
    stretches: Vec<Stretch>,
    /// What each step computes.
    pieces: Vec<Piece>,
    wants: Wants,
    /// What tokens gain; `None` without keywords.
    keywords: Option<Arc<Keywords>>,
    /// Words of a window of live audio that are decided, and not part of its transcript.
    decided: usize,
    /// The text that is aligned, where one is given.
    given: Option<Given>,
}

/// What is told of a transcript.
#[derive(Debug, Clone, Copy)]
struct Wants {
    words: bool,
    logprobs: bool,
}

/// A stretch of speech.
#[derive(Debug)]
struct Stretch {
    /// Its first frame in the recording.
    start: usize,
    mel: Mel,
}

impl Stretch {
    /// Its start in the recording, in seconds.
    fn start_s(&self) -> f64 {
        (self.start * HOP) as f64 / SAMPLE_RATE_HZ as f64
    }
}

/// Some frames of a stretch.
#[derive(Debug)]
struct Piece {
    stretch: usize,
    frames: Range<usize>,
}

/// What the next step of a recording needs of those before.
#[derive(Debug, Default)]
struct Progress {
    /// The stretch that was begun.
    begun: Option<(Stream, Search)>,
    /// Tokens of its sentences that may go on.
    pending: Vec<Timed>,
    /// Words of a given text.
    given: given_text::Progress,
}

impl Parakeet {
    fn load(folder: &Path, options: &LoadOptions) -> Result<Self, Error> {
        let mut from = Checkpoint::open_folder(folder, &options.device)?;
        from.rename(nemo_name);
        // The filter bank is computed, and of two heads the reference takes the transducer.
        from.skip(|name| name.starts_with("preprocessor.") || name.starts_with("ctc_decoder."));
        let config = Config::load(folder, &from)?;
        let vocabulary = Vocabulary::load(folder, config.tokens)?;
        let precision = options.weight_precision();
        let mut from = options.cached(from, precision);
        let encoder = Encoder::load(&mut from, "encoder", config.encoder, precision)?;
        let head = Head::load(&mut from, &config, precision)?;
        let weight_bytes = from.taken() * precision.bits() / 8;
        from.finish()?;
        let front_end = FrontEnd::new(config.mel());
        Ok(Self {
            // A checkpoint does not tell its languages, its manifest does.
            info: ModelInfo {
                takes_keywords: true,
                writes_figures: vocabulary.has_figures(),
                state_bytes: encoder.stream_bytes(),
                chunks_ms: live::chunks_ms(&config, &front_end),
                live_windows: true,
                aligns_text: matches!(head, Head::Ctc { .. }),
                ..ModelInfo::listening(SAMPLE_RATE_HZ as u32, weight_bytes)
            },
            front_end,
            encoder,
            chunks: config.chunks,
            head,
            vocabulary,
            words: WordFinder::new()?,
            vad: options.vad.clone(),
            warm_up: warm_up::noise(SAMPLE_RATE_HZ),
        })
    }

    fn stretch(&self, samples: &[f32], frames: Range<usize>) -> Stretch {
        let rest = samples.get(frames.start * HOP..).unwrap_or_default();
        let mel = self.front_end.frames(&rest[..(frames.len() * HOP).min(rest.len())]);
        Stretch { start: frames.start, mel }
    }

    /// Rows of the encoder for a spectrum.
    fn rows(&self, mel: &Mel) -> usize {
        self.encoder.shape().rows(mel.frames)
    }

    /// The tokens of each of some spectra, which have a frame at least, with the keywords of each.
    fn transcribe(
        &self,
        spectra: &[&Mel],
        keywords: &[Option<Arc<Keywords>>],
    ) -> Result<Vec<Vec<Timed>>, Error> {
        if spectra.is_empty() {
            return Ok(Vec::new());
        }
        let encoded = self.encoder.forward(spectra)?;
        let counts: Vec<usize> = spectra.iter().map(|mel| self.rows(mel)).collect();
        self.head.decode(&encoded, &counts, keywords)
    }

    /// The segments that stretches complete, each with its given text.
    fn align(&self, shares: &mut [&mut Share<'_>]) -> Result<Vec<Vec<Segment>>, Error> {
        let Head::Ctc { output, blank } = &self.head else { return Ok(Vec::new()) };
        let spectra: Vec<&Mel> = shares.iter().filter_map(|share| Some(&share.piece.as_ref()?.0)).collect();
        if spectra.is_empty() {
            return Ok(Vec::new());
        }
        let counts: Vec<usize> = spectra.iter().map(|mel| self.rows(mel)).collect();
        let logits = output.forward(&self.encoder.forward(&spectra)?)?.to_vec2::<f32>()?;
        let mut rest = logits.as_slice();
        let aligned = shares.iter_mut().zip(counts).map(|(share, count)| {
            let (own, others) = rest.split_at(count);
            rest = others;
            let Source::Recording(Recording { given: Some(given), .. }, Some(stretch)) = share.source else {
                return Err(Error::Internal("there is nothing to align"));
            };
            let at = |row: usize| stretch.start_s() + row as f64 * ROW_S;
            Ok(given.align(&mut share.progress.given, own, *blank, at, share.finished))
        });
        aligned.collect()
    }

    /// As [`Self::transcribe`] for the next frames of stretches, if they are computed chunk by chunk, each with the rows of
    /// its chunks.
    fn go_on(
        &self,
        frames: &[&Mel],
        keywords: &[Option<Arc<Keywords>>],
        progress: &mut [(&mut Progress, usize)],
    ) -> Result<Vec<Vec<Timed>>, Error> {
        let (Head::Transducer(transducer), false) = (&self.head, self.chunks.is_empty()) else {
            return self.transcribe(frames, keywords);
        };
        if frames.is_empty() {
            return Ok(Vec::new());
        }
        let (mut streams, mut searches) = (Vec::new(), Vec::new());
        for ((progress, chunk), keywords) in progress.iter_mut().zip(keywords) {
            let begun = match progress.begun.take() {
                Some(begun) => begun,
                None => (self.encoder.stream(*chunk), transducer.begin()?.with(keywords)),
            };
            let (stream, search) = progress.begun.insert(begun);
            streams.push(stream);
            searches.push(search);
        }
        let before: Vec<usize> = streams.iter().map(|stream| stream.rows()).collect();
        let encoded = self.encoder.advance(frames, &mut streams)?;
        let counts: Vec<usize> =
            streams.iter().zip(before).map(|(stream, before)| stream.rows() - before).collect();
        transducer.advance(&encoded, &counts, &mut searches)?;
        Ok(searches.into_iter().map(|search| std::mem::take(&mut search.found)).collect())
    }

    /// Adds what was found to what is pending, and returns the words of it.
    fn words(&self, progress: &mut Progress, tokens: Vec<Timed>, output: &mut StepOutput) -> Vec<TimedWord> {
        let known = progress.pending.len();
        let tokens = tokens.into_iter().filter(|token| !self.vocabulary.is_special(token.token));
        progress.pending.extend(tokens);
        output.generated_tokens = progress.pending.len() - known;
        if self.head.settles_marks() {
            self.vocabulary.settle(&mut progress.pending);
        }
        self.vocabulary.words(&progress.pending)
    }

    /// The transcript of what was found in a stretch: all of it if it `ends`, else the sentences that do not go on.
    fn output(
        &self,
        recording: &Recording,
        stretch: &Stretch,
        tokens: Vec<Timed>,
        (progress, ends): (&mut Progress, bool),
    ) -> StepOutput {
        let mut output = StepOutput::default();
        let words = self.words(progress, tokens, &mut output);
        let words = words.get(recording.decided..).unwrap_or_default();
        let mut sentences = vocabulary::segments(words);
        if !ends {
            sentences.pop();
        }
        let mut told = 0;
        for range in sentences {
            let segment = segment(recording.wants, stretch.start, &words[range]);
            told += segment.tokens.len();
            output.text.push_str(&segment.text);
            output.segments.push(segment);
        }
        if ends {
            *progress = Progress::default();
        } else {
            progress.pending.drain(..told);
        }
        output
    }

    /// The pieces of a stretch: one, or some chunks each. Words can be left out of one alone.
    fn pieces(&self, index: usize, stretch: &Stretch, decided: usize) -> Vec<Piece> {
        let frames = stretch.mel.frames;
        let mut ends = vec![frames];
        if let (Head::Transducer(_), Some(chunk), 0) = (&self.head, self.chunks.first(), decided) {
            let rows = (ROWS_OF_STEP / chunk).max(1) * chunk;
            // The first row of a recording is made of one frame.
            ends = (1 + FRAMES_PER_ROW * (rows - 1)..frames)
                .step_by(FRAMES_PER_ROW * rows)
                .chain([frames])
                .collect();
        }
        let starts = std::iter::once(0).chain(ends.clone());
        starts.zip(ends).map(|(start, end)| Piece { stretch: index, frames: start..end }).collect()
    }
}

/// A segment of words of a stretch that begins at the frame `start`.
fn segment(wants: Wants, start: usize, words: &[TimedWord]) -> Segment {
    let offset_s = (start * HOP) as f64 / SAMPLE_RATE_HZ as f64;
    let at = |row: usize| offset_s + row as f64 * ROW_S;
    let tokens: Vec<u32> = words.iter().flat_map(|word| word.tokens.iter().copied()).collect();
    let logprob: f32 = words.iter().map(|word| word.logprob).sum();
    let word = |word: &TimedWord| Word {
        text: word.spaced(),
        start_s: at(word.start),
        end_s: at(word.end),
        probability: (word.logprob / word.tokens.len().max(1) as f32).exp(),
    };
    let logprobs =
        |word: &TimedWord| TokenLogprob { bytes: word.spaced().into_bytes(), logprob: word.logprob };
    Segment {
        window_start_s: offset_s,
        start_s: words.first().map_or(offset_s, |word| at(word.start)),
        end_s: words.last().map_or(offset_s, |word| at(word.end)),
        text: words.iter().map(TimedWord::spaced).collect(),
        avg_logprob: logprob / tokens.len().max(1) as f32,
        tokens,
        words: if wants.words { words.iter().map(word).collect() } else { Vec::new() },
        logprobs: if wants.logprobs { words.iter().map(logprobs).collect() } else { Vec::new() },
        ..Segment::default()
    }
}

impl Head {
    fn load(from: &mut Checkpoint, config: &Config, precision: Precision) -> Result<Self, Error> {
        if config.head != HeadShape::Ctc {
            return Ok(Self::Transducer(Box::new(Transducer::load(from, config, precision)?)));
        }
        let (width, classes) = (config.encoder.width, config.tokens + 1);
        let part = [("decoder.decoder_layers.0.weight".to_owned(), vec![classes, width, 1])];
        let flat = |weights| Ok(izwi_nn::layers::cat_weights(weights)?.squeeze(2)?);
        let output = Linear::load_transformed(from, (&part, ""), (width, classes), precision, flat)?;
        let output = output.with_bias(&from.take("decoder.decoder_layers.0.bias", &[classes])?)?;
        Ok(Self::Ctc { output, blank: config.tokens })
    }

    /// Whether punctuation takes no time. As in the reference, which leaves the times of plain transducers as they are.
    fn settles_marks(&self) -> bool {
        match self {
            Self::Ctc { .. } => true,
            Self::Transducer(transducer) => transducer.has_durations(),
        }
    }

    /// The tokens of recordings whose rows follow one another in `encoded`, `counts` of each, with the keywords of each.
    fn decode(
        &self,
        encoded: &Tensor,
        counts: &[usize],
        keywords: &[Option<Arc<Keywords>>],
    ) -> Result<Vec<Vec<Timed>>, Error> {
        let (output, blank) = match self {
            Self::Transducer(transducer) => return transducer.decode(encoded, counts, keywords),
            Self::Ctc { output, blank } => (output, *blank),
        };
        let logits = output.forward(encoded)?.to_vec2::<f32>()?;
        let mut rest = logits.as_slice();
        let decoded = counts.iter().zip(keywords).map(|(&count, keywords)| {
            let (own, others) = rest.split_at(count);
            rest = others;
            collapse(own, blank, keywords.as_deref())
        });
        Ok(decoded.collect())
    }
}

/// The tokens of rows of logits: runs of one token are one, blanks none. A token begins where the one before it began to
/// sound, and ends where it does. A token in place of the likeliest, because of `keywords`, has the run of that.
fn collapse(logits: &[Vec<f32>], blank: usize, keywords: Option<&Keywords>) -> Vec<Timed> {
    let mut tokens: Vec<Timed> = Vec::new();
    let (mut before, mut written) = (blank, Place::default());
    for (row, logits) in logits.iter().enumerate() {
        let likeliest = argmax(logits);
        if likeliest != blank && likeliest != before {
            let token = keywords.map_or(likeliest, |keywords| keywords.likeliest(written, logits));
            if let Some(keywords) = keywords {
                written = keywords.next(written, logits, token);
            }
            let start = tokens.last().map_or(row.saturating_sub(1), |last| last.end);
            let logprob = logprob(logits, token);
            tokens.push(Timed { token: token as u32, start, end: row, logprob });
        }
        before = likeliest;
    }
    tokens
}

/// The share of an entry in a step.
struct Share<'a> {
    source: Source<'a>,
    progress: &'a mut Progress,
    /// Its frames, and the rows of its chunks; `None` where there are none.
    piece: Option<(Mel, usize)>,
    /// Whether they are the last of their stretch, and of all.
    ends: bool,
    finished: bool,
}

/// What a share is of.
enum Source<'a> {
    /// A stretch of a recording; `None` if it has no speech.
    Recording(&'a Recording, Option<&'a Stretch>),
    Live(&'a Live),
}

impl Source<'_> {
    /// Whether its words are given.
    fn is_given(&self) -> bool {
        matches!(self, Self::Recording(Recording { given: Some(_), .. }, _))
    }

    fn keywords(&self) -> Option<Arc<Keywords>> {
        match self {
            Self::Recording(recording, _) => recording.keywords.clone(),
            Self::Live(live) => live.keywords.clone(),
        }
    }
}

impl Parakeet {
    fn share<'a, 'b: 'a>(&self, entry: &'a mut BatchEntry<'b>) -> Result<Share<'a>, Error> {
        let foreign = Error::Internal("an entry was prepared by another family");
        let payload = &entry.prepared.payload;
        let Some(progress) = entry.state.downcast_mut::<Progress>() else { return Err(foreign) };
        if entry.start == 0 {
            *progress = Progress::default();
        }
        if let Some(live) = payload.downcast_ref::<Live>() {
            return self.live_share(live, progress, entry.start + entry.num_tokens);
        }
        let Some(recording) = payload.downcast_ref::<Recording>() else { return Err(foreign) };
        let next = recording.pieces.get(entry.start + 1);
        let (mut piece, mut of, mut ends) = (None, None, true);
        if let Some(Piece { stretch: index, frames }) = recording.pieces.get(entry.start) {
            ends = next.is_none_or(|next| next.stretch != *index);
            of = recording.stretches.get(*index);
            let chunk = self.chunks.first().copied().unwrap_or(0);
            piece = of.map(|stretch| (stretch.mel.part(frames.clone()), chunk));
        }
        let source = Source::Recording(recording, of);
        Ok(Share { source, progress, piece, ends, finished: next.is_none() })
    }
}

impl SpeechModel for Parakeet {
    fn info(&self) -> &ModelInfo {
        &self.info
    }

    fn kv_layout(&self) -> Option<KvLayout> {
        None
    }

    fn prepare(&self, input: &Input, limits: &PrepareLimits) -> Result<Prepared, InputError> {
        let Input::Listen(input) = input else { return Err(InputError::other_task("listens", "input")) };
        let options = &input.options;
        let wants = Wants { words: options.words(), logprobs: options.logprobs() };
        options.check_taken(&[
            "language",
            "chunking_strategy",
            "timestamp_granularities",
            "include",
            "seed",
            "keywords",
        ])?;
        // The language follows the recording: a hint must name one, and has no effect.
        if let Some(wanted) =
            options.language.as_deref().filter(|wanted| languages::code_of(wanted).is_none())
        {
            let message = format!("language '{}' is unknown; leave it out", excerpt(wanted));
            return Err(InputError { param: "language", message });
        }
        if let Some(chunk_ms) = input.chunk_ms {
            return self.prepare_live(chunk_ms, wants, &options.keywords, limits);
        }
        // Live windows are speech already. The warm-up must reach the network even if the detector finds no speech in its noise.
        let is_whole = input.window.is_some() || Arc::ptr_eq(&input.samples, &self.warm_up);
        let (regions, longest) = match is_whole {
            true => (regions::whole(&input.samples), usize::MAX),
            false => {
                let detection = options.detection();
                let longest = if self.chunks.is_empty() { WINDOW_FRAMES } else { usize::MAX };
                (regions::find(&self.vad, &input.samples, detection.as_ref()), longest)
            }
        };
        let regions = if input.text.is_some() { regions::joined(regions)? } else { regions };
        // Speech without a pause is cut where it is too long for one pass.
        let pieces = regions.into_iter().flat_map(|Region { frames: Range { start, end }, .. }| {
            (start..end).step_by(longest).map(move |at| at..end.min(at.saturating_add(longest)))
        });
        let stretches = pieces.map(|frames| self.stretch(&input.samples, frames));
        let stretches: Vec<Stretch> = stretches.filter(|stretch| stretch.mel.frames > 0).collect();
        let decided = input.window.as_ref().map_or(0, |window| window.decided.split_whitespace().count());
        let pieces: Vec<Piece> = stretches
            .iter()
            .enumerate()
            .flat_map(|(index, stretch)| self.pieces(index, stretch, decided))
            .collect();
        let size =
            |piece: &Piece| piece.frames.len().div_ceil(FRAMES_PER_ROW).min(limits.max_tokens_per_step);
        let mut units: Vec<usize> = pieces.iter().map(size).collect();
        if units.is_empty() {
            units.push(1);
        }
        let duration_s = input.samples.len() as f64 / SAMPLE_RATE_HZ as f64;
        let given = input.text.as_deref().map(|text| {
            let language = options.language.as_deref().and_then(languages::code_of);
            let text = GivenText::new(&self.words, text, language.as_deref(), duration_s)?;
            Ok(Given::new(text, &self.vocabulary))
        });
        let given = given.transpose()?;
        let keywords = self.vocabulary.keywords(&options.keywords);
        let recording = Recording { stretches, pieces, wants, keywords, decided, given };
        Ok(Prepared::new(Work::Units(units.into()), Arc::new(recording)))
    }

    fn append_audio(
        &self,
        prepared: &Prepared,
        samples: &[f32],
        is_last: bool,
    ) -> Result<AudioProgress, InputError> {
        match prepared.payload.downcast_ref::<Live>() {
            Some(live) => Ok(self.progress(live, live.audio.append(samples, is_last)?)),
            None => Err(InputError::other_task("takes this recording as a whole", "audio")),
        }
    }

    fn start(&self, _prepared: &Prepared) -> SequenceState {
        Box::new(Progress::default())
    }

    fn forward(&self, _kv: &mut KvPool, batch: &mut [BatchEntry<'_>]) -> Result<Vec<EntryResult>, Error> {
        let mut shares: Vec<_> = batch.iter_mut().map(|entry| self.share(entry)).collect();
        let (mut frames, mut keywords, mut progress) = (Vec::new(), Vec::new(), Vec::new());
        let mut aligning = Vec::new();
        for share in shares.iter_mut().flatten() {
            if share.source.is_given() {
                aligning.extend(share.piece.is_some().then_some(share));
            } else if let Some((mel, chunk)) = &share.piece {
                frames.push(mel);
                keywords.push(share.source.keywords());
                progress.push((&mut *share.progress, *chunk));
            }
        }
        let mut found = self.go_on(&frames, &keywords, &mut progress)?.into_iter();
        let mut aligned = self.align(&mut aligning)?.into_iter();
        let outputs = shares.into_iter().map(|share| {
            let Share { source, progress, piece, ends, finished } = share?;
            let missing = Error::Internal("the network has no result for a stretch");
            if source.is_given() {
                let segments = piece.map_or(Ok(Vec::new()), |_| aligned.next().ok_or(missing))?;
                let text = segments.iter().map(|segment| segment.text.as_str()).collect();
                return Ok(StepOutput { text, segments, finished, ..StepOutput::default() });
            }
            let tokens = piece.map_or(Ok(Vec::new()), |_| found.next().ok_or(missing))?;
            let output = match source {
                Source::Recording(_, None) => StepOutput::default(),
                Source::Recording(recording, Some(stretch)) => {
                    self.output(recording, stretch, tokens, (progress, ends))
                }
                Source::Live(live) => self.live_output(live, progress, tokens, ends),
            };
            Ok(StepOutput { finished, ..output })
        });
        Ok(outputs.collect())
    }

    fn warm_up_input(&self) -> Input {
        Input::Listen(ListenInput::plain(Arc::clone(&self.warm_up)))
    }
}
