//! `response_format: "diarized_json"` of a transcription. Names are those of the `openai` package.

use izwi_core::engine::speakers::speaker_name;
use izwi_core::engine::{Segment, Transcript};
use serde::Serialize;
use utoipa::ToSchema;

use super::schemas;
use super::transcription::DurationUsage;
use super::verbose_json::rounded;

/// The name of a speaker where nobody was heard.
const UNKNOWN: &str = "unknown";

/// A transcript whose segments have speakers. Times in seconds.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct DiarizedTranscript {
    /// Always `transcribe`.
    #[schema(schema_with = schemas::asr_task)]
    task: &'static str,
    /// Length of the recording.
    duration: f64,
    text: String,
    segments: Vec<DiarizedPart>,
    usage: DurationUsage,
}

/// A part of a transcript with speakers.
#[derive(Debug, Serialize, ToSchema)]
#[serde(tag = "type")]
pub(crate) enum DiarizedPart {
    #[serde(rename = "transcript.text.segment")]
    Segment(DiarizedSegment),
}

/// What one speaker says.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct DiarizedSegment {
    /// `seg_` and its number, from 0.
    id: String,
    start: f64,
    end: f64,
    /// `A`, `B` and so on, in the order in which they begin.
    speaker: String,
    text: String,
}

impl DiarizedSegment {
    /// The segment of this number.
    pub(crate) fn new((number, segment): (usize, &Segment)) -> Self {
        Self {
            id: format!("seg_{number}"),
            start: rounded(segment.start_s),
            end: rounded(segment.end_s),
            speaker: segment.speaker.map_or_else(|| UNKNOWN.to_owned(), speaker_name),
            text: segment.text.trim().to_owned(),
        }
    }
}

impl DiarizedTranscript {
    /// The form of a transcript with speakers, of a recording of `duration_s` seconds.
    pub(crate) fn new(transcript: &Transcript, duration_s: f64) -> Self {
        let segments = transcript.segments.iter().enumerate().map(DiarizedSegment::new);
        Self {
            task: "transcribe",
            duration: rounded(duration_s),
            text: transcript.text(),
            segments: segments.map(DiarizedPart::Segment).collect(),
            usage: DurationUsage::new(duration_s),
        }
    }
}
