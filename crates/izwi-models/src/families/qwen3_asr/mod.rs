//! The Qwen3-ASR family: recordings to text, a stretch of speech at a time, a token a step.
//!
//! Implements [`SpeechModel`]: checks requests and batches the work of a step. Source of the architecture: the Python package
//! `qwen-asr` 0.0.6, <https://github.com/QwenLM/Qwen3-ASR>.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use izwi_audio::vad::VadModel;

use self::aligner::Aligner;
use self::audio::Window;
use self::config::{CHUNK_FRAMES, CHUNK_ROWS, Config, Purpose};
use self::decoder::{Decoder, Span};
use self::state::{Decided, Given, Recording, SPARE_TOKENS, State, Stretch, TOKENS_PER_S, spoken};
use self::tokens::{Prompt, Vocabulary};
use self::tower::Tower;
use super::LoadOptions;
use crate::given_text::GivenText;
use crate::keywords::Keywords;
use crate::log_mel::{FrontEnd, HOP, SAMPLE_RATE_HZ};
use crate::model::{BatchEntry, EntryResult, SequenceState, SpeechModel};
use crate::regions::{self, WINDOW_FRAMES};
use crate::warm_up;
use izwi_nn::Error;
use izwi_nn::checkpoint::Checkpoint;
use izwi_nn::kv_pool::{KvLayout, KvPool};
use izwi_types::{
    Input, InputError, ListenInput, ModelInfo, PrepareLimits, Prepared, SamplingParams, StepOutput,
    TranscriptionOptions, Work, languages,
};

mod aligner;
mod answer;
mod audio;
mod config;
mod decoder;
#[cfg(test)]
mod golden;
#[cfg(test)]
mod golden_aligner;
#[cfg(test)]
mod golden_live;
#[cfg(test)]
mod golden_text;
mod state;
#[cfg(test)]
mod tests;
mod tokens;
mod tower;

/// The folder of Qwen3-ForcedAligner in that of a checkpoint. With one, words have times.
const ALIGNER: &str = "forced_aligner";

/// Loads the checkpoint in `folder`: `config.json`, `model.safetensors` or its parts, and the tokenizer: `vocab.json`,
/// `merges.txt` and `tokenizer_config.json`, or `tokenizer.json`; and the same in `forced_aligner/`, if there is one.
///
/// # Errors
/// A file is missing or unreadable, a setting is not supported, or a tensor is missing, unknown or mis-shaped; the error
/// names it.
pub(super) fn load(folder: &Path, options: &LoadOptions) -> Result<Arc<dyn SpeechModel>, Error> {
    Ok(Arc::new(Qwen3Asr::load(folder, options)?))
}

/// Reads the tokenizer in `folder` for a network of `size` tokens, and the prompt of a recording in which `context` may occur.
///
/// # Errors
/// The tokenizer is unreadable or does not fit.
pub(super) fn tokenize(folder: &Path, size: usize, context: &str) -> Result<Vec<u32>, Error> {
    let Prompt { before, after } = Vocabulary::load(folder, size)?.prompt(context, "");
    Ok([before, after].concat())
}

/// The network of a checkpoint folder, and the bytes of its weights.
fn network(folder: &Path, config: &Config, options: &LoadOptions) -> Result<(Tower, Decoder, usize), Error> {
    let precision = options.weight_precision();
    let mut from = options.cached(Checkpoint::open_folder(folder, &options.device)?, precision);
    let tower = Tower::load(&mut from, config.tower, precision)?;
    let decoder = Decoder::load(&mut from, config, precision)?;
    let weight_bytes = from.taken() * precision.bits() / 8;
    from.finish()?;
    Ok((tower, decoder, weight_bytes))
}

#[derive(Debug)]
struct Qwen3Asr {
    info: ModelInfo,
    config: Config,
    vocabulary: Vocabulary,
    front_end: FrontEnd,
    tower: Tower,
    decoder: Decoder,
    aligner: Option<Aligner>,
    vad: VadModel,
    /// Samples of [`SpeechModel::warm_up_input`].
    warm_up: Arc<[f32]>,
}

/// The share of one entry in a step.
struct Share<'a> {
    recording: &'a Recording,
    state: &'a mut State,
    /// Positions of this step.
    positions: Range<usize>,
    block_table: &'a [u32],
}

impl Qwen3Asr {
    /// What an answer may begin with where one of the languages of `codes` is detected, or no speech.
    fn headers(&self, codes: &[String]) -> Vec<Vec<u32>> {
        if codes.is_empty() {
            return Vec::new();
        }
        let names = codes.iter().map(|code| answer::language_name(code)).chain([answer::NONE.to_owned()]);
        names.map(|name| self.vocabulary.encode(&tokens::header(&name))).collect()
    }

    fn load(folder: &Path, options: &LoadOptions) -> Result<Self, Error> {
        let config = Config::load(folder)?;
        if config.purpose != Purpose::Transcribe {
            let message = format!(
                "aligns words and does not transcribe; put it into {ALIGNER}/ of a checkpoint that does"
            );
            return Err(Error::File { path: folder.display().to_string(), message });
        }
        let vocabulary = Vocabulary::load(folder, config.tokens)?;
        let (tower, decoder, weight_bytes) = network(folder, &config, options)?;
        let folder = folder.join(ALIGNER);
        let aligner = folder.is_dir().then(|| Aligner::load(&folder, options)).transpose()?;
        let weight_bytes = weight_bytes + aligner.as_ref().map_or(0, |aligner| aligner.weight_bytes);
        let row = config.text.width * size_of::<f32>();
        Ok(Self {
            info: ModelInfo {
                takes_keywords: true,
                detects_language: true,
                takes_prompt: true,
                languages: answer::LANGUAGES.map(str::to_owned).to_vec(),
                aligns_text: aligner.is_some(),
                live_windows: aligner.is_some(),
                state_bytes: WINDOW_FRAMES.div_ceil(CHUNK_FRAMES) * CHUNK_ROWS * row,
                ..ModelInfo::listening(SAMPLE_RATE_HZ as u32, weight_bytes)
            },
            front_end: FrontEnd::new(config.tower.bins),
            config,
            vocabulary,
            tower,
            decoder,
            aligner,
            vad: options.vad.clone(),
            warm_up: warm_up::noise(SAMPLE_RATE_HZ),
        })
    }

    fn stretch(&self, all: &[f32], samples: Range<usize>, has_words: bool) -> Stretch {
        let heard = &all[samples.clone()];
        let is_piece = heard.len() < all.len();
        let heard = if is_piece { &audio::padded(heard)[..] } else { heard };
        let tower = &self.config.tower;
        let windows = audio::windows(&self.front_end, heard, tower.bins, tower.window_chunks);
        let max_tokens = SPARE_TOKENS + heard.len().div_ceil(SAMPLE_RATE_HZ) * TOKENS_PER_S;
        let aligner = self.aligner.as_ref().filter(|_| has_words);
        let aligned = aligner.map(|aligner| aligner.windows(heard)).unwrap_or_default();
        Stretch { samples, windows, aligned, max_tokens }
    }

    /// The longest stretch, in samples, of which the engine holds a pass with these tokens around it.
    fn longest(
        &self,
        around: [&[u32]; 2],
        decided: Option<&Decided>,
        limits: &PrepareLimits,
    ) -> Result<usize, InputError> {
        let decided = decided.map_or(0, |decided| decided.tokens.len());
        let tokens = around.concat().len() + decided;
        let positions = limits.max_positions.min(self.config.max_positions);
        let of_a_second = CHUNK_ROWS + TOKENS_PER_S;
        match positions.saturating_sub(tokens + SPARE_TOKENS) / of_a_second {
            0 => {
                let message = format!(
                    "the prompt has {tokens} tokens, and this engine holds passes of {positions}; shorten the prompt \
                     or the keywords, or raise max_blocks"
                );
                Err(InputError { param: "prompt", message })
            }
            seconds => Ok((seconds * SAMPLE_RATE_HZ).min(WINDOW_FRAMES * HOP)),
        }
    }

    /// The text to align with a recording of `samples`.
    fn given(&self, text: &str, language: Option<&str>, samples: usize) -> Result<Given, InputError> {
        let aligner =
            self.aligner.as_ref().ok_or_else(|| InputError::other_task("aligns no text", "model"))?;
        let text = GivenText::new(&aligner.words, text, language, samples as f64 / SAMPLE_RATE_HZ as f64)?;
        Ok(Given { whole: Arc::new(aligner.alignment(text.words.iter().map(spoken).collect())), text })
    }

    /// What the transcript of a live window begins with; `None` for nothing.
    fn decided(&self, text: &str) -> Option<Decided> {
        let tokens = self.vocabulary.encode(self.vocabulary.plain(text).trim_start());
        (!tokens.is_empty()).then(|| Decided { text: text.to_owned(), tokens })
    }

    /// Runs the tower over the windows that a step needs and that it has not run over, all together.
    fn encode(&self, shares: &mut [Share<'_>]) -> Result<(), Error> {
        let (mut windows, mut places): (Vec<&Window>, _) = (Vec::new(), Vec::new());
        for (place, share) in shares.iter().enumerate() {
            for window in share.state.missing(share.recording, &share.positions) {
                windows.push(&share.state.stretch(share.recording)?.windows[window]);
                places.push((place, window));
            }
        }
        if windows.is_empty() {
            return Ok(());
        }
        let encoded = self.tower.forward(&windows)?;
        for ((place, window), rows) in places.into_iter().zip(encoded) {
            shares[place].state.encoded[window] = Some(rows);
        }
        Ok(())
    }

    /// Aligns the words of transcripts, all together, and delivers them.
    fn align(
        &self,
        kv: &mut KvPool,
        shares: Vec<(usize, Share<'_>)>,
        outputs: &mut [EntryResult],
    ) -> Result<(), Error> {
        let missing = || Error::Internal("there is nothing to align");
        let aligner = self.aligner.as_ref().ok_or_else(missing)?;
        let tasks = shares.iter().map(|(_, share)| {
            let heard = share.state.heard.as_ref().ok_or_else(missing)?;
            Ok((&share.state.stretch(share.recording)?.aligned[..], &*heard.alignment))
        });
        let times = aligner.times(kv, &tasks.collect::<Result<Vec<_>, Error>>()?)?;
        for ((place, share), times) in shares.into_iter().zip(times) {
            outputs[place] = Ok(share.state.align(share.recording, &times));
        }
        Ok(())
    }

    /// Computes the positions of a step: the logits after each share that reaches the last known position, in order.
    fn decode(&self, kv: &mut KvPool, shares: &[Share<'_>]) -> Result<Vec<Vec<f32>>, Error> {
        let spans = shares.iter().map(|share| {
            Ok(Span {
                pieces: share.state.pieces(share.recording, share.positions.clone())?,
                start: share.positions.start,
                num_tokens: share.positions.len(),
                block_table: share.block_table,
                wanted: (share.positions.end == share.state.known())
                    .then(|| share.positions.len() - 1)
                    .into_iter()
                    .collect(),
            })
        });
        self.decoder.forward(kv, &spans.collect::<Result<Vec<_>, Error>>()?)
    }
}

/// What may occur in a recording: keywords, and the text before it.
fn context(options: &TranscriptionOptions) -> String {
    let keywords =
        options.keywords.iter().map(|keyword| keyword.trim()).filter(|keyword| !keyword.is_empty());
    let keywords = keywords.collect::<Vec<_>>().join(", ");
    let prompt = options.prompt.as_deref().map(str::trim).unwrap_or_default();
    [&keywords, prompt].into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("\n")
}

/// Samples of which none is beyond full scale.
fn within_scale(samples: &Arc<[f32]>) -> Arc<[f32]> {
    let peak = samples.iter().fold(0f32, |peak, sample| peak.max(sample.abs()));
    if peak > 1.0 { samples.iter().map(|sample| sample / peak).collect() } else { Arc::clone(samples) }
}

/// The share of an entry; `None` if its recording has no speech.
fn share<'a>(entry: &'a mut BatchEntry<'_>) -> Result<Option<Share<'a>>, Error> {
    let foreign = Error::Internal("an entry was prepared by another family");
    let Some(recording) = entry.prepared.payload.downcast_ref::<Recording>() else { return Err(foreign) };
    let Some(state) = entry.state.downcast_mut::<Option<State>>() else { return Err(foreign) };
    let Some(state) = state else { return Ok(None) };
    let positions = entry.start..entry.start + entry.num_tokens;
    if state.heard.is_some() {
        // Its work is one unit.
        return Ok(Some(Share { recording, state, positions, block_table: entry.block_table }));
    }
    if positions.is_empty() || positions.end > state.known() {
        return Err(Error::Internal("an entry asks for positions that do not exist"));
    }
    Ok(Some(Share { recording, state, positions, block_table: entry.block_table }))
}

impl SpeechModel for Qwen3Asr {
    fn info(&self) -> &ModelInfo {
        &self.info
    }

    fn kv_layout(&self) -> Option<KvLayout> {
        Some(self.decoder.kv_layout())
    }

    fn max_positions(&self) -> Option<usize> {
        Some(self.config.max_positions)
    }

    fn prepare(&self, input: &Input, limits: &PrepareLimits) -> Result<Prepared, InputError> {
        let Input::Listen(input) = input else { return Err(InputError::other_task("listens", "input")) };
        let options = &input.options;
        let taken = [
            "language",
            "languages",
            "prompt",
            "keywords",
            "chunking_strategy",
            "include",
            "temperature",
            "seed",
            "timestamp_granularities",
        ];
        options.check_taken(&taken[..taken.len() - usize::from(self.aligner.is_none())])?;
        let code = |param, wanted: &str| {
            languages::supported(wanted, &self.info.languages)
                .map_err(|message| InputError { param, message })
        };
        let language = options.language.as_deref().map(|wanted| code("language", wanted)).transpose()?;
        let candidates = options.languages.iter().map(|wanted| code("languages", wanted));
        let candidates = candidates.collect::<Result<Vec<String>, InputError>>()?;
        let decided = input.window.as_ref().and_then(|window| self.decided(&window.decided));
        let answer = language.as_deref().map(|code| {
            let decided = decided.as_ref().map(|decided| self.vocabulary.plain(&decided.text));
            tokens::header(&answer::language_name(code)) + decided.unwrap_or_default().trim_start()
        });
        let prompt = self.vocabulary.prompt(&context(options), &answer.unwrap_or_default());
        let longest = self.longest([&prompt.before, &prompt.after], decided.as_ref(), limits)?;
        if input.window.is_some() && input.samples.len() > longest {
            let most = longest / SAMPLE_RATE_HZ;
            let message = format!("a live window has at most {most} s of audio; send less");
            return Err(InputError { param: "audio", message });
        }
        let samples = within_scale(&input.samples);
        let given = input.text.as_deref().map(|text| self.given(text, language.as_deref(), samples.len()));
        let given = given.transpose()?;
        // Live windows are speech already. The warm-up must reach the network even if the detector finds no speech in its noise.
        let regions = match input.window.is_some() || Arc::ptr_eq(&input.samples, &self.warm_up) {
            true => regions::whole(&samples),
            false => regions::find(&self.vad, &samples, options.detection().as_ref()),
        };
        let regions = if given.is_some() { regions::joined(regions)? } else { regions };
        let pieces = regions.into_iter().flat_map(|region| {
            let start = region.frames.start * HOP;
            let heard = &samples[start..samples.len().min(region.frames.end * HOP)];
            let pieces = audio::pieces(heard, longest).into_iter();
            pieces.map(move |piece| start + piece.start..start + piece.end)
        });
        let has_words = options.words() || given.is_some();
        let stretches = pieces.map(|piece| self.stretch(&samples, piece, has_words));
        let recording = Recording {
            stretches: stretches.filter(|stretch| stretch.rows() > 0).collect(),
            prompt,
            audio_token: self.config.audio_token,
            language,
            headers: self.headers(&candidates),
            decided,
            is_live: input.window.is_some(),
            sampling: SamplingParams { temperature: input.temperature(), ..SamplingParams::GREEDY },
            seed: input.seed(),
            max_tokens_per_step: limits.max_tokens_per_step,
            keywords: Keywords::new(&options.keywords, &self.vocabulary.bytes),
            has_logprobs: options.logprobs(),
            has_words,
            given,
        };
        let work = State::new(&recording).map_or(Work::Units([1].into()), |state| state.work(&recording));
        Ok(Prepared::new(work, Arc::new(recording)))
    }

    fn start(&self, prepared: &Prepared) -> SequenceState {
        Box::new(prepared.payload.downcast_ref::<Recording>().and_then(State::new))
    }

    fn forward(&self, kv: &mut KvPool, batch: &mut [BatchEntry<'_>]) -> Result<Vec<EntryResult>, Error> {
        let mut outputs: Vec<EntryResult> = Vec::with_capacity(batch.len());
        let (mut aligning, mut decoding) = (Vec::new(), Vec::new());
        for (place, entry) in batch.iter_mut().enumerate() {
            outputs.push(match share(entry) {
                Ok(share) => {
                    if let Some(share) = share {
                        let aligns = share.state.heard.is_some();
                        if aligns { &mut aligning } else { &mut decoding }.push((place, share));
                    }
                    Ok(StepOutput { finished: true, ..StepOutput::default() })
                }
                Err(error) => Err(error),
            });
        }
        if !aligning.is_empty() {
            self.align(kv, aligning, &mut outputs)?;
        }
        if decoding.is_empty() {
            return Ok(outputs);
        }
        let (places, mut shares): (Vec<usize>, Vec<Share<'_>>) = decoding.into_iter().unzip();
        self.encode(&mut shares)?;
        let mut logits = self.decode(kv, &shares)?.into_iter();
        for (place, share) in places.into_iter().zip(shares) {
            let Share { recording, state, positions, .. } = share;
            state.drop_computed(recording, positions.end);
            outputs[place] = if positions.end == state.known() {
                let missing = Error::Internal("the network has no result for a sequence");
                let logits = logits.next().ok_or(missing)?;
                state.advance(recording, &self.vocabulary, self.aligner.as_ref(), &logits)
            } else {
                Ok(StepOutput::default())
            };
        }
        Ok(outputs)
    }

    fn step_bytes(&self, _chunk_samples: usize) -> usize {
        self.decoder.step_bytes()
    }

    fn warm_up_input(&self) -> Input {
        Input::Listen(ListenInput::plain(Arc::clone(&self.warm_up)))
    }
}
