//! Live transcription by a model that takes audio as it arrives: the real executor on a tiny checkpoint, whose text has no
//! sense, behind the real server.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::path::Path;
use std::time::Duration;

use futures::future::join_all;
use izwi_audio::decode::{DecodeLimits, decode};
use izwi_audio::pcm;
use izwi_core::engine::{
    AudioStream, Engine, EngineCoreConfig, EngineCoreRequest, FinishReason, Precision, StreamingOutput,
    TranscriptionOptions, Word,
};
use izwi_server::{Recorder, Registry, RegistryConfig, ServerConfig, Slot};
use izwi_tests::synthetic::RATE_HZ;
use izwi_tests::{Session, TestServer, base64, copy, eventually, guarded};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::Message;

const MODEL: &str = "tiny-streaming";
const MANIFEST: &str = "name = \"tiny-streaming\"\nfamily = \"parakeet\"\ndescription = \"a test\"\ntask = [\"asr\"]\n\
    licence = \"MIT\"\nlanguages = [\"en\"]\n[[sources]]\nkind = \"hub\"\nrepo = \"a/b\"\nrevision = \"main\"\n\
    [[sources.files]]\npath = \"config.json\"\ntarget = \"config.json\"\n\
    sha256 = \"0000000000000000000000000000000000000000000000000000000000000000\"\nsize = 1\n";
/// Lengths of its chunks.
const CHUNKS_MS: [u32; 4] = [480, 240, 160, 80];

/// Samples of the speech after which its first turn goes on.
const BEGUN: usize = 5 * RATE_HZ / 2;

/// An engine with the model, in a home of its own.
async fn engine(change: impl FnOnce(&mut EngineCoreConfig)) -> (Engine, TempDir) {
    let home = tempfile::tempdir().unwrap();
    let files = Path::new(env!("CARGO_MANIFEST_DIR")).join("golden/parakeet/stream/hf");
    copy(&files, &home.path().join("models").join(MODEL)).unwrap();
    std::fs::create_dir(home.path().join("manifests")).unwrap();
    std::fs::write(home.path().join("manifests/tiny-streaming.toml"), MANIFEST).unwrap();
    let mut config = EngineCoreConfig {
        model: MODEL.to_owned(),
        home: Some(home.path().to_path_buf()),
        models_dir: Some(home.path().join("models")),
        dtype: Precision::F32,
        num_threads: 2,
        ..EngineCoreConfig::default()
    };
    change(&mut config);
    let engine = Engine::new(config).unwrap();
    engine.ready().await.unwrap();
    (engine, home)
}

async fn serve(engine: &Engine) -> TestServer {
    let registry =
        Registry::new(RegistryConfig { default_asr: Some(MODEL.to_owned()), ..RegistryConfig::new("none") });
    registry.set("none", Slot::Failed("this test has none".to_owned()));
    registry.set(MODEL, Slot::Ready(engine.clone()));
    let config = ServerConfig { resume_window: Duration::ZERO, ..ServerConfig::default() };
    TestServer::listen(config, registry, Recorder::install().unwrap()).await.unwrap()
}

/// Speech after a second of silence, and two of silence after it.
fn speech() -> Vec<f32> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../assets/speech/jfk.wav");
    let limits = DecodeLimits { max_bytes: 1 << 20, max_duration: Duration::from_secs(30) };
    let speech = decode(std::fs::read(path).unwrap(), RATE_HZ as u32, &limits).unwrap();
    [&vec![0.0; RATE_HZ][..], &speech, &vec![0.0; 2 * RATE_HZ]].concat()
}

fn request(audio: &AudioStream) -> EngineCoreRequest {
    EngineCoreRequest::listen(audio.clone()).with_transcription(TranscriptionOptions::default().with_words())
}

/// The words of a whole stream, and why it ended.
async fn words(mut chunks: tokio::sync::mpsc::Receiver<StreamingOutput>) -> (Vec<Word>, FinishReason) {
    let mut words = Vec::new();
    loop {
        let chunk = chunks.recv().await.expect("the stream ends with statistics");
        words.extend(chunk.segments.into_iter().flat_map(|segment| segment.words));
        if let Some(stats) = chunk.stats {
            return (words, stats.finish_reason);
        }
    }
}

/// The words of samples that are appended in pieces.
async fn transcribe(engine: &Engine, chunk_ms: u32, samples: &[f32], piece: usize) -> Vec<Word> {
    let audio = AudioStream::new(chunk_ms);
    let (_, chunks) = engine.generate_streaming(request(&audio)).await.unwrap();
    let appending = async {
        for piece in samples.chunks(piece) {
            audio.append(piece).unwrap();
            tokio::task::yield_now().await;
        }
        audio.finish().unwrap();
    };
    let ((words, reason), ()) = tokio::join!(words(chunks), appending);
    assert_eq!(reason, FinishReason::Stop);
    words
}

async fn open(server: &TestServer, config: &Value) -> (Session, Value) {
    let url = format!("ws://{}/v1/audio/transcriptions/stream", server.address);
    let mut session = Session::open(&url).await.unwrap();
    session.send(config.clone()).await.unwrap();
    let created = session.expect("session.created").await.unwrap();
    (session, created)
}

async fn send(session: &mut Session, samples: &[f32], piece: usize) {
    for piece in samples.chunks(piece) {
        let mut bytes = Vec::new();
        pcm::write_i16_le(piece, &mut bytes);
        session.send_raw(Message::binary(bytes)).await.unwrap();
    }
}

fn of<'a>(frames: &'a [Value], kind: &'a str) -> impl Iterator<Item = &'a Value> {
    frames.iter().filter(move |frame| frame["type"] == kind)
}

/// Checks the turns of a session against the engine's own transcripts of their audio.
async fn check(engine: &Engine, frames: &[Value], chunk_ms: u32, sent: &[f32]) {
    // 16 bits on the wire, and again where it waits.
    let rounded = |sample: f32| f32::from(pcm::to_i16(sample)) / 32_768.0;
    let sent: Vec<f32> = sent.iter().map(|&sample| rounded(rounded(sample))).collect();
    let turns: Vec<&Value> = of(frames, "turn.end").collect();
    assert!(!turns.is_empty(), "{frames:?}");
    for turn in turns {
        let ms = |key: &str| turn[key].as_u64().unwrap() as usize;
        let committed = of(frames, "committed").filter(|frame| frame["turn"] == turn["turn"]);
        let text: String = committed.filter_map(|frame| frame["text"].as_str()).collect();
        assert_eq!(text.trim(), turn["text"].as_str().unwrap());
        let audio = &sent[ms("start_ms") * 16..ms("end_ms") * 16];
        let expected = transcribe(engine, chunk_ms, audio, audio.len()).await;
        let expected: String = expected.iter().map(|word| word.text.as_str()).collect();
        assert!(!expected.is_empty());
        assert_eq!(text, expected, "turn {turn}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn many_streams_at_once_get_what_each_gets_alone() {
    let (engine, _home) = engine(|_| ()).await;
    let speech = speech();
    let case = |n: usize| (CHUNKS_MS[n % 4], &speech[n * 1_777..], [1_280, 333, 16_000][n % 3]);
    let all = (0..24).map(|n| {
        let (chunk_ms, samples, piece) = case(n);
        transcribe(&engine, chunk_ms, samples, piece)
    });
    let together = join_all(all).await;
    assert!(together.iter().all(|words| !words.is_empty()));
    for (n, together) in together.into_iter().enumerate().step_by(5) {
        let (chunk_ms, samples, _) = case(n);
        assert_eq!(transcribe(&engine, chunk_ms, samples, samples.len()).await, together, "{n}");
    }
    let status = engine.status();
    assert_eq!((status.running, status.pending, status.awaiting_input), (0, 0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_of_any_latency_transcribe_each_turn_once() {
    let (engine, _home) = engine(|_| ()).await;
    let server = serve(&engine).await;
    let speech = speech();
    let sessions =
        [(None, 480, 1_600), (Some(100), 80, 320), (Some(479), 240, 16_000), (Some(5_000), 480, 7)];
    let sessions = sessions.map(async |(latency_ms, chunk_ms, piece)| {
        let config = json!({"type": "session.config", "latency_ms": latency_ms, "word_times": true});
        let (mut session, created) = open(&server, &config).await;
        assert_eq!(created["latency_ms"], chunk_ms);
        let sent = if piece < 100 { &speech[..4 * RATE_HZ] } else { &speech[..] };
        send(&mut session, sent, piece).await;
        session.send(json!({"type": "input.done"})).await.unwrap();
        let frames = session.rest().await.unwrap();
        check(&engine, &frames, chunk_ms, sent).await;
    });
    join_all(sessions).await;
    // Every turn is one request, and those of the checks as many again.
    let requests = server.metric("izwi_requests_total", &[&format!("model=\"{MODEL}\"")]).await.unwrap();
    assert!(requests > 0.0 && requests < 40.0, "{requests}");
    server.assert_no_sessions().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_is_killed_frees_its_stream() {
    let (engine, _home) = engine(|_| ()).await;
    let server = serve(&engine).await;
    let speech = speech();
    let (mut session, _) = open(&server, &json!({"type": "session.config", "latency_ms": 80})).await;
    send(&mut session, &speech[..BEGUN], 1_600).await;
    session.expect("speech.started").await.unwrap();
    // A word that may go on.
    while session.frame().await.unwrap()["type"] != "partial" {}
    let open = || async { anyhow::Ok(engine.status().running + engine.status().pending) };
    assert_eq!(open().await.unwrap(), 1, "the turn goes on");
    drop(session);
    let is_free = || async { anyhow::Ok(open().await? == 0) };
    eventually("the stream to end", is_free).await.unwrap();
    let labels = [&format!("model=\"{MODEL}\"")[..], "cause=\"disconnect\""];
    assert_eq!(server.metric("izwi_aborts_total", &labels).await.unwrap(), 1.0);
    server.assert_no_sessions().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_pauses_within_a_turn_gets_the_rest_of_it() {
    let (engine, _home) = engine(|config| config.text_timeout = Duration::from_millis(300)).await;
    let server = serve(&engine).await;
    let speech = speech();
    let (mut session, _) = open(&server, &json!({"type": "session.config", "latency_ms": 80})).await;
    send(&mut session, &speech[..BEGUN], 1_600).await;
    let mut frames = Vec::new();
    while frames.last().is_none_or(|frame: &Value| frame["type"] != "error") {
        frames.push(session.frame().await.unwrap());
    }
    assert_eq!(frames.last().unwrap()["code"], "text_timeout", "{frames:?}");
    let before = of(&frames, "committed").count();
    send(&mut session, &speech[BEGUN..], 1_600).await;
    session.send(json!({"type": "input.done"})).await.unwrap();
    frames.extend(session.rest().await.unwrap());
    assert!(of(&frames, "committed").count() > before, "{frames:?}");
    assert_eq!(of(&frames, "turn.end").count(), of(&frames, "speech.started").count());
}

#[tokio::test(flavor = "multi_thread")]
async fn garbage_is_answered_and_the_session_goes_on() {
    let (engine, _home) = engine(|_| ()).await;
    let server = serve(&engine).await;
    let url = format!("ws://{}/v1/audio/transcriptions/stream", server.address);
    let mut session = Session::open(&url).await.unwrap();
    for latency_ms in [0, 79, 5_001] {
        session.send(json!({"type": "session.config", "latency_ms": latency_ms})).await.unwrap();
        let error = session.expect("error").await.unwrap();
        assert_eq!(error["param"], "latency_ms");
        assert!(error["message"].as_str().unwrap().contains("[480, 240, 160, 80]"), "{error}");
    }
    session.send(json!({"type": "session.config", "latency_ms": 80})).await.unwrap();
    session.expect("session.created").await.unwrap();
    let mut state = 7u64;
    for n in 0..40 {
        let bytes: Vec<u8> = (0..(n * 998) % 4_001)
            .map(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (state >> 56) as u8
            })
            .collect();
        session.send_raw(Message::binary(bytes)).await.unwrap();
        if n % 9 == 0 {
            let kind = ["input.flush", "nothing", "ping"][n % 3];
            session.send(json!({ "type": kind })).await.unwrap();
        }
    }
    send(&mut session, &speech(), 1_600).await;
    session.send(json!({"type": "input.done"})).await.unwrap();
    let frames = session.rest().await.unwrap();
    assert_eq!(of(&frames, "turn.end").count(), of(&frames, "speech.started").count(), "{frames:?}");
    let refused = engine.generate_streaming(request(&AudioStream::new(81))).await.unwrap_err();
    assert!(refused.to_string().contains("[480, 240, 160, 80] ms, not 81"), "{refused}");
}

/// Sends speech to `/v1/listen`, all of it, and returns the messages up to the end.
async fn listened(server: &TestServer, query: &str, samples: &[f32], last: &str) -> Vec<Value> {
    let url = format!("ws://{}/v1/listen?encoding=linear16&sample_rate=16000&{query}", server.address);
    let mut session = Session::open(&url).await.unwrap();
    send(&mut session, samples, 1_600).await;
    session.send(json!({ "type": last })).await.unwrap();
    let mut messages = Vec::new();
    while messages
        .last()
        .is_none_or(|message: &Value| !(message["type"] == "Metadata" || message["from_finalize"] == true))
    {
        messages.push(session.frame().await.unwrap());
    }
    messages
}

fn transcript(message: &Value) -> &str {
    message["channel"]["alternatives"][0]["transcript"].as_str().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn deepgram_tells_what_is_committed_and_what_may_change() {
    let (engine, _home) = engine(|_| ()).await;
    let server = serve(&engine).await;
    let speech = speech();
    let query = "interim_results=true&vad_events=true&utterance_end_ms=1000&keyterm=America";
    let messages = listened(&server, query, &speech, "CloseStream").await;
    assert_eq!(messages[0]["type"], "SpeechStarted");
    let results: Vec<&Value> = of(&messages, "Results").collect();
    let (finals, interim): (Vec<&Value>, Vec<&Value>) =
        results.iter().copied().partition(|message| message["is_final"] == true);
    assert!(!interim.is_empty() && interim.iter().all(|message| message["speech_final"] == false));
    assert!(finals.iter().any(|message| message["speech_final"] == true), "{finals:?}");
    assert!(of(&messages, "UtteranceEnd").count() >= 1, "{messages:?}");
    // An interim result begins where the last final one ends, and never loses what was said before.
    for pair in results.windows(2) {
        let seconds = |message: &Value, key: &str| message[key].as_f64().unwrap();
        let [before, after] = pair else { panic!() };
        if before["is_final"] == false {
            assert_eq!(seconds(before, "start"), seconds(after, "start"), "{before} {after}");
        } else {
            assert!(seconds(before, "start") + seconds(before, "duration") <= seconds(after, "start") + 0.01);
        }
    }
    let words = |message: &Value| message["channel"]["alternatives"][0]["words"].as_array().unwrap().len();
    assert!(results.iter().all(|message| words(message) == transcript(message).split_whitespace().count()));
    // The words of all final results are those of the server's own live transcript.
    let (mut own, _) =
        open(&server, &json!({"type": "session.config", "latency_ms": 480, "keywords": ["America"]})).await;
    send(&mut own, &speech, 1_600).await;
    own.send(json!({"type": "input.done"})).await.unwrap();
    let frames = own.rest().await.unwrap();
    let joined = |texts: Vec<&str>| texts.join(" ").split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let expected = joined(of(&frames, "turn.end").map(|turn| turn["text"].as_str().unwrap()).collect());
    assert_eq!(joined(finals.iter().map(|message| transcript(message)).collect()), expected);
    server.assert_no_sessions().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn finalize_ends_the_turn_of_a_deepgram_client() {
    let (engine, _home) = engine(|_| ()).await;
    let server = serve(&engine).await;
    let messages = listened(&server, "endpointing=false", &speech()[..BEGUN], "Finalize").await;
    let last = messages.last().unwrap();
    assert_eq!((&last["is_final"], &last["speech_final"]), (&json!(true), &json!(false)), "{last}");
    assert!(
        !transcript(last).is_empty() && of(&messages, "Results").all(|message| message["is_final"] == true)
    );
    // Nothing is left to finalize.
    let messages = listened(&server, "", &[0.0; 1_600], "Finalize").await;
    assert_eq!((messages.len(), transcript(&messages[0])), (1, ""));
    server.assert_no_sessions().await.unwrap();
}

/// A transcription session of the Realtime API, whose turns the VAD finds, or the client commits.
async fn realtime(server: &TestServer, is_manual: bool) -> Session {
    let url = format!("ws://{}/v1/realtime?intent=transcription", server.address);
    let mut session = Session::open(&url).await.unwrap();
    session.expect("session.created").await.unwrap();
    let mut input = json!({"format": {"type": "audio/pcm", "rate": 16_000}});
    if is_manual {
        input["turn_detection"] = Value::Null;
    }
    let update = json!({"type": "session.update", "session": {"audio": {"input": input}}});
    session.send(update).await.unwrap();
    session.expect("session.updated").await.unwrap();
    session
}

async fn append(session: &mut Session, samples: &[f32]) {
    for piece in samples.chunks(1_600) {
        let mut bytes = Vec::new();
        pcm::write_i16_le(piece, &mut bytes);
        session.send(json!({"type": "input_audio_buffer.append", "audio": base64(&bytes)})).await.unwrap();
    }
}

/// The events up to one of this type, that one included.
async fn until(session: &mut Session, kind: &str, events: &mut Vec<Value>) -> Value {
    loop {
        let event = session.frame().await.unwrap();
        assert_ne!(event["type"], "error", "{event}");
        events.push(event.clone());
        if event["type"] == kind {
            return event;
        }
    }
}

const DELTA: &str = "conversation.item.input_audio_transcription.delta";
const COMPLETED: &str = "conversation.item.input_audio_transcription.completed";

/// Checks that the deltas of an item are its transcript.
fn check_deltas(events: &[Value], completed: &Value) {
    let deltas = of(events, DELTA).filter(|event| event["item_id"] == completed["item_id"]);
    let text: String = deltas.filter_map(|event| event["delta"].as_str()).collect();
    assert!(!text.is_empty() && completed["transcript"] == text, "{completed} {events:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn realtime_tells_deltas_while_the_user_speaks() {
    let (engine, _home) = engine(|_| ()).await;
    let server = serve(&engine).await;
    let speech = speech();
    let mut session = realtime(&server, false).await;
    let mut events = Vec::new();
    append(&mut session, &speech[..BEGUN + RATE_HZ]).await;
    let started = until(&mut session, "input_audio_buffer.speech_started", &mut events).await;
    let delta = until(&mut session, DELTA, &mut events).await;
    assert_eq!(delta["item_id"], started["item_id"]);
    assert_eq!(of(&events, "input_audio_buffer.speech_stopped").count(), 0, "the user still speaks");
    append(&mut session, &speech[BEGUN + RATE_HZ..]).await;
    let completed = until(&mut session, COMPLETED, &mut events).await;
    check_deltas(&events, &completed);
    let find = |kind| of(&events, kind).find(|event| event["item_id"] == completed["item_id"]).unwrap();
    find("input_audio_buffer.committed");
    let ms = |event: &Value, key: &str| event[key].as_u64().unwrap() as usize * 16;
    let from = ms(find("input_audio_buffer.speech_started"), "audio_start_ms");
    let to = ms(find("input_audio_buffer.speech_stopped"), "audio_end_ms");
    let rounded = |sample: f32| f32::from(pcm::to_i16(sample)) / 32_768.0;
    let audio: Vec<f32> = speech[from..to].iter().map(|&sample| rounded(rounded(sample))).collect();
    let expected = transcribe(&engine, 480, &audio, audio.len()).await;
    let expected: String = expected.iter().map(|word| word.text.as_str()).collect();
    assert_eq!(completed["transcript"], expected.trim());
    drop(session);
    server.assert_no_sessions().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn realtime_tells_deltas_before_the_client_commits() {
    let (engine, _home) = engine(|_| ()).await;
    let server = serve(&engine).await;
    let speech = speech();
    let mut session = realtime(&server, true).await;
    let mut events = Vec::new();
    append(&mut session, &speech[..BEGUN + RATE_HZ]).await;
    let cleared = until(&mut session, DELTA, &mut events).await["item_id"].clone();
    session.send(json!({"type": "input_audio_buffer.clear"})).await.unwrap();
    until(&mut session, "input_audio_buffer.cleared", &mut events).await;
    for length in [speech.len(), BEGUN + RATE_HZ] {
        append(&mut session, &speech[..length]).await;
        let delta = until(&mut session, DELTA, &mut events).await;
        assert_ne!(delta["item_id"], cleared, "{delta}");
        session.send(json!({"type": "input_audio_buffer.commit"})).await.unwrap();
        let committed = until(&mut session, "input_audio_buffer.committed", &mut events).await;
        assert_eq!(committed["item_id"], delta["item_id"]);
        let completed = until(&mut session, COMPLETED, &mut events).await;
        assert_eq!(completed["item_id"], committed["item_id"]);
        check_deltas(&events, &completed);
    }
    session
        .send(json!({"type": "session.update", "session": {"audio": {"input": {"transcription": {"prompt": "Names."}}}}}))
        .await
        .unwrap();
    let error = session.expect("error").await.unwrap()["error"].clone();
    assert_eq!(error["param"], "session.audio.input.transcription.prompt", "{error}");
}

/// Bytes of an event of the Wyoming protocol.
fn wyoming(kind: &str, payload: &[f32]) -> Vec<u8> {
    let mut bytes = Vec::new();
    pcm::write_i16_le(payload, &mut bytes);
    let data = json!({"rate": 16_000, "width": 2, "channels": 1});
    let header = json!({"type": kind, "data": data, "payload_length": bytes.len()});
    [format!("{header}\n").as_bytes(), &bytes].concat()
}

/// The next event of this type: its data.
async fn wyoming_until(reader: &mut BufReader<TcpStream>, kind: &str) -> (Value, String) {
    let mut text = String::new();
    loop {
        let mut line = String::new();
        guarded(reader.read_line(&mut line)).await.unwrap().unwrap();
        let header: Value = serde_json::from_str(&line).unwrap();
        let mut data = vec![0; header["data_length"].as_u64().unwrap_or_default() as usize];
        guarded(reader.read_exact(&mut data)).await.unwrap().unwrap();
        let data: Value = serde_json::from_slice(&data).unwrap();
        if header["type"] == "transcript-chunk" {
            text += data["text"].as_str().unwrap();
        }
        if header["type"] == kind {
            return (data, text);
        }
        assert_ne!(header["type"], "error", "{data}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn wyoming_tells_text_while_audio_arrives() {
    let (engine, _home) = engine(|_| ()).await;
    let server = serve(&engine).await;
    let speech = speech();
    let mut client = BufReader::new(TcpStream::connect(server.wyoming).await.unwrap());
    let mut events = wyoming("audio-start", &[]);
    events.extend(speech.chunks(1_600).flat_map(|piece| wyoming("audio-chunk", piece)));
    client.write_all(&events).await.unwrap();
    let (_, begun) = wyoming_until(&mut client, "transcript-chunk").await;
    client.write_all(&wyoming("audio-stop", &[])).await.unwrap();
    let (transcript, rest) = wyoming_until(&mut client, "transcript").await;
    assert!(!begun.is_empty() && transcript["text"] == begun + &rest, "{transcript}");
    wyoming_until(&mut client, "transcript-stop").await;
    // The next recording of the connection; its client is killed.
    client.write_all(&events).await.unwrap();
    wyoming_until(&mut client, "transcript-chunk").await;
    drop(client);
    let is_free = || async { anyhow::Ok(engine.status().running + engine.status().pending == 0) };
    eventually("the stream to end", is_free).await.unwrap();
    server.assert_no_sessions().await.unwrap();
}
