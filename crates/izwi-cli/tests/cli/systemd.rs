//! The server as a user unit of systemd: its files, and what `systemctl` and `journalctl` are asked.
//!
//! Scripts stand for the programs of systemd, since the machine of a test may have no session of its user.

use std::fs;
use std::process::{Command, Output};

use crate::service::{program, text};
use crate::{Izwi, refused};

/// Runs `izwi` with the programs of the folder `bin` alone.
fn run(izwi: &Izwi, arguments: &[&str]) -> Output {
    command(izwi, arguments).output().unwrap()
}

/// The same, to be changed.
fn command(izwi: &Izwi, arguments: &[&str]) -> Command {
    let mut command = izwi.command(arguments);
    command.env("PATH", izwi.path("bin")).env_remove("IZWI_HOME");
    // A service does not see it, which would be told.
    command.env_remove("RAYON_NUM_THREADS");
    command
}

/// What the stand-in of `systemctl` was asked since the last call.
fn asked(izwi: &Izwi) -> Vec<String> {
    let log = izwi.path("bin/asked");
    let text = fs::read_to_string(&log).unwrap_or_default();
    let _ = fs::remove_file(log);
    text.lines().map(str::to_owned).collect()
}

/// A `systemctl` that writes down its arguments, and whose services run.
fn systemctl(izwi: &Izwi) {
    let script = "echo \"$*\" >> \"${0%/*}/asked\"\ncase \"$*\" in *ActiveState*)\n\
        echo ActiveState=active; echo SubState=running; echo UnitFileState=enabled; echo MainPID=7;; esac\n";
    program(izwi, "systemctl", script);
}

#[test]
fn a_service_is_installed_shown_and_removed() {
    let izwi = Izwi::alone();
    systemctl(&izwi);
    refused(&run(&izwi, &["service", "status"]), 1, &["not installed", "izwi service install"]);
    refused(&run(&izwi, &["service", "uninstall"]), 1, &["not installed"]);
    refused(&run(&izwi, &["logs"]), 1, &["not installed"]);

    let printed = run(&izwi, &["service", "install", "--print"]);
    let unit = izwi.path("config/systemd/user/izwi.service");
    assert!(text(&printed.stdout).starts_with(&format!("==> {}\n", unit.display())));
    assert!(!izwi.path("config").exists(), "--print changes nothing");

    let output = run(&izwi, &["service", "install"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("runs: http://127.0.0.1:8080"), "{}", text(&output.stderr));
    let config = izwi.path("config/izwi/config.toml");
    let written = fs::read_to_string(&unit).unwrap();
    let expected = format!(" --config \"{}\" serve\n", config.display());
    assert!(written.contains(&expected), "{written}");
    assert!(text(&printed.stdout).ends_with(&written), "--print shows what is installed");
    assert!(run(&izwi, &["config", "check"]).status.success(), "a configuration file is written");
    let enable = "--user enable --now izwi.service";
    let probe = "--user show --property=Version";
    assert_eq!(asked(&izwi), [probe, probe, "--user daemon-reload", enable]);

    let again = run(&izwi, &["service", "install"]);
    assert!(text(&again.stderr).contains("unchanged"), "{}", text(&again.stderr));
    refused(&run(&izwi, &["service", "install", "--socket-activation"]), 1, &["other contents", "--force"]);
    asked(&izwi);
    assert!(run(&izwi, &["service", "install", "--socket-activation", "--force"]).status.success());
    let socket = fs::read_to_string(izwi.path("config/systemd/user/izwi.socket")).unwrap();
    assert!(socket.contains("ListenStream=127.0.0.1:8080\n"), "{socket}");
    let asked_for = asked(&izwi);
    assert!(asked_for.contains(&"--user disable --now izwi.service".to_owned()), "{asked_for:?}");
    assert_eq!(asked_for.last().unwrap(), "--user enable --now izwi.socket");

    let status = run(&izwi, &["service", "status", "--json"]);
    let status: serde_json::Value = serde_json::from_slice(&status.stdout).unwrap();
    assert_eq!(status["units"].as_array().unwrap().len(), 2, "{status}");
    assert_eq!(status["units"][0]["state"], "active (running), enabled, process 7");
    assert!(run(&izwi, &["service", "restart"]).status.success());
    program(&izwi, "journalctl", "echo \"$*\"\nexit 3\n");
    let logs = run(&izwi, &["logs", "-f", "-n", "5"]);
    assert_eq!(text(&logs.stdout), "--user --unit izwi.service --no-pager --lines 5 --follow\n");
    assert_eq!(logs.status.code(), Some(3), "the exit code is that of journalctl");

    assert!(run(&izwi, &["service", "uninstall"]).status.success());
    assert_eq!(fs::read_dir(unit.parent().unwrap()).unwrap().count(), 0);
    assert!(config.exists(), "the settings stay");
}

#[test]
fn a_service_that_cannot_be_is_refused_with_the_remedy() {
    let izwi = Izwi::alone();
    fs::create_dir_all(izwi.path("bin")).unwrap();
    refused(&run(&izwi, &["service", "install"]), 1, &["`systemctl` was not found", "izwi serve"]);
    program(&izwi, "systemctl", "echo 'Failed to connect to bus' >&2; exit 1\n");
    let help = ["Failed to connect to bus", "loginctl enable-linger", "izwi serve"];
    refused(&run(&izwi, &["service", "install"]), 1, &help);
    assert!(!izwi.path("config").exists(), "nothing is written");

    systemctl(&izwi);
    refused(&run(&izwi, &["service", "install", "--threads", "2"]), 2, &["--threads", "engine.threads"]);
    let install = ["service", "install", "--config", "c.toml", "--print"];
    refused(&run(&izwi, &install), 1, &["c.toml"]);
    fs::write(izwi.path("c.toml"), "[server]\nhost = \"0.0.0.0\"\n").unwrap();
    let warned = command(&izwi, &install).env("IZWI_API_KEY", "a-key-of-the-shell").output().unwrap();
    refused_after_warnings(&warned, &["IZWI_API_KEY", "api_key", "c.toml"]);
    fs::write(izwi.path("c.toml"), "[server]\nport = 0\n").unwrap();
    refused(&run(&izwi, &[&install[..], &["--socket-activation"]].concat()), 1, &["server.port: 0"]);
    assert_eq!(asked(&izwi), [] as [&str; 0]);

    program(&izwi, "systemctl", "case \"$*\" in *enable*) echo 'Job failed.' >&2; exit 1;; esac\n");
    refused_after_warnings(&run(&izwi, &["service", "install"]), &["Job failed.", "izwi logs"]);

    // A program of the working folder is no systemctl.
    let mut status = command(&izwi, &["service", "status"]);
    status.current_dir(izwi.path("bin")).env("PATH", ".:");
    refused(&status.output().unwrap(), 1, &["was not found"]);
}

/// Checks a failure whose message follows other lines.
#[track_caller]
fn refused_after_warnings(output: &Output, parts: &[&str]) {
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    for part in parts {
        assert!(stderr.contains(part), "'{part}' is not in: {stderr}");
    }
}

#[test]
fn no_secret_is_in_a_service_file() {
    let izwi = Izwi::alone();
    systemctl(&izwi);
    fs::create_dir_all(izwi.path("config/izwi")).unwrap();
    fs::write(izwi.path("config/izwi/config.toml"), "[server]\napi_key = \"top-secret-of-16\"\n").unwrap();
    for more in [&[][..], &["--socket-activation"]] {
        let output = run(&izwi, &[&["service", "install", "--print"], more].concat());
        assert!(output.status.success() && !text(&output.stdout).contains("top-secret"));
    }
}
