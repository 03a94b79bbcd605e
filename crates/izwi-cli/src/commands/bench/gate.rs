//! The regression gate: compares results with a baseline of the same machine.

use std::path::Path;

use anyhow::Result;

use super::report::{Measured, Report};
use crate::failure::{usage, with_help};

/// An earlier report.
#[derive(Debug)]
pub(super) struct Baseline(Report);

impl Baseline {
    /// Reads the output of `--json`.
    ///
    /// # Errors
    /// The file cannot be read, is not a report, or comes from a machine with another number of cores.
    pub(super) fn read(path: &Path, cores: usize) -> Result<Self> {
        let help = "give --gate a file that `izwi bench --json` wrote on this machine";
        let name = path.display();
        let text = std::fs::read_to_string(path)
            .map_err(|error| usage(format!("the baseline {name} cannot be read: {error}"), help))?;
        let report: Report = serde_json::from_str(&text)
            .map_err(|error| usage(format!("{name} is not a report: {error}"), help))?;
        let baseline_cores = report.machine.cores;
        if baseline_cores != cores {
            return Err(usage(
                format!("{name} was measured on {baseline_cores} cores, this machine has {cores}"),
                help,
            ));
        }
        Ok(Self(report))
    }

    /// A line for each result that is in both reports.
    ///
    /// # Errors
    /// A result is below `ratio` times the baseline, or no result is in both.
    pub(super) fn compare(&self, report: &Report, ratio: f64) -> Result<String> {
        let mut page = String::new();
        let mut slower = 0;
        for measured in &report.results {
            let same = |old: &&Measured| {
                (&old.model, &old.dtype, old.batch, old.threads)
                    == (&measured.model, &measured.dtype, measured.batch, measured.threads)
            };
            let Some(old) = self.0.results.iter().find(same) else { continue };
            let (rate, unit) = old.rate();
            let share = measured.rate().0 / rate;
            let verdict = if share < ratio { "slower" } else { "good" };
            slower += usize::from(share < ratio);
            page.push_str(&format!(
                "{} {}, {} at once: {share:.2} of the baseline's {rate:.1} {unit}: {verdict}\n",
                measured.model, measured.dtype, measured.batch
            ));
        }
        if page.is_empty() {
            let help =
                "measure what the baseline contains: the same --models, --dtypes, --batch and --threads";
            return Err(with_help("no result is in the baseline", help));
        }
        if slower > 0 {
            let help =
                format!("the limit is {ratio} of the baseline; repeat the measurement on an idle machine");
            return Err(with_help(format!("{page}{slower} slower than the baseline"), help));
        }
        Ok(page)
    }
}

#[cfg(test)]
mod tests {
    use super::super::machine::Machine;
    use super::*;

    fn report(speeds: &[(usize, f64)]) -> Report {
        let results = speeds.iter().map(|&(batch, frames_per_s)| Measured::example(batch, frames_per_s));
        Report {
            machine: Machine { cores: 2, read_bandwidth_gb_s: 40.0 },
            results: results.collect(),
            details: Vec::new(),
        }
    }

    #[test]
    fn slower_results_fail_and_others_are_listed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("baseline.json");
        std::fs::write(&path, serde_json::to_string(&report(&[(1, 10.0), (4, 20.0)])).unwrap()).unwrap();
        let baseline = Baseline::read(&path, 2).unwrap();
        let page = baseline.compare(&report(&[(1, 8.1), (2, 1.0)]), 0.8).unwrap();
        assert_eq!(page.lines().count(), 1);
        assert!(page.contains("0.81 of the baseline's 10.0 frames/s: good"), "{page}");
        let error = baseline.compare(&report(&[(1, 11.0), (4, 15.0)]), 0.8).unwrap_err().to_string();
        assert!(error.contains("1 slower") && error.contains("4 at once: 0.75"), "{error}");
        assert!(baseline.compare(&report(&[(2, 1.0)]), 0.8).is_err());
        assert!(Baseline::read(&path, 3).unwrap_err().to_string().contains("2 cores"));
        std::fs::write(&path, "{}").unwrap();
        assert!(Baseline::read(&path, 2).is_err());
    }
}
