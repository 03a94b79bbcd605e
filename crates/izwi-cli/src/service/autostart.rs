//! The icon in the tray at the start of a session: an entry of XDG on Linux, a LaunchAgent on macOS.
//!
//! The contents of the file are a pure function of the command, on every platform.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use directories::BaseDirs;
use plist::{Dictionary, Value};

use super::{ServiceFile, plain};
use crate::{failure, private_file};

/// The system whose session starts the icon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Xdg,
    Launchd,
}

/// Where the entry of this user is.
#[derive(Debug, Clone)]
pub(crate) struct Autostart {
    kind: Kind,
    path: PathBuf,
}

impl Autostart {
    /// That of this user.
    ///
    /// # Errors
    /// The system is not known, or the user has no home folder.
    pub(crate) fn of_user() -> Result<Self> {
        let folders = BaseDirs::new().ok_or_else(|| {
            failure::with_help("this user has no home folder", "set HOME to the folder of the user")
        })?;
        if cfg!(windows) {
            return Err(failure::with_help("--tray: no icon is shown on this system", "leave it out"));
        }
        Ok(if cfg!(target_os = "macos") {
            let agents = folders.home_dir().join("Library/LaunchAgents");
            Self { kind: Kind::Launchd, path: agents.join("izwi.tray.plist") }
        } else {
            Self { kind: Kind::Xdg, path: folders.config_dir().join("autostart/izwi-tray.desktop") }
        })
    }

    /// The file that starts `izwi tray` of a program with each session; `config` is its configuration file, where it is none of
    /// the usual place.
    ///
    /// # Errors
    /// A path has control characters or is not UTF-8.
    pub(crate) fn file(&self, program: &Path, config: Option<&Path>) -> Result<ServiceFile> {
        let mut command = vec![plain("program", program)?];
        if let Some(config) = config {
            command.extend(["--config".to_owned(), plain("configuration file", config)?]);
        }
        command.extend(["tray", "--wait"].map(str::to_owned));
        let text = match self.kind {
            Kind::Xdg => entry(&command),
            Kind::Launchd => agent(&command)?,
        };
        Ok(ServiceFile { path: self.path.clone(), text })
    }

    /// Writes the file. False if it is there already. Other contents are replaced only with `force`.
    ///
    /// # Errors
    /// The file has other contents, or cannot be written.
    pub(crate) fn install(&self, file: &ServiceFile, force: bool) -> Result<bool> {
        let present = fs::read_to_string(&file.path).ok();
        if present.as_ref() == Some(&file.text) {
            return Ok(false);
        }
        if file.path.exists() && !force {
            return Err(failure::with_help(
                format!("{} is there already, with other contents", file.path.display()),
                "`izwi service install --tray --force` replaces it; `--print` shows the new contents",
            ));
        }
        private_file::write(&file.path, &file.text, true)
            .with_context(|| format!("cannot write {}", file.path.display()))?;
        Ok(true)
    }

    /// Removes the file. Returns its path.
    ///
    /// # Errors
    /// There is none, or it cannot be removed.
    pub(crate) fn uninstall(&self) -> Result<&Path> {
        if !self.path.exists() {
            return Err(failure::with_help(
                format!("the icon does not start with the session: there is no {}", self.path.display()),
                "`izwi service install --tray` lets it start",
            ));
        }
        fs::remove_file(&self.path).with_context(|| format!("cannot remove {}", self.path.display()))?;
        Ok(&self.path)
    }
}

/// The desktop entry (https://specifications.freedesktop.org/desktop-entry-spec/latest/exec-variables.html).
fn entry(command: &[String]) -> String {
    // A quoted argument, and then a string of the file.
    let quoted = |argument: &String| {
        let mut quoted = String::from("\"");
        for c in argument.chars() {
            match c {
                '"' | '`' | '$' | '\\' => quoted.extend(['\\', c]),
                '%' => quoted.push_str("%%"),
                _ => quoted.push(c),
            }
        }
        quoted.push('"');
        quoted.replace('\\', "\\\\")
    };
    let command: Vec<String> = command.iter().map(quoted).collect();
    format!(
        "[Desktop Entry]\nType=Application\nName=Izwi\nComment=Speech: the server, dictation, reading aloud\nExec={}\n\
         Icon=audio-input-microphone\nTerminal=false\nNoDisplay=true\n",
        command.join(" ")
    )
}

/// The agent of launchd, in sessions at the screen.
fn agent(command: &[String]) -> Result<String> {
    let text = |text: &str| Value::String(text.to_owned());
    let keys: Dictionary = [
        ("Label", text("izwi.tray")),
        ("ProgramArguments", Value::Array(command.iter().map(|argument| text(argument)).collect())),
        ("RunAtLoad", Value::Boolean(true)),
        ("LimitLoadToSessionType", text("Aqua")),
        ("ProcessType", text("Interactive")),
    ]
    .into_iter()
    .map(|(key, value)| (key.to_owned(), value))
    .collect();
    let mut bytes = Vec::new();
    Value::Dictionary(keys).to_writer_xml(&mut bytes).context("cannot write the agent")?;
    bytes.push(b'\n');
    String::from_utf8(bytes).context("the agent is no UTF-8")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_quotes_its_command() {
        let command = ["/opt/my \"$x\" 5%/izwi".to_owned(), "tray".to_owned()];
        let entry = entry(&command);
        let line = entry.lines().find(|line| line.starts_with("Exec=")).unwrap();
        assert_eq!(line, r#"Exec="/opt/my \\"\\$x\\" 5%%/izwi" "tray""#);
    }

    #[test]
    fn an_agent_runs_the_command_in_a_session_at_the_screen() {
        let agent = agent(&["/a&b/izwi".to_owned(), "tray".to_owned()]).unwrap();
        let keys = Value::from_reader_xml(agent.as_bytes()).unwrap().into_dictionary().unwrap();
        let arguments = keys["ProgramArguments"].as_array().unwrap();
        assert_eq!(arguments[0].as_string(), Some("/a&b/izwi"));
        assert_eq!(keys["RunAtLoad"].as_boolean(), Some(true));
    }

    #[test]
    fn a_file_is_installed_once_and_others_are_kept() {
        let folder = tempfile::tempdir().unwrap();
        let autostart =
            Autostart { kind: Kind::Xdg, path: folder.path().join("autostart/izwi-tray.desktop") };
        let file = autostart.file(Path::new("/bin/izwi"), Some(Path::new("/c.toml"))).unwrap();
        assert!(
            file.text.contains(r#"Exec="/bin/izwi" "--config" "/c.toml" "tray" "--wait""#),
            "{}",
            file.text
        );
        assert!(autostart.install(&file, false).unwrap());
        assert!(!autostart.install(&file, false).unwrap(), "it is there");
        let other = autostart.file(Path::new("/bin/other"), None).unwrap();
        assert!(autostart.install(&other, false).unwrap_err().to_string().contains("other contents"));
        assert!(autostart.install(&other, true).unwrap());
        autostart.uninstall().unwrap();
        assert!(autostart.uninstall().unwrap_err().to_string().contains("does not start"));
        let odd = autostart.file(Path::new("/a\u{7}/izwi"), None).unwrap_err();
        assert!(odd.to_string().contains("the path of the program"));
    }
}
