//! Mutations of inputs, the same in each run. For a test that runs without a fuzzer.

/// Numbers where lengths and counts go wrong.
const NUMBERS: [u64; 10] =
    [0, 1, 0x7f, 0x80, 0xff, 0x7fff, 0xffff, 0x7fff_ffff, 0xffff_ffff, 0x7fff_ffff_ffff_ffff];

/// A generator of numbers: xorshift64*, <https://doi.org/10.1145/2845077>.
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// Numbers that follow from `seed`.
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number below `end`, which is not 0.
    pub fn below(&mut self, end: usize) -> usize {
        (self.next() >> 11) as usize % end
    }
}

/// An input of at most `max_bytes` made of `input`, with parts of `other`.
pub fn mutated(input: &[u8], other: &[u8], max_bytes: usize, random: &mut Random) -> Vec<u8> {
    let mut bytes = input.to_vec();
    for _ in 0..=random.below(6) {
        mutate(&mut bytes, other, random);
    }
    bytes.truncate(max_bytes);
    bytes
}

fn mutate(bytes: &mut Vec<u8>, other: &[u8], random: &mut Random) {
    if bytes.is_empty() {
        bytes.extend(other);
        return;
    }
    // Headers decide most: half of the changes hit the first 256 bytes.
    let reach = if random.below(2) == 0 { bytes.len() } else { bytes.len().min(256) };
    let at = random.below(reach);
    let end = (at + 1 + random.below(32)).min(bytes.len());
    match random.below(9) {
        0 => bytes[at] ^= 1 << random.below(8),
        1 => bytes[at] = random.below(256) as u8,
        2 => write_number(bytes, at, random),
        3 => drop(bytes.drain(at..end)),
        4 => bytes.truncate(at),
        5 => {
            let copied = bytes[at..end].to_vec();
            let to = random.below(bytes.len());
            bytes.splice(to..to, copied);
        }
        6 => {
            let count = random.below(16);
            let value = random.below(256) as u8;
            bytes.splice(at..at, std::iter::repeat_n(value, count));
        }
        7 => bytes[at..end].fill(random.below(256) as u8),
        _ => {
            let from = random.below(other.len().max(1)).min(other.len());
            let to = (from + random.below(64)).min(other.len());
            bytes.splice(at..end, other[from..to].iter().copied());
        }
    }
}

/// Overwrites 1, 2, 4 or 8 bytes, in either order.
fn write_number(bytes: &mut [u8], at: usize, random: &mut Random) {
    let width = (1 << random.below(4)).min(bytes.len() - at);
    let number = NUMBERS[random.below(NUMBERS.len())];
    let mut digits = number.to_le_bytes();
    if random.below(2) == 0 {
        digits[..width].reverse();
    }
    bytes[at..at + width].copy_from_slice(&digits[..width]);
}
