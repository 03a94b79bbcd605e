//! What the user has chosen in the menu, kept in a file.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};

use crate::{output, private_file};

/// The choices. Without one the server's default applies.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Choices {
    /// The model that speaks.
    pub(super) speech_model: Option<String>,
    pub(super) voice: Option<String>,
    /// The model that transcribes.
    pub(super) dictation_model: Option<String>,
}

impl Choices {
    /// Those that were kept. A file that cannot be read is told and passed over.
    pub(super) fn load(home: &Path) -> Self {
        let path = path(home);
        let Ok(text) = fs::read_to_string(&path) else { return Self::default() };
        serde_json::from_str(&text).unwrap_or_else(|error| {
            output::status(&format!("warning: {} is damaged and not used: {error}", path.display()));
            Self::default()
        })
    }

    /// Keeps them.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(super) fn keep(&self, home: &Path) -> Result<()> {
        let (path, text) = (path(home), serde_json::to_string_pretty(self).context("cannot write JSON")?);
        private_file::write(&path, &format!("{text}\n"), true)
            .with_context(|| format!("cannot keep the choice in {}", path.display()))
    }
}

fn path(home: &Path) -> PathBuf {
    home.join("tray.json")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_are_kept_and_a_damaged_file_is_passed_over() {
        let home = tempfile::tempdir().unwrap();
        assert_eq!(Choices::load(home.path()), Choices::default());
        let choices = Choices { voice: Some("heart".to_owned()), ..Choices::default() };
        choices.keep(home.path()).unwrap();
        assert_eq!(Choices::load(home.path()), choices);
        fs::write(home.path().join("tray.json"), "{").unwrap();
        assert_eq!(Choices::load(home.path()), Choices::default());
    }
}
