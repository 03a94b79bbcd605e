//! Saved voices in a folder that replicas share.

use std::path::Path;

use super::servers::{CLONES, Replica, Replicas};

/// Saves the voice of a recording; the status of the answer.
fn save(replica: &Replica, name: &str) -> u16 {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap();
    let clip = std::fs::read(root.join("assets/speech/jfk.wav")).unwrap();
    let mut body = Vec::new();
    for (field, value) in [("name", name), ("ref_text", "And so, my fellow Americans.")] {
        body.extend(
            format!("--x\r\nContent-Disposition: form-data; name=\"{field}\"\r\n\r\n{value}\r\n").bytes(),
        );
    }
    let file = "--x\r\nContent-Disposition: form-data; name=\"audio_sample\"; filename=\"a.wav\"\r\n\r\n";
    body.extend(file.bytes());
    body.extend(clip);
    body.extend(b"\r\n--x--\r\n");
    status(&replica.ask("POST", "/v1/audio/voices", "multipart/form-data; boundary=x", &body))
}

fn status(answer: &[u8]) -> u16 {
    let head = String::from_utf8_lossy(&answer[..answer.len().min(64)]).into_owned();
    head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or_else(|| panic!("{head:?}"))
}

/// Status of a request for speech in a voice, and the samples.
fn speak(replica: &Replica, voice: &str) -> (u16, Vec<u8>) {
    let body = format!(
        r#"{{"model": "tts-1", "input": "Hello there.", "voice": "{voice}", "seed": 3, "response_format": "wav",
            "stream": false, "max_tokens": 8}}"#
    );
    let answer = replica.ask("POST", "/v1/audio/speech", "application/json", body.as_bytes());
    let end = answer.windows(4).position(|bytes| bytes == b"\r\n\r\n").unwrap();
    (status(&answer), answer[end + 4..].to_vec())
}

fn listed(replica: &Replica, name: &str) -> bool {
    let answer = replica.ask("GET", "/v1/audio/voices", "application/json", b"");
    String::from_utf8_lossy(&answer).contains(&format!("\"{name}\""))
}

#[test]
fn a_voice_that_one_replica_saves_is_spoken_by_the_other_at_once() {
    let replicas = Replicas::start(2, CLONES);
    let [one, other] = [&replicas.all[0], &replicas.all[1]];
    assert_eq!(speak(other, "anna").0, 404);
    assert_eq!(save(one, "anna"), 200);
    assert!(listed(one, "anna") && listed(other, "anna"));
    let spoken = speak(one, "anna");
    assert!(spoken.0 == 200 && spoken.1.len() > 44, "{}", spoken.0);
    assert!(speak(other, "anna") == spoken, "both speak in the same voice");
    assert_eq!(save(other, "anna"), 409, "the name is taken");
    assert_eq!(status(&other.ask("DELETE", "/v1/audio/voices/anna", "application/json", b"")), 200);
    assert!(!listed(one, "anna") && speak(one, "anna").0 == 404);
}

#[test]
fn of_replicas_that_save_one_name_at_once_one_succeeds() {
    let replicas = Replicas::start(2, CLONES);
    for round in 0..4 {
        let name = format!("voice-{round}");
        let mut statuses: Vec<u16> = std::thread::scope(|scope| {
            let saves: Vec<_> = (0..4)
                .map(|number| {
                    let (replica, name) = (&replicas.all[number % 2], &name);
                    scope.spawn(move || save(replica, name))
                })
                .collect();
            saves.into_iter().map(|save| save.join().unwrap()).collect()
        });
        statuses.sort_unstable();
        assert_eq!(statuses, [200, 409, 409, 409], "{name}");
        assert!(speak(&replicas.all[0], &name) == speak(&replicas.all[1], &name));
    }
}
