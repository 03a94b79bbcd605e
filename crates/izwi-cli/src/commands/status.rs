//! `izwi status`: the state of the running server.

use std::time::Duration;

use anyhow::Result;

use crate::failure::Failure;
use crate::output;
use crate::running_server::{Health, Report, RunningServer};
use crate::settings::Resolved;

/// Show the state of the running server
///
/// Asks the server on the configured host and port: its version, memory, requests and models. The exit code is 0 if it
/// serves or still loads its models, and 1 if none answers, a default model failed, or it is shutting down.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Print as JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args, resolved: &Resolved) -> Result<()> {
    let server = RunningServer::at(&resolved.settings.server)?;
    let report = server.report();
    if args.json {
        output::print_json(&json(&server.url, report.as_ref()))?;
    } else if let Ok(report) = &report {
        output::print(&page(&server.url, report))?;
    }
    match report {
        Ok(report) if matches!(report.health.status.as_str(), "ok" | "loading") => Ok(()),
        Err(error) if !args.json => Err(error),
        Ok(_) | Err(_) => Err(Failure::Reported.into()),
    }
}

fn json(url: &str, report: Result<&Report, &anyhow::Error>) -> serde_json::Value {
    match report {
        Ok(report) => serde_json::json!({
            "answers": true,
            "url": url,
            "memory_bytes": report.memory_bytes,
            "requests_total": report.requests_total.unwrap_or(0),
            "health": report.health_json,
        }),
        Err(error) => serde_json::json!({ "answers": false, "url": url, "reason": format!("{error:#}") }),
    }
}

fn page(url: &str, report: &Report) -> String {
    let Health { status, reason, version, uptime_s, requests_open, sessions_open, models } = &report.health;
    let status = match reason {
        Some(reason) => format!("{status}: {reason}"),
        None => status.clone(),
    };
    let memory = report.memory_bytes.map_or_else(|| "unknown".to_owned(), output::format_bytes);
    let requests = report.requests_total.unwrap_or(0);
    let mut rows = vec![
        ["server", &format!("{url}, izwi {version}")].map(printable),
        ["status", &status].map(printable),
        ["uptime", &humantime::format_duration(Duration::from_secs(*uptime_s)).to_string()].map(printable),
        ["memory", &memory].map(printable),
        ["requests", &format!("{requests} served, {requests_open} open; {sessions_open} sessions open")]
            .map(printable),
    ];
    rows.extend(models.iter().map(|(name, model)| {
        let mut facts = vec![model.state.clone()];
        // For these states the reason repeats the state.
        let is_plain = matches!(model.state.as_str(), "unloaded" | "unloading" | "loading");
        facts.extend(model.reason.clone().filter(|_| !is_plain));
        facts.extend(model.device.clone());
        facts.extend(model.memory_bytes.map(output::format_bytes));
        let busy = (model.running.unwrap_or(0), model.pending.unwrap_or(0));
        facts.extend((busy != (0, 0)).then(|| format!("{} running, {} waiting", busy.0, busy.1)));
        ["model", &format!("{name}: {}", facts.join(", "))].map(printable)
    }));
    output::format_columns(&rows)
}

/// On one line: another program may answer.
fn printable(text: &str) -> String {
    text.replace(char::is_control, " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        let health_json = serde_json::json!({
            "status": "degraded", "reason": "bad\u{1b}[2J", "version": "1", "uptime_s": 3_661, "requests_open": 2,
            "sessions_open": 0, "models": {
                "lark": { "state": "ready", "device": "cpu", "memory_bytes": 7, "running": 1, "pending": 3 },
                "wren": { "state": "unloaded", "reason": "not used" },
            },
        });
        let health = serde_json::from_value(health_json.clone()).unwrap();
        Report { health, health_json, memory_bytes: Some(5_000), requests_total: None }
    }

    #[test]
    fn the_page_has_a_line_for_each_fact() {
        let page = page("http://h:1", &report());
        assert_eq!(
            page,
            "server    http://h:1, izwi 1\nstatus    degraded: bad [2J\nuptime    1h 1m 1s\nmemory    5.0 kB\n\
             requests  0 served, 2 open; 0 sessions open\nmodel     lark: ready, cpu, 7 B, 1 running, 3 waiting\n\
             model     wren: unloaded\n"
        );
    }

    #[test]
    fn the_json_says_whether_a_server_answers() {
        let shown = json("u", Ok(&report()));
        assert_eq!((&shown["answers"], &shown["health"]["status"]), (&true.into(), &"degraded".into()));
        let shown = json("u", Err(&anyhow::anyhow!("refused").context("no server")));
        assert_eq!(shown["reason"], "no server: refused");
    }
}
