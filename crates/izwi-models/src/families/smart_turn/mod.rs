//! The Smart Turn family: whether a speaker has finished, by what and how it was said.
//!
//! It hears the last seconds of audio, up to the pause in question, and tells the probability that the turn is complete. One
//! step hears the windows of all sequences that wait. Source: the Python package `pipecat-ai` 1.14.0, which rounds what passes
//! between layers to 8 bits; here it stays in floats, with the same weights.

use std::path::Path;
use std::sync::Arc;

use self::network::Network;
use super::LoadOptions;
use crate::log_mel::{FrontEnd, SAMPLE_RATE_HZ};
use crate::model::{BatchEntry, EntryResult, SequenceState, SpeechModel};
use crate::warm_up;
use izwi_nn::Error;
use izwi_nn::checkpoint::Checkpoint;
use izwi_nn::kv_pool::{KvLayout, KvPool};
use izwi_types::{
    Input, InputError, ListenInput, ModelInfo, PrepareLimits, Prepared, Segment, StepOutput, Task, Work,
};

#[cfg(test)]
mod golden;
mod network;

/// Added to the variance of samples: `_NORM_VARIANCE_EPS` of the package.
const VARIANCE_EPS: f64 = 1e-7;

/// Loads the checkpoint in `folder`: `model.safetensors`, as a pull makes it.
///
/// # Errors
/// The file is missing or unreadable, or a tensor is missing, unknown or mis-shaped; the error names it.
pub(super) fn load(folder: &Path, options: &LoadOptions) -> Result<Arc<dyn SpeechModel>, Error> {
    Ok(Arc::new(SmartTurn::load(folder, options)?))
}

#[derive(Debug)]
struct SmartTurn {
    info: ModelInfo,
    front_end: FrontEnd,
    network: Network,
    /// Samples of [`SpeechModel::warm_up_input`].
    warm_up: Arc<[f32]>,
}

/// What is heard of a recording.
#[derive(Debug)]
struct Heard {
    /// The last samples.
    samples: Arc<[f32]>,
    /// Length of the recording, in seconds.
    end_s: f64,
}

impl SmartTurn {
    fn load(folder: &Path, options: &LoadOptions) -> Result<Self, Error> {
        let precision = options.weight_precision();
        let mut from = options.cached(Checkpoint::open_folder(folder, &options.device)?, precision);
        let network = Network::load(&mut from, precision)?;
        let weight_bytes = from.taken() * size_of::<f32>();
        from.finish()?;
        Ok(Self {
            info: ModelInfo {
                tasks: vec![Task::Turn],
                ..ModelInfo::listening(SAMPLE_RATE_HZ as u32, weight_bytes)
            },
            front_end: FrontEnd::new(network.bins()),
            warm_up: warm_up::noise(network.window()),
            network,
        })
    }

    /// The input of the network for a window of samples: `[frames, bins]`.
    fn spectra(&self, samples: &[f32]) -> Vec<f32> {
        let mut window = vec![0.0; self.network.window()];
        let (from, into) =
            (samples.len().saturating_sub(window.len()), window.len().saturating_sub(samples.len()));
        window[into..].copy_from_slice(&samples[from..]);
        normalise(&mut window);
        let mel = self.front_end.reflected(&window);
        mel.network_input(0..mel.len(), mel.len(), mel.peak())
    }
}

/// Samples of mean 0 and variance 1.
fn normalise(samples: &mut [f32]) {
    let count = samples.len().max(1) as f64;
    let mean = samples.iter().map(|&sample| f64::from(sample)).sum::<f64>() / count;
    let variance = samples.iter().map(|&sample| (f64::from(sample) - mean).powi(2)).sum::<f64>() / count;
    let scale = (variance + VARIANCE_EPS).sqrt().recip();
    samples.iter_mut().for_each(|sample| *sample = ((f64::from(*sample) - mean) * scale) as f32);
}

impl SpeechModel for SmartTurn {
    fn info(&self) -> &ModelInfo {
        &self.info
    }

    fn kv_layout(&self) -> Option<KvLayout> {
        None
    }

    fn prepare(&self, input: &Input, limits: &PrepareLimits) -> Result<Prepared, InputError> {
        let Input::Listen(input) = input else { return Err(InputError::other_task("listens", "input")) };
        input.options.check_taken(&["seed"])?;
        if input.chunk_ms.is_some() {
            let message = "this model hears the end of a turn at once; leave chunk_ms out";
            return Err(InputError { param: "chunk_ms", message: message.to_owned() });
        }
        let last = input.samples.len().saturating_sub(self.network.window());
        let heard = Heard {
            samples: input.samples[last..].into(),
            end_s: input.samples.len() as f64 / SAMPLE_RATE_HZ as f64,
        };
        let tokens = self.network.positions().min(limits.max_tokens_per_step);
        Ok(Prepared::new(Work::Units([tokens].into()), Arc::new(heard)))
    }

    fn start(&self, _prepared: &Prepared) -> SequenceState {
        Box::new(())
    }

    fn forward(&self, _kv: &mut KvPool, batch: &mut [BatchEntry<'_>]) -> Result<Vec<EntryResult>, Error> {
        let heard: Vec<Option<&Heard>> =
            batch.iter().map(|entry| entry.prepared.payload.downcast_ref::<Heard>()).collect();
        let windows: Vec<Vec<f32>> =
            heard.iter().flatten().map(|heard| self.spectra(&heard.samples)).collect();
        let mut found = self.network.probabilities(&windows)?.into_iter();
        let results = heard.into_iter().map(|heard| {
            let foreign = Error::Internal("an entry was prepared by another family");
            let Heard { end_s, .. } = heard.ok_or(foreign)?;
            let end_of_turn = found.next();
            let segment = Segment { end_s: *end_s, end_of_turn, ..Segment::default() };
            Ok(StepOutput { segments: vec![segment], finished: true, ..StepOutput::default() })
        });
        Ok(results.collect())
    }

    fn warm_up_input(&self) -> Input {
        Input::Listen(ListenInput::plain(Arc::clone(&self.warm_up)))
    }
}
