//! `izwi tray`: an icon on the desktop, for the server, dictation and reading aloud.
//!
//! The work is done by other commands of this program, each in a process of its own; the icon shows what they tell.

mod child;
mod choices;
mod server;
mod state;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde::Deserialize;
use tokio::process::Command;
use tokio::sync::{Notify, mpsc};
use tokio::time::{Instant, sleep_until, timeout};

use self::child::{Child, Event, Job};
use self::choices::Choices;
use self::server::Seen;
use self::state::{Click, Dictation, Server, State};
use crate::control::{self, Control, SPEAK_SELECTION, TRAY};
use crate::desktop::Hotkey;
use crate::desktop::tray::{Tray, View, with_tray};
use crate::interrupt::Interrupt;
use crate::running_server::RunningServer;
use crate::settings::Resolved;
use crate::sound::Microphone;
use crate::web_socket::Place;
use crate::{engine, failure, logging, output, service};

/// Events that may wait.
const MAX_WAITING: usize = 256;
/// Time in which a started server answers; one that pulls its model first answers before it has it.
const START: Duration = Duration::from_secs(60);
/// Time in which processes end, after what was said is typed and open requests are answered.
const END: Duration = Duration::from_secs(15);

/// Show an icon on the desktop, with a menu
///
/// The menu shows whether the server runs and what it has loaded, and starts it; begins and ends dictation at the cursor, as
/// `izwi dictate --type` does; reads the selection or the clipboard aloud; opens the web page; and chooses voice and models. The
/// icon is red while the microphone is open. Speech is that of the server on the configured host and port. The command runs
/// until its menu, Ctrl-C or the session ends it; `izwi service install --tray` starts it with each session.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Keys that begin and end a dictation whatever has the focus, such as ctrl+alt+space or f9
    #[arg(long, value_name = "KEYS")]
    hotkey: Option<String>,
    /// Dictate while the hotkey is held; the text comes when it is released
    #[arg(long, requires = "hotkey")]
    hold: bool,
    /// Wait for a panel that shows the icon, instead of failing where there is none: for the start of a session
    #[arg(long)]
    wait: bool,
}

pub(crate) fn run(args: &Args, config: Option<&Path>, resolved: &Resolved) -> Result<()> {
    logging::begin(&resolved.settings, "error");
    args.hotkey.as_deref().map(Hotkey::check).transpose()?;
    let settings = &resolved.settings;
    let url = RunningServer::at(&settings.server)?.url;
    let place = Place::of(&url, settings.server.config.api_key.clone())?;
    let home = settings.home.clone();
    let control = Control::listen(&home, TRAY)?.ok_or_else(|| {
        failure::with_help(
            "another `izwi tray` of this user runs already",
            "use its icon, or end it by Quit in its menu",
        )
    })?;
    let state = State {
        url,
        server: Server::Unknown,
        is_own: false,
        microphone: Microphone::default_description(),
        dictation: Dictation::Down,
        is_reading: false,
        choices: Choices::load(&home),
        problem: None,
    };
    let commands = Commands {
        program: std::env::current_exe().context("the path of this program is unknown")?,
        config: config.map(std::path::absolute).transpose().context("the path of --config is unknown")?,
        host: settings.server.host.clone(),
        port: settings.server.port,
        hotkey: args.hotkey.clone(),
        hold: args.hold,
    };
    let runtime = engine::runtime()?;
    let result = with_tray(args.wait, |tray, clicks| {
        let (events, happened) = mpsc::channel(MAX_WAITING);
        let app = App {
            commands,
            home,
            tray,
            shown: None,
            state,
            events,
            now: Arc::default(),
            dictation: None,
            dictation_model: None,
            wants_dictation: false,
            server: None,
            started: None,
        };
        runtime.block_on(app.run(place, Inputs { clicks, happened, control }))
    });
    runtime.shutdown_background();
    result
}

/// How the commands of this program are called.
#[derive(Debug)]
struct Commands {
    program: PathBuf,
    config: Option<PathBuf>,
    host: String,
    port: u16,
    hotkey: Option<String>,
    hold: bool,
}

impl Commands {
    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        if let Some(config) = &self.config {
            command.arg("--config").arg(config);
        }
        command.args(arguments);
        command
    }

    /// A command with the address of the server.
    fn addressed(&self, name: &str) -> Command {
        self.command(&[name, "--host", &self.host, "--port", &self.port.to_string()])
    }

    fn dictate(&self, url: &str, model: Option<&str>) -> Command {
        let mut command = self.command(&["dictate", "--type", "--follow", "--json", "--server", url]);
        match &self.hotkey {
            Some(keys) => command.args(["--hotkey", keys]),
            None => command.arg("--wait"),
        };
        command.args(self.hold.then_some("--hold"));
        command.args(model.into_iter().flat_map(|model| ["--model", model]));
        command
    }

    fn speak(&self, state: &State, is_clipboard: bool) -> Command {
        let mut command = self.command(&["speak-selection", "--json", "--server", &state.url]);
        command.args(is_clipboard.then_some("--clipboard"));
        command.args(state.speech_model().into_iter().flat_map(|model| ["--model", model]));
        command.args(state.voice().into_iter().flat_map(|voice| ["--voice", voice]));
        command
    }
}

/// What the icon hears.
struct Inputs {
    clicks: mpsc::Receiver<Click>,
    happened: mpsc::Receiver<Event>,
    control: Control,
}

/// The icon and the processes behind it.
struct App {
    commands: Commands,
    home: PathBuf,
    tray: Tray<Click>,
    shown: Option<View<Click>>,
    state: State,
    events: mpsc::Sender<Event>,
    /// Notified when the server is to be asked at once.
    now: Arc<Notify>,
    /// The dictation that waits or runs, and its model.
    dictation: Option<Child>,
    dictation_model: Option<String>,
    /// Whether a dictation begins as soon as one waits.
    wants_dictation: bool,
    /// The server that this program has started.
    server: Option<Child>,
    /// When a server was started that has not answered yet.
    started: Option<Instant>,
}

/// A line of `izwi dictate --json`.
#[derive(Deserialize)]
struct Line {
    #[serde(rename = "type")]
    kind: String,
    name: Option<String>,
    message: Option<String>,
}

impl App {
    /// Shows the icon until it is quit, a signal comes, or the session ends.
    async fn run(mut self, place: Place, mut inputs: Inputs) -> Result<()> {
        let mut interrupt = Interrupt::listen()?;
        self.show().await?;
        let client = izwi_remote::plain_client().context("cannot make a client of HTTP")?;
        let (told, mut seen) = mpsc::channel(1);
        tokio::spawn(server::watch(place, client, Arc::clone(&self.now), told));
        self.start_dictation();
        loop {
            self.show().await?;
            tokio::select! {
                Some(click) = inputs.clicks.recv() => if self.click(click).await {
                    break;
                },
                Some(event) = inputs.happened.recv() => self.take(event).await,
                Some(seen) = seen.recv() => self.see(seen),
                // Another command that looks whether one runs.
                () = inputs.control.next() => {}
                () = until(self.started) => self.give_up(),
                () = self.tray.ended() => break,
                () = interrupt.requested() => break,
            }
        }
        self.end(&mut inputs.happened, &mut interrupt).await
    }

    async fn show(&mut self) -> Result<()> {
        let view = self.state.view();
        if self.shown.as_ref() != Some(&view) {
            self.tray.show(view.clone()).await?;
            self.shown = Some(view);
        }
        Ok(())
    }

    /// Tells what failed, in the menu and beside it.
    fn fail(&mut self, problem: impl Into<String>) {
        let problem = problem.into();
        self.tray.tell(&problem);
        self.state.problem = Some(problem);
    }

    /// Does what was clicked. True to quit.
    async fn click(&mut self, click: Click) -> bool {
        self.state.problem = None;
        match click {
            Click::Quit => return true,
            Click::Dictate => self.toggle_dictation().await,
            Click::ReadSelection => self.read(false),
            Click::ReadClipboard => self.read(true),
            Click::StopReading => {
                if let Err(error) = control::tell(&self.home, SPEAK_SELECTION) {
                    self.fail(format!("{error:#}"));
                }
            }
            Click::StartServer => self.start_server(),
            Click::StopServer => {
                if let Some(server) = &self.server {
                    server.terminate();
                }
            }
            Click::OpenPage => {
                let command = self.commands.addressed("open");
                self.start(Job::Other, command);
            }
            Click::SpeechModel(model) => self.choose(|choices| choices.speech_model = model),
            Click::Voice(voice) => self.choose(|choices| choices.voice = voice),
            Click::DictationModel(model) => self.choose(|choices| choices.dictation_model = model),
        }
        false
    }

    fn choose(&mut self, change: impl FnOnce(&mut Choices)) {
        change(&mut self.state.choices);
        if let Err(error) = self.state.choices.keep(&self.home) {
            self.fail(format!("{error:#}"));
        }
        self.renew_dictation();
    }

    /// Starts a process, or tells why not.
    fn start(&mut self, job: Job, command: Command) -> Option<Child> {
        match Child::start(job, command, &self.events) {
            Ok(child) => Some(child),
            Err(error) => {
                self.fail(format!("{error:#}"));
                None
            }
        }
    }

    fn start_dictation(&mut self) {
        self.dictation_model = self.state.dictation_model().map(str::to_owned);
        let command = self.commands.dictate(&self.state.url, self.dictation_model.as_deref());
        self.dictation = self.start(Job::Dictation, command);
    }

    /// Ends a dictation that waits with another model than the chosen one; the next one starts when it has ended.
    fn renew_dictation(&mut self) {
        let is_other = self.dictation_model.as_deref() != self.state.dictation_model();
        if is_other
            && self.state.dictation == Dictation::Waiting
            && let Some(dictation) = &mut self.dictation
        {
            self.state.dictation = Dictation::Down;
            dictation.end_input();
        }
    }

    async fn toggle_dictation(&mut self) {
        match (self.state.dictation, &mut self.dictation) {
            (Dictation::Down, None) => {
                self.wants_dictation = true;
                self.start_dictation();
            }
            (Dictation::Down, Some(_)) => self.wants_dictation = true,
            (Dictation::Waiting, Some(dictation)) => {
                dictation.send_line().await;
                self.state.dictation = Dictation::Beginning;
            }
            (Dictation::Beginning | Dictation::Listening, Some(dictation)) => dictation.send_line().await,
            (Dictation::Ending, _) | (_, None) => {}
        }
    }

    fn read(&mut self, is_clipboard: bool) {
        if !self.state.is_reading {
            let command = self.commands.speak(&self.state, is_clipboard);
            self.state.is_reading = self.start(Job::Reading, command).is_some();
        }
    }

    /// Starts the service, where it is installed, or else a server that ends with this program.
    fn start_server(&mut self) {
        let is_installed =
            service::manager().is_ok_and(|manager| !service::installed(manager.as_ref()).is_empty());
        let begun = if is_installed {
            let command = self.commands.command(&["service", "restart"]);
            self.start(Job::Service, command).is_some()
        } else {
            let command = self.commands.addressed("serve");
            self.server = self.start(Job::Server, command);
            self.server.is_some()
        };
        if begun {
            (self.state.server, self.started) = (Server::Starting, Some(Instant::now() + START));
            self.state.is_own = self.server.is_some();
        }
    }

    /// A server that was started has not answered in time.
    fn give_up(&mut self) {
        self.started = None;
        self.state.server = Server::Off;
        self.fail("the server was started, and does not answer");
    }

    /// Takes what the server told; `None` if none answers.
    fn see(&mut self, seen: Option<Seen>) {
        match seen {
            Some(seen) => (self.state.server, self.started) = (Server::On(seen), None),
            None if self.started.is_some() => {}
            None => self.state.server = Server::Off,
        }
        self.renew_dictation();
    }

    async fn take(&mut self, event: Event) {
        match event {
            Event::Printed(Job::Dictation, line) => self.take_line(&line).await,
            Event::Printed(..) => {}
            Event::Told(job, line) => {
                output::status(&line);
                if job == Job::Server && line.starts_with("izwi serves on") {
                    self.now.notify_one();
                }
                let is_text = job == Job::Dictation && line.starts_with("not typed");
                if let Some(problem) = line.strip_prefix("error: ").or(is_text.then_some(line.as_str())) {
                    self.fail(problem);
                }
            }
            Event::Ended { job, is_failed } => self.ended(job, is_failed),
        }
    }

    /// Takes a line of the dictation.
    async fn take_line(&mut self, line: &str) {
        let Ok(Line { kind, name, message }) = serde_json::from_str(line) else { return };
        match kind.as_str() {
            "waiting" => {
                self.state.dictation = Dictation::Waiting;
                self.renew_dictation();
                if self.state.dictation == Dictation::Waiting && std::mem::take(&mut self.wants_dictation) {
                    self.toggle_dictation().await;
                }
            }
            "microphone.opened" => {
                self.state.dictation = Dictation::Listening;
                self.state.microphone = name;
            }
            "microphone.closed" => self.state.dictation = Dictation::Ending,
            "error" => self.fail(message.unwrap_or_else(|| "the dictation failed".to_owned())),
            _ => {}
        }
    }

    fn ended(&mut self, job: Job, is_failed: bool) {
        match job {
            Job::Dictation => {
                self.dictation = None;
                self.state.dictation = Dictation::Down;
                // One that ended by itself is started by the next click alone.
                if !is_failed {
                    self.start_dictation();
                }
                self.wants_dictation &= !is_failed;
            }
            Job::Reading => self.state.is_reading = false,
            Job::Server => {
                (self.server, self.started, self.state.is_own) = (None, None, false);
                self.state.server = Server::Off;
                self.now.notify_one();
            }
            Job::Service => {
                if is_failed {
                    (self.state.server, self.started) = (Server::Off, None);
                }
                self.now.notify_one();
            }
            Job::Other => {}
        }
    }

    /// Ends the processes: what was said is still typed. A further signal ends them at once.
    async fn end(mut self, happened: &mut mpsc::Receiver<Event>, interrupt: &mut Interrupt) -> Result<()> {
        if let Some(dictation) = &mut self.dictation {
            dictation.end_input();
        }
        if self.state.is_reading {
            control::tell(&self.home, SPEAK_SELECTION)?;
        }
        if let Some(server) = &self.server {
            server.terminate();
        }
        let (mut is_dictating, mut is_reading, mut is_serving) =
            (self.dictation.is_some(), self.state.is_reading, self.server.is_some());
        let ending = async {
            while is_dictating || is_reading || is_serving {
                match happened.recv().await {
                    Some(Event::Ended { job: Job::Dictation, .. }) => is_dictating = false,
                    Some(Event::Ended { job: Job::Reading, .. }) => is_reading = false,
                    Some(Event::Ended { job: Job::Server, .. }) => is_serving = false,
                    Some(Event::Told(_, line)) => output::status(&line),
                    Some(_) => {}
                    None => break,
                }
            }
        };
        tokio::select! {
            _ = timeout(END, ending) => {}
            () = interrupt.requested() => {}
        }
        Ok(())
    }
}

/// Waits for a time; for ever without one.
async fn until(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time).await,
        None => std::future::pending().await,
    }
}
