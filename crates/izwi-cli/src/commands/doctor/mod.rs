//! `izwi doctor`: checks everything that synthesis needs and prints remedies for problems.

mod finding;
mod kernels;
mod models;
mod system;

use anyhow::Result;
use serde::Serialize;

use crate::failure::Failure;
use crate::settings::Resolved;
use crate::{failure, logging, output};

use finding::{Finding, Verdict};

/// Check this machine, the installation and the settings
///
/// Measures the CPU kernels against the peak of this processor, and, if the default model is installed, the synthesis of a
/// sentence. The exit code is 1 if a problem prevents synthesis.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Print as JSON
    #[arg(long)]
    json: bool,
}

/// The output of `--json`.
#[derive(Debug, Serialize)]
struct Report {
    ok: bool,
    findings: Vec<Finding>,
}

pub(crate) fn run(args: &Args, resolved: Result<Resolved>) -> Result<()> {
    let findings = findings(resolved);
    let ok = findings.iter().all(|finding| finding.verdict != Verdict::Broken);
    if args.json {
        output::print_json(&Report { ok, findings })?;
    } else {
        output::print(&page(&findings))?;
    }
    if ok { Ok(()) } else { Err(Failure::Reported.into()) }
}

fn findings(resolved: Result<Resolved>) -> Vec<Finding> {
    let mut findings = vec![system::build()];
    match resolved {
        Err(error) => {
            let text = failure::render(&error);
            let detail =
                text.lines().map(|line| line.trim_start_matches("error: ").trim()).collect::<Vec<_>>();
            findings.push(Finding::broken("settings", detail.join("; "), "correct the named settings"));
        }
        Ok(resolved) => {
            logging::begin(&resolved.settings, "error");
            findings.push(Finding::ok("settings", "valid; see `izwi config show`"));
            findings.extend(system::findings(&resolved));
            // Before the models, whose threads would disturb it.
            findings.push(kernels::finding());
            findings.extend(models::findings(&resolved));
        }
    }
    findings
}

fn page(findings: &[Finding]) -> String {
    let mut rows = Vec::new();
    for finding in findings {
        let mark = match finding.verdict {
            Verdict::Ok => "ok",
            Verdict::Warning => "warning",
            Verdict::Broken => "BROKEN",
        };
        rows.push([mark, finding.subject, &finding.detail].map(str::to_owned));
        if let Some(remedy) = &finding.remedy {
            rows.push(["", "", &format!("help: {remedy}")].map(str::to_owned));
        }
    }
    output::format_columns(&rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_settings_are_a_finding() {
        let findings = findings(Err(failure::with_help("bad key", "fix it")));
        let last = findings.last().unwrap();
        assert_eq!((last.subject, last.verdict), ("settings", Verdict::Broken));
        assert!(last.detail.contains("bad key"), "{last:?}");
    }

    #[test]
    fn a_remedy_is_printed_below_its_finding() {
        let page = page(&[Finding::ok("a", "fine"), Finding::broken("b", "gone", "fetch it")]);
        assert_eq!(page, "ok      a  fine\nBROKEN  b  gone\n           help: fetch it\n");
    }
}
