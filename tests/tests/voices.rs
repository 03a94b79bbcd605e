//! Cloned voices: in a request, and saved under a name.

use anyhow::{Context, Result, ensure};
use izwi_hub::VoiceLimits;
use izwi_tests::{Form, Gate, Setup, TestServer, base64, recording};
use serde_json::{Value, json};

const TEXT: &str = "This sentence has just enough words to fill more than a chunk.";

/// The PCM of a speech request with `extra`.
async fn spoken(server: &TestServer, extra: Value) -> Result<Vec<u8>> {
    let mut body = json!({"model": "tts-1", "input": TEXT, "seed": 5, "response_format": "pcm"});
    body.as_object_mut().context("an object")?.extend(extra.as_object().context("an object")?.clone());
    let response = server.speech(&body).await?;
    let status = response.status();
    let bytes = response.bytes().await?;
    ensure!(status == 200, "{extra}: {status} {}", String::from_utf8_lossy(&bytes));
    Ok(bytes.to_vec())
}

/// The message of a refusal; checks status, code and field.
async fn refused(response: reqwest::Response, status: u16, code: &str, param: &str) -> Result<String> {
    let found = response.status();
    let body: Value = response.json().await?;
    let error = &body["error"];
    ensure!(found == status && error["code"] == code && error["param"] == param, "{found} {body}");
    error["message"].as_str().map(str::to_owned).context("a message")
}

fn form(name: &str) -> Form {
    Form::new().text("name", name).text("ref_text", "ah").file("audio_sample", &recording(1.0))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_saved_voice_is_listed_used_and_removed() -> Result<()> {
    let server = Setup::cloner("saver")?.start().await?;
    let made = server.post_form("/v1/audio/voices", form("anna").text("consent", "yes")).await?;
    assert_eq!(made.status(), 200);
    assert_eq!(made.headers()["x-ignored-fields"], "consent");
    let made: Value = made.json().await?;
    assert_eq!(
        (&made["id"], &made["owned_by"], &made["text"]),
        (&json!("anna"), &json!("user"), &json!("ah"))
    );
    assert_eq!((&made["model"], &made["models"]), (&json!("saver"), &json!(["saver"])));
    assert_eq!((&made["object"], &made["type"]), (&json!("audio.voice"), &json!("audio_sample")));
    assert_eq!(made["created_at"], 1_767_225_600);
    assert!(server.voices()?.join("anna.safetensors").is_file());

    let listed: Value = server.get("/v1/audio/voices").await?.json().await?;
    let ids: Vec<_> = listed["voices"].as_array().context("a list")?.iter().map(|v| &v["id"]).collect();
    assert_eq!(ids, ["one", "two", "anna"]);
    assert_eq!(listed["voices"][0]["owned_by"], "izwi");
    let shown: Value = server.get("/v1/audio/voices/anna").await?.json().await?;
    assert_eq!(shown, made);
    let model: Value = server.get("/v1/models/saver").await?.json().await?;
    assert_eq!(model["clones_voices"], true);

    let own = spoken(&server, json!({})).await?;
    let saved = spoken(&server, json!({"voice": "anna"})).await?;
    let in_request = json!({"ref_audio": base64(&recording(1.0)), "ref_text": "ah"});
    assert!(saved != own);
    assert!(saved == spoken(&server, in_request).await?, "the same voice either way");
    assert!(saved == spoken(&server, json!({"voice": {"id": "anna"}})).await?);

    let removed: Value = server.delete("/v1/audio/voices/anna").await?.json().await?;
    assert_eq!(removed, json!({"id": "anna", "object": "audio.voice.deleted", "deleted": true}));
    refused(server.get("/v1/audio/voices/anna").await?, 404, "voice_not_found", "voice").await?;
    refused(server.delete("/v1/audio/voices/anna").await?, 404, "voice_not_found", "voice").await?;
    assert_eq!(std::fs::read_dir(server.voices()?)?.filter(|e| e.as_ref().is_ok_and(is_voice)).count(), 0);
    server.assert_balanced().await
}

fn is_voice(entry: &std::fs::DirEntry) -> bool {
    !entry.file_name().to_string_lossy().starts_with('.')
}

#[tokio::test(flavor = "multi_thread")]
async fn voices_are_created_by_json_and_names_are_unique() -> Result<()> {
    let server = Setup::cloner("json-saver")?.start().await?;
    let body = |extra: Value| {
        let url = format!("data:audio/wav;base64,{}", base64(&recording(1.0)));
        let mut body = json!({"name": "bella", "ref_audio": url, "text": "ah"});
        if let (Some(body), Some(extra)) = (body.as_object_mut(), extra.as_object()) {
            body.extend(extra.clone());
        }
        body
    };
    let post = async |extra: Value| server.post("/v1/audio/voices", &body(extra)).await;
    assert_eq!(post(json!({})).await?.status(), 200);
    let with_text = spoken(&server, json!({"voice": "bella"})).await?;
    let message = refused(post(json!({})).await?, 409, "voice_exists", "name").await?;
    assert!(message.contains("'bella'") && message.contains("overwrite"), "{message}");
    assert_eq!(post(json!({"overwrite": true, "x_vector_only_mode": true})).await?.status(), 200);
    assert!(with_text != spoken(&server, json!({"voice": "bella"})).await?, "the timbre alone");
    refused(post(json!({"name": "one"})).await?, 409, "voice_exists", "name").await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_store_refuses_further_voices() -> Result<()> {
    let limits = VoiceLimits { count: 1, ..VoiceLimits::default() };
    let setup = Setup::cloner("full")?
        .server(|server| server.voices = server.voices.take().map(|voices| voices.with_limits(limits)));
    let server = setup.start().await?;
    let save =
        async |name: &str| server.post_form("/v1/audio/voices", form(name).text("overwrite", "true")).await;
    assert_eq!(save("anna").await?.status(), 200);
    let refused = save("bella").await?;
    assert_eq!(refused.status(), 409);
    let body: Value = refused.json().await?;
    assert_eq!(body["error"]["code"], "voice_limit");
    let message = body["error"]["message"].as_str().context("a message")?;
    assert!(message.contains("at most 1 are allowed") && message.contains("raise max_voices"), "{message}");
    assert_eq!(save("anna").await?.status(), 200, "a replaced voice needs no room");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn many_saves_at_once_keep_to_the_limits_and_leave_nothing_half() -> Result<()> {
    const SAVES: usize = 40;
    let limits = VoiceLimits { count: 3, ..VoiceLimits::default() };
    let setup = Setup::cloner("stormed")?
        .server(|server| server.voices = server.voices.take().map(|voices| voices.with_limits(limits)));
    let server = setup.start().await?;
    let saves = (0..SAVES).map(|index| {
        // Some names twice, some that are none.
        let name = match index % 5 {
            0 => format!("../{index}"),
            1 | 2 => format!("voice-{}", index / 5),
            _ => format!("voice-{index}"),
        };
        let server = &server;
        async move {
            let answer = server.post_form("/v1/audio/voices", form(&name)).await?;
            let status = answer.status().as_u16();
            let body: Value = answer.json().await?;
            anyhow::Ok((status, body["error"]["code"].as_str().unwrap_or_default().to_owned()))
        }
    });
    let mut saved = 0;
    for answer in futures::future::join_all(saves).await {
        match answer? {
            (200, _) => saved += 1,
            (400 | 409 | 429, code) if code != "internal_error" => {}
            other => anyhow::bail!("{other:?}"),
        }
    }
    let files: Vec<_> =
        std::fs::read_dir(server.voices()?)?.map(|entry| entry.map(|entry| entry.path())).collect();
    let files = files.into_iter().collect::<std::io::Result<Vec<_>>>()?;
    let voices =
        files.iter().filter(|path| path.extension().is_some_and(|extension| extension == "safetensors"));
    assert_eq!((saved, voices.count()), (3, 3), "{files:?}");
    assert!(!files.iter().any(|path| path.to_string_lossy().ends_with(".part")), "{files:?}");
    let listed: Value = server.get("/v1/audio/voices").await?.json().await?;
    assert_eq!(listed["voices"].as_array().context("a list")?.len(), 2 + 3, "each can be read");
    server.assert_balanced().await
}

#[tokio::test(flavor = "multi_thread")]
async fn unusable_voice_uploads_are_refused_by_field() -> Result<()> {
    let server = Setup::cloner("picky")?
        .engine(|engine| engine.max_reference_duration = std::time::Duration::from_secs(2));
    let server = server.start().await?;
    let post = async |form: Form| server.post_form("/v1/audio/voices", form).await;
    let clip = recording(1.0);
    let text = |name: &str| Form::new().text("name", name);
    let cases = [
        (text("x"), "invalid_value", "audio_sample"),
        (Form::new().file("file", &clip), "invalid_value", "name"),
        (text("x").file("file", b""), "invalid_value", "file"),
        (text("x").file("file", &clip).file("audio_sample", &clip), "invalid_value", "audio_sample"),
        (text("x").file("file", &recording(3.0)), "invalid_value", "file"),
        (text("x").text("ref_text", "a").text("text", "b").file("file", &clip), "invalid_value", "text"),
        (text("x").text("ref_text", &"a".repeat(2_001)).file("file", &clip), "invalid_value", "ref_text"),
        (text("x").text("overwrite", "perhaps").file("file", &clip), "invalid_value", "overwrite"),
    ];
    for (form, code, param) in cases {
        refused(post(form).await?, 400, code, param).await.with_context(|| param.to_owned())?;
    }
    refused(post(text("x").file("file", b"nonsense")).await?, 415, "unsupported_audio", "file").await?;
    refused(post(form("x").text("model", "none")).await?, 404, "model_not_found", "model").await?;
    for name in ["../x", "a/b", "a\\b", ".x", "X", "a b", "/etc/passwd", "x\u{0}", &"x".repeat(65)] {
        refused(post(form(name)).await?, 400, "invalid_value", "name")
            .await
            .with_context(|| name.to_owned())?;
    }
    for path in ["..%2Fx", "%2e%2e%2fx", "a%2Fb", "X", "%00"] {
        let path = format!("/v1/audio/voices/{path}");
        let response = server.delete(&path).await?;
        ensure!(response.status() == 400, "{path}: {}", response.status());
        ensure!(server.get(&path).await?.status() == 404, "{path}");
    }
    assert!(!server.voices()?.join("x.safetensors").exists());
    server.assert_balanced().await
}

#[tokio::test(flavor = "multi_thread")]
async fn saving_voices_without_support_is_refused() -> Result<()> {
    let server = Setup::units("keeps-none").start().await?;
    refused(server.post_form("/v1/audio/voices", form("anna")).await?, 400, "invalid_value", "voice").await?;
    refused(server.delete("/v1/audio/voices/anna").await?, 400, "invalid_value", "voice").await?;

    let mut setup = Setup::cloner("clones-none")?;
    setup.model.clones_voices = false;
    let server = setup.start().await?;
    let message =
        refused(server.post_form("/v1/audio/voices", form("anna")).await?, 400, "invalid_value", "model")
            .await?;
    assert!(message.contains("does not support voice cloning"), "{message}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn foreign_files_in_the_voice_folder_are_ignored() -> Result<()> {
    let server = Setup::cloner("foreign")?.start().await?;
    assert_eq!(server.post_form("/v1/audio/voices", form("anna")).await?.status(), 200);
    std::fs::write(server.voices()?.join("bad.safetensors"), b"\xff\xff\xff\xff\xff\xff\xff\x7f{}")?;
    let listed: Value = server.get("/v1/audio/voices").await?.json().await?;
    assert_eq!(listed["voices"].as_array().map(Vec::len), Some(3));
    let body = json!({"model": "tts-1", "input": TEXT, "voice": "bad"});
    let message = refused(server.speech(&body).await?, 400, "invalid_value", "voice").await?;
    assert!(message.contains("not a safetensors file"), "{message}");
    // A voice pack of another model.
    let pack = std::fs::read(server.voices()?.join("anna.safetensors"))?;
    let other = Setup::cloner("other-model")?.start().await?;
    std::fs::create_dir_all(other.voices()?)?;
    std::fs::write(other.voices()?.join("anna.safetensors"), pack)?;
    let body = json!({"model": "tts-1", "input": TEXT, "voice": "anna"});
    let message = refused(other.speech(&body).await?, 400, "invalid_value", "voice").await?;
    assert!(message.contains("another model"), "{message}");
    let shown: Value = other.get("/v1/audio/voices/anna").await?.json().await?;
    assert_eq!(
        shown["models"],
        json!(["foreign"]),
        "the model that made it, not the one that cannot take it"
    );
    Ok(())
}

/// The PCM of an utterance with `extra`, over the WebSocket.
async fn streamed(server: &TestServer, extra: &Value) -> Result<Vec<u8>> {
    let mut frame = json!({"type": "speak", "text": TEXT, "seed": 5});
    frame.as_object_mut().context("an object")?.extend(extra.as_object().context("an object")?.clone());
    let mut session = server.session().await?;
    session.send(frame).await?;
    session.expect("session.created").await?;
    Ok(session.utterance().await?.chunks.into_iter().flat_map(|(_, bytes)| bytes).collect())
}

#[tokio::test(flavor = "multi_thread")]
async fn every_speech_option_reaches_the_model() -> Result<()> {
    let server = Setup::cloner("manners")?.start().await?;
    let clip = base64(&recording(1.0));
    let plain = spoken(&server, json!({})).await?;
    assert!(
        plain
            == spoken(&server, json!({"instructions": "", "ref_text": "", "x_vector_only_mode": false}))
                .await?
    );
    let mut outputs = vec![plain];
    for extra in [
        json!({"seed": 6}),
        json!({"language": "de"}),
        json!({"instructions": "softly"}),
        json!({"temperature": 0.3}),
        json!({"top_p": 0.5}),
        json!({"top_k": 7}),
        json!({"repetition_penalty": 1.3}),
        json!({"non_streaming_mode": true}),
        json!({"non_streaming_mode": false}),
        json!({"ref_audio": clip}),
        json!({"ref_audio": clip, "ref_text": "ah"}),
        json!({"ref_audio": base64(&recording(1.5)), "voice": "alloy"}),
    ] {
        let audio = spoken(&server, extra.clone()).await?;
        ensure!(!outputs.contains(&audio), "{extra} changes nothing");
        ensure!(audio == streamed(&server, &extra).await?, "{extra} is lost on the WebSocket");
        outputs.push(audio);
    }
    let timbre =
        spoken(&server, json!({"ref_audio": clip, "ref_text": "ah", "x_vector_only_mode": true})).await?;
    assert!(timbre == spoken(&server, json!({"ref_audio": clip})).await?, "the text is left out");

    let short = Setup::tokens("short").start().await?;
    let audio = spoken(&short, json!({"max_tokens": 2})).await?;
    assert_eq!(audio.len(), 2 * 1_920 * 2);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn voice_recordings_are_bounded_and_errors_name_the_field() -> Result<()> {
    let server = Setup::cloner("bounded")?
        .server(|server| (server.max_upload_bytes, server.max_body_bytes) = (400_000, 10_000))
        .start()
        .await?;
    // Far above the body limit of other routes.
    assert!(!spoken(&server, json!({"ref_audio": base64(&recording(5.0))})).await?.is_empty());
    let post = async |extra: Value| {
        let mut body = json!({"model": "tts-1", "input": TEXT});
        if let (Some(body), Some(extra)) = (body.as_object_mut(), extra.as_object()) {
            body.extend(extra.clone());
        }
        server.speech(&body).await
    };
    let clip = base64(&recording(1.0));
    for (extra, status, code, param) in [
        (json!({"ref_audio": base64(&vec![0; 401_000])}), 413, "too_large", "ref_audio"),
        (json!({"ref_audio": "n*t base64"}), 400, "invalid_audio", "ref_audio"),
        (json!({"ref_audio": base64(b"nonsense")}), 415, "unsupported_audio", "ref_audio"),
        (json!({"ref_audio": 7}), 400, "invalid_value", "ref_audio"),
        (json!({"ref_audio": clip, "voice": "two"}), 400, "invalid_value", "voice"),
        (json!({"ref_text": "ah"}), 400, "invalid_value", "ref_text"),
        (json!({"x_vector_only_mode": true}), 400, "invalid_value", "x_vector_only_mode"),
        (json!({"ref_audio": clip, "ref_text": "a".repeat(2_001)}), 400, "invalid_value", "ref_text"),
        (json!({"voice": "nobody"}), 404, "voice_not_found", "voice"),
    ] {
        refused(post(extra).await?, status, code, param).await.with_context(|| param.to_owned())?;
    }
    let response = post(json!({"ref_audio": clip, "ref_text": "a".repeat(20_000)})).await?;
    assert_eq!(response.status(), 413, "only the recording may be large");
    server.assert_balanced().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_uses_a_saved_voice() -> Result<()> {
    let server = Setup::cloner("session-voice")?.start().await?;
    assert_eq!(server.post_form("/v1/audio/voices", form("anna")).await?.status(), 200);
    let expected = spoken(&server, json!({"voice": "anna"})).await?;
    let mut session = server.session().await?;
    session.send(json!({"type": "session.config", "voice": "anna", "seed": 5})).await?;
    session.send(json!({"type": "input.text", "text": TEXT})).await?;
    session.send(json!({"type": "input.done"})).await?;
    session.expect("session.created").await?;
    let utterance = session.utterance().await?;
    assert_eq!(utterance.start["voice"], "anna");
    let audio: Vec<u8> = utterance.chunks.iter().flat_map(|(_, bytes)| bytes.clone()).collect();
    assert!(audio == expected, "as over HTTP");
    session.expect_done(1000).await?;

    let mut session = server.session().await?;
    session.send(json!({"type": "session.config", "voice": "ana"})).await?;
    let error = session.expect_error("voice_not_found").await?;
    assert!(error["message"].as_str().is_some_and(|text| text.contains("'anna'")), "{error}");
    // The session can still be configured.
    session.send(json!({"type": "speak", "text": TEXT, "voice": "one"})).await?;
    session.expect("session.created").await?;
    session.utterance().await?;
    session.expect_done(1000).await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_interrupt_ends_the_utterance_and_the_session_continues() -> Result<()> {
    let (gate, script) = Gate::new(|plan| plan.schedule.items().any(|item| item.start > 0));
    let server = Setup::units("spoken-over").script(script).start().await?;
    let mut session = server.session().await?;
    session.send(json!({"type": "input.text", "text": format!("{TEXT} {TEXT} ")})).await?;
    session.send(json!({"type": "input.flush"})).await?;
    session.send(json!({"type": "input.text", "text": "Never to be heard"})).await?;
    session.expect("session.created").await?;
    session.expect("audio.start").await?;
    let (first, bytes) = session.chunk().await?;
    assert_eq!(first["seq"], 0);
    session.send(json!({"type": "interrupt", "played_ms": 100})).await?;
    // Both frames have been read when this answer arrives.
    session.send(json!({"type": "ping"})).await?;
    let mut sent = bytes.len() / 2;
    loop {
        let frame = session.frame().await?;
        if frame["type"] == "pong" {
            break;
        }
        if frame["type"] == "interrupted" {
            continue;
        }
        ensure!(frame["type"] == "audio.chunk", "{frame}");
        sent += frame["samples"].as_u64().context("samples")? as usize;
        session.next().await?;
    }
    gate.open();
    let done = session.expect("audio.done").await?;
    assert_eq!((&done["finish_reason"], &done["samples"]), (&json!("interrupted"), &json!(sent)), "{done}");
    session.send(json!({"type": "input.text", "text": "And now this."})).await?;
    session.send(json!({"type": "input.done"})).await?;
    let next = session.utterance().await?;
    assert_eq!((&next.start["utterance"], &next.done["finish_reason"]), (&json!(1), &json!("stop")));
    assert_eq!(next.done["samples"], "And now this.".len() * 100);
    session.expect_done(1000).await?;
    server.assert_balanced().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_speaks_in_the_voice_of_its_recording() -> Result<()> {
    let server = Setup::cloner("session-voice")?.start().await?;
    let clip = base64(&recording(1.0));
    let mut session = server.session().await?;
    session.send(json!({"type": "session.config", "ref_audio": clip, "ref_text": "ah", "seed": 5})).await?;
    session.expect("session.created").await?;
    for _ in 0..2 {
        session.send(json!({"type": "input.text", "text": TEXT})).await?;
        session.send(json!({"type": "input.flush"})).await?;
        let utterance = session.utterance().await?;
        assert_eq!(utterance.start["voice"], "ref_audio");
        let audio: Vec<u8> = utterance.chunks.into_iter().flat_map(|(_, bytes)| bytes).collect();
        assert!(audio == spoken(&server, json!({"ref_audio": clip, "ref_text": "ah"})).await?);
    }

    let refuses = async |server: &TestServer, extra: Value, code: &str, param: &str| {
        let mut frame = json!({"type": "session.config"});
        frame.as_object_mut().context("an object")?.extend(extra.as_object().context("an object")?.clone());
        let mut session = server.session().await?;
        session.send(frame).await?;
        let error = session.expect_error(code).await?;
        ensure!(error["param"] == param, "{extra}: {error}");
        Ok(())
    };
    refuses(&server, json!({"ref_text": "ah"}), "invalid_value", "ref_text").await?;
    refuses(&server, json!({"x_vector_only_mode": true}), "invalid_value", "x_vector_only_mode").await?;
    refuses(&server, json!({"ref_audio": "AAAA"}), "unsupported_audio", "ref_audio").await?;
    refuses(&server, json!({"ref_audio": 7}), "invalid_value", "ref_audio").await?;
    refuses(&server, json!({"ref_audio": clip, "voice": "one"}), "invalid_value", "voice").await?;
    let plain = Setup::units("no-session-voice").start().await?;
    refuses(&plain, json!({"ref_audio": clip}), "invalid_value", "ref_audio").await?;
    let small = Setup::cloner("small-session-voice")?.server(|server| server.max_upload_bytes = 1_000);
    refuses(&small.start().await?, json!({"ref_audio": clip}), "too_large", "ref_audio").await
}

#[tokio::test(flavor = "multi_thread")]
async fn prompts_make_no_voice() -> Result<()> {
    let server = Setup::cloner("prompts")?.start().await?;
    for (extra, param) in [
        (json!({"type": "prompt", "prompt": "A calm voice."}), "type"),
        (json!({"prompt": "A calm voice."}), "prompt"),
        (json!({"script_hint": "Hello."}), "script_hint"),
    ] {
        let mut body = json!({"name": "calm"});
        body.as_object_mut().context("an object")?.extend(extra.as_object().context("an object")?.clone());
        let message =
            refused(server.post("/v1/audio/voices", &body).await?, 400, "invalid_value", param).await?;
        assert!(message.contains("audio_sample"), "{message}");
        let form =
            extra.as_object().context("an object")?.iter().fold(form("calm"), |form, (name, value)| {
                form.text(name, value.as_str().unwrap_or_default())
            });
        refused(server.post_form("/v1/audio/voices", form).await?, 400, "invalid_value", param).await?;
    }
    let typed = form("calm").text("type", "audio_sample");
    assert_eq!(server.post_form("/v1/audio/voices", typed).await?.status(), 200);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_folder_in_the_place_of_a_voice_is_named() -> Result<()> {
    let server = Setup::cloner("folder-saver")?.start().await?;
    std::fs::create_dir_all(server.voices()?.join("anna.safetensors"))?;
    let message =
        refused(server.delete("/v1/audio/voices/anna").await?, 400, "invalid_value", "voice").await?;
    assert!(message.contains("anna.safetensors") && message.contains("by hand"), "{message}");
    refused(server.get("/v1/audio/voices/anna").await?, 400, "invalid_value", "voice").await?;
    refused(server.post_form("/v1/audio/voices", form("anna")).await?, 400, "invalid_value", "name").await?;
    let listed: Value = server.get("/v1/audio/voices").await?.json().await?;
    assert_eq!(listed["voices"].as_array().context("a list")?.len(), 2, "{listed}");
    Ok(())
}
