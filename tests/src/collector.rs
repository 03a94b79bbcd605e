//! A collector of OpenTelemetry traces: OTLP over HTTP, on loopback.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result};
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value;
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

/// A running collector. It keeps every span.
#[derive(Debug)]
pub struct TraceCollector {
    /// Its address.
    pub address: SocketAddr,
    spans: Arc<Mutex<Vec<Span>>>,
}

impl TraceCollector {
    /// Starts it.
    pub async fn start() -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let spans = Arc::<Mutex<Vec<Span>>>::default();
        let kept = Arc::clone(&spans);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let kept = Arc::clone(&kept);
                // A broken connection shows in the spans that are missing.
                tokio::spawn(async move { receive(stream, &kept).await.ok() });
            }
        });
        Ok(Self { address, spans })
    }

    /// The spans so far.
    pub fn spans(&self) -> Vec<Span> {
        self.spans.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The text of an attribute of a span; empty without it.
    pub fn attribute(span: &Span, name: &str) -> String {
        let found = span.attributes.iter().find(|attribute| attribute.key == name);
        let value = found.and_then(|attribute| attribute.value.as_ref()?.value.as_ref());
        match value {
            Some(any_value::Value::StringValue(text)) => text.clone(),
            Some(any_value::Value::IntValue(number)) => number.to_string(),
            Some(any_value::Value::DoubleValue(number)) => number.to_string(),
            _ => String::new(),
        }
    }
}

/// Reads the requests of one connection.
async fn receive(stream: TcpStream, spans: &Mutex<Vec<Span>>) -> Result<()> {
    let mut stream = BufReader::new(stream);
    loop {
        let mut length = None;
        let mut first = String::new();
        loop {
            let mut line = String::new();
            if stream.read_line(&mut line).await? == 0 {
                return Ok(());
            }
            if first.is_empty() {
                first.clone_from(&line);
            }
            let line = line.trim().to_ascii_lowercase();
            if let Some(value) = line.strip_prefix("content-length:") {
                length = Some(value.trim().parse::<usize>()?);
            }
            if line.is_empty() {
                break;
            }
        }
        let mut body = vec![0; length.context("a body without its length")?];
        stream.read_exact(&mut body).await?;
        anyhow::ensure!(first.starts_with("POST /v1/traces "), "{first}");
        let request = ExportTraceServiceRequest::decode(body.as_slice())?;
        let scopes = request.resource_spans.into_iter().flat_map(|resource| resource.scope_spans);
        spans.lock().unwrap_or_else(PoisonError::into_inner).extend(scopes.flat_map(|scope| scope.spans));
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await?;
        stream.flush().await?;
    }
}
