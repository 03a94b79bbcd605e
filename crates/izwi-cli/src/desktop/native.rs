//! The desktops of macOS and Windows.

use std::fmt;

use anyhow::Result;
use enigo::{Enigo, Keyboard as _, NewConError, Settings};

use super::Window;
use crate::failure;

/// Characters that are typed at once.
const PIECE: usize = 16;

/// The desktop of this session.
#[derive(Debug, Clone)]
pub(crate) struct Desktop(());

/// Types text.
pub(crate) struct Keyboard(Enigo);

impl fmt::Debug for Keyboard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Keyboard")
    }
}

impl Desktop {
    /// Asks for the permission to type.
    ///
    /// # Errors
    /// It is not given.
    pub(crate) fn open() -> Result<Self> {
        keyboard().map(|_| Self(()))
    }

    /// Whether hotkeys can be taken here.
    ///
    /// # Errors
    /// They cannot; the message tells the remedy.
    pub(crate) fn check_hotkeys(&self) -> Result<()> {
        system::check_hotkeys()
    }

    /// What has the focus, if anything has.
    pub(crate) fn focus(&self) -> Option<Window> {
        system::program().map(|(process, _)| Window(process))
    }

    /// The names of a program; none if it is not in front.
    pub(crate) fn names(&self, window: Window) -> Vec<String> {
        system::program()
            .filter(|(process, _)| Window(*process) == window)
            .map(|(_, names)| names)
            .unwrap_or_default()
    }

    /// A keyboard that types into what has the focus.
    pub(crate) fn keyboard(&self) -> Result<Keyboard> {
        keyboard().map(Keyboard)
    }
}

/// Runs `work` while this thread takes the events of the system.
pub(crate) fn with_events<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    with_events_and(Shown::Nothing, || {}, work)
}

/// What of a program is seen beside its windows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shown {
    Nothing,
    /// An icon in the menu bar.
    #[cfg_attr(any(windows, not(feature = "tray")), allow(dead_code, reason = "such builds show no icon"))]
    MenuBar,
}

/// As [`with_events`], and calls `each` between the events, several times a second.
pub(crate) fn with_events_and<T: Send>(
    shown: Shown,
    each: impl FnMut(),
    work: impl FnOnce() -> T + Send,
) -> T {
    system::with_events(shown, each, work)
}

fn keyboard() -> Result<Enigo> {
    Enigo::new(&Settings::default()).map_err(|error| match error {
        NewConError::NoPermission => failure::with_help(
            "the system does not let this program type",
            "allow it for this terminal: System Settings, Privacy & Security, Accessibility",
        ),
        error => {
            failure::with_help(format!("cannot type: {error}"), "run this command in a graphical session")
        }
    })
}

impl Keyboard {
    /// Whether the user holds no key that would turn text into commands: text is sent without keys here.
    ///
    /// # Errors
    /// Never; on other systems the connection may be lost.
    #[allow(clippy::unnecessary_wraps, reason = "the signature is that of other systems")]
    pub(crate) fn is_free(&mut self) -> Result<bool> {
        Ok(true)
    }

    /// Types the beginning of a text, and returns how many bytes of it.
    ///
    /// # Errors
    /// The system refuses it.
    #[allow(clippy::unused_async, reason = "the signature is that of other systems")]
    pub(crate) async fn write(&mut self, text: &str) -> Result<usize> {
        let end = text.char_indices().nth(PIECE).map_or(text.len(), |(at, _)| at);
        self.0.text(&text[..end])?;
        Ok(end)
    }

    /// Waits until programs have taken what was typed: the system keeps it for them.
    #[allow(clippy::unused_async, reason = "the signature is that of other systems")]
    pub(crate) async fn settle(&mut self) {}
}

#[cfg(target_os = "macos")]
mod system {
    use anyhow::Result;
    use objc2::rc::autoreleasepool;
    use objc2_app_kit::{NSApplication, NSApplicationActivationPolicy, NSEventMask, NSWorkspace};
    use objc2_foundation::{MainThreadMarker, NSDate, NSString};

    use super::Shown;

    /// The value of `NSDefaultRunLoopMode`.
    const DEFAULT_MODE: &str = "kCFRunLoopDefaultMode";
    /// Time in which the end of the work is seen.
    const POLL_S: f64 = 0.1;

    /// The process in front, and its names.
    pub(super) fn program() -> Option<(u64, Vec<String>)> {
        let program = NSWorkspace::sharedWorkspace().frontmostApplication()?;
        let names = [program.bundleIdentifier(), program.localizedName()];
        let process = u64::try_from(program.processIdentifier()).ok()?;
        Some((process, names.into_iter().flatten().map(|name| name.to_string()).collect()))
    }

    #[allow(clippy::unnecessary_wraps, reason = "the signature is that of Windows")]
    pub(super) fn check_hotkeys() -> Result<()> {
        Ok(())
    }

    /// Hotkeys, and which program is in front, are told to the main thread of an application alone.
    pub(super) fn with_events<T: Send>(
        shown: Shown,
        mut each: impl FnMut(),
        work: impl FnOnce() -> T + Send,
    ) -> T {
        let Some(main) = MainThreadMarker::new() else { return work() };
        let application = NSApplication::sharedApplication(main);
        // No symbol in the Dock.
        application.setActivationPolicy(match shown {
            Shown::Nothing => NSApplicationActivationPolicy::Prohibited,
            Shown::MenuBar => NSApplicationActivationPolicy::Accessory,
        });
        application.finishLaunching();
        let mode = NSString::from_str(DEFAULT_MODE);
        std::thread::scope(|scope| {
            let worker = scope.spawn(work);
            while !worker.is_finished() {
                each();
                autoreleasepool(|_| {
                    let until = NSDate::dateWithTimeIntervalSinceNow(POLL_S);
                    let event = application.nextEventMatchingMask_untilDate_inMode_dequeue(
                        NSEventMask::Any,
                        Some(&until),
                        &mode,
                        true,
                    );
                    if let Some(event) = event {
                        application.sendEvent(&event);
                    }
                });
            }
            worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }
}

#[cfg(windows)]
mod system {
    use anyhow::Result;

    use super::Shown;
    use crate::failure;

    /// Which program is in front is not asked here: text goes where the focus is.
    #[allow(clippy::unnecessary_wraps, reason = "the signature is that of macOS")]
    pub(super) fn program() -> Option<(u64, Vec<String>)> {
        Some((0, Vec::new()))
    }

    pub(super) fn check_hotkeys() -> Result<()> {
        Err(failure::usage("--hotkey: no hotkey is taken on this system", "leave it out"))
    }

    pub(super) fn with_events<T: Send>(_: Shown, _: impl FnMut(), work: impl FnOnce() -> T + Send) -> T {
        work()
    }
}
