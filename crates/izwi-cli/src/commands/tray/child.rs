//! The commands of this program that do the work of the icon, each a process of its own.

use std::process::Stdio;

use anyhow::{Context as _, Result};
use sysinfo::{Pid, ProcessRefreshKind, ProcessesToUpdate, Signal, System};
use tokio::io::{AsyncBufReadExt as _, AsyncRead, AsyncWriteExt as _, BufReader};
use tokio::process::{ChildStdin, Command};
use tokio::sync::mpsc;

use crate::output;

/// What a process does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Job {
    Dictation,
    Reading,
    Server,
    /// `izwi service restart`.
    Service,
    /// What ends soon, and is not waited for.
    Other,
}

/// What happens to a process.
#[derive(Debug)]
pub(super) enum Event {
    /// A line of standard output.
    Printed(Job, String),
    /// A line of standard error.
    Told(Job, String),
    /// It has ended; `is_failed` unless it succeeded.
    Ended { job: Job, is_failed: bool },
}

/// A process that runs. It is killed with the runtime.
#[derive(Debug)]
pub(super) struct Child {
    process: Option<u32>,
    stdin: Option<ChildStdin>,
}

impl Child {
    /// Starts a process.
    ///
    /// # Errors
    /// It does not start.
    pub(super) fn start(job: Job, mut command: Command, events: &mpsc::Sender<Event>) -> Result<Self> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().context("this program cannot be started again")?;
        let (process, stdin) = (child.id(), child.stdin.take());
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        let events = events.clone();
        tokio::spawn(async move {
            let printed = pass_on(stdout, |line| Event::Printed(job, line), &events);
            let told = pass_on(stderr, |line| Event::Told(job, line), &events);
            tokio::join!(printed, told);
            let is_failed = !child.wait().await.is_ok_and(|status| status.success());
            // Nobody is left to tell it to.
            let _ = events.send(Event::Ended { job, is_failed }).await;
        });
        Ok(Self { process, stdin })
    }

    /// Sends a line. One that has ended does not read it.
    pub(super) async fn send_line(&mut self) {
        if let Some(stdin) = &mut self.stdin {
            let _ = stdin.write_all(b"\n").await;
        }
    }

    /// Ends its standard input.
    pub(super) fn end_input(&mut self) {
        self.stdin = None;
    }

    /// Asks it to end.
    pub(super) fn terminate(&self) {
        let Some(process) = self.process.map(Pid::from_u32) else { return };
        let Ok(mut system) = System::new() else { return };
        let only = ProcessesToUpdate::Some(&[process]);
        system.refresh_processes_specifics(only, true, ProcessRefreshKind::nothing());
        if let Some(found) = system.process(process)
            && found.kill_with(Signal::Term).is_none()
        {
            // A system without signals.
            found.kill();
        }
    }
}

async fn pass_on(
    output: Option<impl AsyncRead + Unpin>,
    event: impl Fn(String) -> Event,
    events: &mpsc::Sender<Event>,
) {
    let Some(output) = output else { return };
    let mut lines = BufReader::new(output).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        if events.send(event(output::printable(&line).into_owned())).await.is_err() {
            return;
        }
    }
}
