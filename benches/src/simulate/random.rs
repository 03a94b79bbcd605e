//! Random numbers of the simulation: a function of the seed, the same on every machine.

/// SplitMix64.
#[derive(Debug, Clone)]
pub(crate) struct Random(u64);

impl Random {
    /// A stream of numbers for a seed and a purpose.
    pub(crate) fn new(seed: u64, purpose: u64) -> Self {
        let mut random = Self(seed ^ purpose.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        random.next();
        random
    }

    /// 64 random bits.
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    /// Uniform in 0..1.
    pub(crate) fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Uniform in `low..high`.
    pub(crate) fn between(&mut self, low: f64, high: f64) -> f64 {
        low + self.unit() * (high - low)
    }

    /// Uniform in the logarithm.
    pub(crate) fn log_between(&mut self, low: f64, high: f64) -> f64 {
        self.between(low.ln(), high.ln()).exp()
    }

    /// Exponential with this mean.
    pub(crate) fn exponential(&mut self, mean: f64) -> f64 {
        -mean * (1.0 - self.unit()).ln()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_repeat_and_have_their_means() {
        let mut random = Random::new(7, 1);
        assert_eq!(random.next(), Random::new(7, 1).next());
        assert_ne!(Random::new(7, 2).next(), Random::new(7, 1).next());
        let mean = |values: Vec<f64>| values.iter().sum::<f64>() / values.len() as f64;
        let exponential = mean((0..20_000).map(|_| random.exponential(3.0)).collect());
        let uniform = mean((0..20_000).map(|_| random.between(2.0, 4.0)).collect());
        assert!((exponential - 3.0).abs() < 0.1 && (uniform - 3.0).abs() < 0.05, "{exponential} {uniform}");
    }
}
