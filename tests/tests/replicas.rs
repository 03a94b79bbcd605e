//! A server with a name among replicas: it tells the name, and its sessions may be continued while it drains.

use anyhow::{Result, ensure};
use izwi_tests::{Gate, Incoming, Session, Setup, TestServer, eventually};
use serde_json::{Value, json};

const TEXT: &str = "Hi. This has words enough to fill more than one whole chunk, and so on. Go.";
const SPEECH: &str = "/v1/audio/speech/stream";

async fn open(server: &TestServer, query: &str) -> Result<Session> {
    Session::open(&format!("ws://{}{SPEECH}{query}", server.address)).await
}

async fn drains(server: &TestServer) -> Result<()> {
    eventually("the server to drain", || async {
        Ok(server.page("/readyz").await?.contains("\"code\":\"draining\""))
    })
    .await
}

fn resume_of(created: &Value, next_sample: usize) -> Value {
    json!({
        "type": "session.resume",
        "session_id": created["session_id"],
        "resume_token": created["resume_token"],
        "next_sample": next_sample,
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_tells_its_name() -> Result<()> {
    let server =
        Setup::units("named").server(|server| server.instance = Some("izwi-7".into())).start().await?;
    for path in ["/readyz", "/v1/models", "/nowhere"] {
        let response = server.get(path).await?;
        ensure!(response.headers()["x-izwi-instance"] == "izwi-7", "{path}: {:?}", response.headers());
    }
    let mut session = open(&server, "").await?;
    session.send(json!({"type": "session.config"})).await?;
    ensure!(session.expect("session.created").await?["instance"] == "izwi-7");
    let single = Setup::units("nameless").start().await?;
    ensure!(!single.get("/readyz").await?.headers().contains_key("x-izwi-instance"));
    let mut session = open(&single, "?instance=izwi-7").await?;
    session.send(json!({"type": "session.config"})).await?;
    ensure!(session.expect("session.created").await?.get("instance").is_none());
    Ok(())
}

/// A session that received its first chunk, while its third sentence waits at the gate.
async fn begin(server: &TestServer) -> Result<(Session, Value, Vec<u8>)> {
    let mut session = open(server, "").await?;
    session.send(json!({"type": "session.config", "seed": 7})).await?;
    let created = session.expect("session.created").await?;
    session.send(json!({"type": "input.text", "text": TEXT})).await?;
    session.send(json!({"type": "input.flush"})).await?;
    session.expect("audio.start").await?;
    let audio = session.chunk().await?.1;
    Ok((session, created, audio))
}

/// The audio of the rest of the session, which ends because the server does.
async fn rest(session: &mut Session) -> Result<Vec<u8>> {
    let mut audio = Vec::new();
    loop {
        match session.next().await? {
            Incoming::Audio(bytes) => audio.extend(bytes),
            Incoming::Frame(frame) if frame["type"] == "audio.done" => {
                ensure!(frame["finish_reason"] == "stop", "{frame}");
            }
            Incoming::Frame(frame) => ensure!(frame["type"] != "error", "{frame}"),
            Incoming::Closed(code) => {
                ensure!(code == Some(1001), "{code:?}");
                // Answers the close frame: the server need not wait for this client to come back.
                session.next().await?;
                return Ok(audio);
            }
        }
    }
}

/// What a draining server takes besides a session that continues.
async fn refuses_others(server: &TestServer, created: &Value) -> Result<()> {
    ensure!(open(server, "").await.is_err(), "a new session");
    ensure!(open(server, "?instance=izwi-8").await.is_err(), "another replica's session");
    ensure!(server.get("/v1/models?instance=izwi-7").await?.status() == 503, "another route");
    let live = format!("ws://{}/v1/audio/transcriptions/stream?instance=izwi-7", server.address);
    ensure!(Session::open(&live).await.is_err(), "sessions of this route cannot be continued");
    // A name alone begins no session here.
    let config = json!({"type": "session.config"});
    for frame in [config, json!({"type": "speak", "text": "Hi."}), json!({"type": "ping"})] {
        let mut newcomer = open(server, "?instance=izwi-7").await?;
        newcomer.send(frame).await?;
        newcomer.expect_error("draining").await?;
        ensure!(newcomer.next().await? == Incoming::Closed(Some(1001)));
    }
    let mut stranger = open(server, "?instance=izwi-7").await?;
    let mut foreign = resume_of(created, 0);
    foreign["resume_token"] = "0".repeat(64).into();
    stranger.send(foreign).await?;
    stranger.expect_error("resume_refused").await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_continue_while_their_server_drains() -> Result<()> {
    for is_lost_before in [true, false] {
        let (gate, script) = Gate::new(|plan| plan.schedule.items().any(|item| item.start > 1));
        let setup = Setup::units("draining-replica").script(script);
        let mut server = setup.server(|server| server.instance = Some("izwi-7".into())).start().await?;
        let (session, created, mut audio) = begin(&server).await?;
        let mut session = Some(session);
        if is_lost_before {
            session = None;
            eventually("the loss to be seen", || async {
                Ok(server.metric("izwi_sessions_detached", &[]).await? >= 1.0)
            })
            .await?;
        }
        server.stop();
        drains(&server).await?;
        drop(session);
        refuses_others(&server, &created).await?;
        let mut session = open(&server, "?instance=izwi-7").await?;
        session.send(resume_of(&created, audio.len() / 2)).await?;
        session.expect("session.resumed").await?;
        gate.open();
        audio.extend(rest(&mut session).await?);
        ensure!(audio.len() == (TEXT.len() - 2) * 200, "{} bytes", audio.len());
        server.ended().await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_whose_client_stays_away_does_not_hold_a_draining_server() -> Result<()> {
    let setup = Setup::units("draining-alone");
    let mut server = setup
        .server(|server| {
            server.instance = Some("izwi-7".into());
            server.resume_window = std::time::Duration::from_millis(300);
        })
        .start()
        .await?;
    let mut session = open(&server, "").await?;
    session.send(json!({"type": "session.config"})).await?;
    session.expect("session.created").await?;
    session.send(json!({"type": "input.text", "text": TEXT})).await?;
    session.send(json!({"type": "input.flush"})).await?;
    session.expect("audio.start").await?;
    session.chunk().await?;
    drop(session);
    server.stop();
    server.ended().await
}
