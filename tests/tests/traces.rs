//! Traces of the real server over simulated models, received by a collector of OTLP over HTTP.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use izwi_server::Traces;
use izwi_tests::{Form, Session, Setup, TraceCollector, eventually, guarded, recording};
use opentelemetry_proto::tonic::trace::v1::Span;
use serde_json::json;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const PARENT: &str = "00f067aa0ba902b7";
const TEXT: &str = "Rhubarb custard tastes of secrets.";

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn traceparent() -> String {
    format!("00-{TRACE}-{PARENT}-01")
}

/// The spans of one trace, or of all others, once the root with this name is there.
async fn spans(
    traces: &Traces,
    collector: &TraceCollector,
    of_client: bool,
    root: &str,
) -> Result<Vec<Span>> {
    let found = || -> Vec<Span> {
        collector.spans().into_iter().filter(|span| (hex(&span.trace_id) == TRACE) == of_client).collect()
    };
    eventually("the spans", || async {
        let traces = traces.clone();
        tokio::task::spawn_blocking(move || traces.flush()).await?;
        Ok(found().iter().any(|span| span.name == root))
    })
    .await?;
    Ok(found())
}

/// The spans of the traces below this parent: the root, its only generation, and the phases of that in order.
fn tree(spans: &[Span], parent: &str) -> Result<(Span, Span, Vec<Span>)> {
    let below = |id: &str| -> Vec<Span> {
        let mut found: Vec<Span> =
            spans.iter().filter(|span| hex(&span.parent_span_id) == id).cloned().collect();
        found.sort_by_key(|span| (span.start_time_unix_nano, span.end_time_unix_nano));
        found
    };
    let [root] = below(parent).try_into().map_err(|found| anyhow::anyhow!("{found:?}"))?;
    let [generate] = below(&hex(&root.span_id)).try_into().map_err(|found| anyhow::anyhow!("{found:?}"))?;
    let phases = below(&hex(&generate.span_id));
    Ok((root, generate, phases))
}

/// Checks that the phases follow each other and fill their generation, within the request.
fn check_times(root: &Span, generate: &Span, phases: &[Span]) -> Result<()> {
    let (first, last) = (phases.first().context("phases")?, phases.last().context("phases")?);
    assert!(root.start_time_unix_nano <= generate.start_time_unix_nano);
    assert!(generate.end_time_unix_nano <= root.end_time_unix_nano);
    assert_eq!(first.start_time_unix_nano, generate.start_time_unix_nano);
    assert_eq!(last.end_time_unix_nano, generate.end_time_unix_nano);
    for pair in phases.windows(2) {
        assert_eq!(pair[0].end_time_unix_nano, pair[1].start_time_unix_nano, "{pair:?}");
    }
    Ok(())
}

fn names(spans: &[Span]) -> Vec<&str> {
    spans.iter().map(|span| span.name.as_str()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_have_a_span_tree_that_continues_the_trace_of_their_client() -> Result<()> {
    let collector = TraceCollector::start().await?;
    let traces = Traces::to(&format!("http://{}", collector.address))?;
    izwi_tests::provide_tls();
    let client = reqwest::Client::new();

    let exporter = traces.clone();
    let speaker =
        Setup::tokens("traced-speaker").server(|server| server.traces = Some(exporter)).start().await?;
    let request = client.post(speaker.url("/v1/audio/speech")).header("traceparent", traceparent());
    let body = json!({"model": "tts-1", "input": TEXT});
    let response = guarded(request.json(&body).send()).await??;
    let id = response.headers()["x-request-id"].to_str()?.to_owned();
    drop(response.bytes().await?);
    // Probes have no spans.
    drop(speaker.page("/livez").await?);
    speaker.ended().await?;
    let own = spans(&traces, &collector, true, "POST /v1/audio/speech").await?;
    assert_eq!(own.len(), collector.spans().len(), "{:?}", collector.spans());
    let (root, generate, phases) = tree(&own, PARENT)?;
    assert_eq!((root.name.as_str(), generate.name.as_str()), ("POST /v1/audio/speech", "generate"));
    assert_eq!(names(&phases), ["prepare", "queue", "prefill", "first_chunk", "rest"]);
    check_times(&root, &generate, &phases)?;
    let attribute = TraceCollector::attribute;
    assert_eq!(attribute(&root, "izwi.request_id"), id);
    assert_eq!(attribute(&root, "http.response.status_code"), "200");
    assert_eq!(attribute(&generate, "izwi.model"), "traced-speaker");
    assert_eq!(attribute(&generate, "izwi.finish_reason"), "stop");
    assert!(!format!("{own:?}").contains("Rhubarb"), "{own:?}");

    let exporter = traces.clone();
    let listener =
        Setup::listener("traced-listener").server(|server| server.traces = Some(exporter)).start().await?;
    let form = Form::new().file("file", &recording(2.5)).text("model", "whisper-1");
    drop(listener.post_form("/v1/audio/transcriptions", form).await?.bytes().await?);
    listener.ended().await?;
    let own = spans(&traces, &collector, false, "POST /v1/audio/transcriptions").await?;
    // Without a header the request is the root of a trace of its own.
    let (root, generate, phases) = tree(&own, "")?;
    assert_eq!(root.name, "POST /v1/audio/transcriptions");
    assert_eq!(names(&phases), ["prepare", "queue", "prefill", "rest"]);
    check_times(&root, &generate, &phases)?;
    assert_eq!(attribute(&generate, "izwi.audio_seconds"), "2.5");
    assert!(!format!("{own:?}").contains("word0"), "{own:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_continue_the_trace_of_their_upgrade() -> Result<()> {
    let collector = TraceCollector::start().await?;
    let traces = Traces::to(&format!("http://{}/", collector.address))?;
    let exporter = traces.clone();
    let setup = Setup::tokens("traced-session").server(|server| {
        server.traces = Some(exporter);
        // The client leaves without answering the close.
        server.resume_window = Duration::ZERO;
    });
    let server = setup.start().await?;
    let mut request = format!("ws://{}/v1/audio/speech/stream", server.address).into_client_request()?;
    request.headers_mut().insert("traceparent", traceparent().parse()?);
    Session::open_with(request).await?.speak(TEXT).await?;
    let own = spans(&traces, &collector, true, "GET /v1/audio/speech/stream").await?;
    let (root, generate, phases) = tree(&own, PARENT)?;
    assert_eq!(TraceCollector::attribute(&root, "izwi.close_code"), "1000");
    check_times(&root, &generate, &phases)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collector_that_does_not_answer_costs_requests_nothing() -> Result<()> {
    // It accepts connections and never answers.
    let deaf = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let traces = Traces::to(&format!("http://{}", deaf.local_addr()?))?;
    let exporter = traces.clone();
    let server =
        Setup::units("traced-nowhere").server(|server| server.traces = Some(exporter)).start().await?;
    // More spans than the queue holds.
    let begun = Instant::now();
    for _ in 0..400 {
        let response = server.speech(&json!({"model": "tts-1", "input": "Hi."})).await?;
        assert_eq!(response.status(), 200);
        drop(response.bytes().await?);
    }
    assert!(begun.elapsed() < izwi_tests::GUARD, "{:?}", begun.elapsed());
    server.ended().await?;
    // What waits is given up.
    let stopping = tokio::task::spawn_blocking(move || traces.shutdown(Duration::from_millis(200)));
    guarded(stopping).await??;
    Ok(())
}
