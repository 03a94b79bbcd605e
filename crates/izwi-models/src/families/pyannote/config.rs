//! Settings and sizes of a checkpoint: `config.yaml` of a pipeline of `pyannote.audio` 4.0, and the shapes of its tensors.

use std::path::Path;

use serde::Deserialize;

use super::super::settings::{self, within};
use izwi_nn::Error;
use izwi_nn::checkpoint::Checkpoint;

const MAX_LAYERS: usize = 8;
const MAX_BLOCKS: usize = 64;
const MAX_SIZE: usize = 65_536;

/// `config.yaml`.
#[derive(Debug, Deserialize)]
struct File {
    pipeline: Pipeline,
    params: Params,
}

#[derive(Debug, Deserialize)]
struct Pipeline {
    params: Parts,
}

#[derive(Debug, Deserialize)]
struct Parts {
    clustering: Algorithm,
    #[serde(default)]
    embedding_exclude_overlap: bool,
}

/// The clusterings that are read.
#[derive(Debug, Clone, Copy, Deserialize)]
enum Algorithm {
    #[serde(rename = "VBxClustering")]
    Vbx,
    #[serde(rename = "AgglomerativeClustering")]
    Agglomerative,
}

#[derive(Debug, Deserialize)]
struct Params {
    clustering: Numbers,
    segmentation: Gaps,
}

/// Settings of all clusterings.
#[derive(Debug, Deserialize)]
struct Numbers {
    threshold: f64,
    #[serde(rename = "Fa")]
    vector_weight: Option<f64>,
    #[serde(rename = "Fb")]
    speaker_weight: Option<f64>,
    method: Option<Method>,
    min_cluster_size: Option<usize>,
}

/// How the distance of two groups is measured: that of agglomerative clustering is the mean of all pairs.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Method {
    Average,
}

#[derive(Debug, Deserialize)]
struct Gaps {
    min_duration_off: f64,
}

/// How vectors become speakers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Clustering {
    /// Groups, and a mixture model that begins with them and drops speakers that others explain.
    Vbx {
        /// The largest distance of two groups of vectors of length 1 that are joined at first.
        threshold: f64,
        /// How much a vector counts, and how hard it is to keep a speaker.
        vector_weight: f64,
        speaker_weight: f64,
    },
    /// Groups alone.
    Agglomerative {
        /// The largest distance of two groups that are joined: the mean of 1 less the cosine over their pairs of vectors.
        threshold: f64,
        /// The fewest vectors of a speaker.
        least: usize,
    },
}

/// What a pipeline does.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Config {
    pub(super) clustering: Clustering,
    /// Whether a voice is heard only where nobody else speaks, if there is enough of that.
    pub(super) excludes_overlap: bool,
    /// Pauses of a speaker up to this are speech, in seconds.
    pub(super) min_pause_s: f64,
}

impl Config {
    /// Reads `config.yaml`.
    ///
    /// # Errors
    /// It is unreadable or malformed, or a setting is not supported; the error names it.
    pub(super) fn load(folder: &Path) -> Result<Self, Error> {
        settings::read(&folder.join("config.yaml"), |text| Self::new(settings::parse(text, true)?))
    }

    fn new(File { pipeline, params }: File) -> Result<Self, String> {
        let Parts { clustering: algorithm, embedding_exclude_overlap } = pipeline.params;
        let min_pause_s = params.segmentation.min_duration_off;
        at_least("segmentation.min_duration_off", min_pause_s, 0.0)?;
        let clustering = params.clustering.checked(algorithm)?;
        Ok(Self { clustering, excludes_overlap: embedding_exclude_overlap, min_pause_s })
    }
}

impl Numbers {
    fn checked(self, algorithm: Algorithm) -> Result<Clustering, String> {
        let Self { threshold, vector_weight, speaker_weight, method, min_cluster_size } = self;
        at_least("clustering.threshold", threshold, 0.0)?;
        let missing = |name: &str| format!("params.clustering.{name} is missing");
        match algorithm {
            Algorithm::Vbx => {
                let vector_weight = vector_weight.ok_or_else(|| missing("Fa"))?;
                let speaker_weight = speaker_weight.ok_or_else(|| missing("Fb"))?;
                at_least("clustering.Fa", vector_weight, f64::MIN_POSITIVE)?;
                at_least("clustering.Fb", speaker_weight, f64::MIN_POSITIVE)?;
                Ok(Clustering::Vbx { threshold, vector_weight, speaker_weight })
            }
            Algorithm::Agglomerative => {
                let Method::Average = method.ok_or_else(|| missing("method"))?;
                let least = min_cluster_size.ok_or_else(|| missing("min_cluster_size"))?;
                Ok(Clustering::Agglomerative { threshold, least })
            }
        }
    }
}

fn at_least(name: &str, value: f64, least: f64) -> Result<(), String> {
    if value.is_finite() && value >= least {
        return Ok(());
    }
    Err(format!("params.{name} is {value}; it must be a number from {least} on"))
}

/// Sizes of both networks.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Sizes {
    /// Bands of the filters, and taps on each side of their middle.
    pub(super) bands: usize,
    pub(super) half: usize,
    /// Outputs and taps of the convolutions after them.
    pub(super) convs: Vec<[usize; 2]>,
    /// Width of a direction of the recurrent layers, and their number.
    pub(super) hidden: usize,
    pub(super) lstm_layers: usize,
    /// Outputs of the linear layers.
    pub(super) linear: Vec<usize>,
    /// Channels of the first stage, which double with each other, and blocks of each stage.
    pub(super) channels: usize,
    pub(super) blocks: Vec<usize>,
    /// Bins of the spectra.
    pub(super) bins: usize,
    /// Width of the vector of a voice.
    pub(super) width: usize,
}

impl Sizes {
    /// Those of two checkpoints.
    ///
    /// # Errors
    /// A tensor that gives a size is missing or another size is out of range; the error names it.
    pub(super) fn of(segmentation: &Checkpoint, embedding: &Checkpoint) -> Result<Self, String> {
        let dims = |from: &Checkpoint, name: &str, rank: usize| {
            let shape = from.shape_of(name).filter(|shape| shape.len() == rank);
            shape.map(<[usize]>::to_vec).ok_or_else(|| format!("the checkpoint has no {name} of rank {rank}"))
        };
        let layers = |from: &Checkpoint, name: &dyn Fn(usize) -> String, first: usize| {
            (first..first + MAX_BLOCKS).take_while(|&layer| from.has(&name(layer))).count()
        };
        let conv = |layer: usize| format!("sincnet.conv1d.{layer}.weight");
        let linear = |layer: usize| format!("linear.{layer}.weight");
        let mut sizes = Self {
            bands: dims(segmentation, "sincnet.conv1d.0.filterbank.low_hz_", 2)?[0],
            half: dims(segmentation, "sincnet.conv1d.0.filterbank.window_", 1)?[0],
            hidden: dims(segmentation, "lstm.weight_hh_l0", 2)?[1],
            lstm_layers: layers(segmentation, &|layer| format!("lstm.weight_hh_l{layer}"), 0),
            channels: dims(embedding, "conv1.weight", 4)?[0],
            width: dims(embedding, "seg_1.weight", 2)?[0],
            ..Self::default()
        };
        for layer in 1..=layers(segmentation, &conv, 1) {
            let shape = dims(segmentation, &conv(layer), 3)?;
            sizes.convs.push([shape[0], shape[2]]);
        }
        for layer in 0..layers(segmentation, &linear, 0) {
            sizes.linear.push(dims(segmentation, &linear(layer), 2)?[0]);
        }
        for stage in 1..=MAX_LAYERS {
            match layers(embedding, &|block| format!("layer{stage}.{block}.conv1.weight"), 0) {
                0 => break,
                blocks => sizes.blocks.push(blocks),
            }
        }
        let stages = sizes.blocks.len();
        within(
            "segmentation",
            &[("layers", sizes.lstm_layers), ("convolutions", sizes.convs.len())],
            MAX_LAYERS,
        )?;
        within("embedding", &[("stages", stages)], MAX_LAYERS)?;
        let last = (sizes.channels << (stages - 1)).max(1);
        sizes.bins = (dims(embedding, "seg_1.weight", 2)?[1] / (2 * last)) << (stages - 1);
        let all = [("filters", sizes.bands), ("taps", sizes.half), ("hidden width", sizes.hidden)];
        within("segmentation", &all, MAX_SIZE)?;
        let all = [("channels", sizes.channels), ("width", sizes.width), ("bins", sizes.bins)];
        within("embedding", &all, MAX_SIZE)?;
        Ok(sizes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const YAML: &str = "\
pipeline:
  name: pyannote.audio.pipelines.SpeakerDiarization
  params:
    clustering: VBxClustering
    segmentation: $model/segmentation
    embedding_exclude_overlap: true
params:
  clustering:
    threshold: 0.6
    Fa: 0.07
    Fb: 0.8
  segmentation:
    min_duration_off: 0.0
";

    fn read(text: &str) -> Result<Config, String> {
        Config::new(settings::parse(text, true)?)
    }

    #[test]
    fn settings_are_those_of_the_publisher_and_others_are_refused_by_name() {
        let clustering = Clustering::Vbx { threshold: 0.6, vector_weight: 0.07, speaker_weight: 0.8 };
        let expected = Config { clustering, excludes_overlap: true, min_pause_s: 0.0 };
        assert_eq!(read(YAML), Ok(expected));
        let groups = YAML.replace("VBx", "Agglomerative");
        assert!(read(&groups).unwrap_err().contains("clustering.method is missing"));
        let groups = groups.replace("Fa: 0.07", "method: average").replace("Fb: 0.8", "min_cluster_size: 3");
        let clustering = Clustering::Agglomerative { threshold: 0.6, least: 3 };
        assert_eq!(read(&groups), Ok(Config { clustering, ..expected }));
        assert!(read(&groups.replace("average", "centroid")).unwrap_err().contains("centroid"));
        for (from, to, named) in [
            ("VBxClustering", "KMeansClustering", "KMeansClustering"),
            ("threshold: 0.6", "threshold: .nan", "clustering.threshold"),
            ("Fb: 0.8", "Fb: 0", "clustering.Fb is 0"),
            ("min_duration_off: 0.0", "min_duration_off: -1", "segmentation.min_duration_off is -1"),
            ("Fa: 0.07", "Fc: 0.07", "Fa"),
        ] {
            let error = read(&YAML.replace(from, to)).unwrap_err();
            assert!(error.contains(named), "{error}");
        }
    }
}
