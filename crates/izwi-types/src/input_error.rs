//! What is wrong with an input.

use std::fmt::Display;
use std::ops::RangeInclusive;

/// An input that the model rejects.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct InputError {
    /// The request field, by its public name (`voice`, `input`, `language` …).
    pub param: &'static str,
    /// What is wrong, with the value and the remedy.
    pub message: String,
}

impl InputError {
    /// The input is for a task that the model does not support.
    pub fn other_task(does: &str, param: &'static str) -> Self {
        Self { param, message: format!("this model {does}; choose another for {param}") }
    }

    /// Refuses a value outside its range.
    ///
    /// # Errors
    /// It is outside; the error names the parameter, the value and the range.
    pub(crate) fn check_range<T: PartialOrd + Display>(
        param: &'static str,
        value: Option<T>,
        range: &RangeInclusive<T>,
    ) -> Result<(), Self> {
        let Some(value) = value.filter(|value| !range.contains(value)) else { return Ok(()) };
        let (least, most) = (range.start(), range.end());
        Err(Self { param, message: format!("{param} is {value}; it must be between {least} and {most}") })
    }
}
