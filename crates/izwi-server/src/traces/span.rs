//! The spans of one request or session. Those of its generations are made at their end, of what the engine recorded.
//!
//! Attributes are sizes, durations and names; never text.

use std::time::{Duration, Instant, SystemTime};

use axum::http::HeaderMap;
use izwi_core::engine::{FinishReason, RequestId, RequestStats};
use opentelemetry::propagation::{Extractor, TextMapPropagator as _};
use opentelemetry::trace::{Span as _, SpanKind, Status, TraceContextExt as _, Tracer as _};
use opentelemetry::{Context, KeyValue};
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::SdkTracer;

/// The longest `tracestate` that is passed on (<https://www.w3.org/TR/trace-context/#tracestate-limits>). It is text of
/// the client, and waits in the queue with each span.
const MAX_TRACESTATE: usize = 512;

/// The open span of a request or a session.
#[derive(Debug)]
pub(crate) struct RequestSpan {
    tracer: SdkTracer,
    context: Context,
    /// The same moment on both clocks: spans have times of day, and everything is measured on the monotonic clock.
    begun: (Instant, SystemTime),
}

impl RequestSpan {
    pub(super) fn begin(
        tracer: &SdkTracer,
        method: &'static str,
        route: &str,
        headers: &HeaderMap,
        at: Instant,
    ) -> Self {
        let begun = (at, SystemTime::now());
        let parent =
            TraceContextPropagator::new().extract_with_context(&Context::new(), &TraceHeaders(headers));
        let span = tracer
            .span_builder(format!("{method} {route}"))
            .with_kind(SpanKind::Server)
            .with_start_time(begun.1)
            .with_attributes([
                KeyValue::new("http.request.method", method),
                KeyValue::new("http.route", route.to_owned()),
            ])
            .start_with_context(tracer, &parent);
        Self { tracer: tracer.clone(), context: parent.with_span(span), begun }
    }

    /// The id of its trace, in hexadecimal digits.
    pub(crate) fn trace_id(&self) -> String {
        self.context.span().span_context().trace_id().to_string()
    }

    /// Adds the spans of a generation that ends now: `generate`, and below it `prepare`, `queue`, `prefill`, `first_chunk`
    /// and `rest`, as far as it came.
    pub(crate) fn generated(&self, model: &str, stats: &RequestStats, reason: FinishReason) {
        let accepted = stats.accepted_at.into_std();
        let end = Instant::now();
        let attributes = [
            KeyValue::new("izwi.model", model.to_owned()),
            KeyValue::new("izwi.finish_reason", reason.label()),
            KeyValue::new("izwi.audio_seconds", stats.audio_duration.as_secs_f64()),
            KeyValue::new("izwi.prompt_tokens", signed(stats.prompt_tokens)),
            KeyValue::new("izwi.generated_tokens", signed(stats.generated_tokens)),
        ];
        let mut generate = self.span("generate", &self.context, accepted);
        generate.set_attributes(attributes);
        if reason == FinishReason::Error {
            generate.set_status(Status::error("the model failed"));
        }
        let context = self.context.with_span(generate);
        let mut at = accepted;
        for (name, until) in phases(stats) {
            let until = (accepted + until).clamp(at, end.max(at));
            self.span(name, &context, at).end_with_timestamp(self.time(until));
            at = until;
        }
        self.span("rest", &context, at).end_with_timestamp(self.time(end));
        context.span().end_with_timestamp(self.time(end));
    }

    /// Ends it.
    pub(crate) fn end(&self, id: &RequestId, status: Option<u16>, close_code: Option<u16>) {
        let span = self.context.span();
        span.set_attribute(KeyValue::new("izwi.request_id", id.as_str().to_owned()));
        if let Some(status) = status {
            span.set_attribute(KeyValue::new("http.response.status_code", i64::from(status)));
        }
        if let Some(code) = close_code {
            span.set_attribute(KeyValue::new("izwi.close_code", i64::from(code)));
        }
        if status.is_some_and(|status| status >= 500) {
            span.set_status(Status::error("the server failed"));
        }
        span.end_with_timestamp(self.time(Instant::now()));
    }

    fn span(&self, name: &'static str, parent: &Context, from: Instant) -> opentelemetry_sdk::trace::Span {
        let span = self.tracer.span_builder(name).with_start_time(self.time(from));
        span.start_with_context(&self.tracer, parent)
    }

    fn time(&self, at: Instant) -> SystemTime {
        let (instant, time) = self.begun;
        match at.checked_duration_since(instant) {
            Some(later) => time + later,
            None => time.checked_sub(instant - at).unwrap_or(time),
        }
    }
}

/// The phases of a generation before its rest: their names, and when each ended, from its acceptance.
fn phases(stats: &RequestStats) -> impl Iterator<Item = (&'static str, Duration)> {
    let ends = [
        ("prepare", Some(stats.prepare_time)),
        ("queue", Some(stats.queue_time)),
        ("prefill", stats.time_to_first_output),
        ("first_chunk", stats.time_to_first_audio),
    ];
    ends.into_iter().filter_map(|(name, until)| Some((name, until?)))
}

fn signed(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// The headers of W3C Trace Context (<https://www.w3.org/TR/trace-context/>).
struct TraceHeaders<'a>(&'a HeaderMap);

impl Extractor for TraceHeaders<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        let value = self.0.get(key)?.to_str().ok()?;
        (key != "tracestate" || value.len() <= MAX_TRACESTATE).then_some(value)
    }

    fn keys(&self) -> Vec<&str> {
        self.0.keys().map(|name| name.as_str()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_tracestate_is_left_out() {
        let mut headers = HeaderMap::new();
        headers.insert("traceparent", "00-a-b-01".parse().unwrap());
        headers.insert("tracestate", "a=b".parse().unwrap());
        let found = |headers: &HeaderMap| {
            let headers = TraceHeaders(headers);
            (headers.get("traceparent").is_some(), headers.get("tracestate").is_some())
        };
        assert_eq!(found(&headers), (true, true));
        headers.insert("tracestate", format!("a={}", "b".repeat(MAX_TRACESTATE)).parse().unwrap());
        assert_eq!(found(&headers), (true, false));
    }
}
