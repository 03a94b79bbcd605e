//! `response_format: "diarized_json"` of a transcription. Names are those of the `openai` package.

use izwi_core::engine::Transcript;
use serde::Serialize;
use utoipa::ToSchema;

use super::diarized_segment::DiarizedSegment;
use super::schemas;
use super::seconds::rounded;
use super::transcription::DurationUsage;

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

impl DiarizedTranscript {
    /// The form of a transcript with speakers, of a recording of `duration_s` seconds, `with_words` or without.
    pub(crate) fn new(transcript: &Transcript, duration_s: f64, with_words: bool) -> Self {
        let segments = transcript.segments.iter().enumerate();
        let segments = segments.map(|segment| DiarizedSegment::new(segment, with_words));
        Self {
            task: "transcribe",
            duration: rounded(duration_s),
            text: transcript.text(),
            segments: segments.map(DiarizedPart::Segment).collect(),
            usage: DurationUsage::new(duration_s),
        }
    }
}
