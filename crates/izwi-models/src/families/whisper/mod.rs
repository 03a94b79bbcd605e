//! The whisper family: recordings to text, a window of at most 30 s at a time, a token a step.
//!
//! Implements [`SpeechModel`]: checks requests and batches the work of a step. [`window_decoder`] decides what follows a
//! pass. Knows no request and no scheduler. Source of the architecture: <https://github.com/openai/whisper>.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use izwi_audio::vad::VadModel;
use rayon::prelude::*;

use self::beam_search::{BeamOptions, Beams};
use self::config::Settings;
use self::context::{Context, Decided};
use self::decoder::{Decoder, Span, SpanOutput};
use self::encoder::{Encoder, Encoding};
use self::given::Given;
use self::rules::Rules;
use self::state::{DecodingOptions, DecodingState, PassKind, Recording, Window};
use self::tokens::Vocabulary;
use self::window_decoder::WindowDecoder;
use super::LoadOptions;
use crate::given_text::GivenText;
use crate::keywords::Keywords;
use crate::log_mel::{self, FrontEnd, LogMel, SAMPLE_RATE_HZ};
use crate::model::{BatchEntry, EntryResult, SequenceState, SpeechModel};
use crate::regions::{self, Region, WINDOW_FRAMES};
use crate::text::spoken_words::WordFinder;
use crate::warm_up;
use izwi_nn::Error;
use izwi_nn::checkpoint::Checkpoint;
use izwi_nn::kv_pool::{KvLayout, KvPool};
use izwi_types::{
    Input, InputError, ListenInput, ModelInfo, PrepareLimits, Prepared, StepOutput, TranscriptionOptions,
    languages,
};

mod alignment;
mod beam_search;
#[cfg(all(test, feature = "metal", not(target_vendor = "apple")))]
mod budgets;
mod config;
mod context;
mod decoder;
mod encoder;
mod given;
mod given_passes;
#[cfg(test)]
mod golden;
mod live;
mod rescoring;
mod rescoring_passes;
mod rules;
mod sampling;
mod segments;
mod state;
#[cfg(test)]
mod tests;
mod tokens;
mod window_decoder;
mod word_times;

/// Silence after a window, in positions of 20 ms: 2 s. Word errors of 465 words (the test clips, plain, in pairs and with
/// two levels of noise) with 0.2, 0.5, 1, 2 and 5 s and all 30 s: base 61, 20, 20, 19, 18, 12; tiny.en 31, 30, 25,
/// 21, 22, 28.
const MARGIN: usize = 100;
/// Least positions of a decoder pass.
const MIN_POSITIONS: usize = 64;
/// Positions of a search's branch that blocks round up to, at their two ends.
const BLOCK_MARGIN: usize = 64;

/// Loads the checkpoint in `folder`: `model.safetensors`, `tokenizer.json`, `config.json` and, if present,
/// `generation_config.json`.
///
/// # Errors
/// A file is missing or unreadable, a setting is not supported, or a tensor is missing, unknown or mis-shaped; the
/// error names it.
pub(super) fn load(folder: &Path, options: &LoadOptions) -> Result<Arc<dyn SpeechModel>, Error> {
    Ok(Arc::new(Whisper::load(folder, options, Context::Short { margin: MARGIN })?))
}

/// Reads the tokenizer of a checkpoint for a network of `size` tokens, and the ids of a text.
///
/// # Errors
/// The tokenizer is unreadable or does not fit.
pub(super) fn tokenize(folder: &Path, size: usize, text: &str) -> Result<Vec<u32>, Error> {
    Ok(Vocabulary::load(folder, size)?.encode(text))
}

#[derive(Debug)]
struct Whisper {
    info: ModelInfo,
    front_end: FrontEnd,
    encoder: Encoder,
    decoder: Decoder,
    window_decoder: WindowDecoder,
    /// Limits of encoder and decoder positions.
    max_positions: (usize, usize),
    /// Samples of [`SpeechModel::warm_up_input`].
    warm_up: Arc<[f32]>,
    vad: VadModel,
    words: WordFinder,
}

/// The state of a sequence; `None` if the recording has no speech.
type State = Option<DecodingState>;

/// The share of one batch entry in a step.
struct Share<'a> {
    recording: &'a Recording,
    state: &'a mut DecodingState,
    /// Decoder positions of this step, or the encoder's part: start and end.
    rows: (usize, usize),
    block_table: &'a [u32],
    branch_tables: &'a [Vec<u32>],
}

impl Whisper {
    fn load(folder: &Path, options: &LoadOptions, context: Context) -> Result<Self, Error> {
        let settings = Settings::load(folder)?;
        let config = &settings.config;
        let vocabulary = Vocabulary::load(folder, config.vocab_size)?;
        let weights = folder.join("model.safetensors");
        let precision = options.weight_precision();
        let mut checkpoint = options.cached(Checkpoint::open(&weights, &options.device)?, precision);
        let encoder = Encoder::load(&mut checkpoint, config, precision)?;
        let repeats_head = checkpoint.has(decoder::HEAD);
        let alignment_heads = &settings.alignment_heads;
        let decoder = Decoder::load(&mut checkpoint, config, alignment_heads, repeats_head, precision)?;
        // Convolutions and tables of positions, which are not packed, are a small part.
        let weight_bytes = checkpoint.taken() * precision.bits() / 8;
        checkpoint.finish()?;
        let codes = vocabulary.languages.iter().map(|(code, _)| code.clone());
        let multilingual = settings.multilingual;
        Ok(Self {
            info: ModelInfo {
                languages: if multilingual { codes.collect() } else { vec!["en".to_owned()] },
                translates: multilingual,
                aligns_text: true,
                calls_tools: false,
                transcriber: None,
                takes_keywords: true,
                detects_language: multilingual,
                takes_prompt: true,
                live_windows: true,
                state_bytes: decoder.window_bytes(config.max_source_positions),
                ..ModelInfo::listening(SAMPLE_RATE_HZ as u32, weight_bytes)
            },
            front_end: FrontEnd::new(config.num_mel_bins),
            window_decoder: WindowDecoder {
                parts: encoder.parts(),
                rules: Rules::new(&settings, &vocabulary),
                vocabulary,
                context,
                multilingual,
            },
            encoder,
            decoder,
            max_positions: (config.max_source_positions, config.max_target_positions),
            warm_up: warm_up::noise(SAMPLE_RATE_HZ),
            vad: options.vad.clone(),
            words: WordFinder::new()?,
        })
    }

    /// Validates a request and turns it into tokens.
    fn decoding_options(
        &self,
        input: &ListenInput,
        limits: &PrepareLimits,
    ) -> Result<DecodingOptions, InputError> {
        let (_, most) = self.max_positions;
        let max_positions = most.min(limits.max_positions);
        if max_positions < MIN_POSITIONS {
            let message = format!(
                "this engine holds passes of {max_positions} tokens, transcription needs {MIN_POSITIONS}; raise max_blocks"
            );
            return Err(InputError { param: "audio", message });
        }
        let options = &input.options;
        if options.translate && !self.info.translates {
            let message =
                "this model transcribes English only and does not translate; choose a multilingual one";
            return Err(InputError { param: "model", message: message.to_owned() });
        }
        let vocabulary = &self.window_decoder.vocabulary;
        let task = if options.translate { vocabulary.translate } else { vocabulary.transcribe };
        let prompt = options.prompt.as_deref().map(str::trim).filter(|prompt| !prompt.is_empty());
        let decided = input
            .window
            .as_ref()
            .map(|window| Decided::new(window, input.samples.len(), max_positions, vocabulary));
        let language = |wanted: &str| self.language("language", wanted);
        let candidates = options.languages.iter().map(|wanted| self.language("languages", wanted));
        let is_greedy = input.is_streamed || input.window.is_some() || input.text.is_some();
        let most = most_beams(max_positions, limits);
        Ok(DecodingOptions {
            language: options.language.as_deref().map(language).transpose()?,
            languages: candidates.collect::<Result<_, _>>()?,
            task: self.info.translates.then_some(task),
            prompt: prompt.map(|prompt| vocabulary.encode(&format!(" {prompt}"))).unwrap_or_default(),
            keywords: Keywords::new(&options.keywords, &vocabulary.bytes),
            words: options.words(),
            logprobs: options.logprobs(),
            temperature: input.temperature(),
            beams: BeamOptions::new(options, is_greedy, most)?,
            seed: input.seed(),
            max_positions,
            max_tokens_per_step: limits.max_tokens_per_step,
            decided: decided.transpose()?,
            given: None,
        })
    }

    /// The text to align with a recording whose speech is in `regions`.
    fn given(
        &self,
        text: &str,
        input: &ListenInput,
        options: &DecodingOptions,
        regions: &[Region],
    ) -> Result<Given, InputError> {
        let vocabulary = &self.window_decoder.vocabulary;
        let language = options.language.and_then(|language| vocabulary.code(language));
        let duration_s = input.samples.len() as f64 / SAMPLE_RATE_HZ as f64;
        let text = GivenText::new(&self.words, text, language, duration_s)?;
        let is_whole = matches!(regions, [region] if region.frames.len() <= WINDOW_FRAMES);
        Given::new(text, is_whole, options.max_positions, vocabulary)
    }

    /// The token of a language given by code or name in the field `param`. The names and codes are openai-whisper's
    /// (`LANGUAGES`, `TO_LANGUAGE_CODE`): <https://github.com/openai/whisper/blob/main/whisper/tokenizer.py>.
    fn language(&self, param: &'static str, wanted: &str) -> Result<u32, InputError> {
        let fault = |message: String| InputError { param, message };
        let code = languages::supported(wanted, &self.info.languages).map_err(fault)?;
        let missing = || fault(format!("language '{code}' has no token in this checkpoint; leave it out"));
        self.window_decoder.vocabulary.language(&code).ok_or_else(missing)
    }

    fn record(&self, samples: &[f32], regions: Vec<Region>, options: DecodingOptions) -> Recording {
        let padded = |frames: &Range<usize>| frames.start..frames.end + log_mel::FADE;
        let mel: Vec<_> =
            regions.iter().map(|region| self.front_end.frames(samples, padded(&region.frames))).collect();
        Recording {
            peak: mel.iter().map(LogMel::peak).fold(f32::NEG_INFINITY, f32::max),
            regions,
            mel,
            duration_s: samples.len() as f64 / SAMPLE_RATE_HZ as f64,
            max_positions: self.max_positions.0,
            options,
        }
    }

    fn prepared(&self, recording: Recording) -> Prepared {
        let work = self.window_decoder.begin(&recording).map_or_else(state::no_speech_work, |(_, work)| work);
        Prepared::new(work, Arc::new(recording))
    }

    /// Computes the next part of the encoder for each window, those that wait for the same part together. Returns the
    /// outputs, in order.
    fn encode(&self, shares: &mut [Share<'_>]) -> Result<Vec<StepOutput>, Error> {
        for part in 0..self.encoder.parts() {
            let mut group: Vec<&mut Window> = shares
                .iter_mut()
                .filter(|share| share.rows.0 == part)
                .map(|share| &mut share.state.window)
                .collect();
            if group.is_empty() {
                continue;
            }
            let inputs: Vec<&Encoding> = group.iter().map(|window| &window.encoding).collect();
            let rows = self.encoder.forward(part, &inputs)?;
            if part + 1 < self.encoder.parts() {
                for (window, rows) in group.iter_mut().zip(rows) {
                    // A view would keep the rows of the whole batch.
                    window.encoding = Encoding::Partial { rows: rows.contiguous()?, part: part + 1 };
                }
            } else {
                for (window, encoded) in group.iter_mut().zip(self.decoder.windows(&rows)?) {
                    (window.encoding, window.encoded) = (Encoding::Done, encoded);
                }
            }
        }
        let outputs = shares.iter().map(|share| {
            let state = &share.state;
            let next_pass = state.window.encoding.next_part().is_none().then(|| state.next_work());
            StepOutput { next_pass, ..StepOutput::default() }
        });
        Ok(outputs.collect())
    }

    fn decode(&self, kv: &mut KvPool, shares: &[Share<'_>]) -> Result<Vec<SpanOutput>, Error> {
        let spans = shares.iter().map(|share| {
            let (from, end) = share.rows;
            let pass = &share.state.pass;
            let newest = pass.beams.as_ref().filter(|_| from >= pass.tokens.len()).map(Beams::newest);
            if let Some(tokens) = newest {
                let window = &share.state.window.encoded;
                return Ok(Span::of_branches(tokens, from, (share.block_table, share.branch_tables), window));
            }
            let tokens = pass.tokens.get(from..end);
            let mut heads = Vec::new();
            if window_decoder::needs_no_speech_prob(share.state, from, end) {
                heads.push(pass.start_at - from);
            }
            match pass.kind {
                // The logits before each token of the text.
                PassKind::Score => {
                    let rows = from.max(pass.prompt_len - 1)..end.min(pass.tokens.len() - 1);
                    heads.extend(rows.map(|row| row - from));
                }
                PassKind::Detect | PassKind::Decode if end == pass.tokens.len() => heads.push(end - 1 - from),
                PassKind::Detect | PassKind::Decode | PassKind::Align => {}
            }
            heads.dedup();
            Ok(Span {
                tokens: tokens
                    .ok_or(Error::Internal("an entry asks for positions that do not exist"))?
                    .into(),
                start: from,
                block_table: share.block_table,
                branch_tables: &[],
                window: &share.state.window.encoded,
                heads,
                record_cross_weights: pass.kind == PassKind::Align,
            })
        });
        self.decoder.forward(kv, &spans.collect::<Result<Vec<_>, Error>>()?)
    }
}

/// The widest search over passes of `max_positions` of which the engine holds one: up to half of the positions are generated,
/// in blocks of each branch's own.
fn most_beams(max_positions: usize, limits: &PrepareLimits) -> usize {
    let left = limits.max_positions.saturating_sub(max_positions / 2);
    (left / (max_positions / 2 + BLOCK_MARGIN)).min(limits.max_tokens_per_step)
}

/// The share of an entry; `None` if its recording has no speech. Its positions exist.
fn share<'a>(entry: &'a mut BatchEntry<'_>) -> Result<Option<Share<'a>>, Error> {
    let foreign = Error::Internal("an entry was prepared by another family");
    let Some(recording) = entry.prepared.payload.downcast_ref::<Recording>() else { return Err(foreign) };
    let Some(state) = entry.state.downcast_mut::<State>() else { return Err(foreign) };
    let (start, end) = (entry.start, entry.start + entry.num_tokens);
    let (block_table, branch_tables) = (entry.block_table, entry.branch_tables);
    let Some(state) = state else { return Ok(None) };
    if let Some(beams) = state.pass.beams.as_mut().filter(|_| entry.begins) {
        // The blocks of its branches were freed.
        beams.restart();
    }
    let unknown = Error::Internal("an entry asks for positions that do not exist");
    if let Some(part) = state.window.encoding.next_part() {
        let share = Share { recording, state, rows: (part, part + 1), block_table, branch_tables };
        return if part == start { Ok(Some(share)) } else { Err(unknown) };
    }
    let branches = state.pass.beams.as_ref().map_or(0, |beams| beams.newest().len());
    if end > state.pass.known() || branch_tables.len() + 1 != branches.max(1) {
        return Err(unknown);
    }
    let rows = (state.first_row(start), end);
    Ok(Some(Share { recording, state, rows, block_table, branch_tables }))
}

impl SpeechModel for Whisper {
    fn info(&self) -> &ModelInfo {
        &self.info
    }

    fn kv_layout(&self) -> Option<KvLayout> {
        Some(self.decoder.kv_layout())
    }

    fn max_positions(&self) -> Option<usize> {
        Some(self.max_positions.1)
    }

    fn prepare(&self, input: &Input, limits: &PrepareLimits) -> Result<Prepared, InputError> {
        let Input::Listen(input) = input else { return Err(InputError::other_task("listens", "input")) };
        let mut options = self.decoding_options(input, limits)?;
        // Live windows are speech already. The warm-up must reach the network even if the detector finds no speech in its noise.
        let whole = input.window.is_some() || Arc::ptr_eq(&input.samples, &self.warm_up);
        let regions = match whole {
            true => regions::whole(&input.samples),
            false => regions::find(&self.vad, &input.samples, input.options.detection().as_ref()),
        };
        let regions = match &input.text {
            Some(text) => {
                let regions = regions::joined(regions)?;
                options.given = Some(self.given(text, input, &options, &regions)?);
                regions
            }
            None => regions,
        };
        Ok(self.prepared(self.record(&input.samples, regions, options)))
    }

    fn start(&self, prepared: &Prepared) -> SequenceState {
        let recording = prepared.payload.downcast_ref::<Recording>();
        let state: State =
            recording.and_then(|recording| self.window_decoder.begin(recording)).map(|(state, _)| state);
        Box::new(state)
    }

    fn forward(&self, kv: &mut KvPool, batch: &mut [BatchEntry<'_>]) -> Result<Vec<EntryResult>, Error> {
        let mut outputs: Vec<EntryResult> = Vec::with_capacity(batch.len());
        let (mut encoding, mut decoding) = ((Vec::new(), Vec::new()), (Vec::new(), Vec::new()));
        for (place, entry) in batch.iter_mut().enumerate() {
            outputs.push(match share(entry) {
                Ok(share) => {
                    if let Some(share) = share {
                        let encodes = share.state.window.encoding.next_part().is_some();
                        let (places, shares) = if encodes { &mut encoding } else { &mut decoding };
                        places.push(place);
                        shares.push(share);
                    }
                    Ok(StepOutput { finished: true, ..StepOutput::default() })
                }
                Err(error) => Err(error),
            });
        }
        let (places, mut shares) = encoding;
        for (place, output) in places.into_iter().zip(self.encode(&mut shares)?) {
            outputs[place] = Ok(output);
        }
        let (places, shares): (Vec<usize>, Vec<Share<'_>>) = decoding;
        if shares.is_empty() {
            return Ok(outputs);
        }
        let computed = self.decode(kv, &shares)?;
        let advanced: Vec<EntryResult> = shares
            .into_par_iter()
            .zip(computed)
            .map(|(share, computed)| {
                self.window_decoder.advance(share.recording, share.state, share.rows, computed)
            })
            .collect();
        for (place, output) in places.into_iter().zip(advanced) {
            outputs[place] = output;
        }
        Ok(outputs)
    }

    fn warm_up_input(&self) -> Input {
        let options = TranscriptionOptions {
            language: Some("en".to_owned()),
            // A run of the warm-up has one block table.
            beam_size: Some(1),
            ..TranscriptionOptions::default()
        };
        let options = options.with_words();
        Input::Listen(ListenInput { options, ..ListenInput::plain(Arc::clone(&self.warm_up)) })
    }
}
