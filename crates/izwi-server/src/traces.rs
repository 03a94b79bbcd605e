//! OpenTelemetry traces: the exporter that the standard `OTEL_*` variables configure.
//!
//! Spans go through a bounded queue to a thread of their own; where the queue is full they are dropped. A collector that
//! does not answer costs requests nothing. Knows no request, text or audio.

mod collector;
mod span;

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::http::HeaderMap;
use opentelemetry::trace::TracerProvider as _;
use opentelemetry_otlp::{Protocol, SpanExporter, WithExportConfig as _, WithHttpConfig as _};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{SdkTracer, SdkTracerProvider};

use self::collector::Collector;
pub(crate) use self::span::RequestSpan;

/// Name of the service where no variable sets one.
const SERVICE_NAME: &str = "izwi";
/// Path of traces after a base endpoint (<https://opentelemetry.io/docs/specs/otlp/#otlphttp-request>).
const PATH: &str = "/v1/traces";

/// Which exporter is used.
const EXPORTER: &str = "OTEL_TRACES_EXPORTER";
/// Limit of one export where no variable sets one.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Traces cannot be exported as the variables ask.
#[derive(Debug, thiserror::Error)]
pub enum TracesError {
    /// A variable has a value that this program does not support.
    #[error("{variable} is '{value}'; use {remedy}")]
    Unsupported {
        /// Name of the variable.
        variable: &'static str,
        /// Its value.
        value: String,
        /// Values to use instead.
        remedy: &'static str,
    },
    /// The exporter refuses its configuration.
    #[error("traces cannot be exported; check the variables OTEL_EXPORTER_OTLP_*")]
    Exporter(#[from] opentelemetry_otlp::ExporterBuildError),
}

/// Handle to an exporter of traces. Clones export to the same collector.
#[derive(Debug, Clone)]
pub struct Traces {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    provider: SdkTracerProvider,
    tracer: SdkTracer,
}

impl PartialEq for Traces {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }
}

impl Traces {
    /// The exporter that the environment asks for (<https://opentelemetry.io/docs/specs/otel/configuration/sdk-environment-variables/>);
    /// `None` where it asks for none. OTLP over HTTP with protobuf is the only protocol.
    ///
    /// # Errors
    /// A variable has an unsupported or invalid value.
    pub fn from_environment() -> Result<Option<Self>, TracesError> {
        let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.trim().is_empty());
        if !is_wanted(variable)? {
            return Ok(None);
        }
        let has_name = variable("OTEL_SERVICE_NAME").is_some()
            || variable("OTEL_RESOURCE_ATTRIBUTES").is_some_and(|list| list.contains("service.name="));
        let resource = Resource::builder();
        let resource = if has_name { resource } else { resource.with_service_name(SERVICE_NAME) };
        let collector = Collector::new(timeout(variable)?);
        let builder = SpanExporter::builder().with_http().with_http_client(collector);
        Ok(Some(Self::new(builder.build()?, resource.build())))
    }

    /// An exporter to the collector with this base URL, as `OTEL_EXPORTER_OTLP_ENDPOINT` would give it.
    ///
    /// # Errors
    /// The URL is invalid.
    pub fn to(endpoint: &str) -> Result<Self, TracesError> {
        let endpoint = format!("{}{PATH}", endpoint.trim_end_matches('/'));
        let builder = SpanExporter::builder().with_http().with_http_client(Collector::new(TIMEOUT));
        let builder = builder.with_protocol(Protocol::HttpBinary).with_endpoint(endpoint);
        Ok(Self::new(builder.build()?, Resource::builder().with_service_name(SERVICE_NAME).build()))
    }

    fn new(exporter: SpanExporter, resource: Resource) -> Self {
        let provider =
            SdkTracerProvider::builder().with_batch_exporter(exporter).with_resource(resource).build();
        let tracer = provider.tracer(SERVICE_NAME);
        Self { inner: Arc::new(Inner { provider, tracer }) }
    }

    /// Opens the span of a request. It continues the trace of the header `traceparent`.
    pub(crate) fn begin(
        &self,
        method: &'static str,
        route: &str,
        headers: &HeaderMap,
        at: Instant,
    ) -> RequestSpan {
        RequestSpan::begin(&self.inner.tracer, method, route, headers, at)
    }

    /// Sends the spans that wait, and stops. Blocks for at most about `limit`.
    pub fn shutdown(&self, limit: Duration) {
        if let Err(error) = self.inner.provider.shutdown_with_timeout(limit) {
            tracing::warn!(%error, "the last traces were not exported");
        }
    }

    /// Sends the spans that wait. Blocks until the collector has answered.
    pub fn flush(&self) {
        if let Err(error) = self.inner.provider.force_flush() {
            tracing::warn!(%error, "traces were not exported");
        }
    }
}

/// Whether the variables ask for traces.
fn is_wanted(variable: impl Fn(&str) -> Option<String>) -> Result<bool, TracesError> {
    if variable("OTEL_SDK_DISABLED").is_some_and(|value| value.trim().eq_ignore_ascii_case("true")) {
        return Ok(false);
    }
    let has_endpoint = || {
        ["OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"]
            .iter()
            .any(|name| variable(name).is_some())
    };
    let is_wanted = match variable(EXPORTER) {
        None => has_endpoint(),
        Some(exporter) => match exporter.trim() {
            "otlp" => true,
            "none" => false,
            _ => return unsupported(EXPORTER, exporter, "otlp or none"),
        },
    };
    if is_wanted {
        // The variable of the signal goes before the general one.
        for name in ["OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"] {
            match variable(name) {
                Some(protocol) if protocol.trim() == "http/protobuf" => break,
                Some(protocol) => {
                    return unsupported(name, protocol, "http/protobuf (port 4318 of a collector)");
                }
                None => {}
            }
        }
    }
    Ok(is_wanted)
}

/// Limit of one export.
fn timeout(variable: impl Fn(&str) -> Option<String>) -> Result<Duration, TracesError> {
    for name in ["OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "OTEL_EXPORTER_OTLP_TIMEOUT"] {
        if let Some(value) = variable(name) {
            return match value.trim().parse() {
                Ok(ms) if ms > 0 => Ok(Duration::from_millis(ms)),
                _ => unsupported(name, value, "a number of milliseconds from 1"),
            };
        }
    }
    Ok(TIMEOUT)
}

fn unsupported<T>(variable: &'static str, value: String, remedy: &'static str) -> Result<T, TracesError> {
    Err(TracesError::Unsupported { variable, value: izwi_types::excerpt(&value), remedy })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(variables: &[(&str, &str)], expected: Result<bool, &str>) {
        let value = |name: &str| {
            variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
        };
        let wanted = is_wanted(value).map_err(|error| error.to_string());
        match (wanted, expected) {
            (Ok(wanted), Ok(expected)) => assert_eq!(wanted, expected, "{variables:?}"),
            (Err(error), Err(part)) => assert!(error.contains(part), "{error}"),
            other => panic!("{variables:?}: {other:?}"),
        }
    }

    #[test]
    fn only_the_standard_variables_turn_traces_on() {
        check(&[], Ok(false));
        check(&[("OTEL_SERVICE_NAME", "speech")], Ok(false));
        check(&[("OTEL_EXPORTER_OTLP_ENDPOINT", "http://localhost:4318")], Ok(true));
        check(&[("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://localhost:4318/v1/traces")], Ok(true));
        check(&[("OTEL_TRACES_EXPORTER", "otlp")], Ok(true));
        let endpoint = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://localhost:4318");
        check(&[endpoint, ("OTEL_TRACES_EXPORTER", "none")], Ok(false));
        check(&[endpoint, ("OTEL_SDK_DISABLED", "true")], Ok(false));
        check(&[endpoint, ("OTEL_SDK_DISABLED", "false")], Ok(true));
        check(&[endpoint, ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")], Ok(true));
    }

    #[test]
    fn unsupported_values_are_refused_by_name_with_a_remedy() {
        check(
            &[("OTEL_TRACES_EXPORTER", "zipkin")],
            Err("OTEL_TRACES_EXPORTER is 'zipkin'; use otlp or none"),
        );
        let endpoint = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://localhost:4317");
        check(&[endpoint, ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")], Err("use http/protobuf"));
        let general = ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc");
        check(&[endpoint, general, ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/protobuf")], Ok(true));
    }
}
