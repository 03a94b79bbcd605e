//! Sampling parameters, the parameters of a generation that have them, and the options of a speech request that set both.
//!
//! A sampling parameter is one row of the table below.

use serde::Deserialize;

use crate::InputError;

/// Rows: name, type, value of greedy sampling, range, the range in words. Values outside the range are refused.
macro_rules! sampling_params {
    ($($(#[$doc:meta])* $name:ident: $type:ty = $greedy:expr, $range:expr, $allowed:literal;)+) => {
        /// Parameters of token sampling.
        #[derive(Debug, Clone, Copy, PartialEq)]
        pub struct SamplingParams {
            $($(#[$doc])* pub $name: $type,)+
        }

        /// Options of a speech request, for HTTP, WebSocket, command line and engine. Absent options take the model's
        /// defaults.
        #[derive(Debug, Clone, Default, PartialEq, Deserialize)]
        #[serde(default, expecting = "a JSON object")]
        pub struct SpeechOptions {
            /// BCP 47 tag of the text.
            pub language: Option<String>,
            /// Style prompt.
            pub instructions: Option<String>,
            /// Tempo relative to the voice's own, 1.0 for unchanged.
            pub speed: Option<f32>,
            /// Seed of all randomness.
            pub seed: Option<u64>,
            /// The most tokens to generate.
            pub max_tokens: Option<usize>,
            /// Whether the model reads the whole text before it generates (`true`) or while it generates (`false`).
            pub non_streaming_mode: Option<bool>,
            /// Names of the lexicons that are used, the first ones first; without it those that are for all texts or for the
            /// voice.
            pub lexicons: Option<Vec<String>>,
            $($(#[$doc])* pub $name: Option<$type>,)+
        }

        /// Generation parameters of a request. A request without them uses the model's own.
        #[derive(Debug, Clone, PartialEq)]
        pub struct GenerationParams {
            $($(#[$doc])* pub $name: $type,)+
            /// The most tokens to generate.
            pub max_tokens: usize,
            /// Tempo of speech relative to the voice's own, 1.0 for unchanged.
            pub speed: f32,
            /// Seed of all randomness; `None` for a random seed.
            pub seed: Option<u64>,
        }

        impl From<SamplingParams> for GenerationParams {
            fn from(sampling: SamplingParams) -> Self {
                Self { $($name: sampling.$name,)+ max_tokens: 2048, speed: 1.0, seed: None }
            }
        }

        impl GenerationParams {
            /// The sampling parameters among them.
            pub fn sampling(&self) -> SamplingParams {
                SamplingParams { $($name: self.$name,)+ }
            }

            /// These parameters with the given options in their place.
            #[must_use]
            pub fn with(&self, options: &SpeechOptions) -> Self {
                Self {
                    $($name: options.$name.unwrap_or(self.$name),)+
                    max_tokens: options.max_tokens.unwrap_or(self.max_tokens),
                    speed: options.speed.unwrap_or(self.speed),
                    seed: options.seed.or(self.seed),
                }
            }
        }

        impl SamplingParams {
            /// Greedy sampling.
            pub const GREEDY: Self = Self { $($name: $greedy,)+ };

            /// Checks each value.
            ///
            /// # Errors
            /// A value is out of its range; the error names the parameter, the value and the range.
            pub fn check(&self) -> Result<(), InputError> {
                $(if !($range).contains(&self.$name) {
                    let (param, value) = (stringify!($name), self.$name);
                    let message = format!("{param} is {value}; it must be {}", $allowed);
                    return Err(InputError { param, message });
                })+
                Ok(())
            }
        }

        impl SpeechOptions {
            /// Whether an option sets a sampling parameter.
            pub fn sets_sampling(&self) -> bool {
                $(self.$name.is_some() ||)+ false
            }
        }
    };
}

sampling_params! {
    /// Temperature, 0.0 for greedy sampling.
    temperature: f32 = 0.0, 0.0..=2.0, "between 0 and 2";
    /// Nucleus (top-p) probability mass, above 0.0 and at most 1.0.
    top_p: f32 = 1.0, f32::EPSILON..=1.0, "above 0 and at most 1";
    /// Number of candidates, 0 for all.
    top_k: usize = 0, 0..=usize::MAX, "a whole number from 0";
    /// Penalty of tokens that were generated before, 1.0 for none.
    repetition_penalty: f32 = 1.0, 0.5..=2.0, "between 0.5 and 2";
}

impl SamplingParams {
    /// Greedy sampling with a repetition penalty.
    pub const fn repeating(repetition_penalty: f32) -> Self {
        Self { repetition_penalty, ..Self::GREEDY }
    }
}

impl Default for GenerationParams {
    fn default() -> Self {
        SamplingParams { temperature: 0.7, top_p: 0.9, top_k: 50, ..SamplingParams::GREEDY }.into()
    }
}

/// Refuses infinities and NaN.
///
/// # Errors
/// The value is not finite; the error names the parameter.
pub fn check_finite(param: &'static str, value: f64) -> Result<(), InputError> {
    if value.is_finite() {
        return Ok(());
    }
    Err(InputError { param, message: format!("{param} is {value}; it must be a finite number") })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_replace_defaults_and_values_out_of_range_are_refused() {
        let options = SpeechOptions { top_k: Some(7), temperature: Some(9.0), ..SpeechOptions::default() };
        assert!(options.sets_sampling() && !SpeechOptions::default().sets_sampling());
        let params =
            GenerationParams { top_p: 0.5, seed: Some(3), ..SamplingParams::GREEDY.into() }.with(&options);
        assert_eq!((params.top_k, params.top_p, params.temperature, params.seed), (7, 0.5, 9.0, Some(3)));
        let error = params.sampling().check().unwrap_err();
        assert_eq!(
            (error.param, &*error.message),
            ("temperature", "temperature is 9; it must be between 0 and 2")
        );
        let params = SamplingParams::GREEDY;
        for (refused, param) in [
            (SamplingParams { top_p: f32::NAN, ..params }, "top_p"),
            (SamplingParams { top_p: 0.0, ..params }, "top_p"),
            (SamplingParams { top_p: 1.01, ..params }, "top_p"),
            (SamplingParams { temperature: -0.1, ..params }, "temperature"),
            (SamplingParams { repetition_penalty: f32::INFINITY, ..params }, "repetition_penalty"),
            (SamplingParams { repetition_penalty: 0.4, ..params }, "repetition_penalty"),
        ] {
            assert_eq!(refused.check().unwrap_err().param, param);
        }
        for accepted in
            [params, SamplingParams { temperature: 2.0, top_p: 0.01, top_k: 7, repetition_penalty: 2.0 }]
        {
            assert_eq!(accepted.check(), Ok(()));
        }
    }
}
