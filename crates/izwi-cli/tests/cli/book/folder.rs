//! The folder in which the commands of a page run: the files that they read, a store with the test models, tiny checkpoints
//! under the names of models whose weights are large, and programs that stand in for sound devices and browsers.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use crate::Izwi;

/// Checkpoints of `tests/golden/` and the models that they stand in for.
const TINY: [(&str, &str); 6] = [
    ("qwen3_tts/base17", "qwen3-tts-0.6b-base"),
    ("qwen3_tts/cv06", "qwen3-tts-0.6b-customvoice"),
    ("qwen3_tts/cv17", "qwen3-tts-1.7b-customvoice"),
    ("qwen3_tts/vd17", "qwen3-tts-1.7b-voicedesign"),
    ("lfm2_audio", "lfm2-audio-1.5b"),
    ("pocket_tts/old", "pocket-tts-english"),
];

/// Files of the repository that commands read, by the names that pages give them.
const FILES: [(&str, &str); 10] = [
    ("docs/samples/lighthouse.md", "lighthouse.md"),
    ("assets/speech/jfk.wav", "clip.wav"),
    ("assets/speech/jfk.wav", "question.wav"),
    ("assets/speech/jfk.wav", "calls/monday.wav"),
    ("assets/speech/sense_and_sensibility_01_austen_64kb-0880.wav", "calls/tuesday.wav"),
    ("assets/speech/sense_and_sensibility_01_austen_64kb-0930.wav", "visit.wav"),
    ("crates/izwi-audio/testdata/tone.m4a", "meeting.m4a"),
    ("crates/izwi-audio/testdata/speech-silk.opus", "interview.ogg"),
    ("crates/izwi-audio/testdata/tone.mp3", "talk.mp3"),
    ("assets/examples/prometheus.yml", "prometheus.yml"),
];

const LETTER: &str = "Dear Anna, the parcel came on Monday. Thank you!\n";

/// A published voice of a tiny checkpoint, as the store has it.
const VOICE: [&str; 2] =
    ["pocket-tts-english/voice.safetensors", "pocket-tts-english/embeddings/alba.safetensors"];

/// Programs that take the place of devices and other projects: a player that reads all it gets, a recorder that has a clip, a
/// browser, a language model with one answer.
const STAND_INS: [(&str, &str); 4] = [
    ("ollama", "cat > /dev/null; echo 'A robin, a wren.'; echo 'And a lark.'"),
    ("aplay", "exec cat > /dev/null"),
    (
        "arecord",
        "case \"$*\" in *raw*) exec tail -c +45 \"$HOME/clip.wav\" ;; *) exec cat \"$HOME/clip.wav\" ;; esac",
    ),
    ("xdg-open", "exit 0"),
];

pub(super) fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap()
}

/// Makes the folder.
pub(super) fn make() -> tempfile::TempDir {
    let root = repository();
    // Next to the models, so that they can be linked.
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = |name: &str| folder.path().join(name);
    for (file, name) in FILES {
        let to = path(name);
        fs::create_dir_all(to.parent().unwrap()).unwrap();
        fs::copy(root.join(file), to).unwrap();
    }
    fs::write(path("letter.txt"), LETTER).unwrap();
    // A refusal of the server fails the command.
    fs::write(path(".curlrc"), "fail-with-body\n").unwrap();
    // Without a device, Izwi takes the programs.
    fs::write(path("asound.conf"), "").unwrap();
    fs::create_dir_all(path("bin")).unwrap();
    for (name, script) in STAND_INS {
        let program = path("bin").join(name);
        fs::write(&program, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(program, fs::Permissions::from_mode(0o755)).unwrap();
    }
    for (checkpoint, model) in TINY {
        crate::copy(&root.join("tests/golden").join(checkpoint), &path("own-models").join(model));
    }
    let [voice, published] = VOICE.map(|name| path("own-models").join(name));
    fs::create_dir_all(published.parent().unwrap()).unwrap();
    fs::rename(voice, published).unwrap();
    link(&store().join("models"), &path("home/models"));
    folder
}

/// The store with the test models.
fn store() -> PathBuf {
    Izwi::with_models().home.unwrap()
}

/// The same files under another folder, so that a command may remove them. A file is copied where it cannot be linked.
fn link(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let name = entry.unwrap().file_name();
        let (from, to) = (from.join(&name), to.join(&name));
        if from.is_dir() {
            link(&from, &to);
        } else if fs::hard_link(&from, &to).is_err() {
            fs::copy(from, to).unwrap();
        }
    }
}
