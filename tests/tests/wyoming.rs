//! The Wyoming port with a simulated model: order, limits, disconnects, slow readers and shutdown. The published package
//! talks to it in `clients/wyoming.rs`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use izwi_audio::decode::{DecodeLimits, decode};
use izwi_core::engine::MemoryBudget;
use izwi_tests::{Gate, Setup, TestServer, eventually, guarded};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpSocket, TcpStream};

/// A received event.
#[derive(Debug, Clone, Default)]
struct Event {
    kind: String,
    data: Value,
    payload: Vec<u8>,
}

/// A client that can also send what is no event.
struct Client(BufReader<TcpStream>);

impl Client {
    async fn connect(server: &TestServer) -> Result<Self> {
        Ok(Self(BufReader::new(guarded(TcpStream::connect(server.wyoming)).await??)))
    }

    async fn send_raw(&mut self, bytes: &[u8]) -> Result<()> {
        Ok(guarded(self.0.get_mut().write_all(bytes)).await??)
    }

    async fn send(&mut self, kind: &str, data: Value, payload: &[u8]) -> Result<()> {
        let data = data.to_string();
        let header = json!({"type": kind, "version": "1.10.2", "data_length": data.len(), "payload_length": payload.len()});
        self.send_raw(&[format!("{header}\n{data}").as_bytes(), payload].concat()).await
    }

    /// The next event; `None` at the end.
    async fn next(&mut self) -> Result<Option<Event>> {
        let mut line = String::new();
        // A reset connection has ended too.
        if guarded(self.0.read_line(&mut line)).await?.unwrap_or(0) == 0 {
            return Ok(None);
        }
        let header: Value = serde_json::from_str(&line)?;
        let length = |name: &str| header[name].as_u64().unwrap_or(0) as usize;
        let (mut data, mut payload) = (vec![0; length("data_length")], vec![0; length("payload_length")]);
        guarded(self.0.read_exact(&mut data)).await??;
        guarded(self.0.read_exact(&mut payload)).await??;
        let kind = header["type"].as_str().context("a type")?.to_owned();
        ensure!(header["version"] == "1.10.2", "{header}");
        Ok(Some(Event { kind, data: serde_json::from_slice(&data)?, payload }))
    }

    async fn expect(&mut self, kind: &str) -> Result<Event> {
        match self.next().await? {
            Some(event) if event.kind == kind => Ok(event),
            other => bail!("expected {kind}, got {other:?}"),
        }
    }

    /// One `audio-start`, its chunks, and `audio-stop`: the audio.
    async fn speech(&mut self) -> Result<Vec<u8>> {
        self.expect("audio-start").await?;
        let mut audio = Vec::new();
        loop {
            let event = self.next().await?.context("the end of the speech")?;
            match event.kind.as_str() {
                "audio-chunk" => audio.extend(event.payload),
                "audio-stop" => return Ok(audio),
                _ => bail!("{event:?} within speech"),
            }
        }
    }

    /// The error that ends the connection.
    async fn refused(mut self, code: &str) -> Result<String> {
        let event = self.expect("error").await?;
        ensure!(event.data["code"] == code, "{event:?}");
        ensure!(self.next().await?.is_none(), "the connection goes on after an error");
        Ok(event.data["text"].as_str().unwrap_or_default().to_owned())
    }
}

fn audio_start() -> Value {
    json!({"rate": 16_000, "width": 2, "channels": 1, "timestamp": null})
}

#[tokio::test]
async fn text_in_pieces_is_spoken_as_it_comes() -> Result<()> {
    for (name, setup) in [
        ("wyoming-units", Setup::units("wyoming-units")),
        ("wyoming-reader", Setup::reader("wyoming-reader")),
    ] {
        let server = setup.start().await?;
        let mut client = Client::connect(&server).await?;
        client.send("synthesize-start", json!({}), &[]).await?;
        client
            .send("synthesize-chunk", json!({"text": "The first sentence has more than forty "}), &[])
            .await?;
        client.send("synthesize-chunk", json!({"text": "characters. The second "}), &[]).await?;
        let start = client.expect("audio-start").await?;
        assert_eq!((&start.data["width"], &start.data["channels"]), (&json!(2), &json!(1)), "{name}");
        // The rest comes only after audio of the beginning.
        let mut bytes = client.expect("audio-chunk").await?.payload.len();
        client.send("synthesize-chunk", json!({"text": "one ends here."}), &[]).await?;
        let whole = "The first sentence has more than forty characters. The second one ends here.";
        client.send("synthesize", json!({"text": whole}), &[]).await?;
        client.send("synthesize-stop", json!({}), &[]).await?;
        loop {
            let event = client.next().await?.context("the end of the speech")?;
            match event.kind.as_str() {
                "audio-chunk" => bytes += event.payload.len(),
                "audio-stop" => break,
                _ => bail!("{name}: {event:?} within speech"),
            }
        }
        client.expect("synthesize-stopped").await?;
        // The same text in one piece is as long: nothing was spoken twice.
        let mut client = Client::connect(&server).await?;
        client.send("synthesize-start", json!({}), &[]).await?;
        client.send("synthesize-chunk", json!({"text": whole}), &[]).await?;
        client.send("synthesize-stop", json!({}), &[]).await?;
        assert_eq!(bytes, client.speech().await?.len(), "{name}");
        server.assert_balanced().await?;
    }
    Ok(())
}

#[tokio::test]
async fn requests_of_one_connection_are_answered_in_order() -> Result<()> {
    let server = Setup::units("wyoming-order").start().await?;
    let mut client = Client::connect(&server).await?;
    let texts = ["One.", "Number two.", "And number three."];
    for text in texts {
        client.send("synthesize", json!({"text": text, "seed": 1}), &[]).await?;
    }
    client.send("ping", json!({"text": "still there"}), &[]).await?;
    let (mut lengths, mut pongs) = (Vec::new(), 0);
    let mut length = 0;
    while lengths.len() < texts.len() {
        let event = client.next().await?.context("an answer")?;
        match event.kind.as_str() {
            "audio-chunk" => length += event.payload.len(),
            "audio-stop" => lengths.push(std::mem::take(&mut length)),
            // A ping is answered at once.
            "pong" if event.data["text"] == "still there" => pongs += 1,
            _ => ensure!(event.kind == "audio-start", "{event:?}"),
        }
    }
    assert_eq!(pongs, 1);
    assert!(lengths[0] < lengths[1] && lengths[1] < lengths[2], "{lengths:?}");
    Ok(())
}

/// A recording of speech, as PCM of a format.
fn speech(rate: usize, width: usize, channels: usize) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../assets/speech/jfk.wav");
    let limits = DecodeLimits { max_bytes: 1 << 20, max_duration: Duration::from_secs(30) };
    let speech = decode(std::fs::read(path).unwrap(), rate as u32, &limits).unwrap();
    let frame = |sample: &f32| {
        let scaled = (f64::from(*sample) * f64::from(i32::MAX)) as i32;
        let bytes = if width == 1 {
            vec![(scaled >> 24) as u8 ^ 0x80]
        } else {
            scaled.to_le_bytes()[4 - width..].to_vec()
        };
        bytes.repeat(channels)
    };
    speech.iter().flat_map(frame).collect()
}

#[tokio::test]
async fn a_recording_of_any_format_is_transcribed() -> Result<()> {
    let server = Setup::listener("wyoming-listener").start().await?;
    for (rate, width, channels) in
        [(16_000, 2, 1), (8_000, 1, 1), (48_000, 3, 2), (44_100, 4, 8), (96_000, 2, 1)]
    {
        let format = json!({"rate": rate, "width": width, "channels": channels});
        let mut client = Client::connect(&server).await?;
        // Chunks alone are a recording as well.
        if width > 1 {
            client.send("transcribe", json!({}), &[]).await?;
            client.send("audio-start", format.clone(), &[]).await?;
        }
        for piece in speech(rate, width, channels).chunks(1_000 * width * channels) {
            client.send("audio-chunk", format.clone(), piece).await?;
        }
        // Text comes while the speaker may go on.
        client.expect("transcript-start").await?;
        let mut text = client.expect("transcript-chunk").await?.data["text"].as_str().unwrap().to_owned();
        client.send("audio-stop", json!({}), &[]).await?;
        let transcript = loop {
            let event = client.next().await?.context("a transcript")?;
            match event.kind.as_str() {
                "transcript-chunk" => text += event.data["text"].as_str().unwrap_or_default(),
                _ => break event,
            }
        };
        assert_eq!((transcript.kind.as_str(), &transcript.data["text"]), ("transcript", &json!(text)));
        // The simulated model hears one word a second.
        assert!(
            text.starts_with("word0 ") && text.split_whitespace().count() >= 9,
            "{rate} {width} {channels}: {text}"
        );
        client.expect("transcript-stop").await?;
    }
    server.assert_balanced().await
}

#[tokio::test]
async fn a_recording_that_is_begun_again_is_forgotten_and_silence_is_empty() -> Result<()> {
    let server = Setup::listener("wyoming-again").start().await?;
    let mut client = Client::connect(&server).await?;
    client.send("audio-start", audio_start(), &[]).await?;
    for piece in speech(16_000, 2, 1).chunks(3_200) {
        client.send("audio-chunk", audio_start(), piece).await?;
    }
    client.expect("transcript-start").await?;
    client.send("transcribe", json!({"language": "de"}), &[]).await?;
    client.send("audio-start", audio_start(), &[]).await?;
    client.send("audio-chunk", audio_start(), &[0; 32_000]).await?;
    client.send("audio-stop", json!({}), &[]).await?;
    let transcript = loop {
        let event = client.next().await?.context("a transcript")?;
        match event.kind.as_str() {
            "transcript" => break event,
            "transcript-chunk" | "transcript-start" => {}
            other => bail!("{other}"),
        }
    };
    assert_eq!(transcript.data, json!({"text": "", "language": "de"}));
    client.expect("transcript-stop").await?;
    drop(client);
    server.assert_no_sessions().await?;
    server.assert_balanced().await
}

#[tokio::test]
async fn what_is_no_event_ends_the_connection_with_an_error() -> Result<()> {
    let server =
        Setup::units("wyoming-garbage").server(|config| config.max_frame_bytes = 2_048).start().await?;
    for garbage in [
        "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "\n",
        "[]\n",
        "{\"type\": 5}\n",
        "{\"type\": \"ping\", \"data_length\": -1}\n",
        "{\"type\": \"audio-chunk\", \"payload_length\": 1000000000000}\n",
        "{\"type\": \"audio-chunk\", \"payload_length\": 4096}\n",
    ] {
        let mut client = Client::connect(&server).await?;
        client.send_raw(garbage.as_bytes()).await?;
        client.refused("broken_frame").await.with_context(|| garbage.to_owned())?;
    }
    for (data, code) in [("{", "invalid_json"), ("[1]", "invalid_json"), ("{\"text\": []}", "invalid_value")]
    {
        let mut client = Client::connect(&server).await?;
        let event = format!("{{\"type\": \"synthesize\", \"data_length\": {}}}\n{data}", data.len());
        client.send_raw(event.as_bytes()).await?;
        client.refused(code).await.with_context(|| data.to_owned())?;
    }
    // The first line never ends.
    let mut client = Client::connect(&server).await?;
    client.send_raw(&vec![b'{'; 70_000]).await?;
    client.refused("broken_frame").await?;
    // An event that is cut off.
    let mut client = Client::connect(&server).await?;
    client.send_raw(b"{\"type\": \"ping\"}\n{\"type\": \"synthesize\", \"data_length\": 100}\n{").await?;
    client.expect("pong").await?;
    drop(client);
    server.assert_no_sessions().await
}

#[tokio::test]
async fn emoji_alone_are_silence_and_the_connection_goes_on() -> Result<()> {
    let server = Setup::units("wyoming-emoji").start().await?;
    let mut client = Client::connect(&server).await?;
    client.send("synthesize", json!({"text": "👍"}), &[]).await?;
    let audio = client.speech().await?;
    assert!(!audio.is_empty() && audio.iter().all(|byte| *byte == 0), "{} bytes", audio.len());
    client.send("synthesize-start", json!({}), &[]).await?;
    client.send("synthesize-chunk", json!({"text": "😀 "}), &[]).await?;
    client.send("synthesize-stop", json!({}), &[]).await?;
    assert!(!client.speech().await?.is_empty());
    client.expect("synthesize-stopped").await?;
    client.send("synthesize", json!({"text": "And a word."}), &[]).await?;
    assert!(client.speech().await?.iter().any(|byte| *byte != 0));
    server.assert_balanced().await
}

#[tokio::test]
async fn what_waits_of_a_recording_is_bounded() -> Result<()> {
    let (gate, script) = Gate::new(|_| true);
    let setup = Setup::listener("wyoming-bounded").script(script);
    let setup = setup.server(|server| server.max_frame_bytes = 64 << 10);
    let setup = setup.engine(|engine| engine.memory = MemoryBudget::new(Some(540 << 10)));
    let server = setup.start().await?;
    let mut client = Client::connect(&server).await?;
    client.send("audio-start", audio_start(), &[]).await?;
    // The model waits at the gate.
    for piece in speech(16_000, 2, 1).repeat(6).chunks(32_000) {
        // Once the connection has ended, nothing is read.
        if client.send("audio-chunk", audio_start(), piece).await.is_err() {
            break;
        }
    }
    client.refused("overloaded").await?;
    gate.open();
    server.assert_no_sessions().await?;
    server.assert_balanced().await
}

#[tokio::test]
async fn a_client_that_leaves_ends_its_request() -> Result<()> {
    let (gate, script) = Gate::new(|plan| plan.schedule.items().any(|item| item.start > 0));
    let server = Setup::tokens("wyoming-leaves").script(script).start().await?;
    let mut client = Client::connect(&server).await?;
    client.send("synthesize", json!({"text": "Nobody listens to this any more."}), &[]).await?;
    gate.admit(8);
    client.expect("audio-start").await?;
    drop(client);
    gate.open();
    server.assert_no_sessions().await?;
    server.assert_balanced().await
}

#[tokio::test]
async fn a_client_that_does_not_read_is_dropped_and_others_are_served() -> Result<()> {
    let server = Setup::units("wyoming-slow")
        .server(|config| config.send_timeout = Duration::from_millis(300))
        .start()
        .await?;
    let socket = TcpSocket::new_v4()?;
    socket.set_recv_buffer_size(4_096)?;
    let mut slow = Client(BufReader::new(guarded(socket.connect(server.wyoming)).await??));
    // Minutes of audio, which no buffer holds.
    let text = "This sentence is read by nobody at all. ".repeat(90);
    for _ in 0..6 {
        slow.send("synthesize", json!({"text": text}), &[]).await?;
    }
    let mut other = Client::connect(&server).await?;
    other.send("synthesize", json!({"text": "A short one."}), &[]).await?;
    assert!(!other.speech().await?.is_empty());
    drop(other);
    server.assert_no_sessions().await?;
    server.assert_balanced().await
}

#[tokio::test]
async fn connections_have_limits() -> Result<()> {
    let server = Setup::units("wyoming-limits")
        .server(|config| {
            config.max_sessions = 2;
            config.header_timeout = Duration::from_millis(200);
            config.idle_timeout = Duration::from_millis(400);
        })
        .start()
        .await?;
    // Without a first event a connection is no session, and ends.
    let mut silent = Client::connect(&server).await?;
    assert!(silent.next().await?.is_none());
    let mut sessions = Vec::new();
    for _ in 0..2 {
        let mut client = Client::connect(&server).await?;
        client.send("ping", json!({}), &[]).await?;
        client.expect("pong").await?;
        sessions.push(client);
    }
    let mut third = Client::connect(&server).await?;
    third.send("ping", json!({}), &[]).await?;
    third.refused("overloaded").await?;
    for session in sessions {
        session.refused("idle_timeout").await?;
    }
    let mut many = Client::connect(&server).await?;
    for _ in 0..40 {
        many.send("synthesize", json!({"text": "One of too many requests that wait. ".repeat(20)}), &[])
            .await?;
    }
    loop {
        let event = many.next().await?.context("an error")?;
        if event.kind == "error" {
            assert_eq!(event.data["code"], "overloaded");
            return Ok(());
        }
    }
}

#[tokio::test]
async fn a_shutdown_finishes_the_speech_and_refuses_new_requests() -> Result<()> {
    let (gate, script) = Gate::new(|plan| plan.schedule.items().any(|item| item.start > 0));
    let mut server = Setup::tokens("wyoming-drain").script(script).start().await?;
    let mut client = Client::connect(&server).await?;
    client.send("synthesize", json!({"text": "This is spoken to its end."}), &[]).await?;
    let mut idle = Client::connect(&server).await?;
    idle.send("ping", json!({}), &[]).await?;
    idle.expect("pong").await?;
    gate.admit(2);
    eventually("the speech to begin", || async { Ok(gate.arrived() > 3) }).await?;
    server.stop();
    assert!(idle.next().await?.is_none(), "an idle connection ends");
    gate.open();
    assert!(!client.speech().await?.is_empty());
    assert!(client.next().await?.is_none());
    server.ended().await
}

#[tokio::test(flavor = "multi_thread")]
async fn who_was_refused_and_stays_keeps_nobody_out() -> Result<()> {
    const PLACES: usize = 2;
    let server =
        Setup::units("wyoming-places").server(|server| server.max_connections = PLACES).start().await?;
    let mut refused = Vec::new();
    for _ in 0..PLACES {
        let mut client = Client::connect(&server).await?;
        client.send_raw(b"GET / HTTP/1.1\r\n").await?;
        client.expect("error").await?;
        ensure!(client.next().await?.is_none(), "its half is closed");
        refused.push(client);
    }
    // The places are free as soon as the halves are closed, and not when the server has waited for the clients.
    let mut others = Vec::new();
    for _ in 0..PLACES {
        let mut tries = 0;
        others.push(loop {
            let mut client = Client::connect(&server).await?;
            let answered = client.send("ping", json!({"text": "a"}), &[]).await.is_ok();
            if answered
                && client.next().await.is_ok_and(|event| event.is_some_and(|event| event.kind == "pong"))
            {
                break client;
            }
            tries += 1;
            ensure!(tries < 20, "no place is free");
            tokio::time::sleep(Duration::from_millis(10)).await;
        });
    }
    drop(refused);
    Ok(())
}
