//! A hotkey, which this program hears whatever has the focus.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Result;
use global_hotkey::hotkey::{Code, HotKey, Modifiers};
use global_hotkey::{Error, GlobalHotKeyEvent, GlobalHotKeyManager, HotKeyState};
use izwi_types::excerpt;
use tokio::sync::mpsc;

use crate::failure;

/// Presses and releases that may wait.
const MAX_WAITING: usize = 64;
/// Keys that write nothing, beside those with numbers such as F9.
const SILENT: [&str; 12] = [
    "Pause",
    "ScrollLock",
    "PrintScreen",
    "Insert",
    "ContextMenu",
    "Help",
    "Convert",
    "NonConvert",
    "KanaMode",
    "Audio",
    "Media",
    "Launch",
];

/// A hotkey that is taken until it is dropped.
pub(crate) struct Hotkey {
    /// Gives the hotkey back.
    _manager: GlobalHotKeyManager,
    events: mpsc::Receiver<bool>,
    is_down: Arc<AtomicBool>,
}

impl fmt::Debug for Hotkey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hotkey").field("is_down", &self.is_down).finish_non_exhaustive()
    }
}

impl Hotkey {
    /// Refuses what [`Self::take`] refuses without a desktop.
    ///
    /// # Errors
    /// It is no hotkey, or would take a key away from writing.
    pub(crate) fn check(keys: &str) -> Result<()> {
        parse(keys).map(drop)
    }

    /// Takes a hotkey such as `ctrl+alt+space`.
    ///
    /// # Errors
    /// It is none, or would take a key away from writing, or another program has it.
    pub(crate) fn take(keys: &str) -> Result<Self> {
        let hotkey = parse(keys)?;
        let (sender, events) = mpsc::channel(MAX_WAITING);
        let is_down = Arc::new(AtomicBool::new(false));
        let down = Arc::clone(&is_down);
        let refused = |error: Error| {
            let help = "choose another --hotkey, or free it in that program; with --wait instead of a hotkey, `izwi dictate \
                 --toggle` begins and ends a dictation";
            match error {
                Error::AlreadyRegistered(_) => {
                    failure::with_help(format!("--hotkey {keys}: another program has this hotkey"), help)
                }
                error => failure::with_help(format!("--hotkey {keys}: {error}"), help),
            }
        };
        let manager = GlobalHotKeyManager::new().map_err(refused)?;
        GlobalHotKeyEvent::set_event_handler(Some(move |event: GlobalHotKeyEvent| {
            let is_pressed = event.state == HotKeyState::Pressed;
            down.store(is_pressed, Ordering::Relaxed);
            // Nobody presses a key that often without reading.
            let _ = sender.try_send(is_pressed);
        }));
        manager.register(hotkey).map_err(refused)?;
        Ok(Self { _manager: manager, events, is_down })
    }

    /// Whether it was pressed, and not released.
    pub(crate) async fn next(&mut self) -> bool {
        match self.events.recv().await {
            Some(is_pressed) => is_pressed,
            None => std::future::pending().await,
        }
    }

    /// Tells at any time whether it is held.
    pub(crate) fn is_down(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.is_down)
    }
}

/// Reads a hotkey.
///
/// # Errors
/// It is none, or a key that writes without Ctrl, Alt or Super.
fn parse(keys: &str) -> Result<HotKey> {
    let help = "write modifiers, then one key, such as ctrl+alt+space, super+d or f9";
    let hotkey: HotKey = keys
        .parse()
        .map_err(|_| failure::usage(format!("--hotkey '{}' is no hotkey", excerpt(keys)), help))?;
    let has_modifier = hotkey.mods.intersects(Modifiers::CONTROL | Modifiers::ALT | Modifiers::META);
    if !has_modifier && writes(hotkey.key) {
        let message = format!(
            "--hotkey '{}' has no Ctrl, Alt or Super: the key could no longer be used",
            excerpt(keys)
        );
        return Err(failure::usage(message, help));
    }
    Ok(hotkey)
}

/// Whether a key is one that a user writes or edits with.
fn writes(key: Code) -> bool {
    let name = key.to_string();
    let is_numbered = name.strip_prefix('F').is_some_and(|rest| rest.parse::<u8>().is_ok());
    !(is_numbered || SILENT.iter().any(|silent| name.starts_with(silent)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hotkeys_are_modifiers_and_a_key() {
        for good in ["ctrl+alt+space", "Super+D", "shift+F9", "f13", "pause", "AudioVolumeMute", "ctrl+,"] {
            assert!(parse(good).is_ok(), "{good}");
        }
        for (bad, told) in [
            ("", "is no hotkey"),
            ("ctrl+", "is no hotkey"),
            ("space+ctrl", "is no hotkey"),
            ("ctrl+alt+nothing", "'ctrl+alt+nothing' is no hotkey"),
            ("ctrl+alt", "is no hotkey"),
            ("space", "could no longer be used"),
            ("shift+a", "could no longer be used"),
            ("backspace", "could no longer be used"),
        ] {
            let error = parse(bad).unwrap_err().to_string();
            assert!(error.contains(told), "{bad}: {error}");
        }
    }
}
