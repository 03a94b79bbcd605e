//! The menu bar of macOS.

use std::collections::HashMap;
use std::sync::mpsc as sync;

use anyhow::Result;
use tokio::sync::mpsc;
use tray_icon::menu::{CheckMenuItem, Menu, MenuEvent, MenuId, MenuItem, PredefinedMenuItem, Submenu};
use tray_icon::{Icon, TrayIcon, TrayIconBuilder};

use super::{Click, Entry, MAX_CLICKS, TITLE, View};
use crate::desktop::platform::{Shown, with_events_and};
use crate::output;

/// Pixels of the icon, which the system makes smaller.
const SIZE: u16 = 44;

/// The icon, which the main thread shows.
#[derive(Debug)]
pub(crate) struct Tray<C: Click>(sync::Sender<View<C>>);

/// Runs `work` with a tray that is not shown yet and the clicks in its menu, while this thread, the main one, shows it.
pub(crate) fn with_tray<C: Click, T: Send>(
    _waits: bool,
    work: impl FnOnce(Tray<C>, mpsc::Receiver<C>) -> T + Send,
) -> T {
    let (views, shown) = sync::channel();
    let (clicks, receiver) = mpsc::channel(MAX_CLICKS);
    let (ids, clicked) = sync::channel();
    MenuEvent::set_event_handler(Some(move |event: MenuEvent| {
        // The loop below has ended otherwise.
        let _ = ids.send(event.id);
    }));
    let mut icon: Option<TrayIcon> = None;
    let mut meanings = HashMap::new();
    let each = || {
        if let Some(view) = shown.try_iter().last() {
            match draw(&mut icon, &view) {
                Ok(drawn) => meanings = drawn,
                Err(error) => output::status(&format!("warning: the icon cannot be shown: {error}")),
            }
        }
        for id in clicked.try_iter() {
            if let Some(click) = meanings.get(&id).cloned() {
                // Nobody clicks that often without seeing anything.
                let _ = clicks.try_send(click);
            }
        }
    };
    with_events_and(Shown::MenuBar, each, || work(Tray(views), receiver))
}

impl<C: Click> Tray<C> {
    /// Shows the icon and its menu, or changes them.
    ///
    /// # Errors
    /// Never; on other systems there may be no tray.
    #[allow(clippy::unused_async, reason = "the signature is that of other systems")]
    pub(crate) async fn show(&mut self, view: View<C>) -> Result<()> {
        // The main thread has ended otherwise.
        let _ = self.0.send(view);
        Ok(())
    }

    /// Waits for the end of the session, with which the system ends this program.
    pub(crate) async fn ended(&mut self) {
        std::future::pending().await
    }

    /// Messages are in the menu alone.
    pub(crate) fn tell(&self, _message: &str) {}
}

/// Shows a view. Returns what its entries mean.
fn draw<C: Click>(icon: &mut Option<TrayIcon>, view: &View<C>) -> Result<HashMap<MenuId, C>> {
    let (menu, mut meanings) = (Menu::new(), HashMap::new());
    for entry in &view.entries {
        match entry {
            Entry::Separator => menu.append(&PredefinedMenuItem::separator())?,
            Entry::Text(text) => menu.append(&MenuItem::new(plain(text), false, None))?,
            Entry::Action(label, click) => {
                let item = MenuItem::new(plain(label), click.is_some(), None);
                menu.append(&item)?;
                meanings.extend(click.clone().map(|click| (item.id().clone(), click)));
            }
            Entry::Choice { label, options, chosen } => {
                let choice = Submenu::new(plain(label), true);
                for (index, (label, click)) in options.iter().enumerate() {
                    let item = CheckMenuItem::new(plain(label), true, *chosen == Some(index), None);
                    choice.append(&item)?;
                    meanings.insert(item.id().clone(), click.clone());
                }
                menu.append(&choice)?;
            }
        }
    }
    let picture = Icon::from_rgba(view.sign.rgba(SIZE), SIZE.into(), SIZE.into())?;
    match icon {
        Some(icon) => {
            icon.set_menu(Some(Box::new(menu)));
            icon.set_icon(Some(picture))?;
            icon.set_tooltip(Some(&view.tip))?;
        }
        None => {
            let builder = TrayIconBuilder::new().with_id(TITLE).with_menu(Box::new(menu));
            *icon = Some(builder.with_icon(picture).with_tooltip(&view.tip).build()?);
        }
    }
    Ok(meanings)
}

/// A label without keys: an ampersand would name one.
fn plain(label: &str) -> String {
    label.replace('&', "&&")
}
