//! What is printed: results to standard output, everything else to standard error. Decides no content.

use std::io::{self, IsTerminal as _, Write as _};

use anyhow::{Context as _, Result};
use serde::Serialize;

use crate::failure::Failure;

/// Prints a result. A reader that has gone ends the process quietly.
///
/// # Errors
/// Standard output was closed, or cannot be written.
pub(crate) fn print(text: &str) -> Result<()> {
    write_bytes(text.as_bytes())
}

/// Prints a result for machines, on one line.
///
/// # Errors
/// As [`print`].
pub(crate) fn print_json(value: &impl Serialize) -> Result<()> {
    let mut text = serde_json::to_string(value).context("cannot write the result as JSON")?;
    text.push('\n');
    print(&text)
}

/// Writes bytes to standard output and sees them off.
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

/// Says something beside the result. Nobody listening is no failure.
pub(crate) fn say(line: &str) {
    complain(&format!("{line}\n"));
}

/// Writes finished text to standard error. Nobody listening is no failure.
pub(crate) fn complain(text: &str) {
    let _ = io::stderr().lock().write_all(text.as_bytes());
}

/// Whether a person reads standard output.
pub(crate) fn is_read_by_person() -> bool {
    io::stdout().is_terminal()
}

/// Bytes in the unit a person expects.
pub(crate) fn bytes(count: u64) -> String {
    const UNITS: [&str; 4] = ["kB", "MB", "GB", "TB"];
    if count < 1_000 {
        return format!("{count} B");
    }
    let mut value = count as f64 / 1_000.0;
    let mut unit = 0;
    while value >= 999.95 && unit + 1 < UNITS.len() {
        value /= 1_000.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
}

/// Rows as columns, two blanks apart; the last column is not padded.
pub(crate) fn columns<const N: usize>(rows: &[[String; N]]) -> String {
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
    fn bytes_have_units() {
        for (count, text) in [
            (0, "0 B"),
            (999, "999 B"),
            (1_000, "1.0 kB"),
            (999_949, "999.9 kB"),
            (999_950, "1.0 MB"),
            (12_345_678, "12.3 MB"),
            (u64::MAX, "18446744.1 TB"),
        ] {
            assert_eq!(bytes(count), text);
        }
    }

    #[test]
    fn columns_line_up() {
        let rows = [["a".to_owned(), "bb".to_owned()], ["éé".to_owned(), String::new()]];
        assert_eq!(columns(&rows), "a   bb\néé\n");
    }
}
