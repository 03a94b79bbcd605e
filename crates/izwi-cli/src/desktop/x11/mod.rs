//! The X server: the window that has the focus, and its program.

mod keyboard;
mod layout;

use anyhow::{Context as _, Result};
use x11rb::connection::Connection as _;
use x11rb::protocol::xproto::{Atom, AtomEnum, ConnectionExt as _, Window};
use x11rb::protocol::xtest::ConnectionExt as _;
use x11rb::rust_connection::RustConnection;

pub(crate) use self::keyboard::Keyboard;
use crate::failure;

/// Windows between one that has the focus and the one with the name of the program.
const MAX_DEPTH: usize = 16;
/// Longest name of a program, in words of four bytes.
const MAX_CLASS_WORDS: u32 = 256;
/// Windows are larger: 0 is none, 1 the one under the pointer.
const POINTER_ROOT: Window = 1;

const LOST: &str = "the connection to the X server is lost";

/// A connection to the X server.
#[derive(Debug)]
pub(crate) struct Display {
    connection: RustConnection,
    root: Window,
    active_window: Atom,
}

impl Display {
    /// Connects to the server that `DISPLAY` names.
    ///
    /// # Errors
    /// There is none, or it has no extension for typing.
    pub(super) fn open() -> Result<Self> {
        let name = std::env::var("DISPLAY").unwrap_or_default();
        if name.is_empty() {
            return Err(failure::with_help(
                "there is no desktop: DISPLAY and WAYLAND_DISPLAY are not set",
                "run this command in a graphical session",
            ));
        }
        let (connection, screen) = RustConnection::connect(None).map_err(|error| {
            failure::with_help(
                format!("cannot connect to the X server '{name}' of DISPLAY: {error}"),
                "check that it runs, and run this command as the user of the session",
            )
        })?;
        let root = connection.setup().roots.get(screen).context("the X server has no screen")?.root;
        let has_test = connection.xtest_get_version(2, 2)?.reply();
        has_test.map_err(|error| {
            failure::with_help(
                format!("the X server '{name}' has no extension XTEST: {error}"),
                "turn it on there: nothing can be typed without it",
            )
        })?;
        let active_window = connection.intern_atom(false, b"_NET_ACTIVE_WINDOW")?.reply().context(LOST)?.atom;
        Ok(Self { connection, root, active_window })
    }

    /// The window that has the focus: the one that the window manager tells, which menus and the like do not change, or
    /// else the server.
    pub(super) fn focus(&self) -> Result<Option<Window>> {
        let active =
            self.connection.get_property(false, self.root, self.active_window, AtomEnum::WINDOW, 0, 1)?;
        let active = active.reply().context(LOST)?.value32().and_then(|mut windows| windows.next());
        let window = match active {
            Some(window) if window > POINTER_ROOT => window,
            _ => self.connection.get_input_focus()?.reply().context(LOST)?.focus,
        };
        Ok((window > POINTER_ROOT).then_some(window))
    }

    /// The instance and the class of a window, or of the one around it that has them.
    pub(super) fn class(&self, window: Window) -> Result<Vec<String>> {
        let mut window = window;
        for _ in 0..MAX_DEPTH {
            let (kind, name) = (AtomEnum::STRING, AtomEnum::WM_CLASS);
            let class = self.connection.get_property(false, window, name, kind, 0, MAX_CLASS_WORDS)?;
            let class = class.reply().context(LOST)?.value;
            if !class.is_empty() {
                let names = class.split(|&byte| byte == 0).filter(|name| !name.is_empty());
                return Ok(names.map(|name| String::from_utf8_lossy(name).into_owned()).collect());
            }
            let tree = self.connection.query_tree(window)?.reply().context(LOST)?;
            if tree.parent == x11rb::NONE {
                break;
            }
            window = tree.parent;
        }
        Ok(Vec::new())
    }
}
