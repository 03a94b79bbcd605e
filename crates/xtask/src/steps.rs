//! Steps: the child commands of a chore, each with a name and the seconds it took.
//!
//! The seconds of a complete run go to `target/xtask-times.json`; [`record`] makes the committed baseline of them.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::process;
use crate::workspace::{read, write};

/// The committed durations, from which the table in `docs/development.md` is made.
const BASELINE: &str = "benches/baselines/ci.json";

/// The steps that ran, in order.
#[derive(Debug, Default)]
pub(crate) struct Steps {
    taken: Vec<(String, Duration)>,
}

impl Steps {
    /// Runs a child command to its end and prints how long it took.
    pub(crate) fn run(&mut self, name: &str, command: &mut Command) -> Result<()> {
        self.time(name, || process::run(command))
    }

    /// Runs `work` and prints how long it took. A failed step is not recorded.
    pub(crate) fn time<T>(&mut self, name: &str, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let done = self.measure(name, work)?;
        if let Some((_, took)) = self.taken.last() {
            eprintln!("<== {name}: {:.1} s", took.as_secs_f64());
        }
        Ok(done)
    }

    /// Runs the last command of a chore. Prints the table of the steps before it first, so that the summary of the command
    /// stays the end of the log.
    pub(crate) fn run_last(&mut self, name: &str, command: &mut Command) -> Result<()> {
        eprint!("\n{}", self.table());
        self.measure(name, || process::run(command))
    }

    fn measure<T>(&mut self, name: &str, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let start = Instant::now();
        let done = work()?;
        self.taken.push((name.to_owned(), start.elapsed()));
        Ok(done)
    }

    /// One line for each step, and their total.
    fn table(&self) -> String {
        let total: Duration = self.taken.iter().map(|(_, took)| *took).sum();
        let rows = self.taken.iter().map(|(name, took)| (name.as_str(), *took)).chain([("total", total)]);
        let mut table = String::from("seconds  step\n");
        for (name, took) in rows {
            // Writing into a String cannot fail.
            let _ = writeln!(table, "{:>7.1}  {name}", took.as_secs_f64());
        }
        table
    }

    /// Keeps the durations of a complete run of `chore` for [`record`].
    pub(crate) fn save(&self, root: &Path, chore: &str) -> Result<()> {
        let results: Vec<Value> = self.taken.iter().map(|(name, took)| row(name, *took)).collect();
        let times = json!({"chore": chore, "results": results});
        write(&times_file(root), &format!("{times:#}\n"))
    }
}

/// A row of the baseline, in whole seconds.
fn row(name: &str, took: Duration) -> Value {
    json!({"step": name, "seconds": took.as_secs_f64().round() as u64})
}

fn times_file(root: &Path) -> PathBuf {
    root.join("target/xtask-times.json")
}

/// Writes the durations of the last complete `cargo xtask ci` to the baseline, with the machine and `note`.
pub(crate) fn record(root: &Path, note: &str) -> Result<()> {
    let file = times_file(root);
    let text = read(&file).context("no complete run of `cargo xtask ci` is recorded here")?;
    let times: Value =
        serde_json::from_str(&text).with_context(|| format!("{} is not JSON", file.display()))?;
    ensure!(times["chore"] == "ci", "the last run was `{}`: run `cargo xtask ci` first", times["chore"]);
    let mut git = Command::new("git");
    let commit = process::output(git.current_dir(root).args(["rev-parse", "--short", "HEAD"]))?;
    let rustc = process::output(Command::new("rustc").arg("--version").current_dir(root))?;
    let baseline = json!({
        "commit": String::from_utf8_lossy(&commit).trim(),
        "machine": {"cpu": machine(), "rustc": String::from_utf8_lossy(&rustc).trim()},
        "note": note,
        "results": with_total(&times["results"]),
    });
    write(&root.join(BASELINE), &format!("{baseline:#}\n"))
}

/// The rows, and one that adds them up.
fn with_total(results: &Value) -> Value {
    let mut rows = results.as_array().cloned().unwrap_or_default();
    let total: u64 = rows.iter().filter_map(|row| row["seconds"].as_u64()).sum();
    rows.push(json!({"step": "total", "seconds": total}));
    Value::Array(rows)
}

/// The processor and the number of cores.
fn machine() -> String {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let listed = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = listed.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    format!("{}, {cores} cores", model.map_or(std::env::consts::ARCH, |(_, model)| model.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_listed_with_their_total_and_failures_are_not() {
        let mut steps = Steps::default();
        steps.run("first", &mut Command::new("true")).unwrap();
        steps.time("second", || Ok(())).unwrap();
        steps.run("third", &mut Command::new("false")).unwrap_err();
        let names: Vec<String> =
            steps.table().lines().map(|line| line.split_whitespace().last().unwrap().to_owned()).collect();
        assert_eq!(names, ["step", "first", "second", "total"]);
    }

    #[test]
    fn a_baseline_has_whole_seconds_and_their_sum() {
        let rows = json!([row("a", Duration::from_millis(1_600)), row("b", Duration::from_secs(60))]);
        let expected = json!([
            {"step": "a", "seconds": 2}, {"step": "b", "seconds": 60}, {"step": "total", "seconds": 62}
        ]);
        assert_eq!(with_total(&rows), expected);
    }
}
