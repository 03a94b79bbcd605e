//! The text that the user has selected.

use anyhow::Result;
use arboard::{Clipboard, Error};

use crate::failure;

/// The selected text, or else that of the clipboard; on macOS and Windows, which tell no selection, that of the clipboard.
///
/// # Errors
/// There is no desktop, no text is selected, or its program does not give it.
pub(crate) fn selected_text() -> Result<String> {
    let mut clipboard = open()?;
    match primary(&mut clipboard) {
        Ok(text) if !text.trim().is_empty() => Ok(text),
        _ => checked(
            clipboard.get_text(),
            "no text is selected, and none is in the clipboard",
            "select some text, or copy it",
        ),
    }
}

/// The text of the clipboard.
///
/// # Errors
/// As [`selected_text`].
pub(crate) fn clipboard_text() -> Result<String> {
    checked(open()?.get_text(), "no text is in the clipboard", "copy some text")
}

fn open() -> Result<Clipboard> {
    Clipboard::new().map_err(|error| {
        failure::with_help(
            format!("no desktop to read a selection from: {error}"),
            "run this command in a graphical session",
        )
    })
}

/// A text that has words; `nothing` and `help` are told if it has none.
fn checked(text: Result<String, Error>, nothing: &str, help: &str) -> Result<String> {
    match text {
        Ok(text) if !text.trim().is_empty() => Ok(text),
        Ok(_) | Err(Error::ContentNotAvailable) => Err(failure::with_help(nothing, help)),
        Err(error) => Err(failure::with_help(
            format!("the selected text cannot be read: {error}"),
            "copy it, and pipe it into `izwi say --play`",
        )),
    }
}

#[cfg(not(any(target_os = "macos", windows)))]
fn primary(clipboard: &mut Clipboard) -> Result<String, Error> {
    use arboard::{GetExtLinux as _, LinuxClipboardKind};
    clipboard.get().clipboard(LinuxClipboardKind::Primary).text()
}

#[cfg(any(target_os = "macos", windows))]
fn primary(_clipboard: &mut Clipboard) -> Result<String, Error> {
    Err(Error::ClipboardNotSupported)
}
