//! The type of a model's large weights, as a user chooses it.

use std::fmt;
use std::str::FromStr;

/// The type of the large weights of a model in memory. Activations and sums are f32.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Precision {
    /// Depends on the device: [`Self::Q8`] where it has kernels for 8 bits (the CPU, Metal), [`Self::F32`] elsewhere.
    #[default]
    Auto,
    /// 32 bits: the values of the checkpoint, exact.
    F32,
    /// 16 bits, 8 of them the exponent: the values of a bf16 checkpoint, exact.
    Bf16,
    /// 16 bits, 5 of them the exponent.
    F16,
    /// 8 bits and a scale for every 32 inputs.
    Q8,
    /// 4 bits and a scale for every 32 inputs. Small models lose intelligibility.
    Q4,
}

const NAMES: [(&str, Precision); 6] = [
    ("auto", Precision::Auto),
    ("f32", Precision::F32),
    ("bf16", Precision::Bf16),
    ("f16", Precision::F16),
    ("q8", Precision::Q8),
    ("q4", Precision::Q4),
];

impl FromStr for Precision {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = NAMES.iter().find(|(name, _)| *name == text);
        found.map(|&(_, precision)| precision).ok_or_else(|| {
            format!("dtype '{}' is unknown; use auto, f32, bf16, f16, q8 or q4", crate::excerpt(text))
        })
    }
}

impl fmt::Display for Precision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let found = NAMES.iter().find(|(_, precision)| precision == self);
        f.write_str(found.map_or("auto", |(name, _)| name))
    }
}

impl Precision {
    /// The type that [`Self::Auto`] selects on a device with or without kernels for 8 bits; any other type is returned
    /// unchanged.
    #[must_use]
    pub fn on(self, has_q8: bool) -> Self {
        match self {
            Self::Auto if has_q8 => Self::Q8,
            Self::Auto => Self::F32,
            chosen => chosen,
        }
    }

    /// Bits of a weight, scales included; [`Self::Auto`] counts as [`Self::F32`].
    #[must_use]
    pub fn bits(self) -> usize {
        match self {
            Self::Auto | Self::F32 => 32,
            Self::Bf16 | Self::F16 => 16,
            Self::Q8 => 9,
            Self::Q4 => 5,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip_and_unknown_names_are_errors() {
        for (name, precision) in NAMES {
            assert_eq!(name.parse(), Ok(precision));
            assert_eq!(precision.to_string(), name);
        }
        assert!("int8".parse::<Precision>().unwrap_err().contains("int8"));
        assert_eq!((Precision::Auto.on(true), Precision::F16.on(true)), (Precision::Q8, Precision::F16));
    }
}
