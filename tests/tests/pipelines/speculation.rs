//! Answers that begin in a pause, before the turn has ended.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use izwi_tests::{Completion, Line, Llm, Session, TestServer, base64, eventually};
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use super::{connect, create, deltas, done, respond, said, serve, speaker, speech, told};

/// A session whose turns end by 500 ms of silence, with a pipeline that speculates; the language model writes while there are permits.
async fn speculating(name: &str) -> Result<(TestServer, Llm, Arc<Semaphore>, Session)> {
    let permits = Arc::new(Semaphore::new(0));
    let held = Arc::clone(&permits);
    let llm = Llm::start(move |_, _| {
        Completion::Lines(vec![Line::Text("Good day. "), Line::Wait(Arc::clone(&held)), Line::End("stop")])
    })
    .await?;
    let server = serve(name, &llm, speaker(), |config| config.speculates = true).await?;
    let input = json!({"turn_detection": {"type": "server_vad"}});
    let session = connect(&server, name, json!({"audio": {"input": input}})).await?;
    Ok((server, llm, permits, session))
}

async fn say(session: &mut Session, samples: &[u8]) -> Result<()> {
    session.send(json!({"type": "input_audio_buffer.append", "audio": base64(samples)})).await
}

/// So much silence, 16-bit samples at 24 kHz.
fn silence(ms: usize) -> Vec<u8> {
    vec![0; ms * 48]
}

/// Says these samples and pauses, for less time than ends a turn, until the language model is asked.
async fn say_until_asked(session: &mut Session, samples: &[u8], llm: &Llm) -> Result<()> {
    let before = llm.seen().len();
    say(session, samples).await?;
    for _ in 0..10 {
        say(session, &silence(40)).await?;
        for _ in 0..20 {
            tokio::time::sleep(Duration::from_millis(25)).await;
            if llm.seen().len() > before {
                return Ok(());
            }
        }
    }
    anyhow::bail!("the language model is not asked within a pause")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pipeline_that_speculates_is_asked_before_the_turn_ends() -> Result<()> {
    let (_server, llm, permits, mut session) = speculating("pipeline-early").await?;
    say_until_asked(&mut session, &speech()?, &llm).await?;
    permits.add_permits(2);
    say(&mut session, &silence(600)).await?;
    let mut events = Vec::new();
    while events.last().is_none_or(|event: &Value| event["type"] != "response.done") {
        events.push(session.frame().await?);
    }
    let place = |kind: &str| events.iter().position(|event| event["type"] == kind).context(kind.to_owned());
    let (stopped, created) = (place("input_audio_buffer.speech_stopped")?, place("response.created")?);
    ensure!(place("input_audio_buffer.speech_started")? == 0 && stopped < created, "{events:?}");
    ensure!(created < place("response.output_item.added")?, "{events:?}");
    ensure!(deltas(&events, "response.output_audio_transcript.delta").trim() == "Good day.", "{events:?}");
    ensure!(!deltas(&events, "response.output_audio.delta").is_empty(), "it is spoken");
    ensure!(done(&events)["id"] == events[created]["response"]["id"], "{events:?}");
    let item = events[place("conversation.item.done")?]["item"]["id"].clone();
    session.send(json!({"type": "conversation.item.retrieve", "item_id": item})).await?;
    let heard = session.expect("conversation.item.retrieved").await?["item"]["content"][0].clone();
    let messages = llm.seen()[0]["messages"].clone();
    ensure!(messages[1]["content"] == heard["transcript"], "{messages} {heard}");
    // The next answer knows this one.
    create(&mut session, said("And now?")).await?;
    respond(&mut session, json!({"output_modalities": ["text"]})).await?;
    let heard = heard["transcript"].as_str().unwrap_or_default();
    let history = told(&llm.seen()[1]);
    let expected = [format!("user: {heard}"), "assistant: Good day.".into(), "user: And now?".into()];
    ensure!(history[1..] == expected, "{history:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_began_too_early_leaves_no_trace() -> Result<()> {
    let (server, llm, permits, mut session) = speculating("pipeline-too-early").await?;
    say_until_asked(&mut session, &speech()?, &llm).await?;
    // The speaker goes on.
    say(&mut session, &speech()?).await?;
    eventually("the request to end", || async { Ok(llm.open() == 0) }).await?;
    say_until_asked(&mut session, &[], &llm).await?;
    // Somebody else's words are to be answered, too.
    create(&mut session, said("Be brief.")).await?;
    eventually("the request to end", || async { Ok(llm.open() == 0) }).await?;
    permits.add_permits(1);
    say(&mut session, &silence(600)).await?;
    let mut events = Vec::new();
    while events.last().is_none_or(|event: &Value| event["type"] != "response.done") {
        events.push(session.frame().await?);
    }
    let count = |kind: &str| events.iter().filter(|event| event["type"] == kind).count();
    ensure!(count("response.created") == 1 && count("error") == 0, "{events:?}");
    ensure!(done(&events)["status"] == "completed", "{events:?}");
    let seen = llm.seen();
    ensure!(seen.len() == 3, "{seen:?}");
    let said = |at: usize| seen[at]["messages"][1]["content"].as_str().unwrap_or_default();
    ensure!(said(1).len() > said(0).len() && said(2).starts_with("Be brief."), "{seen:?}");
    // A client that leaves in the pause ends it.
    say_until_asked(&mut session, &speech()?, &llm).await?;
    drop(session);
    eventually("the request to end", || async { Ok(llm.open() == 0) }).await?;
    server.assert_no_sessions().await
}
