//! Pulls from the hub when the network misbehaves.

use std::time::Duration;
use std::{fs, thread};

use izwi_hub::{HubError, SourceError};

use crate::home::{Home, Notes, file, hub, noise};
use crate::server::{Answer, Server};

/// A home whose `lark` is one file of `contents` at the server.
fn home_of(server: &Server, contents: &[u8]) -> Home {
    let home = Home::new(&server.url());
    home.offer(&[hub("bird/lark"), file("\"weights/lark.bin\"", "lark.bin", contents, "")]);
    home
}

#[track_caller]
fn only_failure(error: HubError) -> SourceError {
    match error {
        HubError::AllSourcesFailed { mut failures, .. } if failures.len() == 1 => failures.remove(0).error,
        other => panic!("{other}"),
    }
}

#[test]
fn a_broken_connection_is_resumed() {
    let contents = noise(300_000);
    let body = contents.clone();
    let server = Server::start(move |index, request| match index {
        0 => Answer::whole(&body).with("ETag", "\"one\"").cut_at(100_000),
        _ => Answer::rest(&body, request.range_start().unwrap()),
    });
    let home = home_of(&server, &contents);
    let mut notes = Notes::default();
    let folder = home.store().pull("lark", &mut notes).unwrap();

    assert_eq!(folder, home.path("models/lark"));
    assert_eq!(home.read("lark.bin"), contents);
    assert_eq!(notes.bytes, 300_000, "progress counts resumed bytes");
    assert_eq!(notes.open, 0, "every started file is finished");
    let requests = server.requests();
    assert_eq!(requests.len(), 2);
    assert_eq!(requests[0].path, "/bird/lark/resolve/main/weights/lark.bin");
    assert_eq!(requests[0].header("range"), None);
    assert_eq!(requests[1].range_start(), Some(100_000));
    assert_eq!(requests[1].header("if-range"), Some("\"one\""));
    assert!(home.left_over().is_empty(), "{:?}", home.left_over());
}

#[test]
fn a_later_pull_resumes_an_interrupted_one() {
    let contents = noise(50_000);
    let body = contents.clone();
    let server = Server::start(move |index, request| match index {
        0 => Answer::whole(&body).cut_at(20_000),
        1 => Answer::status(403),
        _ => Answer::rest(&body, request.range_start().unwrap()),
    });
    let home = home_of(&server, &contents);
    let error = only_failure(home.pull().unwrap_err());
    assert!(error.to_string().contains("set HF_TOKEN"), "{error}");
    assert!(!home.path("models/lark").exists(), "nothing half-installed");
    assert!(matches!(home.store().installed("lark"), Err(HubError::NotInstalled { .. })));

    home.pull().unwrap();
    assert_eq!(home.read("lark.bin"), contents);
    assert_eq!(server.requests()[2].range_start(), Some(20_000));
}

#[test]
fn a_changed_file_is_downloaded_from_its_start() {
    let contents = noise(50_000);
    let body = contents.clone();
    let server = Server::start(move |index, _| match index {
        // Another version of the file: the tag differs, so the server sends all of it.
        0 => Answer::whole(&[7; 50_000]).with("ETag", "\"old\"").cut_at(20_000),
        _ => Answer::whole(&body).with("ETag", "\"new\""),
    });
    let home = home_of(&server, &contents);
    home.pull().unwrap();
    assert_eq!(home.read("lark.bin"), contents);
    assert_eq!(server.requests().len(), 2);
}

#[test]
fn a_partial_download_of_another_version_is_discarded() {
    let contents = noise(50_000);
    let body = contents.clone();
    let server = Server::start(move |index, request| match (index, request.range_start()) {
        (0, _) => Answer::whole(&[7; 50_000]).cut_at(20_000),
        (1, _) => Answer::status(403),
        (2, Some(from)) => Answer::rest(&body, from),
        (_, None) => Answer::whole(&body),
        (_, Some(_)) => Answer::status(400),
    });
    let home = home_of(&server, &contents);
    home.pull().unwrap_err();
    home.pull().unwrap();
    assert_eq!(home.read("lark.bin"), contents);
    assert_eq!(server.requests().len(), 4);
}

#[test]
fn a_refused_range_discards_the_partial_download() {
    let contents = noise(50_000);
    let body = contents.clone();
    let server = Server::start(move |index, _| match index {
        0 => Answer::whole(&body).cut_at(20_000),
        1 => Answer::status(416),
        _ => Answer::whole(&body),
    });
    let home = home_of(&server, &contents);
    home.pull().unwrap();
    assert_eq!(server.requests()[2].range_start(), None);
}

#[test]
fn an_unrequested_range_is_not_appended() {
    let contents = noise(50_000);
    let body = contents.clone();
    let server = Server::start(move |index, _| match index {
        0 => Answer::whole(&body).cut_at(20_000),
        1 => Answer::rest(&body, 10_000),
        _ => Answer::whole(&body),
    });
    let home = home_of(&server, &contents);
    home.pull().unwrap();
    assert_eq!(server.requests()[2].range_start(), None);
    assert_eq!(home.read("lark.bin"), contents);
}

#[test]
fn a_wrong_hash_is_refused_and_removed() {
    let contents = noise(1000);
    let body = contents.clone();
    let server = Server::start(move |index, _| match index {
        0 => Answer::whole(&[7; 1000]),
        _ => Answer::whole(&body),
    });
    let home = home_of(&server, &contents);
    let error = only_failure(home.pull().unwrap_err());
    assert!(matches!(error, SourceError::Checksum { .. }), "{error}");
    assert!(home.left_over().is_empty(), "{:?}", home.left_over());
    assert!(!home.path("models/lark").exists());
    home.pull().unwrap();
}

#[test]
fn a_wrong_length_is_refused_before_the_body_is_read() {
    for length in [999, 1001] {
        let server = Server::start(move |_, _| Answer::whole(&noise(length)));
        let home = home_of(&server, &noise(1000));
        let error = only_failure(home.pull().unwrap_err());
        assert!(matches!(error, SourceError::Size { expected: 1000, .. }), "{error}");
        assert_eq!(server.requests().len(), 1);
    }
}

#[test]
fn temporary_server_errors_are_retried() {
    let server = Server::start(|index, _| match index {
        0 => Answer::status(503),
        _ => Answer::whole(b"tweet"),
    });
    let home = home_of(&server, b"tweet");
    let mut notes = Notes::default();
    home.store().pull("lark", &mut notes).unwrap();
    assert!(notes.notes.iter().any(|note| note.contains("503")), "{:?}", notes.notes);
}

#[test]
fn the_second_source_is_used_when_the_first_fails() {
    let server = Server::start(|_, request| match request.path.starts_with("/gone/") {
        true => Answer::status(404),
        false => Answer::whole(b"tweet"),
    });
    let home = Home::new(&server.url());
    let lark = file("\"lark.bin\"", "lark.bin", b"tweet", "");
    home.offer(&[hub("gone/lark"), lark.clone(), hub("bird/lark"), lark]);
    home.pull().unwrap();
    let store = home.store();
    let status = store.list().into_iter().find(|status| status.manifest.name == "lark").unwrap();
    assert_eq!(status.source.as_deref(), Some("hub bird/lark@main"));
    assert_eq!((status.installed, status.bytes), (true, 5));
}

#[test]
fn every_failed_source_is_listed_with_its_reason() {
    let server = Server::start(|_, _| Answer::status(404));
    let home = Home::new(&server.url());
    let lark = file("\"lark.bin\"", "lark.bin", b"tweet", "");
    home.offer(&[hub("a/lark"), lark.clone(), hub("b/lark"), lark]);
    let error = home.pull().unwrap_err().to_string();
    for part in ["'lark' could not be pulled\n  hub a/lark@main: ", "\n  hub b/lark@main: ", "answered 404: "]
    {
        assert!(error.contains(part), "{error}");
    }
}

#[test]
fn offline_sends_no_request() {
    let server = Server::start(|_, _| Answer::whole(b"tweet"));
    let mut home = home_of(&server, b"tweet");
    home.access.offline = true;
    assert!(matches!(only_failure(home.pull().unwrap_err()), SourceError::Offline));
    assert!(server.requests().is_empty());
}

#[test]
fn two_pulls_at_once_download_once() {
    let contents = noise(100_000);
    let body = contents.clone();
    let server = Server::start(move |_, _| {
        thread::sleep(Duration::from_millis(300));
        Answer::whole(&body)
    });
    let home = home_of(&server, &contents);
    let all_notes: Vec<String> = thread::scope(|scope| {
        let pull = || {
            let mut notes = Notes::default();
            home.store().pull("lark", &mut notes).unwrap();
            notes.notes
        };
        let pulls = [scope.spawn(pull), scope.spawn(pull)];
        pulls.into_iter().flat_map(|pull| pull.join().unwrap()).collect()
    });
    assert_eq!(server.requests().len(), 1);
    assert_eq!(home.read("lark.bin"), contents);
    assert!(all_notes.iter().any(|note| note.contains("waiting for it")), "{all_notes:?}");
}

#[test]
fn the_token_is_not_sent_to_other_hosts() {
    let store = Server::start(|index, request| match index {
        0 => Answer::whole(b"tweet").cut_at(2),
        _ => Answer::rest(b"tweet", request.range_start().unwrap()),
    });
    let elsewhere = format!("{}/blob", store.url_as("localhost"));
    let hub = Server::start(move |_, _| Answer::status(302).with("Location", &elsewhere));
    let mut home = home_of(&hub, b"tweet");
    home.access.token = Some("secret".into());
    home.pull().unwrap();
    assert!(hub.requests().iter().all(|request| request.header("authorization") == Some("Bearer secret")));
    let requests = store.requests();
    assert!(requests.iter().all(|request| request.header("authorization").is_none()), "{requests:?}");
    assert_eq!(requests[1].range_start(), Some(2), "a redirect keeps the range");
}

#[test]
fn the_token_follows_a_redirect_on_the_same_host() {
    let server = Server::start(|index, _| match index {
        0 => Answer::status(307).with("Location", "/moved/lark.bin"),
        _ => Answer::whole(b"tweet"),
    });
    let mut home = home_of(&server, b"tweet");
    home.access.token = Some("secret".into());
    home.pull().unwrap();
    let requests = server.requests();
    assert_eq!(requests[1].path, "/moved/lark.bin");
    assert_eq!(requests[1].header("authorization"), Some("Bearer secret"));
}

#[test]
fn parts_are_joined_and_optional_files_may_be_absent() {
    let server = Server::start(|_, request| match request.path.rsplit('/').next().unwrap() {
        "a" => Answer::whole(b"twe"),
        "b" => Answer::whole(b"et"),
        _ => Answer::status(404),
    });
    let home = Home::new(&server.url());
    home.offer(&[
        hub("bird/lark"),
        file("[\"a\", \"b\"]", "lark.bin", b"tweet", ""),
        file("\"extra\"", "extra.bin", b"more", "optional = true"),
        file("[]", "sub/words.txt", b"hi", "text = \"hi\""),
    ]);
    home.pull().unwrap();
    assert_eq!(home.read("lark.bin"), b"tweet");
    assert_eq!(home.read("sub/words.txt"), b"hi");
    assert!(!home.path("models/lark/extra.bin").exists());
    home.store().verify("lark").unwrap();
}

#[test]
fn complete_files_are_not_downloaded_again() {
    let server = Server::start(|_, request| match request.path.rsplit('/').next().unwrap() {
        "a" => Answer::whole(b"tweet"),
        _ => Answer::status(404),
    });
    let home = Home::new(&server.url());
    let [a, b] = [file("\"a\"", "a", b"tweet", ""), file("\"b\"", "b", b"chirp", "")];
    home.offer(&[hub("bird/lark"), a.clone(), b]);
    home.pull().unwrap_err();
    home.offer(&[hub("bird/lark"), a]);
    home.pull().unwrap();
    let requests = server.requests().iter().filter(|request| request.path.ends_with("/a")).count();
    assert_eq!(requests, 1);
}

#[test]
fn a_file_in_place_of_the_folder_is_named() {
    let server = Server::start(|_, _| Answer::whole(b"tweet"));
    let home = home_of(&server, b"tweet");
    fs::write(home.path("models"), "a file").unwrap();
    let error = home.pull().unwrap_err();
    assert!(error.to_string().contains(&home.path("models/.partial").display().to_string()), "{error}");
}
