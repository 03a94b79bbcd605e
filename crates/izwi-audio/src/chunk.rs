//! Cuts a growing signal into chunks of a fixed length, for delivery while it is being generated.
//!
//! Knows sample counts. Knows no clock, no client and no encoding.

/// A part of an utterance.
#[derive(Debug, Clone, PartialEq)]
pub struct Chunk {
    /// Position in the utterance: 0, 1, 2, …
    pub sequence: u64,
    /// Offset of the first sample from the utterance's start, in samples.
    pub sample_offset: u64,
    /// Mono samples in −1.0..=1.0.
    pub samples: Vec<f32>,
    /// Whether this is the last chunk.
    pub is_final: bool,
}

/// Collects samples and returns chunks of exactly `chunk_samples`; the first may have a size of its own, and the last may
/// be shorter.
///
/// A full chunk is held until the sample after it arrives, so that the last chunk can be marked and an utterance whose
/// length is a multiple of the chunk does not end in an empty one. A first chunk with a size of its own is for early audio
/// and is not held.
#[derive(Debug)]
pub struct Chunker {
    chunk_samples: usize,
    /// Size of the first chunk, until it was returned.
    first_samples: Option<usize>,
    buffer: Vec<f32>,
    sequence: u64,
    sample_offset: u64,
}

impl Chunker {
    /// `chunk_samples` is raised to 1 when it is 0.
    pub fn new(chunk_samples: usize) -> Self {
        Self {
            chunk_samples: chunk_samples.max(1),
            first_samples: None,
            buffer: Vec::new(),
            sequence: 0,
            sample_offset: 0,
        }
    }

    /// Sets the size of the first chunk; `None` for the size of all others. It is raised to 1 when it is 0.
    #[must_use]
    pub fn with_first(self, first_samples: Option<usize>) -> Self {
        Self { first_samples: first_samples.map(|samples| samples.max(1)), ..self }
    }

    /// Adds samples and returns the chunks that are complete and not the last.
    pub fn push(&mut self, samples: &[f32]) -> Vec<Chunk> {
        self.buffer.extend_from_slice(samples);
        let mut chunks = Vec::new();
        if let Some(first) = self.first_samples
            && self.buffer.len() >= first
        {
            self.first_samples = None;
            let taken = self.buffer.drain(..first).collect();
            chunks.push(self.emit(taken, false));
        }
        if self.first_samples.is_some() {
            return chunks;
        }
        let ready = self.buffer.len().saturating_sub(1) / self.chunk_samples;
        let taken: Vec<f32> = self.buffer.drain(..ready * self.chunk_samples).collect();
        chunks.extend(taken.chunks_exact(self.chunk_samples).map(|piece| self.emit(piece.to_vec(), false)));
        chunks
    }

    /// A chunk without samples, for events between two chunks.
    pub fn mark(&mut self) -> Chunk {
        self.emit(Vec::new(), false)
    }

    /// Ends the utterance and returns the rest, marked final. It is empty only if no sample was pushed, or none behind a
    /// first chunk with a size of its own.
    pub fn finish(mut self) -> Chunk {
        let rest = std::mem::take(&mut self.buffer);
        self.emit(rest, true)
    }

    /// Samples pushed since the start.
    pub fn total_samples(&self) -> u64 {
        self.sample_offset + self.buffer.len() as u64
    }

    /// Samples that are in no chunk yet.
    pub fn buffered_samples(&self) -> u64 {
        self.buffer.len() as u64
    }

    fn emit(&mut self, samples: Vec<f32>, is_final: bool) -> Chunk {
        let chunk = Chunk { sequence: self.sequence, sample_offset: self.sample_offset, samples, is_final };
        self.sequence += 1;
        self.sample_offset += chunk.samples.len() as u64;
        chunk
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn any_slicing_gives_the_same_exact_chunks(
            lengths in prop::collection::vec(0usize..700, 0..20),
            chunk_samples in 1usize..400,
            first in prop::option::of(1usize..400),
        ) {
            let signal: Vec<f32> = (0..lengths.iter().sum::<usize>()).map(|i| i as f32).collect();
            let mut chunker = Chunker::new(chunk_samples).with_first(first);
            let mut chunks = Vec::new();
            let mut at = 0;
            for length in lengths {
                chunks.extend(chunker.push(&signal[at..at + length]));
                at += length;
            }
            prop_assert_eq!(chunker.total_samples(), signal.len() as u64);
            chunks.push(chunker.finish());

            let last = chunks.len() - 1;
            for (i, chunk) in chunks.iter().enumerate() {
                prop_assert_eq!(chunk.sequence, i as u64);
                let before = if i == 0 { 0 } else { first.unwrap_or(chunk_samples) + (i - 1) * chunk_samples };
                prop_assert_eq!(chunk.sample_offset, before as u64);
                prop_assert_eq!(chunk.is_final, i == last);
                let size = first.filter(|_| i == 0).unwrap_or(chunk_samples);
                if i < last { prop_assert_eq!(chunk.samples.len(), size); }
                prop_assert!(chunk.samples.len() <= size);
            }
            prop_assert_eq!(
                chunks[last].samples.is_empty(),
                signal.is_empty() || first == Some(signal.len())
            );
            prop_assert_eq!(chunks.concat_samples(), signal);
        }
    }

    trait Concat {
        fn concat_samples(&self) -> Vec<f32>;
    }
    impl Concat for Vec<Chunk> {
        fn concat_samples(&self) -> Vec<f32> {
            self.iter().flat_map(|c| c.samples.iter().copied()).collect()
        }
    }
}
