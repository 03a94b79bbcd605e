//! An X server without a screen, with a window manager and programs that have text fields.

use std::cell::RefCell;
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use x11rb::protocol::xproto::ConnectionExt as _;

use super::is_installed;
use crate::Izwi;

/// How long anything may take.
const PATIENCE: Duration = Duration::from_secs(90);
/// As `crates/xtask/src/desktop.rs` installs them.
const PROGRAMS: [&str; 7] = ["Xvfb", "openbox", "xterm", "xdotool", "xclip", "zenity", "xkbcomp"];
const BROWSERS: [&str; 3] = ["chromium", "chromium-browser", "google-chrome"];
const PAGE: &str = "<html><head><title>start</title></head><body><textarea id=t rows=8 cols=60></textarea><script>\
    const field = document.getElementById('t'); field.focus();\
    field.addEventListener('input', () => { document.title = field.value.replaceAll('\\n', '/') })</script></body></html>";

#[allow(clippy::print_stdout, reason = "tells what was left out")]
pub(super) fn skipped(why: &str) {
    println!("skipped: {why}");
}

/// Waits until something is so.
#[track_caller]
pub(super) fn eventually(what: &str, is_so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < PATIENCE, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A program that runs, and what it prints.
pub(super) struct Process {
    child: Child,
    told: Arc<Mutex<String>>,
    printed: Arc<Mutex<String>>,
    reader: Option<JoinHandle<()>>,
}

/// Reads lines on a thread of its own.
fn read(source: impl std::io::Read + Send + 'static) -> (Arc<Mutex<String>>, JoinHandle<()>) {
    let text = Arc::new(Mutex::new(String::new()));
    let lines = Arc::clone(&text);
    let reader = std::thread::spawn(move || {
        for line in BufReader::new(source).split(b'\n').map_while(Result::ok) {
            *lines.lock().unwrap() += &String::from_utf8_lossy(&line);
            lines.lock().unwrap().push('\n');
        }
    });
    (text, reader)
}

impl Process {
    pub(super) fn start(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let (printed, reader) = read(child.stdout.take().unwrap());
        let (told, _) = read(child.stderr.take().unwrap());
        Self { child, told, printed, reader: Some(reader) }
    }

    /// What it has printed so far.
    pub(super) fn printed(&self) -> String {
        self.printed.lock().unwrap().clone()
    }

    /// Writes to its standard input.
    pub(super) fn send(&mut self, text: &str) {
        self.child.stdin.as_mut().unwrap().write_all(text.as_bytes()).unwrap();
    }

    /// Ends its standard input.
    pub(super) fn end_input(&mut self) {
        self.child.stdin = None;
    }

    pub(super) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits until the standard error output has a text.
    #[track_caller]
    pub(super) fn tells(&mut self, text: &str) {
        let begun = Instant::now();
        loop {
            if self.told.lock().unwrap().contains(text) {
                return;
            }
            let told = || self.told.lock().unwrap().clone();
            assert!(self.child.try_wait().unwrap().is_none(), "ended without '{text}': {}", told());
            assert!(begun.elapsed() < PATIENCE, "'{text}' is not told: {}", told());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits until it succeeds. Returns what it printed.
    #[track_caller]
    pub(super) fn succeeds(self) -> String {
        let told = Arc::clone(&self.told);
        let (status, printed) = self.end();
        assert!(status.success(), "{status}: {}", told.lock().unwrap());
        printed
    }

    /// Waits for its end. Returns what it printed.
    #[track_caller]
    pub(super) fn end(mut self) -> (ExitStatus, String) {
        let begun = Instant::now();
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            assert!(begun.elapsed() < PATIENCE, "does not end: {}", self.told.lock().unwrap());
            std::thread::sleep(Duration::from_millis(20));
        };
        self.reader.take().unwrap().join().unwrap();
        (status, self.printed())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The X server.
pub(super) struct Screen {
    folder: PathBuf,
    display: String,
    /// The server last, which the others need.
    processes: RefCell<Vec<Process>>,
    server: Child,
}

impl Screen {
    /// Starts one with a window manager; `None`, with a line that says so, where a program is missing.
    pub(super) fn start(izwi: &Izwi) -> Option<Self> {
        let missing: Vec<_> = PROGRAMS.into_iter().filter(|program| !is_installed(program)).collect();
        if !missing.is_empty() {
            skipped(&format!("{} not installed", missing.join(", ")));
            return None;
        }
        let mut command = Command::new("Xvfb");
        command.args(["-displayfd", "1", "-screen", "0", "1024x768x24", "-nolisten", "tcp", "-noreset"]);
        let mut server = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut number = String::new();
        BufReader::new(server.stdout.take().unwrap()).read_line(&mut number).unwrap();
        let display = format!(":{}", number.trim());
        let folder = izwi.path("");
        fs::create_dir_all(folder.join("run")).unwrap();
        let screen = Self { folder, display, processes: RefCell::default(), server };
        let windows = screen.run(Command::new("openbox"));
        screen.processes.borrow_mut().push(windows);
        // It tells the active window from then on.
        screen.succeeds(&["getactivewindow"]);
        Some(screen)
    }

    /// A command on this screen.
    pub(super) fn on(&self, mut command: Command) -> Command {
        command.env("DISPLAY", &self.display).env_remove("WAYLAND_DISPLAY").env("LANG", "C.UTF-8");
        command.env("HOME", &self.folder).env("XDG_RUNTIME_DIR", self.folder.join("run"));
        command
    }

    fn run(&self, command: Command) -> Process {
        Process::start(self.on(command))
    }

    /// The output of `xdotool`.
    pub(super) fn xdotool(&self, arguments: &[&str]) -> String {
        let mut command = self.on(Command::new("xdotool"));
        let output = command.args(arguments).output().unwrap();
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    /// Waits until `xdotool` succeeds.
    fn succeeds(&self, arguments: &[&str]) {
        // Without a window there is no active one, which is told by a property nevertheless.
        let told = |arguments: &[&str]| self.on(Command::new("xdotool")).args(arguments).output().unwrap();
        eventually("a window manager", || {
            let output = told(arguments);
            output.status.success() || !String::from_utf8_lossy(&output.stderr).contains("claims not")
        });
    }

    /// Waits until a window of this class has the focus.
    fn focused(&self, class: &str) {
        eventually(class, || {
            let found = self.xdotool(&["search", "--onlyvisible", "--class", class]);
            let Some(window) = found.lines().last() else { return false };
            self.xdotool(&["windowactivate", window]);
            std::thread::sleep(Duration::from_millis(200));
            self.xdotool(&["getactivewindow"]) == window
        });
    }

    /// Opens a terminal that has the focus; what is typed into it.
    pub(super) fn terminal(&self) -> impl Fn() -> String + use<> {
        let path = self.folder.join("typed");
        let mut command = Command::new("xterm");
        let script = format!("stty -icanon -echo; exec cat > '{}'", path.display());
        command.args(["-u8", "-e", "sh", "-c", &script]);
        let xterm = self.run(command);
        self.processes.borrow_mut().push(xterm);
        self.focused("XTerm");
        eventually("the terminal reads", || path.exists());
        move || fs::read_to_string(&path).unwrap()
    }

    /// Opens a dialog of GTK with a text field that has the focus. It ends with Return, and prints the text.
    pub(super) fn entry(&self) -> Process {
        let mut command = Command::new("zenity");
        command.args(["--entry", "--title", "field", "--text", "Write"]);
        let zenity = self.run(command);
        self.focused("Zenity");
        zenity
    }

    /// Opens a page of Chromium whose field has the focus, and whose title is the text; `None`, with a line that says so, where it is
    /// not installed.
    pub(super) fn chromium(&self) -> Option<Process> {
        let set = std::env::var("IZWI_CHROMIUM").ok();
        let mut names = set.into_iter().chain(BROWSERS.map(str::to_owned));
        let Some(program) = names.find(|name| is_installed(name)) else {
            skipped("no Chromium; install it (on Debian: `apt-get install chromium`), or set IZWI_CHROMIUM");
            return None;
        };
        let page = self.folder.join("page.html");
        fs::write(&page, PAGE).unwrap();
        let mut command = Command::new(program);
        command.args(["--no-sandbox", "--no-first-run", "--disable-gpu", "--password-store=basic"]);
        command.arg(format!("--user-data-dir={}", self.folder.join("chromium").display()));
        command.arg(format!("file://{}", page.display()));
        let chromium = self.run(command);
        eventually("the page", || self.xdotool(&["getactivewindow", "getwindowname"]).starts_with("start"));
        // The field takes keys once the page has the focus.
        eventually("the field", || {
            self.xdotool(&["key", "x"]);
            std::thread::sleep(Duration::from_millis(300));
            self.xdotool(&["getactivewindow", "getwindowname"]).starts_with('x')
        });
        self.xdotool(&["key", "ctrl+a", "Delete"]);
        Some(chromium)
    }

    /// Puts a text into the clipboard or the primary selection.
    pub(super) fn copy(&self, selection: &str, text: &str) {
        let mut command = self.on(Command::new("xclip"));
        // In the foreground, it ends with the screen.
        command.args(["-quiet", "-selection", selection]).stdin(Stdio::piped());
        let mut process = Process::start(command);
        process.child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
        self.processes.borrow_mut().push(process);
        eventually("the text is copied", || self.paste(selection) == text);
    }

    /// The text of the clipboard or the primary selection.
    pub(super) fn paste(&self, selection: &str) -> String {
        let output = self.on(Command::new("xclip")).args(["-o", "-selection", selection]).output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// The keyboard, as a text.
    pub(super) fn layout(&self) -> String {
        let output = self.on(Command::new("xkbcomp")).args(["-w", "0", &self.display, "-"]).output().unwrap();
        assert!(output.status.success());
        String::from_utf8(output.stdout).unwrap()
    }

    /// Whether no key of the keyboard is down.
    pub(super) fn no_key_is_down(&self) -> bool {
        let (connection, _) = x11rb::connect(Some(&self.display)).unwrap();
        connection.query_keymap().unwrap().reply().unwrap().keys.iter().all(|keys| *keys == 0)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        self.processes.borrow_mut().clear();
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}
