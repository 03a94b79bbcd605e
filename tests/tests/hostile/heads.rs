//! Heads of requests with faults, upgrades that are none, and clients that stall.

use anyhow::{Context as _, Result, ensure};
use futures::{StreamExt as _, TryStreamExt as _};
use izwi_tests::{Dice, Form, RawResponse, exchange};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;

use super::{SPEECH, TRANSCRIPTIONS, Victim, check_refusal};

/// Clients that send a part of their request and nothing more.
const STALLED: usize = 24;
/// Faulty heads at once.
const AT_ONCE: usize = 32;

/// Opens connections that stall: in the head, in the body, in a form, in a chunk, in an upgrade.
pub(super) async fn stall(victim: &Victim) -> Result<Vec<TcpStream>> {
    let mut stalled = Vec::new();
    let form = Form::content_type();
    for index in 0..STALLED {
        let mut client = TcpStream::connect(victim.server.address).await?;
        let begun = match index % 5 {
            0 => format!("POST {SPEECH} HTTP/1.1\r\nHost: localhost\r\nContent-Le"),
            1 => head(SPEECH, "Content-Type: application/json\r\nContent-Length: 999", "{\"model\":"),
            2 => head(
                TRANSCRIPTIONS,
                &format!("Content-Type: {form}\r\nContent-Length: 99999999"),
                "--a-bound",
            ),
            3 => head(
                TRANSCRIPTIONS,
                "Content-Type: application/json\r\nTransfer-Encoding: chunked",
                "ffff\r\n{\"audio\":\"AA",
            ),
            _ => {
                "GET /v1/audio/speech/stream HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n".to_owned()
            }
        };
        client.write_all(begun.as_bytes()).await?;
        stalled.push(client);
    }
    Ok(stalled)
}

fn head(path: &str, fields: &str, body: &str) -> String {
    format!("POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{fields}\r\n\r\n{body}")
}

/// Sends faulty heads. Returns how many were sent.
pub(super) async fn attack(victim: &Victim) -> Result<usize> {
    let mut dice = Dice::new(0x4ead);
    let json = "Content-Type: application/json";
    let mut requests: Vec<Vec<u8>> = [
        head(SPEECH, &format!("{json}\r\nContent-Length: -1"), "{}"),
        head(SPEECH, &format!("{json}\r\nContent-Length: 99999999999999999999999"), "{}"),
        head(SPEECH, &format!("{json}\r\nContent-Length: 2\r\nContent-Length: 3"), "{}"),
        head(SPEECH, &format!("{json}\r\nContent-Length: 2\r\nTransfer-Encoding: chunked"), "0\r\n\r\n"),
        head(SPEECH, &format!("{json}\r\nTransfer-Encoding: gzip"), "{}"),
        head(SPEECH, &format!("{json}\r\nTransfer-Encoding: chunked"), "zz\r\n{}"),
        head(SPEECH, &format!("{json}\r\nTransfer-Encoding: chunked"), "ffffffffffffffff1\r\n{}"),
        head(SPEECH, "Content-Length: 2", "{}"),
        head(SPEECH, "Content-Type: \u{e9}\r\nContent-Length: 2", "{}"),
        head(SPEECH, &format!("Content-Type: {}\r\nContent-Length: 2", "a/b;".repeat(2_000)), "{}"),
        head(&format!("/{}", "a".repeat(20_000)), "Content-Length: 0", ""),
        head("/v1/models/%ff%fe", "Content-Length: 0", ""),
        head("/v1/audio/voices/..%2f..%2fetc", "Content-Length: 0", ""),
        "GET / HTTP/1.1\r\nConnection: close\r\n\r\n".to_owned(),
        "GET /livez HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n".to_owned(),
        "GET /livez HTTP/1.1\r\nHost: a\r\nHost: b\r\nConnection: close\r\n\r\n".to_owned(),
        format!("GET /livez HTTP/1.1\r\nHost: localhost\r\nX: {}\r\n\r\n", "a".repeat(70_000)),
        format!("GET /livez HTTP/1.1\r\nHost: localhost\r\n{}\r\n", "X: a\r\n".repeat(5_000)),
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_owned(),
    ]
    .map(String::into_bytes)
    .into();
    for fields in [
        "Upgrade: websocket\r\nConnection: Upgrade",
        "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 99\r\nSec-WebSocket-Key: AAAA",
        "Upgrade: h2c\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==",
    ] {
        for path in ["/v1/audio/speech/stream", "/v1/audio/chat/stream", "/livez"] {
            let request =
                format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n{fields}\r\nConnection: close\r\n\r\n");
            requests.push(request.into_bytes());
        }
    }
    let whole = head(SPEECH, &format!("{json}\r\nContent-Length: 2"), "{}").into_bytes();
    for _ in 0..80 {
        let mut damaged = whole.clone();
        dice.damage(&mut damaged, 120);
        requests.push(damaged);
    }
    let count = requests.len();
    // Many at once: some wait for the server to give up on the rest of them.
    let answers = futures::stream::iter(requests).map(|request| async move {
        let shown = String::from_utf8_lossy(&request).chars().take(200).collect::<String>();
        let answer = first_answer(victim, &request).await?;
        check(&answer).context(shown)
    });
    answers.buffer_unordered(AT_ONCE).try_collect::<()>().await?;
    Ok(count)
}

/// Sends a request, and after it one that ends the connection. Returns the first answer.
async fn first_answer(victim: &Victim, request: &[u8]) -> Result<RawResponse> {
    const LAST: &[u8] = b"\r\n\r\nGET /livez HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    let mut answer = exchange(victim.server.address, &[request, LAST].concat()).await?;
    let length = answer.head.lines().find_map(|line| line.strip_prefix("content-length: "));
    if let Some(length) = length.and_then(|length| length.trim().parse().ok()) {
        answer.body.truncate(length);
    }
    Ok(answer)
}

/// Checks an answer. Bytes that are not HTTP get the answer of the HTTP library, without a body, or none.
fn check(answer: &RawResponse) -> Result<()> {
    let status = answer.head.split(' ').nth(1).and_then(|status| status.parse::<u16>().ok());
    match status {
        None => ensure!(answer.head.is_empty(), "no HTTP: {}", answer.head),
        Some(400 | 431) if answer.body.is_empty() => {}
        Some(status) if status >= 400 => check_refusal(status, &answer.body)?,
        Some(_) => {}
    }
    Ok(())
}
