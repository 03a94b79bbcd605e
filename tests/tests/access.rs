//! Access control: API keys, hosts, origins.

use anyhow::{Context, Result};
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
    let server =
        Setup::units("keyed").server(|server| server.api_key = Some("sesame".to_owned())).start().await?;
    for path in ["/v1/models", "/v1/audio/voices"] {
        let cases: [(&[(&str, &str)], u16); 8] = [
            (&[], 401),
            (&[("authorization", "Bearer sesame")], 200),
            (&[("authorization", "bearer sesame")], 200),
            (&[("x-api-key", "sesame")], 200),
            (&[("authorization", "Bearer sesam")], 401),
            (&[("authorization", "Bearer sesames")], 401),
            (&[("authorization", "Basic sesame")], 401),
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
    assert!(opens(&server, &[("authorization", "Bearer sesame")]).await?);
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
        .server(|server| server.api_key = Some("sesame".to_owned()))
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
    assert_eq!(preflight.headers()["access-control-allow-headers"], "authorization, content-type, x-api-key");
    for (key, expected) in [("sesame", 200), ("wrong", 401)] {
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
