//! `izwi tray`: its icon and menu as a panel sees them, and what a click does.

use std::fs;
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};

use super::panel::{Bus, Panel};
use super::screen::{Process, Screen, eventually};
use super::script::Script;
use super::{dictate, is_installed};
use crate::sound::{asr_model, clip, install};
use crate::{Izwi, refused, signal};

/// A port that is free.
fn free_port() -> String {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string()
}

/// The bus of a session; `None`, with the reason told, where there can be none.
fn bus() -> Option<Bus> {
    if !is_installed("dbus-daemon") {
        super::screen::skipped("dbus-daemon is not installed");
        return None;
    }
    Some(Bus::start())
}

/// `izwi tray` on a screen and a bus, with stand-ins for programs.
fn tray(izwi: &Izwi, screen: &Screen, bus: &Bus, arguments: &[&str]) -> Command {
    let mut command = screen.on(izwi.command(&[&["tray"], arguments].concat()));
    command.env("DBUS_SESSION_BUS_ADDRESS", &bus.address).env("PATH", izwi.path("bin"));
    command
}

/// The default model that speaks.
fn tts_model(izwi: &Izwi) -> String {
    let listed = izwi.run(&["list", "--json"]).stdout;
    let listed: Vec<serde_json::Value> = serde_json::from_slice(&listed).unwrap();
    let speaks =
        |model: &&serde_json::Value| model["default_for"].as_array().unwrap().contains(&"tts".into());
    listed.iter().find(speaks).unwrap()["name"].as_str().unwrap().to_owned()
}

/// A server on a port with these models.
fn serve(izwi: &Izwi, port: &str, model: &str) -> Child {
    let mut command = izwi.command(&["serve", "--port", port, "--no-pull", "--asr-model", model]);
    command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

/// A microphone that hears a clip and then silence, and a loudspeaker that takes a tenth of a second for a tenth of a second of
/// audio.
fn programs(izwi: &Izwi) {
    let folder = izwi.path("").display().to_string();
    fs::write(izwi.path("clip.raw"), clip()).unwrap();
    fs::write(izwi.path("silence.raw"), vec![0; 3_200]).unwrap();
    let recorder =
        "echo $$ > recorder\n/bin/cat clip.raw\nwhile /bin/cat silence.raw; do /bin/sleep 0.1; done";
    install(izwi, "parec", &format!("cd '{folder}'\n{recorder}"));
    let player = "echo begins >> players\nwhile [ \"$(/usr/bin/head -c 4800 | /usr/bin/wc -c)\" -gt 0 ]; do\n\
        /bin/sleep 0.1; done\necho ends >> players";
    install(izwi, "aplay", &format!("cd '{folder}'\n{player}"));
}

#[test]
fn the_icon_dictates_reads_and_follows_the_server() {
    let izwi = Izwi::with_models();
    let (Some(screen), Some(bus)) = (Screen::start(&izwi), bus()) else { return };
    programs(&izwi);
    let (port, model, speaks) = (free_port(), asr_model(&izwi), tts_model(&izwi));
    let panel = Panel::start(&bus);
    let mut command = tray(&izwi, &screen, &bus, &["--port", &port]);
    // What is chosen is kept here, and the models are found there.
    let models = izwi.home.clone().unwrap().join("models");
    command.env("IZWI_HOME", izwi.path("home")).env("IZWI_MODELS_DIR", models).env("IZWI_ASR_MODEL", &model);
    let mut process = Process::start(command);
    panel.gets_an_icon();
    let tip = |part: &str| eventually(part, || panel.property("ToolTip").contains(part));

    // Without a server there is one thing to do.
    tip("the server does not run");
    assert!(panel.line(&format!("No server runs on http://127.0.0.1:{port}")).is_some());
    assert!(!panel.line("Start dictation").unwrap().is_enabled);
    assert!(!panel.line("Read the clipboard aloud").unwrap().is_enabled);
    let off = panel.property("IconPixmap");
    panel.click("Start the server");
    tip("ready");
    let idle = panel.property("IconPixmap");
    assert_ne!(off, idle);
    assert!(panel.line(&format!("The server runs on http://127.0.0.1:{port}")).is_some());

    // Dictation at the cursor.
    let typed = screen.terminal();
    assert_eq!(panel.line("Microphone: parec").map(|line| line.is_enabled), Some(false));
    assert!(!izwi.path("recorder").exists(), "the microphone is closed before");
    panel.middle_click();
    tip("the microphone is open (parec)");
    let listening = panel.property("IconPixmap");
    assert!(listening != idle && listening != off);
    assert!(panel.line("Microphone, open: parec").is_some());
    eventually("the last word is typed", || typed().to_lowercase().contains("country"));
    panel.click("Stop dictation");
    tip("ready");
    let recorder = fs::read_to_string(izwi.path("recorder")).unwrap();
    eventually("the microphone is closed", || !fs::exists(format!("/proc/{}", recorder.trim())).unwrap());
    assert!(typed().to_lowercase().contains("americans"), "{}", typed());

    // Reading aloud by the server, in a voice that is chosen.
    panel.click(&speaks);
    panel.click("heart");
    eventually("the choice is shown", || panel.line("heart").unwrap().is_chosen);
    let kept = fs::read_to_string(izwi.path("home/tray.json")).unwrap();
    assert!(
        kept.contains(r#""voice": "heart""#) && kept.contains(&format!(r#""speech_model": "{speaks}""#)),
        "{kept}"
    );
    let players = || fs::read_to_string(izwi.path("players")).unwrap_or_default();
    screen.copy("clipboard", "One.");
    screen.copy("primary", &"It goes on and on. ".repeat(50));
    panel.click("Read the clipboard aloud");
    eventually("the clipboard is read", || players() == "begins\nends\n");
    tip("ready");
    panel.click("Read the selection aloud");
    tip("reads aloud");
    assert!(panel.property("IconPixmap") != idle);
    eventually("the selection is read", || players() == "begins\nends\nbegins\n");
    panel.click("Stop reading");
    tip("ready");
    assert_eq!(players(), "begins\nends\nbegins\n", "the rest is not read");
    let metrics = crate::get(&format!("127.0.0.1:{port}"), "/metrics");
    assert!(metrics.contains(&speaks), "the server has spoken");

    // The server of the menu ends, and another one comes and is killed.
    panel.click("Stop the server");
    tip("the server does not run");
    let mut server = serve(&izwi, &port, &model);
    tip("ready");
    assert!(panel.line("Stop the server").is_none(), "it belongs to somebody else");
    server.kill().unwrap();
    server.wait().unwrap();
    tip("the server does not run");
    assert!(panel.line("Start the server").is_some());
    process.tells("izwi serves on");
    panel.click("Quit");
    process.succeeds();
}

#[test]
fn one_icon_stays_while_panels_come_and_go() {
    let izwi = Izwi::alone();
    let (Some(screen), Some(bus)) = (Screen::start(&izwi), bus()) else { return };
    let port = free_port();
    let arguments = ["--port", &port];
    let refusal = tray(&izwi, &screen, &bus, &arguments).output().unwrap();
    refused(&refusal, 1, &["this desktop has no tray", "AppIndicator", "panel"]);
    // One that waits gets its icon from the first panel.
    let process = Process::start(tray(&izwi, &screen, &bus, &[&arguments[..], &["--wait"]].concat()));
    eventually("the tray runs", || izwi.path("run/izwi-tray.sock").exists());
    let panel = Panel::start(&bus);
    panel.gets_an_icon();
    assert_eq!(panel.property("Title"), "Str(\"Izwi\")");
    let second = tray(&izwi, &screen, &bus, &arguments).output().unwrap();
    refused(&second, 1, &["another `izwi tray` of this user runs already", "Quit"]);
    drop(panel);
    let panel = Panel::start(&bus);
    panel.gets_an_icon();
    assert!(panel.line("Start the server").is_some() && panel.line("Quit").unwrap().is_enabled);
    signal(process.id(), "TERM");
    process.succeeds();
    assert!(!izwi.path("run/izwi-tray.sock").exists());

    // With the session ends the icon.
    drop(panel);
    let panel = Panel::start(&bus);
    let process = Process::start(tray(&izwi, &screen, &bus, &arguments));
    panel.gets_an_icon();
    drop(bus);
    process.succeeds();
}

#[test]
fn a_tray_without_a_session_is_refused() {
    let izwi = Izwi::alone();
    let refusal = |arguments: &[&str], address: &str, code, parts: &[&str]| {
        let mut command = izwi.command(&[&["tray"], arguments].concat());
        command.env("DBUS_SESSION_BUS_ADDRESS", address).env("XDG_RUNTIME_DIR", izwi.path("run"));
        refused(&command.output().unwrap(), code, parts);
    };
    refusal(&[], "unix:path=/nowhere/bus", 1, &["there is no D-Bus of a session", "izwi status"]);
    refusal(&[], "nonsense", 1, &["there is no D-Bus of a session"]);
    refusal(&["--hotkey", "space"], "unix:path=/nowhere/bus", 2, &["could no longer be used"]);
    refusal(&["--port", "0"], "unix:path=/nowhere/bus", 2, &["port: 0", "name the port"]);
    assert!(!izwi.path("run/izwi-tray.sock").exists());
}

#[test]
fn lines_of_standard_input_begin_and_end_dictations() {
    let izwi = Izwi::alone();
    let Some(screen) = Screen::start(&izwi) else { return };
    install(&izwi, "parec", "exec /bin/sleep 600");
    let typed = screen.terminal();
    let script = Script::start();
    let arguments = ["--wait", "--follow", "--json", "--server", &script.url()];
    let mut process = dictate(&izwi, &screen, &arguments);
    process.send("\n");
    eventually("the microphone is opened", || process.printed().contains(r#""microphone.opened""#));
    script.turn(0, &[" By a line."]);
    process.send("\n");
    eventually("the microphone is closed", || process.printed().contains(r#""microphone.closed""#));
    script.done();
    eventually("it waits again", || process.printed().matches(r#""waiting""#).count() == 2);
    assert_eq!(typed(), "By a line.");
    process.end_input();
    let printed = process.succeeds();
    let events = [r#"{"type":"waiting"}"#, r#"{"name":"parec","type":"microphone.opened"}"#];
    assert!(printed.starts_with(&format!("{}\n", events[0])) && printed.contains(events[1]), "{printed}");
    let refusal = izwi.run(&["dictate", "--type", "--follow"]);
    refused(&refusal, 2, &["--follow", "--wait or --hotkey"]);
}

#[test]
fn the_icon_starts_with_the_session() {
    let izwi = Izwi::alone();
    let run = |arguments: &[&str]| izwi.run(&[&["service"], arguments].concat());
    let printed = run(&["install", "--tray", "--print"]);
    let printed = String::from_utf8(printed.stdout).unwrap();
    let entry = izwi.path("config/autostart/izwi-tray.desktop");
    assert!(printed.starts_with(&format!("==> {}\n[Desktop Entry]\n", entry.display())), "{printed}");
    assert!(printed.contains("\"tray\" \"--wait\"\n") && !entry.exists(), "{printed}");
    assert!(run(&["install", "--tray"]).status.success());
    assert!(printed.ends_with(&fs::read_to_string(&entry).unwrap()));
    if is_installed("desktop-file-validate") {
        assert!(Command::new("desktop-file-validate").arg(&entry).status().unwrap().success());
    }
    assert!(run(&["uninstall", "--tray"]).status.success());
    assert!(!entry.exists());
    refused(&run(&["uninstall", "--tray"]), 1, &["the icon does not start", "install --tray"]);
    refused(&run(&["install", "--tray", "--speech-dispatcher"]), 2, &["--tray"]);
}
