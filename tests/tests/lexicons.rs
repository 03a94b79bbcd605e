//! Lexicons: saved, used by speech that names them, by that of a voice, by all, whole and as it arrives.

use anyhow::{Context, Result, ensure};
use izwi_hub::LexiconStore;
use izwi_tests::{Setup, TestServer, Utterance, eventually};
use serde_json::{Value, json};
use tempfile::TempDir;

/// A server whose model speaks text as it arrives, 80 ms for each byte, and which saves lexicons in a folder.
async fn server(name: &str) -> Result<(TestServer, TempDir)> {
    let home = tempfile::tempdir()?;
    let lexicons = LexiconStore::open(Some(home.path().to_owned()));
    let setup = Setup::reader(name).server(|config| config.lexicons = lexicons);
    let server = setup.engine(|engine| engine.home = Some(home.path().to_owned())).start().await?;
    Ok((server, home))
}

/// Saves a lexicon of these lines, with further members.
async fn save(server: &TestServer, name: &str, text: &str, extra: Value) -> Result<()> {
    let mut body = json!({"name": name, "text": text});
    body.as_object_mut().context("an object")?.extend(extra.as_object().context("an object")?.clone());
    let response = server.post("/v1/lexicons", &body).await?;
    ensure!(response.status() == 200, "{}", response.text().await?);
    Ok(())
}

/// How many bytes of text are said for a speech request with further members, and the markup that is told.
async fn said(server: &TestServer, text: &str, extra: Value) -> Result<(usize, Option<String>)> {
    let mut body = json!({"input": text, "response_format": "pcm", "non_streaming_mode": false});
    body.as_object_mut().context("an object")?.extend(extra.as_object().context("an object")?.clone());
    let response = server.speech(&body).await?;
    ensure!(response.status() == 200, "{}", response.text().await?);
    let told = response.headers().get("x-ignored-markup").map(|told| told.to_str().map(str::to_owned));
    let told = told.transpose()?;
    Ok((response.bytes().await?.len() / (1_920 * 2) - 1, told))
}

#[tokio::test(flavor = "multi_thread")]
async fn lexicons_are_used_by_name_by_voice_and_always() -> Result<()> {
    let (server, _home) = server("lexicon-uses").await?;
    let text = "nginx runs";
    let plain = json!({});
    assert_eq!(said(&server, text, plain.clone()).await?, (text.len(), None));
    save(&server, "long", "nginx = engine x", plain.clone()).await?;
    let long = "engine x runs".len();
    assert_eq!(said(&server, text, plain.clone()).await?.0, text.len(), "nobody names it");
    assert_eq!(said(&server, text, json!({"lexicons": ["long"]})).await?.0, long);
    save(&server, "of-two", "nginx = n", json!({"voices": ["two"]})).await?;
    assert_eq!(said(&server, text, json!({"voice": "two"})).await?.0, "n runs".len());
    assert_eq!(said(&server, text, json!({"voice": "one"})).await?.0, text.len());
    assert_eq!(said(&server, text, json!({"voice": "two", "lexicons": []})).await?.0, text.len());
    assert_eq!(
        said(&server, text, json!({"lexicons": ["long", "of-two"]})).await?.0,
        long,
        "the first one counts"
    );

    // One that is replaced is used at once.
    save(&server, "long", "nginx = en gee in ex", json!({"overwrite": true, "always": true})).await?;
    assert_eq!(said(&server, text, plain.clone()).await?.0, "en gee in ex runs".len());
    assert_eq!(server.delete("/v1/lexicons/long").await?.status(), 200);
    assert_eq!(said(&server, text, plain).await?.0, text.len());
    server.assert_balanced().await
}

#[tokio::test(flavor = "multi_thread")]
async fn sounds_that_a_model_does_not_take_are_respelled_and_told() -> Result<()> {
    let (server, _home) = server("lexicon-sounds").await?;
    save(&server, "names", "Siobhan = /ʃɪˈvɔːn/\nGIF = /dʒɪf/ = jiff", json!({"language": "en"})).await?;
    let (bytes, told) = said(&server, "Siobhan's GIF", json!({"lexicons": ["names"]})).await?;
    assert_eq!(bytes, "shivawn's jiff".len());
    let told = told.context("told")?;
    assert!(told.starts_with("%7BSiobhan%7C%2F") && !told.contains("GIF"), "{told}");
    let other = json!({"lexicons": ["names"], "language": "de"});
    assert_eq!(
        said(&server, "Siobhan's GIF", other).await?,
        ("Siobhan's GIF".len(), None),
        "of another language"
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn text_that_arrives_is_said_by_lexicons_as_the_whole() -> Result<()> {
    let (server, _home) = server("lexicon-live").await?;
    save(&server, "live", "New York Times = the paper\nnew = old", json!({})).await?;
    let text = "The new one, the New York Times and New Yo";
    let (whole, _) = said(&server, text, json!({"lexicons": ["live"]})).await?;
    assert_eq!(whole, "The old one, the the paper and old Yo".len());
    let mut session = server.session().await?;
    session.send(json!({"type": "session.config", "lexicons": ["live"]})).await?;
    session.expect("session.created").await?;
    session.send(json!({"type": "input.text", "text": "The "})).await?;
    let utterance = Utterance { start: session.expect("audio.start").await?, ..Default::default() };
    let engine = server.engine()?;
    eventually("the text has run out", || async move { Ok(engine.status().awaiting_input == 1) }).await?;
    for piece in ["ne", "w one, the New", " York", " Ti", "mes and Ne", "w Yo"] {
        session.send(json!({"type": "input.text", "text": piece})).await?;
    }
    session.send(json!({"type": "input.done"})).await?;
    let utterance = session.rest_of(utterance).await?;
    assert_eq!(utterance.done["samples"], (whole + 1) * 1_920);
    session.expect_done(1000).await?;
    server.assert_balanced().await
}

#[tokio::test(flavor = "multi_thread")]
async fn lexicons_that_cannot_be_saved_or_used_are_refused_by_name() -> Result<()> {
    let (server, home) = server("lexicon-faults").await?;
    for (body, status, param, part) in [
        (json!({"text": "a = b"}), 400, "name", "name"),
        (json!({"name": "../a", "text": "a = b"}), 400, "name", "a-z"),
        (json!({"name": "a", "text": "a b"}), 400, "text", "line 1"),
        (json!({"name": "a", "text": "<lexicon>"}), 400, "text", "no XML"),
        (json!({"name": "a", "entries": [{"word": "a", "ipa": "7"}]}), 400, "entries", "no sound in IPA"),
        (json!({"name": "a", "entries": [], "text": "a = b"}), 400, "text", "both"),
        (json!({"name": "a", "entries": 7}), 400, "entries", "entries"),
    ] {
        let response = server.post("/v1/lexicons", &body).await?;
        assert_eq!(response.status(), status, "{body}");
        let error: Value = response.json().await?;
        assert_eq!(error["error"]["param"], param, "{error}");
        assert!(error["error"]["message"].as_str().context("a message")?.contains(part), "{error}");
    }
    save(&server, "good", "a = b", json!({})).await?;
    let again = server.post("/v1/lexicons", &json!({"name": "good", "text": "a = b"})).await?;
    assert_eq!(again.status(), 409);
    for path in ["/v1/lexicons/bad", "/v1/lexicons/..%2Fgood"] {
        assert!(server.get(path).await?.status().is_client_error());
    }
    // A damaged file disturbs only who names it.
    std::fs::write(home.path().join("lexicons/broken.json"), "{")?;
    assert_eq!(said(&server, "a", json!({})).await?.0, 1);
    let body = json!({"input": "a", "lexicons": ["broken"]});
    let refused: Value = server.speech(&body).await?.json().await?;
    assert_eq!(refused["error"]["param"], "lexicons");
    assert!(refused["error"]["message"].as_str().context("a message")?.contains("'broken' cannot be used"));
    let many = json!({"input": "a", "lexicons": vec!["good"; 17]});
    assert_eq!(server.speech(&many).await?.status(), 400);
    Ok(())
}
