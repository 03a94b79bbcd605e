//! An audio file that is written while its audio is made. It can be ended at any time, and is valid then.
//!
//! Until it ends it grows next to its path, as NAME.XXXXXX.part, with the header of a stream: players read it. Knows no engine.

use std::fs::File;
use std::io::{Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use izwi_audio::encode::{Encoder, EncoderConfig, Format, MP3};

use crate::pending_file::PendingFile;

/// An audio file that grows. Dropped before its end, it leaves nothing.
#[derive(Debug)]
pub(crate) struct AudioFile {
    path: PathBuf,
    pending: PendingFile,
    file: File,
    format: &'static Format,
    encoder: Box<dyn Encoder>,
    sample_rate_hz: u32,
    /// The header of a stream of unknown length.
    header: Vec<u8>,
    samples: u64,
}

impl AudioFile {
    /// Begins a file of mono audio.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(crate) fn create(path: &Path, format: &'static Format, sample_rate_hz: u32) -> Result<Self> {
        let pending = PendingFile::begin(path)?;
        let mut file = pending.open().with_context(|| cannot(path))?;
        // The first frame of MP3 tells the length: its frames, which are small, wait in memory for the end.
        let config = match format.name == MP3.name {
            true => EncoderConfig::whole(sample_rate_hz, 0),
            false => EncoderConfig::streamed(sample_rate_hz),
        };
        let mut encoder = format.encoder(&config)?;
        let header = encoder.push(&[])?;
        file.write_all(&header).with_context(|| cannot(path))?;
        let path = path.to_path_buf();
        Ok(Self { path, pending, file, format, encoder, sample_rate_hz, header, samples: 0 })
    }

    /// Its path once it has ended.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Samples so far.
    pub(crate) fn samples(&self) -> u64 {
        self.samples
    }

    /// Appends samples.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(crate) fn write(&mut self, samples: &[f32]) -> Result<()> {
        let bytes = self.encoder.push(samples)?;
        self.file.write_all(&bytes).with_context(|| cannot(&self.path))?;
        self.samples += samples.len() as u64;
        Ok(())
    }

    /// Ends the file and lets it appear at its path.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(crate) fn finish(mut self) -> Result<()> {
        let end = self.encoder.finish()?;
        self.file.write_all(&end).with_context(|| cannot(&self.path))?;
        if let Some(header) = self.header_with_length()
            && self.file.seek(SeekFrom::Start(0)).is_ok()
        {
            self.file.write_all(&header).with_context(|| cannot(&self.path))?;
        }
        drop(self.file);
        self.pending.keep().with_context(|| cannot(&self.path))
    }

    /// The header with the length of the audio, where the format has one that is as long as that of a stream.
    fn header_with_length(&self) -> Option<Vec<u8>> {
        let config = EncoderConfig::whole(self.sample_rate_hz, self.samples);
        let header = self.format.encoder(&config).ok()?.push(&[]).ok()?;
        (header.len() == self.header.len() && header != self.header).then_some(header)
    }
}

fn cannot(path: &Path) -> String {
    format!("cannot write {}", path.display())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use std::time::Duration;

    use izwi_audio::decode::{DecodeLimits, decode};
    use izwi_audio::encode::FORMATS;

    use super::*;

    fn tone(samples: usize) -> Vec<f32> {
        (0..samples).map(|at| (at as f32 * 0.05).sin() * 0.4).collect()
    }

    #[test]
    fn a_file_that_grew_equals_one_that_was_encoded_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let samples = tone(50_000);
        for format in FORMATS {
            let path = folder.path().join(format.name);
            let mut file = AudioFile::create(&path, format, 24_000).unwrap();
            samples.chunks(4_801).for_each(|chunk| file.write(chunk).unwrap());
            assert_eq!(file.samples(), 50_000);
            assert!(!path.exists(), "{}: it appears at its end", format.name);
            file.finish().unwrap();
            let expected = format.encode_all(&samples, 24_000).unwrap();
            assert!(fs::read(&path).unwrap() == expected, "{}", format.name);
        }
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), FORMATS.len(), "no part is left");
    }

    #[test]
    fn a_growing_file_can_be_read() {
        let folder = tempfile::tempdir().unwrap();
        let limits = DecodeLimits { max_bytes: 1 << 20, max_duration: Duration::from_secs(60) };
        for format in FORMATS.iter().filter(|format| ["wav", "flac", "opus"].contains(&format.name)) {
            let mut file = AudioFile::create(&folder.path().join("a"), format, 24_000).unwrap();
            file.write(&tone(60_000)).unwrap();
            let part = fs::read_dir(folder.path()).unwrap().next().unwrap().unwrap();
            let name = part.file_name().into_string().unwrap();
            assert!(name.starts_with("a.") && name.ends_with(".part"), "{name}");
            let read = decode(fs::read(part.path()).unwrap(), 24_000, &limits).unwrap();
            // Encoders hold back what does not fill a frame.
            assert!(read.len() > 50_000, "{}: {} samples", format.name, read.len());
            drop(file);
            assert_eq!(
                fs::read_dir(folder.path()).unwrap().count(),
                0,
                "a file that was not ended leaves nothing"
            );
        }
    }
}
