//! The microphone and the loudspeaker: of programs that stand in for those of the platform, and of a device of ALSA that is a
//! file.

use std::fs;
use std::io::Read as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::{Izwi, install_chat_model, refused, signal};

/// The smallest ASR model that is installed.
pub(crate) fn asr_model(izwi: &Izwi) -> String {
    let listed = izwi.run(&["list", "--json"]);
    let listed: Vec<serde_json::Value> = serde_json::from_slice(&listed.stdout).unwrap();
    let listens = |model: &&serde_json::Value| {
        model["installed"] == true && model["tasks"].as_array().unwrap().contains(&"asr".into())
    };
    let name = |model: &serde_json::Value| model["name"].as_str().unwrap().to_owned();
    listed.iter().filter(listens).map(name).find(|name| name.ends_with("tiny.en")).unwrap()
}

/// Longer than any test here takes.
const PATIENCE: Duration = Duration::from_secs(120);

/// Silence that ends a turn, whatever an installed model thinks of its end.
static SILENCE: [u8; 6 * 32_000] = [0; 6 * 32_000];

/// Samples of the clip, 16 bits at 16 kHz.
pub(crate) fn clip() -> Vec<u8> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap();
    let (samples, rate_hz) = {
        let mut reader = hound::WavReader::open(root.join("assets/speech/jfk.wav")).unwrap();
        (reader.samples::<i16>().map(Result::unwrap).collect::<Vec<_>>(), reader.spec().sample_rate)
    };
    assert_eq!(rate_hz, 16_000);
    samples.into_iter().flat_map(i16::to_le_bytes).collect()
}

pub(crate) fn install(izwi: &Izwi, name: &str, script: &str) {
    let folder = izwi.path("bin");
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join(name), format!("#!/bin/sh\n{script}\n")).unwrap();
    fs::set_permissions(folder.join(name), fs::Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn speech_on_standard_input_is_transcribed_while_it_comes() {
    let izwi = Izwi::with_models();
    let model = asr_model(&izwi);
    let spoken = ["dictate", "-", "--model", &model, "--no-pull", "--language", "en"];
    let output = izwi.run_with_input(&spoken, &clip());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap().to_lowercase();
    // The words between vary with the load of the machine.
    assert!(
        text.contains("americans") && text.trim_end().trim_end_matches(['.', '!']).ends_with("country"),
        "{text}"
    );
    assert!(!text.starts_with(' ') && text.ends_with('\n'), "{text:?}");

    let output = izwi.run_with_input(&[&spoken[..], &["--latency-ms", "100"]].concat(), &[]);
    assert!(
        !String::from_utf8_lossy(&output.stderr).contains("no message was received"),
        "it waits for nothing"
    );
    refused(&output, 1, &["latency_ms is 100", "between 200 and 5000"]);

    let output = izwi.run_with_input(&[&spoken[..], &["--json"]].concat(), &clip()[..96_000]);
    let lines = String::from_utf8(output.stdout).unwrap();
    let events: Vec<serde_json::Value> =
        lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let of = |kind: &str| events.iter().filter(|event| event["type"] == kind).collect::<Vec<_>>();
    assert_eq!((of("session.created").len(), of("session.done").len()), (1, 1), "{lines}");
    let words: Vec<_> = of("committed").iter().flat_map(|event| event["words"].as_array().unwrap()).collect();
    assert!(words.len() >= 3 && words.iter().all(|word| word["end_ms"].as_u64() <= Some(3_100)), "{lines}");
}

#[test]
fn a_recorder_is_the_microphone_until_an_interrupt() {
    let izwi = Izwi::with_models();
    fs::write(izwi.path("clip.raw"), clip()).unwrap();
    fs::write(izwi.path("silence.raw"), vec![0; 3_200]).unwrap();
    // Silence continues after the clip, as that of a microphone does.
    let folder = izwi.path("");
    let script = "/bin/cat clip.raw\nwhile /bin/cat silence.raw; do /bin/sleep 0.1; done";
    install(&izwi, "arecord", &format!("cd '{}'\n{script}", folder.display()));
    let mut command = izwi.command(&["dictate", "--model", &asr_model(&izwi), "--no-pull"]);
    let mut child = command.env("PATH", izwi.path("bin")).spawn().unwrap();
    let mut stdout = child.stdout.take().unwrap();
    let (mut text, begun) = (String::new(), Instant::now());
    while !text.to_lowercase().contains("ask") {
        let mut bytes = [0; 256];
        let count = stdout.read(&mut bytes).unwrap();
        assert!(count > 0 && begun.elapsed() < PATIENCE, "{text}");
        text.push_str(&String::from_utf8_lossy(&bytes[..count]));
    }
    signal(child.id(), "INT");
    stdout.read_to_string(&mut text).unwrap();
    assert!(child.wait().unwrap().success());
    assert!(text.ends_with('\n'), "what was said before the interrupt is final: {text}");
}

#[test]
fn wrong_sources_of_speech_are_refused() {
    let izwi = Izwi::alone();
    refused(&izwi.run(&["dictate", "talk.wav"]), 2, &["'talk.wav'", "izwi transcribe talk.wav"]);
    refused(&izwi.run(&["dictate", "--server", "localhost:80"]), 2, &["--server", "http://127.0.0.1:8080"]);
    let nobody = ["dictate", "--server", "http://127.0.0.1:1"];
    refused(&izwi.run(&nobody), 1, &["http://127.0.0.1:1", "leave out --server"]);
    refused(&izwi.run(&["chat", "--mic", "--seed", "1"]), 2, &["--seed", "--mic"]);
}

#[test]
fn a_conversation_by_voice_answers_and_ends_with_an_interrupt() {
    let izwi = Izwi::with_models();
    install_chat_model(&izwi);
    fs::write(izwi.path("clip.raw"), &clip()[..64_000]).unwrap();
    fs::write(izwi.path("silence.raw"), SILENCE).unwrap();
    let folder = izwi.path("");
    install(
        &izwi,
        "arecord",
        &format!("cd '{}'\n/bin/cat clip.raw silence.raw\nexec /bin/sleep 60", folder.display()),
    );
    install(&izwi, "aplay", &format!("exec /bin/cat >> '{}/played.raw'", folder.display()));
    let given =
        ["chat", "--mic", "--models-dir", "models", "--dtype", "f32", "--max-blocks", "512", "--no-pull"];
    let mut command = izwi.command(&[&given[..], &["--max-tokens", "60"]].concat());
    let mut child = command.env("PATH", izwi.path("bin")).spawn().unwrap();
    let mut stdout = child.stdout.take().unwrap();
    // The line of an answer ends with it.
    let mut first = [0];
    while first != *b"\n" {
        assert_eq!(stdout.read(&mut first).unwrap(), 1, "no answer");
    }
    signal(child.id(), "INT");
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(String::from_utf8_lossy(&output.stderr).contains("listening to arecord"));
}

/// The player of the first answer stops before its end, and a second answer is played.
#[test]
fn speaking_interrupts_the_answer_that_is_played() {
    let izwi = Izwi::with_models();
    install_chat_model(&izwi);
    fs::write(izwi.path("clip.raw"), &clip()[..96_000]).unwrap();
    fs::write(izwi.path("silence.raw"), SILENCE).unwrap();
    let folder = izwi.path("").display().to_string();
    // The microphone is silent until the first answer is heard.
    let script = "/bin/cat clip.raw silence.raw\nwhile [ ! -e players ]; do /bin/sleep 0.05; done\n\
        /bin/cat clip.raw silence.raw\nexec /bin/sleep 60";
    install(&izwi, "arecord", &format!("cd '{folder}'\n{script}"));
    // The loudspeaker takes a tenth of a second for a tenth of a second of audio.
    let script = "echo begins >> players\nwhile [ \"$(/usr/bin/head -c 4800 | /usr/bin/wc -c)\" -gt 0 ]; do\n\
        /bin/sleep 0.1; done\necho ends >> players";
    install(&izwi, "aplay", &format!("cd '{folder}'\n{script}"));
    let given =
        ["chat", "--mic", "--models-dir", "models", "--dtype", "f32", "--max-blocks", "512", "--no-pull"];
    let mut command = izwi.command(&[&given[..], &["--max-tokens", "120"]].concat());
    let child = command.env("PATH", izwi.path("bin")).spawn().unwrap();
    let players = || fs::read_to_string(izwi.path("players")).unwrap_or_default();
    let begun = Instant::now();
    while players().matches("begins").count() < 2 && begun.elapsed() < PATIENCE {
        std::thread::sleep(Duration::from_millis(20));
    }
    signal(child.id(), "INT");
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(players().starts_with("begins\nbegins\n"), "{:?}", players());
}

/// Speech through the device instead of a program.
#[cfg(all(target_os = "linux", feature = "alsa"))]
#[test]
fn the_sound_device_plays_what_is_spoken() {
    let izwi = Izwi::with_models();
    let raw = izwi.path("played.raw");
    let config = format!(
        "pcm.silent {{ type null }}\npcm.!default {{ type file slave.pcm \"silent\" file \"{}\" format \"raw\" }}\n",
        raw.display()
    );
    fs::write(izwi.path("asound.conf"), config).unwrap();
    let say = |more: &[&str]| {
        let mut command = izwi.command(&["say", "Hello there.", "--seed", "1", "--json"]);
        command.env("ALSA_CONFIG_PATH", izwi.path("asound.conf")).env("PATH", "");
        let output = command.args(more).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice::<serde_json::Value>(&output.stdout).unwrap()
    };
    let report = say(&["--play"]);
    assert_eq!((&report["player"], &report["file"]), (&"device".into(), &serde_json::Value::Null));
    assert!(fs::metadata(&raw).unwrap().len() > 0);
}
