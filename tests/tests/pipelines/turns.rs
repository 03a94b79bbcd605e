//! Ends of turns as a pipeline is configured: a default, which sessions change.

use anyhow::{Context, Result, ensure};
use izwi_tests::{Completion, Llm, Session, TestServer, base64};
use izwi_types::{Eagerness, TurnEnds};
use serde_json::{Value, json};

use super::{serve, speaker, speech};

async fn open(server: &TestServer, name: &str) -> Result<Session> {
    let mut session = Session::open(&format!("ws://{}/v1/realtime?model={name}", server.address)).await?;
    session.expect("session.created").await?;
    Ok(session)
}

/// The detection of turns that is in effect after these settings of a session.
async fn updated(session: &mut Session, settings: Value) -> Result<Value> {
    session.send(json!({"type": "session.update", "session": settings})).await?;
    Ok(session.expect("session.updated").await?["session"]["audio"]["input"]["turn_detection"].clone())
}

fn detection(settings: Value) -> Value {
    json!({"audio": {"input": {"turn_detection": settings}}})
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pipeline_has_a_detection_of_turns_that_sessions_change() -> Result<()> {
    let llm = Llm::start(|_, _| Completion::text(&["Yes."])).await?;
    let name = "pipeline-turns";
    let turns = TurnEnds { eagerness: Some(Eagerness::High), silence_ms: Some(1_500) };
    let server = serve(name, &llm, speaker(), |config| config.turns = Some(turns)).await?;
    let mut session = open(&server, name).await?;
    let shown = updated(&mut session, json!({"instructions": "Be brief."})).await?;
    ensure!(shown["type"] == "semantic_vad" && shown["eagerness"] == "high", "{shown}");
    let shown = updated(&mut session, detection(json!({"create_response": false}))).await?;
    ensure!(shown["eagerness"] == "high" && shown["create_response"] == false, "{shown}");
    let by_silence = json!({"type": "server_vad", "silence_duration_ms": 900});
    let shown = updated(&mut session, detection(by_silence.clone())).await?;
    ensure!(shown["type"] == "server_vad" && shown["silence_duration_ms"] == 900, "{shown}");
    ensure!(updated(&mut session, detection(Value::Null)).await?.is_null());
    // So does the first message of a session.
    let shown = updated(&mut open(&server, name).await?, detection(by_silence)).await?;
    ensure!(shown["type"] == "server_vad" && shown["silence_duration_ms"] == 900, "{shown}");
    ensure!(updated(&mut open(&server, name).await?, detection(Value::Null)).await?.is_null());
    // The scripted model takes no turn for complete: silence ends it, as long as configured, and no client has to ask.
    let mut session = open(&server, name).await?;
    let (spoken, silence) = (speech()?, vec![0; 2_500 * 48]);
    for audio in [&spoken, &silence] {
        session.send(json!({"type": "input_audio_buffer.append", "audio": base64(audio)})).await?;
    }
    let stopped = session.until("input_audio_buffer.speech_stopped").await?;
    let (end_ms, spoken_ms) = (stopped["audio_end_ms"].as_u64().context("a time")?, spoken.len() as u64 / 48);
    ensure!((spoken_ms + 1_000..spoken_ms + 1_900).contains(&end_ms), "{end_ms} ms of {spoken_ms} ms");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn silence_of_a_pipeline_ends_turns() -> Result<()> {
    let llm = Llm::start(|_, _| Completion::text(&["Yes."])).await?;
    let name = "pipeline-silence";
    let turns = TurnEnds { eagerness: None, silence_ms: Some(700) };
    let server = serve(name, &llm, speaker(), |config| config.turns = Some(turns)).await?;
    let shown = updated(&mut open(&server, name).await?, json!({})).await?;
    ensure!(shown["type"] == "server_vad" && shown["silence_duration_ms"] == 700, "{shown}");
    Ok(())
}
