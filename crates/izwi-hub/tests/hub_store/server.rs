//! An HTTP server on loopback that answers each request as a test defines, and records the requests.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

/// A request without its body.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    pub(crate) method: String,
    pub(crate) path: String,
    /// Names in lower case.
    pub(crate) headers: BTreeMap<String, String>,
}

/// The server's answer; the connection closes afterwards.
#[derive(Debug, Clone, Default)]
pub(crate) struct Answer {
    status: u16,
    headers: String,
    body: Vec<u8>,
    /// Bytes of the body after which the connection breaks.
    cut: Option<usize>,
}

/// Runs until the process ends.
pub(crate) struct Server {
    port: u16,
    requests: Arc<Mutex<Vec<Request>>>,
}

impl Request {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(String::as_str)
    }

    /// First byte of the requested range.
    pub(crate) fn range_start(&self) -> Option<usize> {
        self.header("range")?.strip_prefix("bytes=")?.strip_suffix('-')?.parse().ok()
    }
}

impl Answer {
    pub(crate) fn status(status: u16) -> Self {
        Self { status, ..Self::default() }
    }

    pub(crate) fn whole(body: &[u8]) -> Self {
        Self { status: 200, body: body.to_vec(), ..Self::default() }
    }

    /// The rest of `body` that the request asks for.
    pub(crate) fn rest(body: &[u8], from: usize) -> Self {
        let last = body.len() - 1;
        let range = format!("bytes {from}-{last}/{}", body.len());
        Self { status: 206, body: body[from..].to_vec(), ..Self::default() }.with("Content-Range", &range)
    }

    pub(crate) fn with(mut self, name: &str, value: &str) -> Self {
        self.headers += &format!("{name}: {value}\r\n");
        self
    }

    pub(crate) fn cut_at(mut self, at: usize) -> Self {
        self.cut = Some(at);
        self
    }

    fn send(&self, stream: &mut TcpStream, with_body: bool) -> std::io::Result<()> {
        let length = self.body.len();
        let head = format!(
            "HTTP/1.1 {} X\r\nContent-Length: {length}\r\nConnection: close\r\n{}\r\n",
            self.status, self.headers
        );
        stream.write_all(head.as_bytes())?;
        if !with_body {
            return Ok(());
        }
        stream.write_all(&self.body[..self.cut.unwrap_or(length)])
    }
}

impl Server {
    /// `answer` gets the number of requests so far and the request.
    pub(crate) fn start(answer: impl Fn(usize, &Request) -> Answer + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let requests = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&requests);
        let answer = Arc::new(answer);
        thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let (seen, answer) = (Arc::clone(&seen), Arc::clone(&answer));
                thread::spawn(move || {
                    let Some(request) = read_request(&stream) else { return };
                    let index = {
                        let mut seen = seen.lock().unwrap();
                        seen.push(request.clone());
                        seen.len() - 1
                    };
                    // A client that disconnects is not a failure of the server.
                    let _ = answer(index, &request).send(&mut stream, request.method != "HEAD");
                });
            }
        });
        Self { port, requests }
    }

    pub(crate) fn url(&self) -> String {
        self.url_as("127.0.0.1")
    }

    /// The server under another name of this machine.
    pub(crate) fn url_as(&self, host: &str) -> String {
        format!("http://{host}:{}", self.port)
    }

    pub(crate) fn requests(&self) -> Vec<Request> {
        self.requests.lock().unwrap().clone()
    }
}

fn read_request(stream: &TcpStream) -> Option<Request> {
    let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
    let first = lines.next()?;
    let (method, rest) = first.split_once(' ')?;
    let (method, path) = (method.to_owned(), rest.split(' ').next()?.to_owned());
    let headers = lines
        .take_while(|line| !line.is_empty())
        .filter_map(|line| line.split_once(": ").map(|(name, value)| (name.to_lowercase(), value.to_owned())))
        .collect();
    Some(Request { method, path, headers })
}
