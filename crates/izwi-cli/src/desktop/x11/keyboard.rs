//! A keyboard of the X server that writes any text.
//!
//! A character that the layout has is written with its key. For the others, keys that give nothing get one each, until the end:
//! programs read the keyboard anew after a change, and would read another character from a key that changes too soon.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use x11rb::connection::Connection as _;
use x11rb::protocol::Event;
use x11rb::protocol::xproto::{ConnectionExt as _, KEY_PRESS_EVENT, KEY_RELEASE_EVENT, KeyButMask};
use x11rb::protocol::xtest::ConnectionExt as _;
use x11rb::wrapper::ConnectionExt as _;
use xkeysym::key;

use super::layout::{Layout, Stroke, keysyms_of};
use super::{Display, LOST};
use crate::failure;

/// Pause after each character.
const PACE: Duration = Duration::from_millis(4);
/// Time that programs have to read the keyboard, or what was typed on it.
const SETTLE: Duration = Duration::from_millis(80);
/// Keys that turn a character into another one or into a command. Caps Lock and Num Lock are none.
const MODIFIERS: [KeyButMask; 6] = [
    KeyButMask::SHIFT,
    KeyButMask::CONTROL,
    KeyButMask::MOD1,
    KeyButMask::MOD3,
    KeyButMask::MOD4,
    KeyButMask::MOD5,
];
/// Where a state has the number of the active layout.
const GROUP_SHIFT: u16 = 13;

/// A keyboard. Dropping it gives back the keys that it took.
#[derive(Debug)]
pub(crate) struct Keyboard {
    display: Arc<Display>,
    /// `None` if it may have changed.
    layout: Option<Layout>,
    /// Keys that were unused, and what they write now.
    taken: Vec<(u8, [u32; 2])>,
}

/// What the state of the server says about the keyboard.
struct State {
    is_free: bool,
    caps_lock: bool,
    group: usize,
}

impl Keyboard {
    pub(in super::super) fn new(display: Arc<Display>) -> Self {
        Self { display, layout: None, taken: Vec::new() }
    }

    pub(in super::super) fn is_free(&self) -> Result<bool> {
        Ok(self.state()?.is_free)
    }

    /// Types one character, or takes keys for the next ones and returns 0.
    pub(in super::super) async fn write(&mut self, text: &str) -> Result<usize> {
        let Some(c) = text.chars().next() else { return Ok(0) };
        // Only an end of line is obeyed; a tab could leave the field.
        let shown = if c.is_control() && c != '\n' { ' ' } else { c };
        let State { caps_lock, group, .. } = self.state()?;
        let layout = self.layout()?;
        let Some(stroke) = layout.stroke(shown, group, caps_lock) else {
            self.take_keys(text, group).await?;
            return Ok(0);
        };
        let shift = layout.keycode(key::Shift_L).context("the keyboard has no key Shift")?;
        // Nothing comes between the look at the keys and the stroke.
        self.display.connection.grab_server()?;
        let is_free = self.is_free();
        let pressed = if matches!(is_free, Ok(true)) { self.press(stroke, shift) } else { Ok(()) };
        self.display.connection.ungrab_server()?;
        self.display.connection.flush().context(LOST)?;
        pressed?;
        if !is_free? {
            return Ok(0);
        }
        tokio::time::sleep(PACE).await;
        Ok(c.len_utf8())
    }

    pub(in super::super) async fn settle(&self) {
        tokio::time::sleep(SETTLE).await;
    }

    fn state(&self) -> Result<State> {
        let pointer = self.display.connection.query_pointer(self.display.root)?;
        let keys = self.display.connection.query_keymap()?;
        let (pointer, keys) = (pointer.reply().context(LOST)?, keys.reply().context(LOST)?.keys);
        let (state, bits) = (pointer.mask, u16::from(pointer.mask));
        Ok(State {
            // While a hotkey is held, its program would get the text.
            is_free: keys.iter().all(|&keys| keys == 0)
                && !MODIFIERS.into_iter().any(|modifier| state.contains(modifier)),
            caps_lock: state.contains(KeyButMask::LOCK),
            group: usize::from(bits >> GROUP_SHIFT & 0b11),
        })
    }

    fn layout(&mut self) -> Result<&Layout> {
        while let Some(event) = self.display.connection.poll_for_event().context(LOST)? {
            if matches!(event, Event::MappingNotify(_)) {
                self.layout = None;
            }
        }
        let layout = match self.layout.take() {
            Some(layout) => layout,
            None => read_layout(&self.display)?,
        };
        Ok(self.layout.insert(layout))
    }

    /// Presses and releases a key. The caller sends all of it at once: no modifier stays pressed whenever the process ends.
    fn press(&self, Stroke { keycode, shift }: Stroke, shift_keycode: u8) -> Result<()> {
        let (down, up) = (KEY_PRESS_EVENT, KEY_RELEASE_EVENT);
        let events: &[(u8, u8)] = if shift {
            &[(down, shift_keycode), (down, keycode), (up, keycode), (up, shift_keycode)]
        } else {
            &[(down, keycode), (up, keycode)]
        };
        for &(kind, keycode) in events {
            self.display.connection.xtest_fake_input(kind, keycode, 0, self.display.root, 0, 0, 0)?;
        }
        Ok(())
    }

    /// Gives keys to the next characters of `text` that have none.
    async fn take_keys(&mut self, text: &str, group: usize) -> Result<()> {
        let layout = self.layout()?;
        let missing = text.chars().filter(|&c| !c.is_control() && layout.stroke(c, group, false).is_none());
        let mut wanted: Vec<[u32; 2]> = Vec::new();
        for keysyms in missing.map(keysyms_of) {
            if !wanted.contains(&keysyms) {
                wanted.push(keysyms);
            }
        }
        let mut keycodes = layout.unused();
        if keycodes.is_empty() {
            // What was typed with them is read first.
            self.settle().await;
            keycodes = self.taken.drain(..).map(|(keycode, _)| keycode).collect();
        }
        if keycodes.is_empty() {
            let c = text.chars().next().unwrap_or_default();
            return Err(failure::with_help(
                format!("'{c}' cannot be typed: no key of the keyboard is unused"),
                "choose a layout that has it, or fewer layouts",
            ));
        }
        self.bind(keycodes.into_iter().zip(wanted).collect())?;
        self.settle().await;
        Ok(())
    }

    /// Binds keys, neighbours in one request: each request makes all programs read the keyboard.
    fn bind(&mut self, keys: Vec<(u8, [u32; 2])>) -> Result<()> {
        for run in keys.chunk_by(|(one, _), (other, _)| one + 1 == *other) {
            let (Some((first, _)), Ok(count)) = (run.first(), u8::try_from(run.len())) else { continue };
            let keysyms: Vec<u32> = run.iter().flat_map(|(_, keysyms)| *keysyms).collect();
            self.display.connection.change_keyboard_mapping(count, *first, 2, &keysyms)?;
        }
        self.taken.extend(keys);
        self.layout = None;
        self.display.connection.sync().context(LOST)
    }
}

fn read_layout(display: &Display) -> Result<Layout> {
    let setup = display.connection.setup();
    let (first, last) = (setup.min_keycode, setup.max_keycode);
    let mapping = display.connection.get_keyboard_mapping(first, last - first + 1)?.reply().context(LOST)?;
    Ok(Layout {
        first_keycode: first,
        keysyms_per_keycode: mapping.keysyms_per_keycode.into(),
        keysyms: mapping.keysyms,
    })
}

impl Drop for Keyboard {
    fn drop(&mut self) {
        let taken = std::mem::take(&mut self.taken);
        let Ok(layout) = read_layout(&self.display) else { return };
        // A new layout may have given a key to somebody else.
        let is_ours =
            |(keycode, keysyms): &(u8, [u32; 2])| layout.keysyms(*keycode).starts_with(&keysyms[..1]);
        let free = taken.into_iter().filter(is_ours).map(|(keycode, _)| (keycode, [key::NoSymbol; 2]));
        // Without a server there is nothing to give back.
        let _ = self.bind(free.collect());
    }
}
