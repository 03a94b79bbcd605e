//! `[[dictation]]` of the configuration file: how `izwi dictate --type` writes, everywhere or into one program.
//!
//! Knows no disk and no environment.

use toml::de::DeTable;

use super::field::Kind;
use super::keys::{Fault, Key, Keys, key};
use super::origin::Origin;

/// The key of the tables in the file.
pub(crate) const TABLES: &str = "dictation";

/// One table: what it sets for the programs that it names.
#[derive(Debug, Clone)]
pub(crate) struct DictationProfile {
    /// Names of programs; empty for all.
    pub(crate) applications: Vec<String>,
    types: Option<bool>,
    language: Option<String>,
    commands: Option<bool>,
    keywords: Vec<String>,
    history: Option<bool>,
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

/// Every key, in the order of the documentation.
pub(crate) static KEYS: &[Key<DictationProfile>] = &[
    key!(
        "application",
        Kind::List,
        "every program",
        "The program, or several: on X11 the class or the instance of its windows, as `xprop WM_CLASS` shows them, on macOS its \
         name or bundle identifier; case does not matter",
        |profile, value| profile.applications = value.list()?.to_vec()
    ),
    key!("type", Kind::Switch, "true", "Whether text is typed into it", |profile, value| {
        profile.types = Some(value.switch()?);
    }),
    key!(
        "language",
        Kind::Text,
        "detected in each turn",
        "Language that is spoken, as a BCP 47 tag",
        |profile, value| profile.language = Some(value.text()?.to_owned())
    ),
    key!("commands", Kind::Switch, "true", "Whether spoken commands are carried out", |profile, value| {
        profile.commands = Some(value.switch()?);
    }),
    key!(
        "keywords",
        Kind::List,
        "none",
        "Words that are likely, beside those of the setting `keywords`",
        |profile, value| profile.keywords = value.list()?.to_vec()
    ),
    key!(
        "history",
        Kind::Switch,
        "false",
        "Whether what is dictated is kept in `dictations.jsonl` in the folder of the setting `home`, which only its owner reads",
        |profile, value| profile.history = Some(value.switch()?)
    ),
];

const TABLE: Keys<DictationProfile> = Keys { name: TABLES, page: "docs/dictating.md", keys: KEYS };

/// Reads one table. Problems come with the byte that they are about.
pub(super) fn parse(table: &DeTable<'_>, _at: usize, origin: Origin) -> Result<DictationProfile, Vec<Fault>> {
    let mut profile = DictationProfile {
        applications: Vec::new(),
        types: None,
        language: None,
        commands: None,
        keywords: Vec::new(),
        history: None,
        origin,
    };
    let faults = TABLE.read(table, &[], &mut profile);
    if faults.is_empty() { Ok(profile) } else { Err(faults) }
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

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::file;
    use super::*;

    const GOOD: &str = "[[dictation]]\nlanguage = \"de\"\nkeywords = \"Zemany\"\nhistory = true\n\
        [[dictation]]\napplication = [\"KeePassXC\", \"xterm\"]\ntype = false\nkeywords = [\"sudo\"]\n\
        [[dictation]]\napplication = \"XTerm\"\ntype = true\ncommands = false\nlanguage = \"en\"\nhistory = false\n";

    #[test]
    fn later_tables_for_a_program_go_over_earlier_ones() {
        let profiles = file::parse(Path::new("c.toml"), GOOD).unwrap().dictation;
        let of = |names: &[&str]| {
            Dictation::of(&profiles, &names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>())
        };
        let everywhere = Dictation {
            types: true,
            language: Some("de".into()),
            commands: true,
            keywords: vec!["Zemany".into()],
            history: true,
        };
        assert_eq!(of(&["gedit", "Gedit"]), everywhere);
        assert_eq!(of(&[]), everywhere, "a program that is not known");
        let keepass = of(&["keepassxc", "keepassxc"]);
        assert!(!keepass.types && keepass.commands && keepass.history, "{keepass:?}");
        let xterm = of(&["xterm", "XTerm"]);
        assert_eq!(
            xterm,
            Dictation {
                types: true,
                language: Some("en".into()),
                commands: false,
                keywords: vec!["Zemany".into(), "sudo".into()],
                history: false
            }
        );
        assert_eq!(profiles[1].summary(), "type false, 1 keywords");
    }

    #[test]
    fn faults_name_the_line_the_key_and_the_remedy() {
        for (text, expected) in [
            ("dictation = 1\n", "c.toml:1: dictation are tables: write [[dictation]] on a line"),
            (
                "[[dictation]]\ntype = \"no\"\n",
                "c.toml:2: dictation: type: a value of type string is not true or false",
            ),
            (
                "[[dictation]]\nlanguages = \"de\"\n",
                "c.toml:2: dictation: unknown key 'languages': did you mean language?",
            ),
        ] {
            let problems = file::parse(Path::new("c.toml"), text).unwrap_err();
            let problems: Vec<String> = problems.iter().map(ToString::to_string).collect();
            assert_eq!(problems, [expected]);
        }
    }
}
