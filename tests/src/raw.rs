//! Raw HTTP, for trailers, malformed requests and connection ends, which ordinary clients hide.

use std::net::SocketAddr;

use anyhow::{Context, Result};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::guarded;

/// A parsed response.
#[derive(Debug, Clone, Default)]
pub struct RawResponse {
    /// Status line and headers, lower case.
    pub head: String,
    /// The body without chunk framing.
    pub body: Vec<u8>,
    /// Trailers, lower case.
    pub trailers: String,
    /// Whether the chunked body has its terminator.
    pub is_complete: bool,
}

/// Sends bytes, reads until the server closes, and parses a chunked response.
pub async fn exchange(address: SocketAddr, request: &[u8]) -> Result<RawResponse> {
    let mut stream = guarded(TcpStream::connect(address)).await??;
    guarded(stream.write_all(request)).await??;
    let mut bytes = Vec::new();
    // A reset connection is a valid result.
    let _ = guarded(stream.read_to_end(&mut bytes)).await?;
    take_apart(&bytes)
}

fn take_apart(bytes: &[u8]) -> Result<RawResponse> {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).to_lowercase();
    let Some(end) = find(bytes, b"\r\n\r\n") else {
        return Ok(RawResponse { head: text(bytes), ..Default::default() });
    };
    let mut response = RawResponse { head: text(&bytes[..end]), ..Default::default() };
    let mut rest = &bytes[end + 4..];
    if !response.head.contains("transfer-encoding: chunked") {
        response.body = rest.to_vec();
        return Ok(response);
    }
    while let Some(line_end) = find(rest, b"\r\n") {
        let size = std::str::from_utf8(&rest[..line_end]).context("a chunk size is text")?;
        let size = usize::from_str_radix(size, 16).context("a chunk size is hexadecimal")?;
        rest = &rest[line_end + 2..];
        if size == 0 {
            response.trailers = text(rest);
            response.is_complete = true;
            break;
        }
        response.body.extend_from_slice(&rest[..size.min(rest.len())]);
        rest = rest.get(size + 2..).unwrap_or_default();
    }
    Ok(response)
}

fn find(bytes: &[u8], needle: &[u8]) -> Option<usize> {
    bytes.windows(needle.len()).position(|window| window == needle)
}
