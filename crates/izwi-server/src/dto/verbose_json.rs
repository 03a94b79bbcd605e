//! `response_format: "verbose_json"` of a transcription, which the command line writes too.

use izwi_core::engine::{Segment, Transcript};
use izwi_types::languages;
use serde::Serialize;
use utoipa::ToSchema;

use super::schemas;
use super::seconds::rounded;
use super::timed_segment::VerboseWord;
use super::transcription::DurationUsage;

/// The verbose form of a transcript. Times in seconds.
/// <https://platform.openai.com/docs/api-reference/audio/verbose-json-object>
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct VerboseTranscript {
    /// `transcribe` or `translate`.
    #[schema(schema_with = schemas::asr_task)]
    task: &'static str,
    /// English name of the language in lower case; empty without speech.
    language: String,
    /// Length of the recording.
    duration: f64,
    text: String,
    segments: Vec<VerboseSegment>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    words: Option<Vec<VerboseWord>>,
    usage: DurationUsage,
}

#[derive(Debug, Serialize, ToSchema)]
struct VerboseSegment {
    /// Index, from 0.
    id: usize,
    /// Start of its window, in frames of 10 ms.
    seek: u64,
    start: f64,
    end: f64,
    /// Its text, with the space before it.
    text: String,
    tokens: Vec<u32>,
    temperature: f32,
    avg_logprob: f32,
    compression_ratio: f32,
    no_speech_prob: f32,
}

impl VerboseTranscript {
    /// The verbose form of a transcript of a recording of `duration_s` seconds, `with_words` or without.
    pub(crate) fn new(
        transcript: &Transcript,
        task: &'static str,
        duration_s: f64,
        with_words: bool,
    ) -> Self {
        let words = transcript.segments.iter().flat_map(|segment| &segment.words);
        let words = words.map(VerboseWord::from);
        Self {
            task,
            language: language_name(transcript.language.as_deref().unwrap_or_default()),
            duration: rounded(duration_s),
            text: transcript.text(),
            segments: transcript.segments.iter().enumerate().map(verbose_segment).collect(),
            words: with_words.then(|| words.collect()),
            usage: DurationUsage::new(duration_s),
        }
    }
}

/// The name of a language, or its code where no name is known.
fn language_name(code: &str) -> String {
    languages::name_of(code).unwrap_or(code).to_owned()
}

fn verbose_segment((id, segment): (usize, &Segment)) -> VerboseSegment {
    VerboseSegment {
        id,
        seek: (segment.window_start_s.max(0.0) * 100.0).round() as u64,
        start: rounded(segment.start_s),
        end: rounded(segment.end_s),
        text: segment.text.clone(),
        tokens: segment.tokens.clone(),
        temperature: segment.temperature,
        avg_logprob: segment.avg_logprob,
        compression_ratio: segment.compression_ratio,
        no_speech_prob: segment.no_speech_prob,
    }
}
