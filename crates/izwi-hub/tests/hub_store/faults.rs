//! Faults while files are written: a killed process, a full disk, damaged bytes.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;
use std::{env, fs, thread};

use izwi_hub::{VoiceNotes, VoiceStore};
use safetensors::tensor::{Dtype, TensorView};

use crate::home::{Home, file, hub, noise};
use crate::server::{Answer, Server};

/// Names the folder of voices in a process that a test starts of itself.
const FOLDER: &str = "IZWI_TEST_VOICES";
const KILLS: u64 = 12;
const PACK_BYTES: usize = 4 << 20;

/// A voice pack of a few MiB, others for another `seed`.
fn pack(seed: u8) -> Vec<u8> {
    let bytes = vec![seed; PACK_BYTES];
    let tensor = TensorView::new(Dtype::U8, vec![PACK_BYTES], &bytes).unwrap();
    let metadata = [
        ("format", "izwi-voice-1"),
        ("model", "abc"),
        ("family", "bird"),
        ("created", "2026-01-01T00:00:00Z"),
    ];
    let metadata: HashMap<String, String> =
        metadata.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
    safetensors::serialize([("speaker", tensor)], Some(metadata)).unwrap()
}

/// This test again, alone, in a process of its own.
fn again(test: &str, folder: &Path) -> Command {
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["--exact", test]).env(FOLDER, folder).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

/// The folder of a process that [`again`] started.
fn child_folder() -> Option<PathBuf> {
    env::var_os(FOLDER).map(PathBuf::from)
}

#[test]
fn a_killed_save_leaves_whole_voices_and_no_lock() {
    if let Some(folder) = child_folder() {
        let packs = [pack(1), pack(2)];
        let store = VoiceStore::at(folder);
        for pack in packs.iter().cycle() {
            store.save("anna", pack, &VoiceNotes::default(), true).unwrap();
        }
    }
    let home = tempfile::tempdir().unwrap();
    let folder = home.path().join("voices");
    let store = VoiceStore::at(&folder);
    for kill in 0..KILLS {
        let mut child =
            again("faults::a_killed_save_leaves_whole_voices_and_no_lock", &folder).spawn().unwrap();
        while store.names().unwrap().is_empty() && child.try_wait().unwrap().is_none() {
            thread::sleep(Duration::from_millis(1));
        }
        // At another point of the loop each time.
        thread::sleep(Duration::from_millis(3 * kill));
        child.kill().unwrap();
        child.wait().unwrap();
        for name in store.names().unwrap() {
            let (_, bytes) = store.read(&name).unwrap();
            let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
            let data = tensors.tensor("speaker").unwrap().data();
            assert!(data.len() == PACK_BYTES && data.iter().all(|byte| *byte == data[0]));
        }
        // The lock ended with its process, and what it left is removed.
        store.save("bella", &pack(3), &VoiceNotes::default(), true).unwrap();
        let files = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name());
        let mut files: Vec<String> = files.map(|name| name.into_string().unwrap()).collect();
        files.sort();
        assert_eq!(files, [".lock", "anna.safetensors", "bella.safetensors"]);
        store.remove("bella").unwrap();
        if kill % 2 == 0 {
            store.remove("anna").unwrap();
        }
    }
}

#[cfg(unix)]
#[test]
fn a_voice_without_room_is_refused_and_the_old_one_stays() {
    if let Some(folder) = child_folder() {
        let error = VoiceStore::at(folder).save("anna", &pack(2), &VoiceNotes::default(), true).unwrap_err();
        let text = error.to_string();
        let is_told = text.contains("cannot write") && text.contains("set IZWI_HOME to another disk");
        std::process::exit(if is_told { 0 } else { 3 });
    }
    let home = tempfile::tempdir().unwrap();
    let folder = home.path().join("voices");
    let store = VoiceStore::at(&folder);
    store.save("anna", &pack(1), &VoiceNotes::default(), false).unwrap();
    let before = store.read("anna").unwrap();
    // The limit of a file's size, in blocks of 512 or 1024 bytes, stands for a full disk.
    let child = again("faults::a_voice_without_room_is_refused_and_the_old_one_stays", &folder);
    let mut limited = Command::new("sh");
    limited.args(["-c", "trap '' XFSZ; ulimit -f 100; exec \"$0\" \"$@\""]).arg(child.get_program());
    let ended = limited.args(child.get_args()).env(FOLDER, &folder).stdout(Stdio::null()).status().unwrap();
    assert!(ended.success(), "{ended}");
    assert!(store.read("anna").unwrap() == before);
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 2, "the voice and the lock");
}

#[test]
fn every_damaged_byte_of_an_installed_model_is_found() {
    let contents = noise(300);
    let body = contents.clone();
    let server = Server::start(move |_, _| Answer::whole(&body));
    let home = Home::new(&server.url());
    home.offer(&[hub("bird/lark"), file("\"lark.bin\"", "lark.bin", &contents, "")]);
    home.pull().unwrap();
    let (store, path) = (home.store(), home.path("models/lark/lark.bin"));
    for at in 0..contents.len() {
        for bit in 0..8 {
            let mut damaged = contents.clone();
            damaged[at] ^= 1 << bit;
            fs::write(&path, damaged).unwrap();
            let error = store.verify("lark").unwrap_err().to_string();
            assert!(error.contains("lark.bin has sha256"), "{at}: {error}");
        }
    }
    for length in 0..contents.len() {
        fs::write(&path, &contents[..length]).unwrap();
        let error = store.installed("lark").unwrap_err().to_string();
        assert!(error.contains(&format!("lark.bin has {length} bytes instead of 300")), "{error}");
    }
    let record = home.path("models/lark/.izwi.json");
    let whole = fs::read(&record).unwrap();
    fs::write(&path, &contents).unwrap();
    for length in 0..whole.len() - 1 {
        fs::write(&record, &whole[..length]).unwrap();
        assert!(store.installed("lark").unwrap_err().to_string().contains(".izwi.json"), "{length}");
    }
    home.pull().unwrap();
    store.verify("lark").unwrap();
}

#[test]
fn every_damaged_byte_of_a_download_is_refused_before_it_is_converted() {
    // The hash covers what the reader of the format sees.
    let contents = noise(120);
    for at in 0..contents.len() {
        let mut damaged = contents.clone();
        damaged[at] ^= 1;
        let server = Server::start(move |_, _| Answer::whole(&damaged));
        let home = Home::new(&server.url());
        home.offer(&[hub("bird/lark"), file("\"a.onnx\"", "a.safetensors", &contents, "convert = \"onnx\"")]);
        let error = home.pull().unwrap_err().to_string();
        assert!(error.contains("has the hash"), "{at}: {error}");
        assert!(!home.path("models/lark").exists());
    }
}
