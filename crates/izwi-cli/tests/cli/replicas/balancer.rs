//! HAProxy and NGINX with the files of `assets/deploy/`, whose addresses become those of a test.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use super::servers::{Replicas, free_port};
use super::{GUARD, eventually};

/// Folders of programs of administrators, which a user's PATH may lack.
const FOLDERS: [&str; 2] = ["/usr/sbin", "/usr/local/sbin"];

/// The program, if it is installed; says so otherwise.
#[allow(clippy::print_stdout, reason = "tells what is not run")]
pub(super) fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(FOLDERS.map(PathBuf::from));
    let found = folders.map(|folder| folder.join(name)).find(|program| program.is_file());
    if found.is_none() {
        println!("{name} is not installed: not run; `cargo xtask test` installs it where it can");
    }
    found
}

/// A running balancer.
pub(super) struct Balancer {
    pub(super) port: u16,
    process: Child,
    _folder: tempfile::TempDir,
}

/// A file of `assets/deploy/` with the ports of a test. Replicas that were not started get a port that nobody listens on.
fn configuration(file: &str, replicas: &Replicas) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap();
    let mut text = fs::read_to_string(root.join("assets/deploy").join(file)).unwrap();
    for number in 0..3 {
        let (from, to) =
            (8081 + number, replicas.all.get(number).map_or_else(free_port, |replica| replica.port));
        assert!(text.contains(&format!("127.0.0.1:{from}")), "{file} has no replica {from}");
        text = text.replace(&format!("127.0.0.1:{from}"), &format!("127.0.0.1:{to}"));
    }
    text
}

impl Balancer {
    pub(super) fn haproxy(program: &Path, replicas: &Replicas) -> Self {
        let (port, folder) = (free_port(), tempfile::tempdir().unwrap());
        let text = configuration("haproxy/haproxy.cfg", replicas);
        let text = text.replace("bind :8080", &format!("bind 127.0.0.1:{port}"));
        let text = text.replace("127.0.0.1:8404", &format!("127.0.0.1:{}", free_port()));
        let file = folder.path().join("haproxy.cfg");
        fs::write(&file, text).unwrap();
        let mut command = Command::new(program);
        command.arg("-db").arg("-f").arg(file);
        Self::start(command, port, folder)
    }

    pub(super) fn nginx(program: &Path, replicas: &Replicas) -> Self {
        let (port, folder) = (free_port(), tempfile::tempdir().unwrap());
        let text = configuration("nginx/izwi.conf", replicas);
        let text = text.replace("listen 8080", &format!("listen 127.0.0.1:{port}"));
        fs::write(folder.path().join("izwi.conf"), text).unwrap();
        let at = folder.path().display();
        let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .map(|name| format!("{name}_temp_path {at}/{name};\n"))
            .concat();
        let main = format!(
            "daemon off;\nmaster_process off;\npid {at}/pid;\nerror_log {at}/error.log;\nevents {{}}\n\
             http {{\naccess_log off;\n{temporary}include {at}/izwi.conf;\n}}\n"
        );
        let file = folder.path().join("nginx.conf");
        fs::write(&file, main).unwrap();
        let mut command = Command::new(program);
        command.arg("-e").arg(folder.path().join("error.log")).arg("-c").arg(file);
        Self::start(command, port, folder)
    }

    fn start(mut command: Command, port: u16, folder: tempfile::TempDir) -> Self {
        let log = fs::File::create(folder.path().join("output")).unwrap();
        let errors = log.try_clone().unwrap();
        let process = command.stdin(Stdio::null()).stdout(log).stderr(errors).spawn().unwrap();
        let balancer = Self { port, process, _folder: folder };
        eventually("the balancer to listen", || TcpStream::connect(("127.0.0.1", port)).is_ok());
        balancer
    }

    fn send(&self, method: &str, path: &str, body: &str) -> TcpStream {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        stream.set_read_timeout(Some(GUARD)).unwrap();
        let length = body.len();
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n\
             Content-Length: {length}\r\n\r\n{body}"
        )
        .unwrap();
        stream
    }

    /// Status of the answer to a request, and the replica that answered.
    pub(super) fn request(&self, method: &str, path: &str, body: &str) -> (u16, Option<String>) {
        let mut answer = Vec::new();
        self.send(method, path, body).read_to_end(&mut answer).unwrap();
        let head = String::from_utf8_lossy(&answer).into_owned();
        let head = head.split("\r\n\r\n").next().unwrap_or_default();
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
        let instance = head.lines().find_map(|line| {
            let (name, value) = line.split_once(": ")?;
            name.eq_ignore_ascii_case("x-izwi-instance").then(|| value.to_owned())
        });
        (status, instance)
    }

    /// Asks for speech, calls `begun` once the first audio is there, and reads on. Returns the bytes of the answer.
    pub(super) fn hear_response(&self, body: &str, begun: impl FnOnce()) -> usize {
        let mut stream = self.send("POST", "/v1/audio/speech", body);
        let mut answer = Vec::new();
        let mut part = [0; 4_096];
        let has_audio = |answer: &[u8]| {
            let head = answer.windows(4).position(|bytes| bytes == b"\r\n\r\n");
            head.is_some_and(|end| answer.len() > end + 512)
        };
        while !has_audio(&answer) {
            let count = stream.read(&mut part).unwrap();
            assert!(count > 0, "{}", String::from_utf8_lossy(&answer));
            answer.extend_from_slice(&part[..count]);
        }
        begun();
        stream.read_to_end(&mut answer).unwrap();
        answer.len()
    }
}

impl Drop for Balancer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
