//! The output module of Speech Dispatcher, driven over its pipes and by Debian's Speech Dispatcher itself.

#![cfg(target_os = "linux")]

use std::collections::VecDeque;
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixStream;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use crate::{Izwi, refused};

/// How long anything may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// The module as a child.
struct Module {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
}

impl Module {
    fn start(izwi: &Izwi, arguments: &[&str], port: &str) -> Self {
        let mut command = izwi.command(&[&["speech-dispatcher"], arguments].concat());
        command.env("IZWI_PORT", port).stdin(Stdio::piped()).stderr(Stdio::inherit());
        let mut child = command.spawn().unwrap();
        let (stdin, stdout) = (child.stdin.take(), BufReader::new(child.stdout.take().unwrap()));
        let mut module = Self { child, stdin, stdout };
        assert_eq!(module.ask("INIT\n").last().unwrap(), "299 OK LOADED SUCCESSFULLY");
        assert_eq!(module.ask("AUDIO\n"), ["207 OK RECEIVING AUDIO SETTINGS"]);
        assert_eq!(module.ask("audio_output_method=server\n.\n"), ["203 OK AUDIO INITIALIZED"]);
        module
    }

    fn send(&mut self, text: &[u8]) {
        self.stdin.as_mut().unwrap().write_all(text).unwrap();
    }

    /// The next reply or event: its lines, in which audio is cut off.
    fn next(&mut self) -> Vec<String> {
        let mut lines = Vec::new();
        loop {
            let mut line = Vec::new();
            self.stdout.read_until(b'\n', &mut line).unwrap();
            let text: String = String::from_utf8_lossy(&line).trim_end().chars().take(200).collect();
            let is_last = line.get(3) != Some(&b'-');
            lines.push(text);
            if is_last {
                return lines;
            }
        }
    }

    fn ask(&mut self, text: &str) -> Vec<String> {
        self.send(text.as_bytes());
        self.next()
    }

    fn set(&mut self, lines: &str) -> String {
        assert_eq!(self.ask("SET\n"), ["203 OK RECEIVING SETTINGS"]);
        self.ask(&format!("{lines}\n.\n")).remove(0)
    }

    fn begin(&mut self, command: &str, text: &str) {
        assert_eq!(self.ask(&format!("{command}\n")), ["202 OK RECEIVING MESSAGE"]);
        assert_eq!(self.ask(&format!("{text}\n.\n")), ["200 OK SPEAKING"]);
        assert_eq!(self.next(), ["701 BEGIN"]);
    }

    /// What follows until the message ends: marks and the end with the samples before each.
    fn events(&mut self) -> Vec<(String, usize)> {
        let (mut events, mut samples) = (Vec::new(), 0);
        loop {
            let lines = self.next();
            let last = lines.last().unwrap().clone();
            match &last[..3] {
                "705" => {
                    let count = lines.iter().find_map(|line| line.strip_prefix("705-num_samples=")).unwrap();
                    samples += count.parse::<usize>().unwrap();
                }
                "700" => events.push((lines[0][4..].to_owned(), samples)),
                _ => {
                    events.push((last, samples));
                    return events;
                }
            }
        }
    }

    fn speak(&mut self, command: &str, text: &str) -> Vec<(String, usize)> {
        self.begin(command, text);
        self.events()
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_module_speaks_marks_pauses_and_stops() {
    let izwi = Izwi::with_models();
    let mut module = Module::start(&izwi, &[], "1");
    let voices = module.ask("LIST VOICES en\n");
    assert!(voices[0].starts_with("200-heart\ten-US\t"), "{voices:?}");
    assert_eq!(voices.last().unwrap(), "200 OK VOICE LIST SENT");
    assert_eq!(module.ask("LIST VOICES xx\n"), ["304 CANT LIST VOICES"]);

    let text = "<speak>Good morning.<mark name=\"__spd_0\"/> The rain <mark name=\"w\"/>has stopped.<mark name=\"__spd_1\"/></speak>";
    let plain = module.speak("SPEAK", text);
    let names: Vec<&str> = plain.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["__spd_0", "w", "__spd_1", "702 END"]);
    assert!(
        plain.is_sorted_by_key(|(_, at)| *at) && plain[0].1 > 8_000 && plain[1].1 > plain[0].1,
        "{plain:?}"
    );
    assert_eq!(plain[2].1, plain[3].1, "the last mark is behind the last word");

    assert_eq!(module.set("rate=100"), "203 OK SETTINGS RECEIVED");
    let fast = module.speak("SPEAK", text);
    for (fast, plain) in fast.iter().zip(&plain) {
        assert!((fast.1 * 4).abs_diff(plain.1) < 3_000, "{fast:?} {plain:?}");
    }
    assert_eq!(module.set("rate=0\npitch=20\nvolume=50\ncap_let_recogn=icon"), "203 OK SETTINGS RECEIVED");
    for (command, text) in [("CHAR", "A"), ("CHAR", "space"), ("KEY", "control_a"), ("KEY", "underscore")] {
        let spoken = module.speak(command, text);
        assert!(spoken[0].0 == "702 END" && spoken[0].1 > 3_000, "{command} {text}: {spoken:?}");
    }
    assert_eq!(
        module.speak("SPEAK", "<speak>...<mark name=\"m\"/></speak>"),
        [("m".into(), 0), ("702 END".into(), 0)]
    );

    let long = format!("<speak>{}</speak>", "It goes on and on. ".repeat(200));
    module.begin("SPEAK", &long);
    module.next();
    module.send(b"STOP\n");
    assert_eq!(module.events().last().unwrap().0, "703 STOP");
    let marked: String = (0..200).map(|n| format!("It goes on.<mark name=\"__spd_{n}\"/> ")).collect();
    module.begin("SPEAK", &format!("<speak>{marked}</speak>"));
    module.send(b"PAUSE\n");
    let paused = module.events();
    let [.., (mark, _), (end, _)] = paused.as_slice() else { panic!("{paused:?}") };
    assert!(mark.starts_with("__spd_") && end == "704 PAUSE", "{paused:?}");
    // A stop and a pause of nothing have no reply.
    module.send(b"STOP\nPAUSE\n");
    assert_eq!(module.ask("QUIT\n"), ["210 OK QUIT"]);
    assert!(module.child.wait().unwrap().success());
}

#[test]
fn garbage_gets_an_error_and_the_module_goes_on() {
    let izwi = Izwi::with_models();
    let mut module = Module::start(&izwi, &["/no/such/izwi.conf"], "1");
    for (sent, reply) in [
        ("\n", "300 ERR UNKNOWN COMMAND"),
        ("\0\u{1b}[2J\n", "300 ERR UNKNOWN COMMAND"),
        ("DEBUG\n", "302 ERROR BAD SYNTAX"),
        ("INIT\n", "302 ERROR BAD SYNTAX"),
        ("DEBUG ON /no/such/folder/log\n", "303 CANT OPEN CUSTOM DEBUG FILE"),
    ] {
        assert_eq!(module.ask(sent), [reply], "{sent:?}");
    }
    module.send(&[&vec![b'x'; 3 << 20], &b"\n"[..]].concat());
    assert_eq!(module.next(), ["300 ERR UNKNOWN COMMAND"]);
    assert_eq!(module.set("nonsense"), "302 ERROR BAD SYNTAX");
    assert_eq!(module.set("rate=very"), "303 ERROR INVALID PARAMETER OR VALUE");
    module.ask("AUDIO\n");
    assert_eq!(module.ask("audio_output_method=oss\n.\n"), ["303 ERROR INVALID PARAMETER OR VALUE"]);
    for (command, text, reply) in [
        ("SPEAK", String::new(), "301 ERROR CANT SPEAK"),
        ("SPEAK", "word ".repeat(1 << 19), "301 ERROR CANT SPEAK"),
        ("KEY", "a\nb".to_owned(), "305 DATA MORE THAN ONE LINE"),
    ] {
        module.ask(&format!("{command}\n"));
        let end = if text.is_empty() { ".\n" } else { "\n.\n" };
        assert_eq!(module.ask(&format!("{text}{end}")), [reply]);
    }
    module.send(b"SPEAK\n\xff<speak><mark name=\"a\n.\n");
    assert_eq!(module.next(), ["202 OK RECEIVING MESSAGE"]);
    assert_eq!(module.next(), ["200 OK SPEAKING"]);
    assert_eq!(module.next(), ["701 BEGIN"]);
    assert_eq!(module.events().last().unwrap().0, "702 END");
    drop(module.stdin.take());
    assert!(module.child.wait().unwrap().success(), "the end of the input ends it");
}

#[test]
fn a_module_survives_its_server() {
    let izwi = Izwi::with_models();
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string();
    let mut server = izwi.command(&["serve", "--port", &port, "--no-pull"]).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(server.stderr.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.contains("izwi serves on"), "{line}");
    let mut module = Module::start(&izwi, &[], &port);
    assert_eq!(module.speak("SPEAK", "One.").last().unwrap().0, "702 END");
    server.kill().unwrap();
    server.wait().unwrap();
    assert_eq!(module.speak("SPEAK", "Two.").last().unwrap().0, "702 END");
}

#[test]
fn a_module_without_a_model_says_how_to_get_one() {
    let izwi = Izwi::alone();
    let mut command = izwi.command(&["speech-dispatcher"]);
    let mut child = command.env("IZWI_PORT", "1").stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"hello\nINIT\n").unwrap();
    let output = child.wait_with_output().unwrap();
    let told = String::from_utf8(output.stdout).unwrap();
    assert!(told.starts_with("300 ERR UNKNOWN COMMAND\n399-") && told.contains("izwi pull "), "{told}");
    assert!(told.ends_with("399 ERR CANT INIT MODULE\n"), "{told}");
}

/// Speech Dispatcher with a folder of its own, which plays into nothing.
struct Dispatcher {
    child: Child,
    stream: UnixStream,
    lines: BufReader<UnixStream>,
    /// Events that came before a reply.
    early: VecDeque<String>,
}

impl Dispatcher {
    fn start(izwi: &Izwi) -> Self {
        let run = izwi.path("run");
        fs::create_dir_all(&run).unwrap();
        let mut command = Command::new("speech-dispatcher");
        for (name, value) in izwi.command(&[]).get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        // No server runs on the port.
        command
            .env("IZWI_PORT", "1")
            .env("XDG_RUNTIME_DIR", &run)
            .env("XDG_DATA_HOME", izwi.path("data/share"));
        let log = izwi.path("log");
        fs::create_dir_all(&log).unwrap();
        command.args(["-s", "-t", "0", "-L"]).arg(log).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().unwrap();
        let socket = run.join("speech-dispatcher/speechd.sock");
        let begun = Instant::now();
        let stream = loop {
            if let Ok(stream) = UnixStream::connect(&socket) {
                break stream;
            }
            assert!(begun.elapsed() < PATIENCE, "Speech Dispatcher does not start");
            std::thread::sleep(Duration::from_millis(50));
        };
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let lines = BufReader::new(stream.try_clone().unwrap());
        let mut dispatcher = Self { child, stream, lines, early: VecDeque::new() };
        for command in
            ["CLIENT_NAME me:test:main", "OUTPUT_MODULE izwi", "NOTIFICATION ALL ON", "SSML_MODE on"]
        {
            let reply = dispatcher.ask(&format!("SET SELF {command}"));
            assert!(reply.starts_with('2'), "{command}: {reply}");
        }
        dispatcher
    }

    /// The last line of the next reply, or all of an event.
    fn next(&mut self) -> String {
        let mut told = Vec::new();
        loop {
            let mut line = String::new();
            self.lines.read_line(&mut line).unwrap();
            assert!(!line.is_empty(), "Speech Dispatcher has ended");
            told.push(line.trim_end().to_owned());
            if line.as_bytes().get(3) != Some(&b'-') {
                return if line.starts_with('7') { told.join(" ") } else { told.pop().unwrap() };
            }
        }
    }

    /// The reply to a command. Events that come before it are kept: another thread of Speech Dispatcher tells them.
    fn ask(&mut self, line: &str) -> String {
        write!(self.stream, "{line}\r\n").unwrap();
        loop {
            let told = self.next();
            if !told.starts_with('7') {
                return told;
            }
            self.early.push_back(told);
        }
    }

    fn speak(&mut self, text: &str) {
        assert!(self.ask("SPEAK").starts_with("230"));
        assert!(self.ask(&format!("{text}\r\n.")).starts_with("225"));
    }

    /// The events of a message, up to its last one.
    fn events(&mut self) -> Vec<String> {
        let mut events = Vec::new();
        loop {
            let event = self.early.pop_front().unwrap_or_else(|| self.next());
            let is_last = event.contains("702 END") || event.contains("703 CANCELED");
            events.push(event);
            if is_last {
                return events;
            }
        }
    }
}

impl Drop for Dispatcher {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn speech_dispatcher_speaks_through_the_module() {
    let is_there = |program: &str| Command::new(program).arg("--version").output().is_ok();
    if !is_there("speech-dispatcher") {
        println!(
            "skipped: speech-dispatcher is not installed; on Debian: apt install speech-dispatcher speech-dispatcher-audio-plugins"
        );
        return;
    }
    let izwi = Izwi::with_models();
    // A user who has chosen modules, and no sound.
    let configuration = izwi.path("config/speech-dispatcher/speechd.conf");
    fs::create_dir_all(configuration.parent().unwrap()).unwrap();
    let own = "AudioOutputMethod \"alsa\"\nAudioALSADevice \"null\"\nAddModule \"other\" \"sd_none\" \"none.conf\"\n";
    fs::write(&configuration, own).unwrap();
    let service = |arguments: &[&str]| {
        let mut command = izwi.command(&[&["service"], arguments, &["--speech-dispatcher"]].concat());
        command.env("XDG_DATA_HOME", izwi.path("data/share")).output().unwrap()
    };
    let installed = service(&["install"]);
    assert!(installed.status.success(), "{}", String::from_utf8_lossy(&installed.stderr));
    assert!(fs::read_to_string(&configuration).unwrap().starts_with(own));

    let mut dispatcher = Dispatcher::start(&izwi);
    dispatcher.speak("<speak>Good morning. <mark name=\"here\"/>The rain has stopped.</speak>");
    let events = dispatcher.events();
    let is = |event: &str, what: &str| event.contains(what);
    assert!(is(&events[0], "701 BEGIN") && is(events.last().unwrap(), "702 END"), "{events:?}");
    assert!(events.iter().any(|event| is(event, "here") && is(event, "700 INDEX MARK")), "{events:?}");
    assert!(dispatcher.ask("KEY control_a").starts_with("225"));
    assert!(is(dispatcher.events().last().unwrap(), "702 END"));
    drop(dispatcher);

    assert!(service(&["uninstall"]).status.success());
    assert_eq!(fs::read_to_string(&configuration).unwrap(), own);
    refused(&service(&["uninstall"]), 1, &["not installed", "izwi service install --speech-dispatcher"]);
}
