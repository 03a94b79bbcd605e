//! Installed models: listing, verifying, removing, replacing.

use std::fs;

use izwi_hub::{Access, Manifest, Store, Task};

use crate::home::{Home, file, hub};
use crate::server::{Answer, Server};

fn installed() -> (Server, Home) {
    let server =
        Server::start(|_, request| Answer::whole(&request.path.as_bytes()[request.path.len() - 5..]));
    let home = Home::new(&server.url());
    home.offer(&[hub("bird/lark"), file("\"tweet\"", "lark.bin", b"tweet", "")]);
    home.pull().unwrap();
    (server, home)
}

#[test]
fn an_installed_model_is_not_pulled_again() {
    let (server, home) = installed();
    assert_eq!(home.pull().unwrap(), home.store().installed("lark").unwrap());
    assert_eq!(server.requests().len(), 1);
}

#[test]
fn unknown_names_get_a_remedy() {
    let (_server, home) = installed();
    let store = home.store();
    store.remove("lark").unwrap();
    let error_of = |name: &str| store.installed(name).unwrap_err().to_string();
    assert_eq!(error_of("lark"), "model 'lark' is not installed: run `izwi pull lark`");
    assert_eq!(error_of("larc"), "unknown model 'larc': did you mean 'lark'?");
    for name in ["../lark", "", ".partial", "lark/../lark"] {
        let error = store.remove(name).unwrap_err().to_string();
        assert!(error.starts_with("unknown model"), "{error}");
    }
    assert_eq!(store.remove("lark").unwrap_err().to_string(), error_of("lark"));
}

#[test]
fn verify_finds_a_changed_byte_and_installed_a_missing_file() {
    let (_server, home) = installed();
    let store = home.store();
    store.verify("lark").unwrap();
    fs::write(home.path("models/lark/lark.bin"), "tweeT").unwrap();
    let error = store.verify("lark").unwrap_err().to_string();
    assert!(error.contains("lark.bin has sha256"), "{error}");
    assert!(error.contains("run `izwi rm lark`, then `izwi pull lark`"), "{error}");

    fs::remove_file(home.path("models/lark/lark.bin")).unwrap();
    let error = store.installed("lark").unwrap_err().to_string();
    assert!(error.contains("lark.bin is missing"), "{error}");
    home.pull().unwrap();
    store.verify("lark").unwrap();
}

#[test]
fn a_changed_manifest_replaces_the_model() {
    let (_server, home) = installed();
    home.offer(&[hub("bird/lark"), file("\"chirp\"", "new.bin", b"chirp", "")]);
    let error = home.store().installed("lark").unwrap_err().to_string();
    assert!(error.contains("its manifest has changed"), "{error}");
    home.pull().unwrap();
    assert_eq!(home.read("new.bin"), b"chirp");
    assert!(!home.path("models/lark/lark.bin").exists());
    assert!(home.left_over().is_empty(), "{:?}", home.left_over());
}

#[test]
fn caches_beside_a_model_are_not_counted_and_are_removed_with_it() {
    let (_server, home) = installed();
    let store = home.store();
    let cached = home.path("models/lark/model.izwi-q8.cache");
    let keep = || fs::write(&cached, "weights").unwrap();
    let size = |store: &Store| {
        store.list().iter().find(|status| status.manifest.name == "lark").map(|status| status.bytes)
    };
    let before = size(&store);
    let kept = |store: Store| store.with_models_dir(Some(home.path("models")));
    fs::remove_file(home.path("models/lark/.izwi.json")).unwrap();
    assert_eq!(size(&kept(home.store())), before);
    keep();
    assert_eq!(size(&kept(home.store())), before);
    home.pull().unwrap();
    assert!(!cached.exists(), "another pull replaces the folder");
    keep();
    store.verify("lark").unwrap();
    assert_eq!((size(&store), home.pull().unwrap()), (before, home.path("models/lark")));
    store.remove("lark").unwrap();
    assert!(!home.path("models/lark").exists());
}

#[test]
fn a_model_without_a_manifest_can_be_removed() {
    let (_server, home) = installed();
    fs::remove_file(home.path("manifests/lark.toml")).unwrap();
    home.store().remove("lark").unwrap();
    assert!(!home.path("models/lark").exists());
}

#[test]
fn an_empty_store_lists_the_built_in_models() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open_with(folder.path(), Access::resolve(|_| None)).unwrap();
    assert!(store.list().iter().all(|status| !status.installed && status.bytes == 0));
    let default = store.default_for(Task::Tts).map(|manifest: &Manifest| manifest.tasks.clone());
    assert_eq!(default, Some(vec![Task::Tts]));
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "opening creates nothing");
}

#[test]
fn an_unusable_manifest_of_the_user_is_named() {
    let home = Home::new("http://127.0.0.1:9");
    home.offer(&[hub("bird/lark"), file("\"a\"", "../lark.bin", b"tweet", "")]);
    let path = home.path("");
    let error = Store::open_with(&path, home.access.clone()).unwrap_err().to_string();
    assert!(error.contains("lark.toml cannot be used: target '../lark.bin' must be"), "{error}");
}

#[test]
fn a_model_that_speaks_a_language_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let manifests = folder.path().join("manifests");
    fs::create_dir_all(&manifests).unwrap();
    for (name, languages, more) in [
        ("copyist", "\"la\"", "clones_voices = true\n"),
        ("polyglot", "\"la\", \"oc\"", ""),
        ("roman", "\"la\"", ""),
    ] {
        let text = format!(
            "name = \"{name}\"\nfamily = \"f\"\ndescription = \"d\"\ntask = [\"tts\"]\nlicence = \"MIT\"\n\
             languages = [{languages}]\n{more}[[sources]]\nkind = \"hub\"\nrepo = \"a/b\"\nrevision = \"main\"\n\
             [[sources.files]]\npath = \"a\"\nsha256 = \"{}\"\nsize = 1\ntarget = \"a\"\n",
            "0".repeat(64)
        );
        fs::write(manifests.join(format!("{name}.toml")), text).unwrap();
    }
    let store = |installed: &str| {
        let models = folder.path().join(format!("with-{installed}"));
        fs::create_dir_all(models.join(installed)).unwrap();
        let store = Store::open_with(folder.path(), Access::resolve(|_| None)).unwrap();
        store.with_models_dir(Some(models))
    };
    // One with voices of its own, not one that needs a recording; the one with the fewest other languages.
    let none = store("none");
    assert_eq!(none.speaker_of("la"), Some(("roman", false)));
    assert!(none.speaker_hint("la").contains("izwi pull roman"));
    assert_eq!(none.speaker_of("sn"), None);
    let copyist = store("copyist");
    assert_eq!(copyist.speaker_of("la"), Some(("copyist", true)), "what is installed comes first");
    assert!(copyist.speaker_hint("la").contains("is installed"));
}
