//! `izwi service`: the server as a service of this user.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result};
use clap::Subcommand;

use crate::failure::Failure;
use crate::service::autostart::Autostart;
use crate::service::speech_dispatcher::{Change, Places};
use crate::service::{self, Definition, Installed, ServiceFile, UnitState};
use crate::settings::process::{self, FilePath};
use crate::settings::{Origin, Resolved, ServerSettings};
use crate::{address, failure, output};

/// Time beyond that of open requests in which a server closes its connections and its engines stop.
const CLOSING_TIMEOUT: Duration = Duration::from_secs(10);

/// Run the server as a service of this user
///
/// A user unit of systemd on Linux, a LaunchAgent of launchd on macOS: the server starts at login and again if it fails.
/// `izwi status` asks the server itself, `izwi logs` shows what it logs.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: ServiceCommand,
}

#[derive(Debug, Subcommand)]
enum ServiceCommand {
    Install(Install),
    /// Stop the service and remove it; models, voices and settings stay
    Uninstall {
        /// Remove the module for screen readers instead; the service stays
        #[arg(long)]
        speech_dispatcher: bool,
        /// Start the icon on the desktop no more with the session instead; the service stays
        #[arg(long, conflicts_with = "speech_dispatcher")]
        tray: bool,
    },
    /// Show the state of the service; the exit code is 1 unless it runs or waits for connections
    Status {
        /// Print as JSON
        #[arg(long)]
        json: bool,
    },
    /// Stop the server and start it again, with the settings of its configuration file
    Restart,
}

/// Install the service and start it, now and at each login
///
/// It reads its settings from the configuration file, which is written with every setting commented out where there is
/// none. Flags and variables of this command line are not kept. The API key stays in the configuration file.
#[derive(Debug, clap::Args)]
struct Install {
    /// Print the files that would be installed, and change nothing
    #[arg(long)]
    print: bool,

    /// Let systemd listen and start the server at the first connection (Linux)
    #[arg(long)]
    socket_activation: bool,

    /// Install the module of Speech Dispatcher for screen readers instead (Linux); it speaks with or without the service
    #[arg(long, conflicts_with = "socket_activation")]
    speech_dispatcher: bool,

    /// Let `izwi tray`, the icon on the desktop, start with each session instead (Linux, macOS); it works with or without
    /// the service
    #[arg(long, conflicts_with_all = ["socket_activation", "speech_dispatcher"])]
    tray: bool,

    /// Replace an installed service, module or entry with other contents
    #[arg(long)]
    force: bool,
}

pub(crate) fn run(
    args: &Args,
    config: Option<&Path>,
    settings: impl FnOnce() -> Result<Resolved>,
) -> Result<()> {
    match &args.command {
        ServiceCommand::Install(install) if install.speech_dispatcher => install.module(),
        ServiceCommand::Install(install) if install.tray => install.tray(config),
        ServiceCommand::Install(install) => install.run(config, &settings()?),
        ServiceCommand::Uninstall { speech_dispatcher: true, .. } => uninstall_module(),
        ServiceCommand::Uninstall { tray: true, .. } => uninstall_tray(),
        ServiceCommand::Uninstall { .. } => uninstall(),
        ServiceCommand::Status { json } => status(*json),
        ServiceCommand::Restart => restart(),
    }
}

impl Install {
    /// Installs with the settings of the file; `given` are those of this command line.
    fn run(&self, config: Option<&Path>, given: &Resolved) -> Result<()> {
        let manager = service::manager()?;
        warn_of_other_origins(given)?;
        let file = process::file_path(config).ok_or_else(|| {
            failure::usage("this platform has no configuration folder", "name a file with --config")
        })?;
        let server = process::load_file(config)?.settings.server;
        let address = self.check_address(&server, &file.path)?;
        let definition = self.definition(&file.path, &server, address)?;
        let files = manager.files(&definition)?;
        if self.print {
            return output::print(&listing(&files));
        }
        manager.check()?;
        write_config(&file)?;
        let installed = service::install(manager.as_ref(), &files, self.force)?;
        let what = match (installed, definition.socket) {
            (Installed::Unchanged, _) => "the service is installed already, and unchanged",
            (Installed::New, Some(_)) => "the service is installed; the first connection starts it",
            (Installed::New, None) => "the service is installed and runs",
        };
        for ServiceFile { path, .. } in &files {
            output::print(&format!("{}\n", path.display()))?;
        }
        output::status(&format!("{what}: {}", address::url(address)));
        output::status(manager.note());
        Ok(())
    }

    /// Installs the module of Speech Dispatcher.
    fn module(&self) -> Result<()> {
        let program = std::env::current_exe().context("the path of this program is unknown")?;
        let changes = Places::of_user()?.installation(&program, self.force)?;
        if self.print {
            return print_changes(&changes);
        }
        apply(&changes)?;
        let what = if changes.is_empty() { "is installed already, and unchanged" } else { "is installed" };
        output::status(&format!(
            "the module izwi of Speech Dispatcher {what}; `izwi service uninstall --speech-dispatcher` removes it"
        ));
        output::status(
            "Speech Dispatcher finds it at its next start, such as the next login: choose izwi as the synthesiser of \
             your screen reader, or try `spd-say -o izwi hello`",
        );
        Ok(())
    }

    /// Lets the icon start with each session.
    fn tray(&self, config: Option<&Path>) -> Result<()> {
        let program = std::env::current_exe().context("the path of this program is unknown")?;
        let config =
            config.map(std::path::absolute).transpose().context("the path of --config is unknown")?;
        let autostart = Autostart::of_user()?;
        let file = autostart.file(&program, config.as_deref())?;
        if self.print {
            return output::print(&listing(&[file]));
        }
        let what = match autostart.install(&file, self.force)? {
            true => "the icon starts with the next session; `izwi tray` shows it now",
            false => "the icon starts with each session already, and nothing changed",
        };
        output::print(&format!("{}\n", file.path.display()))?;
        output::status(what);
        Ok(())
    }

    /// The address on which the service will listen.
    fn check_address(&self, server: &ServerSettings, config: &Path) -> Result<std::net::SocketAddr> {
        let addresses = address::resolve(&server.host, server.port)?;
        let help = format!("write api_key or another host below [server] in {}", config.display());
        address::check(&addresses, server, &help)?;
        if self.socket_activation && server.port == 0 {
            return Err(failure::with_help(
                "server.port: 0 stands for any free port, and --socket-activation needs a fixed one",
                format!("write another port below [server] in {}", config.display()),
            ));
        }
        let none = || failure::with_help(format!("the host '{}' has no address", server.host), help.clone());
        addresses.first().copied().ok_or_else(none)
    }

    fn definition(
        &self,
        config: &Path,
        server: &ServerSettings,
        address: std::net::SocketAddr,
    ) -> Result<Definition> {
        let program = std::env::current_exe().context("the path of this program is unknown")?;
        let config = std::path::absolute(config)
            .with_context(|| format!("the path {} cannot be made absolute", config.display()))?;
        Ok(Definition {
            program,
            config,
            stop_timeout: server.config.drain_timeout.saturating_add(CLOSING_TIMEOUT),
            socket: self.socket_activation.then_some(address),
            search_path: service::absolute_search_path(&std::env::var_os("PATH").unwrap_or_default()),
        })
    }
}

/// Warns of variables that the service will not see, and refuses flags.
fn warn_of_other_origins(given: &Resolved) -> Result<()> {
    for (setting, origin) in &given.origins {
        match origin {
            Origin::Flag(flag) => {
                return Err(failure::usage(
                    format!("--{flag}: the service reads its settings from the configuration file"),
                    format!("write {} into the file and leave --{flag} out", setting.key()),
                ));
            }
            Origin::Environment(variable) => output::status(&format!(
                "warning: the service does not see the variable {variable}: write {} into the configuration file",
                setting.key()
            )),
            Origin::File(..) | Origin::Default => {}
        }
    }
    Ok(())
}

/// What a new configuration file sets: a service that nobody uses for a quarter of an hour holds no model.
const SETTINGS: [(&str, u64); 1] = [("default_model_ttl_s", 900)];

/// Writes a configuration file where there is none.
fn write_config(file: &FilePath) -> Result<()> {
    if file.path.exists() {
        return Ok(());
    }
    process::write_template(&file.path, &SETTINGS, false)?;
    output::status(&format!("wrote the configuration file {}", file.path.display()));
    Ok(())
}

fn listing(files: &[ServiceFile]) -> String {
    let sections: Vec<String> =
        files.iter().map(|file| format!("==> {}\n{}", file.path.display(), file.text)).collect();
    sections.join("\n")
}

fn uninstall() -> Result<()> {
    let removed: Vec<PathBuf> = service::uninstall(service::manager()?.as_ref())?;
    for path in removed {
        output::print(&format!("{}\n", path.display()))?;
    }
    output::status("the service is stopped and removed; models, voices and settings stay");
    Ok(())
}

fn uninstall_module() -> Result<()> {
    apply(&Places::of_user()?.removal()?)?;
    output::status("the module izwi of Speech Dispatcher is removed; it ends with Speech Dispatcher");
    Ok(())
}

fn uninstall_tray() -> Result<()> {
    let autostart = Autostart::of_user()?;
    output::print(&format!("{}\n", autostart.uninstall()?.display()))?;
    output::status("the icon starts no more with the session; one that runs stays until it is quit");
    Ok(())
}

fn apply(changes: &[Change]) -> Result<()> {
    changes.iter().try_for_each(Change::apply)?;
    print_changes(changes)
}

fn print_changes(changes: &[Change]) -> Result<()> {
    changes.iter().try_for_each(|change| output::print(&format!("{change}\n")))
}

fn status(json: bool) -> Result<()> {
    let manager = service::manager()?;
    let installed = service::installed(manager.as_ref());
    let states = if installed.is_empty() && json {
        Vec::new()
    } else {
        let installed = service::expect_installed(manager.as_ref())?;
        manager.check()?;
        manager.states(&installed)?
    };
    if json {
        output::print_json(&serde_json::json!({ "installed": !installed.is_empty(), "units": states }))?;
    } else {
        let rows: Vec<[String; 2]> =
            states.iter().map(|unit| [unit.file.display().to_string(), unit.state.clone()]).collect();
        output::print(&output::format_columns(&rows))?;
    }
    if is_up(&states) { Ok(()) } else { Err(Failure::Reported.into()) }
}

/// Whether a unit runs or waits for connections, and none failed.
fn is_up(states: &[UnitState]) -> bool {
    states.iter().any(|unit| unit.active) && !states.iter().any(|unit| unit.failed)
}

fn restart() -> Result<()> {
    let manager = service::manager()?;
    service::expect_installed(manager.as_ref())?;
    manager.check()?;
    manager.restart()?;
    output::status("the service was restarted; `izwi status` shows when its models are loaded");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unit(active: bool, failed: bool) -> UnitState {
        UnitState { file: "u".into(), state: String::new(), active, failed }
    }

    #[test]
    fn a_service_is_up_if_a_unit_is_and_none_failed() {
        assert!(is_up(&[unit(true, false)]));
        assert!(is_up(&[unit(false, false), unit(true, false)]), "a socket waits for connections");
        assert!(!is_up(&[unit(false, true), unit(true, false)]));
        assert!(!is_up(&[unit(false, false)]) && !is_up(&[]));
    }

    #[test]
    fn the_listing_names_each_file() {
        let file = |path: &str, text: &str| ServiceFile { path: path.into(), text: text.to_owned() };
        assert_eq!(listing(&[file("/a", "x\n"), file("/b", "y\n")]), "==> /a\nx\n\n==> /b\ny\n");
    }
}
