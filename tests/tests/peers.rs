//! Clients that were written for other servers: their names of models and voices, their paths, their routes, and models that
//! are installed while the server runs.

use anyhow::{Context, Result, ensure};
use base64::Engine as _;
use izwi_hub::Store;
use izwi_tests::{Form, Incoming, Session, Setup, TestServer, base64, exchange, recording};
use reqwest::Response;
use serde_json::{Value, json};

const TEXT: &str = "The first sentence. The second one.";

/// The names of ignored fields that a response tells.
fn ignored(response: &Response) -> &str {
    response.headers().get("x-ignored-fields").map_or("", |value| value.to_str().unwrap_or("(not text)"))
}

async fn speech(server: &TestServer, extra: Value) -> Result<Response> {
    let mut body = json!({"input": TEXT, "response_format": "pcm", "seed": 5});
    if let (Some(body), Some(extra)) = (body.as_object_mut(), extra.as_object()) {
        body.extend(extra.clone());
    }
    server.speech(&body).await
}

#[tokio::test(flavor = "multi_thread")]
async fn instructions_are_ignored_by_a_model_that_takes_none() -> Result<()> {
    let server = Setup::units("peers-style").start().await?;
    let plain = speech(&server, json!({})).await?;
    ensure!(ignored(&plain).is_empty());
    let styled = speech(&server, json!({"instructions": "Whisper.", "whatever": 1})).await?;
    ensure!(ignored(&styled) == "instructions, whatever", "{}", ignored(&styled));
    ensure!(plain.bytes().await? == styled.bytes().await?);
    let mut session = server.session().await?;
    session.send(json!({"type": "session.config", "instructions": "Whisper.", "voice": "bf_emma"})).await?;
    let created = session.expect("session.created").await?;
    ensure!(created["ignored_fields"] == json!(["instructions", "voice"]), "{created}");
    let cloner = Setup::cloner("peers-styled")?.start().await?;
    ensure!(ignored(&speech(&cloner, json!({"instructions": "Whisper."})).await?).is_empty());
    server.assert_balanced().await
}

#[tokio::test(flavor = "multi_thread")]
async fn names_of_other_servers_stand_for_the_default_model_and_voice() -> Result<()> {
    let server = Setup::units("peers-names").start().await?;
    for (extra, told) in [
        (json!({}), ""),
        (json!({"model": ""}), ""),
        (json!({"model": "tts-1", "voice": "nova"}), ""),
        (json!({"model": "peers-names", "voice": "two"}), ""),
        (json!({"model": "kokoro"}), "model"),
        (json!({"model": "hexgrad/Kokoro-82M", "voice": "af_heart"}), "model, voice"),
        (json!({"voice": "af_bella(2)+af_sky(1)"}), "voice"),
    ] {
        let response = speech(&server, extra.clone()).await?;
        ensure!(response.status() == 200, "{extra}: {}", response.text().await?);
        ensure!(ignored(&response) == told, "{extra}: {}", ignored(&response));
    }
    for (extra, param) in [(json!({"model": "kokorro"}), "model"), (json!({"voice": "af_hart"}), "voice")] {
        let response = speech(&server, extra.clone()).await?;
        ensure!(response.status() == 404, "{extra}");
        let body: Value = response.json().await?;
        ensure!(body["error"]["param"] == param, "{body}");
    }
    let listener = Setup::listener("peers-ears").start().await?;
    let clip = base64(&recording(1.0));
    for (model, told) in [
        (json!(null), ""),
        (json!("whisper-1"), ""),
        (json!("whisper"), ""),
        (json!("large-v3"), "model"),
        (json!("openai/whisper-base"), "model"),
        (json!("Systran/faster-whisper-small"), "model"),
    ] {
        let body = json!({"model": model, "audio": clip, "language": "auto"});
        let response = listener.post("/v1/audio/transcriptions", &body).await?;
        ensure!(response.status() == 200, "{model}: {}", response.text().await?);
        ensure!(ignored(&response) == told, "{model}: {}", ignored(&response));
    }
    server.assert_balanced().await
}

#[tokio::test(flavor = "multi_thread")]
async fn paths_are_read_as_they_are_meant() -> Result<()> {
    let server = Setup::units("peers-paths").start().await?;
    for path in ["/v1/models/", "//v1/models", "/v1/v1/models", "/v1//models//", "//livez/"] {
        ensure!(server.get(path).await?.status() == 200, "{path}");
    }
    for path in ["//v1/audio/speech", "/v1/v1/audio/speech/", "/v1/audio/speech/"] {
        let response = server.post(path, &json!({"input": TEXT})).await?;
        ensure!(response.status() == 200, "{path}: {}", response.text().await?);
    }
    let mut session = Session::open(&format!("ws://{}/v1/v1/audio/speech/stream/", server.address)).await?;
    session.send(json!({"type": "speak", "text": TEXT})).await?;
    session.expect("session.created").await?;
    let response = server.get("/v1/v1/nothing/").await?;
    ensure!(response.status() == 404);
    let locked = Setup::units("peers-locked")
        .server(|server| server.api_key = Some("0123456789abcdef".to_owned()))
        .start()
        .await?;
    for path in ["/v1/models/", "//v1/models", "/v1/v1/models", "/v1/audio/models"] {
        ensure!(locked.get(path).await?.status() == 401, "{path}");
    }
    ensure!(locked.post("//inference/", &json!({})).await?.status() == 401);
    ensure!(locked.post("/dev//captioned_speech", &json!({})).await?.status() == 401);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn models_that_speak_are_listed_for_the_choice_of_a_voice() -> Result<()> {
    let server = Setup::units("peers-list").start().await?;
    let list: Value = server.get("/v1/audio/models").await?.json().await?;
    ensure!(list["models"][0]["id"] == "peers-list" && list["object"] == "list", "{list}");
    let listener = Setup::listener("peers-deaf").start().await?;
    let list: Value = listener.get("/v1/audio/models").await?.json().await?;
    let ids = list["models"].as_array().context("a list")?.iter().map(|model| &model["id"]);
    ensure!(!ids.clone().any(|id| id == "peers-deaf"), "{list}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn captioned_speech_has_its_audio_and_its_words() -> Result<()> {
    let mut setup = Setup::units("peers-captions");
    setup.model.times_words = true;
    let server = setup.start().await?;
    let whole = speech(&server, json!({})).await?.bytes().await?;
    let body = |extra: Value| {
        let mut body =
            json!({"model": "kokoro", "input": TEXT, "voice": "af_heart", "response_format": "pcm"});
        if let (Some(body), Some(extra)) = (body.as_object_mut(), extra.as_object()) {
            body.extend(extra.clone());
        }
        body
    };
    let response = server
        .post("/dev/captioned_speech", &body(json!({"stream": false, "volume_multiplier": 1.0})))
        .await?;
    ensure!(ignored(&response) == "model, voice, volume_multiplier", "{}", ignored(&response));
    let once: Value = response.json().await?;
    let audio = |part: &Value| -> Result<Vec<u8>> {
        Ok(base64::engine::general_purpose::STANDARD.decode(part["audio"].as_str().context("audio")?)?)
    };
    ensure!(
        audio(&once)?.len() == whole.len() && once["audio_format"] == "audio/pcm",
        "{}",
        once["audio_format"]
    );
    let words: Vec<&str> = once["timestamps"]
        .as_array()
        .context("timestamps")?
        .iter()
        .filter_map(|word| word["word"].as_str())
        .collect();
    ensure!(words == ["The", "first", "sentence.", "The", "second", "one."], "{words:?}");
    let times = once["timestamps"].as_array().context("timestamps")?;
    for pair in times.windows(2) {
        ensure!(pair[0]["start_time"].as_f64() < pair[1]["start_time"].as_f64(), "{pair:?}");
    }
    let lines = server.post("/dev/captioned_speech", &body(json!({}))).await?.text().await?;
    let parts: Vec<Value> = lines.lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
    let long = json!({"input": format!("{TEXT} ").repeat(50)});
    let long = server.post("/dev/captioned_speech", &body(long)).await?.text().await?;
    ensure!(long.lines().count() > 1, "one part");
    let joined: Vec<u8> = parts.iter().map(audio).collect::<Result<Vec<_>>>()?.concat();
    ensure!(joined.len() == whole.len(), "{} of {} bytes", joined.len(), whole.len());
    let streamed: Vec<&Value> =
        parts.iter().flat_map(|part| part["timestamps"].as_array().into_iter().flatten()).collect();
    ensure!(streamed == times.iter().collect::<Vec<_>>());
    let silent = server
        .post("/dev/captioned_speech", &body(json!({"return_timestamps": false, "stream": false})))
        .await?;
    ensure!(silent.json::<Value>().await?["timestamps"] == json!([]));
    for (extra, param) in [
        (json!({"input": null}), "input"),
        (json!({"response_format": "aac"}), "response_format"),
        (json!({"speed": 9}), "speed"),
        (json!({"voice": "nobody"}), "voice"),
    ] {
        let response = server.post("/dev/captioned_speech", &body(extra.clone())).await?;
        let body: Value = response.json().await?;
        ensure!(body["error"]["param"] == param, "{extra}: {body}");
    }
    server.assert_balanced().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_blend_of_voices_is_its_name() -> Result<()> {
    let server = Setup::units("peers-blend").start().await?;
    for (blend, name) in [
        (json!("one(2)+two(1)"), "one(2)+two(1)"),
        (json!(["one", " two "]), "one+two"),
        (json!("one + two"), "one+two"),
    ] {
        let response = server.post("/v1/audio/voices/combine", &blend).await?;
        ensure!(response.status() == 200, "{blend}: {}", response.text().await?);
        let made: Value = response.json().await?;
        ensure!(made == json!({"voice": name, "voices": ["one", "two"]}), "{made}");
        ensure!(speech(&server, json!({"voice": made["voice"]})).await?.status() == 200);
    }
    for (blend, status) in [
        (json!("one+nobody"), 404),
        (json!("af_heart+af_sky"), 404),
        (json!([]), 400),
        (json!(7), 400),
        (json!({"voices": "one"}), 400),
    ] {
        let response = server.post("/v1/audio/voices/combine", &blend).await?;
        ensure!(response.status() == status, "{blend}: {}", response.text().await?);
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_form_with_a_file_is_transcribed() -> Result<()> {
    let server = Setup::listener("peers-form").start().await?;
    let form = |format: &str| {
        let form = Form::new().file("file", &recording(2.0)).text("temperature", "0.0");
        form.text("temperature_inc", "0.2").text("response_format", format)
    };
    let response = server.post_form("/inference", form("json")).await?;
    ensure!(ignored(&response) == "temperature_inc", "{}", ignored(&response));
    let plain: Value = response.json().await?;
    ensure!(!plain["text"].as_str().context("a text")?.is_empty(), "{plain}");
    let verbose: Value = server.post_form("/inference", form("verbose_json")).await?.json().await?;
    ensure!(verbose["segments"].is_array() && verbose["text"] == plain["text"], "{verbose}");
    ensure!(server.post_form("/inference", form("srt")).await?.text().await?.contains("-->"));
    let refused = server.post_form("/inference", Form::new().text("response_format", "json")).await?;
    ensure!(refused.status() == 400 && refused.json::<Value>().await?["error"]["param"] == "file");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_that_is_installed_later_is_found_at_once() -> Result<()> {
    let (home, installed) = (tempfile::tempdir()?, tempfile::tempdir()?);
    let store = Store::open(Some(home.path().to_path_buf()))?;
    let store = store.with_models_dir(Some(installed.path().to_path_buf()));
    let server = Setup::units("peers-later").server(|server| server.store = Some(store)).start().await?;
    let ids = |list: Value| -> Vec<String> {
        let models = list["data"].as_array().or(list["models"].as_array());
        models.into_iter().flatten().filter_map(|model| Some(model["id"].as_str()?.to_owned())).collect()
    };
    ensure!(ids(server.get("/v1/models").await?.json().await?) == ["peers-later"]);
    let refused = speech(&server, json!({"model": "kokoro-82m"})).await?;
    ensure!(refused.status() == 404);
    let message = refused.json::<Value>().await?["error"]["message"].to_string();
    ensure!(message.contains("izwi pull kokoro-82m"), "{message}");
    let shown: Value = server.get("/v1/models/kokoro").await?.json().await?;
    ensure!(shown["id"] == "peers-later", "the default one stands for it: {shown}");

    // As `izwi pull` leaves it, in a folder of models that the store does not manage.
    for name in ["kokoro-82m", "whisper-base"] {
        std::fs::create_dir(installed.path().join(name))?;
    }
    let shown: Value = server.get("/v1/models/kokoro").await?.json().await?;
    ensure!(shown["id"] == "kokoro-82m" && shown["tasks"] == json!(["tts"]), "{shown}");
    let listed = ids(server.get("/v1/models").await?.json().await?);
    ensure!(listed == ["kokoro-82m", "peers-later", "whisper-base"], "{listed:?}");
    ensure!(ids(server.get("/v1/audio/models").await?.json().await?) == ["kokoro-82m", "peers-later"]);
    let refused = speech(&server, json!({"model": "whisper-bas"})).await?;
    let message = refused.json::<Value>().await?["error"]["message"].to_string();
    ensure!(!message.contains("'whisper-base'"), "a model that speaks is wanted: {message}");
    let refused = speech(&server, json!({"model": "whisper-base"})).await?;
    let message = refused.json::<Value>().await?["error"]["message"].to_string();
    ensure!(
        message.contains("does not support the task tts") && message.contains("'peers-later'"),
        "{message}"
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_text_without_words_is_silence() -> Result<()> {
    let server = Setup::units("peers-emoji").start().await?;
    for text in ["👍", "…", "😀 🎉!"] {
        let response = server.speech(&json!({"input": text, "response_format": "pcm"})).await?;
        ensure!(response.status() == 200, "{text}: {}", response.text().await?);
        ensure!(response.headers().contains_key("x-unspoken-characters"), "{text}");
        let bytes = response.bytes().await?;
        ensure!(!bytes.is_empty() && bytes.iter().all(|byte| *byte == 0), "{text}: {} bytes", bytes.len());
    }
    let mut session = server.session().await?;
    session.send(json!({"type": "input.text", "text": "👍"})).await?;
    session.send(json!({"type": "input.flush"})).await?;
    session.send(json!({"type": "input.text", "text": "And a word."})).await?;
    session.send(json!({"type": "input.done"})).await?;
    session.expect("session.created").await?;
    let warning = session.expect("warning").await?;
    ensure!(warning["characters"] == "👍", "{warning}");
    let (silent, spoken) = (session.utterance().await?, session.utterance().await?);
    ensure!(silent.chunks.iter().all(|(_, bytes)| bytes.iter().all(|byte| *byte == 0)));
    ensure!(!spoken.chunks.is_empty());
    session.expect("session.done").await?;
    server.assert_balanced().await
}

/// The head of the answer to an upgrade.
async fn upgraded(server: &TestServer, path: &str) -> Result<String> {
    let request = format!(
        "GET {path} HTTP/1.1\r\nHost: {}\r\nConnection: Upgrade, close\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
        server.address
    );
    Ok(exchange(server.address, request.as_bytes()).await?.head)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_upgrade_tells_clients_of_deepgram_why() -> Result<()> {
    let server = Setup::listener("peers-live").start().await?;
    for (query, word) in [
        ("sample_rate=16000", "encoding is missing"),
        ("encoding=linear16&sample_rate=16000&redact=pii", "redact is not supported"),
        ("encoding=linear16&sample_rate=16000&model=nobody", "nobody"),
    ] {
        let head = upgraded(&server, &format!("/v1/listen?{query}")).await?;
        ensure!(
            head.contains("dg-error:") && head.contains(word) && head.contains("dg-request-id:"),
            "{head}"
        );
    }
    let locked = Setup::listener("peers-live-key")
        .server(|server| server.api_key = Some("0123456789abcdef".to_owned()))
        .start()
        .await?;
    let head = upgraded(&locked, "/v1/listen?encoding=linear16&sample_rate=16000").await?;
    ensure!(head.starts_with("http/1.1 401") && head.contains("dg-error:"), "{head}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn parameters_of_deepgram_without_effect_are_told() -> Result<()> {
    let server = Setup::listener("peers-deepgram").start().await?;
    let query = "model=nova-3&filler_words=true&profanity_filter=false&numerals=true&detect_entities=true&punctuate=true";
    let request = reqwest::Client::new().post(server.url(&format!("/v1/listen?{query}")));
    let response = request.body(recording(1.0)).send().await?;
    ensure!(response.status() == 200, "{}", response.text().await?);
    ensure!(ignored(&response) == "detect_entities, filler_words", "{}", ignored(&response));
    ensure!(response.headers().contains_key("dg-request-id"));
    let url = format!(
        "ws://{}/v1/listen?encoding=linear16&sample_rate=16000&interim_results=true&{query}",
        server.address
    );
    let mut session = Session::open(&url).await?;
    session.send(json!({"type": "CloseStream"})).await?;
    let Incoming::Frame(metadata) = session.next().await? else { anyhow::bail!("no frame") };
    ensure!(metadata["type"] == "Metadata", "{metadata}");
    Ok(())
}
