//! The kinds of rows of the table of settings: each gives a row the functions that read and write its field. Knows no setting.
//!
//! The macros name what [`table`](super::table) imports.

use super::field::{Kind, Reach, Section, Setting, Value};

/// A row with a number; the field has any integer type.
macro_rules! whole {
    ($section:ident, $reach:ident, $name:literal, $kind:ident $value_name:literal, $($field:ident).+, $doc:literal) => {
        Setting {
            get: |settings| Value::Whole(u64::try_from(settings.$($field).+).unwrap_or(u64::MAX)),
            set: |settings, value| {
                settings.$($field).+ = value.whole()?;
                Ok(())
            },
            ..row($section, $reach, $name, $kind, $value_name, $doc)
        }
    };
}

/// A row with whole seconds; the field is a duration.
macro_rules! seconds {
    ($section:ident, $reach:ident, $name:literal => $($field:ident).+, $doc:literal) => {
        Setting {
            get: |settings| Value::Whole(settings.$($field).+.as_secs()),
            set: |settings, value| {
                settings.$($field).+ = Duration::from_secs(value.whole()?);
                Ok(())
            },
            ..row($section, $reach, $name, SECONDS, "SECONDS", $doc)
        }
    };
}

/// A row with a boolean.
macro_rules! switch {
    ($section:ident, $reach:ident, $name:literal, $($field:ident).+, $doc:literal) => {
        Setting {
            get: |settings| Value::Switch(settings.$($field).+),
            set: |settings, value| {
                settings.$($field).+ = value.switch()?;
                Ok(())
            },
            ..row($section, $reach, $name, Kind::Switch, "true|false", $doc)
        }
    };
}

/// A row with a list of texts.
macro_rules! list {
    ($section:ident, $reach:ident, $name:literal, $value_name:literal, $($field:ident).+, $doc:literal) => {
        Setting {
            get: |settings| Value::List(settings.$($field).+.clone()),
            set: |settings, value| {
                settings.$($field).+ = value.list()?.to_vec();
                Ok(())
            },
            ..row($section, $reach, $name, Kind::List, $value_name, $doc)
        }
    };
}

/// A row whose field is printed to and parsed from text.
macro_rules! text {
    ($section:ident, $reach:ident, $name:literal, $kind:expr, $value_name:literal, $($field:ident).+, $doc:literal) => {
        Setting {
            get: |settings| Value::Text(settings.$($field).+.to_string()),
            set: |settings, value| {
                settings.$($field).+ = value.text()?.parse().map_err(|error| format!("{error}"))?;
                Ok(())
            },
            ..row($section, $reach, $name, $kind, $value_name, $doc)
        }
    };
}

/// The constant part of a row.
pub(super) const fn row(
    section: Section,
    reach: Reach,
    name: &'static str,
    kind: Kind,
    value_name: &'static str,
    doc: &'static str,
) -> Setting {
    Setting {
        section,
        name,
        kind,
        value_name,
        doc,
        reach,
        default_words: None,
        foreign_variable: None,
        get: |_| Value::Unset,
        set: |_, _| Ok(()),
    }
}

pub(super) use {list, seconds, switch, text, whole};
