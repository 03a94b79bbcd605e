//! `/openapi.json`, `/docs` and `/docs/protocol.md` of a running server.

use anyhow::{Context, Result};
use izwi_tests::Setup;
use serde_json::Value;

#[tokio::test(flavor = "multi_thread")]
async fn the_document_and_its_page_are_served_without_a_key() -> Result<()> {
    let server = Setup::units("documented")
        .server(|server| {
            server.api_key = Some("a-long-secret-key-for-tests".to_owned());
            server.max_input_chars = 1_234;
        })
        .start()
        .await?;
    let document: Value = server.get("/openapi.json").await?.json().await?;
    assert_eq!(document["openapi"], "3.1.0");
    assert_eq!(document["components"]["schemas"]["SpeechRequest"]["properties"]["input"]["maxLength"], 1_234);
    assert_eq!(document["security"].as_array().context("a list")?.len(), 2, "the key is required");

    let page = server.get("/docs").await?;
    let header = |name: &str| page.headers()[name].to_str().map(str::to_owned);
    assert_eq!(header("content-type")?, "text/html; charset=utf-8");
    assert!(header("content-security-policy")?.starts_with("default-src 'none'; style-src 'sha256-"));
    let page = page.text().await?;
    assert!(page.contains("<code>/v1/audio/speech</code>") && !page.contains("a-long-secret-key"));

    let protocol = server.get("/docs/protocol.md").await?;
    assert_eq!(protocol.headers()["content-type"], "text/plain; charset=utf-8");
    assert!(protocol.text().await?.contains("# The WebSocket protocol"));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_method_that_a_route_has_not_is_answered_with_those_it_has() -> Result<()> {
    let server = Setup::units("methods").start().await?;
    let document: Value = server.get("/openapi.json").await?.json().await?;
    for (path, item) in document["paths"].as_object().context("paths")? {
        let url = server.url(&path.replace("{id}", "x"));
        let answer = reqwest::Client::new().request(reqwest::Method::TRACE, url).send().await?;
        assert_eq!(answer.status(), 405, "{path}");
        let allow = answer.headers().get("allow").with_context(|| format!("{path}: no Allow"))?.to_str()?;
        for method in item.as_object().context("methods")?.keys() {
            assert!(
                allow.split(',').any(|allowed| allowed.trim().eq_ignore_ascii_case(method)),
                "{path}: {allow}"
            );
        }
    }
    Ok(())
}
