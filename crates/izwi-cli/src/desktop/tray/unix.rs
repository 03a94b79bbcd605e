//! The tray of Linux and its relatives: a StatusNotifierItem over D-Bus.

use std::collections::HashMap;
use std::time::Duration;

use anyhow::Result;
use futures::StreamExt as _;
use ksni::menu::{RadioGroup, RadioItem, StandardItem, SubMenu};
use ksni::{Category, Handle, Icon, MenuItem, ToolTip, TrayMethods as _};
use tokio::sync::mpsc;
use tokio::time::timeout;
use zbus::zvariant::Value;
use zbus::{Connection, MessageStream};

use super::{Click, Entry, MAX_CLICKS, TITLE, View};
use crate::failure;

/// Sizes of the icon, in pixels: of small and large panels, and of screens with many pixels.
const SIZES: [u16; 5] = [16, 22, 24, 32, 48];
/// A bus and a panel that work answer within that.
const PATIENCE: Duration = Duration::from_secs(10);
const NO_PANEL: &str = "GNOME shows such icons with the extension AppIndicator (the package gnome-shell-extension-appindicator, or \
    https://extensions.gnome.org/extension/615/); elsewhere add the tray, or notification area, to the panel";

/// The icon. It goes when this is dropped.
pub(crate) struct Tray<C: Click> {
    handle: Option<Handle<Item<C>>>,
    /// To see the end of the session, and to tell something.
    bus: Option<(Connection, MessageStream)>,
    clicks: mpsc::Sender<C>,
    /// Whether a panel may come later.
    waits: bool,
}

impl<C: Click> std::fmt::Debug for Tray<C> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tray").field("waits", &self.waits).finish_non_exhaustive()
    }
}

/// Runs `work` with a tray that is not shown yet and the clicks in its menu. With `waits` a panel may come later.
pub(crate) fn with_tray<C: Click, T: Send>(
    waits: bool,
    work: impl FnOnce(Tray<C>, mpsc::Receiver<C>) -> T + Send,
) -> T {
    let (clicks, receiver) = mpsc::channel(MAX_CLICKS);
    work(Tray { handle: None, bus: None, clicks, waits }, receiver)
}

impl<C: Click> Tray<C> {
    /// Shows the icon and its menu, or changes them.
    ///
    /// # Errors
    /// The session has no bus or no panel that shows icons.
    pub(crate) async fn show(&mut self, view: View<C>) -> Result<()> {
        if let Some(handle) = &self.handle {
            handle.update(|item| item.view = view).await;
            return Ok(());
        }
        let bus = timeout(PATIENCE, Connection::session()).await;
        let bus = bus.map_err(|_| no_bus("it does not answer"))?.map_err(no_bus)?;
        let stream = MessageStream::from(&bus);
        let item = Item { view, clicks: self.clicks.clone() };
        let shown = timeout(PATIENCE, item.assume_sni_available(self.waits).spawn()).await;
        let shown = shown.map_err(|_| no_panel("the panel does not answer"))?;
        let handle = shown.map_err(|error| match error {
            ksni::Error::Dbus(error) => no_bus(error),
            ksni::Error::WontShow => no_panel("no panel shows icons"),
            error => no_panel(error),
        })?;
        (self.handle, self.bus) = (Some(handle), Some((bus, stream)));
        Ok(())
    }

    /// Waits for the end of the session.
    pub(crate) async fn ended(&mut self) {
        if let Some((_, stream)) = &mut self.bus {
            while let Some(Ok(_)) = stream.next().await {}
        } else {
            std::future::pending().await
        }
    }

    /// Shows a message for a while, where the desktop does.
    pub(crate) fn tell(&self, message: &str) {
        let Some((bus, _)) = &self.bus else { return };
        // Servers of notifications may read markup.
        let message = message.replace('&', "&amp;").replace('<', "&lt;");
        tokio::spawn(notify(bus.clone(), message));
    }
}

/// Shows a message. Without a server of notifications, nobody sees it.
async fn notify(bus: Connection, message: String) {
    let hints = HashMap::<&str, Value<'_>>::new();
    let body = (TITLE, 0_u32, "audio-input-microphone", TITLE, message, Vec::<&str>::new(), hints, -1_i32);
    let name = "org.freedesktop.Notifications";
    let call = bus.call_method(Some(name), "/org/freedesktop/Notifications", Some(name), "Notify", &body);
    let _ = timeout(PATIENCE, call).await;
}

fn no_bus(error: impl std::fmt::Display) -> anyhow::Error {
    failure::with_help(
        format!("no icon can be shown: there is no D-Bus of a session: {error}"),
        "run this command in a graphical session; on machines without one, `izwi status` shows the server",
    )
}

fn no_panel(error: impl std::fmt::Display) -> anyhow::Error {
    failure::with_help(format!("no icon can be shown: this desktop has no tray: {error}"), NO_PANEL)
}

/// What the panel asks for.
struct Item<C> {
    view: View<C>,
    clicks: mpsc::Sender<C>,
}

impl<C: Click> Item<C> {
    fn send(&self, click: Option<&C>) {
        if let Some(click) = click {
            // Nobody clicks that often without seeing anything.
            let _ = self.clicks.try_send(click.clone());
        }
    }
}

impl<C: Click> ksni::Tray for Item<C> {
    const MENU_ON_ACTIVATE: bool = true;

    fn id(&self) -> String {
        "izwi".to_owned()
    }

    fn title(&self) -> String {
        TITLE.to_owned()
    }

    fn category(&self) -> Category {
        Category::ApplicationStatus
    }

    fn icon_pixmap(&self) -> Vec<Icon> {
        let icon = |size: u16| {
            let rgba = self.view.sign.rgba(size);
            let argb = rgba.chunks_exact(4).flat_map(|p| [p[3], p[0], p[1], p[2]]);
            Icon { width: size.into(), height: size.into(), data: argb.collect() }
        };
        SIZES.map(icon).to_vec()
    }

    fn tool_tip(&self) -> ToolTip {
        ToolTip { title: self.view.tip.clone(), ..ToolTip::default() }
    }

    fn secondary_activate(&mut self, _x: i32, _y: i32) {
        self.send(self.view.middle_click.as_ref());
    }

    fn menu(&self) -> Vec<MenuItem<Self>> {
        self.view.entries.iter().map(menu_item).collect()
    }
}

fn menu_item<C: Click>(entry: &Entry<C>) -> MenuItem<Item<C>> {
    match entry {
        Entry::Separator => MenuItem::Separator,
        Entry::Text(text) => StandardItem { label: plain(text), enabled: false, ..Default::default() }.into(),
        Entry::Action(label, click) => {
            let (label, enabled, click) = (plain(label), click.is_some(), click.clone());
            let activate = Box::new(move |item: &mut Item<C>| item.send(click.as_ref()));
            StandardItem { label, enabled, activate, ..Default::default() }.into()
        }
        Entry::Choice { label, options, chosen } => {
            let (labels, clicks): (Vec<RadioItem>, Vec<C>) = options
                .iter()
                .map(|(label, click)| {
                    (RadioItem { label: plain(label), ..Default::default() }, click.clone())
                })
                .unzip();
            let select = Box::new(move |item: &mut Item<C>, index: usize| item.send(clicks.get(index)));
            // None is chosen beyond the last one.
            let group = RadioGroup { selected: chosen.unwrap_or(usize::MAX), select, options: labels };
            SubMenu { label: plain(label), submenu: vec![group.into()], ..Default::default() }.into()
        }
    }
}

/// A label without keys: an underscore would name one.
fn plain(label: &str) -> String {
    label.replace('_', "__")
}
