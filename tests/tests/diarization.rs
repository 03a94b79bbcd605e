//! Transcripts with speakers: `response_format` `diarized_json` of `/v1/audio/transcriptions`, and `diarize` of Deepgram and ElevenLabs.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use izwi_audio::decode::{DecodeLimits, decode};
use izwi_audio::pcm;
use izwi_core::engine::executor::simulated::{SimulatedExecutor, SimulatedModel};
use izwi_core::engine::known_speakers::main_embedding;
use izwi_core::engine::{Engine, EngineCoreConfig, EngineCoreRequest};
use izwi_hub::{SavedSpeaker, SpeakerStore, Store};
use izwi_server::Slot;
use izwi_tests::synthetic::RATE_HZ;
use izwi_tests::{Form, Session, Setup, TestServer, base64, live_speakers, live_speakers_with, recording};
use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::Message;

const TRANSCRIPTIONS: &str = "/v1/audio/transcriptions";
/// Each word is a second; speakers are two, who take turns each second.
const SAYS: [&str; 3] = ["how are you", "fine", "good"];

/// A server with a model for words, and one for speakers.
async fn server(name: &str) -> Result<TestServer> {
    server_with(name, None).await
}

/// As [`server`], with saved speakers.
async fn server_with(name: &str, speakers: Option<SpeakerStore>) -> Result<TestServer> {
    let setup = Setup::listener_of(name, &SAYS).server(|config| config.speakers = speakers);
    let server = setup.start().await?;
    let config =
        EngineCoreConfig { model: format!("{name}-who"), admission: false, ..EngineCoreConfig::default() };
    let model = SimulatedModel {
        transcribes: true,
        diarizes: true,
        sample_rate: 16_000,
        ..SimulatedModel::default()
    };
    let executor = SimulatedExecutor::new(&config, model);
    let id = config.model.clone();
    let engine = Engine::with_executor(config, Box::new(executor))?;
    engine.ready().await?;
    server.registry.set(id, Slot::Ready(engine));
    Ok(server)
}

fn form(fields: &[(&str, &str)]) -> Form {
    let form = Form::new().file("file", &recording(2.5)).text("response_format", "diarized_json");
    fields.iter().fold(form, |form, (name, value)| form.text(name, value))
}

fn segments() -> Value {
    let segment = |number: usize, speaker: &str, text: &str| {
        let start = number as f64;
        json!({
            "type": "transcript.text.segment", "id": format!("seg_{number}"), "start": start, "end": start + 1.0,
            "speaker": speaker, "text": text,
        })
    };
    json!([segment(0, "A", SAYS[0]), segment(1, "B", SAYS[1]), segment(2, "A", SAYS[2])])
}

#[tokio::test(flavor = "multi_thread")]
async fn transcripts_tell_who_says_what() -> Result<()> {
    let server = server("diarized").await?;
    let by_form = server.post_form(TRANSCRIPTIONS, form(&[("model", "gpt-4o-transcribe-diarize")])).await?;
    let body = json!({"audio": base64(&recording(2.5)), "response_format": "diarized_json"});
    for response in [by_form, server.post(TRANSCRIPTIONS, &body).await?] {
        assert_eq!(response.status(), 200);
        assert_eq!(response.headers()["content-type"], "application/json");
        let found: Value = response.json().await?;
        assert_eq!(found["segments"], segments());
        assert_eq!((&found["task"], &found["duration"]), (&json!("transcribe"), &json!(2.5)));
        assert_eq!(found["text"], SAYS.join(" "));
        assert_eq!(found["usage"], json!({"type": "duration", "seconds": 3}));
    }
    server.assert_balanced().await
}

#[tokio::test(flavor = "multi_thread")]
async fn segments_of_speakers_have_words_with_their_times_where_these_are_asked_for() -> Result<()> {
    let server = server("diarized-words").await?;
    let words = [("timestamp_granularities[]", "word")];
    let whole: Value = server.post_form(TRANSCRIPTIONS, form(&words)).await?.json().await?;
    let mut segments = segments();
    for (segment, found) in
        segments.as_array_mut().unwrap().iter_mut().zip(whole["segments"].as_array().context("segments")?)
    {
        let words = found["words"].as_array().context("words")?;
        let said: Vec<_> = words.iter().filter_map(|word| word["word"].as_str()).collect();
        assert_eq!(said.join(" "), found["text"].as_str().unwrap(), "{found}");
        assert_eq!(words[0]["start"], found["start"], "{found}");
        segment["words"] = found["words"].clone();
    }
    assert_eq!(whole["segments"], segments);
    let streamed = [words[0], ("stream", "true")];
    let events = server.post_form(TRANSCRIPTIONS, form(&streamed)).await?.text().await?;
    let events = events.lines().filter_map(|line| serde_json::from_str(line.strip_prefix("data: ")?).ok());
    let events: Vec<Value> = events.filter(|event: &Value| event["speaker"].is_string()).collect();
    assert_eq!(Value::from(events), segments);
    server.assert_balanced().await
}

#[tokio::test(flavor = "multi_thread")]
async fn known_speakers_are_told_by_name() -> Result<()> {
    let server = server("diarized-known").await?;
    // The first second has the voice of the first speaker.
    let reference = format!("data:audio/wav;base64,{}", base64(&recording(1.0)));
    let known = [("known_speaker_names[]", "agent"), ("known_speaker_references[]", &*reference)];
    let speakers = |segments: &Value| -> Vec<Value> {
        segments.as_array().unwrap().iter().map(|segment| segment["speaker"].clone()).collect()
    };
    let whole: Value = server.post_form(TRANSCRIPTIONS, form(&known)).await?.json().await?;
    assert_eq!(speakers(&whole["segments"]), ["agent", "B", "agent"], "{whole}");
    let body = json!({
        "audio": base64(&recording(2.5)), "response_format": "diarized_json",
        "known_speaker_names": ["agent"], "known_speaker_references": [reference],
    });
    let by_json: Value = server.post(TRANSCRIPTIONS, &body).await?.json().await?;
    assert_eq!(by_json["segments"], whole["segments"]);
    let streamed = [&known[..], &[("stream", "true")]].concat();
    let text = server.post_form(TRANSCRIPTIONS, form(&streamed)).await?.text().await?;
    assert!(text.contains(r#""speaker":"agent""#) && text.contains(r#""speaker":"B""#), "{text}");
    let nonsense = [known[0], ("known_speaker_references[]", "data:audio/wav;base64,AAAA")];
    let response = server.post_form(TRANSCRIPTIONS, form(&nonsense)).await?;
    let (status, body) = (response.status().as_u16(), response.json::<Value>().await?);
    assert_eq!((status, &body["error"]["param"]), (415, &json!("known_speaker_references")), "{body}");
    server.assert_balanced().await
}

/// The answers of all interfaces to a recording, with these further fields: status and body.
async fn told(server: &TestServer, fields: &[(&str, &str)]) -> Result<[(u16, Value); 3]> {
    let answer = async |response: reqwest::Response| -> Result<(u16, Value)> {
        Ok((response.status().as_u16(), response.json().await?))
    };
    let openai = answer(server.post_form(TRANSCRIPTIONS, form(fields)).await?).await?;
    let query: String = fields.iter().map(|(name, value)| format!("&{name}={value}")).collect();
    let url = server.url(&format!("/v1/listen?diarize=true&utterances=true{query}"));
    let deepgram = answer(reqwest::Client::new().post(url).body(recording(2.5)).send().await?).await?;
    let elevenlabs = Form::new().file("file", &recording(2.5)).text("model_id", "scribe_v1");
    let fields = fields.iter().chain(&[("diarize", "true")]);
    let elevenlabs = fields.fold(elevenlabs, |form, (name, value)| form.text(name, value));
    let elevenlabs = answer(server.post_form("/v1/speech-to-text", elevenlabs).await?).await?;
    Ok([openai, deepgram, elevenlabs])
}

/// The speakers of the answers' first words, and those of the second segment.
fn speakers([openai, deepgram, elevenlabs]: &[(u16, Value); 3]) -> [[Value; 2]; 3] {
    let segments = &openai.1["segments"];
    let words = &deepgram.1["results"]["channels"][0]["alternatives"][0]["words"];
    let utterances = &deepgram.1["results"]["utterances"];
    assert_eq!(words[0]["speaker"], 0, "{deepgram:?}");
    let spoken = elevenlabs.1["words"].as_array().unwrap();
    let of = |text: &str| spoken.iter().find(|word| word["text"] == text).unwrap()["speaker_id"].clone();
    [
        [segments[0]["speaker"].clone(), segments[1]["speaker"].clone()],
        [words[0]["speaker_name"].clone(), utterances[1]["speaker_name"].clone()],
        [of("how"), of("fine")],
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn saved_speakers_are_told_by_name_where_the_settings_allow_it() -> Result<()> {
    let home = tempfile::tempdir()?;
    let store = Store::open(Some(home.path().to_path_buf()))?.speakers().clone();
    let name = "diarized-saved";
    store.save(&SavedSpeaker::new("ann", &format!("{name}-who"), &[1.0, 0.0]))?;
    // The embedding of another model says nothing.
    store.save(&SavedSpeaker::new("bob", "another", &[0.0, 1.0]))?;
    let server = server_with(name, Some(store)).await?;
    let nobody = [
        ["A", "B"].map(Value::from),
        [Value::Null, Value::Null],
        ["speaker_0", "speaker_1"].map(Value::from),
    ];
    let ann =
        [["ann", "B"].map(Value::from), ["ann".into(), Value::Null], ["ann", "speaker_1"].map(Value::from)];
    for (fields, expected) in
        [(&[][..], &ann), (&[("saved_speakers", "true")], &ann), (&[("saved_speakers", "false")], &nobody)]
    {
        let answers = told(&server, fields).await?;
        assert_eq!(speakers(&answers), *expected, "{fields:?}");
    }
    // References take the place of saved speakers: the first second has the voice of the first one.
    let reference = format!("data:audio/wav;base64,{}", base64(&recording(1.0)));
    let known = [("known_speaker_names[]", "agent"), ("known_speaker_references[]", &*reference)];
    let whole: Value = server.post_form(TRANSCRIPTIONS, form(&known)).await?.json().await?;
    assert_eq!(whole["segments"][0]["speaker"], "agent", "{whole}");
    let streamed = server.post_form(TRANSCRIPTIONS, form(&[("stream", "true")])).await?.text().await?;
    assert!(streamed.contains(r#""speaker":"ann""#) && streamed.contains(r#""speaker":"B""#), "{streamed}");
    std::fs::write(home.path().join("speakers/ann.json"), "damaged")?;
    for (status, body) in told(&server, &[]).await? {
        assert!(status == 500 && !body.to_string().contains("ann"), "{status}: {body}");
    }
    server.assert_balanced().await
}

#[tokio::test(flavor = "multi_thread")]
async fn saved_speakers_are_off_without_the_setting() -> Result<()> {
    let server = server("diarized-unsaved").await?;
    for (status, body) in told(&server, &[("saved_speakers", "true")]).await? {
        assert!(status == 400 && body.to_string().contains("set saved_speakers in its settings"), "{body}");
    }
    let answers = told(&server, &[("saved_speakers", "false")]).await?;
    assert_eq!(speakers(&answers)[0], ["A", "B"].map(Value::from));
    let url = server.url("/v1/listen?saved_speakers=true");
    let response = reqwest::Client::new().post(url).body(recording(1.0)).send().await?;
    let (status, body) = (response.status(), response.text().await?);
    assert!(status == 400 && body.contains("set diarize to true"), "{body}");
    server.assert_balanced().await
}

#[tokio::test(flavor = "multi_thread")]
async fn segments_are_streamed_with_their_speakers() -> Result<()> {
    let server = server("diarized-stream").await?;
    let response = server.post_form(TRANSCRIPTIONS, form(&[("stream", "true")])).await?;
    assert_eq!(response.headers()["content-type"], "text/event-stream");
    let text = response.text().await?;
    let events = text.lines().filter_map(|line| line.strip_prefix("data: "));
    let events: Vec<Value> = events.map(serde_json::from_str).collect::<Result<_, _>>()?;
    let (done, told) = events.split_last().context("no event")?;
    assert_eq!(json!(told), segments());
    assert_eq!((&done["type"], &done["text"]), (&json!("transcript.text.done"), &json!(SAYS.join(" "))));
    assert_eq!(done["usage"]["type"], "tokens");
    server.assert_balanced().await
}

#[tokio::test(flavor = "multi_thread")]
async fn speakers_of_words_are_told_to_clients_of_deepgram() -> Result<()> {
    let server = server("diarized-deepgram").await?;
    let url = server.url("/v1/listen?diarize=true&utterances=true");
    let response = reqwest::Client::new().post(url).body(recording(2.5)).send().await?;
    ensure!(response.status() == 200, "{}", response.text().await?);
    ensure!(!response.headers().contains_key("x-ignored-fields"));
    let body: Value = response.json().await?;
    let words = body["results"]["channels"][0]["alternatives"][0]["words"].as_array().context("words")?;
    let said: Vec<_> = words.iter().map(|word| (word["word"].as_str(), word["speaker"].as_u64())).collect();
    let expected = [("how", 0), ("are", 0), ("you", 0), ("fine", 1), ("good", 0)]
        .map(|(word, who)| (Some(word), Some(who)));
    assert_eq!(said, expected);
    assert_eq!(body["results"]["utterances"][1]["speaker"], 1);
    let url = server.url("/v1/listen?diarize=false");
    let body: Value = reqwest::Client::new().post(url).body(recording(1.0)).send().await?.json().await?;
    let word = &body["results"]["channels"][0]["alternatives"][0]["words"][0];
    ensure!(word["word"] == "how" && word.get("speaker").is_none(), "{word}");
    server.assert_balanced().await
}

#[tokio::test(flavor = "multi_thread")]
async fn speakers_of_words_are_told_to_clients_of_elevenlabs() -> Result<()> {
    let server = server("diarized-elevenlabs").await?;
    let ask = async |fields: &[(&str, &str)]| -> Result<(u16, Value)> {
        let form = Form::new().file("file", &recording(2.5)).text("model_id", "scribe_v1");
        let form = fields.iter().fold(form, |form, (name, value)| form.text(name, value));
        let response = server.post_form("/v1/speech-to-text", form).await?;
        Ok((response.status().as_u16(), response.json().await?))
    };
    let (status, body) =
        ask(&[("diarize", "True"), ("num_speakers", "2"), ("tag_audio_events", "true")]).await?;
    assert_eq!((status, body["text"].as_str()), (200, Some(&*SAYS.join(" "))), "{body}");
    let words = body["words"].as_array().context("words")?;
    let said = words.iter().filter(|word| word["type"] == "word");
    let said: Vec<_> = said.map(|word| (word["text"].as_str(), word["speaker_id"].as_str())).collect();
    let expected = [("how", 0), ("are", 0), ("you", 0), ("fine", 1), ("good", 0)];
    let names = ["speaker_0", "speaker_1"];
    assert_eq!(said, expected.map(|(word, who)| (Some(word), Some(names[who]))), "{body}");
    assert_eq!(words.iter().filter(|word| word["type"] == "spacing").count(), expected.len() - 1);
    // The probability of a language that was detected, and of one that the request names.
    ensure!(body["language_code"] == "en" && body["language_probability"] == 0.75, "{body}");
    let (_, named) = ask(&[("language_code", "en")]).await?;
    ensure!(named["language_probability"] == 1.0, "{named}");
    let (_, plain) = ask(&[("timestamps_granularity", "none")]).await?;
    let first = &plain["words"][0];
    ensure!(first["speaker_id"].is_null() && first.get("start").is_none(), "{first}");
    for (fields, param) in [
        (&[("num_speakers", "2")][..], "num_speakers"),
        (&[("diarize", "true"), ("num_speakers", "40")], "num_speakers"),
        (&[("source_url", "https://example.org/a.mp3")], "source_url"),
    ] {
        let (status, body) = ask(fields).await?;
        ensure!((400..500).contains(&status) && body["detail"]["param"] == param, "{status}: {body}");
    }
    server.assert_balanced().await
}

#[tokio::test(flavor = "multi_thread")]
async fn no_more_speakers_are_told_than_a_request_allows() -> Result<()> {
    // Every voice of a window is a speaker of its own.
    let strict = |config: &mut EngineCoreConfig| {
        let file = config.models_dir.as_ref().unwrap().join("tiny-speakers/config.yaml");
        let published = std::fs::read_to_string(&file).unwrap();
        let strict = published.replace("VBxClustering", "AgglomerativeClustering");
        let strict = strict.replace("threshold: 0.6", "threshold: 0.000001");
        let strict = strict.replace("Fa: 0.07", "method: average").replace("Fb: 0.8", "min_cluster_size: 1");
        std::fs::write(&file, strict).unwrap();
    };
    let (server, _engine, _home) = live_speakers_with("bounded", &SAYS, strict, None).await?;
    let told = async |most: Option<&str>| -> Result<BTreeSet<String>> {
        let speech = Path::new(env!("CARGO_MANIFEST_DIR")).join("../assets/speech/jfk.wav");
        let form = Form::new().file("file", &std::fs::read(speech)?).text("model_id", "scribe_v1");
        let form = form.text("diarize", "true");
        let form = most.into_iter().fold(form, |form, most| form.text("num_speakers", most));
        let body: Value = server.post_form("/v1/speech-to-text", form).await?.json().await?;
        let words = body["words"].as_array().with_context(|| body.to_string())?.iter();
        Ok(words.filter_map(|word| word["speaker_id"].as_str().map(str::to_owned)).collect())
    };
    let all = told(None).await?;
    ensure!(all.len() > 1, "{all:?}");
    assert_eq!(told(Some("1")).await?, BTreeSet::from(["speaker_0".to_owned()]));
    server.assert_balanced().await
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_model_for_speakers_they_are_refused_by_name() -> Result<()> {
    let plain = Setup::listener("no-speakers").start().await?;
    let refusal = async |response: reqwest::Response| -> Result<(u16, Value)> {
        let status = response.status().as_u16();
        Ok((status, response.json::<Value>().await?))
    };
    let (status, body) = refusal(plain.post_form(TRANSCRIPTIONS, form(&[])).await?).await?;
    assert_eq!((status, &body["error"]["param"]), (400, &json!("response_format")), "{body}");
    assert!(body["error"]["message"].as_str().unwrap().contains("tells speakers apart"), "{body}");
    let url = plain.url("/v1/listen?diarize=true");
    let (status, body) = refusal(reqwest::Client::new().post(url).body(recording(1.0)).send().await?).await?;
    assert!(status == 400 && body.to_string().contains("diarize"), "{body}");

    let server = server("speakers-refused").await?;
    for (fields, param) in [
        (&[("known_speaker_names[]", "agent")][..], "known_speaker_names"),
        (&[("include[]", "logprobs")], "include"),
        (&[("max_speakers", "33")], "max_speakers"),
        (&[("model", "speakers-refused-who")], "model"),
    ] {
        let (status, body) = refusal(server.post_form(TRANSCRIPTIONS, form(fields)).await?).await?;
        assert_eq!((status, &body["error"]["param"]), (400, &json!(param)), "{body}");
    }
    let nonsense = Form::new().file("file", b"no audio").text("response_format", "diarized_json");
    let (status, body) = refusal(server.post_form(TRANSCRIPTIONS, nonsense).await?).await?;
    assert_eq!((status, &body["error"]["param"]), (415, &json!("file")), "{body}");
    server.assert_balanced().await
}

/// Two seconds of silence around `seconds` of speech, as 16-bit samples.
fn speech(seconds: usize) -> Result<Vec<Vec<u8>>> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../assets/speech/jfk.wav");
    let limits = DecodeLimits { max_bytes: 1 << 20, max_duration: Duration::from_secs(30) };
    let speech = decode(std::fs::read(path)?, RATE_HZ as u32, &limits)?;
    let silence = vec![0.0; RATE_HZ];
    let samples = [&silence[..], &speech[..seconds * RATE_HZ], &silence].concat();
    let bytes = |piece: &[f32]| {
        let mut bytes = Vec::new();
        pcm::write_i16_le(piece, &mut bytes);
        bytes
    };
    Ok(samples.chunks(RATE_HZ / 5).map(bytes).collect())
}

async fn open_live(server: &TestServer, config: Value) -> Result<Session> {
    let mut session =
        Session::open(&format!("ws://{}/v1/audio/transcriptions/stream", server.address)).await?;
    session.send(config).await?;
    Ok(session)
}

#[tokio::test(flavor = "multi_thread")]
async fn words_have_speakers_while_they_are_said() -> Result<()> {
    let (server, _engine, _home) = live_speakers("said", &SAYS).await?;
    let mut session = open_live(&server, json!({"type": "session.config", "speakers": true})).await?;
    for piece in speech(8)? {
        session.send_raw(Message::binary(piece)).await?;
    }
    session.send(json!({"type": "input.done"})).await?;
    let frames = session.rest().await?;
    let of = |kind: &str| frames.iter().filter(|frame| frame["type"] == kind).collect::<Vec<&Value>>();
    let (ended, told) = (of("turn.end"), of("turn.speakers"));
    ensure!(!ended.is_empty() && of("error").is_empty(), "{frames:?}");
    for turn in ended {
        let own = told.iter().rev().find(|frame| frame["turn"] == turn["turn"]);
        let own = own.with_context(|| format!("no speakers of {turn}"))?["segments"].as_array().unwrap();
        let text: Vec<&str> = own.iter().filter_map(|said| said["text"].as_str()).collect();
        assert_eq!(text.join(" "), turn["text"].as_str().unwrap());
        assert!(own.iter().all(|said| said["speaker"].as_str().is_some_and(|name| !name.is_empty())));
        let at = |said: &Value, key: &str| said[key].as_u64().unwrap();
        assert!(own.iter().all(|said| at(said, "start_ms") <= at(said, "end_ms")), "{own:?}");
    }
    assert_eq!(frames.last().unwrap()["type"], "session.done");
    // A client that leaves keeps nothing running.
    let mut session =
        open_live(&server, json!({"type": "session.config", "speakers": "tiny-speakers"})).await?;
    for piece in speech(3)? {
        session.send_raw(Message::binary(piece)).await?;
    }
    drop(session);
    server.assert_balanced().await
}

/// The frames of a live session of Deepgram's with speakers, and more parameters.
async fn told_to_deepgram(server: &TestServer, more: &str) -> Result<Vec<Value>> {
    let url =
        format!("ws://{}/v1/listen?encoding=linear16&sample_rate=16000&diarize=true{more}", server.address);
    let mut session = Session::open(&url).await?;
    for piece in speech(8)? {
        session.send_raw(Message::binary(piece)).await?;
        // Words are told once their audio is heard.
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    session.send(json!({"type": "CloseStream"})).await?;
    session.rest().await
}

#[tokio::test(flavor = "multi_thread")]
async fn live_words_have_speakers_for_clients_of_deepgram() -> Result<()> {
    let (server, _engine, _home) = live_speakers("said-live", &SAYS).await?;
    let frames = told_to_deepgram(&server, "&interim_results=true").await?;
    let words = frames.iter().filter(|frame| frame["is_final"] == true).flat_map(|frame| {
        frame["channel"]["alternatives"][0]["words"].as_array().cloned().unwrap_or_default()
    });
    let words: Vec<Value> = words.collect();
    ensure!(!words.is_empty(), "{frames:?}");
    assert!(words.last().unwrap()["speaker"].is_u64(), "{words:?}");
    server.assert_balanced().await
}

/// What a live session says who is speaking: all speakers of its last word on each turn.
async fn told_live(server: &TestServer, config: Value) -> Result<BTreeSet<String>> {
    let mut session = open_live(server, config).await?;
    for piece in speech(8)? {
        session.send_raw(Message::binary(piece)).await?;
    }
    session.send(json!({"type": "input.done"})).await?;
    let frames = session.rest().await?;
    let last: BTreeMap<u64, &Value> = frames
        .iter()
        .filter(|frame| frame["type"] == "turn.speakers")
        .filter_map(|frame| Some((frame["turn"].as_u64()?, &frame["segments"])))
        .collect();
    let segments = last.into_values().filter_map(Value::as_array).flatten();
    Ok(segments.filter_map(|said| said["speaker"].as_str().map(str::to_owned)).collect())
}

#[tokio::test(flavor = "multi_thread")]
async fn saved_speakers_are_told_by_name_while_they_speak() -> Result<()> {
    let home = tempfile::tempdir()?;
    let store = Store::open(Some(home.path().to_path_buf()))?.speakers().clone();
    let (server, engine, _files) =
        live_speakers_with("said-saved", &SAYS, |_| {}, Some(store.clone())).await?;
    let of = |saved: Value| json!({"type": "session.config", "speakers": true, "saved_speakers": saved});
    let is_named = |told: &BTreeSet<String>| told.contains("ann");
    let told = told_live(&server, of(Value::Null)).await?;
    assert!(!told.is_empty() && !is_named(&told), "nobody is saved: {told:?}");
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../assets/speech/jfk.wav");
    let heard = engine.generate(EngineCoreRequest::diarization(std::fs::read(path)?)).await?;
    let turns = heard.transcript.context("no turns")?.segments;
    let embedding = main_embedding(&turns)?.context("nobody speaks")?;
    store.save(&SavedSpeaker::new("ann", "tiny-speakers", &embedding))?;
    for (saved, expected) in [(Value::Null, true), (json!(true), true), (json!(false), false)] {
        let told = told_live(&server, of(saved.clone())).await?;
        assert_eq!(is_named(&told), expected, "{saved}: {told:?}");
    }
    for (saved, expected) in [("", true), ("&saved_speakers=false", false)] {
        let frames = told_to_deepgram(&server, saved).await?;
        let words = frames.iter().filter_map(|frame| frame["channel"]["alternatives"][0]["words"].as_array());
        let is_named = words.flatten().any(|word| word["speaker_name"] == "ann");
        assert_eq!(is_named, expected, "{saved}: {frames:?}");
    }
    server.assert_balanced().await
}

#[tokio::test(flavor = "multi_thread")]
async fn live_speakers_are_refused_where_no_model_tells_them() -> Result<()> {
    let without = Setup::listener_of("said-alone", &SAYS).start().await?;
    let whole = server("said-whole").await?;
    for (server, speakers, code, named) in [
        (&without, json!(true), "invalid_value", "none is installed"),
        (&without, json!("unheard"), "model_not_found", "unheard"),
        (&whole, json!(true), "invalid_value", "whole recordings alone"),
        (&whole, json!(7), "invalid_value", "true, false or the name of a model"),
    ] {
        let mut session = open_live(server, json!({"type": "session.config", "speakers": speakers})).await?;
        let error = session.expect("error").await?;
        assert_eq!(error["code"], code, "{error}");
        assert!(error["message"].as_str().unwrap().contains(named), "{error}");
        // The session can be configured otherwise.
        session.send(json!({"type": "session.config", "speakers": false})).await?;
        session.expect("session.created").await?;
    }
    let (lively, _engine, _home) = live_speakers("said-unsaved", &SAYS).await?;
    for (speakers, named) in [(true, "set saved_speakers in its settings"), (false, "set speakers to true")] {
        let config = json!({"type": "session.config", "speakers": speakers, "saved_speakers": true});
        let error = open_live(&lively, config).await?.expect("error").await?;
        assert_eq!((&error["code"], &error["param"]), (&json!("invalid_value"), &json!("saved_speakers")));
        assert!(error["message"].as_str().unwrap().contains(named), "{error}");
    }
    without.assert_balanced().await
}

#[tokio::test(flavor = "multi_thread")]
async fn speakers_that_cannot_be_told_in_time_are_an_error_and_words_go_on() -> Result<()> {
    let (server, engine, _home) = live_speakers("said-late", &SAYS).await?;
    engine.pause()?;
    let mut session = open_live(&server, json!({"type": "session.config", "speakers": true})).await?;
    session.expect("session.created").await?;
    // Five minutes, of which four may wait.
    for _ in 0..60 {
        session.send_raw(Message::binary(vec![0; 5 * 2 * RATE_HZ])).await?;
    }
    let error = session.expect("error").await?;
    assert_eq!(error["code"], "overloaded", "{error}");
    assert!(error["message"].as_str().unwrap().contains("leave speakers out"), "{error}");
    engine.resume()?;
    for piece in speech(3)? {
        session.send_raw(Message::binary(piece)).await?;
    }
    session.send(json!({"type": "input.done"})).await?;
    let frames = session.rest().await?;
    let of = |kind: &str| frames.iter().filter(|frame| frame["type"] == kind).count();
    assert!(of("turn.end") > 0 && of("turn.speakers") == 0 && of("error") == 0, "{frames:?}");
    server.assert_balanced().await
}

#[tokio::test(flavor = "multi_thread")]
async fn speakers_after_a_long_pause_of_the_client_have_new_letters() -> Result<()> {
    let impatient = |config: &mut EngineCoreConfig| config.text_timeout = Duration::from_millis(500);
    let (server, _engine, _home) = live_speakers_with("said-again", &SAYS, impatient, None).await?;
    let mut session = open_live(&server, json!({"type": "session.config", "speakers": true})).await?;
    let mut letters = Vec::new();
    for is_last in [false, true] {
        for piece in speech(4)? {
            session.send_raw(Message::binary(piece)).await?;
        }
        let mut frames = Vec::new();
        if is_last {
            session.send(json!({"type": "input.done"})).await?;
            frames = session.rest().await?;
        }
        while !is_last && frames.last().is_none_or(|frame: &Value| frame["type"] != "error") {
            frames.push(session.frame().await?);
        }
        assert!(is_last || frames.last().unwrap()["code"] == "text_timeout", "{frames:?}");
        let told = frames.iter().rev().find(|frame| frame["type"] == "turn.speakers");
        letters.push(told.context("no speakers")?["segments"][0]["speaker"].as_str().unwrap().to_owned());
    }
    assert!(letters[0] < letters[1], "{letters:?}");
    server.assert_balanced().await
}
