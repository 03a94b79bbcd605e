//! The LFM2-Audio family: one model that speaks, listens and converses, a token of text or a frame of sound a step.
//!
//! Owns the family's side of the executor's seam: runs the encoder over what is heard and the codec over what is said.
//! Source of the architecture: <https://github.com/Liquid4All/liquid-audio>.

use std::path::Path;
use std::sync::Arc;

use candle_core::DType;

use self::codec::{Codec, DecoderState};
use self::config::Config;
use self::conformer::AudioEncoder;
use self::errand::{Errand, Next, Running};
use self::generation::{CODEC, ENCODER, Generator, PARTS, Share, Unwatched};
use self::mel::{FrontEnd, Mel};
use self::order::Clerk;
use self::tokens::Vocabulary;
use super::LoadOptions;
use crate::model::{BatchEntry, SequenceState, SpeechModel};
use crate::overlap;
use crate::portions;
use izwi_kernels::threads::num_threads;
use izwi_nn::Error;
use izwi_nn::checkpoint::Checkpoint;
use izwi_nn::codec::mimi::{self, Mimi};
use izwi_nn::device::decodes_in_parallel;
use izwi_nn::kv_pool::{KvLayout, KvPool};
use izwi_nn::sampling::mix;
use izwi_types::PartTimes;
use izwi_types::{
    ConverseInput, Input, InputError, Message, ModelInfo, PrepareLimits, Prepared, StepOutput, Task, Turn,
    Work,
};

mod backbone;
mod codec;
mod config;
mod conformer;
mod course;
mod depthformer;
mod detokenizer;
mod errand;
mod generation;
#[cfg(test)]
mod golden;
#[cfg(test)]
mod golden_audio;
#[cfg(test)]
mod golden_set;
mod mel;
mod order;
mod prompt;
#[cfg(test)]
mod tests;
mod tokens;

/// Rows of the encoder that a state may hold: of a window of 30 s.
const HEARD_ROWS: usize = 376;

/// Loads the checkpoint in `folder`: `config.json`, `tokenizer.json`, `model.safetensors` or its shards, and a codec:
/// `audio_detokenizer/`, or Mimi's file.
///
/// # Errors
/// A file is absent or unreadable, a setting is not supported, or a tensor is missing, unknown or mis-shaped; the
/// error names it.
pub(super) fn load(folder: &Path, options: &LoadOptions) -> Result<Arc<dyn SpeechModel>, Error> {
    Ok(Arc::new(LfmAudio::load(folder, options)?))
}

/// The published sizes.
pub(super) const SIZES: [&str; 1] = ["lfm2-audio-1.5b"];

/// A model of a published size with random weights.
///
/// # Errors
/// The device has not the memory.
pub(super) fn random(_size: &str, options: &LoadOptions) -> Result<Arc<dyn SpeechModel>, Error> {
    Ok(Arc::new(LfmAudio::random(include_str!("shapes/1.5b.json"), options)?))
}

#[derive(Debug)]
struct LfmAudio {
    info: ModelInfo,
    config: Config,
    vocabulary: Vocabulary,
    front_end: FrontEnd,
    encoder: AudioEncoder,
    generator: Generator,
    codec: Codec,
    is_made_up: bool,
    /// Whether frames become sound beside the step behind them, where there are threads for both.
    overlaps: bool,
    times: PartTimes,
}

/// One entry of a batch while it is worked on.
struct Entry<'a> {
    errand: &'a Errand,
    running: &'a mut Running,
    start: usize,
    end: usize,
    begins: bool,
    block_table: &'a [u32],
}

/// A sequence whose pending frames become sound.
struct Due<'a> {
    /// Its place in the batch.
    place: usize,
    errand: &'a Errand,
    running: &'a mut Running,
    next: Next,
}

impl LfmAudio {
    fn load(folder: &Path, options: &LoadOptions) -> Result<Self, Error> {
        let config = Config::load(folder)?;
        let vocabulary = Vocabulary::load(folder, config.lfm.vocab_size)?;
        let codec = Codec::load(folder, config.codebooks, &options.of_codec())?;
        let weights = Checkpoint::open_folder(folder, &options.device)?;
        let mut weights = options.cached(weights, options.weight_precision());
        let model = Self::assemble(config, vocabulary, &mut weights, codec, options)?;
        weights.finish()?;
        Ok(model)
    }

    fn random(config: &str, options: &LoadOptions) -> Result<Self, Error> {
        let config = Config::parse(config).map_err(Error::Checkpoint)?;
        let vocabulary = Vocabulary::single_bytes(config.lfm.vocab_size)?;
        let precision = options.codec_precision();
        let mut codec = Checkpoint::random(&options.device, DType::F32);
        let sizes = mimi::Config::published();
        let codec = Mimi::from_checkpoint(&mut codec, config.codebooks, &sizes, precision)?;
        let codec = Codec::Mimi(Box::new(codec));
        let mut weights = Checkpoint::random(&options.device, DType::BF16);
        let made = Self::assemble(config, vocabulary, &mut weights, codec, options)?;
        Ok(Self { is_made_up: true, ..made })
    }

    fn assemble(
        config: Config,
        vocabulary: Vocabulary,
        weights: &mut Checkpoint,
        codec: Codec,
        options: &LoadOptions,
    ) -> Result<Self, Error> {
        let precision = options.weight_precision();
        let times = PartTimes::new(&PARTS);
        let generator = Generator::load(weights, &config, precision, times.clone())?;
        let before = weights.taken();
        let encoder = AudioEncoder::load(weights, &config.encoder, config.lfm.hidden_size, precision)?;
        let encoder_bytes = (weights.taken() - before) * precision.bits() / 8;
        let rows = HEARD_ROWS * config.lfm.hidden_size * size_of::<f32>();
        let info = ModelInfo {
            sample_rate_hz: codec.sample_rate() as u32,
            input_sample_rate_hz: config.preprocessor.sample_rate as u32,
            tasks: vec![Task::Tts, Task::Asr, Task::Chat],
            voices: order::voices(),
            speed_range: None,
            takes_instructions: false,
            languages: vec![order::LANGUAGE.to_owned()],
            translates: false,
            clones_voices: false,
            sampling: order::SPEAKING,
            weight_bytes: generator.bytes() + codec.bytes() + encoder_bytes,
            state_bytes: generator.backbone.stack.state_bytes() + codec.state_bytes() + rows,
        };
        let front_end = FrontEnd::new(&config.preprocessor);
        let (overlaps, is_made_up) = (decodes_in_parallel(&options.device), false);
        Ok(Self {
            info,
            config,
            vocabulary,
            front_end,
            encoder,
            generator,
            codec,
            is_made_up,
            overlaps,
            times,
        })
    }

    fn errand(&self, input: &Input, limits: &PrepareLimits) -> Result<Errand, InputError> {
        let codec = &self.codec;
        let clerk = Clerk {
            config: &self.config,
            vocabulary: &self.vocabulary,
            front_end: &self.front_end,
            sound: (codec.samples_per_frame(), codec.held_back(), codec.sample_rate()),
            is_made_up: self.is_made_up,
        };
        match input {
            Input::Speak(input) => clerk.speak(input, limits),
            Input::Listen(input) => clerk.listen(input, limits),
            Input::Converse(input) => clerk.converse(input, limits),
        }
    }

    /// Runs the encoder over the recordings that a step asks for and that it has not seen, all together.
    fn listen(&self, entries: &mut [Entry<'_>]) -> Result<(), Error> {
        let (mut mel, mut places): (Vec<&Mel>, _) = (Vec::new(), Vec::new());
        for (place, entry) in entries.iter().enumerate() {
            for recording in entry.running.unheard(entry.errand, entry.start, entry.end) {
                let unknown = Error::Internal("an entry is in a pass nobody knows");
                let pass = entry.errand.passes.get(entry.running.pass).ok_or(unknown)?;
                mel.push(&pass.prompt.recordings[recording].mel);
                places.push((place, recording));
            }
        }
        if mel.is_empty() {
            return Ok(());
        }
        let encoded = self.times.time(ENCODER, || self.encoder.forward(&mel))?;
        for ((place, recording), rows) in places.into_iter().zip(encoded) {
            entries[place].running.heard[recording] = Some(rows);
        }
        Ok(())
    }

    /// Samples of the pending frames, all sequences together; of those that stop, to the last.
    fn sound(&self, due: &mut [Due<'_>]) -> Result<Vec<Vec<f32>>, Error> {
        let mut samples = vec![Vec::new(); due.len()];
        let (mut batch, mut places) = (Vec::<(&mut DecoderState, &[Vec<u32>])>::new(), Vec::new());
        for (place, due) in due.iter_mut().enumerate() {
            let Running { decoder, sounding, .. } = &mut *due.running;
            if !sounding.pending.is_empty() {
                batch.push((decoder.get_or_insert_with(|| self.codec.start()), &sounding.pending));
                places.push(place);
            }
        }
        if !batch.is_empty() {
            let decoded = self.times.time(CODEC, || self.codec.decode(&mut batch))?;
            places.into_iter().zip(decoded).for_each(|(place, decoded)| samples[place] = decoded);
        }
        for (due, samples) in due.iter_mut().zip(&mut samples) {
            if due.next != Next::Sounds
                && let Some(decoder) = &mut due.running.decoder
            {
                samples.extend(self.codec.finish(decoder));
            }
        }
        Ok(samples)
    }
}

/// What this family made for an entry.
fn entry<'a>(entry: &'a mut BatchEntry<'_>) -> Result<Entry<'a>, Error> {
    let foreign = Error::Internal("an entry was prepared by another family");
    let Some(errand) = entry.prepared.payload.downcast_ref::<Errand>() else { return Err(foreign) };
    let (start, end) = (entry.start, entry.start + entry.num_tokens);
    let Some(running) = entry.state.downcast_mut::<Running>() else { return Err(foreign) };
    Ok(Entry { errand, running, start, end, begins: entry.begins, block_table: entry.block_table })
}

impl SpeechModel for LfmAudio {
    fn info(&self) -> &ModelInfo {
        &self.info
    }

    fn kv_layout(&self) -> Option<KvLayout> {
        Some(self.generator.backbone.kv_layout())
    }

    fn prepare(&self, input: &Input, limits: &PrepareLimits) -> Result<Prepared, InputError> {
        let errand = self.errand(input, limits)?;
        // Nothing is to be done where nobody speaks: one token's worth, to say so.
        let work = errand.work(0).unwrap_or_else(|| Work::Units(Arc::new([1])));
        Ok(Prepared { work, payload: Arc::new(errand) })
    }

    fn start(&self, prepared: &Prepared) -> SequenceState {
        match prepared.payload.downcast_ref::<Errand>() {
            Some(errand) => Box::new(Running::new(errand)),
            None => Box::new(()),
        }
    }

    fn forward(&self, kv: &mut KvPool, batch: &mut [BatchEntry<'_>]) -> Result<Vec<StepOutput>, Error> {
        let mut outputs = vec![StepOutput::default(); batch.len()];
        let (mut entries, mut places) = (Vec::new(), Vec::new());
        for (place, batched) in batch.iter_mut().enumerate() {
            let entry = entry(batched)?;
            if entry.errand.passes.is_empty() {
                outputs[place].finished = true;
            } else {
                entries.push(entry);
                places.push(place);
            }
        }
        if entries.is_empty() {
            return Ok(outputs);
        }
        self.listen(&mut entries)?;
        let (mut shares, mut waiting) = (Vec::with_capacity(entries.len()), Vec::new());
        for entry in &mut entries {
            let unknown = Error::Internal("an entry is in a pass nobody knows");
            let Entry { start, end, begins, block_table, .. } = *entry;
            let Running { pass, said, heard, decoder, sounding, .. } = &mut *entry.running;
            let pass = entry.errand.passes.get(*pass).ok_or(unknown)?;
            shares.push(Share { pass, said, heard, start, end, begins, block_table });
            if let (Some(decoder), frames @ [_, ..]) = (decoder, sounding.waiting()) {
                waiting.push((decoder, frames));
            }
        }
        let generate = || self.generator.step(kv, &mut shares, &mut Unwatched);
        let decode = (!waiting.is_empty()).then_some(|| self.codec.decode(&mut waiting));
        let (outcomes, sounds) = overlap::run(&self.times, CODEC, generate, decode)?;
        drop((shares, waiting));
        let can_wait = self.overlaps && num_threads() > 1;
        let (mut due, mut sounds) = (Vec::new(), sounds.into_iter());
        for ((place, entry), outcome) in places.into_iter().zip(entries).zip(outcomes) {
            let Entry { errand, running, .. } = entry;
            let output = &mut outputs[place];
            if !running.sounding.waiting().is_empty() {
                output.samples = sounds.next().unwrap_or_default();
                if running.heard(errand, &mut output.samples) {
                    output.generated_tokens = 1;
                    running.end(errand, output);
                    continue;
                }
            }
            let next = running.take(errand, outcome, (&self.vocabulary, &self.codec), output);
            match next {
                Next::Goes => {}
                Next::Sounds if can_wait && running.can_wait(errand) => running.sounding.put_off(),
                _ => due.push(Due { place, errand, running, next }),
            }
        }
        let sounds = self.sound(&mut due)?;
        for (Due { place, errand, running, next }, mut samples) in due.into_iter().zip(sounds) {
            let cut = running.heard(errand, &mut samples);
            outputs[place].samples.append(&mut samples);
            if cut || next == Next::Ends {
                running.end(errand, &mut outputs[place]);
            }
        }
        Ok(outputs)
    }

    fn step_bytes(&self, chunk_samples: usize) -> usize {
        let frames = chunk_samples as f64 / self.codec.samples_per_frame() as f64;
        let portion = frames.clamp(1.0, portions::MAX_PORTION as f64);
        self.generator.frame_bytes() + (self.codec.bytes() as f64 / portion) as usize
    }

    fn part_times(&self) -> PartTimes {
        self.times.clone()
    }

    fn warm_up_input(&self) -> Input {
        // Noise is heard, then text and frames come in turn.
        let noise = |n: usize| (mix(n as u64) >> 40) as f32 / (1u64 << 24) as f32 - 0.5;
        let samples: Vec<f32> = (0..self.config.preprocessor.sample_rate).map(|n| 0.1 * noise(n)).collect();
        Input::Converse(ConverseInput {
            instructions: None,
            turns: vec![Turn::User(vec![Message::Recording(samples.into())])],
            sampling: None,
            text_sampling: None,
            seed: 0,
            max_tokens: usize::MAX,
            chunk_samples: 1,
        })
    }
}
