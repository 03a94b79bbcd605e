//! The desktop of the user: the window that has the focus, text that is typed into it, hotkeys, the selected text, and an icon
//! in the tray.
//!
//! Knows no speech. Nothing here touches the clipboard but to read it.

mod hotkey;
#[cfg(any(target_os = "macos", windows))]
#[path = "native.rs"]
mod platform;
#[cfg(not(any(target_os = "macos", windows)))]
#[path = "unix.rs"]
mod platform;
mod selection;
pub(crate) mod tray;
#[cfg(not(any(target_os = "macos", windows)))]
mod wayland;
#[cfg(not(any(target_os = "macos", windows)))]
mod x11;

pub(crate) use hotkey::Hotkey;
pub(crate) use platform::{Desktop, Keyboard, with_events};
pub(crate) use selection::{clipboard_text, selected_text};

/// What has the focus: a window of X11, a program of macOS; on Wayland, which tells it to nobody, always the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Window(u64);
