//! `izwi doctor`: looks at everything that speaking needs and says, for what is missing, what to do.

mod machine;
mod speaking;

use anyhow::Result;
use serde::Serialize;

use crate::failure::Failure;
use crate::settings::Resolved;
use crate::{failure, logging, output};

/// Check this machine, the installation and the settings
///
/// Speaks a sentence with the default model, if it is installed, and measures it. Ends with 1 if something is broken
/// that prevents speaking.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Print as JSON
    #[arg(long)]
    json: bool,
}

/// How bad a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Verdict {
    /// Good.
    Ok,
    /// Speaking works, something else does not or not well.
    Warning,
    /// Prevents speaking.
    Broken,
}

/// What was found about one thing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Finding {
    subject: &'static str,
    verdict: Verdict,
    detail: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    remedy: Option<String>,
}

impl Finding {
    fn ok(subject: &'static str, detail: impl Into<String>) -> Self {
        Self { subject, verdict: Verdict::Ok, detail: detail.into(), remedy: None }
    }

    fn warning(subject: &'static str, detail: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { subject, verdict: Verdict::Warning, detail: detail.into(), remedy: Some(remedy.into()) }
    }

    fn broken(subject: &'static str, detail: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { subject, verdict: Verdict::Broken, detail: detail.into(), remedy: Some(remedy.into()) }
    }
}

/// What `--json` prints.
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
    let mut findings = vec![machine::build()];
    match resolved {
        Err(error) => {
            let text = failure::render(&error);
            let detail =
                text.lines().map(|line| line.trim_start_matches("error: ").trim()).collect::<Vec<_>>();
            findings.push(Finding::broken("settings", detail.join("; "), "correct what is named"));
        }
        Ok(resolved) => {
            logging::begin(&resolved.settings, "error");
            findings.push(Finding::ok("settings", "can be used; see `izwi config show`"));
            findings.extend(machine::findings(&resolved));
            findings.extend(speaking::findings(&resolved));
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
    output::columns(&rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unusable_settings_are_a_finding_and_not_the_end() {
        let findings = findings(Err(failure::with_help("bad key", "fix it")));
        let last = findings.last().unwrap();
        assert_eq!((last.subject, last.verdict), ("settings", Verdict::Broken));
        assert!(last.detail.contains("bad key"), "{last:?}");
    }

    #[test]
    fn the_page_has_a_remedy_under_its_finding() {
        let page = page(&[Finding::ok("a", "fine"), Finding::broken("b", "gone", "fetch it")]);
        assert_eq!(page, "ok      a  fine\nBROKEN  b  gone\n           help: fetch it\n");
    }
}
