//! The Realtime dialect over the simulated models: what clients of the published package do not do, and the order of
//! events that a gate fixes.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use izwi_audio::decode::{DecodeLimits, decode};
use izwi_audio::pcm;
use izwi_core::engine::MemoryBudget;
use izwi_core::engine::executor::simulated::Fault;
use izwi_tests::{Gate, Incoming, Session, Setup, TestServer, base64, guarded};
use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;

async fn connect(server: &TestServer, query: &str) -> Result<Session> {
    Session::open(&format!("ws://{}/v1/realtime{query}", server.address)).await
}

/// A session whose turns the client commits.
async fn manual(server: &TestServer) -> Result<Session> {
    let mut session = connect(server, "").await?;
    session.expect("session.created").await?;
    let audio = json!({"input": {"turn_detection": null}});
    session.send(json!({"type": "session.update", "session": {"type": "realtime", "audio": audio}})).await?;
    let updated = session.expect("session.updated").await?;
    ensure!(updated["session"]["audio"]["input"]["turn_detection"].is_null(), "{updated}");
    Ok(session)
}

/// A tone of 24 kHz.
fn tone(ms: usize) -> String {
    let sample = |n: usize| (8_000.0 * (n as f32 * 0.1).sin()) as i16;
    base64(&(0..ms * 24).flat_map(|n| sample(n).to_le_bytes()).collect::<Vec<u8>>())
}

async fn append(session: &mut Session, ms: usize) -> Result<()> {
    session.send(json!({"type": "input_audio_buffer.append", "audio": tone(ms)})).await
}

async fn write(session: &mut Session, text: &str) -> Result<()> {
    let content = json!([{"type": "input_text", "text": text}]);
    let item = json!({"type": "message", "role": "user", "content": content});
    session.send(json!({"type": "conversation.item.create", "item": item})).await
}

/// The next event of this type.
async fn until(session: &mut Session, kind: &str) -> Result<Value> {
    loop {
        let event = session.frame().await?;
        ensure!(event["event_id"].is_string(), "{event}");
        if event["type"] == kind {
            return Ok(event);
        }
        ensure!(event["type"] != "error", "{event}");
    }
}

async fn refused(session: &mut Session, code: &str) -> Result<Value> {
    let event = until(session, "error").await?;
    ensure!(event["error"]["code"] == code, "{code}: {event}");
    Ok(event["error"].clone())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_needs_a_model_that_converses_or_transcribes() -> Result<()> {
    let server = Setup::units("realtime-voice").start().await?;
    for (query, code, param) in [
        ("?model=realtime-voice", "invalid_value", "model"),
        ("?model=nobody", "model_not_found", "model"),
        ("?intent=translation", "invalid_value", "intent"),
        ("?model=realtime-voice&intent=transcription", "invalid_value", "model"),
    ] {
        let mut session = connect(&server, query).await?;
        let error = refused(&mut session, code).await?;
        ensure!(error["param"] == param, "{query}: {error}");
        let end = session.next().await?;
        ensure!(end == Incoming::Closed(Some(1008)), "{query}: {end:?}");
    }
    // A hosted model stands for the default one, which this server lacks.
    let mut session = connect(&server, "?model=gpt-realtime").await?;
    session.expect("session.created").await?;
    append(&mut session, 20).await?;
    ensure!(refused(&mut session, "invalid_value").await?["param"] == "model");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn garbage_is_refused_and_the_session_goes_on() -> Result<()> {
    let server = Setup::converser("realtime-garbage").start().await?;
    let mut session = manual(&server).await?;
    session.send_raw(Message::binary(vec![1, 2])).await?;
    refused(&mut session, "binary_frame").await?;
    for (text, code) in [
        ("{", "invalid_json"),
        ("[]", "invalid_json"),
        ("{}", "invalid_value"),
        (r#"{"type": 7}"#, "invalid_value"),
        (r#"{"type": "input_audio_buffer.append"}"#, "invalid_json"),
        (r#"{"type": "input_audio_buffer.append", "audio": 7}"#, "invalid_value"),
        (r#"{"type": "conversation.item.create", "item": []}"#, "invalid_value"),
        (r#"{"type": "output_audio_buffer.clear"}"#, "invalid_value"),
    ] {
        session.send_raw(Message::text(text)).await?;
        refused(&mut session, code).await?;
    }
    let item = json!({"type": "message", "role": "user", "id": "a", "content": [{"type": "input_text", "text": "x"}]});
    for code in [None, Some("invalid_value")] {
        session.send(json!({"type": "conversation.item.create", "item": item})).await?;
        match code {
            None => drop(until(&mut session, "conversation.item.done").await?),
            Some(code) => drop(refused(&mut session, code).await?),
        }
    }
    session.send(json!({"type": "response.create"})).await?;
    ensure!(until(&mut session, "response.done").await?["response"]["status"] == "completed");
    server.assert_balanced().await
}

#[tokio::test(flavor = "multi_thread")]
async fn audio_is_taken_while_an_answer_is_generated() -> Result<()> {
    let (gate, script) = Gate::new(|_| true);
    let server = Setup::converser("realtime-meanwhile").script(script).start().await?;
    let mut session = manual(&server).await?;
    append(&mut session, 500).await?;
    session.send(json!({"type": "input_audio_buffer.commit"})).await?;
    let first = until(&mut session, "conversation.item.done").await?;
    session.send(json!({"type": "response.create"})).await?;
    let created = until(&mut session, "response.created").await?;
    // The model waits at the gate.
    append(&mut session, 300).await?;
    session.send(json!({"type": "input_audio_buffer.commit"})).await?;
    let second = until(&mut session, "conversation.item.done").await?;
    session.send(json!({"type": "response.create"})).await?;
    refused(&mut session, "conversation_already_has_active_response").await?;
    gate.open();
    let done = until(&mut session, "response.done").await?;
    ensure!(done["response"]["id"] == created["response"]["id"], "{done}");
    // The turn of the first item and its tokens, and the start of the answer: the second item is no part of it.
    ensure!(done["response"]["usage"]["input_tokens"] == 1 + 5 + 1, "{done}");
    let answer = done["response"]["output"][0]["id"].clone();
    let before_second = second["previous_item_id"].clone();
    ensure!(before_second == first["item"]["id"] || before_second == answer, "{second}");
    session.send(json!({"type": "response.create"})).await?;
    let done = until(&mut session, "response.done").await?;
    let emissions = 6 + 1 + 5;
    ensure!(done["response"]["usage"]["input_tokens"] == 1 + 5 + 1 + emissions + 1 + 3 + 1, "{done}");
    server.assert_balanced().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_response_that_fails_ends_and_the_conversation_goes_on() -> Result<()> {
    let mut steps = 0;
    let script = Box::new(move |plan: &izwi_core::engine::executor::StepPlan| {
        steps += usize::from(plan.schedule.batch_size() > 0);
        plan.schedule.items().next().filter(|_| steps == 1).map(|item| Fault::Sequence(item.sequence))
    });
    let server = Setup::converser("realtime-failure").script(script).start().await?;
    let mut session = manual(&server).await?;
    write(&mut session, "Hello.").await?;
    session.send(json!({"type": "response.create"})).await?;
    let response = until(&mut session, "response.done").await?["response"].clone();
    ensure!(response["status"] == "failed", "{response}");
    let error = &response["status_details"]["error"];
    ensure!(error["type"] == "server_error" && error["code"] == "internal_error", "{response}");
    session.send(json!({"type": "response.create"})).await?;
    let response = until(&mut session, "response.done").await?["response"].clone();
    ensure!(response["status"] == "completed", "{response}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_input_buffer_and_the_text_are_bounded() -> Result<()> {
    let setup = Setup::converser("realtime-limits").server(|server| server.max_session_chars = 10);
    let setup = setup.engine(|engine| engine.max_turn_duration = std::time::Duration::from_secs(1));
    let server = setup.start().await?;
    let mut session = manual(&server).await?;
    append(&mut session, 800).await?;
    append(&mut session, 200).await?;
    refused(&mut session, "too_large").await?;
    session.send(json!({"type": "input_audio_buffer.commit"})).await?;
    until(&mut session, "input_audio_buffer.committed").await?;
    write(&mut session, "123456").await?;
    until(&mut session, "conversation.item.done").await?;
    until(&mut session, "conversation.item.done").await?;
    write(&mut session, "78901").await?;
    refused(&mut session, "too_large").await?;
    for _ in 0..15 {
        for _ in 0..20 {
            append(&mut session, 100).await?;
            session.send(json!({"type": "input_audio_buffer.commit"})).await?;
        }
        for _ in 0..20 {
            let done = until(&mut session, "conversation.item.done").await?;
            ensure!(done["previous_item_id"].is_string(), "{done}");
        }
    }
    session.send(json!({"type": "response.create"})).await?;
    let done = until(&mut session, "response.done").await?;
    ensure!(done["response"]["status"] == "completed", "{done}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn transcripts_of_the_client_count_as_its_text() -> Result<()> {
    let setup = Setup::converser("realtime-transcripts");
    let server =
        setup.server(|server| (server.max_session_chars, server.max_input_chars) = (30, 20)).start().await?;
    let mut session = manual(&server).await?;
    let item = |transcript: &str| {
        let content = json!([{"type": "input_audio", "audio": tone(100), "transcript": transcript}]);
        json!({"type": "conversation.item.create", "item": {"type": "message", "role": "user", "content": content}})
    };
    session.send(item(&"x".repeat(21))).await?;
    ensure!(refused(&mut session, "invalid_value").await?["param"] == "item.content.transcript");
    session.send(item(&"x".repeat(20))).await?;
    until(&mut session, "conversation.item.done").await?;
    session.send(item(&"x".repeat(11))).await?;
    refused(&mut session, "too_large").await?;
    session.send(item("")).await?;
    until(&mut session, "conversation.item.done").await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn what_sessions_hold_counts_in_the_memory_of_recordings() -> Result<()> {
    // In all 540 KiB, and 64 KiB of each session besides.
    let setup = Setup::converser("realtime-memory").server(|server| server.max_frame_bytes = 64 << 10);
    let setup = setup.engine(|engine| {
        engine.max_turn_duration = std::time::Duration::from_secs(60);
        engine.memory = MemoryBudget::new(Some(540 << 10));
    });
    let server = setup.start().await?;
    let mut first = manual(&server).await?;
    let mut held_ms = 0;
    let refusal = loop {
        append(&mut first, 500).await?;
        first.send(json!({"type": "nothing", "event_id": "after"})).await?;
        let error = first.expect("error").await?["error"].clone();
        if error["event_id"] != "after" {
            first.expect("error").await?;
            break error;
        }
        held_ms += 500;
    };
    ensure!(refusal["code"] == "overloaded", "{refusal}");
    ensure!((8_000..20_000).contains(&held_ms), "{held_ms} ms are held");
    // Another session keeps up: what it holds at a time is free. A recording of an upload finds no room.
    let mut second = manual(&server).await?;
    append(&mut second, 1_000).await?;
    second.send(json!({"type": "input_audio_buffer.clear"})).await?;
    until(&mut second, "input_audio_buffer.cleared").await?;
    // Nothing of the refused audio was taken, and what was is there.
    first.send(json!({"type": "input_audio_buffer.clear"})).await?;
    until(&mut first, "input_audio_buffer.cleared").await?;
    for _ in 0..14 {
        append(&mut second, 500).await?;
    }
    second.send(json!({"type": "input_audio_buffer.commit"})).await?;
    until(&mut second, "input_audio_buffer.committed").await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn members_without_an_effect_are_refused_or_shown() -> Result<()> {
    let server = Setup::converser("realtime-members").start().await?;
    let mut session = manual(&server).await?;
    for (members, param) in [
        (json!({"tool_choice": "required"}), "session.tool_choice"),
        (json!({"prompt": {"id": "a"}}), "session.prompt"),
        (json!({"truncation": "disabled"}), "session.truncation"),
        (json!({"include": ["item.input_audio_transcription.logprobs"]}), "session.include"),
        (
            json!({"audio": {"input": {"turn_detection": {"type": "server_vad", "idle_timeout_ms": 5_000}}}}),
            "session.audio.input.turn_detection.idle_timeout_ms",
        ),
    ] {
        session.send(json!({"type": "session.update", "session": members})).await?;
        ensure!(refused(&mut session, "invalid_value").await?["param"] == param, "{param}");
    }
    let members = json!({"tracing": "auto", "truncation": "auto", "tool_choice": "auto", "tools": []});
    session.send(json!({"type": "session.update", "session": members})).await?;
    let updated = until(&mut session, "session.updated").await?["session"].clone();
    ensure!(
        updated["tracing"].is_null() && updated["audio"]["input"]["turn_detection"].is_null(),
        "{updated}"
    );
    write(&mut session, "Hello.").await?;
    for (members, param) in [
        (json!({"conversation": "another"}), "response.conversation"),
        (json!({"input": []}), "response.input"),
        (json!({"tools": [{"type": "function", "name": "a"}]}), "response.tools"),
    ] {
        session.send(json!({"type": "response.create", "response": members})).await?;
        ensure!(refused(&mut session, "invalid_value").await?["param"] == param, "{param}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_response_has_instructions_of_its_own() -> Result<()> {
    let server = Setup::converser("realtime-instructions")
        .server(|server| server.max_input_chars = 20)
        .start()
        .await?;
    let mut session = manual(&server).await?;
    write(&mut session, "Hello.").await?;
    let instructions = json!({"instructions": "much longer than they may be"});
    session.send(json!({"type": "response.create", "response": instructions})).await?;
    ensure!(refused(&mut session, "invalid_value").await?["param"] == "response.instructions");
    session.send(json!({"type": "response.create", "response": {"instructions": "Be kind."}})).await?;
    ensure!(until(&mut session, "response.done").await?["response"]["status"] == "completed");
    Ok(())
}

/// Appends speech, in the default format.
async fn speak(session: &mut Session) -> Result<()> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../assets/speech/jfk.wav");
    let limits = DecodeLimits { max_bytes: 1 << 20, max_duration: Duration::from_secs(30) };
    let speech = decode(std::fs::read(path)?, 24_000, &limits)?;
    for piece in speech[..3 * 24_000].chunks(2_400) {
        let mut bytes = Vec::new();
        pcm::write_i16_le(piece, &mut bytes);
        session.send(json!({"type": "input_audio_buffer.append", "audio": base64(&bytes)})).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transcription_that_fails_is_told() -> Result<()> {
    let fails = Arc::new(AtomicBool::new(true));
    let script = {
        let fails = Arc::clone(&fails);
        Box::new(move |plan: &izwi_core::engine::executor::StepPlan| {
            let item = plan.schedule.items().next().filter(|_| fails.load(Ordering::Relaxed));
            item.map(|item| Fault::Sequence(item.sequence))
        })
    };
    let server = Setup::listener("realtime-listener").script(script).start().await?;
    let mut session = connect(&server, "?intent=transcription").await?;
    session.expect("session.created").await?;
    let audio = json!({"input": {"turn_detection": null}});
    session.send(json!({"type": "session.update", "session": {"audio": audio}})).await?;
    session.expect("session.updated").await?;
    speak(&mut session).await?;
    session.send(json!({"type": "input_audio_buffer.commit"})).await?;
    let failed = until(&mut session, "conversation.item.input_audio_transcription.failed").await?;
    ensure!(failed["error"]["code"] == "internal_error" && failed["item_id"].is_string(), "{failed}");
    fails.store(false, Ordering::Relaxed);
    speak(&mut session).await?;
    session.send(json!({"type": "input_audio_buffer.commit"})).await?;
    let completed = until(&mut session, "conversation.item.input_audio_transcription.completed").await?;
    let text = completed["transcript"].as_str().unwrap_or_default();
    ensure!(text.starts_with("word0 word1") && completed["usage"]["seconds"] == 3, "{completed}");
    // Without speech there is no text.
    let silence = base64(&vec![0; 48_000]);
    let append = json!({"type": "input_audio_buffer.append", "audio": silence});
    for event in [&append, &json!({"type": "input_audio_buffer.clear"}), &append] {
        session.send(event.clone()).await?;
    }
    session.send(json!({"type": "input_audio_buffer.commit"})).await?;
    let completed = until(&mut session, "conversation.item.input_audio_transcription.completed").await?;
    ensure!(completed["transcript"] == "", "{completed}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn settings_that_a_model_lacks_are_refused_by_name_and_do_not_count() -> Result<()> {
    let server = Setup::listener("realtime-settings").start().await?;
    let mut session = connect(&server, "?intent=transcription").await?;
    session.expect("session.created").await?;
    for (field, value) in [("language", json!("klingon")), ("keywords", json!(["a".repeat(200)]))] {
        let audio = json!({"input": {"transcription": {field: value}}});
        session.send(json!({"type": "session.update", "session": {"audio": audio}})).await?;
        let error = refused(&mut session, "invalid_value").await?;
        ensure!(error["param"] == format!("session.audio.input.transcription.{field}"), "{error}");
    }
    speak(&mut session).await?;
    until(&mut session, "input_audio_buffer.speech_started").await?;
    let delta = until(&mut session, "conversation.item.input_audio_transcription.delta").await?;
    ensure!(delta["delta"].as_str().is_some_and(|text| text.starts_with("word0")), "{delta}");
    Ok(())
}

/// A session of a page that has this key.
async fn with_key(server: &TestServer, query: &str, key: &str) -> Result<Session> {
    let mut request = format!("ws://{}/v1/realtime{query}", server.address).into_client_request()?;
    let protocols = format!("realtime, openai-insecure-api-key.{key}");
    request.headers_mut().insert("sec-websocket-protocol", protocols.parse()?);
    Session::open_with(request).await
}

/// A client secret that no server has issued.
fn unknown_secret() -> String {
    format!("ek_{}", "0".repeat(64))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_secret_opens_sessions_with_its_settings_until_it_expires() -> Result<()> {
    let key = "open-sesame-1234";
    let keyed = Setup::converser("realtime-secrets").server(|server| server.api_key = Some(key.to_owned()));
    let server = keyed.start().await?;
    let create = async |key: &str, body: Value| -> Result<(u16, Value)> {
        let request = reqwest::Client::new().post(server.url("/v1/realtime/client_secrets"));
        let response = guarded(request.bearer_auth(key).json(&body).send()).await??;
        Ok((response.status().as_u16(), response.json().await?))
    };
    let session = json!({"type": "realtime", "model": "realtime-secrets", "instructions": "Be kind."});
    let expires_after = json!({"anchor": "created_at", "seconds": 7_200});
    let (status, secret) = create(key, json!({"expires_after": expires_after, "session": session})).await?;
    ensure!(status == 200 && secret["session"]["instructions"] == "Be kind.", "{secret}");
    ensure!(secret["expires_at"].as_u64().is_some_and(|at| at > 1_700_000_000), "{secret}");
    let value = secret["value"].as_str().context("a key")?;
    for _ in 0..2 {
        let mut session = with_key(&server, "", value).await?;
        session.expect("session.created").await?;
        let updated = session.expect("session.updated").await?;
        ensure!(updated["session"]["instructions"] == "Be kind.", "{updated}");
        ensure!(updated["session"]["model"] == "realtime-secrets", "{updated}");
    }

    // It opens nothing else and creates no other, and an unknown one opens nothing.
    ensure!(create(value, json!({})).await?.0 == 401);
    let models = reqwest::Client::new().get(server.url("/v1/models")).bearer_auth(value);
    let refused = guarded(models.send()).await??;
    ensure!(refused.status() == 401 && refused.text().await?.contains("client secret"));
    ensure!(with_key(&server, "", &unknown_secret()).await.is_err());

    for (body, param) in [
        (json!({"expires_after": {"anchor": "now"}}), "expires_after.anchor"),
        (json!({"expires_after": {"seconds": 9}}), "expires_after.seconds"),
        (json!({"session": {"model": "nobody"}}), "model"),
        (json!({"session": {"type": "translation"}}), "session.type"),
        (json!({"session": {"output_modalities": ["smell"]}}), "session.output_modalities"),
        (json!({"session": 7}), "session"),
        (json!({"session": {"instructions": "a".repeat(64 << 10)}}), "session"),
    ] {
        let (status, error) = create(key, body.clone()).await?;
        ensure!((400..=404).contains(&status) && error["error"]["param"] == param, "{body}: {error}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_a_key_refuses_expired_client_secrets_and_no_other_key() -> Result<()> {
    let server = Setup::converser("realtime-secrets-open").start().await?;
    let body = json!({"session": {"type": "transcription"}});
    let secret: Value = server.post("/v1/realtime/client_secrets", &body).await?.json().await?;
    let value = secret["value"].as_str().context("a key")?;
    let mut session = with_key(&server, "", value).await?;
    session.expect("session.created").await?;
    // The server has no model for it, which is told, and the client may go on.
    ensure!(session.frame().await?["type"] == "error");
    ensure!(with_key(&server, "", &unknown_secret()).await.is_err());
    with_key(&server, "", "ek_anything").await?.expect("session.created").await?;
    Ok(())
}

/// A session of a client that asks for the beta of the API.
async fn beta(server: &TestServer, query: &str) -> Result<Session> {
    let mut request = format!("ws://{}/v1/realtime{query}", server.address).into_client_request()?;
    request.headers_mut().insert("openai-beta", "realtime=v1".parse()?);
    Session::open_with(request).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_of_the_beta_gets_what_it_asked_for_under_the_names_of_the_beta() -> Result<()> {
    let server = Setup::converser("realtime-beta").start().await?;
    let mut session = beta(&server, "").await?;
    let created = session.expect("session.created").await?;
    ensure!(created["session"]["input_audio_format"] == "pcm16", "{created}");
    let flat = json!({
        "modalities": ["audio", "text"],
        "instructions": "Be kind.",
        "voice": "alloy",
        "input_audio_format": "g711_ulaw",
        "output_audio_format": "g711_alaw",
        "turn_detection": null,
        "temperature": 0.8,
    });
    session.send(json!({"type": "session.update", "session": flat})).await?;
    let updated = session.expect("session.updated").await?;
    let shown = &updated["session"];
    ensure!(
        shown["input_audio_format"] == "g711_ulaw" && shown["output_audio_format"] == "g711_alaw",
        "{shown}"
    );
    ensure!(shown["turn_detection"].is_null() && shown["modalities"] == json!(["text", "audio"]), "{shown}");
    // A second of G.711 is 8,000 bytes: as PCM it would be a sixth of that.
    let audio = base64(&[0xff; 8_000]);
    session.send(json!({"type": "input_audio_buffer.append", "audio": audio})).await?;
    session.send(json!({"type": "input_audio_buffer.commit"})).await?;
    until(&mut session, "conversation.item.created").await?;
    session.send(json!({"type": "response.create", "response": {"modalities": ["text", "audio"]}})).await?;
    let mut kinds = Vec::new();
    let done = loop {
        let event = session.frame().await?;
        ensure!(event["type"] != "error", "{event}");
        kinds.push(event["type"].as_str().unwrap_or_default().to_owned());
        if event["type"] == "response.done" {
            break event;
        }
    };
    let response = &done["response"];
    ensure!(
        response["status"] == "completed" && response["output_audio_format"] == "g711_alaw",
        "{response}"
    );
    ensure!(response["output"][0]["content"][0]["type"] == "audio", "{response}");
    for kind in ["response.audio.delta", "response.audio.done", "response.audio_transcript.delta"] {
        ensure!(kinds.iter().any(|found| found == kind), "no {kind}: {kinds:?}");
    }
    ensure!(
        !kinds.iter().any(|kind| kind.contains("output_audio") || kind == "conversation.item.done"),
        "{kinds:?}"
    );

    let unknown = json!({"type": "session.update", "session": {"input_audio_format": "opus"}});
    session.send(unknown).await?;
    ensure!(refused(&mut session, "invalid_value").await?["param"] == "session.input_audio_format");
    server.assert_balanced().await
}

#[tokio::test(flavor = "multi_thread")]
async fn flat_settings_are_never_dropped_whoever_sends_them() -> Result<()> {
    let server = Setup::converser("realtime-flat").start().await?;
    // Without a type the client speaks the beta, although it did not say so.
    let mut session = connect(&server, "").await?;
    let created = session.expect("session.created").await?;
    ensure!(created["session"]["audio"].is_object(), "{created}");
    session.send(json!({"type": "session.update", "session": {"input_audio_format": "g711_ulaw"}})).await?;
    let updated = session.expect("session.updated").await?;
    ensure!(updated["session"]["input_audio_format"] == "g711_ulaw", "{updated}");
    // With one it speaks the final API, and finds its setting there.
    let mut session = connect(&server, "").await?;
    session.expect("session.created").await?;
    let mixed = json!({"type": "realtime", "input_audio_format": "g711_alaw"});
    session.send(json!({"type": "session.update", "session": mixed})).await?;
    let updated = session.expect("session.updated").await?;
    ensure!(updated["session"]["audio"]["input"]["format"]["type"] == "audio/pcma", "{updated}");

    let listener = Setup::listener("realtime-beta-ears").start().await?;
    let mut session = beta(&listener, "?intent=transcription").await?;
    session.expect("transcription_session.created").await?;
    let flat =
        json!({"input_audio_format": "g711_ulaw", "input_audio_transcription": {"model": "whisper-1"}});
    session.send(json!({"type": "transcription_session.update", "session": flat})).await?;
    let updated = session.expect("transcription_session.updated").await?;
    ensure!(updated["session"]["input_audio_format"] == "g711_ulaw", "{updated}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_assistant_said_in_another_session_is_history() -> Result<()> {
    let server = Setup::converser("realtime-history").start().await?;
    let answered = |history: bool| {
        let server = &server;
        async move {
            let mut session = manual(server).await?;
            if history {
                let content = json!([{"type": "output_text", "text": "Welcome back."}]);
                let item = json!({"type": "message", "role": "assistant", "id": "said", "content": content});
                session.send(json!({"type": "conversation.item.create", "item": item})).await?;
                let done = until(&mut session, "conversation.item.done").await?;
                ensure!(done["item"]["role"] == "assistant" && done["item"]["content"] == content, "{done}");
            }
            write(&mut session, "Hello.").await?;
            until(&mut session, "conversation.item.done").await?;
            session.send(json!({"type": "response.create"})).await?;
            anyhow::Ok(until(&mut session, "response.done").await?["response"].clone())
        }
    };
    let (with, without) = (answered(true).await?, answered(false).await?);
    ensure!(with["status"] == "completed" && without["status"] == "completed", "{with} {without}");
    let tokens = |response: &Value| response["usage"]["input_tokens"].as_u64().unwrap_or_default();
    ensure!(tokens(&with) >= tokens(&without) + 13, "the model does not see it: {with}");
    server.assert_balanced().await
}
