//! Text that is dictated into other programs, and selected text that is spoken, on an X server of the test's own.

#![cfg(target_os = "linux")]

mod panel;
mod screen;
mod script;
mod tray;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::json;

use self::screen::{Process, Screen, eventually};
use self::script::Script;
use crate::sound::{asr_model, clip, install};
use crate::{Izwi, refused, signal};

/// What no key of an American keyboard writes, beside what one does.
const TEXT: &str = "Grüße aus Köln: 5 €, 日本語。 Ünïcode & \"ASCII\" {x} ~ 😀";

/// `izwi dictate --type` with these arguments.
fn dictate(izwi: &Izwi, screen: &Screen, arguments: &[&str]) -> Process {
    let mut command = izwi.command(&[&["dictate", "--type"], arguments].concat());
    command.env("PATH", izwi.path("bin")).stdin(Stdio::piped());
    Process::start(screen.on(command))
}

#[test]
fn a_hotkey_begins_and_ends_speech_that_is_typed_into_a_terminal() {
    let izwi = Izwi::with_models();
    let Some(screen) = Screen::start(&izwi) else { return };
    fs::write(izwi.path("clip.raw"), clip()).unwrap();
    fs::write(izwi.path("silence.raw"), vec![0; 3_200]).unwrap();
    fs::create_dir_all(izwi.path("home")).unwrap();
    // Silence continues after the clip, as that of a microphone does.
    let folder = izwi.path("").display().to_string();
    let script = "echo $$ > recorder\n/bin/cat clip.raw\nwhile /bin/cat silence.raw; do /bin/sleep 0.1; done";
    install(&izwi, "parec", &format!("cd '{folder}'\n{script}"));
    let profiles = "[[dictation]]\nlanguage = \"en\"\nhistory = true\n[[dictation]]\napplication = \"zenity\"\ntype = false\n";
    fs::write(izwi.path("c.toml"), profiles).unwrap();
    let model = asr_model(&izwi);
    let models = izwi.home.clone().unwrap().join("models").display().to_string();
    let typed = screen.terminal();
    screen.copy("clipboard", "precious");
    let keys = ["--hotkey", "ctrl+alt+space", "--config", "c.toml", "--models-dir", &models, "--no-pull"];
    let arguments = [&keys[..], &["--model", &model]].concat();
    let mut command = izwi.command(&[&["dictate", "--type"], &arguments[..]].concat());
    // What is kept of the text is kept here.
    command.env("IZWI_HOME", izwi.path("home")).env("PATH", izwi.path("bin"));
    let mut process = Process::start(screen.on(command));
    process.tells("press ctrl+alt+space to begin and to end a dictation");

    // Another program that wants the same keys.
    let other = izwi.command(&["dictate", "--type", "--hotkey", "Ctrl+Alt+Space"]);
    let other = screen.on(other).env("XDG_RUNTIME_DIR", izwi.path("other")).output().unwrap();
    refused(&other, 1, &["another program has this hotkey", "--toggle"]);
    let second = screen.on(izwi.command(&["dictate", "--type", "--wait"])).output().unwrap();
    refused(&second, 1, &["another `izwi dictate --type` waits already"]);
    assert!(!izwi.path("recorder").exists(), "the microphone is closed before");

    screen.xdotool(&["key", "ctrl+alt+space"]);
    process.tells("listening to parec");
    eventually("the last word is typed", || typed().to_lowercase().contains("country"));
    screen.xdotool(&["key", "ctrl+alt+space"]);
    let recorder = fs::read_to_string(izwi.path("recorder")).unwrap();
    let recorder = format!("/proc/{}", recorder.trim());
    eventually("the microphone is closed", || !fs::exists(&recorder).unwrap());
    let spoken = || typed().trim_end_matches(['.', '!']).to_lowercase();
    eventually("the end is typed", || spoken().ends_with("country"));
    assert!(typed().starts_with(char::is_alphanumeric) && spoken().contains("americans"), "{:?}", typed());
    assert_eq!(screen.paste("clipboard"), "precious");
    assert!(screen.no_key_is_down());

    // A program into which nothing is dictated.
    let zenity = screen.entry();
    screen.xdotool(&["key", "ctrl+alt+space"]);
    process.tells("no dictation begins: the settings have type = false for Zenity");
    drop(zenity);

    signal(process.id(), "INT");
    let printed = process.succeeds();
    assert_eq!(
        printed.split_whitespace().collect::<Vec<_>>(),
        typed().split_whitespace().collect::<Vec<_>>()
    );
    let history = izwi.path("home/dictations.jsonl");
    assert_eq!(fs::metadata(&history).unwrap().permissions().mode() & 0o777, 0o600);
    let history = fs::read_to_string(history).unwrap();
    assert!(history.lines().all(|line| line.contains(r#""application":"XTerm""#)), "{history}");
    assert!(history.to_lowercase().contains("country"), "{history}");
}

#[test]
fn any_text_arrives_in_a_gtk_field_and_the_keyboard_is_as_before() {
    let izwi = Izwi::alone();
    let Some(screen) = Screen::start(&izwi) else { return };
    screen.copy("clipboard", "precious");
    screen.copy("primary", "selected");
    let layout = screen.layout();
    let script = Script::start();
    let zenity = screen.entry();
    let process = dictate(&izwi, &screen, &["-", "--server", &script.url()]);
    script.turn(0, &[&format!(" {TEXT}"), " more"]);
    script.turn(1, &[" And", ", joined."]);
    script.done();
    process.succeeds();
    screen.xdotool(&["key", "Return"]);
    assert_eq!(zenity.succeeds().trim_end(), format!("{TEXT} more And, joined."));
    assert_eq!((screen.paste("clipboard"), screen.paste("primary")), ("precious".into(), "selected".into()));
    assert_eq!(screen.layout(), layout, "keys that were taken are given back");
    assert!(screen.no_key_is_down());
}

#[test]
fn any_text_arrives_in_a_field_of_chromium() {
    let izwi = Izwi::alone();
    let Some(screen) = Screen::start(&izwi) else { return };
    let Some(_chromium) = screen.chromium() else { return };
    screen.copy("clipboard", "precious");
    let script = Script::start();
    let process = dictate(&izwi, &screen, &["-", "--server", &script.url()]);
    script.turn(0, &[&format!(" {TEXT}"), "\nnew line"]);
    script.done();
    process.succeeds();
    let title = || screen.xdotool(&["getactivewindow", "getwindowname"]);
    eventually("the text is in the field", || title().starts_with(&format!("{TEXT}/new line")));
    assert_eq!(screen.paste("clipboard"), "precious");
}

#[test]
fn a_turn_stays_with_its_window_and_waits_for_held_keys() {
    let izwi = Izwi::alone();
    let Some(screen) = Screen::start(&izwi) else { return };
    let typed = screen.terminal();
    let script = Script::start();
    let mut process = dictate(&izwi, &screen, &["-", "--server", &script.url()]);
    script.started(0);
    script.committed(0, " One");
    eventually("the begin is typed", || typed() == "One");
    let zenity = screen.entry();
    script.committed(0, " two");
    process.tells("not typed, as another window has the focus:  two");
    script.committed(0, " three");
    process.tells("not typed:  three");
    script.ended(0, "One two three");

    // Text would be commands while the user holds Ctrl.
    screen.xdotool(&["keydown", "ctrl"]);
    script.turn(1, &[" aaa Bbb"]);
    process.tells("text waits until no key is held");
    screen.xdotool(&["keyup", "ctrl"]);
    script.done();
    process.succeeds();
    screen.xdotool(&["key", "Return"]);
    assert_eq!(zenity.succeeds().trim_end(), "aaa Bbb");
    assert_eq!(typed(), "One", "nothing goes back to a window that lost the focus");
}

#[test]
fn a_held_key_and_another_command_begin_and_end_a_dictation() {
    let izwi = Izwi::alone();
    let Some(screen) = Screen::start(&izwi) else { return };
    install(&izwi, "parec", "exec /bin/sleep 600");
    let typed = screen.terminal();
    let script = Script::start();
    let mut process = dictate(&izwi, &screen, &["--hotkey", "f9", "--hold", "--server", &script.url()]);
    process.tells("hold f9 to dictate");
    screen.xdotool(&["keydown", "F9"]);
    process.tells("listening to parec");
    script.turn(0, &[" While held."]);
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(typed(), "", "no text comes while a key is held");
    screen.xdotool(&["keyup", "F9"]);
    script.done();
    eventually("the text comes afterwards", || typed() == "While held.");
    signal(process.id(), "INT");
    process.succeeds();

    let toggle = || screen.on(izwi.command(&["dictate", "--toggle"])).output().unwrap();
    let toggles = || {
        let output = toggle();
        assert!(output.status.success(), "{output:?}");
    };
    refused(&toggle(), 1, &["no `izwi dictate --type` waits", "--wait"]);
    let mut process = dictate(&izwi, &screen, &["--wait", "--server", &script.url()]);
    process.tells("`izwi dictate --toggle` begins and ends a dictation");
    toggles();
    process.tells("listening to parec");
    script.turn(0, &[" By a command."]);
    toggles();
    script.done();
    eventually("the text is typed", || typed() == "While held.By a command.");
    signal(process.id(), "INT");
    process.succeeds();
}

#[test]
fn an_interrupt_while_text_is_typed_leaves_no_key_down() {
    let izwi = Izwi::alone();
    let Some(screen) = Screen::start(&izwi) else { return };
    let typed = screen.terminal();
    let script = Script::start();
    let mut process = dictate(&izwi, &screen, &["-", "--server", &script.url()]);
    process.tells("listening to standard input");
    script.turn(0, &["ABCD ".repeat(2_000).as_str()]);
    eventually("some is typed", || typed().len() > 20);
    signal(process.id(), "INT");
    std::thread::sleep(Duration::from_millis(100));
    signal(process.id(), "INT");
    assert_eq!(process.end().0.code(), Some(130));
    assert!(screen.no_key_is_down() && typed().len() < 10_000);
}

#[test]
fn a_session_without_a_desktop_is_refused() {
    let izwi = Izwi::alone();
    let refusal = |arguments: &[&str], display: Option<&str>, code, parts: &[&str]| {
        let mut command = izwi.command(arguments);
        command.env_remove("WAYLAND_DISPLAY").env_remove("DISPLAY").env("PATH", izwi.path("bin"));
        command.env("XDG_RUNTIME_DIR", izwi.path("run"));
        if let Some((name, value)) = display.and_then(|display| display.split_once('=')) {
            command.env(name, value);
        }
        refused(&command.output().unwrap(), code, parts);
    };
    let dictate = ["dictate", "--type"];
    refusal(&dictate, None, 1, &["DISPLAY and WAYLAND_DISPLAY are not set", "graphical session"]);
    refusal(&dictate, Some("DISPLAY=:4999"), 1, &["cannot connect to the X server ':4999'"]);
    refusal(&dictate, Some("WAYLAND_DISPLAY=wayland-9"), 1, &["wtype, which was not found", "install wtype"]);
    refusal(&["speak-selection"], None, 1, &["no desktop", "graphical session"]);
    refusal(&["dictate", "--toggle"], None, 1, &["no `izwi dictate --type` waits"]);
    for (arguments, part) in [
        (&["dictate", "--hotkey", "f9"][..], "--type"),
        (&["dictate", "--type", "--hold"], "--hotkey"),
        (&["dictate", "--type", "--wait", "--hotkey", "f9"], "--wait"),
        (&["dictate", "--type", "-", "--wait"], "--wait"),
        (&["dictate", "--toggle", "--type"], "--toggle"),
        (&["dictate", "--type", "--hotkey", "space"], "could no longer be used"),
        (&["dictate", "--type", "--hotkey", "ctrl+nothing"], "'ctrl+nothing' is no hotkey"),
    ] {
        refusal(arguments, None, 2, &[part]);
    }
}

/// The program stands in for a compositor: it types by telling what it was given.
#[test]
fn text_is_given_to_wtype_on_wayland() {
    let izwi = Izwi::alone();
    let given = izwi.path("given").display().to_string();
    install(&izwi, "wtype", &format!("[ \"$*\" = - ] && exec /bin/cat >> '{given}'"));
    let script = Script::start();
    let mut command = izwi.command(&["dictate", "--type", "-", "--server", &script.url()]);
    command.env("WAYLAND_DISPLAY", "wayland-9").env("PATH", izwi.path("bin")).stdin(Stdio::piped());
    let process = Process::start(command);
    script.turn(0, &[&format!(" {TEXT}"), " more"]);
    script.turn(1, &[" next"]);
    script.done();
    process.succeeds();
    assert_eq!(fs::read_to_string(&given).unwrap(), format!("{TEXT} more next"));

    install(&izwi, "wtype", "echo 'Compositor does not support the virtual keyboard protocol' >&2; exit 1");
    let mut command = izwi.command(&["dictate", "--type", "-", "--server", &script.url()]);
    command.env("WAYLAND_DISPLAY", "wayland-9").env("PATH", izwi.path("bin")).stdin(Stdio::piped());
    let mut process = Process::start(command);
    script.turn(0, &[" lost"]);
    process.tells("not typed: lost");
    process.tells("does not support the virtual keyboard protocol");
    process.tells("help: use a session of X11");
    script.done();
    process.succeeds();
    let mut command = izwi.command(&["dictate", "--type", "--hotkey", "f9"]);
    command.env("WAYLAND_DISPLAY", "wayland-9").env("PATH", izwi.path("bin"));
    refused(
        &command.output().unwrap(),
        1,
        &["no program can take a hotkey on Wayland", "--wait", "--toggle"],
    );
}

#[test]
fn selected_text_is_spoken_and_a_second_command_stops_it() {
    let izwi = Izwi::with_models();
    let Some(screen) = Screen::start(&izwi) else { return };
    let folder = izwi.path("").display().to_string();
    // The loudspeaker takes a tenth of a second for a tenth of a second of audio.
    let script = "echo begins >> players\nwhile [ \"$(/usr/bin/head -c 4800 | /usr/bin/wc -c)\" -gt 0 ]; do\n\
        /bin/sleep 0.1; done\necho ends >> players";
    install(&izwi, "aplay", &format!("cd '{folder}'\n{script}"));
    let speak = || {
        let mut command = izwi.command(&["speak-selection", "--no-pull", "--json"]);
        command.env("PATH", izwi.path("bin"));
        screen.on(command)
    };
    refused(&speak().output().unwrap(), 1, &["no text is selected", "copy it"]);
    let seconds = |spoken: &std::process::Output| {
        let report: serde_json::Value = serde_json::from_slice(&spoken.stdout).unwrap();
        assert_eq!((&report["file"], &report["player"]), (&json!(null), &json!("aplay")));
        report["seconds"].as_f64().unwrap()
    };
    screen.copy("clipboard", "One.");
    let clipboard = seconds(&speak().output().unwrap());
    screen.copy("primary", "What is selected goes before what is in the clipboard.");
    let selection = seconds(&speak().output().unwrap());
    assert!(selection > 2.0 * clipboard, "{selection} {clipboard}");

    screen.copy("primary", &"It goes on and on. ".repeat(50));
    let process = Process::start(speak());
    let players = || fs::read_to_string(izwi.path("players")).unwrap_or_default();
    eventually("the long text is played", || players().matches("begins").count() == 3);
    let stopping = speak().output().unwrap();
    assert!(stopping.status.success() && stopping.stdout.is_empty(), "{stopping:?}");
    process.succeeds();
    assert_eq!(players().matches("ends").count(), 2, "{}", players());
}

/// Whether a program is installed.
fn is_installed(program: &str) -> bool {
    Command::new("sh")
        .args(["-c", "command -v \"$0\"", program])
        .output()
        .is_ok_and(|found| found.status.success())
}
