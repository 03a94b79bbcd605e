//! Measures with several numbers of compute threads, each in a process of its own: a process has one thread pool.

use std::ffi::{OsStr, OsString};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result};

use super::report::Report;
use crate::output;

/// Arguments that are removed or replaced. All but the last have a value.
const REPLACED: [&str; 5] = ["--thread-counts", "--threads", "--gate", "--gate-ratio", "--json"];

/// Measures with each number of threads, by running this program with otherwise equal arguments.
///
/// # Errors
/// A process cannot be started, or fails and reports why.
pub(super) fn measure(counts: &[usize]) -> Result<Report> {
    let program = std::env::current_exe().context("cannot find this program")?;
    let arguments = kept(std::env::args_os().skip(1));
    let mut whole: Option<Report> = None;
    for count in counts {
        let mut command = Command::new(&program);
        command.args(&arguments).args(["--threads", &count.to_string(), "--json"]).stderr(Stdio::inherit());
        let done = command.output().context("cannot start this program again")?;
        anyhow::ensure!(done.status.success(), "measuring with {count} threads failed");
        let report: Report = serde_json::from_slice(&done.stdout).context("the report is not JSON")?;
        output::status(&format!("{count} threads: done"));
        match &mut whole {
            Some(whole) => whole.results.extend(report.results),
            None => whole = Some(report),
        }
    }
    whole.context("no number of threads is given")
}

/// The arguments without [`REPLACED`].
fn kept(arguments: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut kept = Vec::new();
    let mut skip = false;
    for argument in arguments {
        if std::mem::take(&mut skip) {
            continue;
        }
        let name = argument.to_string_lossy();
        let (name, has_value) = name.split_once('=').map_or((&*name, false), |(name, _)| (name, true));
        if REPLACED.contains(&name) {
            skip = !has_value && OsStr::new(name) != "--json";
            continue;
        }
        kept.push(argument);
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replaced_arguments_are_removed() {
        let line = "bench --threads 2 --model m --thread-counts=1,2 --gate f --json --batch 1 --threads=3 -v";
        let kept = kept(line.split(' ').map(OsString::from));
        assert_eq!(kept, ["bench", "--model", "m", "--batch", "1", "-v"]);
    }
}
