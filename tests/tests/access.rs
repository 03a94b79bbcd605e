//! Access control: API keys, hosts, origins.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, Result};
use izwi_server::{Loader, Offer, Recorder, Registry, RegistryConfig, ServerConfig};
use izwi_tests::{Session, Setup, TestServer, guarded};
use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::http::HeaderValue;

async fn status(server: &TestServer, path: &str, headers: &[(&str, &str)]) -> Result<(u16, Value)> {
    let mut request = reqwest::Client::new().get(server.url(path));
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let response = guarded(request.send()).await??;
    let status = response.status().as_u16();
    Ok((status, response.json().await.unwrap_or_default()))
}

/// Whether a session opens with these headers.
async fn opens(server: &TestServer, headers: &[(&'static str, &str)]) -> Result<bool> {
    let mut request = format!("ws://{}/v1/audio/speech/stream", server.address).into_client_request()?;
    for (name, value) in headers {
        request.headers_mut().insert(*name, HeaderValue::from_str(value)?);
    }
    match Session::open_with(request).await {
        Ok(mut session) => {
            session.send(json!({"type": "ping"})).await?;
            session.expect("pong").await?;
            Ok(true)
        }
        Err(_) => Ok(false),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn only_api_routes_require_the_key() -> Result<()> {
    let server = Setup::units("keyed")
        .server(|server| server.api_key = Some("open-sesame-1234".to_owned()))
        .start()
        .await?;
    for path in ["/v1/models", "/v1/audio/voices"] {
        let cases: [(&[(&str, &str)], u16); 8] = [
            (&[], 401),
            (&[("authorization", "Bearer open-sesame-1234")], 200),
            (&[("authorization", "bearer open-sesame-1234")], 200),
            (&[("x-api-key", "open-sesame-1234")], 200),
            (&[("authorization", "Bearer open-sesame-123")], 401),
            (&[("authorization", "Bearer open-sesame-12345")], 401),
            (&[("authorization", "Basic open-sesame-1234")], 401),
            (&[("x-api-key", "")], 401),
        ];
        for (headers, expected) in cases {
            let (status, body) = status(&server, path, headers).await?;
            assert_eq!(status, expected, "{path} {headers:?}");
            if status == 401 {
                assert_eq!(body["error"]["type"], "authentication_error");
            }
        }
    }
    for path in ["/livez", "/readyz", "/health", "/version", "/metrics"] {
        assert_eq!(status(&server, path, &[]).await?.0, 200, "{path}");
    }
    let response = reqwest::Client::new().post(server.url("/v1/audio/speech")).body("{").send().await?;
    assert_eq!(response.status(), 401, "the key is checked before the body");
    assert_eq!(response.headers()["www-authenticate"], "Bearer");
    assert!(!opens(&server, &[]).await?);
    assert!(opens(&server, &[("authorization", "Bearer open-sesame-1234")]).await?);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn every_route_refuses_foreign_hosts_and_origins() -> Result<()> {
    let server = Setup::units("fenced")
        .server(|server| {
            server.allowed_hosts = vec!["speech.example.com".to_owned()];
            server.allowed_origins = vec!["https://app.example.com".to_owned()];
        })
        .start()
        .await?;
    for path in ["/v1/models", "/metrics", "/livez", "/nothing"] {
        let (code, body) = status(&server, path, &[("host", "rebound.example.net")]).await?;
        assert_eq!((code, &body["error"]["code"]), (403, &json!("forbidden_host")), "{path}");
        let (code, body) = status(&server, path, &[("origin", "https://evil.example.net")]).await?;
        assert_eq!((code, &body["error"]["code"]), (403, &json!("forbidden_origin")), "{path}");
    }
    let good = [
        ("host", "localhost:9"),
        ("host", "speech.example.com"),
        ("origin", "http://localhost:3000"),
        ("origin", "https://app.example.com"),
    ];
    for header in good {
        assert_eq!(status(&server, "/v1/models", &[header]).await?.0, 200, "{header:?}");
        assert!(opens(&server, &[header]).await?, "{header:?}");
    }
    for header in
        [("origin", "https://evil.example.net"), ("origin", "null"), ("host", "rebound.example.net")]
    {
        assert!(!opens(&server, &[header]).await?, "{header:?}");
    }
    let health: Value = server.get("/health").await?.json().await?;
    health["status"].as_str().context("a status")?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn allowed_origins_receive_cors_headers() -> Result<()> {
    let server = Setup::units("read-by-pages")
        .server(|server| server.api_key = Some("open-sesame-1234".to_owned()))
        .start()
        .await?;
    let client = reqwest::Client::new();
    let page = "http://localhost:3000";
    let preflight = client
        .request(reqwest::Method::OPTIONS, server.url("/v1/audio/speech"))
        .header("origin", page)
        .header("access-control-request-method", "POST")
        .header("access-control-request-headers", "authorization,content-type");
    let preflight = guarded(preflight.send()).await??;
    assert_eq!(preflight.status(), 204, "browsers send it without the key");
    assert_eq!(preflight.headers()["access-control-allow-origin"], page);
    assert_eq!(
        preflight.headers()["access-control-allow-headers"],
        "authorization, content-type, mcp-method, mcp-name, mcp-protocol-version, x-api-key, xi-api-key"
    );
    for (key, expected) in [("open-sesame-1234", 200), ("wrong", 401)] {
        let request = client.get(server.url("/v1/models")).header("origin", page).bearer_auth(key);
        let response = guarded(request.send()).await??;
        assert_eq!(response.status(), expected);
        assert_eq!(response.headers()["access-control-allow-origin"], page);
        assert_eq!(response.headers()["vary"], "Origin");
    }
    let foreign = client
        .request(reqwest::Method::OPTIONS, server.url("/v1/audio/speech"))
        .header("origin", "https://evil.example.net")
        .header("access-control-request-method", "POST");
    let refused = guarded(foreign.send()).await??;
    assert_eq!(refused.status(), 403);
    assert!(!refused.headers().contains_key("access-control-allow-origin"));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_keys_are_throttled() -> Result<()> {
    let server = Setup::units("guessed")
        .server(|server| server.api_key = Some("open-sesame-1234".to_owned()))
        .start()
        .await?;
    let mut throttled = None;
    for number in 0..1_000 {
        let key = format!("wrong-key-number-{number}");
        match status(&server, "/v1/models", &[("x-api-key", &key)]).await? {
            (401, _) => {}
            refused => {
                throttled = Some(refused);
                break;
            }
        }
    }
    let (code, body) = throttled.context("1,000 wrong keys were compared")?;
    assert_eq!((code, &body["error"]["code"]), (429, &json!("too_many_wrong_keys")));
    assert_eq!(status(&server, "/livez", &[]).await?.0, 200);
    assert_eq!(status(&server, "/v1/models", &[]).await?.0, 401, "no key is no guess");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_of_another_site_loads_no_model() -> Result<()> {
    let loads = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&loads);
    let loader: Loader = Arc::new(move |_: &str| {
        counter.fetch_add(1, Ordering::SeqCst);
        Err("this test loads none".to_owned())
    });
    let offer = Offer { id: "large".to_owned(), tasks: Vec::new(), bytes: 0 };
    let registry = Registry::with_loader(RegistryConfig::new("small"), vec![offer], loader);
    let server = TestServer::listen(ServerConfig::default(), registry, Recorder::install()?).await?;
    for path in ["/v1/audio/voices?model=large", "/v1/audio/voices/one?model=large", "/v1/models"] {
        let (code, body) = status(&server, path, &[("sec-fetch-site", "cross-site")]).await?;
        assert_eq!((code, &body["error"]["code"]), (403, &json!("cross_site")), "{path}");
    }
    // Browsers send no such header to addresses without TLS that are not loopback.
    for path in ["/v1/audio/voices?model=large", "/v1/audio/voices/one?model=large"] {
        let (code, body) = status(&server, path, &[]).await?;
        assert_eq!((code, &body["error"]["code"]), (409, &json!("model_not_loaded")), "{path}");
    }
    assert_eq!(loads.load(Ordering::SeqCst), 0);
    Ok(())
}

/// The subprotocol that the server answers with, or the status of its refusal.
async fn subprotocol(
    server: &TestServer,
    query: &str,
    protocols: Option<&str>,
) -> Result<Result<String, u16>> {
    let url = format!("ws://{}/v1/audio/speech/stream{query}", server.address);
    let mut request = url.into_client_request()?;
    if let Some(protocols) = protocols {
        request.headers_mut().insert("sec-websocket-protocol", HeaderValue::from_str(protocols)?);
    }
    let stream = tokio::net::TcpStream::connect(server.address).await?;
    Ok(match guarded(tokio_tungstenite::client_async(request, stream)).await? {
        Ok((_, response)) => {
            let answer = response.headers().get("sec-websocket-protocol");
            Ok(answer.map(|value| value.to_str().map(str::to_owned)).transpose()?.unwrap_or_default())
        }
        Err(tokio_tungstenite::tungstenite::Error::Http(response)) => Err(response.status().as_u16()),
        Err(error) => return Err(error.into()),
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_browser_sends_the_key_as_a_subprotocol() -> Result<()> {
    let server = Setup::units("subprotocols")
        .server(|server| server.api_key = Some("open-sesame-1234".to_owned()))
        .start()
        .await?;
    for (protocols, expected) in [
        ("izwi, izwi-api-key.open-sesame-1234", Ok("izwi")),
        ("realtime, openai-insecure-api-key.open-sesame-1234", Ok("realtime")),
        ("izwi-api-key.open-sesame-1234, izwi", Ok("izwi")),
        ("izwi", Err(401)),
        ("izwi, izwi-api-key.open-sesame-123", Err(401)),
        ("izwi, izwi-api-key.", Err(401)),
        ("izwi, izwi-api-key.wrong, izwi-api-key.open-sesame-1234", Err(401)),
    ] {
        let answer = subprotocol(&server, "", Some(protocols)).await?;
        assert_eq!(answer, expected.map(str::to_owned), "{protocols}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_ticket_opens_one_websocket() -> Result<()> {
    let server = Setup::units("tickets")
        .server(|server| server.api_key = Some("open-sesame-1234".to_owned()))
        .start()
        .await?;
    let post = async |key: Option<&str>| {
        let mut request = reqwest::Client::new().post(server.url("/v1/tickets"));
        if let Some(key) = key {
            request = request.bearer_auth(key);
        }
        anyhow::Ok(guarded(request.send()).await??)
    };
    assert_eq!(post(None).await?.status(), 401);
    let made = post(Some("open-sesame-1234")).await?;
    assert_eq!(
        (made.status().as_u16(), &made.headers()["cache-control"]),
        (200, &HeaderValue::from_static("no-store"))
    );
    let made: Value = made.json().await?;
    assert_eq!((&made["object"], &made["expires_in"]), (&json!("ticket"), &json!(60)));
    let ticket = made["ticket"].as_str().context("a ticket")?;

    let (get, _) = status(&server, &format!("/v1/models?ticket={ticket}"), &[]).await?;
    assert_eq!(get, 401, "tickets are for WebSockets only, and this one is not used up");
    let query = format!("?ticket={ticket}");
    assert_eq!(subprotocol(&server, "?ticket=wrong", None).await?, Err(401));
    assert_eq!(subprotocol(&server, "?ticket=", None).await?, Err(401));
    assert_eq!(subprotocol(&server, &query, None).await?, Ok(String::new()));
    assert_eq!(subprotocol(&server, &query, None).await?, Err(401), "used");
    // The key wins over a ticket, which is then not used.
    let both = "izwi, izwi-api-key.open-sesame-1234";
    assert_eq!(subprotocol(&server, "?ticket=wrong", Some(both)).await?, Ok("izwi".to_owned()));
    for _ in 0..40 {
        subprotocol(&server, "?ticket=wrong", None).await?.err();
    }
    assert_eq!(subprotocol(&server, "?ticket=wrong", None).await?, Err(429), "wrong tickets are throttled");
    assert_eq!(post(Some("open-sesame-1234")).await?.status(), 429);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn no_answer_may_be_taken_for_another_type() -> Result<()> {
    let server = Setup::units("sniffed").start().await?;
    for path in ["/health", "/v1/models", "/v1/nothing", "/openapi.json", "/docs", "/", "/metrics"] {
        assert_eq!(server.get(path).await?.headers()["x-content-type-options"], "nosniff", "{path}");
    }
    let refused = server.speech(&json!({"model": "tts-1"})).await?;
    assert_eq!(refused.headers()["x-content-type-options"], "nosniff");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_pull_no_model_that_is_too_large_or_where_they_may_not() -> Result<()> {
    let home = tempfile::tempdir()?;
    std::fs::create_dir(home.path().join("manifests"))?;
    let manifest = format!(
        "name = \"lark\"\nfamily = \"bird\"\ndescription = \"sings\"\ntask = [\"tts\"]\nlicence = \"MIT\"\n\
         languages = [\"en\"]\n[[sources]]\nkind = \"package\"\necosystem = \"pip\"\n\
         packages = [{{ name = \"lark\", version = \"1.0\", sha256 = \"{hash}\" }}]\n\
         [[sources.files]]\npath = \"lark/lark.bin\"\ntarget = \"lark.bin\"\nsha256 = \"{hash}\"\n\
         size = 4000000000000000000\n",
        hash = "0".repeat(64)
    );
    std::fs::write(home.path().join("manifests/lark.toml"), manifest)?;
    let store = || izwi_hub::Store::open(Some(home.path().to_path_buf()));
    let pull = "/v1/models/lark/pull";

    let (forbidding, open) = (store()?, store()?);
    let server = Setup::units("forbids-pulls").server(|server| {
        (server.store, server.allow_pull) = (Some(forbidding), false);
    });
    let server = server.start().await?;
    let refused = server.post(pull, &json!({})).await?;
    assert_eq!(refused.status(), 403);
    let error: Value = refused.json().await?;
    assert_eq!(error["error"]["code"], "pull_forbidden", "{error}");
    let message = error["error"]["message"].as_str().context("a message")?;
    assert!(message.contains("izwi pull lark") && message.contains("allow_pull"), "{message}");
    assert_eq!(server.post("/v1/models/wren/pull", &json!({})).await?.status(), 404);

    let server = Setup::units("pulls").server(|server| server.store = Some(open)).start().await?;
    assert_eq!(server.post(pull, &json!({})).await?.status(), 202);
    izwi_tests::eventually("the pull to fail", || async {
        let catalogue: Value = server.get("/v1/catalogue").await?.json().await?;
        let models = catalogue["data"].as_array().context("a list")?;
        let lark = models.iter().find(|model| model["id"] == "lark").context("the model")?;
        let message = lark["pull"]["message"].as_str().unwrap_or_default();
        Ok(lark["pull"]["state"] == "failed" && message.contains("bytes of free space are needed"))
    })
    .await?;
    assert!(!home.path().join("models/lark").exists());
    Ok(())
}
