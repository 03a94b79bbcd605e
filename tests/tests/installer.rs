//! `scripts/install.sh` with releases that are served from this machine. Skipped where neither curl nor wget is installed.
#![cfg(unix)]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tempfile::TempDir;

/// A release with an archive for each platform, its server, and a prefix to install to.
struct Release {
    folder: TempDir,
    address: SocketAddr,
}

impl Release {
    /// The program prints `version`.
    fn new(version: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let release = Self { folder, address };
        fs::create_dir_all(release.files()).unwrap();
        release.pack(&format!("echo izwi {version}"));
        let files = release.files();
        // It ends with the process.
        std::thread::spawn(move || serve(&listener, &files));
        release
    }

    fn files(&self) -> PathBuf {
        self.folder.path().join("release")
    }

    fn prefix(&self) -> PathBuf {
        self.folder.path().join("prefix")
    }

    fn program(&self) -> PathBuf {
        self.prefix().join("bin/izwi")
    }

    /// Makes the archives of a program that runs `script`, and their sums.
    fn pack(&self, script: &str) {
        let mut sums = String::new();
        for target in ["x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu", "aarch64-apple-darwin"] {
            let staged = self.folder.path().join(format!("izwi-{target}"));
            for (file, text) in
                [("bin/izwi", format!("#!/bin/sh\n{script}\n")), ("share/man/man1/izwi.1", String::new())]
            {
                let file = staged.join(file);
                fs::create_dir_all(file.parent().unwrap()).unwrap();
                fs::write(file, text).unwrap();
            }
            let name = format!("izwi-{target}.tgz");
            let archive = self.files().join(&name);
            let mut tar = Command::new("tar");
            tar.arg("-czf").arg(&archive).arg("-C").arg(self.folder.path()).arg(format!("izwi-{target}"));
            assert!(tar.status().unwrap().success());
            let sum = Command::new("sh")
                .args(["-c", "sha256sum \"$0\" 2>/dev/null || shasum -a 256 \"$0\""])
                .arg(&archive)
                .output()
                .unwrap();
            let sum = String::from_utf8(sum.stdout).unwrap();
            sums.push_str(&format!("{}  {name}\n", sum.split_whitespace().next().unwrap()));
        }
        fs::write(self.files().join("SHA256SUMS"), sums).unwrap();
    }

    /// Runs the installer: whether it succeeded, and what it told.
    fn run(&self, arguments: &[&str]) -> (bool, String) {
        let prefix = self.prefix();
        run(&[&["--prefix", prefix.to_str().unwrap()], arguments].concat(), None)
    }

    fn install(&self) -> (bool, String) {
        self.run(&["--from", &format!("http://{}", self.address)])
    }

    /// What the installed program prints.
    fn version(&self) -> String {
        let output = Command::new(self.program()).arg("--version").output().unwrap();
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }
}

/// Runs the installer, with programs of `path` before others.
fn run(arguments: &[&str], path: Option<&Path>) -> (bool, String) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/install.sh");
    let mut command = Command::new("sh");
    command.arg(script).args(arguments).stdin(Stdio::null());
    if let Some(path) = path {
        command.env("PATH", format!("{}:{}", path.display(), std::env::var("PATH").unwrap()));
    }
    let output = command.output().unwrap();
    (output.status.success(), String::from_utf8(output.stderr).unwrap())
}

/// Serves the files of a folder, one request for each connection.
fn serve(listener: &TcpListener, folder: &Path) {
    for stream in listener.incoming() {
        let mut stream = stream.unwrap();
        let mut lines = BufReader::new(stream.try_clone().unwrap()).lines().map_while(Result::ok);
        let Some(request) = lines.next() else { continue };
        // The client waits for an answer to its whole head.
        let _ = lines.find(String::is_empty);
        let name = request.split(' ').nth(1).unwrap().trim_start_matches('/').to_owned();
        let (status, body) = match fs::read(folder.join(name)) {
            Ok(body) => ("200 OK", body),
            Err(_) => ("404 Not Found", Vec::new()),
        };
        let head =
            format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", body.len());
        // A client that left needs no answer.
        let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(&body));
    }
}

/// Whether a release can be downloaded here.
fn can_download() -> bool {
    let found = ["curl", "wget"].iter().any(|program| {
        let command =
            Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
        command.is_ok_and(|status| status.success())
    });
    if !found {
        println!("skipped: neither curl nor wget is installed");
    }
    found
}

#[test]
fn a_release_is_installed_replaced_and_removed() {
    if !can_download() {
        return;
    }
    let release = Release::new("1.0.0");
    let (succeeded, told) = release.install();
    assert!(succeeded, "{told}");
    assert!(told.contains("installed izwi 1.0.0") && told.contains("is not in PATH"), "{told}");
    assert_eq!(release.version(), "izwi 1.0.0");
    release.pack("echo izwi 2.0.0");
    assert!(release.install().0);
    assert_eq!(release.version(), "izwi 2.0.0");
    assert!(release.prefix().join("share/man/man1/izwi.1").exists());
    let (succeeded, told) = release.run(&["--uninstall"]);
    assert!(succeeded && !release.program().exists(), "{told}");
    assert!(!release.prefix().join("share/man/man1/izwi.1").exists());
    let (succeeded, told) = release.run(&["--uninstall"]);
    assert!(!succeeded && told.contains("does not exist") && told.contains("--prefix"), "{told}");
}

#[test]
fn a_release_that_is_damaged_or_does_not_run_leaves_the_old_program() {
    if !can_download() {
        return;
    }
    let release = Release::new("1.0.0");
    assert!(release.install().0);
    release.pack("echo cannot find a library >&2; exit 127");
    let (succeeded, told) = release.install();
    assert!(!succeeded && told.contains("cannot find a library"), "{told}");
    for entry in fs::read_dir(release.files()).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|end| end == "tgz") {
            fs::write(path, "other bytes").unwrap();
        }
    }
    let (succeeded, told) = release.install();
    assert!(!succeeded && told.contains("nothing was installed"), "{told}");
    fs::write(release.files().join("SHA256SUMS"), "").unwrap();
    let (succeeded, told) = release.install();
    assert!(!succeeded && told.contains("does not list izwi-"), "{told}");
    fs::remove_file(release.files().join("SHA256SUMS")).unwrap();
    let (succeeded, told) = release.install();
    assert!(!succeeded && told.contains("cannot download"), "{told}");
    assert_eq!(release.version(), "izwi 1.0.0");
    let left = fs::read_dir(release.prefix().join("bin")).unwrap().count();
    assert_eq!(left, 1, "a temporary file is left");
}

#[test]
fn wrong_arguments_and_platforms_name_the_remedy() {
    for (arguments, remedy) in [
        (&["--nonsense"][..], "unknown argument '--nonsense'; see --help"),
        (&["--version"], "--version needs a value"),
        (&["--prefix", "here"], "'here' is not an absolute folder"),
        (&[], "give the address of one with --from"),
        (&["--from", "http://example.com"], "is not https"),
        (&["--from", "http://127.0.0.1.example.com/"], "is not https"),
    ] {
        let (succeeded, told) = run(arguments, None);
        assert!(!succeeded && told.contains(remedy), "{arguments:?}: {told}");
    }
    let fakes = tempfile::tempdir().unwrap();
    let uname = fakes.path().join("uname");
    fs::write(&uname, "#!/bin/sh\n[ \"$1\" = -s ] && echo Plan9 || echo mips\n").unwrap();
    fs::set_permissions(&uname, fs::Permissions::from_mode(0o755)).unwrap();
    let (succeeded, told) = run(&["--from", "https://example.com"], Some(fakes.path()));
    assert!(!succeeded && told.contains("no release for Plan9 on mips; build from source"), "{told}");
}
