//! `[[dictation]]` of the configuration file: how `izwi dictate --type` writes, everywhere or into one program.
//!
//! Knows no disk and no environment.

use toml::de::DeTable;

use super::dictation_profile::DictationProfile;
use super::field::Kind;
use super::keys::{Fault, Key, Keys, key};
use super::origin::Origin;

/// The key of the tables in the file.
pub(crate) const TABLES: &str = "dictation";

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

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::dictation_profile::Dictation;
    use super::super::file;

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
