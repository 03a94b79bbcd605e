//! The server as a service: its files, passed sockets and readiness, and the commands that ask a running server.
//!
//! Scripts stand for the programs of systemd, since the machine of a test may have no session of its user.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixDatagram;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;
use std::{fs, thread};

use crate::{Izwi, refused, signal};

/// Writes a program into the folder `bin`.
fn program(izwi: &Izwi, name: &str, script: &str) {
    fs::create_dir_all(izwi.path("bin")).unwrap();
    let path = izwi.path("bin").join(name);
    fs::write(&path, format!("#!/bin/sh\n{script}")).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

/// Runs `izwi` with the programs of the folder `bin` alone.
fn run(izwi: &Izwi, arguments: &[&str]) -> Output {
    command(izwi, arguments).output().unwrap()
}

/// The same, to be changed.
fn command(izwi: &Izwi, arguments: &[&str]) -> Command {
    let mut command = izwi.command(arguments);
    command.env("PATH", izwi.path("bin")).env_remove("IZWI_HOME");
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

fn text(output: &[u8]) -> String {
    String::from_utf8_lossy(output).into_owned()
}

#[cfg(target_os = "linux")]
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

#[cfg(target_os = "linux")]
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

#[cfg(target_os = "linux")]
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

/// Starts `izwi serve` without models and with `listener` as file descriptor 3, as systemd does.
fn activated(izwi: &Izwi, listener: impl Into<OwnedFd>, count: u32, more: &[(&str, &str)]) -> Child {
    let serve = izwi.command(&["serve", "--no-pull", "--asr-model", "none"]);
    let mut shell = Command::new("/bin/sh");
    let script = format!("exec 3<&0 4<&0 </dev/null; LISTEN_FDS={count} LISTEN_PID=$$ exec \"$@\"");
    shell.args(["-c", &script, "sh"]).arg(serve.get_program()).args(serve.get_args());
    for (name, value) in serve.get_envs() {
        match value {
            Some(value) => shell.env(name, value),
            None => shell.env_remove(name),
        };
    }
    shell.current_dir(izwi.folder.path()).envs(more.iter().copied());
    shell.stdin(Stdio::from(listener.into())).stdout(Stdio::piped()).stderr(Stdio::piped());
    shell.spawn().unwrap()
}

#[test]
fn a_passed_socket_is_served_and_readiness_is_told() {
    let izwi = Izwi::alone();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    // The connection that starts a server waits for it.
    let mut early = TcpStream::connect(address).unwrap();
    early.write_all(b"GET /version HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").unwrap();
    let path = izwi.path("notify");
    let manager = UnixDatagram::bind(&path).unwrap();
    manager.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let mut child = activated(&izwi, listener, 1, &[("NOTIFY_SOCKET", path.to_str().unwrap())]);
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let served = lines.find(|line| line.as_ref().unwrap().starts_with("izwi serves on")).unwrap().unwrap();
    assert_eq!(served, format!("izwi serves on http://{address}"));
    let drain = thread::spawn(move || lines.map(Result::unwrap).collect::<Vec<String>>());

    let heard = || {
        let mut message = [0; 256];
        let length = manager.recv(&mut message).unwrap();
        text(&message[..length])
    };
    assert_eq!(heard(), format!("READY=1\nSTATUS=serves on http://{address}\n"));
    let mut answer = String::new();
    early.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("\"izwi\""), "{answer}");

    let port = address.port().to_string();
    let status = izwi.run(&["status", "--port", &port, "--json"]);
    let status: serde_json::Value = serde_json::from_slice(&status.stdout).unwrap();
    assert_eq!(status["answers"], true);
    assert!(status["memory_bytes"].as_u64().unwrap() > 1 << 20, "{status}");
    assert!(status["health"]["models"].as_object().unwrap().len() == 1, "{status}");

    signal(child.id(), "TERM");
    assert!(heard().starts_with("STOPPING=1\n"));
    assert!(child.wait().unwrap().success());
    drain.join().unwrap();
}

#[test]
fn other_passed_sockets_are_refused() {
    let izwi = Izwi::alone();
    let datagram = UnixDatagram::unbound().unwrap();
    let output = activated(&izwi, datagram, 1, &[]).wait_with_output().unwrap();
    refused(&output, 1, &["LISTEN_FDS", "not a valid tcp socket", "file descriptor 3"]);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let output = activated(&izwi, listener, 2, &[]).wait_with_output().unwrap();
    refused(&output, 1, &["2 sockets are passed"]);
    let open = TcpListener::bind("0.0.0.0:0").unwrap();
    let output = activated(&izwi, open, 1, &[]).wait_with_output().unwrap();
    refused(&output, 1, &["api key"]);
}

#[test]
fn the_page_is_opened_where_a_server_runs() {
    let izwi = Izwi::alone();
    let holder = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = holder.local_addr().unwrap().port().to_string();
    drop(holder);
    let closed = ["no server answers on http://127.0.0.1:", "izwi serve", "izwi service install"];
    refused(&izwi.run(&["status", "--port", &port]), 1, &closed);
    refused(&izwi.run(&["open", "--port", &port]), 1, &closed);
    refused(&izwi.run(&["open", "--port", "0"]), 2, &["any free port", "--port"]);
    let status = izwi.run(&["status", "--port", &port, "--json"]);
    assert_eq!(status.status.code(), Some(1));
    let status: serde_json::Value = serde_json::from_slice(&status.stdout).unwrap();
    assert_eq!(status["answers"], false);

    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let port = listener.local_addr().unwrap().port().to_string();
    let mut child = activated(&izwi, listener, 1, &[]);
    program(&izwi, "browser", "echo \"$*\" > \"${0%/*}/opened\"\n");
    for name in ["xdg-open", "open"] {
        fs::copy(izwi.path("bin/browser"), izwi.path("bin").join(name)).unwrap();
    }
    let mut open = izwi.command(&["open", "--port", &port]);
    let search = format!("{}:/usr/bin:/bin", izwi.path("bin").display());
    let output = open.env("PATH", search).env("BROWSER", izwi.path("bin/browser")).output().unwrap();
    assert_eq!(text(&output.stdout), format!("{url}\n"), "{}", text(&output.stderr));
    let begun = std::time::Instant::now();
    while fs::read_to_string(izwi.path("bin/opened")).unwrap_or_default().trim() != url {
        assert!(begun.elapsed().as_secs() < 20, "the browser was not started");
        thread::sleep(Duration::from_millis(20));
    }
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn a_configuration_file_is_written_once() {
    let izwi = Izwi::alone();
    let output = izwi.run(&["config", "init"]);
    let path = izwi.path("config/izwi/config.toml");
    if cfg!(target_os = "linux") {
        assert_eq!(text(&output.stdout), format!("{}\n", path.display()));
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }
    assert!(text(&izwi.run(&["config", "check"]).stdout).contains("sets 0 settings"));
    refused(&izwi.run(&["config", "init"]), 1, &["exists already", "--force"]);
    assert!(izwi.run(&["config", "init", "sub/c.toml"]).status.success());
    fs::write(izwi.path("sub/c.toml"), "[server]\nport = 1\n").unwrap();
    refused(&izwi.run(&["config", "init", "--config", "sub/c.toml"]), 1, &["sub/c.toml"]);
    assert!(izwi.run(&["config", "init", "sub/c.toml", "--force"]).status.success());
    assert!(text(&izwi.run(&["config", "check", "sub/c.toml"]).stdout).contains("sets 0 settings"));
}
