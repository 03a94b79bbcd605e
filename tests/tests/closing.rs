//! The closing handshake of every WebSocket (RFC 6455, 5.5.1), byte by byte.

use anyhow::{Context, Result, bail, ensure};
use izwi_tests::{Setup, TestServer, guarded};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const ROUTES: [&str; 8] = [
    "/v1/audio/speech/stream",
    "/v1/audio/chat/stream",
    "/v1/audio/transcriptions/stream",
    "/v1/text-to-speech/one/stream-input?output_format=pcm_24000",
    "/v1/text-to-speech/one/multi-stream-input?output_format=pcm_24000",
    "/v1/speak?encoding=linear16",
    "/v1/listen?encoding=linear16&sample_rate=16000",
    "/v1/realtime",
];

const TEXT: u8 = 1;
const CLOSE: u8 = 8;

/// A WebSocket whose frames are read and written as bytes.
struct RawSocket(TcpStream);

impl RawSocket {
    async fn open(server: &TestServer, path: &str) -> Result<Self> {
        let mut stream = guarded(TcpStream::connect(server.address)).await??;
        let request = format!(
            "GET {path} HTTP/1.1\r\nHost: {}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
             Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
            server.address
        );
        guarded(stream.write_all(request.as_bytes())).await??;
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(guarded(stream.read_u8()).await??);
        }
        let head = String::from_utf8(head)?;
        ensure!(head.starts_with("HTTP/1.1 101"), "{path}: {head}");
        Ok(Self(stream))
    }

    async fn send(&mut self, opcode: u8, payload: &[u8]) -> Result<()> {
        Ok(guarded(self.0.write_all(&masked(opcode, payload)?)).await??)
    }

    /// The next frame: its opcode and its payload.
    async fn frame(&mut self) -> Result<(u8, Vec<u8>)> {
        let opcode = guarded(self.0.read_u8()).await?.context("the end, without a close frame")? & 0x0f;
        let length = match guarded(self.0.read_u8()).await?? {
            126 => usize::from(guarded(self.0.read_u16()).await??),
            127 => bail!("a frame of more than 65535 bytes"),
            length => usize::from(length),
        };
        let mut payload = vec![0; length];
        guarded(self.0.read_exact(&mut payload)).await??;
        Ok((opcode, payload))
    }

    /// The code and the reason of the close frame after other frames.
    async fn close(&mut self) -> Result<(u16, String)> {
        loop {
            let (opcode, payload) = self.frame().await?;
            if opcode == CLOSE {
                let (code, reason) = payload.split_first_chunk().context("a close frame has a code")?;
                return Ok((u16::from_be_bytes(*code), String::from_utf8(reason.to_vec())?));
            }
        }
    }

    async fn close_code(&mut self) -> Result<u16> {
        Ok(self.close().await?.0)
    }

    /// Checks that the server ends the connection with nothing more.
    async fn ended(mut self) -> Result<()> {
        let mut rest = Vec::new();
        guarded(self.0.read_to_end(&mut rest)).await?.context("the connection is reset")?;
        ensure!(rest.is_empty(), "{} bytes after the close frame", rest.len());
        Ok(())
    }
}

/// A short frame, masked as clients must.
fn masked(opcode: u8, payload: &[u8]) -> Result<Vec<u8>> {
    let mask = [1, 2, 3, 4];
    let masked = payload.iter().zip(mask.iter().cycle()).map(|(byte, mask)| byte ^ mask);
    let head = [0x80 | opcode, 0x80 | u8::try_from(payload.len())?];
    Ok(head.into_iter().chain(mask).chain(masked).collect())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_close_frame_is_answered_on_every_route() -> Result<()> {
    let speaker = Setup::units("closing-units").start().await?;
    let listener = Setup::listener("closing-listener").start().await?;
    let converser = Setup::converser("closing-converser").start().await?;
    for route in ROUTES {
        let server = match route {
            _ if route.contains("listen") => &listener,
            _ if route.contains("realtime") || route.contains("chat") => &converser,
            _ => &speaker,
        };
        for code in [1000, 1001, 4321] {
            let context = || format!("{route}, {code}");
            let mut socket = RawSocket::open(server, route).await?;
            socket.send(CLOSE, &[&u16::to_be_bytes(code)[..], b"bye"].concat()).await?;
            ensure!(socket.close_code().await.with_context(context)? == code, "{route}: another code");
            socket.ended().await.with_context(context)?;
        }
    }
    for server in [speaker, listener, converser] {
        server.assert_no_sessions().await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_close_frame_behind_messages_whose_answers_wait_is_answered() -> Result<()> {
    let server = Setup::units("closing-answers").start().await?;
    for _ in 0..20 {
        let mut socket = RawSocket::open(&server, ROUTES[0]).await?;
        let ping = masked(TEXT, br#"{"type":"ping"}"#)?;
        let close = masked(CLOSE, &1000u16.to_be_bytes())?;
        let burst = [ping.repeat(4), close].concat();
        guarded(socket.0.write_all(&burst)).await??;
        ensure!(socket.close_code().await? == 1000);
        socket.ended().await?;
    }
    server.assert_no_sessions().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_is_closed_while_it_speaks_answers_too() -> Result<()> {
    let mut setup = Setup::units("closing-speaks");
    setup.model.samples_per_token = 2_400;
    let server = setup.start().await?;
    let speak = r#"{"type":"speak","text":"One. Two. Three. Four. Five. Six."}"#;
    let mut socket = RawSocket::open(&server, ROUTES[0]).await?;
    socket.send(TEXT, speak.as_bytes()).await?;
    socket.frame().await?;
    socket.send(CLOSE, &1000u16.to_be_bytes()).await?;
    ensure!(socket.close_code().await? == 1000);
    socket.ended().await?;
    server.assert_no_sessions().await?;
    server.assert_balanced().await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_server_closes_with_a_code_and_waits_for_the_answer() -> Result<()> {
    let server = Setup::units("closing-server").start().await?;
    for (route, message, code) in [
        (ROUTES[0], r#"{"type":"speak","text":"Hi."}"#, 1000),
        (ROUTES[3], r#"{"text":""}"#, 1000),
        (ROUTES[3], r#"{"text":7}"#, 1008),
        (ROUTES[5], r#"{"type":"Close"}"#, 1000),
    ] {
        let mut socket = RawSocket::open(&server, route).await?;
        socket.send(TEXT, message.as_bytes()).await?;
        let closed = socket.close_code().await.with_context(|| route.to_owned())?;
        ensure!(closed == code, "{route} closes with {closed}");
        socket.send(CLOSE, &closed.to_be_bytes()).await?;
        socket.ended().await.with_context(|| route.to_owned())?;
    }
    // What breaks the protocol is answered with the code for it.
    for (opcode, payload, code) in [(3, &b"?"[..], 1002), (TEXT, &[0xff, 0xfe][..], 1007)] {
        let mut socket = RawSocket::open(&server, ROUTES[0]).await?;
        socket.send(opcode, payload).await?;
        let closed = socket.close_code().await?;
        ensure!(closed == code, "a frame of opcode {opcode} closes with {closed}");
    }
    server.assert_no_sessions().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_session_closes_with_the_message_as_the_reason() -> Result<()> {
    let server = Setup::units("closing-refused").start().await?;
    let long = "x".repeat(60);
    for (route, message, part) in [
        ("/v1/realtime?model=nobody", None, "'nobody'"),
        (&format!("/v1/realtime?model={long}"), None, "xxxx"),
        ("/v1/realtime?intent=nobody", None, "'nobody'"),
        (ROUTES[4], Some(r#"{"text":7}"#), "text"),
    ] {
        let mut socket = RawSocket::open(&server, route).await?;
        if let Some(message) = message {
            socket.send(TEXT, message.as_bytes()).await?;
        }
        let (code, reason) = socket.close().await.with_context(|| route.to_owned())?;
        ensure!(code == 1008 && reason.contains(part) && reason.len() <= 123, "{route}: {code} {reason}");
    }
    server.assert_no_sessions().await
}
