//! `POST /v1/audio/alignments`. Names are those of transcriptions.

use izwi_core::engine::{Segment, Word};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::schemas;
use super::seconds::rounded;
use super::transcription::DurationUsage;

#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(expecting = "a JSON object")]
pub(crate) struct AlignmentRequest {
    /// Id or alias of a model that aligns texts, from `/v1/models`; the default model of transcriptions without it.
    pub(crate) model: Option<String>,
    /// The recording, as base64 or a `data:` URL. Required, unless `audio_base64` is given.
    #[schema(format = "base64-audio")]
    pub(crate) audio: Option<String>,
    /// Another name of `audio`.
    #[schema(format = "base64-audio")]
    pub(crate) audio_base64: Option<String>,
    /// What is said in the recording.
    #[serde(default)]
    #[schema(required, min_length = 1)]
    pub(crate) text: String,
    /// Code of the spoken language; detected without it, and with `auto`.
    pub(crate) language: Option<String>,
    /// Form of the answer.
    #[schema(schema_with = schemas::alignment_format)]
    pub(crate) response_format: Option<String>,
    #[schema(schema_with = schemas::priority)]
    pub(crate) priority: Option<String>,
}

/// `response_format: "json"`. Times in seconds from the start of the recording.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct AlignmentObject {
    /// Length of the recording.
    duration: f64,
    words: Vec<AlignedWord>,
    /// Its sentences and lines, cut where they are long: the subtitles.
    segments: Vec<AlignedSegment>,
    usage: DurationUsage,
}

#[derive(Debug, Serialize, ToSchema)]
struct AlignedWord {
    /// The word as written, with its marks.
    word: String,
    start: f64,
    end: f64,
    /// How likely the model holds it, 0 to 1. A word that the model does not find takes no time and has 0.
    probability: f32,
}

#[derive(Debug, Serialize, ToSchema)]
struct AlignedSegment {
    text: String,
    start: f64,
    end: f64,
}

impl AlignmentObject {
    /// The object of segments with words, of a recording of `duration_s` seconds.
    pub(crate) fn new(segments: &[Segment], duration_s: f64) -> Self {
        let word = |word: &Word| AlignedWord {
            word: word.text.trim().to_owned(),
            start: rounded(word.start_s),
            end: rounded(word.end_s),
            probability: word.probability,
        };
        let segment = |segment: &Segment| AlignedSegment {
            text: segment.text.trim().to_owned(),
            start: rounded(segment.start_s),
            end: rounded(segment.end_s),
        };
        Self {
            duration: rounded(duration_s),
            words: segments.iter().flat_map(|segment| &segment.words).map(word).collect(),
            segments: segments.iter().map(segment).collect(),
            usage: DurationUsage::new(duration_s),
        }
    }
}
