//! Jobs of the real server, which is killed in the middle of them.

use std::fs;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{Serving, default_model, serve};
use crate::{Izwi, copy};

const PATIENCE: Duration = Duration::from_secs(240);
const PARAGRAPHS: usize = 14;

fn url(serving: &Serving, path: &str) -> String {
    format!("http://{}{path}", serving.address)
}

fn post(serving: &Serving) -> String {
    let paragraph =
        |number| format!("This is paragraph {number}, and it is read for itself. The rain went on.");
    let text: Vec<String> = (0..PARAGRAPHS).map(paragraph).collect();
    let body = json!({"type": "speech", "input": text.join("\n\n"), "response_format": "flac"});
    let answer = ureq::post(url(serving, "/v1/jobs"))
        .header("content-type", "application/json")
        .send(body.to_string())
        .unwrap();
    assert_eq!(answer.status(), 202);
    let job: Value = serde_json::from_reader(answer.into_body().into_reader()).unwrap();
    job["id"].as_str().unwrap().to_owned()
}

fn completed(serving: &Serving, id: &str) -> Vec<u8> {
    let begun = Instant::now();
    loop {
        let answer = ureq::get(url(serving, &format!("/v1/jobs/{id}"))).call().unwrap();
        let job: Value = serde_json::from_reader(answer.into_body().into_reader()).unwrap();
        let status = job["status"].as_str().unwrap();
        if status == "completed" {
            break;
        }
        assert!(["queued", "running"].contains(&status) && begun.elapsed() < PATIENCE, "{job}");
        std::thread::sleep(Duration::from_millis(30));
    }
    let answer = ureq::get(url(serving, &format!("/v1/jobs/{id}/result"))).call().unwrap();
    answer.into_body().with_config().limit(1 << 30).read_to_vec().unwrap()
}

#[test]
fn a_job_goes_on_after_its_server_was_killed_and_equals_one_that_was_not() {
    let models = Izwi::with_models();
    let izwi = Izwi::alone();
    let model = default_model(&izwi);
    copy(&models.home.clone().unwrap().join("models").join(&model), &izwi.path("home/models").join(&model));
    let mut serving = serve(&izwi);
    let id = post(&serving);
    let parts = izwi.path("home/jobs").join(&id).join("parts");
    let stored = || {
        let entries = fs::read_dir(&parts).into_iter().flatten().flatten();
        entries.filter(|entry| entry.path().extension().is_some_and(|extension| extension == "pcm")).count()
    };
    let begun = Instant::now();
    for target in [1, 5] {
        while stored() < target {
            assert!(begun.elapsed() < PATIENCE, "nothing is spoken");
            std::thread::sleep(Duration::from_millis(3));
        }
        // Dropping it kills it, in the middle of what comes next.
        drop(serving);
        assert!(stored() < PARAGRAPHS, "it was done before it was killed");
        serving = serve(&izwi);
    }
    let cut = completed(&serving, &id);
    let undisturbed = post(&serving);
    assert!(cut.len() > 10_000 && cut == completed(&serving, &undisturbed), "the results differ");
    let left: Vec<_> = fs::read_dir(izwi.path("home/jobs").join(&id)).unwrap().flatten().collect();
    assert_eq!(left.len(), 2, "{left:?}");
}
