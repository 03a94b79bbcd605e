//! A panel that shows nothing: it takes icons over a bus of its own, and reads and clicks their menus.

use std::collections::HashMap;
use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

use tokio::runtime::Runtime;
use zbus::zvariant::{OwnedValue, Value};
use zbus::{Connection, connection, interface};

use super::screen::eventually;

const WATCHER: &str = "org.kde.StatusNotifierWatcher";
const ITEM: &str = "org.kde.StatusNotifierItem";

/// The bus of a session.
pub(super) struct Bus {
    daemon: Child,
    pub(super) address: String,
}

impl Bus {
    pub(super) fn start() -> Self {
        let mut command = Command::new("dbus-daemon");
        command.args(["--session", "--nofork", "--print-address"]).stderr(Stdio::null());
        let mut daemon = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut address = String::new();
        BufReader::new(daemon.stdout.take().unwrap()).read_line(&mut address).unwrap();
        Self { daemon, address: address.trim().to_owned() }
    }
}

impl Drop for Bus {
    fn drop(&mut self) {
        let _ = self.daemon.kill();
        let _ = self.daemon.wait();
    }
}

/// What icons register with.
struct Watcher(Arc<Mutex<Vec<String>>>);

#[interface(name = "org.kde.StatusNotifierWatcher")]
impl Watcher {
    fn register_status_notifier_item(&self, service: String) {
        self.0.lock().unwrap().push(service);
    }

    #[zbus(property)]
    fn is_status_notifier_host_registered(&self) -> bool {
        true
    }
}

/// A panel. It goes when this is dropped.
pub(super) struct Panel {
    runtime: Runtime,
    connection: Connection,
    icons: Arc<Mutex<Vec<String>>>,
}

/// A line of a menu.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Line {
    id: i32,
    pub(super) label: String,
    pub(super) is_enabled: bool,
    /// Of one that can be chosen.
    pub(super) is_chosen: bool,
}

impl Panel {
    pub(super) fn start(bus: &Bus) -> Self {
        let runtime = Runtime::new().unwrap();
        let icons = Arc::default();
        let watcher = Watcher(Arc::clone(&icons));
        let connection = runtime.block_on(async {
            let builder = connection::Builder::address(bus.address.as_str()).unwrap();
            builder.serve_at("/StatusNotifierWatcher", watcher).unwrap().build().await.unwrap()
        });
        // The panel before may not have gone yet.
        eventually("a panel", || runtime.block_on(connection.request_name(WATCHER)).is_ok());
        Self { runtime, connection, icons }
    }

    /// Waits until an icon is there.
    pub(super) fn gets_an_icon(&self) {
        eventually("the icon", || !self.icons.lock().unwrap().is_empty());
    }

    fn icon(&self) -> String {
        self.icons.lock().unwrap().last().unwrap().clone()
    }

    /// A property of the icon, as a text.
    pub(super) fn property(&self, name: &str) -> String {
        let (icon, body) = (self.icon(), (ITEM, name));
        let interface = Some("org.freedesktop.DBus.Properties");
        let call = self.connection.call_method(Some(icon), "/StatusNotifierItem", interface, "Get", &body);
        let value: OwnedValue = self.runtime.block_on(call).unwrap().body().deserialize().unwrap();
        format!("{:?}", *value)
    }

    /// The lines of the menu, in order.
    pub(super) fn menu(&self) -> Vec<Line> {
        let (icon, body) = (self.icon(), (0, -1, Vec::<&str>::new()));
        let call = self.connection.call_method(
            Some(icon),
            "/MenuBar",
            Some("com.canonical.dbusmenu"),
            "GetLayout",
            &body,
        );
        let message = self.runtime.block_on(call).unwrap();
        let body = message.body();
        type Layout = (i32, HashMap<String, OwnedValue>, Vec<OwnedValue>);
        let (_, (_, _, children)): (u32, Layout) = body.deserialize().unwrap();
        let mut lines = Vec::new();
        children.iter().try_for_each(|child| flatten(child, &mut lines)).expect("no layout");
        lines
    }

    /// The line of this label, if there is one.
    pub(super) fn line(&self, label: &str) -> Option<Line> {
        self.menu().into_iter().find(|line| line.label == label)
    }

    /// Clicks a line, once it can be clicked.
    #[track_caller]
    pub(super) fn click(&self, label: &str) {
        let clickable = || self.line(label).filter(|line| line.is_enabled);
        eventually(label, || clickable().is_some());
        let (icon, body) = (self.icon(), (clickable().unwrap().id, "clicked", Value::from(0), 0_u32));
        let call = self.connection.call_method(
            Some(icon),
            "/MenuBar",
            Some("com.canonical.dbusmenu"),
            "Event",
            &body,
        );
        self.runtime.block_on(call).unwrap();
    }

    /// Clicks the icon with the middle key of the mouse.
    pub(super) fn middle_click(&self) {
        let icon = self.icon();
        let call = self.connection.call_method(
            Some(icon),
            "/StatusNotifierItem",
            Some(ITEM),
            "SecondaryActivate",
            &(0, 0),
        );
        self.runtime.block_on(call).unwrap();
    }
}

/// Adds a line and those below it. `None` for what is no layout.
fn flatten(value: &Value<'_>, lines: &mut Vec<Line>) -> Option<()> {
    let Value::Structure(layout) = unwrapped(value) else { return None };
    let [Value::I32(id), Value::Dict(properties), Value::Array(children)] = layout.fields() else {
        return None;
    };
    let property = |name: &str| {
        let is_it = |key: &Value<'_>| matches!(key, Value::Str(key) if key.as_str() == name);
        properties.iter().find(|(key, _)| is_it(key)).map(|(_, value)| unwrapped(value))
    };
    let label = match property("label") {
        Some(Value::Str(label)) => label.to_string(),
        _ => String::new(),
    };
    lines.push(Line {
        id: *id,
        label,
        is_enabled: !matches!(property("enabled"), Some(Value::Bool(false))),
        is_chosen: matches!(property("toggle-state"), Some(Value::I32(1))),
    });
    children.iter().try_for_each(|child| flatten(child, lines))
}

fn unwrapped<'v>(value: &'v Value<'v>) -> &'v Value<'v> {
    match value {
        Value::Value(inner) => unwrapped(inner),
        value => value,
    }
}
