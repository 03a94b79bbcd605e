//! What a service manager and a user ask of a server: passed sockets, readiness, its state, its page, its settings.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixDatagram;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use std::{fs, thread};

use crate::{Izwi, refused, signal};

/// Writes a program into the folder `bin`.
pub(crate) fn program(izwi: &Izwi, name: &str, script: &str) {
    fs::create_dir_all(izwi.path("bin")).unwrap();
    let path = izwi.path("bin").join(name);
    fs::write(&path, format!("#!/bin/sh\n{script}")).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

pub(crate) fn text(output: &[u8]) -> String {
    String::from_utf8_lossy(output).into_owned()
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
fn a_server_on_a_passed_socket_ends_when_nobody_is_connected_and_loses_no_connection() {
    let izwi = Izwi::alone();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let kept = listener.try_clone().unwrap();
    let address = listener.local_addr().unwrap();
    let variables = [("IZWI_EXIT_WHEN_IDLE_S", "1")];
    let request = b"GET /version HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    let answer = |mut stream: TcpStream| {
        stream.write_all(request).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    };
    let output = activated(&izwi, listener, 1, &variables).wait_with_output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("nobody is connected"), "{}", text(&output.stderr));

    // The socket is still there: the next server answers a connection that came while none ran.
    let early = TcpStream::connect(address).unwrap();
    let child = activated(&izwi, kept, 1, &variables);
    answer(early);
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));

    // A server that bound its port itself stays.
    let port = address.port().to_string();
    let mut command = izwi.command(&["serve", "--no-pull", "--asr-model", "none", "--port", &port]);
    let mut child = command.envs(variables).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    lines.find(|line| line.as_ref().unwrap().starts_with("izwi serves on")).unwrap().unwrap();
    let drain = thread::spawn(move || lines.map(Result::unwrap).collect::<Vec<String>>());
    // Longer than the interval in which idle servers are looked for.
    thread::sleep(Duration::from_secs(7));
    answer(TcpStream::connect(address).unwrap());
    signal(child.id(), "TERM");
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
