//! Test recordings and request bodies that carry them.

use anyhow::Result;
use base64::Engine as _;

/// Rate of the recordings, in Hz.
const SAMPLE_RATE_HZ: u32 = 16_000;
const BOUNDARY: &str = "a-boundary-that-no-recording-holds";

/// A WAV of a quiet tone.
pub fn recording(seconds: f64) -> Vec<u8> {
    let count = (seconds * f64::from(SAMPLE_RATE_HZ)) as usize;
    let samples: Vec<f32> = (0..count).map(|i| (i as f32 * 0.05).sin() * 0.1).collect();
    izwi_audio::wav::to_bytes(&samples, SAMPLE_RATE_HZ).unwrap_or_default()
}

/// Standard base64.
pub fn base64(bytes: &[u8]) -> String {
    base64::engine::general_purpose::STANDARD.encode(bytes)
}

/// A multipart form, built by hand so that it can be malformed.
#[derive(Debug, Clone, Default)]
pub struct Form {
    bytes: Vec<u8>,
}

impl Form {
    /// A form without parts.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a text field.
    #[must_use]
    pub fn text(self, name: &str, value: &str) -> Self {
        self.part(&format!("name=\"{name}\""), value.as_bytes())
    }

    /// Adds a file.
    #[must_use]
    pub fn file(self, name: &str, bytes: &[u8]) -> Self {
        let head = format!("name=\"{name}\"; filename=\"a.wav\"\r\nContent-Type: audio/wav");
        self.part(&head, bytes)
    }

    fn part(mut self, head: &str, bytes: &[u8]) -> Self {
        let head = format!("--{BOUNDARY}\r\nContent-Disposition: form-data; {head}\r\n\r\n");
        self.bytes.extend_from_slice(head.as_bytes());
        self.bytes.extend_from_slice(bytes);
        self.bytes.extend_from_slice(b"\r\n");
        self
    }

    /// The content type with the boundary.
    pub fn content_type() -> String {
        format!("multipart/form-data; boundary={BOUNDARY}")
    }

    /// The encoded body.
    pub fn finish(mut self) -> Vec<u8> {
        self.bytes.extend_from_slice(format!("--{BOUNDARY}--\r\n").as_bytes());
        self.bytes
    }
}

/// The events of a stream, and the deltas of its text joined.
///
/// # Errors
/// A line is not a valid event.
pub fn transcript_events(text: &str) -> Result<(Vec<serde_json::Value>, String)> {
    let mut events = Vec::new();
    let mut joined = String::new();
    for event in text.split_terminator("\n\n").filter(|event| !event.starts_with(':')) {
        let data = event.strip_prefix("data: ").ok_or_else(|| anyhow::anyhow!("no data: {event}"))?;
        let event: serde_json::Value = serde_json::from_str(data)?;
        if event["type"] == "transcript.text.delta" {
            joined.push_str(event["delta"].as_str().unwrap_or_default());
        }
        events.push(event);
    }
    Ok((events, joined))
}
