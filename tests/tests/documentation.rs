//! `/openapi.json`, `/docs` and `/docs/protocol.md` of a running server.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result};
use axum::Router;
use axum::routing::get;
use izwi_server::{AppState, Dialects, ServerConfig, openapi_json, routes};
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

type Routes = BTreeMap<String, BTreeSet<String>>;

/// The paths and methods that a router answers, from its `Debug` form: axum tells them nowhere else.
fn answered(router: &Router<AppState>) -> Routes {
    let text = format!("{router:?}");
    let text = text.split("fallback_router").next().expect("the Debug form of axum");
    let entries = |text: &str| -> BTreeMap<String, String> {
        let entry = |part: &str| part.split_once("): ").map(|(id, rest)| (id.to_owned(), rest.to_owned()));
        text.split("RouteId(").skip(1).filter_map(entry).collect()
    };
    let (routers, rest) = text.split_once("node: Node { paths: {").expect("the Debug form of axum");
    let paths = entries(rest);
    let routers = entries(routers);
    let methods = |id: &String| {
        let allowed = routers[id].split("allow_header: Bytes(b\"").nth(1).expect("methods");
        let allowed = allowed.split('"').next().unwrap_or_default();
        allowed.split(',').filter(|method| *method != "HEAD").map(str::to_lowercase).collect()
    };
    let path = |text: &String| text.split('"').nth(1).unwrap_or_default().to_owned();
    paths
        .iter()
        .filter(|(id, _)| routers.contains_key(*id))
        .map(|(id, text)| (path(text), methods(id)))
        .collect()
}

#[test]
fn every_route_is_in_the_document_and_nothing_else() -> Result<()> {
    let config = ServerConfig::default();
    for (dialects, has_them) in [(Dialects::default(), false), (izwi_dialects::all(), true)] {
        let found = answered(&routes(&config, dialects).into());
        assert!(found.len() > 10 && found["/v1/audio/voices"].len() == 2, "{found:?}");
        assert_eq!(found.contains_key("/v1/realtime"), has_them, "{found:?}");
        let document: Value = serde_json::from_str(&openapi_json(&config, dialects)?)?;
        let documented: Routes = document["paths"]
            .as_object()
            .unwrap()
            .iter()
            .map(|(path, item)| (path.clone(), item.as_object().unwrap().keys().cloned().collect()))
            .collect();
        assert_eq!(
            found, documented,
            "annotate the handler with #[utoipa::path] and add it with routes!(handler)"
        );
    }
    Ok(())
}

#[test]
fn a_route_without_an_annotation_is_found() {
    let router = Router::new().route("/v1/plain", get(async || ()).post(async || ()));
    let methods = BTreeSet::from(["get".to_owned(), "post".to_owned()]);
    assert_eq!(answered(&router), BTreeMap::from([("/v1/plain".to_owned(), methods)]));
}
