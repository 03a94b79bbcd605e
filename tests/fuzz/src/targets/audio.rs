//! Decoding of recordings, by container. All read any container: the seeds differ.

use std::time::Duration;

use izwi_audio::decode::{DecodeLimits, decode};

use crate::Target;
use crate::corpus::file;

const RATE_HZ: u32 = 16_000;
const MAX_S: u64 = 20;

pub(super) const FLAC: Target = Target { name: "audio_flac", seeds: || seeds(&["tone.flac"]), ..target() };
pub(super) const MATROSKA: Target = Target {
    name: "audio_matroska",
    seeds: || seeds(&["tone.webm", "tone-vorbis.webm", "silent-picture.mkv"]),
    ..target()
};
pub(super) const MP4: Target =
    Target { name: "audio_mp4", seeds: || seeds(&["tone.m4a", "tone-alac.m4a", "ac3.m4a"]), ..target() };
pub(super) const MPEG: Target =
    Target { name: "audio_mpeg", seeds: || seeds(&["tone.mp3", "tone.aac"]), ..target() };
pub(super) const OGG: Target =
    Target { name: "audio_ogg", seeds: || seeds(&["tone.ogg", "tone.opus", "speech-silk.opus"]), ..target() };
pub(super) const PCM: Target =
    Target { name: "audio_pcm", seeds: || seeds(&["tone-adpcm.wav", "tone.aiff", "tone.caf"]), ..target() };

const fn target() -> Target {
    Target { name: "", run, seeds: Vec::new, max_bytes: 8 << 10 }
}

/// Whole files, and their beginnings: a fuzzer changes few bytes at a time.
fn seeds(names: &[&str]) -> Vec<Vec<u8>> {
    let whole = names.iter().map(|name| file(&format!("crates/izwi-audio/testdata/{name}")));
    whole.flat_map(|bytes| [bytes[..bytes.len().min(2_500)].to_vec(), bytes]).collect()
}

/// Samples are finite, in range and within the limit, and errors are short.
fn run(bytes: &[u8]) {
    let limits = DecodeLimits { max_bytes: 1 << 20, max_duration: Duration::from_secs(MAX_S) };
    match decode(bytes.to_vec(), RATE_HZ, &limits) {
        Ok(samples) => {
            // A chained file rounds each of its parts.
            let most = (MAX_S * u64::from(RATE_HZ)) as usize + bytes.len();
            assert!((1..=most).contains(&samples.len()), "{} samples", samples.len());
            assert!(samples.iter().all(|sample| sample.abs() <= 1.0), "a sample out of range");
        }
        Err(error) => assert!(error.to_string().len() < 2_000, "a long error: {error}"),
    }
}
