//! The server that runs on the configured address, as its own routes describe it.
//!
//! Knows no model store and no terminal.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Result;
use serde::Deserialize;
use ureq::Agent;

use crate::settings::ServerSettings;
use crate::{address, failure};

/// A server that computes answers its probes within a second or two.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
const MAX_BODY_BYTES: u64 = 8 << 20;

/// A server that may run.
#[derive(Debug)]
pub(crate) struct RunningServer {
    /// Its base URL.
    pub(crate) url: String,
    agent: Agent,
}

/// What `/health` answers.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Health {
    pub(crate) status: String,
    pub(crate) reason: Option<String>,
    pub(crate) version: String,
    pub(crate) uptime_s: u64,
    pub(crate) requests_open: u64,
    pub(crate) sessions_open: u64,
    pub(crate) models: BTreeMap<String, Model>,
}

/// A model of `/health`; the figures are absent unless it is loaded.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Model {
    pub(crate) state: String,
    pub(crate) reason: Option<String>,
    pub(crate) device: Option<String>,
    pub(crate) memory_bytes: Option<u64>,
    pub(crate) running: Option<u64>,
    pub(crate) pending: Option<u64>,
}

/// A server that answers.
#[derive(Debug)]
pub(crate) struct Report {
    /// The answer of `/health`.
    pub(crate) health: Health,
    /// The same as it came.
    pub(crate) health_json: serde_json::Value,
    /// Memory of the process in bytes, if the server tells it.
    pub(crate) memory_bytes: Option<u64>,
    /// Requests that have ended since the start, if any has.
    pub(crate) requests_total: Option<u64>,
}

impl RunningServer {
    /// The server on the address of the settings. Sends nothing.
    ///
    /// # Errors
    /// The host does not resolve, or the port is chosen by the system.
    pub(crate) fn at(server: &ServerSettings) -> Result<Self> {
        if server.port == 0 {
            return Err(failure::usage(
                "port: 0 stands for any free port, so no server can be found by it",
                "name the port that `izwi serve` printed, with --port",
            ));
        }
        let addresses = address::resolve(&server.host, server.port)?;
        let Some(first) = addresses.first() else {
            return Err(failure::with_help(
                format!("the host '{}' has no address", server.host),
                "use --host 127.0.0.1 for this machine",
            ));
        };
        let agent = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            // The server is on this machine or in its network.
            .proxy(None)
            .timeout_global(Some(ANSWER_TIMEOUT))
            .build()
            .new_agent();
        Ok(Self { url: address::url(*first), agent })
    }

    /// Asks the server what it does. Blocks.
    ///
    /// # Errors
    /// Nothing answers, or something else does.
    pub(crate) fn report(&self) -> Result<Report> {
        let health_json: serde_json::Value =
            serde_json::from_str(&self.get("/health")?).map_err(|error| self.stranger(&error.to_string()))?;
        let health = Health::deserialize(&health_json).map_err(|error| self.stranger(&error.to_string()))?;
        let metrics = self.get("/metrics").unwrap_or_default();
        let memory_bytes = sum(&metrics, "process_resident_memory_bytes");
        Ok(Report { health, health_json, memory_bytes, requests_total: sum(&metrics, "izwi_requests_total") })
    }

    fn get(&self, path: &str) -> Result<String> {
        let mut response = self.agent.get(format!("{}{path}", self.url)).call().map_err(|error| {
            failure::with_help(
                format!("no server answers on {}: {error}", self.url),
                "start one with `izwi serve` or `izwi service install`; --host and --port name another address",
            )
        })?;
        let status = response.status();
        if !status.is_success() {
            return Err(self.stranger(&format!("{path} answers {status}")));
        }
        let body = response.body_mut().with_config().limit(MAX_BODY_BYTES).read_to_string();
        body.map_err(|error| self.stranger(&error.to_string()))
    }

    fn stranger(&self, reason: &str) -> anyhow::Error {
        failure::with_help(
            format!("{} answers, but not as izwi does: {reason}", self.url),
            "another program may use the port; --port names another",
        )
    }
}

/// The sum of all series of one metric in the text format, rounded; `None` without any.
fn sum(metrics: &str, name: &str) -> Option<u64> {
    let series = metrics.lines().filter_map(|line| {
        let rest = line.strip_prefix(name)?;
        if !rest.starts_with(['{', ' ']) {
            return None;
        }
        rest.rsplit(' ').next()?.parse::<f64>().ok()
    });
    series.reduce(|total, value| total + value).map(|total| total.max(0.0).round() as u64)
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::TcpListener;

    use super::*;

    /// A server that answers everything with `body`.
    fn answering(body: &'static str) -> RunningServer {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let _ = stream.read(&mut [0; 2_048]);
                let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close", body.len());
                let _ = write!(stream, "{head}\r\n\r\n{body}");
            }
        });
        RunningServer::at(&ServerSettings { port, ..ServerSettings::default() }).unwrap()
    }

    #[test]
    fn a_report_has_the_state_of_the_server() {
        let server = answering(
            r#"{"status":"ok","reason":null,"version":"1","uptime_s":61,"requests_open":2,"sessions_open":1,"models":
               {"lark":{"state":"ready","reason":null,"tasks":["tts"],"device":"cpu","memory_bytes":7,"pending":0,"running":1},
                "wren":{"state":"unloaded","reason":"not used","tasks":["asr"]}}}"#,
        );
        let Report { health, health_json, .. } = server.report().unwrap();
        assert_eq!((health.uptime_s, health.requests_open, health.sessions_open), (61, 2, 1));
        assert_eq!(health.models["lark"].memory_bytes, Some(7));
        assert_eq!(health.models["wren"].running, None);
        assert_eq!(health_json["models"]["lark"]["tasks"][0], "tts");
    }

    #[test]
    fn other_programs_and_closed_ports_are_told_apart() {
        for body in ["<html>", "{\"status\":\"ok\"}", "[]"] {
            let error = answering(body).report().unwrap_err();
            assert!(error.to_string().contains("not as izwi does"), "{error}");
        }
        let holder = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = holder.local_addr().unwrap().port();
        drop(holder);
        let closed = RunningServer::at(&ServerSettings { port, ..ServerSettings::default() }).unwrap();
        let error = failure::render(&closed.report().unwrap_err());
        assert!(error.contains("no server answers") && error.contains("help: start one"), "{error}");
        let any = ServerSettings { port: 0, ..ServerSettings::default() };
        assert!(RunningServer::at(&any).unwrap_err().to_string().contains("any free port"));
    }

    #[test]
    fn the_series_of_a_metric_are_added() {
        let text = "# HELP a_total x\na_total{x=\"1 2\"} 3\na_total{x=\"y\"} 4\na_total_more 9\nb 2.6e1\n";
        assert_eq!((sum(text, "a_total"), sum(text, "b"), sum(text, "c")), (Some(7), Some(26), None));
    }
}
