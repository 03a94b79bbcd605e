//! Pictures of an utterance as SVG: its waveform and its spectrogram.

use std::fmt::Write as _;

use realfft::RealFftPlanner;

use super::chart::{inner_width, open, seconds_axis};
use crate::commands::bench::batch::Utterance;

const WAVEFORM_HEIGHT: f64 = 120.0;
const SPECTROGRAM_HEIGHT: f64 = 260.0;
/// Space of the axis.
const BOTTOM: f64 = 40.0;
/// Columns of the waveform.
const WAVEFORM_COLUMNS: usize = 600;

/// Samples of a spectrum: 43 ms at 24 kHz.
const WINDOW: usize = 1_024;
/// The most spectra of a picture, and its bands, which are as wide as the ear's.
const COLUMNS: usize = 260;
const BANDS: usize = 72;
/// Shades of the style sheet, `l0` and so on. What is below the range has none.
const SHADES: usize = 12;
const RANGE_DB: f64 = 72.0;
/// The least level of the brightest shade, so that silence is dark. A full tone has 48 dB more.
const LOUD_DB: f64 = 0.0;

/// The least and the greatest sample over time.
pub(super) fn waveform(utterance: &Utterance) -> String {
    let (left, width) = inner_width();
    let middle = WAVEFORM_HEIGHT / 2.0;
    let peak = utterance.samples.iter().fold(0.0f32, |peak, sample| peak.max(sample.abs()));
    let scale = f64::from(if peak > 0.0 { middle as f32 / peak } else { 0.0 });
    let column = utterance.samples.len().div_ceil(WAVEFORM_COLUMNS).max(1);
    let columns = utterance.samples.len().div_ceil(column).max(1);
    let mut path = String::new();
    for (at, samples) in utterance.samples.chunks(column).enumerate() {
        let low = samples.iter().copied().fold(f32::INFINITY, f32::min);
        let high = samples.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let x = left + width * (at as f64 + 0.5) / columns as f64;
        let y = |sample: f32| middle - scale * f64::from(sample);
        // Writing to a String cannot fail.
        let _ = write!(path, "M{x:.1} {:.1}V{:.1}", y(high), y(low) + 0.5);
    }
    let mut svg = open(WAVEFORM_HEIGHT, "waveform");
    let _ = writeln!(svg, "<path class=\"wave\" d=\"{path}\"/>");
    svg + "</svg>\n"
}

/// The level of each band over time, in decibels below the loudest.
pub(super) fn spectrogram(utterance: &Utterance) -> String {
    let (left, width) = inner_width();
    let bottom = SPECTROGRAM_HEIGHT - BOTTOM;
    let levels = band_levels(utterance);
    let loudest = levels.iter().flatten().copied().fold(LOUD_DB, f64::max);
    let shade = |level: f64| {
        let share = 1.0 + (level - loudest) / RANGE_DB;
        (share > 0.0).then(|| ((share * SHADES as f64) as usize).min(SHADES - 1))
    };
    let cell = (width / levels.len().max(1) as f64, bottom / BANDS as f64);
    let mut paths = vec![String::new(); SHADES];
    for band in 0..BANDS {
        let y = bottom - cell.1 * (band + 1) as f64;
        let shades: Vec<Option<usize>> = levels.iter().map(|column| shade(column[band])).collect();
        let mut at = 0;
        // Equal neighbours are one rectangle.
        for run in shades.chunk_by(|a, b| a == b) {
            if let Some(path) = run[0].and_then(|shade| paths.get_mut(shade)) {
                let (x, w) = (left + cell.0 * at as f64, cell.0 * run.len() as f64);
                // Writing to a String cannot fail.
                let _ = write!(path, "M{x:.1} {y:.1}h{w:.1}v{:.1}h-{w:.1}z", cell.1);
            }
            at += run.len();
        }
    }
    let mut svg = open(SPECTROGRAM_HEIGHT, "spectrogram");
    let _ = writeln!(svg, "<path class=\"ground\" d=\"M{left} 0h{width}v{bottom}h-{width}z\"/>");
    for (shade, path) in paths.iter().enumerate().filter(|(_, path)| !path.is_empty()) {
        let _ = writeln!(svg, "<path class=\"l{shade}\" d=\"{path}\"/>");
    }
    let top_mel = mel(f64::from(utterance.rate_hz) / 2.0);
    for hz in [250.0, 1_000.0, 2_000.0, 4_000.0, 8_000.0] {
        let share = mel(hz) / top_mel;
        if share < 1.0 {
            let y = bottom * (1.0 - share);
            let x = left - 6.0;
            let _ = writeln!(svg, "<text class=\"end\" x=\"{x:.1}\" y=\"{:.1}\">{hz:.0} Hz</text>", y + 4.0);
        }
    }
    let duration_s = utterance.samples.len() as f64 / f64::from(utterance.rate_hz.max(1));
    svg + &seconds_axis(duration_s, bottom, SPECTROGRAM_HEIGHT) + "</svg>\n"
}

/// For each column the level of each band in decibels.
fn band_levels(utterance: &Utterance) -> Vec<[f64; BANDS]> {
    let samples = &utterance.samples;
    let fft = RealFftPlanner::<f32>::new().plan_fft_forward(WINDOW);
    let (mut input, mut output) = (fft.make_input_vec(), fft.make_output_vec());
    let hop = samples.len().saturating_sub(WINDOW).div_ceil(COLUMNS - 1).max(WINDOW / 8);
    let columns = samples.len().saturating_sub(WINDOW) / hop + 1;
    let bands = band_of_bins(output.len(), utterance.rate_hz);
    let mut levels = Vec::with_capacity(columns);
    for column in 0..columns {
        for (at, value) in input.iter_mut().enumerate() {
            // The Hann window.
            let turn = std::f32::consts::TAU * at as f32 / WINDOW as f32;
            let sample = samples.get(column * hop + at).copied().unwrap_or(0.0);
            *value = sample * (0.5 - 0.5 * turn.cos());
        }
        if fft.process(&mut input, &mut output).is_err() {
            // The buffers are the plan's own.
            break;
        }
        let mut power = [0.0f64; BANDS];
        for (bin, band) in output.iter().zip(&bands) {
            power[*band] = power[*band].max(f64::from(bin.norm_sqr()));
        }
        fill_gaps(&mut power, &bands);
        levels.push(power.map(|power| 10.0 * (power + 1e-12).log10()));
    }
    levels
}

/// The band of each frequency bin.
fn band_of_bins(bins: usize, rate_hz: u32) -> Vec<usize> {
    let top_hz = f64::from(rate_hz.max(1)) / 2.0;
    let of = |bin: usize| {
        let hz = top_hz * bin as f64 / (bins - 1).max(1) as f64;
        ((mel(hz) / mel(top_hz) * BANDS as f64) as usize).min(BANDS - 1)
    };
    (0..bins).map(of).collect()
}

/// Low bands narrower than a bin get the level of the band below.
fn fill_gaps(power: &mut [f64; BANDS], bands: &[usize]) {
    for band in 1..BANDS {
        if !bands.contains(&band) {
            power[band] = power[band - 1];
        }
    }
}

/// Frequency on the mel scale (<https://en.wikipedia.org/wiki/Mel_scale#Formula>).
fn mel(hz: f64) -> f64 {
    2_595.0 * (1.0 + hz / 700.0).log10()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tone_is_loudest_in_its_band() {
        let rate_hz = 24_000;
        let hz = 1_000.0;
        let samples = (0..rate_hz).map(|at| (std::f32::consts::TAU * hz * at as f32 / rate_hz as f32).sin());
        let levels = band_levels(&Utterance { samples: samples.collect(), rate_hz });
        let expected = (mel(f64::from(hz)) / mel(12_000.0) * BANDS as f64) as usize;
        assert!(levels.len() > 100 && levels.len() <= COLUMNS, "{} columns", levels.len());
        for column in &levels {
            let loudest = (0..BANDS).max_by(|a, b| column[*a].total_cmp(&column[*b])).unwrap();
            assert!(loudest.abs_diff(expected) <= 1, "{loudest}, not {expected}");
        }
    }

    #[test]
    fn no_samples_are_a_picture_too() {
        let none = Utterance { samples: Vec::new(), rate_hz: 24_000 };
        assert!(waveform(&none).ends_with("</svg>\n") && spectrogram(&none).ends_with("</svg>\n"));
    }
}
