//! A hub on loopback for `izwi pull`, which can stop in the middle of a file.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::{fs, thread};

use crate::Izwi;

/// Name and contents of the files of the model `lark`.
type Files = Vec<(String, Vec<u8>)>;

/// The hub of the model `lark`. It runs until the process ends.
pub(crate) struct Hub {
    pub(crate) url: String,
    state: Arc<State>,
    /// Gets a word when a file stopped half-way.
    pub(crate) stopped: Receiver<()>,
}

struct State {
    files: Files,
    /// Whether the first answer for each file stops half-way and stays open.
    stops: bool,
    served: Mutex<BTreeSet<String>>,
    /// First byte of each request.
    starts: Mutex<Vec<usize>>,
}

impl Hub {
    pub(crate) fn start(files: Files, stops: bool) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let state = State { files, stops, served: Mutex::default(), starts: Mutex::default() };
        let state = Arc::new(state);
        let (sender, stopped) = channel();
        let shared = Arc::clone(&state);
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (state, sender) = (Arc::clone(&shared), sender.clone());
                thread::spawn(move || state.answer(stream.unwrap(), &sender));
            }
        });
        Self { url, state, stopped }
    }

    /// First byte of each request.
    pub(crate) fn starts(&self) -> Vec<usize> {
        self.state.starts.lock().unwrap().clone()
    }

    /// Offers the model to `izwi`.
    pub(crate) fn offer(&self, izwi: &Izwi) {
        let mut manifest = String::from(
            "name = \"lark\"\nfamily = \"bird\"\ndescription = \"sings\"\ntask = [\"tts\"]\nlicence = \"MIT\"\n\
             languages = [\"en\"]\n[[sources]]\nkind = \"hub\"\nrepo = \"bird/lark\"\nrevision = \"main\"\n",
        );
        for (name, contents) in &self.state.files {
            let (hash, size) = (sha256(contents), contents.len());
            let file =
                format!("path = \"{name}\"\ntarget = \"{name}\"\nsha256 = \"{hash}\"\nsize = {size}\n");
            write!(manifest, "[[sources.files]]\n{file}").unwrap();
        }
        fs::create_dir_all(izwi.path("home/manifests")).unwrap();
        fs::write(izwi.path("home/manifests/lark.toml"), manifest).unwrap();
    }
}

impl State {
    fn answer(&self, mut stream: TcpStream, stopped: &Sender<()>) {
        let mut lines = BufReader::new(&stream).lines().map_while(Result::ok);
        let Some(first) = lines.next() else { return };
        let path = first.split(' ').nth(1).unwrap().to_owned();
        let range = lines
            .take_while(|line| !line.is_empty())
            .find_map(|line| line.to_lowercase().strip_prefix("range: bytes=").map(str::to_owned));
        let start = range.map_or(0, |range| range.trim_end_matches('-').parse().unwrap());
        self.starts.lock().unwrap().push(start);
        let (_, contents) = self.files.iter().find(|(name, _)| path.ends_with(name)).unwrap();
        let (rest, size) = (&contents[start..], contents.len());
        let head = match start {
            0 => format!("HTTP/1.1 200 OK\r\nContent-Length: {size}\r\n\r\n"),
            _ => format!(
                "HTTP/1.1 206 Partial\r\nContent-Length: {}\r\nContent-Range: bytes {start}-{}/{size}\r\n\r\n",
                rest.len(),
                size - 1
            ),
        };
        stream.write_all(head.as_bytes()).unwrap();
        if self.served.lock().unwrap().insert(path) && self.stops {
            stream.write_all(&rest[..rest.len() / 2]).unwrap();
            stopped.send(()).unwrap();
            // Until the client is gone.
            let _ = stream.read(&mut [0]);
        } else {
            // A client that was killed reads nothing more.
            let _ = stream.write_all(rest);
        }
    }
}

/// `size` pseudo-random bytes, others for another `seed`.
pub(crate) fn noise(size: usize, seed: u32) -> Vec<u8> {
    (0..size as u32).map(|at| ((at ^ seed).wrapping_mul(2_654_435_761) >> 13) as u8).collect()
}

/// The hash of some bytes, by the machine's Python.
pub(crate) fn sha256(bytes: &[u8]) -> String {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("bytes");
    fs::write(&path, bytes).unwrap();
    let program = "import hashlib, sys; print(hashlib.sha256(open(sys.argv[1], 'rb').read()).hexdigest())";
    let output = Command::new("python3").args(["-I", "-c", program]).arg(&path).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}
