//! User units of systemd: their contents, and `systemctl` and `journalctl` for them.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use super::tool::{self, Tool};
use super::{Definition, Manager, ServiceFile, UnitState, plain};
use crate::failure;

pub(super) const SERVICE: &str = "izwi.service";
pub(super) const SOCKET: &str = "izwi.socket";

/// Restrictions that a user unit may have without privileges. They hold for package clients (Python, Node.js) and GPU
/// libraries too, so that none forbids memory that is written and executed.
const RESTRICTIONS: &str = "\
NoNewPrivileges=yes
UMask=0077
LockPersonality=yes
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
SystemCallArchitectures=native
";

const NO_SYSTEMD: &str = "this needs systemd; elsewhere, let the supervisor of the system run `izwi serve`";

/// systemd, for the units of this user.
#[derive(Debug)]
pub(super) struct Systemd {
    /// Folder of the units.
    folder: PathBuf,
}

impl Systemd {
    pub(super) fn of_user() -> Result<Self> {
        let Some(folders) = directories::BaseDirs::new() else {
            return Err(failure::with_help("this user has no home folder", "set HOME"));
        };
        Ok(Self { folder: folders.config_dir().join("systemd/user") })
    }

    fn systemctl() -> Result<Tool> {
        Tool::find("systemctl", NO_SYSTEMD)
    }
}

/// Runs `systemctl --user` with a command for units.
fn for_units(command: &[&str], units: &[&str]) -> Result<String> {
    Systemd::systemctl()?.run(&[&["--user"], command, units].concat())
}

/// The names of units, by their files.
fn names(files: &[PathBuf]) -> Vec<&str> {
    files.iter().filter_map(|path| path.file_name()?.to_str()).collect()
}

impl Manager for Systemd {
    fn files(&self, definition: &Definition) -> Result<Vec<ServiceFile>> {
        let service = ServiceFile { path: self.folder.join(SERVICE), text: service_unit(definition)? };
        let socket = definition
            .socket
            .map(|address| ServiceFile { path: self.folder.join(SOCKET), text: socket_unit(address) });
        Ok(std::iter::once(service).chain(socket).collect())
    }

    fn paths(&self) -> Vec<PathBuf> {
        [SERVICE, SOCKET].map(|name| self.folder.join(name)).to_vec()
    }

    fn check(&self) -> Result<()> {
        let answer = Self::systemctl()?.output(&["--user", "show", "--property=Version"])?;
        if answer.status.success() {
            return Ok(());
        }
        Err(failure::with_help(
            format!("systemd runs no services for this user here: {}", tool::message(&answer)),
            "`loginctl enable-linger` starts systemd for this user, and XDG_RUNTIME_DIR=/run/user/$(id -u) names it; \
             in a container, run `izwi serve`",
        ))
    }

    fn start(&self, files: &[PathBuf]) -> Result<()> {
        // The socket starts the service.
        let names = names(files);
        let unit = if names.contains(&SOCKET) { SOCKET } else { SERVICE };
        for_units(&["enable", "--now"], &[unit]).map(drop)
    }

    fn stop(&self, files: &[PathBuf]) -> Result<()> {
        for_units(&["disable", "--now"], &names(files)).map(drop)
    }

    fn reload(&self) -> Result<()> {
        for_units(&["daemon-reload"], &[]).map(drop)
    }

    fn restart(&self) -> Result<()> {
        for_units(&["restart"], &[SERVICE]).map(drop)
    }

    fn states(&self, files: &[PathBuf]) -> Result<Vec<UnitState>> {
        let state = |file: &PathBuf| {
            let properties = "--property=ActiveState,SubState,UnitFileState,MainPID";
            Ok(unit_state(file, &for_units(&["show", properties], &names(std::slice::from_ref(file)))?))
        };
        files.iter().map(state).collect()
    }

    fn log(&self, lines: u32, follow: bool) -> Result<Command> {
        let lines = lines.to_string();
        let mut arguments = vec!["--user", "--unit", SERVICE, "--no-pager", "--lines", &lines];
        arguments.extend(follow.then_some("--follow"));
        Ok(Tool::find("journalctl", NO_SYSTEMD)?.command(&arguments))
    }

    fn note(&self) -> &'static str {
        "it runs while this user is logged in; `loginctl enable-linger` lets it run from the start of the machine"
    }
}

/// The unit of the server.
///
/// # Errors
/// A path has control characters or is not UTF-8, or systemd refuses the program's.
fn service_unit(definition: &Definition) -> Result<String> {
    let program = plain("program", &definition.program)?;
    if program.contains(['"', '\'', '\\']) {
        return Err(failure::with_help(
            format!("systemd runs no program whose path has quotes or backslashes: {program}"),
            "move the `izwi` binary to a path without them",
        ));
    }
    let program = quoted(&program);
    // Only arguments may have variables of the environment.
    let config = quoted(&plain("configuration file", &definition.config)?).replace('$', "$$");
    let stop_timeout_s = definition.stop_timeout.as_secs();
    let (needs, install) = match definition.socket {
        Some(_) => (format!("Requires={SOCKET}\n"), ""),
        None => (String::new(), "\n[Install]\nWantedBy=default.target\n"),
    };
    Ok(format!(
        "# Written by `izwi service install`, removed by `izwi service uninstall`.
[Unit]
Description=Izwi speech service
StartLimitIntervalSec=300
StartLimitBurst=10
{needs}
[Service]
Type=notify
ExecStart={program} --config {config} serve
Restart=on-failure
RestartSec=5
KillMode=mixed
TimeoutStopSec={stop_timeout_s}
{RESTRICTIONS}{install}"
    ))
}

/// The unit of the socket whose first connection starts the server.
fn socket_unit(address: SocketAddr) -> String {
    format!(
        "# Written by `izwi service install`, removed by `izwi service uninstall`.
[Unit]
Description=Socket of the Izwi speech service

[Socket]
ListenStream={address}

[Install]
WantedBy=sockets.target
"
    )
}

/// A word of a command line in a unit. `%` begins a specifier, `\` an escape.
fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\"").replace('%', "%%"))
}

/// The state that `systemctl show` prints.
fn unit_state(file: &Path, shown: &str) -> UnitState {
    let property = |name: &str| {
        let value = shown.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
        value.unwrap_or_default()
    };
    let (active, detail) = (property("ActiveState"), property("SubState"));
    let mut state = format!("{active} ({detail}), {}", property("UnitFileState"));
    let process = property("MainPID");
    if !matches!(process, "" | "0") {
        state.push_str(&format!(", process {process}"));
    }
    UnitState {
        file: file.to_path_buf(),
        state,
        active: matches!(active, "active" | "reloading"),
        failed: active == "failed",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::service::tests::definition;

    #[test]
    fn the_unit_of_the_server_is_complete() {
        let unit = service_unit(&definition()).unwrap();
        for line in [
            "Type=notify",
            "ExecStart=\"/opt/izwi\" --config \"/home/u/config.toml\" serve",
            "Restart=on-failure",
            "TimeoutStopSec=40",
            "NoNewPrivileges=yes",
            "WantedBy=default.target",
        ] {
            assert!(unit.lines().any(|own| own == line), "{line} is not in {unit}");
        }
        assert!(!unit.contains("/usr/bin"), "the search path is that of systemd");
    }

    #[test]
    fn a_socket_starts_the_server_in_place_of_the_login() {
        let definition = Definition { socket: Some("[::1]:8080".parse().unwrap()), ..definition() };
        let files = Systemd { folder: "/u".into() }.files(&definition).unwrap();
        let [service, socket] = &files[..] else { panic!("{files:?}") };
        assert!(service.text.contains("Requires=izwi.socket\n") && !service.text.contains("WantedBy"));
        assert_eq!(socket.path, Path::new("/u/izwi.socket"));
        assert!(socket.text.contains("ListenStream=[::1]:8080\n"), "{}", socket.text);
    }

    #[test]
    fn paths_are_quoted_for_units() {
        let definition = Definition {
            program: "/a b/100%/$HOME/é;/izwi".into(),
            config: "/c \"d\" \\/%h/$X.toml".into(),
            ..definition()
        };
        let unit = service_unit(&definition).unwrap();
        let expected = r#"ExecStart="/a b/100%%/$HOME/é;/izwi" --config "/c \"d\" \\/%%h/$$X.toml" serve"#;
        assert!(unit.lines().any(|line| line == expected), "{unit}");
    }

    #[test]
    fn a_path_cannot_add_a_line_to_a_unit() {
        let program = PathBuf::from("/a\nExecStartPre=/bin/evil/izwi");
        let error = service_unit(&Definition { program, ..definition() }).unwrap_err();
        assert!(error.to_string().contains("the path of the program"), "{error}");
    }

    #[test]
    fn a_program_that_systemd_would_not_run_is_refused() {
        for program in ["/it's/izwi", "/a\"b/izwi", "/a\\b/izwi"] {
            let error = service_unit(&Definition { program: program.into(), ..definition() }).unwrap_err();
            assert!(error.to_string().contains(program), "{error}");
        }
    }

    #[test]
    fn states_are_read() {
        let shown = "ActiveState=active\nSubState=running\nUnitFileState=enabled\nMainPID=12\n";
        let state = unit_state(Path::new("/u/izwi.service"), shown);
        assert_eq!(state.state, "active (running), enabled, process 12");
        assert!(state.active && !state.failed);
        let state =
            unit_state(Path::new("/u/izwi.service"), "ActiveState=failed\nSubState=failed\nMainPID=0\n");
        assert!(!state.active && state.failed);
    }
}
