//! The ElevenLabs dialect over simulated models: independent contexts, late keys, garbage, the shape of listings.

use anyhow::{Context, Result, ensure};
use izwi_tests::{Dice, Gate, Incoming, Session, Setup, TestServer};
use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::Message;

const KEY: &str = "open-sesame-1234";

async fn open(server: &TestServer, path: &str) -> Result<Session> {
    let url = format!("ws://{}/v1/text-to-speech/one/{path}", server.address);
    Session::open(&url).await
}

/// The next message.
async fn message(session: &mut Session) -> Result<Value> {
    match session.next().await? {
        Incoming::Frame(frame) => Ok(frame),
        other => anyhow::bail!("expected a message, got {other:?}"),
    }
}

/// All messages until the close, and its code.
async fn rest(session: &mut Session) -> Result<(Vec<Value>, Option<u16>)> {
    let mut messages = Vec::new();
    loop {
        match session.next().await? {
            Incoming::Frame(frame) => messages.push(frame),
            Incoming::Audio(_) => anyhow::bail!("a binary frame"),
            Incoming::Closed(code) => return Ok((messages, code)),
        }
    }
}

/// The characters of messages of audio.
fn characters<'a>(messages: impl IntoIterator<Item = &'a Value>) -> String {
    let chars = messages.into_iter().filter_map(|message| message["alignment"]["chars"].as_array());
    chars.flatten().filter_map(Value::as_str).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn closing_a_context_does_not_lose_the_text_of_another() -> Result<()> {
    let (gate, script) = Gate::new(|plan| plan.schedule.items().next().is_some());
    let mut setup = Setup::units("eleven-contexts").script(script);
    (setup.model.samples_per_token, setup.model.times_words) = (2_400, true);
    let server = setup.start().await?;
    let mut session = open(&server, "multi-stream-input?output_format=pcm_24000").await?;
    let long = "A sentence of the first context. ".repeat(20);
    let config = json!({"chunk_length_schedule": [1]});
    session.send(json!({"text": " ", "context_id": "a", "generation_config": config})).await?;
    session.send(json!({"text": long, "context_id": "a"})).await?;
    gate.admit(1);
    let first = message(&mut session).await?;
    ensure!(
        first["contextId"] == "a" && first["audio"].as_str().is_some_and(|audio| !audio.is_empty()),
        "{first}"
    );
    session.send(json!({"text": "This is never spoken. ", "context_id": "a"})).await?;
    session.send(json!({"text": "The second context ", "context_id": "b"})).await?;
    session.send(json!({"text": "is spoken. ", "context_id": "b", "flush": true})).await?;
    session.send(json!({"context_id": "a", "close_context": true})).await?;
    // A context without text ends at once: then the one before it is closed as well.
    session.send(json!({"text": " ", "context_id": "c"})).await?;
    session.send(json!({"context_id": "c", "close_context": true})).await?;
    let mut received = vec![first];
    while received.last().is_none_or(|last| last["contextId"] != "c") {
        received.push(message(&mut session).await?);
    }
    gate.open();
    session.send(json!({"close_socket": true})).await?;
    let (more, code) = rest(&mut session).await?;
    received.extend(more);
    let of = |id: &'static str| received.iter().filter(move |message| message["contextId"] == id);
    for id in ["a", "b", "c"] {
        let finals = of(id).filter(|message| message["isFinal"] == true).count();
        ensure!(finals == 1 && of(id).next_back().is_some_and(|last| last["isFinal"] == true), "{id}");
    }
    ensure!(code == Some(1000), "{code:?}");
    ensure!(characters(of("b")) == "The second context is spoken. ", "{}", characters(of("b")));
    let spoken = characters(of("a"));
    ensure!(long.starts_with(&spoken) && spoken.len() < long.len() / 2, "{spoken}");
    server.assert_balanced().await
}

/// Waits until the server has handled all messages so far: a context without text ends at once. Returns what came before.
async fn settled(session: &mut Session) -> Result<Vec<Value>> {
    session.send(json!({"text": " ", "context_id": "settled"})).await?;
    session.send(json!({"context_id": "settled", "close_context": true})).await?;
    let mut received = Vec::new();
    loop {
        match message(session).await? {
            last if last["contextId"] == "settled" => return Ok(received),
            other => received.push(other),
        }
    }
}

/// All messages up to the end of a context.
async fn until_final(session: &mut Session, id: &str) -> Result<Vec<Value>> {
    let mut received = Vec::new();
    while received.last().is_none_or(|last: &Value| last["isFinal"] != true || last["contextId"] != id) {
        received.push(message(session).await?);
    }
    Ok(received)
}

/// Bytes of audio of messages in base64.
fn audio_bytes<'a>(messages: impl IntoIterator<Item = &'a Value>) -> usize {
    let audio = messages.into_iter().filter_map(|message| message["audio"].as_str());
    audio.map(|audio| audio.len() / 4 * 3 - audio.bytes().filter(|byte| *byte == b'=').count()).sum()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_turn_that_is_flushed_and_closed_is_spoken_to_its_end() -> Result<()> {
    // Sentences as Pipecat sends them, and as LiveKit does: with a space after each, flushed one by one.
    let pipecat = [json!({"text": "We met Dr. Smith."}), json!({"text": "And the taxi waits outside."})];
    let livekit = [
        json!({"text": "We met Dr. Smith. ", "flush": true}),
        json!({"text": "And the taxi waits outside. ", "flush": true}),
    ];
    let apart = "We met Dr. Smith. And the taxi waits outside.";
    let turns = [
        ("auto_mode=true", pipecat.clone(), apart),
        ("auto_mode=true", livekit, apart),
        // Without it, the pieces of a word may come in several messages.
        ("auto_mode=false", pipecat, "We met Dr. Smith.And the taxi waits outside."),
    ];
    for (query, sentences, expected) in turns {
        let (gate, script) = Gate::new(|plan| plan.schedule.items().next().is_some());
        let mut setup = Setup::units("eleven-turn").script(script);
        setup.model.times_words = true;
        let server = setup.start().await?;
        let mut session =
            open(&server, &format!("multi-stream-input?output_format=pcm_24000&{query}")).await?;
        session.send(json!({"text": " ", "context_id": "turn"})).await?;
        for mut sentence in sentences {
            sentence["context_id"] = json!("turn");
            session.send(sentence).await?;
        }
        // The first sentence is running.
        ensure!(settled(&mut session).await?.is_empty());
        session.send(json!({"context_id": "turn", "flush": true})).await?;
        session.send(json!({"context_id": "turn", "close_context": true})).await?;
        ensure!(settled(&mut session).await?.is_empty());
        gate.open();
        let received = until_final(&mut session, "turn").await?;
        let spoken = characters(&received);
        ensure!(spoken.trim_end() == expected, "{query}: {spoken}");
        // Two bytes for each of the hundred samples of a character, but for the space between sentences.
        ensure!(audio_bytes(&received) == 200 * 43, "{query}: {} bytes", audio_bytes(&received));
        session.send(json!({"close_socket": true})).await?;
        ensure!(rest(&mut session).await? == (Vec::new(), Some(1000)));
        server.assert_balanced().await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_context_does_not_wait_for_one_that_is_closed() -> Result<()> {
    let (gate, script) = Gate::new(|plan| plan.schedule.items().next().is_some());
    let mut setup = Setup::units("eleven-waits").script(script);
    (setup.model.samples_per_token, setup.model.times_words) = (2_400, true);
    let server = setup.start().await?;
    let mut session = open(&server, "multi-stream-input?output_format=pcm_24000&auto_mode=true").await?;
    let long = "A sentence of the context before. ".repeat(110);
    session.send(json!({"text": long, "context_id": "before", "flush": true})).await?;
    gate.admit(1);
    let mut received = vec![message(&mut session).await?];
    session.send(json!({"context_id": "before", "close_context": true})).await?;
    session.send(json!({"text": "The next one. ", "context_id": "next", "flush": true})).await?;
    session.send(json!({"context_id": "next", "close_context": true})).await?;
    received.extend(settled(&mut session).await?);
    gate.open();
    received.extend(until_final(&mut session, "next").await?);
    ensure!(
        received.iter().all(|message| message["isFinal"] != true || message["contextId"] == "next"),
        "the context before ended first"
    );
    // A second close drops what is left.
    session.send(json!({"context_id": "before", "close_context": true})).await?;
    received.extend(until_final(&mut session, "before").await?);
    let of = |id: &'static str| received.iter().filter(move |message| message["contextId"] == id);
    ensure!(characters(of("next")) == "The next one. ", "{}", characters(of("next")));
    let spoken = characters(of("before"));
    ensure!(long.starts_with(&spoken) && spoken.len() < long.len(), "{spoken}");
    server.assert_balanced().await
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_without_text_open_no_context() -> Result<()> {
    let server = Setup::units("eleven-alive").start().await?;
    let mut session = open(&server, "multi-stream-input?output_format=pcm_24000").await?;
    for id in 0..10 {
        session.send(json!({"text": ""})).await?;
        session.send(json!({"text": "", "context_id": id.to_string()})).await?;
        session.send(json!({"context_id": id.to_string(), "flush": true})).await?;
    }
    session.send(json!({"text": "Hello.", "context_id": "real", "flush": true})).await?;
    session.send(json!({"close_socket": true})).await?;
    let (messages, code) = rest(&mut session).await?;
    ensure!(code == Some(1000) && messages.iter().all(|one| one["contextId"] == "real"), "{messages:?}");
    ensure!(audio_bytes(&messages) == 200 * 6, "{messages:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_of_contexts_is_read_no_faster_than_it_is_spoken() -> Result<()> {
    let (gate, script) = Gate::new(|plan| plan.schedule.items().next().is_some());
    let server = Setup::units("eleven-flood").script(script).start().await?;
    let mut session = open(&server, "multi-stream-input?output_format=pcm_24000").await?;
    for id in 0..60 {
        let id = id.to_string();
        session.send(json!({"text": "Hello.", "context_id": id, "flush": true})).await?;
        session.send(json!({"context_id": id, "close_context": true})).await?;
    }
    // It ends the session as soon as it is read.
    session.send(json!({"text": 7})).await?;
    ensure!(server.get("/livez").await?.status() == 200);
    gate.open();
    let (messages, code) = rest(&mut session).await?;
    let finals = messages.iter().filter(|message| message["isFinal"] == true).count();
    ensure!(finals >= 28, "{finals} contexts were spoken before the message after them was read");
    ensure!(
        code == Some(1008) && messages.last().is_some_and(|last| last["param"] == "text"),
        "{messages:?}"
    );
    server.assert_no_sessions().await?;
    server.assert_balanced().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_without_the_key_does_nothing() -> Result<()> {
    let server =
        Setup::units("eleven-keys").server(|server| server.api_key = Some(KEY.to_owned())).start().await?;
    let url = format!("ws://{}/v1/text-to-speech/one/stream-input?output_format=pcm_24000", server.address);
    let speak = json!({"text": "Hello there. ", "flush": true});
    for first in [json!({"text": " "}), speak.clone(), json!({"text": " ", "xi_api_key": "x".repeat(16)})] {
        let mut session = Session::open(&url).await?;
        session.send(first).await?;
        // The server may have closed already.
        session.send(json!({"text": " ", "xi_api_key": KEY})).await.ok();
        session.send(speak.clone()).await.ok();
        let (messages, code) = rest(&mut session).await?;
        ensure!(messages.len() == 1 && messages[0]["error"] == "invalid_api_key", "{messages:?}");
        ensure!(code == Some(1008) && messages[0]["code"] == 1008, "{code:?}");
    }
    assert_eq!(server.metric("izwi_requests_total", &["model=\"eleven-keys\""]).await?, 0.0);
    for key in [json!({"xi-api-key": KEY}), json!({"authorization": format!("Bearer {KEY}")})] {
        let mut session = Session::open(&url).await?;
        let mut first = speak.clone();
        first.as_object_mut().context("an object")?.extend(key.as_object().context("an object")?.clone());
        session.send(first).await?;
        session.send(json!({"text": ""})).await?;
        let (messages, code) = rest(&mut session).await?;
        ensure!(
            code == Some(1000) && messages.last().is_some_and(|last| last["isFinal"] == true),
            "{messages:?}"
        );
    }
    // Few may wait for their key; more must bring it in the headers.
    let mut waiting = Vec::new();
    while waiting.len() < 17
        && let Ok(session) = Session::open(&url).await
    {
        waiting.push(session);
    }
    ensure!(waiting.len() == 16, "{} sessions wait for their key", waiting.len());
    drop(waiting);
    server.assert_no_sessions().await?;
    // Wrong keys are counted for the throttle of requests: then the right one is refused as well.
    for _ in 0..20 {
        let mut session = Session::open(&url).await?;
        session.send(json!({"text": " ", "xi_api_key": "y".repeat(16)})).await?;
        rest(&mut session).await?;
    }
    let mut session = Session::open(&url).await?;
    session.send(json!({"text": " ", "xi_api_key": KEY})).await?;
    let (messages, code) = rest(&mut session).await?;
    ensure!(code == Some(1008) && messages[0]["error"] != "invalid_api_key", "{messages:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_messages_end_the_session_and_name_the_member() -> Result<()> {
    let server = Setup::units("eleven-refusals").start().await?;
    let refused = async |path: &str, bad: Value, param: Option<&str>| {
        let mut session = open(&server, path).await?;
        session.send(bad.clone()).await?;
        session.send(json!({"text": "More. ", "flush": true})).await?;
        let (messages, code) = rest(&mut session).await?;
        ensure!(messages.len() == 1 && code == Some(1008), "{bad}: {messages:?} {code:?}");
        ensure!(
            messages[0]["param"] == json!(param) && messages[0]["message"].is_string(),
            "{bad}: {messages:?}"
        );
        anyhow::Ok(())
    };
    let one = "stream-input?output_format=pcm_24000";
    refused(one, json!({"text": 7}), Some("text")).await?;
    refused(one, json!({"text": " ", "voice_settings": {"speed": "x"}}), Some("voice_settings.speed"))
        .await?;
    refused(one, json!({"text": " ", "flush": 1}), Some("flush")).await?;
    refused(one, json!([1]), None).await?;
    refused(one, json!({"text": "a".repeat(4_097)}), Some("text")).await?;
    let schedule = "generation_config.chunk_length_schedule";
    for lengths in [json!([]), json!([0]), json!([5_000]), json!(vec![60; 17])] {
        let config = json!({"text": " ", "generation_config": {"chunk_length_schedule": lengths}});
        refused(one, config, Some(schedule)).await?;
    }
    refused("stream-input?model_id=nothing&output_format=pcm_24000", json!({"text": " "}), Some("model"))
        .await?;
    let many = "multi-stream-input?output_format=pcm_24000";
    refused(many, json!({"text": " ", "context_id": "x".repeat(300)}), Some("context_id")).await?;
    let mut session = open(&server, many).await?;
    for id in ["1", "2", "3", "4", "5", "6"] {
        session.send(json!({"text": " ", "context_id": id})).await?;
    }
    let (messages, _) = rest(&mut session).await?;
    ensure!(messages.len() == 1 && messages[0]["param"] == "context_id", "{messages:?}");
    for query in
        ["output_format=wav_24000", "output_format=x", "inactivity_timeout=0", "inactivity_timeout=x"]
    {
        ensure!(open(&server, &format!("stream-input?{query}")).await.is_err(), "{query}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn garbage_ends_no_more_than_its_session() -> Result<()> {
    let server = Setup::units("eleven-garbage").start().await?;
    let mut dice = Dice::new(0xe1e7);
    for index in 0..60 {
        let path = if index % 2 == 0 { "stream-input" } else { "multi-stream-input" };
        let mut session = open(&server, &format!("{path}?output_format=ulaw_8000")).await?;
        for _ in 0..1 + dice.roll(6) {
            let member = dice.pick(&[
                "text",
                "context_id",
                "flush",
                "voice_settings",
                "generation_config",
                "close_context",
            ]);
            let garbage = match dice.roll(5) {
                0 => Message::binary(dice.bytes(200)),
                1 => Message::text(dice.text(300)),
                2 => Message::text(
                    json!({"text": dice.text(80), "context_id": dice.text(5), "flush": true}).to_string(),
                ),
                3 => Message::text(json!({"close_context": true, "context_id": dice.text(5)}).to_string()),
                _ => Message::text(json!({member: dice.wrong()}).to_string()),
            };
            if session.send_raw(garbage).await.is_err() {
                break;
            }
        }
        // A session that has failed is closed already.
        let ended = session.send(json!({"text": "", "close_socket": true})).await;
        let (messages, _) = rest(&mut session).await?;
        for message in &messages {
            ensure!(message["error"] != "internal_error" && message.to_string().len() < 200_000, "{message}");
        }
        drop(ended);
    }
    server.assert_no_sessions().await?;
    server.assert_balanced().await
}

#[tokio::test(flavor = "multi_thread")]
async fn models_are_listed_in_the_shape_of_the_client() -> Result<()> {
    let server = Setup::units("eleven-models").start().await?;
    let list = async |header: Option<(&'static str, &'static str)>| {
        let request = reqwest::Client::new().get(server.url("/v1/models"));
        let request = match header {
            Some((name, value)) => request.header(name, value),
            None => request,
        };
        anyhow::Ok(request.send().await?.json::<Value>().await?)
    };
    let plain = list(None).await?;
    ensure!(plain["object"] == "list" && plain["data"][0]["id"] == "eleven-models", "{plain}");
    for header in [("xi-api-key", "any"), ("X-Fern-SDK-Name", "elevenlabs")] {
        let models = list(Some(header)).await?;
        ensure!(
            models[0]["model_id"] == "eleven-models" && models[0]["can_do_text_to_speech"] == true,
            "{models}"
        );
    }
    Ok(())
}
