//! Terminal output: results to standard output, everything else to standard error. Decides no content.

use std::borrow::Cow;
use std::io::{self, IsTerminal as _, Write as _};

use anyhow::{Context as _, Result};
pub(crate) use izwi_types::format_bytes;
use serde::Serialize;

use crate::failure::Failure;

/// Prints a result without the control characters that [`printable`] leaves out. A closed standard output ends the process
/// without a message.
///
/// # Errors
/// Standard output was closed, or cannot be written.
pub(crate) fn print(text: &str) -> Result<()> {
    write_bytes(printable(text).as_bytes())
}

/// A text that no terminal obeys: without control characters but ends of lines and tabs. Names and transcripts may come
/// from another server or from a file of somebody else.
pub(crate) fn printable(text: &str) -> Cow<'_, str> {
    let is_obeyed = |c: char| c.is_control() && !matches!(c, '\n' | '\t');
    if text.contains(is_obeyed) { Cow::Owned(text.replace(is_obeyed, "")) } else { Cow::Borrowed(text) }
}

/// Prints a result as one line of JSON.
///
/// # Errors
/// As [`print`].
pub(crate) fn print_json(value: &impl Serialize) -> Result<()> {
    let mut text = serde_json::to_string(value).context("cannot write the result as JSON")?;
    text.push('\n');
    print(&text)
}

/// Writes bytes to standard output and flushes them.
///
/// # Errors
/// As [`print`].
pub(crate) fn write_bytes(bytes: &[u8]) -> Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(bytes).and_then(|()| out.flush()).map_err(|error| match error.kind() {
        io::ErrorKind::BrokenPipe => Failure::OutputClosed.into(),
        _ => anyhow::Error::new(error).context("cannot write to standard output"),
    })
}

/// Prints a status line to standard error, as [`print`] does. A closed standard error is ignored.
pub(crate) fn status(line: &str) {
    stderr(&format!("{line}\n"));
}

/// Writes text to standard error, as [`print`] does. A closed standard error is ignored.
pub(crate) fn stderr(text: &str) {
    let _ = io::stderr().lock().write_all(printable(text).as_bytes());
}

/// Whether standard output is a terminal.
pub(crate) fn stdout_is_terminal() -> bool {
    io::stdout().is_terminal()
}

/// Rows as aligned columns, two blanks apart; the last column is not padded.
pub(crate) fn format_columns<const N: usize>(rows: &[[String; N]]) -> String {
    let mut widths = [0; N];
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut text = String::new();
    for row in rows {
        let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}"));
        text.push_str(cells.collect::<Vec<String>>().join("  ").trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_obeys_no_text() {
        assert_eq!(printable("Grüße\t1\n2"), "Grüße\t1\n2");
        assert_eq!(
            printable("a\u{1b}]0;title\u{7}b\u{1b}[2J\u{9b}31mc\r\u{8}\u{7f}\0d"),
            "a]0;titleb[2J31mcd"
        );
    }

    #[test]
    fn columns_are_aligned() {
        let rows = [["a".to_owned(), "bb".to_owned()], ["éé".to_owned(), String::new()]];
        assert_eq!(format_columns(&rows), "a   bb\néé\n");
    }
}
