//! `POST /v1/audio/transcriptions` and `/v1/audio/translations`: request and response formats, refusals.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use anyhow::{Context, Result, ensure};
use izwi_tests::{Form, Setup, TestServer, base64, exchange, guarded, recording, transcript_events};
use serde_json::{Value, json};

const TRANSCRIPTIONS: &str = "/v1/audio/transcriptions";
const TRANSLATIONS: &str = "/v1/audio/translations";

/// A JSON body with a recording of 2.5 s (three simulated words).
fn body(extra: Value) -> Value {
    let mut body = json!({"model": "whisper-1", "audio": base64(&recording(2.5))});
    for (name, value) in extra.as_object().unwrap() {
        body[name] = value.clone();
    }
    body
}

/// The same as a form.
fn form(fields: &[(&str, &str)]) -> Form {
    let form = Form::new().file("file", &recording(2.5)).text("model", "whisper-1");
    fields.iter().fold(form, |form, (name, value)| form.text(name, value))
}

async fn by_json(server: &TestServer, extra: Value) -> Result<reqwest::Response> {
    server.post(TRANSCRIPTIONS, &body(extra)).await
}

async fn by_form(server: &TestServer, fields: &[(&str, &str)]) -> Result<reqwest::Response> {
    server.post_form(TRANSCRIPTIONS, form(fields)).await
}

#[tokio::test(flavor = "multi_thread")]
async fn every_response_format_works_with_json_and_form_requests() -> Result<()> {
    let server = Setup::listener("formats").start().await?;
    let text = "word0 word1 word2";
    let srt = "1\n00:00:00,000 --> 00:00:01,000\nword0\n\n2\n00:00:01,000 --> 00:00:02,000\nword1\n\n\
               3\n00:00:02,000 --> 00:00:03,000\nword2\n\n";
    let vtt = "WEBVTT\n\n00:00:00.000 --> 00:00:01.000\nword0\n\n00:00:01.000 --> 00:00:02.000\nword1\n\n\
               00:00:02.000 --> 00:00:03.000\nword2\n\n";
    let usage = json!({"type": "duration", "seconds": 3});
    let object = json!({"text": text, "usage": usage}).to_string();
    for (format, content_type, expected) in [
        (None, "application/json", object.as_str()),
        (Some("json"), "application/json", &object),
        (Some("text"), "text/plain; charset=utf-8", text),
        (Some("srt"), "application/x-subrip", srt),
        (Some("vtt"), "text/vtt", vtt),
    ] {
        let extra = format.map_or(json!({}), |format| json!({"response_format": format}));
        let fields: Vec<_> = format.map(|format| ("response_format", format)).into_iter().collect();
        for response in [by_json(&server, extra).await?, by_form(&server, &fields).await?] {
            assert_eq!(response.status(), 200, "{format:?}");
            assert_eq!(response.headers()["content-type"], content_type);
            assert!(response.headers()["x-request-id"].to_str()?.starts_with("req-"));
            assert_eq!(response.headers()["x-audio-duration-seconds"], "2.500");
            for name in ["x-rtf", "x-generation-time-ms"] {
                response.headers()[name].to_str()?.parse::<f64>()?;
            }
            let body = response.text().await?;
            if content_type == "application/json" {
                assert_eq!(serde_json::from_str::<Value>(&body)?, serde_json::from_str::<Value>(expected)?);
            } else {
                assert_eq!(body, expected);
            }
        }
    }
    server.assert_balanced().await
}

#[tokio::test(flavor = "multi_thread")]
async fn numbers_become_figures_where_the_model_writes_words() -> Result<()> {
    const SAYS: [&str; 3] = ["twenty five dollars", "at three thirty p m", "on may third"];
    let server = Setup::listener_of("plain", &SAYS).start().await?;
    let text = "$25 at 3:30 p.m. on May 3";
    let verbose = json!({"response_format": "verbose_json", "timestamp_granularities": ["word"]});
    let body: Value = by_json(&server, verbose.clone()).await?.json().await?;
    assert_eq!(body["text"], SAYS.join(" "), "off by default");
    let mut asked = verbose;
    asked["inverse_normalization"] = json!(true);
    let body: Value = by_json(&server, asked).await?.json().await?;
    assert_eq!(body["text"], text);
    let segments: String = body["segments"]
        .as_array()
        .context("segments")?
        .iter()
        .filter_map(|one| one["text"].as_str())
        .collect();
    assert_eq!(segments.trim(), text);
    let words = body["words"].as_array().context("words")?;
    let said: Vec<&str> = words.iter().filter_map(|word| word["word"].as_str()).collect();
    assert_eq!(
        said.iter().map(|word| word.trim()).collect::<Vec<_>>(),
        ["$25", "at", "3:30 p.m.", "on", "May 3"]
    );
    let times: Vec<f64> =
        words.iter().flat_map(|word| [&word["start"], &word["end"]]).filter_map(Value::as_f64).collect();
    assert!(times.is_sorted() && times[0] == 0.0 && times[1] == 0.5, "{times:?}");
    let fields = [("inverse_normalization", "true"), ("stream", "true")];
    let (_, deltas) = transcript_events(&by_form(&server, &fields).await?.text().await?)?;
    assert_eq!(deltas, text);
    for name in ["numerals", "smart_format"] {
        let answer =
            reqwest::Client::new().post(server.url(&format!("/v1/listen?{name}=true"))).body(recording(2.5));
        let answer: Value = answer.send().await?.json().await?;
        assert_eq!(answer["results"]["channels"][0]["alternatives"][0]["transcript"], text, "{name}");
    }
    let refused = json!({"inverse_normalization": true, "include": ["logprobs"]});
    assert_eq!(by_json(&server, refused).await?.status(), 400);
    // A model that writes figures itself is not corrected.
    let server = Setup::listener("figures").start().await?;
    let body: Value = by_json(&server, json!({"inverse_normalization": true})).await?.json().await?;
    assert_eq!(body["text"], "word0 word1 word2");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn verbose_json_has_segments_and_requested_words() -> Result<()> {
    let server = Setup::listener("verbose").start().await?;
    let verbose = json!({"response_format": "verbose_json"});
    let body: Value = by_json(&server, verbose).await?.json().await?;
    assert_eq!((&body["task"], &body["language"]), (&json!("transcribe"), &json!("english")));
    assert_eq!((&body["duration"], &body["text"]), (&json!(2.5), &json!("word0 word1 word2")));
    assert_eq!(body["segments"].as_array().context("segments")?.len(), 3);
    let segment = body["segments"][1].as_object().context("a segment")?;
    for name in [
        "id",
        "seek",
        "start",
        "end",
        "text",
        "tokens",
        "temperature",
        "avg_logprob",
        "compression_ratio",
        "no_speech_prob",
    ] {
        assert!(segment.contains_key(name), "{name}");
    }
    assert!(body.get("words").is_none());
    let wanted = json!({"response_format": "verbose_json", "timestamp_granularities": ["word", "segment"]});
    let with_words: Value = by_json(&server, wanted).await?.json().await?;
    assert_eq!(with_words["words"][2], json!({"word": "word2", "start": 2.0, "end": 2.5}));
    for name in ["timestamp_granularities[]", "timestamp_granularities"] {
        let fields = [("response_format", "verbose_json"), (name, "segment"), (name, "word")];
        let body: Value = by_form(&server, &fields).await?.json().await?;
        assert_eq!(body["words"], with_words["words"], "{name}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_sends_words_during_transcription() -> Result<()> {
    let server = Setup::listener("events").start().await?;
    for format in ["json", "text"] {
        let by_json = by_json(&server, json!({"stream": true, "response_format": format})).await?;
        let by_form = by_form(&server, &[("stream", "true"), ("response_format", format)]).await?;
        for response in [by_json, by_form] {
            assert_eq!(response.status(), 200);
            assert_eq!(response.headers()["content-type"], "text/event-stream");
            let (events, text) = transcript_events(&response.text().await?)?;
            assert_eq!(text, "word0 word1 word2");
            assert_eq!(events.len(), 4, "a delta for each segment, and the end");
            let usage = events[3]["usage"].clone();
            assert!(usage["type"] == "tokens" && usage["total_tokens"].as_u64() > Some(0), "{usage}");
            let done = json!({"type": "transcript.text.done", "text": text, "usage": usage});
            assert_eq!(events[3], done);
        }
    }
    server.assert_balanced().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_verbose_stream_sends_the_segments_of_the_whole_transcript() -> Result<()> {
    let server = Setup::listener("timed-events").start().await?;
    let fields = json!({"response_format": "verbose_json", "timestamp_granularities": ["word", "segment"]});
    let whole: Value = by_json(&server, fields.clone()).await?.json().await?;
    let mut streamed = fields;
    streamed["stream"] = json!(true);
    let body = by_json(&server, streamed).await?.text().await?;
    let events = body.split("\n\n").filter_map(|event| event.strip_prefix("data: "));
    let events = events.map(serde_json::from_str::<Value>).collect::<Result<Vec<_>, _>>()?;
    let segments: Vec<_> = events.iter().filter(|event| event["type"] == "transcript.segment").collect();
    let expected = whole["segments"].as_array().context("segments")?;
    assert!(segments.len() == expected.len() && segments.len() > 1, "{body}");
    for (segment, expected) in segments.iter().zip(expected) {
        for member in ["start", "end", "text"] {
            assert_eq!(segment[member], expected[member], "{segment}");
        }
    }
    let words: Vec<_> = segments.iter().filter_map(|segment| segment["words"].as_array()).flatten().collect();
    assert_eq!(words, whole["words"].as_array().context("words")?.iter().collect::<Vec<_>>());
    let done = events.last().context("an event")?;
    assert_eq!((&done["type"], &done["text"]), (&json!("transcript.text.done"), &whole["text"]));
    assert!(done["languages"].is_array(), "{done}");
    server.assert_balanced().await
}

#[tokio::test(flavor = "multi_thread")]
async fn statistics_of_a_stream_are_sent_as_trailers() -> Result<()> {
    let server = Setup::listener("event-trailers").start().await?;
    let json = body(json!({"stream": true})).to_string();
    let request = format!(
        "POST {TRANSCRIPTIONS} HTTP/1.1\r\nHost: localhost\r\nTE: trailers\r\nConnection: close\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{json}",
        json.len()
    );
    let response = exchange(server.address, request.as_bytes()).await?;
    assert!(response.is_complete, "{}", response.head);
    assert!(response.trailers.contains("x-audio-duration-seconds: 2.500"), "{}", response.trailers);
    assert!(response.trailers.contains("x-finish-reason: stop"), "{}", response.trailers);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn translations_support_every_format_and_streams() -> Result<()> {
    let server = Setup::listener("translates").start().await?;
    let verbose = json!({"response_format": "verbose_json"});
    let by_json: Value = server.post(TRANSLATIONS, &body(verbose)).await?.json().await?;
    let fields = [("response_format", "verbose_json"), ("prompt", "A prompt.")];
    let by_form: Value = server.post_form(TRANSLATIONS, form(&fields)).await?.json().await?;
    for body in [by_json, by_form] {
        assert_eq!((&body["task"], &body["text"]), (&json!("translate"), &json!("word0 word1 word2")));
    }
    for format in ["json", "text", "srt", "vtt"] {
        let response = server.post_form(TRANSLATIONS, form(&[("response_format", format)])).await?;
        assert_eq!(response.status(), 200, "{format}");
        assert!(response.text().await?.contains("word1"));
    }
    let streamed = server.post(TRANSLATIONS, &body(json!({"stream": true}))).await?;
    let (events, text) = transcript_events(&streamed.text().await?)?;
    assert_eq!((events.len(), text.as_str()), (4, "word0 word1 word2"));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_ignored_is_told_in_a_header() -> Result<()> {
    let server = Setup::listener("ignores").start().await?;
    let ignored = |response: &reqwest::Response| {
        let value = response.headers().get("x-ignored-fields");
        value.and_then(|value| value.to_str().ok()).map(str::to_owned)
    };
    assert_eq!(ignored(&by_json(&server, json!({"include": ["logprobs"]})).await?), None);
    let vad = json!({"type": "server_vad", "eagerness": "low"});
    let extra = json!({"user": "x", "größe": 1, "stream": true, "chunking_strategy": vad});
    let told = ignored(&by_json(&server, extra).await?);
    assert_eq!(told.as_deref(), Some("chunking_strategy.eagerness, gr%C3%B6%C3%9Fe, user"));
    let fields = [("user", "x"), ("chunking_strategy[type]", "server_vad"), ("store", "true")];
    assert_eq!(ignored(&by_form(&server, &fields).await?).as_deref(), Some("store, user"));
    let many: Vec<String> = (0..60).map(|n| format!("x{n}")).collect();
    let many: Vec<(&str, &str)> = many.iter().map(|name| (name.as_str(), "1")).collect();
    let told = ignored(&by_form(&server, &many).await?).context("a header")?;
    assert_eq!(told.split(", ").count(), 16);
    let translated = server.post_form(TRANSLATIONS, form(&[("user", "x")])).await?;
    assert_eq!(ignored(&translated).as_deref(), Some("user"));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn errors_of_types_name_the_field() -> Result<()> {
    let server = Setup::listener("types").start().await?;
    for (extra, param) in [
        (json!({"temperature": "hot"}), "temperature"),
        (json!({"stream": "yes"}), "stream"),
        (json!({"beam_size": 2.5}), "beam_size"),
        (json!({"beam_size": 0}), "beam_size"),
        (json!({"patience": "much"}), "patience"),
        (json!({"beam_size": 1, "patience": 2}), "patience"),
        (json!({"length_penalty": -1}), "length_penalty"),
        (json!({"include": "logprobs"}), "include"),
        (json!({"include": [7]}), "include[0]"),
        (json!({"languages": ["en", 7]}), "languages[1]"),
        (json!({"keywords": {"a": 1}}), "keywords"),
        (json!({"chunking_strategy": [1]}), "chunking_strategy"),
        (json!({"chunking_strategy": {"type": 7}}), "chunking_strategy.type"),
        (json!({"known_speaker_names": ["agent"]}), "known_speaker_names"),
    ] {
        refusal(by_json(&server, extra).await?, 400, "invalid_value", Some(param)).await?;
    }
    for (name, value) in [
        ("temperature", "hot"),
        ("seed", "-1"),
        ("stream", "perhaps"),
        ("beam_size", "wide"),
        ("beam_size", "11"),
        ("patience", "0"),
        ("length_penalty", "2"),
        ("include[]", "everything"),
        ("chunking_strategy[threshold]", "loud"),
        ("chunking_strategy", "none"),
        ("chunking_strategy", r#"{"type":"server_vad","threshold":"loud"}"#),
        ("known_speaker_references[]", "data:,"),
    ] {
        let response = by_form(&server, &[(name, value)]).await?;
        let param = match name {
            "include[]" => "include",
            "known_speaker_references[]" => "known_speaker_references",
            "chunking_strategy" if value.starts_with('{') => "chunking_strategy.threshold",
            name => name,
        };
        refusal(response, 400, "invalid_value", Some(param)).await?;
    }
    let speaker = Setup::units("typed").start().await?;
    for (extra, param) in [
        (json!({"speed": "fast"}), "speed"),
        (json!({"voice": 7}), "voice"),
        (json!({"voice": {"id": 7}}), "voice.id"),
        (json!({"input": ["a"]}), "input"),
        (json!({"seed": 1.5}), "seed"),
    ] {
        let mut body = json!({"model": "tts-1", "input": "Hi."});
        body.as_object_mut().context("an object")?.extend(extra.as_object().context("an object")?.clone());
        refusal(speaker.speech(&body).await?, 400, "invalid_value", Some(param)).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn usage_is_counted_as_the_model_of_the_name_is_billed() -> Result<()> {
    let server = Setup::listener("billed").start().await?;
    for (model, kind) in [
        ("whisper-1", "duration"),
        ("billed", "duration"),
        ("gpt-4o-transcribe", "tokens"),
        ("gpt-4o-mini-transcribe-2025-12-15", "tokens"),
    ] {
        let body: Value = by_json(&server, json!({"model": model})).await?.json().await?;
        assert_eq!(body["usage"]["type"], kind, "{model}");
        assert!(body.get("languages").is_none(), "{body}");
    }
    let body: Value = by_json(&server, json!({"model": "gpt-transcribe"})).await?.json().await?;
    assert!(body["languages"].is_array(), "{body}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn fields_of_openai_clients_are_accepted() -> Result<()> {
    let server = Setup::listener("clients").start().await?;
    let file = base64(&recording(2.5));
    let url_safe = file.replace('+', "-").replace('/', "_");
    let url_safe = url_safe.trim_end_matches('=');
    let lines: String =
        file.as_bytes().chunks(76).map(|line| String::from_utf8_lossy(line) + "\r\n").collect();
    for extra in [
        json!({"model": "clients"}),
        json!({"model": "gpt-4o-transcribe"}),
        json!({"model": "gpt-4o-mini-transcribe", "language": "en", "prompt": "Names: Izwi."}),
        json!({"audio": format!("data:audio/wav;base64,{file}")}),
        json!({"audio": url_safe}),
        json!({"audio": lines}),
        json!({"audio": null, "audio_base64": file}),
        json!({"beam_size": 3, "patience": 2.0, "length_penalty": 0.5}),
        json!({"beam_size": null, "patience": null, "length_penalty": null}),
        json!({"temperature": 0, "seed": 7, "priority": "high", "user": "someone", "include": ["logprobs"]}),
        json!({"language": "", "prompt": "", "response_format": "", "priority": "", "stream": false}),
        json!({"timestamp_granularities": ["segment"]}),
        json!({"temperature": null, "stream": null, "timestamp_granularities": []}),
    ] {
        let response = by_json(&server, extra.clone()).await?;
        assert_eq!(response.status(), 200, "{extra}");
        let body: Value = response.json().await?;
        assert_eq!(body["text"], "word0 word1 word2", "{extra}");
    }
    let fields = [
        ("temperature", "0.2"),
        ("seed", "7"),
        ("beam_size", "5"),
        ("patience", "1.5"),
        ("length_penalty", "1"),
        ("priority", "low"),
        ("language", "en"),
        ("prompt", ""),
        ("stream", "False"),
        ("include[]", "logprobs"),
        ("chunking_strategy", "auto"),
        ("whatever", "\u{0}"),
        ("include[]", "logprobs"),
    ];
    assert_eq!(by_form(&server, &fields).await?.status(), 200);
    Ok(())
}

/// Checks the error envelope of a response and returns its message.
async fn refusal(
    response: reqwest::Response,
    status: u16,
    code: &str,
    param: Option<&str>,
) -> Result<String> {
    let found = response.status();
    let body: Value = response.json().await?;
    let error = &body["error"];
    ensure!(found == status && error["code"] == code && error["param"] == json!(param), "{found} {body}");
    Ok(error["message"].as_str().context("a message")?.to_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn unusable_recordings_are_refused_by_field() -> Result<()> {
    let server = Setup::listener("unheard").start().await?;
    let silence = recording(0.0);
    let garbage = b"These bytes are no recording at all, whatever they say.".repeat(20);
    for (file, status, code) in [
        (silence, 422, "empty_audio"),
        (garbage, 415, "unsupported_audio"),
        (Vec::new(), 400, "invalid_value"),
    ] {
        let sent = Form::new().file("file", &file).text("model", "whisper-1");
        refusal(server.post_form(TRANSCRIPTIONS, sent).await?, status, code, Some("file")).await?;
        for (name, other) in [("audio", "audio_base64"), ("audio_base64", "audio")] {
            let extra = json!({other: null, name: base64(&file)});
            refusal(by_json(&server, extra).await?, status, code, Some(name)).await?;
            let stream = json!({other: null, name: base64(&file), "stream": true});
            refusal(by_json(&server, stream).await?, status, code, Some(name)).await?;
        }
    }
    for (text, code) in [
        ("!!! no base64 !!!", "invalid_audio"),
        ("data:audio/wav;base64,%%%", "invalid_audio"),
        ("data:audio/wav;base64,", "invalid_value"),
        ("   ", "invalid_value"),
    ] {
        refusal(by_json(&server, json!({"audio": text})).await?, 400, code, Some("audio")).await?;
    }
    let message = refusal(
        by_json(&server, json!({"audio": base64(b"GIF89a and no sound")})).await?,
        415,
        "unsupported_audio",
        Some("audio"),
    )
    .await?;
    assert!(message.contains("wav, flac, mp3"), "{message}");
    server.assert_balanced().await
}

#[tokio::test(flavor = "multi_thread")]
async fn unsupported_values_are_refused_by_field() -> Result<()> {
    let server = Setup::listener("fields").start().await?;
    for (extra, param) in [
        (json!({"model": 7}), "model"),
        (json!({"audio": null}), "audio"),
        (json!({"audio": 7}), "audio"),
        (json!({"audio_base64": "AAAA"}), "audio_base64"),
        (json!({"response_format": "xml"}), "response_format"),
        (json!({"response_format": "diarized_json"}), "response_format"),
        (json!({"temperature": 1.01}), "temperature"),
        (json!({"temperature": -0.5}), "temperature"),
        (json!({"temperature": "warm"}), "temperature"),
        (json!({"timestamp_granularities": ["word"]}), "timestamp_granularities"),
        (json!({"timestamp_granularities": ["letter"]}), "timestamp_granularities"),
        (json!({"timestamp_granularities": "word"}), "timestamp_granularities"),
        (json!({"stream": "yes"}), "stream"),
        (json!({"stream": true, "response_format": "srt"}), "stream"),
        (json!({"seed": -1}), "seed"),
        (json!({"priority": "urgent"}), "priority"),
        (json!({"prompt": "a".repeat(70_000)}), "prompt"),
    ] {
        refusal(by_json(&server, extra.clone()).await?, 400, "invalid_value", Some(param))
            .await
            .with_context(|| extra.to_string())?;
    }
    let long = "a".repeat(300_000);
    for (field, param) in [
        (("temperature", "warm"), "temperature"),
        (("temperature", "NaN"), "temperature"),
        (("temperature", "2"), "temperature"),
        (("seed", "1.5"), "seed"),
        (("stream", "maybe"), "stream"),
        (("model", "again"), "model"),
        (("prompt", &long), "prompt"),
        (("timestamp_granularities[]", "word"), "timestamp_granularities"),
    ] {
        refusal(by_form(&server, &[field]).await?, 400, "invalid_value", Some(param))
            .await
            .with_context(|| field.0.to_owned())?;
    }
    let no_model = Form::new().file("file", &recording(1.0));
    assert_eq!(server.post_form(TRANSCRIPTIONS, no_model).await?.status(), 200, "the default model answers");
    let no_file = Form::new().text("model", "whisper-1");
    refusal(server.post_form(TRANSCRIPTIONS, no_file).await?, 400, "invalid_value", Some("file")).await?;
    let twice = form(&[]).file("file", &recording(1.0));
    refusal(server.post_form(TRANSCRIPTIONS, twice).await?, 400, "invalid_value", Some("file")).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn models_without_the_task_are_refused() -> Result<()> {
    let server = Setup::listener("hears-only").start().await?;
    let unknown = by_json(&server, json!({"model": "hears-onyl"})).await?;
    let message = refusal(unknown, 404, "model_not_found", Some("model")).await?;
    assert!(message.contains("did you mean 'hears-only'"), "{message}");
    let spoken = server.speech(&json!({"model": "hears-only", "input": "Hello."})).await?;
    refusal(spoken, 400, "invalid_value", Some("model")).await?;
    let voices = server.get("/v1/audio/voices?model=hears-only").await?;
    refusal(voices, 400, "invalid_value", Some("model")).await?;

    let speaker = Setup::units("speaks-only").start().await?;
    let message = refusal(
        by_json(&speaker, json!({"model": "speaks-only"})).await?,
        400,
        "invalid_value",
        Some("model"),
    )
    .await?;
    assert!(message.contains("'speaks-only' does not support the task asr"), "{message}");
    let message = refusal(by_json(&speaker, json!({})).await?, 404, "model_not_found", Some("model")).await?;
    assert!(message.contains("has no ASR model"), "{message}");
    let models: Value = server.get("/v1/models").await?.json().await?;
    let listed = models["data"].as_array().context("models")?;
    let listed = listed.iter().find(|model| model["id"] == "hears-only").context("the listener is listed")?;
    assert_eq!(
        (&listed["tasks"], &listed["state"], &listed["default"]),
        (&json!(["asr"]), &json!("ready"), &json!(true))
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn other_content_types_are_refused() -> Result<()> {
    let server = Setup::listener("kinds").start().await?;
    let client = reqwest::Client::new();
    let post = |content_type: Option<&'static str>, body: &'static str| {
        let request = client.post(server.url(TRANSCRIPTIONS)).body(body);
        match content_type {
            Some(content_type) => request.header("content-type", content_type).send(),
            None => request.send(),
        }
    };
    let message = refusal(guarded(post(None, "x")).await??, 415, "unsupported_media_type", None).await?;
    assert!(message.contains("multipart/form-data or application/json"), "{message}");
    refusal(guarded(post(Some("audio/wav"), "RIFF")).await??, 415, "unsupported_media_type", None).await?;
    refusal(guarded(post(Some("application/json"), "{")).await??, 400, "invalid_json", None).await?;
    for (content_type, body) in [
        ("multipart/form-data", "--x--"),
        ("multipart/form-data; boundary=x", ""),
        ("multipart/form-data; boundary=x", "garbage"),
        ("multipart/form-data; boundary=x", "--x\r\n"),
        (
            "multipart/form-data; boundary=x",
            "--x\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\nwhisp",
        ),
        ("multipart/form-data; boundary=x", "--x\r\nContent-Disposition: form-data\r\n\r\na\r\n--x--\r\n"),
        ("multipart/form-data; boundary=x", "--x\r\nno colon here\r\n\r\na\r\n--x--\r\n"),
    ] {
        let response = guarded(post(Some(content_type), body)).await??;
        refusal(response, 400, "invalid_form", None).await.with_context(|| body.to_owned())?;
    }
    let many = (0..100).fold(Form::new(), |form, i| form.text(&format!("x{i}"), "y"));
    refusal(server.post_form(TRANSCRIPTIONS, many).await?, 400, "invalid_form", None).await?;
    Ok(())
}
