//! Pipelines: a scripted language model between simulated models that listen and speak, behind every interface of a
//! conversation.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod out_of_band;
mod speculation;
mod turns;

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use izwi_audio::decode::{DecodeLimits, decode};
use izwi_audio::pcm;
use izwi_core::engine::executor::simulated::{SimulatedExecutor, SimulatedModel};
use izwi_core::engine::{Engine, EngineCoreConfig};
use izwi_remote::{Pipeline, PipelineConfig};
use izwi_server::{Recorder, Registry, RegistryConfig, ServerConfig, Slot};
use izwi_tests::{Completion, Incoming, Line, Llm, Session, TestServer, Turn, base64, eventually};
use serde_json::{Value, json};
use tokio::sync::Semaphore;

/// An engine of a simulated model.
async fn simulated(name: &str, model: SimulatedModel) -> Result<Engine> {
    let config =
        EngineCoreConfig { model: name.to_owned(), num_threads: 2, admission: false, ..Default::default() };
    let executor = SimulatedExecutor::new(&config, model);
    let engine = Engine::with_executor(config, Box::new(executor))?;
    engine.ready().await?;
    Ok(engine)
}

/// A server whose chat model is a pipeline of this name, with the settings of `change`.
pub(super) async fn serve(
    name: &str,
    llm: &Llm,
    speaker: SimulatedModel,
    change: impl FnOnce(&mut PipelineConfig),
) -> Result<TestServer> {
    let tts = simulated(&format!("{name}-tts"), speaker).await?;
    serve_with(name, llm, tts, change).await
}

/// As [`serve`], with the engine of the model that speaks.
pub(super) async fn serve_with(
    name: &str,
    llm: &Llm,
    tts: Engine,
    change: impl FnOnce(&mut PipelineConfig),
) -> Result<TestServer> {
    let (tts_name, asr) = (tts.profile().model.clone(), format!("{name}-asr"));
    let listener = SimulatedModel {
        transcribes: true,
        sample_rate: 16_000,
        says: &["Hello", "there"],
        ..Default::default()
    };
    let config = RegistryConfig { default_asr: Some(asr.clone()), ..RegistryConfig::new(&tts_name) };
    let registry = Registry::new(config);
    registry.set(&tts_name, Slot::Ready(tts));
    registry.set(&asr, Slot::Ready(simulated(&asr, listener).await?));
    // No turn is complete to it.
    let turns = format!("{name}-turns");
    let turn_model = SimulatedModel {
        transcribes: true,
        sample_rate: 16_000,
        min_turn_s: Some(usize::MAX),
        ..Default::default()
    };
    registry.set(&turns, Slot::Ready(simulated(&turns, turn_model).await?));
    let mut config = PipelineConfig::new(name, vec![llm.url()], "scripted");
    config.llm.retries = 0;
    change(&mut config);
    izwi_tests::provide_tls();
    let pipeline = Pipeline::connect(config, registry.engines_for_parts()).await?;
    let base = EngineCoreConfig { num_threads: 2, ..EngineCoreConfig::default() };
    registry.set(name, Slot::Ready(pipeline.into_engine(base)?));
    let server = ServerConfig { resume_window: Duration::ZERO, ..ServerConfig::default() };
    TestServer::listen(server, registry, Recorder::install()?).await
}

/// A voice that takes sentences, a hundred samples for each character.
pub(super) fn speaker() -> SimulatedModel {
    SimulatedModel { autoregressive: false, samples_per_token: 100, ..Default::default() }
}

/// A voice that takes text while it speaks, 80 ms for each byte.
fn reader() -> SimulatedModel {
    SimulatedModel { appends_text: true, ..Default::default() }
}

pub(super) async fn connect(server: &TestServer, name: &str, session: Value) -> Result<Session> {
    let mut socket = Session::open(&format!("ws://{}/v1/realtime?model={name}", server.address)).await?;
    socket.expect("session.created").await?;
    let mut settings = json!({"type": "realtime", "audio": {"input": {"turn_detection": null}}});
    settings.as_object_mut().context("an object")?.extend(session.as_object().cloned().unwrap_or_default());
    socket.send(json!({"type": "session.update", "session": settings})).await?;
    socket.expect("session.updated").await?;
    Ok(socket)
}

pub(super) async fn create(session: &mut Session, item: Value) -> Result<()> {
    session.send(json!({"type": "conversation.item.create", "item": item})).await
}

pub(super) fn said(text: &str) -> Value {
    json!({"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]})
}

/// The events of a response, which is asked for.
pub(super) async fn respond(session: &mut Session, response: Value) -> Result<Vec<Value>> {
    session.send(json!({"type": "response.create", "response": response})).await?;
    let mut events = Vec::new();
    loop {
        let event = session.frame().await?;
        ensure!(event["type"] != "error", "{event}");
        let is_last = event["type"] == "response.done";
        events.push(event);
        if is_last {
            return Ok(events);
        }
    }
}

/// The joined deltas of a type.
pub(super) fn deltas(events: &[Value], kind: &str) -> String {
    let of_kind = events.iter().filter(|event| event["type"] == kind);
    of_kind.filter_map(|event| event["delta"].as_str()).collect()
}

pub(super) fn done(events: &[Value]) -> &Value {
    &events.last().unwrap()["response"]
}

/// The messages of a request, as roles and contents.
fn told(body: &Value) -> Vec<String> {
    let shown = |message: &Value| format!("{}: {}", message["role"], message["content"]).replace('"', "");
    body["messages"].as_array().unwrap().iter().map(shown).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_is_written_and_spoken_and_remembered() -> Result<()> {
    let llm = Llm::start(|number, _| match number {
        0 => Completion::Lines(vec![
            Line::Thought("Hm."),
            Line::Text("<thi"),
            Line::Text("nk>A bird?</think>"),
            Line::Text("A **robin**, of"),
            Line::Text(" course. "),
            Line::Text("Or a wren."),
            Line::End("stop"),
        ]),
        _ => Completion::text(&["Yes."]),
    })
    .await?;
    for (name, voice) in [("pipeline-clauses", speaker()), ("pipeline-words", reader())] {
        let before = llm.seen().len();
        let server = serve(name, &llm, voice, |config| {
            config.system = Some("Be kind.".to_owned());
            config.parameters.insert("top_k".to_owned(), 3.into());
        })
        .await?;
        let mut session = connect(&server, name, json!({})).await?;
        create(&mut session, said("Name a bird.")).await?;
        let events = respond(&mut session, json!({})).await?;
        let text = deltas(&events, "response.output_audio_transcript.delta");
        let expected = if before == 0 { "A **robin**, of course. Or a wren." } else { "Yes." };
        ensure!(text == expected, "{text}");
        ensure!(deltas(&events, "response.output_audio.delta").len() > 100, "there is no sound");
        let response = done(&events);
        ensure!(response["status"] == "completed", "{response}");
        ensure!(response["output"][0]["content"][0]["transcript"] == expected, "{response}");
        ensure!(
            response["usage"]["input_tokens"] == 40 && response["usage"]["output_tokens"] == 9,
            "{response}"
        );
        create(&mut session, said("And another.")).await?;
        let events = respond(&mut session, json!({"instructions": "Be brief."})).await?;
        ensure!(done(&events)["status"] == "completed", "{:?}", events.last());
        let seen = llm.seen();
        let (first, second) = (&seen[before], &seen[before + 1]);
        ensure!(first["model"] == "scripted" && first["stream"] == true && first["top_k"] == 3, "{first}");
        ensure!(first.get("tools").is_none() && first.get("max_tokens").is_none(), "{first}");
        ensure!(told(first) == ["system: Be kind.", "user: Name a bird."], "{first}");
        let answer = format!("assistant: {expected}");
        ensure!(
            told(second) == ["system: Be brief.", "user: Name a bird.", &answer, "user: And another."],
            "{second}"
        );
        eventually("the answers to end", || async { Ok(llm.open() == 0) }).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_user_says_is_transcribed_once() -> Result<()> {
    let llm = Llm::start(|_, _| Completion::text(&["Good day."])).await?;
    let name = "pipeline-heard";
    let server = serve(name, &llm, speaker(), |_| {}).await?;
    let mut session = connect(&server, name, json!({})).await?;
    let tone: Vec<u8> =
        (0..24_000).flat_map(|n| ((8_000.0 * (n as f32 * 0.1).sin()) as i16).to_le_bytes()).collect();
    for _ in 0..2 {
        session.send(json!({"type": "input_audio_buffer.append", "audio": base64(&tone)})).await?;
        session.send(json!({"type": "input_audio_buffer.commit"})).await?;
        let events = respond(&mut session, json!({"output_modalities": ["text"]})).await?;
        ensure!(deltas(&events, "response.output_text.delta") == "Good day.", "{events:?}");
        ensure!(deltas(&events, "response.output_audio.delta").is_empty(), "{events:?}");
    }
    let seen = llm.seen();
    let heard = told(&seen[1]);
    ensure!(
        heard[1].starts_with("user: Hello") && heard[2] == "assistant: Good day." && heard.len() == 4,
        "{heard:?}"
    );
    let labels = ["model=\"pipeline-heard-asr\""];
    ensure!(
        server.metric("izwi_requests_total", &labels).await? == 2.0,
        "each recording is transcribed once"
    );
    let spoken = ["model=\"pipeline-heard-tts\""];
    ensure!(server.metric("izwi_requests_total", &spoken).await? == 0.0, "text alone is not spoken");
    Ok(())
}

/// The first two seconds of a recording, 16-bit samples at 24 kHz.
fn speech() -> Result<Vec<u8>> {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../assets/speech/jfk.wav");
    let limits = DecodeLimits { max_bytes: 1 << 20, max_duration: Duration::from_secs(30) };
    let mut speech = Vec::new();
    pcm::write_i16_le(&decode(std::fs::read(path)?, 24_000, &limits)?[..48_000], &mut speech);
    Ok(speech)
}

#[tokio::test(flavor = "multi_thread")]
async fn speech_is_transcribed_while_it_is_said_though_no_client_asks_for_it() -> Result<()> {
    let llm = Llm::start(|_, _| Completion::text(&["Good day."])).await?;
    let server = serve("pipeline-untold", &llm, speaker(), |_| {}).await?;
    let mut session = connect(&server, "pipeline-untold", json!({})).await?;
    session.send(json!({"type": "input_audio_buffer.append", "audio": base64(&speech()?)})).await?;
    session.send(json!({"type": "input_audio_buffer.commit"})).await?;
    let events = respond(&mut session, json!({"output_modalities": ["text"]})).await?;
    ensure!(deltas(&events, "response.output_text.delta") == "Good day.", "{events:?}");
    let told = |event: &&Value| event["type"].as_str().is_some_and(|kind| kind.contains("transcription"));
    ensure!(events.iter().find(told).is_none(), "{events:?}");
    let item = events.iter().find(|event| event["type"] == "conversation.item.done").context("an item")?;
    session.send(json!({"type": "conversation.item.retrieve", "item_id": item["item"]["id"]})).await?;
    let heard = session.expect("conversation.item.retrieved").await?;
    let heard = heard["item"]["content"][0]["transcript"].as_str().context("a transcript")?.to_owned();
    ensure!(heard.starts_with("Hello") && llm.seen()[0]["messages"][1]["content"] == heard, "{heard}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_transcript_that_a_client_asks_for_is_what_the_language_model_reads() -> Result<()> {
    let llm = Llm::start(|_, _| Completion::text(&["Good day."])).await?;
    let name = "pipeline-read";
    let server = serve(name, &llm, speaker(), |_| {}).await?;
    let input = json!({"turn_detection": null, "transcription": {"model": "whisper-1"}});
    let mut session = connect(&server, name, json!({"audio": {"input": input}})).await?;
    let speech = speech()?;
    let heard = [&format!("model=\"{name}-asr\"")[..]];
    for turn in 0..2 {
        session.send(json!({"type": "input_audio_buffer.append", "audio": base64(&speech)})).await?;
        session.send(json!({"type": "input_audio_buffer.commit"})).await?;
        // The answer is asked for before there is a transcript.
        let events = respond(&mut session, json!({"output_modalities": ["text"]})).await?;
        ensure!(deltas(&events, "response.output_text.delta") == "Good day.", "{events:?}");
        let place = |kind: &str| events.iter().position(|event| event["type"] == kind);
        let told = place("conversation.item.input_audio_transcription.completed").context("a transcript")?;
        ensure!(place("response.output_text.delta").is_some_and(|answer| told < answer), "{events:?}");
        let text = events[told]["transcript"].as_str().unwrap_or_default();
        let seen = llm.seen();
        let read = seen[turn]["messages"].as_array().and_then(|messages| messages.last()).cloned();
        ensure!(!text.is_empty() && read.is_some_and(|read| read["content"] == text), "{text}: {seen:?}");
    }
    let before = server.metric("izwi_requests_total", &heard).await?;
    respond(&mut session, json!({"output_modalities": ["text"]})).await?;
    ensure!(server.metric("izwi_requests_total", &heard).await? == before, "nothing is transcribed again");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_interrupted_answer_is_remembered_as_far_as_it_was_heard() -> Result<()> {
    let gate = Arc::new(Semaphore::new(0));
    let held = Arc::clone(&gate);
    let llm = Llm::start(move |number, _| match number {
        0 => Completion::Lines(vec![
            Line::Text("One two three four five. "),
            Line::Text("Six seven eight nine eleven. "),
            Line::Wait(Arc::clone(&held)),
            Line::End("stop"),
        ]),
        _ => Completion::text(&["Well."]),
    })
    .await?;
    let name = "pipeline-barge";
    // A second for each character.
    let voice = SimulatedModel { samples_per_token: 2_400, ..speaker() };
    let server = serve(name, &llm, voice, |_| {}).await?;
    let mut session = server.chat().await?;
    session.send(json!({"type": "session.config", "model": name})).await?;
    session.expect("session.created").await?;
    session.send(json!({"type": "input.text", "text": "Count."})).await?;
    let mut turn = Turn::default();
    while turn.chunks.len() < 20 {
        session.more_of(&mut turn).await?;
    }
    // At fifteen characters a second, of a tenth of a second each: twenty are said after two seconds.
    session.send(json!({"type": "interrupt", "played_ms": 2_000})).await?;
    let turn = session.rest_of_turn(turn).await?;
    ensure!(turn.done["finish_reason"] == "interrupted", "{}", turn.done);
    eventually("the request to the language model to end", || async { Ok(llm.open() == 0) }).await?;
    session.send(json!({"type": "input.text", "text": "Go on."})).await?;
    session.rest_of_turn(Turn::default()).await?;
    let messages = told(&llm.seen()[1]);
    ensure!(messages.len() == 4 && messages[3] == "user: Go on.", "{messages:?}");
    let heard = messages[2].strip_prefix("assistant: ").context("an answer")?;
    let all = "One two three four five. Six seven eight nine eleven.";
    ensure!(all.starts_with(heard) && (1..40).contains(&heard.len()), "{heard}");
    ensure!(
        heard.split(' ').all(|word| all.split(' ').any(|known| known == word)),
        "words are whole: {heard}"
    );
    Ok(())
}

fn tools() -> Value {
    let parameters = json!({"type": "object", "properties": {"city": {"type": "string"}}});
    json!([{"type": "function", "name": "weather", "description": "Tells the weather.", "parameters": parameters}])
}

/// Checks the events of a call, which is the output `index` of its response.
fn check_call(events: &[Value], item: &Value, index: usize) -> Result<()> {
    let of_item =
        events.iter().filter(|event| event["item_id"] == item["id"] || event["item"]["id"] == item["id"]);
    let kinds: Vec<&str> = of_item.filter_map(|event| event["type"].as_str()).collect();
    let expected = [
        "response.output_item.added",
        "conversation.item.added",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.done",
        "conversation.item.done",
        "response.output_item.done",
    ];
    ensure!(kinds == expected, "{kinds:?}");
    let found =
        events.iter().find(|event| event["item_id"] == item["id"]).map(|event| &event["output_index"]);
    ensure!(found == Some(&json!(index)), "{found:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn tools_are_called_and_their_results_answered() -> Result<()> {
    let llm = Llm::start(|number, _| match number {
        0 => Completion::Lines(vec![
            Line::Text("Let me look. "),
            Line::Call(0, "call_a", "weather", r#"{"city": "Ulm"}"#),
            Line::Call(1, "call_b", "weather", r#"{"city": "Bern"}"#),
            Line::End("tool_calls"),
        ]),
        1 => Completion::text(&["Rain in Ulm, sun in Bern."]),
        2 => Completion::Lines(vec![Line::Call(0, "", "weather", "{}"), Line::End("tool_calls")]),
        _ => Completion::text(&["Nothing."]),
    })
    .await?;
    let name = "pipeline-tools";
    let server = serve(name, &llm, speaker(), |_| {}).await?;
    let mut session = connect(&server, name, json!({"tools": tools(), "tool_choice": "auto"})).await?;
    create(&mut session, said("How is the weather?")).await?;
    let events = respond(&mut session, json!({})).await?;
    let response = done(&events);
    let output = response["output"].as_array().context("output")?;
    ensure!(output.len() == 3 && output[0]["type"] == "message", "{response}");
    for (at, (call, arguments)) in
        [("call_a", r#"{"city": "Ulm"}"#), ("call_b", r#"{"city": "Bern"}"#)].into_iter().enumerate()
    {
        let item = &output[at + 1];
        ensure!(item["type"] == "function_call" && item["status"] == "completed", "{item}");
        ensure!(
            item["call_id"] == call && item["name"] == "weather" && item["arguments"] == arguments,
            "{item}"
        );
        check_call(&events, item, at + 1)?;
    }
    for (call, output) in [("call_b", "sun"), ("call_a", "rain")] {
        create(&mut session, json!({"type": "function_call_output", "call_id": call, "output": output}))
            .await?;
    }
    let events = respond(&mut session, json!({})).await?;
    ensure!(
        deltas(&events, "response.output_audio_transcript.delta") == "Rain in Ulm, sun in Bern.",
        "{events:?}"
    );
    let seen = llm.seen();
    ensure!(
        seen[0]["tools"][0]["function"]["name"] == "weather" && seen[0]["tool_choice"] == "auto",
        "{}",
        seen[0]
    );
    let messages = seen[1]["messages"].as_array().context("messages")?;
    let shown = told(&seen[1]);
    ensure!(shown[2..] == ["assistant: Let me look.", "tool: rain", "tool: sun"], "{shown:?}");
    ensure!(
        messages[2]["tool_calls"][1]["function"]["arguments"] == r#"{"city": "Bern"}"#,
        "{}",
        messages[2]
    );

    // A response of a call alone has no message.
    create(&mut session, said("Again.")).await?;
    let choice = json!({"type": "function", "name": "weather"});
    let events = respond(&mut session, json!({"tool_choice": choice})).await?;
    let output = &done(&events)["output"];
    ensure!(output.as_array().is_some_and(|output| output.len() == 1), "{output}");
    ensure!(output[0]["call_id"].as_str().is_some_and(|id| id.starts_with("call_")), "{output}");
    ensure!(llm.seen()[2]["tool_choice"]["function"]["name"] == "weather", "{}", llm.seen()[2]);
    // One whose result never comes does not keep the model from answering.
    create(&mut session, said("Never mind.")).await?;
    let events = respond(&mut session, json!({"tools": [], "tool_choice": "auto"})).await?;
    ensure!(done(&events)["status"] == "completed", "{:?}", events.last());
    let shown = told(&llm.seen()[3]);
    ensure!(shown[shown.len() - 2..] == ["tool: (no result)", "user: Never mind."], "{shown:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pipeline_may_begin_a_conversation() -> Result<()> {
    let llm = Llm::start(|_, _| Completion::text(&["Welcome."])).await?;
    let name = "pipeline-greets";
    let server = serve(name, &llm, speaker(), |_| {}).await?;
    let mut session = connect(&server, name, json!({})).await?;
    let events = respond(&mut session, json!({"instructions": "Greet the user."})).await?;
    ensure!(deltas(&events, "response.output_audio_transcript.delta") == "Welcome.", "{events:?}");
    ensure!(told(&llm.seen()[0]) == ["system: Greet the user."], "{}", llm.seen()[0]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn every_fault_of_the_language_model_is_told() -> Result<()> {
    let never = Arc::new(Semaphore::new(0));
    let lines = |lines: &[Line]| Completion::Lines(lines.to_vec());
    let cut = |end: Line| lines(&[Line::Text("Well, "), end]);
    let faults = [
        (Completion::Status(429, "slow down"), "overloaded", "busy"),
        (Completion::Status(401, "who are you"), "upstream_failed", "refuses the key"),
        (Completion::Status(400, "no such model"), "upstream_refused", "no such model"),
        (Completion::Status(503, "loading"), "upstream_unavailable", "503"),
        (lines(&[Line::Raw("<html>hello</html>\n")]), "upstream_failed", "no event"),
        (lines(&[Line::Raw("data: {\"a\": 1}\n\n")]), "upstream_failed", "another form"),
        (
            lines(&[Line::Raw("data: {\"error\": {\"message\": \"out of memory\"}}\n\n")]),
            "upstream_failed",
            "out of memory",
        ),
        (cut(Line::Raw("")), "upstream_failed", "ended it early"),
        (cut(Line::Raw("garbage\n")), "upstream_failed", "no event"),
        (cut(Line::Wait(Arc::clone(&never))), "upstream_failed", "nothing for 1 s"),
        (lines(&[Line::Wait(never)]), "upstream_failed", "nothing for 1 s"),
    ];
    let script: Vec<Completion> = faults.iter().map(|(completion, ..)| completion.clone()).collect();
    let last = script.len();
    let llm =
        Llm::start(move |number, _| script.get(number).cloned().unwrap_or(Completion::text(&["Fine."])))
            .await?;
    let name = "pipeline-faults";
    let server = serve(name, &llm, speaker(), |config| {
        config.llm.idle_timeout = Duration::from_secs(1);
        config.llm.first_byte_timeout = Duration::from_secs(1);
        config.llm.breaker_failures = 100;
    })
    .await?;
    let mut session = connect(&server, name, json!({})).await?;
    create(&mut session, said("Hello.")).await?;
    for (number, (_, code, message)) in faults.iter().enumerate() {
        let events = respond(&mut session, json!({})).await?;
        let response = done(&events);
        let error = &response["status_details"]["error"];
        ensure!(response["status"] == "failed" && error["code"] == *code, "{number}: {response}");
        ensure!(error["message"].as_str().is_some_and(|text| text.contains(message)), "{number}: {error}");
        eventually("no request to be left", || async { Ok(llm.open() == 0) }).await?;
        // What was said before the fault is an answer: there must be something to answer again.
        create(&mut session, said("Hello?")).await?;
    }
    let events = respond(&mut session, json!({})).await?;
    ensure!(done(&events)["status"] == "completed" && llm.seen().len() == last + 1, "{events:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_endless_answer_is_cut_and_one_without_a_server_is_refused() -> Result<()> {
    let llm = Llm::start(|_, _| Completion::Lines(vec![Line::Endless("on and on. ")])).await?;
    let name = "pipeline-endless";
    let server = serve(name, &llm, speaker(), |_| {}).await?;
    let mut session = connect(&server, name, json!({"output_modalities": ["text"]})).await?;
    create(&mut session, said("Hello.")).await?;
    let events = respond(&mut session, json!({})).await?;
    let response = done(&events);
    ensure!(
        response["status"] == "incomplete" && response["status_details"]["reason"] == "max_output_tokens",
        "{response}"
    );
    eventually("the connection to be closed", || async { Ok(llm.open() == 0) }).await?;
    let gone = tokio::net::TcpListener::bind("127.0.0.1:0").await?.local_addr()?;
    let name = "pipeline-gone";
    let server =
        serve(name, &llm, speaker(), |config| config.llm.base_urls = vec![format!("http://{gone}/v1")])
            .await?;
    let mut session = connect(&server, name, json!({})).await?;
    create(&mut session, said("Hello.")).await?;
    let events = respond(&mut session, json!({})).await?;
    ensure!(done(&events)["status_details"]["error"]["code"] == "upstream_unavailable", "{events:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_ends_the_request() -> Result<()> {
    let never = Arc::new(Semaphore::new(0));
    let held = Arc::clone(&never);
    let llm = Llm::start(move |_, _| {
        Completion::Lines(vec![
            Line::Text("One moment, please. "),
            Line::Wait(Arc::clone(&held)),
            Line::End("stop"),
        ])
    })
    .await?;
    let name = "pipeline-leaves";
    let server = serve(name, &llm, reader(), |_| {}).await?;
    let mut session = connect(&server, name, json!({})).await?;
    create(&mut session, said("Hello.")).await?;
    session.send(json!({"type": "response.create"})).await?;
    loop {
        match session.next().await? {
            Incoming::Frame(event) if event["type"] == "response.output_audio.delta" => break,
            Incoming::Frame(_) => {}
            other => anyhow::bail!("{other:?}"),
        }
    }
    ensure!(llm.open() == 1, "the answer is being written");
    drop(session);
    eventually("the request to end", || async { Ok(llm.open() == 0) }).await?;
    server.assert_no_sessions().await?;
    let outcome = server
        .metric("izwi_upstream_requests_total", &["model=\"pipeline-leaves\"", "outcome=\"abandoned\""]);
    ensure!(outcome.await? == 1.0, "the request counts as abandoned");
    eventually("the voice to stop", || async {
        Ok(server.metric("izwi_num_requests_running", &["model=\"pipeline-leaves-tts\""]).await? == 0.0)
    })
    .await
}
