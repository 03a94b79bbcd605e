//! Trust on first use: the hub states hashes, downloads are verified against them and the hashes are recorded.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex};

use izwi_hub::{HubError, Silent, SourceError};

use crate::home::{Home, git_blob, hub, noise, sha256, trusted};
use crate::server::{Answer, Request, Server};

/// Files of a hub's repository; names with `.safetensors` are large files.
type Repository = Arc<Mutex<BTreeMap<String, Vec<u8>>>>;

fn repository(files: &[(&str, &[u8])]) -> Repository {
    let files = files.iter().map(|(name, bytes)| ((*name).to_owned(), bytes.to_vec()));
    Arc::new(Mutex::new(files.collect()))
}

/// Answers like the hub: large files with their SHA-256 and a redirect, small files with their git id.
fn answer(files: &Repository, request: &Request) -> Answer {
    let files = files.lock().unwrap();
    if let Some(name) = request.path.strip_prefix("/blobs/") {
        return Answer::whole(&files[name]);
    }
    let name = request.path.strip_prefix("/bird/lark/resolve/main/").unwrap();
    let Some(bytes) = files.get(name) else { return Answer::status(404) };
    if name.ends_with(".safetensors") {
        let tag = format!("\"{}\"", sha256(bytes));
        return Answer::status(302)
            .with("X-Linked-Etag", &tag)
            .with("X-Linked-Size", &bytes.len().to_string())
            .with("Location", &format!("/blobs/{name}"));
    }
    Answer::whole(bytes).with("ETag", &format!("\"{}\"", git_blob(bytes)))
}

fn serve(files: &Repository) -> Server {
    let files = Arc::clone(files);
    Server::start(move |_, request| answer(&files, request))
}

const INDEX: &str = "model.safetensors.index.json";

fn home_of(server: &Server) -> Home {
    let home = Home::new(&server.url());
    home.offer(&[
        hub("bird/lark"),
        trusted("config.json", ""),
        trusted("extra.json", "optional = true"),
        trusted(INDEX, "optional = true\nindex = true"),
        trusted("model.safetensors", ""),
        trusted("codec/model.safetensors", ""),
    ]);
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
fn stated_hashes_are_verified_and_recorded() {
    let (weights, codec) = (noise(50_000), noise(20_000));
    let files = repository(&[
        ("config.json", b"{}"),
        ("model.safetensors", &weights),
        ("codec/model.safetensors", &codec),
    ]);
    let server = serve(&files);
    let home = home_of(&server);
    home.pull().unwrap();
    assert_eq!(
        (home.read("model.safetensors"), home.read("codec/model.safetensors")),
        (weights.clone(), codec)
    );
    assert_eq!(home.read("config.json"), b"{}");
    assert!(!home.path("models/lark/extra.json").exists());
    let record = String::from_utf8(home.read(".izwi.json")).unwrap();
    assert!(record.contains(&sha256(&weights)) && record.contains(&sha256(b"{}")), "{record}");
    home.store().verify("lark").unwrap();
    home.store().installed("lark").unwrap();
    assert!(home.left_over().is_empty(), "{:?}", home.left_over());
    let asked = server.requests().len();
    home.pull().unwrap();
    assert_eq!(server.requests().len(), asked, "an installed model is not pulled again");
    let store = home.store();
    let lark = store.list().into_iter().find(|status| status.manifest.name == "lark").unwrap();
    assert_eq!(lark.manifest.sources[0].bytes(), None, "the manifest has no size");
}

/// An archive of a model, of the golden sets.
fn archive() -> Vec<u8> {
    let folders =
        |folder: &Path| fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let sets = folders(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden"));
    let path = sets.map(|set| set.join("ctc/ctc.nemo")).find(|path| path.exists()).unwrap();
    fs::read(path).unwrap()
}

#[test]
fn an_archive_of_a_model_becomes_its_files() {
    let archive = archive();
    let files = repository(&[("lark.nemo", &archive)]);
    let server = serve(&files);
    let home = Home::new(&server.url());
    let wanted =
        "path = \"lark.nemo\"\ntarget = \"model.safetensors\"\nconvert = \"nemo\"\ntrust = \"first-use\"";
    home.offer(&[hub("bird/lark"), format!("[[sources.files]]\n{wanted}\n")]);
    home.pull().unwrap();
    home.store().verify("lark").unwrap();
    assert!(String::from_utf8(home.read("model_config.yaml")).unwrap().contains("preprocessor:"));
    assert!(!home.path("models/lark/lark.nemo").exists());
    assert!(home.left_over().is_empty(), "{:?}", home.left_over());
    fs::remove_file(home.path("models/lark/tokenizer.model")).unwrap();
    let error = home.store().installed("lark").unwrap_err().to_string();
    assert!(error.contains("tokenizer.model is missing"), "{error}");
    // A damaged archive leaves what was installed.
    files.lock().unwrap().insert("lark.nemo".to_owned(), archive[..2_000].to_vec());
    assert!(home.pull().is_err());
    assert!(home.path("models/lark/model.safetensors").exists());
    let foreign = repository(&[("lark.nemo", b"no archive")]);
    let server = serve(&foreign);
    let home = Home::new(&server.url());
    home.offer(&[hub("bird/lark"), format!("[[sources.files]]\n{wanted}\n")]);
    let error = only_failure(home.pull().unwrap_err());
    assert!(matches!(error, SourceError::Convert { .. }), "{error}");
    assert!(!home.path("models/lark").exists());
}

#[test]
fn an_index_names_the_files_of_the_weights() {
    let index = br#"{"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}"#;
    let files = repository(&[
        ("config.json", b"{}"),
        (INDEX, index),
        ("model-1.safetensors", b"one"),
        ("model-2.safetensors", b"two"),
        ("codec/model.safetensors", b"codec"),
    ]);
    let server = serve(&files);
    let home = home_of(&server);
    home.pull().unwrap();
    assert_eq!(
        (home.read("model-1.safetensors"), home.read("model-2.safetensors")),
        (b"one".into(), b"two".into())
    );
    assert_eq!(home.read(INDEX), index);
    assert!(!home.path("models/lark/model.safetensors").exists());
    home.store().installed("lark").unwrap();
    fs::remove_file(home.path("models/lark/model-2.safetensors")).unwrap();
    let error = home.store().installed("lark").unwrap_err().to_string();
    assert!(error.contains("model-2.safetensors is missing"), "{error}");
    home.pull().unwrap();
    home.store().verify("lark").unwrap();
}

#[test]
fn an_index_cannot_name_files_outside_the_folder() {
    for name in ["../../evil.safetensors", "/evil.safetensors", "a/b.safetensors", "config.json"] {
        let index = format!("{{\"weight_map\": {{\"a\": \"{name}\"}}}}");
        let files = repository(&[("config.json", b"{}"), (INDEX, index.as_bytes())]);
        let server = serve(&files);
        let home = home_of(&server);
        let error = only_failure(home.pull().unwrap_err());
        assert!(matches!(error, SourceError::Index { .. }), "{error}");
        assert!(error.to_string().contains("no plain name"), "{error}");
        assert!(!home.path("models/lark").exists());
    }
}

#[test]
fn a_download_with_another_hash_is_refused() {
    let files = repository(&[("config.json", b"{}"), ("model.safetensors", b"weights")]);
    for (path, wrong) in [("config.json", b"[]".to_vec()), ("model.safetensors", b"weighty".to_vec())] {
        let files = Arc::clone(&files);
        let server = Server::start(move |_, request| match request.method.as_str() {
            "GET" if request.path.ends_with(path) && !request.path.starts_with("/blobs/codec") => {
                Answer::whole(&wrong)
            }
            _ => answer(&files, request),
        });
        let home = home_of(&server);
        let error = only_failure(home.pull().unwrap_err());
        assert!(matches!(error, SourceError::Checksum { .. }), "{error}");
        assert!(!home.path("models/lark").exists());
    }
}

#[test]
fn a_file_that_the_publisher_changed_is_refused() {
    for (changed, bytes) in [("model.safetensors", &b"other"[..]), ("config.json", b"[1]")] {
        let files = repository(&[
            ("config.json", b"{}"),
            ("model.safetensors", b"weights"),
            ("codec/model.safetensors", b"codec"),
        ]);
        let server = serve(&files);
        let home = home_of(&server);
        home.pull().unwrap();
        fs::remove_file(home.path("models/lark/codec/model.safetensors")).unwrap();
        files.lock().unwrap().insert(changed.to_owned(), bytes.to_vec());
        let error = only_failure(home.pull().unwrap_err());
        assert!(matches!(&error, SourceError::Changed { .. }), "{error}");
        assert!(error.to_string().contains("--accept-changes"), "{error}");
        // The hashes of the first pull outlive the model.
        home.store().remove("lark").unwrap();
        let error = only_failure(home.pull().unwrap_err());
        assert!(matches!(&error, SourceError::Changed { .. }), "{error}");
        assert!(!home.path("models/lark").exists());
        home.store().accepting_changes().pull("lark", &mut Silent).unwrap();
        assert_eq!(home.read(changed), bytes);
        home.store().remove("lark").unwrap();
        home.pull().unwrap();
        assert_eq!(home.read(changed), bytes, "the accepted file is the recorded one now");
    }
}

#[test]
fn a_damaged_record_of_hashes_is_named_and_not_ignored() {
    let files = repository(&[
        ("config.json", b"{}"),
        ("model.safetensors", b"weights"),
        ("codec/model.safetensors", b"codec"),
    ]);
    let server = serve(&files);
    let home = home_of(&server);
    home.pull().unwrap();
    let record = home.path("models/.first-use/lark.json");
    assert!(fs::read_to_string(&record).unwrap().contains(&sha256(b"weights")));
    home.store().remove("lark").unwrap();
    fs::write(&record, "{\"sources\": [").unwrap();
    let error = home.pull().unwrap_err();
    let cause = std::error::Error::source(&error).unwrap().to_string();
    assert!(
        error.to_string().contains("first-use/lark.json") && cause.contains("remove it"),
        "{error}: {cause}"
    );
    fs::remove_file(&record).unwrap();
    home.pull().unwrap();
}

#[test]
fn an_unencrypted_hub_is_refused_before_any_request() {
    let files = repository(&[("config.json", b"{}")]);
    let server = serve(&files);
    let mut home = home_of(&server);
    home.access.endpoint = "http://hub.invalid".into();
    let error = home.pull().unwrap_err();
    assert!(matches!(&error, HubError::Endpoint { .. }), "{error}");
    assert!(error.to_string().contains("only https is accepted"), "{error}");
    assert!(!home.path("models").exists(), "nothing is created");
    // Mirrors alone need no hub.
    home.access.offline = true;
    assert!(matches!(only_failure(home.pull().unwrap_err()), SourceError::Offline));
}

#[test]
fn a_file_without_a_stated_hash_is_refused() {
    let server = Server::start(|_, request| match request.path.ends_with("extra.json") {
        true => Answer::status(404),
        false => Answer::whole(b"{}").with("ETag", "\"5f-60\""),
    });
    let home = home_of(&server);
    let error = only_failure(home.pull().unwrap_err());
    assert!(matches!(&error, SourceError::NoHash { .. }), "{error}");
    assert!(server.requests().iter().all(|request| request.method == "HEAD"), "no file was downloaded");
}

#[test]
fn redirects_to_other_hosts_get_no_token_and_state_no_hash() {
    let elsewhere =
        Server::start(|_, _| Answer::whole(b"{}").with("ETag", &format!("\"{}\"", git_blob(b"{}"))));
    let place = elsewhere.url_as("localhost");
    let server = Server::start(move |_, _| Answer::status(302).with("Location", &format!("{place}/x")));
    let mut home = home_of(&server);
    home.access.token = Some("secret".into());
    let error = only_failure(home.pull().unwrap_err());
    assert!(matches!(&error, SourceError::NoHash { .. }), "{error}");
    assert!(elsewhere.requests().is_empty(), "no request to another host");
}
