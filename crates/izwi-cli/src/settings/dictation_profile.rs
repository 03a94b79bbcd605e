//! Profiles of dictation into programs, and what holds for one program.

use super::origin::Origin;

/// One table: what it sets for the programs that it names.
#[derive(Debug, Clone)]
pub(crate) struct DictationProfile {
    /// Names of programs; empty for all.
    pub(crate) applications: Vec<String>,
    pub(super) types: Option<bool>,
    pub(super) language: Option<String>,
    pub(super) commands: Option<bool>,
    pub(super) keywords: Vec<String>,
    pub(super) history: Option<bool>,
    /// The line of its table.
    pub(crate) origin: Origin,
}

/// What holds for one program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Dictation {
    /// Whether text is typed into it.
    pub(crate) types: bool,
    /// BCP 47 tag; `None` detects it.
    pub(crate) language: Option<String>,
    /// Whether spoken commands are carried out.
    pub(crate) commands: bool,
    /// Words that are likely.
    pub(crate) keywords: Vec<String>,
    /// Whether what is dictated is kept in a file.
    pub(crate) history: bool,
}

impl DictationProfile {
    /// Whether it is for the program with these names.
    fn is_for(&self, names: &[String]) -> bool {
        let named = |own: &String| names.iter().any(|name| name.to_lowercase() == own.to_lowercase());
        self.applications.is_empty() || self.applications.iter().any(named)
    }

    /// What it sets, for people.
    pub(crate) fn summary(&self) -> String {
        let switch = |name: &str, value: Option<bool>| value.map(|value| format!("{name} {value}"));
        let keywords = (!self.keywords.is_empty()).then(|| format!("{} keywords", self.keywords.len()));
        let set = [
            switch("type", self.types),
            self.language.as_ref().map(|language| format!("language {language}")),
            switch("commands", self.commands),
            keywords,
            switch("history", self.history),
        ];
        set.into_iter().flatten().collect::<Vec<_>>().join(", ")
    }
}

impl Dictation {
    /// What holds for the program with these names: a later table over an earlier one, but keywords of all.
    pub(crate) fn of(profiles: &[DictationProfile], names: &[String]) -> Self {
        let mut dictation =
            Self { types: true, language: None, commands: true, keywords: Vec::new(), history: false };
        for profile in profiles.iter().filter(|profile| profile.is_for(names)) {
            dictation.types = profile.types.unwrap_or(dictation.types);
            dictation.language = profile.language.clone().or(dictation.language);
            dictation.commands = profile.commands.unwrap_or(dictation.commands);
            dictation.keywords.extend_from_slice(&profile.keywords);
            dictation.history = profile.history.unwrap_or(dictation.history);
        }
        dictation
    }
}
