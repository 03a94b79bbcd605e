//! The text of a new configuration file: every setting with its description and its default, commented out unless it is set.
//!
//! Knows no disk.

use std::fmt::Write as _;
use std::path::PathBuf;

use super::field::{Section, Setting, Value};
use super::table::TABLE;
use super::values::Settings;

/// Widest line of a description.
const COLUMNS: usize = 110;

const HEAD: &str = "\
# Settings of izwi, each commented out with its default. Remove the # before a key to set it.
# A flag overrides a variable (IZWI_...), a variable this file. `izwi config check` checks the file, `izwi config show`
# prints each value with its origin. A server reads the file when it starts: `izwi service restart`.
";

const REMOTE: &str = "
# A model that another server runs: its texts and recordings leave this machine. See docs/remote.md.
# [[remote_models]]
# name = \"far\"
# task = \"tts\"
# base_url = \"http://gpu:8091/v1\"
# model = \"its name at that server\"

# A chat model of three: one that transcribes, a language model at a server, one that speaks.
# See docs/conversations.md.
# [[pipelines]]
# name = \"talk\"
# [pipelines.llm]
# base_url = \"http://127.0.0.1:11434/v1\"
# model = \"its name at that server\"
# [pipelines.turn_detection]
# type = \"semantic_vad\"

# How `izwi dictate --type` writes, everywhere or into the programs that are named. See docs/dictating.md.
# [[dictation]]
# application = \"KeePassXC\"
# type = false
";

/// The text, in which the settings named in `set` have these values; `home` is the data folder of the platform.
pub(crate) fn text(home: PathBuf, set: &[(&str, u64)]) -> String {
    let defaults = Settings::defaults(home);
    let mut text = HEAD.to_owned();
    for section in Section::ALL {
        if section != Section::Top {
            // Writing to a String cannot fail.
            let _ = write!(text, "\n[{}]\n", section.name());
        }
        for setting in TABLE.iter().filter(|setting| setting.section == section) {
            let value = set.iter().find(|(name, _)| *name == setting.name).map(|(_, value)| *value);
            describe(setting, &defaults, value, &mut text);
        }
    }
    text.push_str(REMOTE);
    text
}

fn describe(setting: &Setting, defaults: &Settings, value: Option<u64>, text: &mut String) {
    text.push('\n');
    comment(&format!("{}.", setting.doc), text);
    let default = setting.default_words.map_or_else(String::new, |words| format!("; default: {words}"));
    comment(&format!("Value: {}{default}.", setting.kind), text);
    let _ = match value {
        Some(value) => writeln!(text, "{} = {value}", setting.name),
        None => writeln!(text, "#{} = {}", setting.name, toml_value(&(setting.get)(defaults))),
    };
}

/// Comment lines of at most [`COLUMNS`] characters, unless a word is longer.
fn comment(sentence: &str, text: &mut String) {
    let mut line = "#".to_owned();
    for word in sentence.split_whitespace() {
        if line.chars().count() + 1 + word.chars().count() > COLUMNS && line != "#" {
            text.push_str(&line);
            text.push('\n');
            line = "#".to_owned();
        }
        line.push(' ');
        line.push_str(word);
    }
    text.push_str(&line);
    text.push('\n');
}

/// A value in TOML; an empty text stands for none.
fn toml_value(value: &Value) -> String {
    match value {
        // A default is never a secret.
        Value::Unset | Value::Secret(_) => "\"\"".to_owned(),
        Value::Text(text) => toml::Value::from(text.as_str()).to_string(),
        Value::Whole(number) => number.to_string(),
        Value::Switch(on) => on.to_string(),
        Value::List(items) => toml::Value::from(items.clone()).to_string(),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::file;
    use super::*;

    #[test]
    fn the_text_sets_nothing_and_names_every_setting_once() {
        let text = text("/data".into(), &[]);
        assert_eq!(file::parse(Path::new("c.toml"), &text).unwrap().entries.len(), 0);
        for setting in TABLE {
            let key = format!("\n#{} = ", setting.name);
            assert_eq!(text.matches(&key).count(), 1, "{}", setting.name);
        }
    }

    #[test]
    fn each_line_sets_its_default_once_it_is_no_comment() {
        let home = PathBuf::from("/data \"x\" \\ y");
        let text = text(home.clone(), &[]);
        let defaults = Settings::defaults(home);
        let unset = |setting: &&Setting| (setting.get)(&defaults) == Value::Unset;
        let is_unset =
            |line: &str| TABLE.iter().filter(unset).any(|s| line.starts_with(&format!("#{} ", s.name)));
        let opened: Vec<&str> = text
            .lines()
            .map(|line| match line.strip_prefix('#') {
                Some(key) if !key.starts_with(' ') && !is_unset(line) => key,
                _ => line,
            })
            .collect();
        let entries = file::parse(Path::new("c.toml"), &opened.join("\n")).unwrap().entries;
        assert_eq!(entries.len(), TABLE.len() - TABLE.iter().filter(unset).count());
        for entry in entries {
            assert_eq!(entry.value, (entry.setting.get)(&defaults), "{}", entry.setting.name);
        }
    }

    #[test]
    fn what_is_set_is_no_comment() {
        let text = text("/data".into(), &[("default_model_ttl_s", 900)]);
        let entries = file::parse(Path::new("c.toml"), &text).unwrap().entries;
        let set: Vec<_> = entries.iter().map(|entry| (entry.setting.name, entry.value.clone())).collect();
        assert_eq!(set, [("default_model_ttl_s", Value::Whole(900))]);
    }

    #[test]
    fn lines_are_short() {
        let text = text("/data".into(), &[]);
        let described = &text[HEAD.len()..];
        let long = described.lines().find(|line| line.starts_with("# ") && line.chars().count() > COLUMNS);
        assert_eq!(long, None);
        let mut wrapped = String::new();
        comment(&"four ".repeat(30), &mut wrapped);
        assert_eq!(wrapped.lines().map(str::len).collect::<Vec<_>>(), [106, 46]);
    }
}
