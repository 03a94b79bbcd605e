//! What was dictated, kept in a file that only its owner reads, if the user wants it.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::{Context as _, Result};
use serde_json::json;

use crate::private_file;

/// The file in the folder of the setting `home`.
const FILE: &str = "dictations.jsonl";
/// Size from which on the older half goes.
const MAX_BYTES: u64 = 1 << 20;

/// Keeps the text of a turn, with its time and its program.
///
/// # Errors
/// The file cannot be written.
pub(super) fn keep(home: &Path, application: Option<&str>, text: &str) -> Result<()> {
    let path = home.join(FILE);
    let time = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
    let line = json!({ "time": time, "application": application, "text": text });
    append(&path, &format!("{line}\n")).with_context(|| format!("cannot keep the text in {}", path.display()))
}

fn append(path: &PathBuf, line: &str) -> Result<()> {
    match fs::metadata(path) {
        // The first write makes the file private.
        Err(_) => Ok(private_file::write(path, line, false)?),
        Ok(file) if file.len() + line.len() as u64 > MAX_BYTES => {
            let kept = fs::read_to_string(path)?;
            let from = kept.len() / 2;
            let newer = kept.get(
                kept.as_bytes()[from..]
                    .iter()
                    .position(|&byte| byte == b'\n')
                    .map_or(from, |at| from + at + 1)..,
            );
            Ok(private_file::write(path, &format!("{}{line}", newer.unwrap_or_default()), true)?)
        }
        Ok(_) => Ok(fs::OpenOptions::new().append(true).open(path)?.write_all(line.as_bytes())?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_lines_are_kept_for_the_owner_alone() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join(FILE);
        keep(home.path(), Some("xterm"), "Grüße").unwrap();
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt as _;
            assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        }
        let text = "ü".repeat(1 << 16);
        for _ in 0..20 {
            keep(home.path(), None, &text).unwrap();
            assert!(fs::metadata(&path).unwrap().len() <= MAX_BYTES);
        }
        keep(home.path(), None, "last").unwrap();
        let kept = fs::read_to_string(&path).unwrap();
        let lines: Vec<serde_json::Value> =
            kept.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(lines.last().unwrap()["text"], "last");
        assert!(lines.len() > 3 && lines.iter().all(|line| line["text"] != "Grüße"), "{}", lines.len());
    }
}
