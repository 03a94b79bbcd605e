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

/// Chunks whose total length the short chunks at the start of an utterance have.
const EARLY_CHUNKS: usize = 5;

/// Lengths of the chunks of an utterance, in samples: all the same, or short ones at the start.
///
/// A first chunk of its own length is for early audio. The chunks after it have its length too, until the listener has as much
/// as five common chunks: a longer one would not be complete when the short one before it is played, unless the generator is
/// much faster than real time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChunkLengths {
    first: Option<usize>,
    common: usize,
}

impl ChunkLengths {
    /// Chunks of `common` samples, and at the start of `first` where it is given. Lengths of 0 are raised to 1.
    pub fn new(common: usize, first: Option<usize>) -> Self {
        Self { first: first.map(|first| first.max(1)), common: common.max(1) }
    }

    /// Length of most chunks.
    pub fn common(&self) -> usize {
        self.common
    }

    /// Length of the first chunk.
    pub fn first(&self) -> usize {
        self.first.unwrap_or(self.common)
    }

    /// Whether the sample at `offset` is in one of the short chunks at the start.
    pub fn is_early(&self, offset: usize) -> bool {
        offset < self.early().0
    }

    /// Chunks that `samples` samples complete.
    pub fn complete(&self, samples: usize) -> usize {
        let (early, chunks) = self.early();
        if samples < early { samples / self.first() } else { chunks + (samples - early) / self.common }
    }

    /// Where the chunk ends that the sample at `offset` is in.
    pub fn end(&self, offset: usize) -> usize {
        let (early, chunks) = self.early();
        match self.complete(offset) + 1 {
            number if number <= chunks => number * self.first(),
            number => early.saturating_add((number - chunks).saturating_mul(self.common)),
        }
    }

    /// Whether a chunk waits for the sample after it, so that the last one can be marked.
    pub fn waits_for_next(&self) -> bool {
        self.first.is_none()
    }

    /// Samples and number of the short chunks.
    fn early(&self) -> (usize, usize) {
        let chunks = self.first.map_or(0, |first| self.common.saturating_mul(EARLY_CHUNKS).div_ceil(first));
        (chunks.saturating_mul(self.first()), chunks)
    }
}

/// Collects samples and returns chunks of exactly the given lengths; the last may be shorter.
///
/// A full chunk is held until the sample after it arrives, so that the last chunk can be marked and an utterance whose
/// length is a multiple of the chunk does not end in an empty one. Where the first chunk has a length of its own, for early
/// audio, no chunk is held.
#[derive(Debug)]
pub struct Chunker {
    lengths: ChunkLengths,
    buffer: Vec<f32>,
    sequence: u64,
    sample_offset: u64,
}

impl Chunker {
    /// Cuts chunks of `lengths`.
    pub fn new(lengths: ChunkLengths) -> Self {
        Self { lengths, buffer: Vec::new(), sequence: 0, sample_offset: 0 }
    }

    /// Adds samples and returns the chunks that are complete and not the last.
    pub fn push(&mut self, samples: &[f32]) -> Vec<Chunk> {
        self.buffer.extend_from_slice(samples);
        let held = usize::from(self.lengths.waits_for_next());
        let start = self.sample_offset as usize;
        let mut chunks = Vec::new();
        let mut taken = 0;
        loop {
            let length = self.lengths.end(start + taken) - start - taken;
            if self.buffer.len() - taken < length.saturating_add(held) {
                break;
            }
            let piece = self.buffer[taken..taken + length].to_vec();
            chunks.push(self.emit(piece, false));
            taken += length;
        }
        self.buffer.drain(..taken);
        chunks
    }

    /// Samples of the chunk that is being filled, and how many are missing until it leaves.
    pub fn progress(&self) -> (u64, u64) {
        let start = self.sample_offset as usize;
        let length = self.lengths.end(start) - start;
        let held = usize::from(self.lengths.waits_for_next());
        (length as u64, length.saturating_add(held).saturating_sub(self.buffer.len()).max(1) as u64)
    }

    /// A chunk without samples, for events between two chunks.
    pub fn mark(&mut self) -> Chunk {
        self.emit(Vec::new(), false)
    }

    /// Ends the utterance and returns the rest, marked final. It is empty if no sample was pushed, or none after a chunk that
    /// was not held.
    pub fn finish(mut self) -> Chunk {
        let rest = std::mem::take(&mut self.buffer);
        self.emit(rest, true)
    }

    /// Samples pushed since the start.
    pub fn total_samples(&self) -> u64 {
        self.sample_offset + self.buffer.len() as u64
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
            pushed in prop::collection::vec(0usize..700, 0..20),
            chunk_samples in 1usize..400,
            first in prop::option::of(1usize..400),
        ) {
            let signal: Vec<f32> = (0..pushed.iter().sum::<usize>()).map(|i| i as f32).collect();
            let lengths = ChunkLengths::new(chunk_samples, first);
            let mut chunker = Chunker::new(lengths);
            let mut chunks = Vec::new();
            let mut at = 0;
            for length in pushed {
                chunks.extend(chunker.push(&signal[at..at + length]));
                at += length;
            }
            prop_assert_eq!(chunker.total_samples(), signal.len() as u64);
            chunks.push(chunker.finish());

            let last = chunks.len() - 1;
            let mut at = 0;
            for (i, chunk) in chunks.iter().enumerate() {
                prop_assert_eq!(chunk.sequence, i as u64);
                prop_assert_eq!(chunk.sample_offset, at as u64);
                prop_assert_eq!(lengths.complete(at), i);
                prop_assert_eq!(chunk.is_final, i == last);
                let is_early = first.is_some() && at < EARLY_CHUNKS * chunk_samples;
                prop_assert_eq!(lengths.is_early(at), is_early);
                let length = first.filter(|_| is_early).unwrap_or(chunk_samples);
                prop_assert_eq!(lengths.end(at), at + length);
                prop_assert_eq!(lengths.end(at + length - 1), at + length);
                if i < last { prop_assert_eq!(chunk.samples.len(), length); }
                prop_assert!(chunk.samples.len() <= length);
                at += chunk.samples.len();
            }
            // Only a chunk that was not held can be followed by nothing.
            if chunks[last].samples.is_empty() {
                prop_assert!(signal.is_empty() || first.is_some());
            } else if first.is_some() {
                prop_assert!(chunks[last].samples.len() < lengths.end(signal.len() - 1) - chunks[last].sample_offset as usize);
            }
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
