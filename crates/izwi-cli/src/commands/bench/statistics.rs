//! Medians and quantiles of what was measured.

use std::time::Duration;

/// Milliseconds.
pub(super) fn ms(duration: &Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

/// The median; 0 without values.
pub(super) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    quantile(&values, 0.5)
}

/// The quantile `at` of sorted values; 0 without values.
pub(super) fn quantile(sorted: &[f64], at: f64) -> f64 {
    let index = (sorted.len() as f64 * at).ceil() as usize;
    sorted.get(index.saturating_sub(1)).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_measured_values() {
        assert_eq!(quantile(&[1.0, 2.0, 3.0, 4.0], 0.5), 2.0);
        assert_eq!(quantile(&[1.0, 2.0, 3.0, 4.0], 0.95), 4.0);
        assert_eq!(quantile(&[], 0.5), 0.0);
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
    }
}
