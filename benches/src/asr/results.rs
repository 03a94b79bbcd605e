//! Results: medians, ratios, the table and the baseline file.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use anyhow::{Context, Result};
use izwi_benches::clips;
use izwi_benches::report::{self, Machine};
use izwi_tests::wer::{self, Score};
use serde::Serialize;

use crate::runner::{Kind, Runner};

const BEGIN: &str = "<!-- asr: written by `--bin asr` -->\n";
const END: &str = "<!-- asr: end -->\n";

/// One workload through one runner, once.
#[derive(Debug, Clone, Default)]
pub(crate) struct Cell {
    /// Wall time.
    pub(crate) seconds: f64,
    /// Processor time, where the system reports it.
    pub(crate) cpu_seconds: Option<f64>,
    /// Length of its audio.
    pub(crate) audio_s: f64,
    /// Reference text, where known, and transcript.
    pub(crate) hypothesis: Vec<(String, String)>,
}

/// All rounds of one workload through one runner.
#[derive(Debug, Clone, Serialize)]
struct Row {
    model: String,
    threads: usize,
    runner: String,
    about: String,
    workload: String,
    audio_s: f64,
    /// Each round, in the order measured.
    seconds: Vec<f64>,
    median_s: f64,
    /// Processor time of each round: what others on the machine take is not in it.
    cpu_seconds: Vec<f64>,
    rtf: f64,
    /// Median time over that of izwi, a recording at a time, in the same rounds; above 1 it is slower.
    times_izwi: Option<f64>,
    /// The same of processor time.
    cpu_times_izwi: Option<f64>,
    /// WER of the last round, where a reference exists.
    wer: Option<f64>,
}

/// Everything measured, in the order first seen.
#[derive(Debug, Default)]
pub(crate) struct Results {
    rows: Vec<Row>,
}

impl Results {
    pub(crate) fn add(&mut self, model: &str, threads: usize, runner: &Runner, workload: &str, cell: Cell) {
        let name = runner.kind().name();
        let is_it = |row: &Row| {
            row.model == model && row.threads == threads && row.runner == name && row.workload == workload
        };
        let index = self.rows.iter().position(is_it).unwrap_or_else(|| {
            self.rows.push(Row {
                model: model.to_owned(),
                threads,
                runner: name.clone(),
                about: runner.about().to_owned(),
                workload: workload.to_owned(),
                audio_s: cell.audio_s,
                seconds: Vec::new(),
                median_s: 0.0,
                cpu_seconds: Vec::new(),
                rtf: 0.0,
                times_izwi: None,
                cpu_times_izwi: None,
                wer: None,
            });
            self.rows.len() - 1
        });
        let row = &mut self.rows[index];
        row.seconds.push(cell.seconds);
        row.cpu_seconds.extend(cell.cpu_seconds);
        row.median_s = median(&row.seconds);
        row.rtf = row.median_s / row.audio_s;
        let known = cell.hypothesis.iter().filter(|(reference, _)| !reference.is_empty());
        let score: Score =
            known.map(|(reference, hypothesis)| wer::compare(reference, hypothesis).score()).sum();
        row.wer = (score.words > 0).then(|| score.rate());
        self.relate();
    }

    fn relate(&mut self) {
        let izwi = Kind::Izwi.name();
        let key = |row: &Row| (row.model.clone(), row.threads, row.workload.clone());
        let times = |row: &Row| (row.median_s, median(&row.cpu_seconds));
        let ours: BTreeMap<_, _> =
            self.rows.iter().filter(|row| row.runner == izwi).map(|row| (key(row), times(row))).collect();
        for row in &mut self.rows {
            let (wall, cpu) = times(row);
            let ours = ours.get(&key(row));
            row.times_izwi = ours.map(|ours| wall / ours.0);
            row.cpu_times_izwi = ours.filter(|ours| ours.1 > 0.0 && cpu > 0.0).map(|ours| cpu / ours.1);
        }
    }

    /// RTF of each workload, with how many times izwi's time, and its processor time, in brackets.
    pub(crate) fn table(&self) -> String {
        let mut workloads: Vec<&str> = Vec::new();
        let mut lines: Vec<(&str, usize, &str)> = Vec::new();
        for row in &self.rows {
            if !workloads.contains(&row.workload.as_str()) {
                workloads.push(&row.workload);
            }
            let line = (row.model.as_str(), row.threads, row.runner.as_str());
            if !lines.contains(&line) {
                lines.push(line);
            }
        }
        let mut text = format!("| model | threads | runner | {} | WER |\n", workloads.join(" | "));
        // Writing to a String cannot fail.
        let _ = writeln!(text, "|---|---|---|{}---|", "---|".repeat(workloads.len()));
        for (model, threads, runner) in lines {
            let _ = write!(text, "| {model} | {threads} | {runner} |");
            let of_line = |row: &&Row| row.model == model && row.threads == threads && row.runner == runner;
            for workload in &workloads {
                let row = self.rows.iter().filter(of_line).find(|row| row.workload == *workload);
                let cell = row.map_or_else(
                    || "–".to_owned(),
                    |row| match row.times_izwi {
                        Some(times) => {
                            let cpu = row
                                .cpu_times_izwi
                                .map_or_else(String::new, |cpu| format!(", cpu × {cpu:.2}"));
                            format!("{:.3} (× {times:.2}{cpu})", row.rtf)
                        }
                        None => format!("{:.3}", row.rtf),
                    },
                );
                let _ = write!(text, " {cell} |");
            }
            let wer = self.rows.iter().filter(of_line).find_map(|row| row.wer);
            let _ = writeln!(text, " {} |", wer.map_or_else(|| "–".to_owned(), |wer| format!("{wer:.3}")));
        }
        text
    }

    /// Writes the baseline file and the table in the benches' README.
    pub(crate) fn write(&self, rounds: usize, table: &str) -> Result<()> {
        let commit = report::commit();
        let json = serde_json::json!({
            "commit": commit,
            "machine": Machine::this(),
            "note": "release build; one process for each runner and thread count, one of them computing at a time, \
                     rounds interleaved; seconds from samples in memory to text",
            "rounds": rounds,
            "results": self.rows,
        });
        let benches = clips::root().join("benches");
        let text = serde_json::to_string_pretty(&json)? + "\n";
        std::fs::write(benches.join("baselines/asr.json"), text).context("cannot write the baseline")?;
        let readme = benches.join("README.md");
        let page = std::fs::read_to_string(&readme).context("cannot read the README")?;
        let (before, rest) = page.split_once(BEGIN).context("the README has no place for the table")?;
        let (_, after) = rest.split_once(END).context("the place for the table in the README has no end")?;
        let page =
            format!("{before}{BEGIN}\nCommit {commit}, median of {rounds} rounds:\n\n{table}\n{END}{after}");
        std::fs::write(&readme, page).context("cannot write the README")
    }
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => 0.0,
        count if count % 2 == 0 => (sorted[middle - 1] + sorted[middle]) / 2.0,
        _ => sorted[middle],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_lie_in_the_middle() {
        assert_eq!(median(&[]), 0.0);
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 3.0, 2.0]), 2.5);
    }
}
