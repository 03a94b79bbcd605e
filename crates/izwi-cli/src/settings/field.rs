//! The definition of a setting: its names, the type of its value, and its field in [`Settings`].
//!
//! Knows no source of values.

use std::fmt;
use std::path::PathBuf;

use toml::de::DeValue;

use super::values::Settings;

/// A table of the configuration file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Section {
    /// The top of the file.
    Top,
    /// `[engine]`.
    Engine,
    /// `[server]`.
    Server,
}

impl Section {
    /// All tables, in the order of the documentation.
    pub(crate) const ALL: [Self; 3] = [Self::Top, Self::Engine, Self::Server];

    /// The table's name in the file; empty for the top.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Top => "",
            Self::Engine => "engine",
            Self::Server => "server",
        }
    }
}

/// One setting.
pub(crate) struct Setting {
    /// Its table in the file.
    pub(crate) section: Section,
    /// Its key in the file; flag and variable are derived from it.
    pub(crate) name: &'static str,
    /// Type of its values.
    pub(crate) kind: Kind,
    /// Name of a value in help texts.
    pub(crate) value_name: &'static str,
    /// Description: one sentence without a period.
    pub(crate) doc: &'static str,
    /// Commands with this flag.
    pub(crate) reach: Reach,
    /// The default in words, if it depends on the machine or has no value.
    pub(crate) default_words: Option<&'static str>,
    /// Variable of another program, used if no source of Izwi gives a value.
    pub(crate) foreign_variable: Option<&'static str>,
    /// Reads the field.
    pub(crate) get: fn(&Settings) -> Value,
    /// Writes the field; refuses invalid values.
    pub(crate) set: fn(&mut Settings, &Value) -> Result<(), String>,
}

/// The commands with a setting as a flag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reach {
    /// All commands; hidden in the short help.
    Everywhere,
    /// Commands that use its section.
    Section,
    /// Commands that use its section; shown by `--help-all` alone.
    Tuning,
}

impl Setting {
    /// The key with its table: `engine.model`.
    pub(crate) fn key(&self) -> String {
        match self.section {
            Section::Top => self.name.to_owned(),
            section => format!("{}.{}", section.name(), self.name),
        }
    }

    /// The flag without dashes: `max-batch-size`.
    pub(crate) fn flag(&self) -> String {
        self.name.replace('_', "-")
    }

    /// The variable: `IZWI_MAX_BATCH_SIZE`.
    pub(crate) fn variable(&self) -> String {
        format!("IZWI_{}", self.name.to_uppercase())
    }

    /// The default in help and documentation.
    pub(crate) fn default_text(&self) -> String {
        let shown = || (self.get)(&Settings::defaults(PathBuf::new())).to_string();
        self.default_words.map_or_else(shown, str::to_owned)
    }
}

impl fmt::Debug for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Setting").field("name", &self.name).finish_non_exhaustive()
    }
}

/// The type of a setting's values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Any text.
    Text,
    /// A text that is not shown.
    Secret,
    /// A whole number within a range.
    Whole {
        /// Minimum.
        min: u64,
        /// Maximum.
        max: u64,
    },
    /// `true` or `false`.
    Switch,
    /// One of several words.
    Choice(&'static [&'static str]),
    /// Several texts.
    List,
}

impl Kind {
    /// Parses the values of a flag: one, or any number for a list.
    pub(crate) fn parse_texts(self, texts: &[String]) -> Result<Value, String> {
        match (self, texts) {
            (Self::List, texts) => Ok(Value::List(texts.to_vec())),
            (_, [.., text]) => self.parse_text(text),
            (_, []) => Err("the value is missing".to_owned()),
        }
    }

    /// Parses the value of a variable; items of a list are separated by commas.
    pub(crate) fn parse_variable(self, text: &str) -> Result<Value, String> {
        match self {
            Self::List => {
                let items = text.split(',').map(str::trim).filter(|item| !item.is_empty());
                Ok(Value::List(items.map(str::to_owned).collect()))
            }
            _ => self.parse_text(text),
        }
    }

    fn parse_text(self, text: &str) -> Result<Value, String> {
        match self {
            Self::Text | Self::List => Ok(Value::Text(text.to_owned())),
            Self::Secret => Ok(Value::Secret(text.to_owned())),
            Self::Choice(_) => self.bounded(Value::Text(text.to_owned())),
            Self::Whole { .. } => {
                let number = text.trim().parse().map_err(|_| self.refusal(&format!("'{text}'")))?;
                self.bounded(Value::Whole(number))
            }
            Self::Switch => match text.trim() {
                "true" | "1" | "on" | "yes" => Ok(Value::Switch(true)),
                "false" | "0" | "off" | "no" => Ok(Value::Switch(false)),
                _ => Err(self.refusal(&format!("'{text}'"))),
            },
        }
    }

    /// Parses a value of the file.
    pub(crate) fn parse_toml(self, value: &DeValue<'_>) -> Result<Value, String> {
        let text = || value.as_str().map(str::to_owned);
        let parsed = match self {
            Self::Text | Self::Choice(_) => text().map(Value::Text),
            Self::Secret => text().map(Value::Secret),
            Self::Whole { .. } => value
                .as_integer()
                .and_then(|number| u64::from_str_radix(number.as_str(), number.radix()).ok())
                .map(Value::Whole),
            Self::Switch => value.as_bool().map(Value::Switch),
            Self::List => value.as_array().and_then(|items| {
                let texts = items.iter().map(|item| item.get_ref().as_str().map(str::to_owned));
                texts.collect::<Option<Vec<String>>>().map(Value::List)
            }),
        };
        let found = || match value {
            DeValue::Integer(number) if self != Self::Secret => number.as_str().to_owned(),
            other => format!("a value of type {}", other.type_str()),
        };
        self.bounded(parsed.ok_or_else(|| self.refusal(&found()))?)
    }

    fn bounded(self, value: Value) -> Result<Value, String> {
        let inside = match (self, &value) {
            (Self::Whole { min, max }, Value::Whole(number)) => (min..=max).contains(number),
            (Self::Choice(words), Value::Text(word)) => words.contains(&word.as_str()),
            _ => true,
        };
        if inside { Ok(value) } else { Err(self.refusal(&format!("'{value}'"))) }
    }

    fn refusal(self, found: &str) -> String {
        format!("{found} is not {self}")
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text | Self::Secret => f.write_str("a text"),
            Self::Whole { min, max: u64::MAX } => write!(f, "a whole number from {min}"),
            Self::Whole { min, max } => write!(f, "a whole number from {min} to {max}"),
            Self::Switch => f.write_str("true or false"),
            Self::Choice(words) => f.write_str(&words.join(" or ")),
            Self::List => f.write_str("a list of texts"),
        }
    }
}

/// A value of a setting.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum Value {
    /// Neither given nor defaulted.
    Unset,
    /// A text, a path, a word.
    Text(String),
    /// A text that is not shown.
    Secret(String),
    /// A number.
    Whole(u64),
    /// True or false.
    Switch(bool),
    /// Several texts.
    List(Vec<String>),
}

impl Value {
    /// The text of a text.
    pub(crate) fn text(&self) -> Result<&str, String> {
        match self {
            Self::Text(text) | Self::Secret(text) => Ok(text),
            _ => Err(format!("'{self}' is not a text")),
        }
    }

    /// The number of a number, in the width of the field.
    pub(crate) fn whole<T: TryFrom<u64>>(&self) -> Result<T, String> {
        let number = match self {
            Self::Whole(number) => T::try_from(*number).ok(),
            _ => None,
        };
        number.ok_or_else(|| format!("'{self}' is not a number that fits"))
    }

    /// The state of a switch.
    pub(crate) fn switch(&self) -> Result<bool, String> {
        match self {
            Self::Switch(on) => Ok(*on),
            _ => Err(format!("'{self}' is not true or false")),
        }
    }

    /// The items of a list.
    pub(crate) fn list(&self) -> Result<&[String], String> {
        match self {
            Self::List(items) => Ok(items),
            _ => Err(format!("'{self}' is not a list")),
        }
    }

    /// As JSON, without secrets.
    pub(crate) fn to_json(&self) -> serde_json::Value {
        match self {
            Self::Unset => serde_json::Value::Null,
            Self::Secret(_) => "(hidden)".into(),
            Self::Text(text) => text.as_str().into(),
            Self::Whole(number) => (*number).into(),
            Self::Switch(on) => (*on).into(),
            Self::List(items) => items.clone().into(),
        }
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unset => f.write_str("(none)"),
            Self::Secret(_) => f.write_str("(hidden)"),
            Self::Text(text) => f.write_str(text),
            Self::Whole(number) => number.fmt(f),
            Self::Switch(on) => on.fmt(f),
            Self::List(items) if items.is_empty() => f.write_str("(none)"),
            Self::List(items) => f.write_str(&items.join(", ")),
        }
    }
}

impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
