//! Reproducible random inputs.

use serde_json::{Value, json};

/// Reproducible random numbers (xorshift64*, <https://arxiv.org/abs/1402.6246>).
#[derive(Debug, Clone)]
pub struct Dice(u64);

impl Dice {
    /// Numbers that depend on `seed` alone, which is not 0.
    pub fn new(seed: u64) -> Self {
        Self(seed.max(1))
    }

    /// A number from 0 to `below`, exclusive.
    pub fn roll(&mut self, below: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % below.max(1)
    }

    /// Fewer than `length` characters, most of them of JSON.
    pub fn text(&mut self, length: usize) -> String {
        let pool: Vec<char> =
            "{}[]\":,\\ \u{0}\u{7f}\u{202e}truefalsenull0123456789.eE+-é語🦀".chars().collect();
        (0..self.roll(length)).map(|_| pool[self.roll(pool.len())]).collect()
    }

    /// Fewer than `length` bytes.
    pub fn bytes(&mut self, length: usize) -> Vec<u8> {
        (0..self.roll(length)).map(|_| self.roll(256) as u8).collect()
    }

    /// A value of a type that no field accepts.
    pub fn wrong(&mut self) -> Value {
        match self.roll(4) {
            0 => json!([[self.roll(9)]]),
            1 => json!({"a": {"b": self.text(9)}}),
            2 => json!(true),
            _ => json!([null, self.text(5)]),
        }
    }

    /// One of `options`.
    pub fn pick<'a>(&mut self, options: &[&'a str]) -> &'a str {
        options[self.roll(options.len())]
    }

    /// A proper prefix of `text`.
    pub fn cut(&mut self, text: &str) -> String {
        let at = 1 + self.roll(text.chars().count() - 1);
        text.chars().take(at).collect()
    }

    /// Changes, removes, repeats or cuts some of `bytes`; half of the changes hit the first `head`.
    pub fn damage(&mut self, bytes: &mut Vec<u8>, head: usize) {
        for _ in 0..1 + self.roll(6) {
            if bytes.is_empty() {
                return;
            }
            let reach = if self.roll(2) == 0 { bytes.len() } else { bytes.len().min(head) };
            let at = self.roll(reach);
            let end = (at + 1 + self.roll(40)).min(bytes.len());
            match self.roll(6) {
                0 => bytes.truncate(at + 1),
                1 => drop(bytes.drain(at..end)),
                2 => bytes[at] ^= 1 << self.roll(8),
                // Sizes and counts that lie.
                3 => bytes[at..end.min(at + 4)].fill(0xff),
                4 => bytes[at..end.min(at + 4)].fill(0),
                _ => {
                    let copy = bytes[at..end].to_vec();
                    drop(bytes.splice(at..at, copy));
                }
            }
        }
    }
}
