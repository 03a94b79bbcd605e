//! Ends of turns by a turn model where speech is transcribed live: the server's own session, and Deepgram's.

use super::*;

/// As `silence` and `speech`, at the rate of live transcription.
const LIVE_HZ: usize = 16_000;
/// Speech, a pause in it, speech again and the silence after the sentence.
fn sentence() -> Result<Vec<f32>> {
    let samples = [speech()?, silence(PAUSE_MS), speech()?, silence(700)].concat();
    // Two of three samples, each the mean of its neighbours.
    let (triples, _) = samples.as_chunks::<3>();
    Ok(triples.iter().flat_map(|&[a, b, c]| [a.midpoint(b), b.midpoint(c)]).collect())
}

fn of_ms(ms: u64) -> usize {
    ms as usize * LIVE_HZ / 1_000
}

/// A server with an ASR model, and a turn model if one is given.
async fn listening(name: &str, turn_model: Option<SimulatedModel>) -> Result<TestServer> {
    let config = RegistryConfig { default_asr: Some(name.to_owned()), ..RegistryConfig::new("none") };
    let registry = Registry::new(config);
    registry.set("none", Slot::Failed("this test has none".to_owned()));
    let asr = SimulatedModel { transcribes: true, sample_rate: LIVE_HZ as u32, ..Default::default() };
    registry.set(name, Slot::Ready(engine(name, asr).await?));
    if let Some(model) = turn_model {
        let turns = format!("{name}-turns");
        registry.set(&turns, Slot::Ready(engine(&turns, model).await?));
    }
    TestServer::listen(ServerConfig::default(), registry, Recorder::install()?).await
}

async fn send(session: &mut Session, samples: &[f32], piece: usize) -> Result<()> {
    for piece in samples.chunks(piece) {
        let mut bytes = Vec::new();
        pcm::write_i16_le(piece, &mut bytes);
        session.send_raw(Message::binary(bytes)).await?;
    }
    Ok(())
}

/// A live transcription with these settings, and what is in effect.
async fn transcribe(server: &TestServer, mut config: Value) -> Result<(Session, Value)> {
    let url = format!("ws://{}/v1/audio/transcriptions/stream", server.address);
    let mut session = Session::open(&url).await?;
    config["type"] = "session.config".into();
    session.send(config).await?;
    let created = session.expect("session.created").await?;
    Ok((session, created))
}

fn ms(frame: &Value, key: &str) -> u64 {
    frame[key].as_u64().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pause_does_not_end_what_is_dictated_and_a_finished_sentence_ends_soon() -> Result<()> {
    let server = listening("dictated", Some(turn_model())).await?;
    let (sentence, spoken_ms) = (sentence()?, 2 * SPEECH_MS + PAUSE_MS);
    let mut ends = Vec::new();
    for piece in [of_ms(20), of_ms(2_000)] {
        let (mut session, created) = transcribe(&server, json!({"turn_detection": "semantic_vad"})).await?;
        ensure!(created["turn_detection"] == "semantic_vad" && created["eagerness"] == "auto", "{created}");
        ensure!(created["silence_duration_ms"] == 4_000, "{created}");
        send(&mut session, &sentence, piece).await?;
        // The turn ends while the session is open and more audio may come.
        let end = until(&mut session, "turn.end").await?.pop().context("an end")?;
        ensure!(end["turn"] == 0 && end["text"] != "", "{end}");
        ends.push(ms(&end, "end_ms"));
        session.send(json!({"type": "input.done"})).await?;
        let rest = session.rest().await?;
        ensure!(!rest.iter().any(|frame| frame["type"] == "speech.started"), "one turn: {rest:?}");
    }
    ensure!(ends[0] == ends[1], "an end depends on the speed of the audio: {ends:?}");
    ensure!((spoken_ms - 300..spoken_ms + 450).contains(&ends[0]), "{ends:?} of {spoken_ms}");
    // All of it at once, and the end of the session behind it.
    let (mut session, _) = transcribe(&server, json!({"turn_detection": "semantic_vad"})).await?;
    send(&mut session, &[&sentence[..], &sentence].concat(), of_ms(500)).await?;
    session.send(json!({"type": "input.done"})).await?;
    let frames = session.rest().await?;
    let told = frames.iter().filter(|frame| frame["type"] == "turn.end").map(|frame| ms(frame, "end_ms"));
    let told: Vec<u64> = told.collect();
    let second_ms = sentence.len() as u64 * 1_000 / LIVE_HZ as u64 + spoken_ms;
    ensure!(told.len() == 2 && told[0] == ends[0], "{told:?} {ends:?}");
    ensure!((second_ms - 300..second_ms + 450).contains(&told[1]), "{told:?} of {second_ms}");
    for config in [json!({}), json!({"turn_detection": "server_vad"})] {
        let (mut session, created) = transcribe(&server, config).await?;
        ensure!(created["turn_detection"] == "server_vad" && created["eagerness"].is_null(), "{created}");
        send(&mut session, &sentence, of_ms(20)).await?;
        let end = until(&mut session, "turn.end").await?.pop().context("an end")?;
        ensure!(ms(&end, "end_ms") < SPEECH_MS + PAUSE_MS, "silence alone cuts the sentence: {end}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_dictated_and_not_finished_ends_by_long_silence() -> Result<()> {
    let server = listening("dictated-limit", Some(turn_model())).await?;
    let failing = SimulatedModel { script: Some(Box::new(|_| Some(Fault::Step))), ..turn_model() };
    let failing = listening("dictated-failing", Some(failing)).await?;
    let spoken = [&sentence()?[..of_ms(SPEECH_MS)], &vec![0.0; of_ms(3_000)]].concat();
    for (server, config, limit_ms) in [
        (&server, json!({"turn_detection": "semantic_vad", "eagerness": "high"}), 2_000),
        (&server, json!({"turn_detection": "semantic_vad", "silence_duration_ms": 1_000}), 1_000),
        (&failing, json!({"turn_detection": "semantic_vad", "eagerness": "high"}), 2_000),
    ] {
        let (mut session, created) = transcribe(server, config).await?;
        ensure!(created["silence_duration_ms"] == limit_ms, "{created}");
        send(&mut session, &spoken, of_ms(100)).await?;
        // A model that fails is no error of the session.
        let end_ms = ms(until(&mut session, "turn.end").await?.last().context("an end")?, "end_ms");
        let due_ms = SPEECH_MS + limit_ms;
        ensure!((due_ms - 400..due_ms + 400).contains(&end_ms), "{end_ms} of {due_ms}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flush_ends_a_turn_whose_pause_is_not_decided_on() -> Result<()> {
    let server = listening("dictated-flush", Some(turn_model())).await?;
    let (mut session, _) = transcribe(&server, json!({"turn_detection": "semantic_vad"})).await?;
    // All of it comes at once: the model is asked about the pause while the rest waits.
    let spoken = &sentence()?[..of_ms(SPEECH_MS + PAUSE_MS + SPEECH_MS / 2)];
    send(&mut session, spoken, spoken.len()).await?;
    session.send(json!({"type": "input.flush"})).await?;
    let end = until(&mut session, "turn.end").await?.pop().context("an end")?;
    ensure!(ms(&end, "end_ms") == spoken.len() as u64 * 1_000 / LIVE_HZ as u64, "{end}");
    session.send(json!({"type": "input.done"})).await?;
    let rest = session.rest().await?;
    ensure!(rest.last().is_some_and(|frame| frame["type"] == "session.done"), "{rest:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_live_transcription_tells_that_silence_serves_and_refuses_what_it_does_not_know() -> Result<()> {
    let server = listening("dictated-without", None).await?;
    let config = json!({"turn_detection": "semantic_vad", "eagerness": "low", "silence_duration_ms": 3_000});
    let (_, created) = transcribe(&server, config).await?;
    ensure!(created["turn_detection"] == "server_vad" && created["silence_duration_ms"] == 500, "{created}");
    for (config, param, told) in [
        (json!({"turn_detection": "vad"}), "turn_detection", "use server_vad or semantic_vad"),
        (json!({"eagerness": "low"}), "eagerness", "set turn_detection to that"),
        (
            json!({"turn_detection": "semantic_vad", "eagerness": "soon"}),
            "eagerness",
            "use low, medium, high or auto",
        ),
    ] {
        let url = format!("ws://{}/v1/audio/transcriptions/stream", server.address);
        let mut session = Session::open(&url).await?;
        let mut config = config;
        config["type"] = "session.config".into();
        session.send(config).await?;
        let error = session.expect("error").await?;
        ensure!(error["param"] == param && error["message"].as_str().unwrap().contains(told), "{error}");
    }
    Ok(())
}

/// The final results of a turn of a Deepgram client that sends all of `samples`.
async fn deepgram(server: &TestServer, query: &str, samples: &[f32]) -> Result<Vec<Value>> {
    let url = format!("ws://{}/v1/listen?encoding=linear16&sample_rate={LIVE_HZ}&{query}", server.address);
    let mut session = Session::open(&url).await?;
    send(&mut session, samples, of_ms(100)).await?;
    let mut messages = Vec::new();
    while messages.last().is_none_or(|last: &Value| last["speech_final"] != true) {
        messages.push(session.frame().await?);
    }
    Ok(messages)
}

/// Where the turn of these results ends.
fn turn_end_ms(messages: &[Value]) -> u64 {
    let last = messages.last().unwrap();
    ((last["start"].as_f64().unwrap() + last["duration"].as_f64().unwrap()) * 1e3).round() as u64
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deepgram_client_gets_the_end_of_speech_by_meaning_if_it_asks() -> Result<()> {
    let server = listening("deepgram-turns", Some(turn_model())).await?;
    let (whole, spoken_ms) = (sentence()?, 2 * SPEECH_MS + PAUSE_MS);
    let end_ms = turn_end_ms(&deepgram(&server, "eot_threshold=0.7", &whole).await?);
    ensure!((spoken_ms - 300..spoken_ms + 450).contains(&end_ms), "{end_ms} of {spoken_ms}");
    let end_ms = turn_end_ms(&deepgram(&server, "endpointing=300", &whole).await?);
    ensure!(end_ms < SPEECH_MS + PAUSE_MS, "silence alone cuts the sentence at {end_ms}");
    // Silence limits what is not finished: that of the client, or that which it takes for the end of an utterance.
    let unfinished = [&whole[..of_ms(SPEECH_MS)], &vec![0.0; of_ms(3_500)]].concat();
    for query in ["eot_timeout_ms=1500", "eot_threshold=0.5&utterance_end_ms=1500"] {
        let end_ms = turn_end_ms(&deepgram(&server, query, &unfinished).await?);
        let due_ms = SPEECH_MS + 1_500;
        ensure!((due_ms - 400..due_ms + 400).contains(&end_ms), "{query}: {end_ms} of {due_ms}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deepgram_client_is_told_that_no_model_decides() -> Result<()> {
    let server = listening("deepgram-without", None).await?;
    let ask = async |query: &str| {
        let url = format!("/v1/listen?encoding=linear16&sample_rate={LIVE_HZ}&{query}");
        let request = reqwest::Client::new().get(server.url(&url));
        let upgrade = [
            ("connection", "upgrade"),
            ("upgrade", "websocket"),
            ("sec-websocket-version", "13"),
            ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
        ];
        upgrade.into_iter().fold(request, |request, (name, value)| request.header(name, value)).send().await
    };
    let response = ask("eot_threshold=0.6&eot_timeout_ms=2000").await?;
    ensure!(response.status() == 101, "{}", response.status());
    ensure!(response.headers()["x-ignored-fields"] == "eot_threshold, eot_timeout_ms", "{response:?}");
    for query in ["eot_threshold=0.95", "eot_timeout_ms=100", "eot_threshold=sure"] {
        let response = ask(query).await?;
        let name = query.split_once('=').context("a parameter")?.0;
        ensure!(response.status() == 400, "{query}: {}", response.status());
        ensure!(response.text().await?.contains(name), "{query}");
    }
    Ok(())
}
