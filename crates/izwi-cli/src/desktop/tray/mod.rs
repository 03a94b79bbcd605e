//! An icon in the tray of the desktop, with a menu.
//!
//! Shows a [`View`], and sends the click of an entry to who made it. Knows no meaning of a click.

#[cfg_attr(any(windows, not(feature = "tray")), allow(dead_code, reason = "such builds draw nothing"))]
mod icon;
#[cfg(all(target_os = "macos", feature = "tray"))]
#[path = "macos.rs"]
mod platform;
#[cfg(any(windows, not(feature = "tray")))]
#[path = "absent.rs"]
mod platform;
#[cfg(all(not(any(target_os = "macos", windows)), feature = "tray"))]
#[path = "unix.rs"]
mod platform;

pub(crate) use icon::Sign;
pub(crate) use platform::{Tray, with_tray};

/// The name of the program in the tray.
#[cfg_attr(any(windows, not(feature = "tray")), allow(dead_code, reason = "such builds draw nothing"))]
pub(crate) const TITLE: &str = "Izwi";
/// Clicks that may wait.
const MAX_CLICKS: usize = 16;

/// What an entry sends when it is clicked.
pub(crate) trait Click: Clone + PartialEq + Send + Sync + 'static {}

impl<T: Clone + PartialEq + Send + Sync + 'static> Click for T {}

/// What the icon and its menu show.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct View<C> {
    pub(crate) sign: Sign,
    /// What is shown beside the pointer over the icon.
    pub(crate) tip: String,
    /// What a middle click does, where the system has one.
    pub(crate) middle_click: Option<C>,
    pub(crate) entries: Vec<Entry<C>>,
}

/// A line of the menu.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Entry<C> {
    /// A line that tells something.
    Text(String),
    /// A line that can be clicked, if it does something now.
    Action(String, Option<C>),
    /// A menu of its own, one of whose lines is chosen.
    Choice {
        label: String,
        options: Vec<(String, C)>,
        chosen: Option<usize>,
    },
    Separator,
}
