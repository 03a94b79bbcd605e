//! The desktops of Linux and its relatives: X11, and Wayland by a program.

use std::sync::Arc;

use anyhow::Result;

use super::wayland::Wtype;
use super::x11::{self, Display};
use super::{Window, wayland};
use crate::failure;

/// A connection to the desktop.
#[derive(Debug, Clone)]
pub(crate) enum Desktop {
    X11(Arc<Display>),
    Wayland(Wtype),
}

/// Types text.
#[derive(Debug)]
pub(crate) enum Keyboard {
    X11(x11::Keyboard),
    Wayland(Wtype),
}

impl Desktop {
    /// Connects to the desktop of this session.
    ///
    /// # Errors
    /// There is none, or programs cannot type there.
    pub(crate) fn open() -> Result<Self> {
        if wayland::is_session() {
            return Wtype::find().map(Self::Wayland);
        }
        Ok(Self::X11(Arc::new(Display::open()?)))
    }

    /// Whether hotkeys can be taken here.
    ///
    /// # Errors
    /// They cannot; the message tells the remedy.
    pub(crate) fn check_hotkeys(&self) -> Result<()> {
        match self {
            Self::X11(_) => Ok(()),
            Self::Wayland(_) => Err(failure::with_help(
                "--hotkey: no program can take a hotkey on Wayland",
                "give --wait instead, and bind the command `izwi dictate --toggle` to keys in the settings of the desktop",
            )),
        }
    }

    /// The window that has the focus, if one has.
    pub(crate) fn focus(&self) -> Option<Window> {
        match self {
            Self::X11(display) => display.focus().ok().flatten().map(|window| Window(window.into())),
            Self::Wayland(_) => Some(Window(0)),
        }
    }

    /// The names of a window's program; none if it does not tell.
    pub(crate) fn names(&self, window: Window) -> Vec<String> {
        match (self, u32::try_from(window.0)) {
            (Self::X11(display), Ok(window)) => display.class(window).unwrap_or_default(),
            _ => Vec::new(),
        }
    }

    /// A keyboard that types into what has the focus.
    pub(crate) fn keyboard(&self) -> Result<Keyboard> {
        Ok(match self {
            Self::X11(display) => Keyboard::X11(x11::Keyboard::new(Arc::clone(display))),
            Self::Wayland(program) => Keyboard::Wayland(program.clone()),
        })
    }
}

/// Runs `work`, where others take the events of the system meanwhile.
pub(crate) fn with_events<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    work()
}

impl Keyboard {
    /// Whether the user holds no key, which could turn text into commands.
    ///
    /// # Errors
    /// The connection to the desktop is lost.
    pub(crate) fn is_free(&mut self) -> Result<bool> {
        match self {
            Self::X11(keyboard) => keyboard.is_free(),
            // Its keyboard has modifiers of its own.
            Self::Wayland(_) => Ok(true),
        }
    }

    /// Types the beginning of a text, and returns how many bytes of it; 0 if it only prepared the next ones.
    ///
    /// # Errors
    /// The connection to the desktop is lost, or a character cannot be typed.
    pub(crate) async fn write(&mut self, text: &str) -> Result<usize> {
        match self {
            Self::X11(keyboard) => keyboard.write(text).await,
            Self::Wayland(program) => program.write(text).await,
        }
    }

    /// Waits until programs have taken what was typed.
    pub(crate) async fn settle(&mut self) {
        if let Self::X11(keyboard) = self {
            keyboard.settle().await;
        }
    }
}
