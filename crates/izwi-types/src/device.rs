//! The compute device as a user names it: `auto`, `cpu`, `metal[:n]` or `cuda[:n]`.

use std::fmt;
use std::str::FromStr;

/// A device as a user names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DeviceChoice {
    /// Metal or the CPU, whichever a measurement of the model finds faster; without Metal, CUDA where built in and
    /// present, else the CPU.
    #[default]
    Auto,
    /// The CPU.
    Cpu,
    /// The n-th Metal GPU.
    Metal(usize),
    /// The n-th CUDA GPU.
    Cuda(usize),
}

impl FromStr for DeviceChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, index) = match text.split_once(':') {
            Some((name, index)) => {
                let refused =
                    || format!("device '{}' has no valid index; use a number", crate::excerpt(text));
                let index = index.parse().map_err(|_| refused())?;
                (name, Some(index))
            }
            None => (text, None),
        };
        match (name, index) {
            ("auto", None) => Ok(Self::Auto),
            ("cpu", None) => Ok(Self::Cpu),
            ("metal", index) => Ok(Self::Metal(index.unwrap_or(0))),
            ("cuda", index) => Ok(Self::Cuda(index.unwrap_or(0))),
            _ => Err(format!(
                "device '{}' is unknown; use auto, cpu, metal, metal:N, cuda or cuda:N",
                crate::excerpt(text)
            )),
        }
    }
}

impl fmt::Display for DeviceChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Cpu => f.write_str("cpu"),
            Self::Metal(index) => write!(f, "metal:{index}"),
            Self::Cuda(index) => write!(f, "cuda:{index}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_parse_and_print() {
        for (text, choice) in [
            ("auto", DeviceChoice::Auto),
            ("cpu", DeviceChoice::Cpu),
            ("metal", DeviceChoice::Metal(0)),
            ("metal:1", DeviceChoice::Metal(1)),
            ("cuda:2", DeviceChoice::Cuda(2)),
        ] {
            assert_eq!(text.parse(), Ok(choice));
            assert_eq!(choice.to_string().parse(), Ok(choice));
        }
        for text in ["", "gpu", "cpu:0", "metal:x", "auto:1"] {
            assert!(text.parse::<DeviceChoice>().is_err(), "{text}");
        }
    }
}
