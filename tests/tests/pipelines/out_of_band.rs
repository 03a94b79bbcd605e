//! Responses out of the conversation.

use std::sync::Arc;

use anyhow::{Result, ensure};
use izwi_tests::{Completion, Line, Llm, Session, TestServer, eventually};
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use super::{connect, create, deltas, done, respond, said, serve, speaker, told};

/// A response out of the conversation, of `input` or of the conversation.
fn out_of_band(input: Value) -> Value {
    let mut response = json!({
        "conversation": "none",
        "output_modalities": ["text"],
        "metadata": {"topic": "class"},
        "instructions": "Classify.",
    });
    if !input.is_null() {
        response["input"] = input;
    }
    response
}

/// A session whose language model answers "Hello." in part, and goes on while there are permits; anything else at once.
async fn greeted(name: &str) -> Result<(TestServer, Llm, Arc<Semaphore>, Session)> {
    let permits = Arc::new(Semaphore::new(0));
    let held = Arc::clone(&permits);
    let llm = Llm::start(move |_, body| match told(body).last().map(String::as_str) {
        Some("user: Hello.") => Completion::Lines(vec![
            Line::Text("Good day. "),
            Line::Wait(Arc::clone(&held)),
            Line::End("stop"),
        ]),
        _ => Completion::text(&["Greeting"]),
    })
    .await?;
    let server = serve(name, &llm, speaker(), |_| {}).await?;
    let session = connect(&server, name, json!({})).await?;
    Ok((server, llm, permits, session))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_response_out_of_the_conversation_leaves_nothing_in_it() -> Result<()> {
    let (_server, llm, permits, mut session) = greeted("pipeline-out-of-band").await?;
    create(&mut session, said("Hello.")).await?;
    let hello = session.until("conversation.item.done").await?["item"]["id"].clone();
    session.send(json!({"type": "response.create", "response": {"output_modalities": ["text"]}})).await?;
    session.until("response.output_text.delta").await?;
    // Beside the answer: of what the client sends, of the whole conversation, and of nothing.
    let reference = json!({"type": "item_reference", "id": hello});
    for (input, expected) in [
        (json!([reference, said("Name it.")]), vec!["system: Classify.", "user: Hello.\\nName it."]),
        (json!([]), vec!["system: Classify."]),
    ] {
        let events = respond(&mut session, out_of_band(input)).await?;
        ensure!(deltas(&events, "response.output_text.delta") == "Greeting", "{events:?}");
        let of_conversation =
            |event: &&Value| event["type"].as_str().is_some_and(|kind| kind.starts_with("conversation."));
        ensure!(events.iter().find(of_conversation).is_none(), "{events:?}");
        let done = done(&events);
        ensure!(done["conversation_id"].is_null() && done["metadata"]["topic"] == "class", "{done}");
        ensure!(
            done["status"] == "completed" && done["output"][0]["content"][0]["text"] == "Greeting",
            "{done}"
        );
        ensure!(told(llm.seen().last().unwrap()) == expected, "{:?}", llm.seen().last());
    }
    permits.add_permits(1);
    let ended = session.until("response.done").await?["response"].clone();
    ensure!(ended["status"] == "completed" && !ended["conversation_id"].is_null(), "{ended}");
    create(&mut session, said("And now?")).await?;
    let events = respond(&mut session, out_of_band(Value::Null)).await?;
    ensure!(done(&events)["conversation_id"].is_null(), "{events:?}");
    let expected = ["system: Classify.", "user: Hello.", "assistant: Good day.", "user: And now?"];
    ensure!(told(llm.seen().last().unwrap()) == expected, "{:?}", llm.seen().last());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_response_out_of_the_conversation_is_refused_or_cancelled_alone() -> Result<()> {
    let (_server, llm, _permits, mut session) = greeted("pipeline-out-of-band-ends").await?;
    let refused = [
        (json!([{"type": "item_reference", "id": "none"}]), "response.input[0]"),
        (
            json!([said("Hi."), {"type": "message", "role": "king", "content": [{"type": "input_text", "text": "Hi."}]}]),
            "response.input[1].role",
        ),
        (json!([5]), "response.input[0]"),
    ];
    for (input, param) in refused {
        session.send(json!({"type": "response.create", "response": out_of_band(input)})).await?;
        let error = session.expect("error").await?["error"].clone();
        ensure!(error["param"] == param, "{error}");
    }
    // One that is cancelled by its id; the answer goes on.
    session
        .send(json!({"type": "response.create", "response": out_of_band(json!([said("Hello.")]))}))
        .await?;
    let id = session.until("response.created").await?["response"]["id"].clone();
    session.until("response.output_text.delta").await?;
    session.send(json!({"type": "response.cancel", "response_id": id})).await?;
    let ended = session.until("response.done").await?["response"].clone();
    ensure!(ended["id"] == id && ended["status"] == "cancelled", "{ended}");
    eventually("the request to end", || async { Ok(llm.open() == 0) }).await
}
