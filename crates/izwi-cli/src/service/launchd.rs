//! The LaunchAgent of launchd: its property list, and `launchctl` for it. Its log is a file.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};
use plist::{Dictionary, Value};

use super::tool::{self, Tool};
use super::{Definition, Manager, ServiceFile, UnitState, plain};
use crate::failure;

const LABEL: &str = "izwi";
/// Permissions that new files do not get: all of others.
const UMASK: u32 = 0o077;
/// Least time between two starts.
const THROTTLE_S: u64 = 10;

const NO_LAUNCHD: &str = "this needs macOS; elsewhere, run `izwi serve`";

/// launchd, for the agents of this user.
#[derive(Debug)]
pub(super) struct Launchd {
    home: PathBuf,
}

impl Launchd {
    pub(super) fn of_user() -> Result<Self> {
        let Some(folders) = directories::BaseDirs::new() else {
            return Err(failure::with_help("this user has no home folder", "set HOME"));
        };
        Ok(Self { home: folders.home_dir().to_path_buf() })
    }

    fn agent(&self) -> PathBuf {
        self.home.join("Library/LaunchAgents").join(format!("{LABEL}.plist"))
    }

    fn log_file(&self) -> PathBuf {
        self.home.join("Library/Logs/izwi.log")
    }
}

fn launchctl() -> Result<Tool> {
    Tool::find("launchctl", NO_LAUNCHD)
}

/// The domain of this user's session: `gui/501`.
fn domain() -> Result<String> {
    let user = Tool::find("id", NO_LAUNCHD)?.run(&["-u"])?;
    Ok(format!("gui/{}", user.trim()))
}

/// The name of the agent within launchd.
fn target() -> Result<String> {
    Ok(format!("{}/{LABEL}", domain()?))
}

/// What launchd tells about the agent; `None` if it is not loaded.
fn description() -> Result<Option<String>> {
    let output = launchctl()?.output(&["print", &target()?])?;
    Ok(output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned()))
}

impl Manager for Launchd {
    fn files(&self, definition: &Definition) -> Result<Vec<ServiceFile>> {
        if definition.socket.is_some() {
            return Err(failure::usage(
                "--socket-activation: launchd hands sockets over by an interface of its own, which izwi does not use",
                "leave it out: the agent starts at login, and a server without requests uses no processor time",
            ));
        }
        Ok(vec![ServiceFile { path: self.agent(), text: agent(definition, &self.log_file())? }])
    }

    fn paths(&self) -> Vec<PathBuf> {
        vec![self.agent()]
    }

    fn check(&self) -> Result<()> {
        let answer = launchctl()?.output(&["print", &domain()?])?;
        if answer.status.success() {
            return Ok(());
        }
        Err(failure::with_help(
            format!("launchd has no session of this user: {}", tool::message(&answer)),
            "log in at the screen of this Mac, or run `izwi serve`",
        ))
    }

    fn start(&self, files: &[PathBuf]) -> Result<()> {
        let (launchctl, target) = (launchctl()?, target()?);
        // An agent that was disabled once would not start.
        launchctl.run(&["enable", &target])?;
        if description()?.is_some() {
            return launchctl.run(&["kickstart", &target]).map(drop);
        }
        for file in files {
            launchctl.run(&["bootstrap", &domain()?, &plain("agent", file)?])?;
        }
        Ok(())
    }

    fn stop(&self, _files: &[PathBuf]) -> Result<()> {
        if description()?.is_some() {
            launchctl()?.run(&["bootout", &target()?])?;
        }
        Ok(())
    }

    fn reload(&self) -> Result<()> {
        // launchd reads the file when it starts the agent.
        Ok(())
    }

    fn restart(&self) -> Result<()> {
        launchctl()?.run(&["kickstart", "-k", &target()?]).map(drop)
    }

    fn states(&self, files: &[PathBuf]) -> Result<Vec<UnitState>> {
        let description = description()?;
        Ok(files.iter().map(|file| agent_state(file, description.as_deref())).collect())
    }

    fn log(&self, lines: u32, follow: bool) -> Result<Command> {
        let file = self.log_file();
        if !file.exists() {
            return Err(failure::with_help(
                format!("there is no log {} yet", file.display()),
                "`izwi service restart` starts the server; `izwi service status` shows its state",
            ));
        }
        let (lines, file) = (lines.to_string(), plain("log", &file)?);
        let mut arguments = vec!["-n", &lines];
        arguments.extend(follow.then_some("-F"));
        arguments.push(&file);
        Ok(Tool::find("tail", NO_LAUNCHD)?.command(&arguments))
    }

    fn note(&self) -> &'static str {
        "it runs while this user is logged in at the screen; its log is ~/Library/Logs/izwi.log"
    }
}

/// The property list of the agent.
///
/// # Errors
/// A path has control characters or is not UTF-8.
fn agent(definition: &Definition, log: &Path) -> Result<String> {
    let program = plain("program", &definition.program)?;
    let config = plain("configuration file", &definition.config)?;
    let log = plain("log", log)?;
    let text = |text: &str| Value::from(text.to_owned());
    let arguments = [program.as_str(), "--config", config.as_str(), "serve"].map(text);
    let one = |key: &str, value: Value| Value::from(Dictionary::from_iter([(key.to_owned(), value)]));
    let keys = [
        ("Label", text(LABEL)),
        ("ProgramArguments", Value::Array(arguments.to_vec())),
        // Without it, homebrew's programs would not be found.
        ("EnvironmentVariables", one("PATH", text(&definition.search_path))),
        ("RunAtLoad", Value::from(true)),
        ("KeepAlive", one("SuccessfulExit", Value::from(false))),
        ("ThrottleInterval", Value::from(THROTTLE_S)),
        ("ExitTimeOut", Value::from(definition.stop_timeout.as_secs())),
        // Speech has deadlines: neither its processor time nor its reads are put behind those of others.
        ("ProcessType", text("Interactive")),
        ("Umask", Value::from(UMASK)),
        ("StandardOutPath", text(&log)),
        ("StandardErrorPath", text(&log)),
    ];
    let keys: Dictionary = keys.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
    let mut xml = Vec::new();
    Value::Dictionary(keys).to_writer_xml(&mut xml).context("the property list cannot be written")?;
    xml.push(b'\n');
    String::from_utf8(xml).context("the property list is not UTF-8")
}

/// The state that `launchctl print` tells.
fn agent_state(file: &Path, description: Option<&str>) -> UnitState {
    let Some(description) = description else {
        return UnitState {
            file: file.to_path_buf(),
            state: "not loaded".to_owned(),
            active: false,
            failed: false,
        };
    };
    let property = |name: &str| {
        let mut lines = description.lines().map(str::trim);
        lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(" = "))
    };
    let mut state = property("state").unwrap_or("unknown").to_owned();
    let active = state == "running";
    for name in ["pid", "last exit code"] {
        if let Some(value) = property(name) {
            state.push_str(&format!(", {name} {value}"));
        }
    }
    let failed =
        !active && property("last exit code").is_some_and(|code| !matches!(code, "0" | "(never exited)"));
    UnitState { file: file.to_path_buf(), state, active, failed }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::service::tests::definition;

    #[test]
    fn the_property_list_can_be_read_back() {
        let config = PathBuf::from("/Users/u/Library/Application Support/izwi/<a>&\"b\".toml");
        let definition = Definition { config, ..definition() };
        let text = agent(&definition, Path::new("/Users/u/Library/Logs/izwi.log")).unwrap();
        let read = Value::from_reader_xml(text.as_bytes()).unwrap();
        let keys = read.as_dictionary().unwrap();
        let arguments: Vec<&str> = keys["ProgramArguments"]
            .as_array()
            .unwrap()
            .iter()
            .map(|word| word.as_string().unwrap())
            .collect();
        let config = "/Users/u/Library/Application Support/izwi/<a>&\"b\".toml";
        assert_eq!(arguments, ["/opt/izwi", "--config", config, "serve"]);
        assert_eq!(keys["Label"].as_string(), Some("izwi"));
        assert_eq!(keys["RunAtLoad"].as_boolean(), Some(true));
        assert_eq!(keys["KeepAlive"].as_dictionary().unwrap()["SuccessfulExit"].as_boolean(), Some(false));
        assert_eq!(keys["ExitTimeOut"].as_unsigned_integer(), Some(40));
        assert_eq!(keys["StandardErrorPath"].as_string(), Some("/Users/u/Library/Logs/izwi.log"));
        assert_eq!(
            keys["EnvironmentVariables"].as_dictionary().unwrap()["PATH"].as_string(),
            Some("/opt/bin:/usr/bin")
        );
    }

    #[test]
    fn sockets_and_odd_paths_are_refused() {
        let launchd = Launchd { home: "/Users/u".into() };
        let socket = Definition { socket: Some("127.0.0.1:1".parse().unwrap()), ..definition() };
        let error = launchd.files(&socket).unwrap_err();
        assert!(error.to_string().contains("--socket-activation"), "{error}");
        let odd = Definition { program: "/a\u{7}/izwi".into(), ..definition() };
        assert!(launchd.files(&odd).unwrap_err().to_string().contains("the path of the program"));
        let files = launchd.files(&definition()).unwrap();
        assert_eq!(files[0].path, Path::new("/Users/u/Library/LaunchAgents/izwi.plist"));
    }

    #[test]
    fn states_are_read() {
        let file = Path::new("/a.plist");
        let running = "gui/501/izwi = {\n\tactive count = 1\n\tstate = running\n\tpid = 12\n}\n";
        let state = agent_state(file, Some(running));
        assert_eq!((state.state.as_str(), state.active, state.failed), ("running, pid 12", true, false));
        let stopped = "gui/501/izwi = {\n\tstate = not running\n\tlast exit code = 1\n}\n";
        assert!(agent_state(file, Some(stopped)).failed);
        assert!(!agent_state(file, None).active);
    }
}
