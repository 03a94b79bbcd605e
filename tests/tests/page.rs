//! The files of the web page, and the routes that it uses to pull, load and unload models.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, Result};
use izwi_core::engine::executor::simulated::{SimulatedExecutor, SimulatedModel};
use izwi_core::engine::{Engine, EngineCoreConfig, Task};
use izwi_hub::Store;
use izwi_server::{Loader, Offer, Recorder, Registry, RegistryConfig, ServerConfig};
use izwi_tests::{Setup, TestServer, eventually};
use reqwest::StatusCode;
use serde_json::{Value, json};

/// A server of two models, which loads them, with a model store in which nothing is installed.
async fn server(store: Option<Store>) -> Result<TestServer> {
    let loader: Loader = Arc::new(|name: &str| {
        let config = EngineCoreConfig { model: name.to_owned(), admission: false, ..Default::default() };
        let executor = SimulatedExecutor::new(&config, SimulatedModel::default());
        Engine::with_executor(config, Box::new(executor)).map_err(|error| error.to_string())
    });
    let offer = Offer { id: "other".to_owned(), tasks: vec![Task::Tts], bytes: 0 };
    let registry = Registry::with_loader(RegistryConfig::new("first"), vec![offer], loader);
    registry.load_defaults();
    let config = ServerConfig { store, ..ServerConfig::default() };
    let server = TestServer::listen(config, registry, Recorder::install()?).await?;
    eventually("the default model", || async { Ok(server.get("/readyz").await?.status() == StatusCode::OK) })
        .await?;
    Ok(server)
}

async fn act(server: &TestServer, model: &str, action: &str) -> Result<(StatusCode, Value)> {
    let answer = server.post(&format!("/v1/models/{model}/{action}"), &json!({})).await?;
    Ok((answer.status(), answer.json().await?))
}

#[tokio::test(flavor = "multi_thread")]
async fn the_page_and_its_files_are_served_without_a_key_and_only_as_themselves() -> Result<()> {
    let server = Setup::units("page-files")
        .server(|server| server.api_key = Some("a-long-secret-key-for-tests".to_owned()))
        .start()
        .await?;
    for (path, media_type) in [
        ("/", "text/html; charset=utf-8"),
        ("/page/style.css", "text/css; charset=utf-8"),
        ("/page/main.js", "text/javascript; charset=utf-8"),
        ("/page/player-worklet.js", "text/javascript; charset=utf-8"),
        ("/page/icon.svg", "image/svg+xml"),
        ("/page/icon-512.png", "image/png"),
        ("/page/app.webmanifest", "application/manifest+json"),
        ("/page/worker.js", "text/javascript; charset=utf-8"),
    ] {
        let answer = server.get(path).await?;
        assert_eq!(answer.status(), StatusCode::OK, "{path}");
        let headers = answer.headers().clone();
        assert_eq!(headers["content-type"], media_type, "{path}");
        assert_eq!(headers["x-content-type-options"], "nosniff");
        assert_eq!(headers["cache-control"], "no-cache");
        // A worker of the folder `/page/` would not see the page itself.
        assert_eq!(headers.contains_key("service-worker-allowed"), path == "/page/worker.js");
        assert!(headers["content-security-policy"].to_str()?.starts_with("default-src 'self';"));
        let tag = headers["etag"].to_str()?;
        for (known, expected) in [
            (tag.to_owned(), StatusCode::NOT_MODIFIED),
            (format!("\"other\", {tag}"), StatusCode::NOT_MODIFIED),
            ("\"other\"".to_owned(), StatusCode::OK),
        ] {
            let again =
                reqwest::Client::new().get(server.url(path)).header("if-none-match", known).send().await?;
            assert_eq!((again.status(), &again.headers()["etag"]), (expected, &headers["etag"]));
            assert_eq!(again.bytes().await?.is_empty(), expected == StatusCode::NOT_MODIFIED);
        }
    }
    for path in ["/page/none.js", "/page/..%2f..%2fCargo.toml", "/page/%2e%2e%2fCargo.toml", "/page/"] {
        let answer = server.get(path).await?;
        assert_eq!(answer.status(), StatusCode::NOT_FOUND, "{path}");
        let body: Value = answer.json().await?;
        assert_eq!(body["error"]["code"], "unknown_route");
    }
    let inline = server.page("/").await?;
    assert!(!inline.contains("<script>") && !inline.contains("style=") && !inline.contains("://"));
    assert_eq!(server.get("/v1/catalogue").await?.status(), StatusCode::UNAUTHORIZED);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_is_loaded_and_unloaded_on_request_and_a_default_one_stays() -> Result<()> {
    let server = server(None).await?;
    for _ in 0..2 {
        let (status, model) = act(&server, "other", "load").await?;
        assert_eq!((status, &model["state"]), (StatusCode::OK, &json!("ready")), "{model}");
    }
    let mut session = server.session().await?;
    session.send(json!({"type": "session.config", "model": "other"})).await?;
    session.expect("session.created").await?;
    let (status, refused) = act(&server, "other", "unload").await?;
    assert_eq!((status, &refused["error"]["code"]), (StatusCode::CONFLICT, &json!("model_in_use")));
    drop(session);
    eventually("the session to end", || async {
        Ok(act(&server, "other", "unload").await?.0 == StatusCode::OK)
    })
    .await?;
    let (status, model) = act(&server, "other", "unload").await?;
    assert_eq!((status, &model["state"]), (StatusCode::OK, &json!("unloaded")), "{model}");

    let (status, refused) = act(&server, "tts-1", "unload").await?;
    assert_eq!(status, StatusCode::CONFLICT);
    let message = refused["error"]["message"].as_str().context("a message")?;
    assert!(message.contains("'first'") && message.contains("default"), "{message}");
    for action in ["load", "unload"] {
        let (status, refused) = act(&server, "none", action).await?;
        assert_eq!((status, &refused["error"]["code"]), (StatusCode::NOT_FOUND, &json!("model_not_found")));
    }
    Ok(())
}

/// A store with one installed model of a manifest of its own, `wren`.
fn store_with_wren(home: &std::path::Path) -> Result<Store> {
    std::fs::create_dir_all(home.join("manifests"))?;
    std::fs::create_dir_all(home.join("models/wren"))?;
    let hash = "0".repeat(64);
    let manifest = format!(
        "name = \"wren\"\nfamily = \"wren\"\ndescription = \"a test\"\ntask = [\"tts\"]\nlicence = \"CC0-1.0\"\n\
         languages = [\"en\"]\n[[sources]]\nkind = \"package\"\necosystem = \"pip\"\n\
         packages = [{{ name = \"wren\", version = \"1.0\", sha256 = \"{hash}\" }}]\n\
         [[sources.files]]\npath = \"wren/wren.bin\"\ntarget = \"wren.bin\"\nsha256 = \"{hash}\"\nsize = 4\n"
    );
    std::fs::write(home.join("manifests/wren.toml"), manifest)?;
    std::fs::write(home.join("models/wren/wren.bin"), "wren")?;
    Ok(Store::open(Some(home.to_owned()))?)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_is_deleted_with_its_files_unless_it_is_a_default_or_in_use() -> Result<()> {
    let home = tempfile::tempdir()?;
    let server = server(Some(store_with_wren(home.path())?)).await?;
    let delete = async |model: &str| -> Result<(StatusCode, Value)> {
        let answer = reqwest::Client::new().delete(server.url(&format!("/v1/models/{model}"))).send().await?;
        Ok((answer.status(), answer.json().await?))
    };
    // Files that no pull recorded: the model is loaded from them by this server's loader alone.
    std::fs::create_dir_all(home.path().join("models/other"))?;
    std::fs::create_dir_all(home.path().join("models/first"))?;
    let (status, _) = act(&server, "other", "load").await?;
    assert_eq!(status, StatusCode::OK);
    let mut session = server.session().await?;
    session.send(json!({"type": "session.config", "model": "other"})).await?;
    session.expect("session.created").await?;
    for (model, status, code) in [
        ("other", StatusCode::CONFLICT, "model_in_use"),
        ("first", StatusCode::CONFLICT, "model_in_use"),
        ("tts-1", StatusCode::BAD_REQUEST, "invalid_value"),
        ("none", StatusCode::NOT_FOUND, "model_not_found"),
        ("..%2f..", StatusCode::NOT_FOUND, "model_not_found"),
    ] {
        let (found, refused) = delete(model).await?;
        assert_eq!((found, &refused["error"]["code"]), (status, &json!(code)), "{model}: {refused}");
    }
    assert!(home.path().join("models/other").exists() && home.path().join("models/first").exists());
    drop(session);
    eventually("the model to be deleted", || async { Ok(delete("other").await?.0 == StatusCode::OK) })
        .await?;
    assert!(!home.path().join("models/other").exists());
    let (status, refused) = delete("other").await?;
    assert_eq!((status, &refused["error"]["code"]), (StatusCode::NOT_FOUND, &json!("model_not_found")));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_delete_no_model_where_they_may_pull_none() -> Result<()> {
    let home = tempfile::tempdir()?;
    let store = store_with_wren(home.path())?;
    let setup = Setup::units("keeps-models").server(|server| {
        (server.store, server.allow_pull) = (Some(store), false);
    });
    let server = setup.start().await?;
    let answer = reqwest::Client::new().delete(server.url("/v1/models/keeps-models")).send().await?;
    let (status, refused): (_, Value) = (answer.status(), answer.json().await?);
    assert_eq!((status, &refused["error"]["code"]), (StatusCode::FORBIDDEN, &json!("pull_forbidden")));
    assert!(refused["error"]["message"].as_str().context("a message")?.contains("izwi rm keeps-models"));
    Ok(())
}

/// A second of a sine of 440 Hz at 24 kHz, as a WAV file, and its samples.
fn sine() -> Result<(Vec<u8>, Vec<f32>)> {
    let samples: Vec<f32> =
        (0..24_000).map(|at| 0.5 * (std::f32::consts::TAU * 440.0 * at as f32 / 24_000.0).sin()).collect();
    Ok((izwi_audio::wav::to_bytes(&samples, 24_000)?, samples))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_recording_is_had_in_every_format_of_speech() -> Result<()> {
    let server = Setup::units("encodings").start().await?;
    let (wav, samples) = sine()?;
    let encode = async |fields: &[(&'static str, &str)], file: &[u8]| -> Result<reqwest::Response> {
        let form = fields
            .iter()
            .fold(izwi_tests::Form::new().file("file", file), |form, (name, value)| form.text(name, value));
        server.post_form("/v1/audio/encodings", form).await
    };
    let document: Value = server.get("/openapi.json").await?.json().await?;
    let schema = &document["components"]["schemas"]["EncodingRequest"]["properties"]["response_format"];
    let formats = schema["enum"].as_array().context("formats")?;
    assert!(formats.len() > 6, "{schema}");
    for format in formats.iter().filter_map(Value::as_str) {
        let answer = encode(&[("response_format", format)], &wav).await?;
        assert_eq!(answer.status(), StatusCode::OK, "{format}");
        let rate: u32 = answer.headers()["x-sample-rate"].to_str()?.parse()?;
        let bytes = answer.bytes().await?;
        let limits = izwi_audio::decode::DecodeLimits {
            max_bytes: 1 << 20,
            max_duration: std::time::Duration::from_secs(10),
        };
        let length = match format {
            "pcm" => bytes.len() / 2,
            "ulaw" | "alaw" => bytes.len(),
            _ => izwi_audio::decode::decode(bytes, rate, &limits)?.len(),
        };
        let seconds = length as f64 / f64::from(rate);
        assert!((seconds - 1.0).abs() < 0.1, "{format}: {seconds} s");
    }
    let flac = encode(&[("response_format", "flac")], &wav).await?.bytes().await?;
    let back = izwi_audio::decode::decode(
        flac,
        24_000,
        &izwi_audio::decode::DecodeLimits {
            max_bytes: 1 << 20,
            max_duration: std::time::Duration::from_secs(10),
        },
    )?;
    let furthest = back.iter().zip(&samples).map(|(one, other)| (one - other).abs()).fold(0.0, f32::max);
    assert!(back.len() == samples.len() && furthest < 1e-4, "{} samples, {furthest}", back.len());
    for (fields, file, param) in [
        (&[("response_format", "aac")][..], wav.as_slice(), "response_format"),
        (&[("response_format", "wav"), ("sample_rate", "12345")], &wav, "sample_rate"),
        (&[("response_format", "flac"), ("bit_rate", "64000")], &wav, "bit_rate"),
        (&[("sample_rate", "many")], &wav, "sample_rate"),
        (&[], b"no audio", "file"),
    ] {
        let answer = encode(fields, file).await?;
        assert!(answer.status().is_client_error(), "{param}");
        let refused: Value = answer.json().await?;
        assert_eq!(refused["error"]["param"], param, "{refused}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_catalogue_tells_what_can_be_pulled_and_why_a_pull_failed() -> Result<()> {
    let without = server(None).await?;
    let (status, refused) = act(&without, "hibari", "pull").await?;
    assert_eq!((status, &refused["error"]["code"]), (StatusCode::BAD_REQUEST, &json!("invalid_value")));
    let listed: Value = without.get("/v1/catalogue").await?.json().await?;
    assert_eq!(listed["data"], json!([]));

    // The folder of models cannot be made: the pull fails before it reaches a source.
    let home = tempfile::tempdir()?;
    std::fs::write(home.path().join("models"), "no folder")?;
    let server = server(Some(Store::open(Some(home.path().to_owned()))?)).await?;
    let hibari = || async {
        let listed: Value = server.get("/v1/catalogue").await?.json().await?;
        let models = listed["data"].as_array().context("a list")?;
        anyhow::ensure!(models.iter().all(|model| model["id"] != "silero-vad"), "components are no models");
        models.iter().find(|model| model["id"] == "hibari").cloned().context("hibari")
    };
    let before = hibari().await?;
    assert_eq!((&before["installed"], &before["pull"]), (&json!(false), &Value::Null), "{before}");
    let (status, refused) = act(&server, "hibary", "pull").await?;
    assert_eq!((status, &refused["error"]["code"]), (StatusCode::NOT_FOUND, &json!("model_not_found")));
    assert!(refused["error"]["message"].as_str().is_some_and(|text| text.contains("hibari")), "{refused}");
    let (status, begun) = act(&server, "hibari", "pull").await?;
    assert_eq!((status, &begun["state"]), (StatusCode::ACCEPTED, &json!("running")), "{begun}");
    eventually("the pull to fail", || async { Ok(hibari().await?["pull"]["state"] == "failed") }).await?;
    let pull = hibari().await?["pull"].clone();
    assert!(pull["message"].as_str().is_some_and(|text| text.contains("models")), "{pull}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn voices_of_models_that_are_not_loaded_are_listed_from_their_files() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let (home, models) = (folder.path().join("home"), folder.path().join("models"));
    let voices = models.join("kokoro-82m/voices");
    std::fs::create_dir_all(&voices)?;
    for name in ["bm_george", "af_heart", "jf_alpha"] {
        std::fs::write(voices.join(format!("{name}.bin")), [])?;
    }
    let loads = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&loads);
    let loader: Loader = Arc::new(move |_: &str| {
        counter.fetch_add(1, Ordering::SeqCst);
        Err("this test loads none".to_owned())
    });
    let offer = |id: &str| Offer { id: id.to_owned(), tasks: vec![Task::Tts], bytes: 0 };
    let offers = vec![offer("hibari"), offer("kokoro-82m")];
    let registry = Registry::with_loader(RegistryConfig::new("hibari"), offers, loader);
    let store = Some(Store::open(Some(home))?.with_models_dir(Some(models)));
    let config = ServerConfig { store, ..ServerConfig::default() };
    let server = TestServer::listen(config, registry, Recorder::install()?).await?;
    for query in ["", "?model=kokoro-82m"] {
        let listed: Value = server.get(&format!("/v1/audio/voices{query}")).await?.json().await?;
        let shown = |voice: &Value| {
            json!([voice["id"], voice["language"], voice["gender"], voice["default"], voice["models"]])
        };
        let shown: Vec<Value> = listed["voices"].as_array().context("a list")?.iter().map(shown).collect();
        let models = ["kokoro-82m"];
        assert_eq!(
            shown,
            [
                json!(["af_heart", "en-US", "female", true, models]),
                json!(["bm_george", "en-GB", "male", false, models]),
                json!(["jf_alpha", "ja", "female", false, models]),
            ],
            "{query}"
        );
    }
    let one: Value = server.get("/v1/audio/voices/bm_george?model=kokoro-82m").await?.json().await?;
    assert_eq!((&one["model"], &one["gender"]), (&json!("kokoro-82m"), &json!("male")));
    let unknown: Value = server.get("/v1/audio/voices/bm_georg?model=kokoro-82m").await?.json().await?;
    let message = unknown["error"]["message"].as_str().context("a message")?;
    assert!(message.contains("did you mean 'bm_george'?"), "{message}");
    assert_eq!(loads.load(Ordering::SeqCst), 0, "no model is loaded");
    Ok(())
}
