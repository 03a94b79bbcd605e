//! The part `preprocessor` of a configuration: how recordings become frames. Source: the Python package `liquid-audio`
//! 1.3.0 (pip).

use serde::Deserialize;

use crate::conformer::{FRAMES_PER_ROW, FrontEnd, MelShape};

/// The part `preprocessor` of a configuration.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Config {
    pub(super) sample_rate: usize,
    pub(super) features: usize,
    n_fft: usize,
    window_size: f64,
    window_stride: f64,
    window: String,
    normalize: String,
    log: bool,
    frame_splicing: usize,
    pad_to: usize,
}

impl Config {
    /// Refuses settings that are not supported.
    pub(super) fn check(&self) -> Result<(), String> {
        let fault = |what: &str, value: &dyn std::fmt::Display, only: &str| {
            Err(format!("preprocessor.{what} {value} is not supported, only {only}"))
        };
        if self.window != "hann" {
            return fault("window", &self.window, "hann");
        }
        if self.normalize != "per_feature" {
            return fault("normalize", &self.normalize, "per_feature");
        }
        if !self.log {
            return fault("log", &self.log, "true");
        }
        if self.frame_splicing != 1 {
            return fault("frame_splicing", &self.frame_splicing, "1");
        }
        if self.pad_to != 0 {
            return fault("pad_to", &self.pad_to, "0");
        }
        let (window, hop) = (self.window_samples(), self.hop());
        if hop == 0 || window < 2 || window > self.n_fft || self.n_fft % 2 == 1 || self.features == 0 {
            return Err(format!(
                "preprocessor: windows of {window} samples every {hop} in a transform of {} are not supported",
                self.n_fft
            ));
        }
        Ok(())
    }

    /// The front end of a checked configuration.
    pub(super) fn front_end(&self) -> FrontEnd {
        FrontEnd::new(MelShape {
            rate_hz: self.sample_rate,
            bins: self.features,
            transform: self.n_fft,
            window: self.window_samples(),
            hop: self.hop(),
            is_normalised: true,
            has_silent_frame: true,
            min_samples: self.hop() * FRAMES_PER_ROW,
        })
    }

    fn window_samples(&self) -> usize {
        (self.window_size * self.sample_rate as f64) as usize
    }

    fn hop(&self) -> usize {
        (self.window_stride * self.sample_rate as f64) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(change: impl FnOnce(&mut serde_json::Value)) -> Result<Config, String> {
        let mut config = serde_json::json!({
            "sample_rate": 16000, "features": 128, "n_fft": 512, "window_size": 0.025, "window_stride": 0.01,
            "window": "hann", "normalize": "per_feature", "log": true, "frame_splicing": 1, "pad_to": 0,
        });
        change(&mut config);
        let config: Config = serde_json::from_value(config).map_err(|error| error.to_string())?;
        config.check().map(|()| config)
    }

    #[test]
    fn unsupported_settings_are_named() {
        for (field, value) in [
            ("window", serde_json::json!("hamming")),
            ("normalize", serde_json::json!("all_features")),
            ("log", serde_json::json!(false)),
            ("frame_splicing", serde_json::json!(2)),
            ("pad_to", serde_json::json!(16)),
        ] {
            let error = config(|config| config[field] = value).unwrap_err();
            assert!(error.contains(field), "{error}");
        }
        let error = config(|config| config["window_size"] = serde_json::json!(0.1)).unwrap_err();
        assert!(error.contains("1600 samples"), "{error}");
        let error = config(|config| drop(config.as_object_mut().unwrap().remove("n_fft"))).unwrap_err();
        assert!(error.contains("n_fft"), "{error}");
    }
}
