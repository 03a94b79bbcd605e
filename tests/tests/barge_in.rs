//! Interruptions: what the listener heard, the text that remains, and the history of a conversation.

use std::time::Instant;

use anyhow::{Context, Result, ensure};
use izwi_tests::{Gate, Session, Setup, TestServer, Turn};
use serde_json::{Value, json};

const TEXT: &str = "One two three four five six seven eight nine ten eleven.";

/// A model of a tenth of a second for each character, so that nothing is played by the clock within a test.
fn slow_speaker(name: &str) -> Setup {
    let mut setup = Setup::units(name);
    setup.model.samples_per_token = 2_400;
    setup
}

#[tokio::test(flavor = "multi_thread")]
async fn reports_of_playback_correct_the_clock() -> Result<()> {
    let server = slow_speaker("barge-ack").start().await?;
    let mut session = server.session().await?;
    session.send(json!({"type": "input.text", "text": TEXT})).await?;
    session.send(json!({"type": "input.flush"})).await?;
    session.until("audio.done").await?;
    session.send(json!({"type": "playback.ack"})).await?;
    ensure!(session.expect_error("invalid_value").await?["param"] == "played_ms");
    session.send(json!({"type": "playback.ack", "utterance": 3, "played_ms": 1})).await?;
    ensure!(session.expect_error("invalid_value").await?["param"] == "utterance");
    let reported_at = Instant::now();
    session.send(json!({"type": "playback.ack", "played_ms": 3_000})).await?;
    session.send(json!({"type": "interrupt"})).await?;
    let heard = session.expect("interrupted").await?;
    let played = heard["played_ms"].as_u64().context("played_ms")?;
    let most = (3_000 + reported_at.elapsed().as_millis() as u64).min(5_600);
    ensure!((3_000..=most).contains(&played), "{heard}, at most {most}");
    ensure!(heard["utterance"] == 0 && heard["approximate"] == true, "{heard}");
    // Nothing is left to interrupt.
    session.send(json!({"type": "interrupt", "utterance": 0, "played_ms": 9})).await?;
    let again = session.expect("interrupted").await?;
    ensure!(again["utterance"].is_null() && again["text_remaining"] == "", "{again}");
    assert_eq!(server.metric("izwi_interrupts_total", &["task=\"tts\""]).await?, 2.0);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_interruption_tells_what_was_said_and_what_remains() -> Result<()> {
    let (gate, script) = Gate::new(|plan| plan.schedule.items().any(|item| item.start > 2));
    let mut setup = Setup::tokens("barge-text").script(script);
    setup.model.samples_per_token = 24_000;
    let server = setup.start().await?;
    let mut session = server.session().await?;
    session.send(json!({"type": "session.config", "seed": 1})).await?;
    session.expect("session.created").await?;
    gate.admit(2);
    session.send(json!({"type": "input.text", "text": TEXT})).await?;
    session.send(json!({"type": "input.flush"})).await?;
    session.send(json!({"type": "input.text", "text": "A second utterance."})).await?;
    session.send(json!({"type": "input.flush"})).await?;
    session.send(json!({"type": "input.text", "text": " And a rest without an end "})).await?;
    session.expect("audio.start").await?;
    session.chunk().await?;
    for _ in 0..9 {
        session.chunk().await?;
    }
    // Two of the seconds that 56 characters take at 15 a second: 30 characters, cut at a word.
    session.send(json!({"type": "interrupt", "played_ms": 2_000})).await?;
    // Nothing more is generated before it is answered.
    let heard = session.until("interrupted").await?;
    gate.open();
    ensure!(heard["played_ms"] == 2_000 && heard["approximate"] == true, "{heard}");
    let said = heard["text_spoken"].as_str().context("text")?;
    let remaining = heard["text_remaining"].as_str().context("text")?;
    ensure!(said == "One two three four five six", "{heard}");
    let all = format!("{TEXT} A second utterance. And a rest without an end");
    ensure!(format!("{said} {remaining}") == all, "{heard}");
    let done = session.until("audio.done").await?;
    ensure!(done["finish_reason"] == "interrupted" && done["utterance"] == 0, "{done}");
    // What was dropped does not come back.
    session.send(json!({"type": "input.text", "text": "Go on."})).await?;
    session.send(json!({"type": "input.done"})).await?;
    let next = session.utterance().await?;
    ensure!(next.start["utterance"] == 1 && next.done["finish_reason"] == "stop", "{:?}", next.done);
    session.expect_done(1000).await?;
    server.assert_balanced().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gap_that_the_listener_heard_counts_once() -> Result<()> {
    let (gate, script) = Gate::new(|plan| plan.schedule.items().any(|item| item.start > 2));
    let server = Setup::tokens("barge-gap").script(script).start().await?;
    let mut session = server.session().await?;
    session.send(json!({"type": "speak", "text": TEXT, "seed": 1})).await?;
    gate.admit(2);
    session.until("audio.start").await?;
    for played_ms in [50, 100] {
        let gap = json!({"type": "playback.ack", "utterance": 0, "played_ms": played_ms, "gap_ms": 150});
        session.send(gap).await?;
    }
    // The engine has both before it goes on.
    session.send(json!({"type": "ping"})).await?;
    session.until("pong").await?;
    gate.open();
    session.until("session.done").await?;
    assert_eq!(server.metric("izwi_audio_underruns_total", &["cause=\"heard\""]).await?, 1.0);
    server.assert_balanced().await
}

#[tokio::test(flavor = "multi_thread")]
async fn words_are_exact_where_the_model_knows_them() -> Result<()> {
    let mut setup = slow_speaker("barge-exact");
    setup.model.times_words = true;
    let server = setup.start().await?;
    let text = "A first part. A second one. The third and last.";
    // A word takes a tenth of a second for each of its bytes.
    for (played_ms, said) in
        [(99, ""), (1_299, "A first"), (1_300, "A first part."), (1_900, "A first part. A")]
    {
        let mut session = server.session().await?;
        session.send(json!({"type": "input.text", "text": text})).await?;
        session.send(json!({"type": "input.flush"})).await?;
        session.until("audio.done").await?;
        session.send(json!({"type": "interrupt", "utterance": 0, "played_ms": played_ms})).await?;
        let heard = session.expect("interrupted").await?;
        let expected = json!({
            "type": "interrupted", "utterance": 0, "played_ms": played_ms, "text_spoken": said,
            "text_remaining": text[said.len()..].trim(), "approximate": false,
        });
        ensure!(heard == expected, "{heard}");
    }
    Ok(())
}

async fn ask(session: &mut Session, text: &str) -> Result<Turn> {
    session.send(json!({"type": "input.text", "text": text})).await?;
    session.rest_of_turn(Turn::default()).await
}

async fn begin(server: &TestServer) -> Result<Session> {
    let mut session = server.chat().await?;
    session.send(json!({"type": "session.config", "seed": 4})).await?;
    session.expect("session.created").await?;
    Ok(session)
}

/// Interrupts after `played_ms` of turn 0 and returns the report.
async fn interrupt(session: &mut Session, played_ms: u64) -> Result<Value> {
    session.send(json!({"type": "interrupt", "turn": 0, "played_ms": played_ms})).await?;
    session.until("interrupted").await
}

/// The history must be the same whether the answer was interrupted while it was generated or after it was delivered
/// whole: what the listener heard.
#[tokio::test(flavor = "multi_thread")]
async fn a_conversation_remembers_only_what_was_heard() -> Result<()> {
    let question = "a long question, ".repeat(3);
    let server = Setup::converser("barge-chat").start().await?;
    let mut undisturbed = begin(&server).await?;
    let whole = ask(&mut undisturbed, &question).await?;
    let remembers_all = ask(&mut undisturbed, "And then?").await?;

    let mut answers = Vec::new();
    for played_ms in [0, 400, 479, 480] {
        let mut session = begin(&server).await?;
        ask(&mut session, &question).await?;
        let heard = interrupt(&mut session, played_ms).await?;
        let said = heard["text_spoken"].as_str().context("text")?;
        ensure!(heard["turn"] == 0 && heard["played_ms"] == played_ms, "{heard}");
        ensure!(whole.text.starts_with(said) && (said.is_empty() == (played_ms == 0)), "{heard}");
        answers.push(ask(&mut session, "And then?").await?.text);
    }
    ensure!(
        answers.iter().all(|answer| *answer != remembers_all.text),
        "the history holds what was not heard"
    );
    ensure!(answers[1] == answers[2] && answers[2] != answers[3], "a frame counts once it was heard whole");
    let mut session = begin(&server).await?;
    ask(&mut session, &question).await?;
    let length = whole.done["duration_s"].as_f64().context("a duration")? * 1_000.0;
    let heard = interrupt(&mut session, length.ceil() as u64).await?;
    ensure!(heard["text_remaining"] == "" && heard["approximate"] == false, "{heard}");
    ensure!(ask(&mut session, "And then?").await?.text == remembers_all.text, "all of it was heard");

    let (gate, script) = Gate::new(|_| true);
    let held = Setup::converser("barge-chat-held").script(script).start().await?;
    let mut session = begin(&held).await?;
    gate.admit(24);
    session.send(json!({"type": "input.text", "text": question})).await?;
    let mut turn = Turn::default();
    while turn.chunks.len() < 4 {
        session.more_of(&mut turn).await?;
    }
    session.send(json!({"type": "interrupt", "played_ms": 400})).await?;
    let heard = session.until("interrupted").await?;
    ensure!(heard["played_ms"] == 400, "{heard}");
    gate.open();
    let done = session.until("turn.done").await?;
    ensure!(done["finish_reason"] == "interrupted", "{done}");
    ensure!(ask(&mut session, "And then?").await?.text == answers[1], "another history");
    held.assert_balanced().await
}
