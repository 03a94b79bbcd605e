//! What begins and ends a dictation: a hotkey, `izwi dictate --toggle`, and lines of standard input.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::Result;
use tokio::sync::mpsc;

use super::Args;
use crate::control::{self, Control, DICTATE};
use crate::desktop::{Desktop, Hotkey};
use crate::failure;
use crate::interrupt::Interrupt;
use crate::sound::read_in_background;

/// A hotkey, if one is given, and other commands.
#[derive(Debug)]
pub(super) struct Trigger {
    hotkey: Option<Hotkey>,
    control: Control,
    lines: Option<Lines>,
    /// Whether the hotkey is held while somebody speaks.
    is_held: bool,
    /// What the user is told to do.
    hint: String,
}

impl Trigger {
    /// What `--hotkey` and `--wait` ask for; `None` if neither is given.
    ///
    /// # Errors
    /// The hotkey is none or taken, or another dictation waits.
    pub(super) fn new(args: &Args, desktop: &Desktop, home: &Path) -> Result<Option<Self>> {
        if args.hotkey.is_none() && !args.wait {
            return Ok(None);
        }
        if args.hotkey.is_some() {
            desktop.check_hotkeys()?;
        }
        let hotkey = args.hotkey.as_deref().map(Hotkey::take).transpose()?;
        let control = Control::listen(home, DICTATE)?.ok_or_else(|| {
            failure::with_help(
                "another `izwi dictate --type` waits already",
                "use that one, or end it with Ctrl-C in its terminal",
            )
        })?;
        let hint = match (&args.hotkey, args.hold) {
            (Some(keys), true) => format!("hold {keys} to dictate"),
            (Some(keys), false) => format!("press {keys} to begin and to end a dictation"),
            (None, _) => "`izwi dictate --toggle` begins and ends a dictation".to_owned(),
        };
        let lines = args.follow.then(Lines::open);
        Ok(Some(Self { hotkey, control, lines, is_held: args.hold, hint }))
    }

    /// Waits for the begin of a dictation. False at the end of the lines instead.
    async fn begin(&mut self) -> bool {
        loop {
            tokio::select! {
                is_pressed = next(&mut self.hotkey) => if is_pressed { return true },
                () = self.control.next() => return true,
                is_line = next_line(&mut self.lines) => return is_line,
            }
        }
    }

    /// Waits for the end of a dictation. False at the end of the lines.
    async fn end(&mut self) -> bool {
        loop {
            tokio::select! {
                is_pressed = next(&mut self.hotkey) => if is_pressed != self.is_held { return true },
                () = self.control.next() => return true,
                is_line = next_line(&mut self.lines) => return is_line,
            }
        }
    }
}

/// Lines of standard input.
#[derive(Debug)]
struct Lines {
    bytes: mpsc::Receiver<io::Result<Vec<u8>>>,
    /// Lines that were read and not taken.
    waiting: usize,
    is_over: bool,
}

impl Lines {
    fn open() -> Self {
        Self { bytes: read_in_background(io::stdin()), waiting: 0, is_over: false }
    }

    /// Waits for a line. False, once, at the end of them. Loses none if the future is dropped.
    async fn next(&mut self) -> bool {
        while self.waiting == 0 {
            if self.is_over {
                return std::future::pending().await;
            }
            match self.bytes.recv().await {
                Some(Ok(bytes)) => self.waiting += bytes.iter().filter(|byte| **byte == b'\n').count(),
                Some(Err(_)) | None => {
                    self.is_over = true;
                    return false;
                }
            }
        }
        self.waiting -= 1;
        true
    }
}

async fn next_line(lines: &mut Option<Lines>) -> bool {
    match lines {
        Some(lines) => lines.next().await,
        None => std::future::pending().await,
    }
}

async fn next(hotkey: &mut Option<Hotkey>) -> bool {
    match hotkey {
        Some(hotkey) => hotkey.next().await,
        None => std::future::pending().await,
    }
}

/// Begins or ends the dictation of a command that waits.
///
/// # Errors
/// None waits.
pub(super) fn toggle(home: &Path) -> Result<()> {
    if control::tell(home, DICTATE)? {
        return Ok(());
    }
    Err(failure::with_help(
        "no `izwi dictate --type` waits for --toggle",
        "start one first: `izwi dictate --type --wait`, or with --hotkey",
    ))
}

/// What ends a dictation: a signal, which ends the command too, and the trigger.
#[derive(Debug)]
pub(super) struct Stop {
    interrupt: Interrupt,
    trigger: Option<Trigger>,
    /// Signals that came.
    signals: u8,
}

impl Stop {
    pub(super) fn new(interrupt: Interrupt, trigger: Option<Trigger>) -> Self {
        Self { interrupt, trigger, signals: 0 }
    }

    /// What the user is told to do; `None` where the dictation begins at once.
    pub(super) fn hint(&self) -> Option<&str> {
        self.trigger.as_ref().map(|trigger| trigger.hint.as_str())
    }

    /// Tells at any time whether the hotkey is held; `None` without one.
    pub(super) fn is_down(&self) -> Option<Arc<AtomicBool>> {
        self.trigger.as_ref()?.hotkey.as_ref().map(Hotkey::is_down)
    }

    /// Whether a signal came.
    pub(super) fn is_interrupted(&self) -> bool {
        self.signals > 0
    }

    /// Whether a signal ends the command at once: nothing is said yet, or what was said is not waited for any more. The
    /// first one after the trigger has ended a dictation waits for it.
    pub(super) fn leaves(&self, is_ended: bool, is_speaking: bool) -> bool {
        let patience = u8::from(is_ended && self.trigger.is_some());
        self.signals > patience && (is_ended || !is_speaking)
    }

    /// Waits for the begin of a dictation. False for a signal instead.
    pub(super) async fn begin(&mut self) -> bool {
        let Some(trigger) = &mut self.trigger else { return true };
        tokio::select! {
            begins = trigger.begin() => begins,
            () = self.interrupt.requested() => false,
        }
    }

    /// Waits for a signal, and, while somebody speaks, for the end of that.
    pub(super) async fn requested(&mut self, is_speaking: bool) {
        let Some(trigger) = self.trigger.as_mut().filter(|_| is_speaking) else {
            return self.interrupted().await;
        };
        // The end of the lines ends the command, as a signal does.
        let is_signal = tokio::select! {
            goes_on = trigger.end() => !goes_on,
            () = self.interrupt.requested() => true,
        };
        self.signals = self.signals.saturating_add(u8::from(is_signal));
    }

    /// Waits for a signal.
    pub(super) async fn interrupted(&mut self) {
        self.interrupt.requested().await;
        self.signals = self.signals.saturating_add(1);
    }
}
