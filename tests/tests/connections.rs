//! Limits of connections: idle ones keep nobody out, probes are always answered, and nobody stays for ever.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use izwi_tests::{Setup, TestServer, eventually, exchange, guarded};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinHandle;

const SENTENCE: &str = "This sentence has just enough words to fill more than a chunk.";
const PROBES: [&str; 3] = ["/livez", "/readyz", "/metrics"];

async fn idle(address: SocketAddr, count: usize) -> Result<Vec<TcpStream>> {
    let mut streams = Vec::with_capacity(count);
    for _ in 0..count {
        streams.push(guarded(TcpStream::connect(address)).await??);
    }
    Ok(streams)
}

/// Waits until at most `count` connections are open, the one that asks among them.
async fn until_open(server: &TestServer, count: f64) -> Result<()> {
    eventually("connections to close", || async {
        Ok(server.metric("izwi_connections", &["place=\"ordinary\""]).await? <= count)
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_connections_keep_nobody_out() -> Result<()> {
    let server = Setup::units("idlers").server(|server| server.max_connections = 8).start().await?;
    let mut idlers = idle(server.address, 100).await?;
    // Half a head is no request.
    for stream in &mut idlers {
        let _ = stream.write_all(b"GET /livez HTTP/1.1\r\nHost: local").await;
    }
    for path in PROBES.into_iter().chain(["/v1/models"]) {
        assert_eq!(server.get(path).await?.status(), 200, "{path}");
    }
    let response = server.speech(&json!({"model": "tts-1", "input": SENTENCE})).await?;
    assert_eq!(response.status(), 200);
    ensure!(response.bytes().await?.len() > 44);
    assert!(server.metric("izwi_connections_closed_total", &["reason=\"displaced\""]).await? >= 92.0);
    drop(idlers);
    Ok(())
}

/// Requests that the paused engine holds.
async fn held(
    server: &TestServer,
    count: usize,
) -> Result<Vec<JoinHandle<reqwest::Result<reqwest::Response>>>> {
    server.engine()?.pause()?;
    let ask = |_| {
        let (url, body) = (server.url("/v1/audio/speech"), json!({"model": "tts-1", "input": SENTENCE}));
        tokio::spawn(async move { reqwest::Client::new().post(url).json(&body).send().await })
    };
    let asked = (0..count).map(ask).collect();
    eventually("the engine to have all", || async { Ok(server.engine()?.status().pending == count) }).await?;
    Ok(asked)
}

/// Lets the held requests go on, and waits for their audio.
async fn released(
    server: &TestServer,
    held: Vec<JoinHandle<reqwest::Result<reqwest::Response>>>,
) -> Result<()> {
    server.engine()?.resume()?;
    for response in held {
        ensure!(guarded(response).await???.bytes().await?.len() > 44);
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn probes_are_answered_while_every_place_serves_a_request() -> Result<()> {
    let server = Setup::units("all-busy").server(|server| server.max_connections = 2).start().await?;
    let open = held(&server, 2).await?;
    let idlers = idle(server.address, 100).await?;
    for path in PROBES {
        assert_eq!(server.get(path).await?.status(), 200, "{path}");
    }
    let refused = server.get("/v1/models").await?;
    assert_eq!(refused.status(), 429);
    assert!(refused.headers().contains_key("retry-after"));
    assert_eq!(refused.json::<Value>().await?["error"]["code"], "overloaded");
    released(&server, open).await?;
    eventually("a place to be free", || async { Ok(server.get("/v1/models").await?.status() == 200) })
        .await?;
    drop(idlers);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_peer_has_a_limit_of_its_own() -> Result<()> {
    // Four of this machine.
    let server = Setup::units("greedy").server(|server| server.max_connections_per_peer = 1).start().await?;
    let open = held(&server, 4).await?;
    assert_eq!(server.speech(&json!({"model": "tts-1", "input": SENTENCE})).await?.status(), 429);
    assert_eq!(server.get("/livez").await?.status(), 200);
    assert_eq!(server.metric("izwi_connections", &["place=\"ordinary\""]).await?, 4.0);
    released(&server, open).await
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_without_a_request_are_closed() -> Result<()> {
    let short = Duration::from_millis(50);
    let server = Setup::units("times-out")
        .server(|server| (server.header_timeout, server.keep_alive_timeout) = (short, short))
        .start()
        .await?;
    let request: &[u8] = b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n";
    for sent in [b"".as_slice(), &request[..10], request, &[request, &request[..10]].concat()] {
        let mut stream = guarded(TcpStream::connect(server.address)).await??;
        guarded(stream.write_all(sent)).await??;
        let mut answer = Vec::new();
        guarded(stream.read_to_end(&mut answer)).await?.ok();
        let answered = String::from_utf8_lossy(&answer).matches("HTTP/1.1 200").count();
        assert_eq!(answered, usize::from(sent.len() >= request.len()));
    }
    until_open(&server, 1.0).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_stops_reading_loses_its_connection() -> Result<()> {
    let server = Setup::units("deaf")
        .server(|server| server.send_timeout = Duration::from_millis(100))
        .start()
        .await?;
    let socket = TcpSocket::new_v4()?;
    socket.set_recv_buffer_size(4_096)?;
    let mut stream = guarded(socket.connect(server.address)).await??;
    // Requests until nothing more fits into any buffer, and no answer is read.
    let pages = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n".repeat(1_000);
    let lost = async { while stream.write_all(&pages).await.is_ok() {} };
    guarded(lost).await.context("the server must stop reading and close")?;
    until_open(&server, 1.0).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_storm_of_resets_leaves_nothing_behind() -> Result<()> {
    let server = Setup::units("storm").start().await?;
    let speech = json!({"model": "tts-1", "input": SENTENCE}).to_string();
    let speech = format!(
        "POST /v1/audio/speech HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{speech}",
        speech.len()
    );
    let openings = [String::new(), speech[..40].to_owned(), speech[..speech.len() - 9].to_owned(), speech];
    for round in 0..20 {
        let mut streams = idle(server.address, 50).await?;
        for (index, stream) in streams.iter_mut().enumerate() {
            guarded(stream.write_all(openings[(round + index) % openings.len()].as_bytes())).await??;
            stream.set_zero_linger()?;
        }
        // Each is reset.
        drop(streams);
    }
    until_open(&server, 1.0).await?;
    server.assert_balanced().await?;
    let health: Value = server.get("/health").await?.json().await?;
    assert_eq!(health["requests_open"], 0);
    let response =
        exchange(server.address, b"GET /livez HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    response.await?.head.starts_with("http/1.1 200").then_some(()).context("an answer")
}
