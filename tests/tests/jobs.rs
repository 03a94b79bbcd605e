//! Jobs: their results, their events, restarts, deletion, limits, refusals.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use izwi_audio::decode::{DecodeLimits, decode};
use izwi_tests::{Form, Setup, TestServer, base64, eventually, guarded, recording};
use serde_json::{Value, json};
use tempfile::TempDir;

/// Paragraphs of a text.
const PARAGRAPHS: usize = 24;

fn setup(setup: Setup, folder: &TempDir) -> Setup {
    let folder = folder.path().join("jobs");
    setup.server(|server| server.jobs = Some(folder))
}

/// A speaker whose units take a while.
fn slow(name: &str, folder: &TempDir) -> Setup {
    let mut slow = setup(Setup::units(name), folder);
    slow.model.step_time = Duration::from_millis(20);
    slow
}

fn speech() -> Value {
    let paragraph = |number| format!("Paragraph {number} of the text. It has another sentence.");
    let text: Vec<String> = (0..PARAGRAPHS).map(paragraph).collect();
    json!({"type": "speech", "input": text.join("\n\n"), "response_format": "wav"})
}

fn transcription(seconds: f64) -> Form {
    Form::new().text("type", "transcription").text("model", "whisper-1").file("file", &recording(seconds))
}

async fn accepted(response: reqwest::Response) -> Result<Value> {
    let (status, location) = (response.status(), response.headers().get("location").cloned());
    let job: Value = response.json().await?;
    ensure!(status == 202, "{job}");
    assert_eq!(location.context("no location")?.to_str()?, format!("/v1/jobs/{}", id(&job)));
    assert_eq!((job["object"].as_str(), job["error"].is_null()), (Some("job"), true), "{job}");
    Ok(job)
}

fn id(job: &Value) -> &str {
    job["id"].as_str().unwrap()
}

async fn show(server: &TestServer, id: &str) -> Result<Value> {
    Ok(server.get(&format!("/v1/jobs/{id}")).await?.json().await?)
}

/// The job once it has this status.
async fn reaches(server: &TestServer, id: &str, status: &str) -> Result<Value> {
    eventually(&format!("job {id} to be {status}"), || async {
        let job = show(server, id).await?;
        ensure!(job["status"] == status || job["status"] != "failed", "{job}");
        Ok(job["status"] == status)
    })
    .await?;
    show(server, id).await
}

async fn result(server: &TestServer, id: &str) -> Result<Vec<u8>> {
    let response = server.get(&format!("/v1/jobs/{id}/result")).await?;
    ensure!(response.status() == 200, "{}", response.text().await?);
    Ok(response.bytes().await?.to_vec())
}

async fn refused(response: reqwest::Response, status: u16, code: &str) -> Result<Value> {
    let (found, body) = (response.status(), response.json::<Value>().await?);
    assert_eq!((found.as_u16(), body["error"]["code"].as_str()), (status, Some(code)), "{body}");
    Ok(body["error"].clone())
}

fn files(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<_> = entries.map(|entry| entry.file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[tokio::test(flavor = "multi_thread")]
async fn a_text_becomes_a_file_that_is_the_same_each_time() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let server = setup(Setup::units("reads-aloud"), &folder).start().await?;
    let first = accepted(server.post("/v1/jobs", &speech()).await?).await?;
    let second = accepted(server.post("/v1/jobs", &speech()).await?).await?;
    let done = reaches(&server, id(&first), "completed").await?;
    let characters: usize = speech()["input"].as_str().unwrap().split("\n\n").map(str::len).sum();
    assert_eq!(done["progress"]["unit"], "characters");
    assert_eq!(done["progress"]["done"], done["progress"]["total"]);
    assert_eq!(done["progress"]["total"], json!(characters as f64));
    reaches(&server, id(&second), "completed").await?;
    let audio = result(&server, id(&first)).await?;
    assert_eq!(done["result"]["bytes"], audio.len());
    let limits = DecodeLimits { max_bytes: audio.len(), max_duration: Duration::from_secs(3_600) };
    let samples = decode(audio.clone(), 24_000, &limits).unwrap();
    assert!(samples.len() > 24_000 * PARAGRAPHS / 2, "{} samples", samples.len());
    assert!(samples.iter().any(|sample| sample.abs() > 0.01));
    assert!(audio == result(&server, id(&second)).await?, "two runs differ");

    let url = server.url(&format!("/v1/jobs/{}/result", id(&first)));
    let part = guarded(reqwest::Client::new().get(&url).header("range", "bytes=4-11").send()).await??;
    assert_eq!((part.status().as_u16(), part.headers()["content-type"].to_str()?), (206, "audio/wav"));
    assert!(part.headers()["content-disposition"].to_str()?.ends_with(".wav\""));
    assert_eq!(part.bytes().await?, audio[4..12]);

    let listed: Value = server.get("/v1/jobs").await?.json().await?;
    let ids: Vec<_> = listed["data"].as_array().unwrap().iter().map(id).collect();
    assert_eq!((listed["object"].as_str(), ids), (Some("list"), vec![id(&second), id(&first)]));
    assert_eq!(files(&folder.path().join("jobs").join(id(&first))), ["job.json", "result"]);
    assert!(server.metric("izwi_jobs", &["status=\"completed\""]).await? >= 2.0);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_recording_has_the_transcript_of_the_route() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let server = setup(Setup::listener("hears-long"), &folder).start().await?;
    for format in ["json", "text", "srt", "vtt", "verbose_json"] {
        let form = Form::new().text("response_format", format).file("file", &recording(7.3));
        let expected = server.post_form("/v1/audio/transcriptions", form).await?;
        let (kind, expected) = (expected.headers()["content-type"].clone(), expected.text().await?);
        let job = transcription(7.3).text("response_format", format);
        let job = accepted(server.post_form("/v1/jobs", job).await?).await?;
        let done = reaches(&server, id(&job), "completed").await?;
        assert_eq!(
            (done["progress"]["total"].as_f64(), done["result"]["media_type"].as_str()),
            (Some(7.3), Some(kind.to_str()?))
        );
        assert_eq!(String::from_utf8(result(&server, id(&job)).await?)?, expected, "{format}");
    }
    // In parts each second has its word as well, and times count from the start of the recording.
    let job = transcription(700.0).text("response_format", "verbose_json");
    let job = accepted(server.post_form("/v1/jobs", job).await?).await?;
    reaches(&server, id(&job), "completed").await?;
    let transcript: Value = serde_json::from_slice(&result(&server, id(&job)).await?)?;
    let segments = transcript["segments"].as_array().unwrap();
    let starts: Vec<f64> = segments.iter().map(|segment| segment["start"].as_f64().unwrap()).collect();
    assert!((700..=703).contains(&segments.len()), "{} segments", segments.len());
    assert!(starts.is_sorted() && *starts.last().unwrap() > 698.0, "{:?}", starts.last());
    assert_eq!(transcript["duration"].as_f64(), Some(700.0));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn work_that_was_cut_off_goes_on_in_the_next_server() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let undisturbed = {
        let folder = tempfile::tempdir()?;
        let server = setup(Setup::units("goes-on"), &folder).start().await?;
        let job = accepted(server.post("/v1/jobs", &speech()).await?).await?;
        reaches(&server, id(&job), "completed").await?;
        result(&server, id(&job)).await?
    };
    let mut server = slow("goes-on", &folder).start().await?;
    let job = accepted(server.post("/v1/jobs", &speech()).await?).await?;
    let queued = accepted(server.post("/v1/jobs", &speech()).await?).await?;
    eventually("some of the work", || async {
        Ok(show(&server, id(&job)).await?["progress"]["done"].as_f64() > Some(200.0))
    })
    .await?;
    assert_eq!(show(&server, id(&queued)).await?["status"], "queued");
    let other = setup(Setup::units("goes-on"), &folder).start().await?;
    refused(other.get("/v1/jobs").await?, 503, "jobs_elsewhere").await?;
    drop(other);
    server.stop();
    server.ended().await?;
    let parts = folder.path().join("jobs").join(id(&job)).join("parts");
    let spoken = files(&parts).iter().filter(|name| name.ends_with(".pcm")).count();
    assert!((1..PARAGRAPHS).contains(&spoken), "{spoken} units");

    let server = setup(Setup::units("goes-on"), &folder).start().await?;
    for job in [&job, &queued] {
        let done = reaches(&server, id(job), "completed").await?;
        assert_eq!(done["created_at"], job["created_at"]);
        assert!(result(&server, id(job)).await? == undisturbed, "the result differs");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn events_tell_the_progress_and_end_with_the_job() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let server = slow("tells-events", &folder).start().await?;
    let job = accepted(server.post("/v1/jobs", &speech()).await?).await?;
    let path = format!("/v1/jobs/{}/events", id(&job));
    let response = server.get(&path).await?;
    assert_eq!(response.headers()["content-type"].to_str()?, "text/event-stream");
    let text = guarded(response.text()).await??;
    let events: Vec<Value> = text
        .split_terminator("\n\n")
        .filter_map(|event| event.strip_prefix("data: "))
        .map(|data| serde_json::from_str(data).unwrap())
        .collect();
    let done: Vec<f64> =
        events.iter().map(|event| event["job"]["progress"]["done"].as_f64().unwrap()).collect();
    assert!(events.len() > 3 && done.is_sorted(), "{done:?}");
    let (last, others) = events.split_last().unwrap();
    assert!(others.iter().all(|event| event["type"] == "job.progress"), "{text}");
    assert_eq!(
        (last["type"].as_str(), last["job"]["status"].as_str()),
        (Some("job.completed"), Some("completed"))
    );
    assert!(others.iter().any(|event| event["job"]["progress"]["remaining_s"].is_number()), "{text}");
    let again = server.page(&path).await?;
    assert!(
        again.starts_with("data: {\"type\":\"job.completed\"") && again.matches("data:").count() == 1,
        "{again}"
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deleted_job_stops_and_leaves_nothing() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let server = slow("is-deleted", &folder).start().await?;
    let job = accepted(server.post("/v1/jobs", &speech()).await?).await?;
    let queued = accepted(server.post("/v1/jobs", &speech()).await?).await?;
    let events = server.get(&format!("/v1/jobs/{}/events", id(&job))).await?;
    eventually("some of the work", || async {
        Ok(show(&server, id(&job)).await?["progress"]["done"].as_f64() > Some(0.0))
    })
    .await?;
    for job in [&queued, &job] {
        let deleted: Value = server.delete(&format!("/v1/jobs/{}", id(job))).await?.json().await?;
        assert_eq!(deleted, json!({"id": id(job), "object": "job.deleted", "deleted": true}));
        refused(server.get(&format!("/v1/jobs/{}", id(job))).await?, 404, "job_not_found").await?;
    }
    assert_eq!(files(&folder.path().join("jobs")), ["lock"]);
    assert!(guarded(events.text()).await??.contains("\"type\":\"job.cancelled\""));
    server.assert_balanced().await?;
    refused(server.delete(&format!("/v1/jobs/{}", id(&job))).await?, 404, "job_not_found").await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_done_is_refused_and_leaves_nothing() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let server = setup(Setup::units("refuses-jobs"), &folder).start().await?;
    for (body, status, code, param) in [
        (json!({"type": "speech"}), 400, "invalid_value", "input"),
        (json!({"type": "speech", "input": " \n"}), 400, "invalid_value", "input"),
        (json!({"type": "speech", "input": "a", "model": "none"}), 404, "model_not_found", "model"),
        (json!({"type": "speech", "input": "a", "voice": "nobody"}), 404, "voice_not_found", "voice"),
        (
            json!({"type": "speech", "input": "a", "response_format": "doc"}),
            400,
            "invalid_value",
            "response_format",
        ),
        (
            json!({"type": "speech", "input": "a", "input_format": "pdf"}),
            400,
            "invalid_value",
            "input_format",
        ),
        (
            json!({"type": "speech", "input": "a", "stream_format": "sse"}),
            400,
            "invalid_value",
            "stream_format",
        ),
        (json!({"type": "music", "input": "a"}), 400, "invalid_value", "type"),
        (json!({"input": "a"}), 400, "invalid_value", "type"),
        (json!({"type": "transcription", "audio": "AAAA"}), 400, "invalid_value", "file"),
    ] {
        let error = refused(server.post("/v1/jobs", &body).await?, status, code).await?;
        assert_eq!(error["param"], param, "{body}: {error}");
    }
    let book = |name: &str| {
        Form::new().text("type", "speech").text("model", "refuses-jobs").file(name, b"PK\x03\x04")
    };
    refused(server.post_form("/v1/jobs", book("file")).await?, 400, "invalid_value").await?;
    refused(server.post_form("/v1/jobs", book("book")).await?, 400, "invalid_value").await?;
    let text =
        reqwest::Client::new().post(server.url("/v1/jobs")).header("content-type", "text/plain").body("a");
    refused(guarded(text.send()).await??, 415, "unsupported_media_type").await?;
    for path in ["", "/events", "/result"] {
        refused(server.get(&format!("/v1/jobs/job_1{path}")).await?, 404, "job_not_found").await?;
        refused(server.get(&format!("/v1/jobs/..%2F..%2Fetc{path}")).await?, 404, "job_not_found").await?;
    }
    assert_eq!(files(&folder.path().join("jobs")), ["lock"]);
    let ignored = json!({"type": "speech", "input": "a", "live": true, "colour": "red"});
    let response = server.post("/v1/jobs", &ignored).await?;
    assert_eq!(response.headers()["x-ignored-fields"].to_str()?, "colour, live");
    let listener = setup(Setup::listener("refuses-noise"), &tempfile::tempdir()?).start().await?;
    let noise = Form::new().text("type", "transcription").file("file", b"no audio at all");
    refused(listener.post_form("/v1/jobs", noise).await?, 415, "unsupported_audio").await?;
    let streamed = transcription(1.0).text("stream", "true");
    refused(listener.post_form("/v1/jobs", streamed).await?, 400, "invalid_value").await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_and_their_bytes_are_bounded() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let server = slow("bounded-jobs", &folder)
        .server(|server| (server.max_jobs, server.max_job_bytes, server.max_jobs_bytes) = (2, 50_000, 90_000))
        .start()
        .await?;
    let large = Form::new().text("type", "speech").file("file", &[b'a'; 50_001]);
    refused(server.post_form("/v1/jobs", large).await?, 413, "too_large").await?;
    let job = accepted(server.post("/v1/jobs", &speech()).await?).await?;
    let error =
        refused(server.get(&format!("/v1/jobs/{}/result", id(&job))).await?, 409, "job_not_completed")
            .await?;
    assert!(error["message"].as_str().unwrap().contains("wait for its event"), "{error}");
    // Its audio is more than all jobs may have: it fails with the remedy, and its parts go.
    eventually("the job to fail", || async { Ok(show(&server, id(&job)).await?["status"] == "failed") })
        .await?;
    let failed = show(&server, id(&job)).await?;
    assert_eq!(failed["error"]["code"], "job_limit", "{failed}");
    assert!(failed["error"]["message"].as_str().unwrap().contains("max_jobs_bytes"), "{failed}");
    assert_eq!(files(&folder.path().join("jobs").join(id(&job))), ["job.json"]);
    refused(server.get(&format!("/v1/jobs/{}/result", id(&job))).await?, 409, "job_not_completed").await?;
    accepted(server.post("/v1/jobs", &speech()).await?).await?;
    let error = refused(server.post("/v1/jobs", &speech()).await?, 507, "job_limit").await?;
    assert!(error["message"].as_str().unwrap().contains("delete finished ones"), "{error}");
    server.delete(&format!("/v1/jobs/{}", id(&job))).await?;
    accepted(server.post("/v1/jobs", &json!({"type": "speech", "input": "Short."})).await?).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_folder_is_a_failed_job_and_what_was_cut_off_is_removed() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let jobs = folder.path().join("jobs");
    for (name, state) in [("job_a", "{"), ("job_b", "{}"), ("job_c.incoming", "")] {
        std::fs::create_dir_all(jobs.join(name))?;
        std::fs::write(jobs.join(name).join("job.json"), state)?;
    }
    std::fs::create_dir_all(jobs.join("job_d"))?;
    let server = setup(Setup::units("damaged-jobs"), &folder).start().await?;
    for name in ["job_a", "job_b", "job_d"] {
        let job = show(&server, name).await?;
        assert_eq!(
            (job["status"].as_str(), job["error"]["code"].as_str()),
            (Some("failed"), Some("damaged_job"))
        );
        assert_eq!(server.delete(&format!("/v1/jobs/{name}")).await?.status(), 200);
    }
    assert_eq!(files(&jobs), ["lock"]);
    Ok(())
}

#[cfg(unix)]
#[tokio::test(flavor = "multi_thread")]
async fn others_of_the_machine_read_no_job() -> Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    let folder = tempfile::tempdir()?;
    let server = setup(Setup::units("private-jobs"), &folder).start().await?;
    let job = accepted(server.post("/v1/jobs", &speech()).await?).await?;
    reaches(&server, id(&job), "completed").await?;
    let jobs = folder.path().join("jobs");
    let own = jobs.join(id(&job));
    let mode = |path: &Path| Ok::<_, anyhow::Error>(path.metadata()?.permissions().mode() & 0o777);
    assert_eq!((mode(&jobs)?, mode(&own)?, mode(&own.join("job.json"))?), (0o700, 0o700, 0o600));
    assert_eq!(mode(&own.join("result"))?, 0o600);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_speech_job_takes_the_options_of_the_route() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let server = setup(Setup::cloner("jobs-with-options")?, &folder).start().await?;
    let clip = base64(&recording(1.0));
    let mut results = Vec::new();
    for extra in [
        json!({}),
        json!({"seed": 6}),
        json!({"language": "de"}),
        json!({"instructions": "softly"}),
        json!({"temperature": 0.3}),
        json!({"top_p": 0.5}),
        json!({"top_k": 7}),
        json!({"repetition_penalty": 1.3}),
        json!({"max_tokens": 900}),
        json!({"speed": 1.5}),
        json!({"non_streaming_mode": true}),
        json!({"voice": "two"}),
        json!({"ref_audio": clip}),
        json!({"ref_audio": clip, "ref_text": "ah"}),
        json!({"sample_rate": 16_000}),
        json!({"response_format": "mp3", "bit_rate": 32_000}),
        json!({"response_format": "mp3", "bit_rate": 64_000}),
    ] {
        let mut body =
            json!({"type": "speech", "input": "Some words. And more of them.", "response_format": "flac"});
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        let job = accepted(server.post("/v1/jobs", &body).await?).await?;
        reaches(&server, id(&job), "completed").await?;
        let made = result(&server, id(&job)).await?;
        ensure!(!results.contains(&made), "{extra} changes nothing");
        results.push(made);
    }
    let cloned = |extra: Value| {
        let mut body = json!({"type": "speech", "input": "Words.", "ref_audio": clip});
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        body
    };
    for (body, param) in [
        (cloned(json!({"voice": "two"})), "voice"),
        (json!({"type": "speech", "input": "Words.", "x_vector_only_mode": true}), "x_vector_only_mode"),
        (json!({"type": "speech", "input": "Words.", "priority": "urgent"}), "priority"),
    ] {
        let error = refused(server.post("/v1/jobs", &body).await?, 400, "invalid_value").await?;
        assert_eq!(error["param"], param, "{error}");
    }
    let body = json!({"type": "speech", "input": "Words.", "lexicons": ["none"]});
    let job = accepted(server.post("/v1/jobs", &body).await?).await?;
    eventually("the job to fail", || async { Ok(show(&server, id(&job)).await?["status"] == "failed") })
        .await?;
    let failed = show(&server, id(&job)).await?;
    assert!(failed["error"]["message"].as_str().unwrap().contains("lexicon"), "{failed}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transcription_job_takes_the_options_of_the_route() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let server = setup(Setup::listener("jobs-that-hear"), &folder).start().await?;
    let file = recording(2.5);
    for (name, value) in [
        ("language", "en"),
        ("language", "klingon"),
        ("languages[]", "en"),
        ("prompt", "Names: Izwi."),
        ("temperature", "0"),
        ("temperature", "7"),
        ("seed", "7"),
        ("beam_size", "3"),
        ("patience", "2.0"),
        ("length_penalty", "0.5"),
        ("include[]", "logprobs"),
        ("timestamp_granularities[]", "word"),
        ("keywords[]", "Izwi"),
        ("inverse_normalization", "true"),
        ("translate", "true"),
        ("chunking_strategy", "auto"),
        ("chunking_strategy", "none"),
        ("priority", "high"),
        ("priority", "urgent"),
        ("max_speakers", "2"),
        ("saved_speakers", "true"),
        ("known_speaker_names[]", "Anna"),
        ("known_speaker_references[]", "AAAA"),
        ("response_format", "doc"),
        ("response_format", "diarized_json"),
    ] {
        let form = || Form::new().text(name, value).file("file", &file);
        let expected = server.post_form("/v1/audio/transcriptions", form()).await?;
        let job = server.post_form("/v1/jobs", form().text("type", "transcription")).await?;
        if expected.status() == 200 {
            let job = accepted(job).await?;
            reaches(&server, id(&job), "completed").await?;
            assert_eq!(
                String::from_utf8(result(&server, id(&job)).await?)?,
                expected.text().await?,
                "{name}"
            );
        } else {
            assert_eq!(job.status(), expected.status(), "{name}");
            assert_eq!(job.json::<Value>().await?, expected.json::<Value>().await?, "{name}");
        }
    }
    Ok(())
}
