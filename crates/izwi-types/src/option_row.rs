//! A row of a table of options: what an option is called, what it may be, what is said of it, and where its value is.
//!
//! Knows no option.

use std::ops::RangeInclusive;

use crate::{ChunkingStrategy, InputError, excerpt};

/// An option of a request: its row in the table, and the place of its value.
#[derive(Debug)]
pub struct OptionRow<'a> {
    /// Member of a JSON body, and part of a form.
    pub name: &'static str,
    /// Another name of the same, where it is a list.
    pub alias: Option<&'static str>,
    /// A sentence or two for clients, in Markdown.
    pub description: &'static str,
    /// What a model that takes it does, after "this model does not".
    pub ability: &'static str,
    /// The flag of the command line that sets it; `None` without one.
    pub flag: Option<OptionFlag>,
    /// Its value and the limits of that.
    pub value: OptionValue<'a>,
}

/// A flag of the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OptionFlag {
    /// Its name without dashes.
    pub name: &'static str,
    /// What its value is called in the help. The flag of a list of given entries has no value: this is the entry that it adds.
    /// With a comma in it, commas part the entries of a list.
    pub value: &'static str,
    /// A line of help.
    pub help: &'static str,
}

/// The value of an option, and its limits.
#[derive(Debug)]
pub enum OptionValue<'a> {
    /// A text of at most so many characters; a blank one counts as absent.
    Text(&'a mut Option<String>, usize),
    /// Yes or no.
    Switch(&'a mut bool),
    /// A number, and what it is where it is absent, if that is one number for all models. A range that begins at
    /// [`f32::EPSILON`] means above 0.
    Number(&'a mut Option<f32>, RangeInclusive<f32>, Option<f32>),
    /// A whole number.
    Whole(&'a mut Option<u64>, RangeInclusive<u64>),
    /// Texts.
    List(&'a mut Vec<String>, ListLimits),
    /// How a recording is cut.
    Chunking(&'a mut Option<ChunkingStrategy>),
}

/// What a list may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ListLimits {
    /// The entries that are allowed; empty for any.
    pub entries: &'static [&'static str],
    /// The most entries.
    pub max_entries: usize,
    /// The most characters of an entry.
    pub max_chars: usize,
}

impl ListLimits {
    /// Any texts, so many at most.
    pub(crate) const fn any(max_entries: usize) -> Self {
        Self { entries: &[], max_entries, max_chars: usize::MAX }
    }

    /// Some of these texts.
    pub(crate) const fn of(entries: &'static [&'static str]) -> Self {
        Self { entries, ..Self::any(usize::MAX) }
    }

    /// What is wrong with a list of this name.
    fn fault(self, name: &str, list: &[String]) -> Option<String> {
        let Self { entries, max_entries, max_chars } = self;
        if let Some(other) =
            list.iter().find(|entry| !entries.is_empty() && !entries.contains(&entry.as_str()))
        {
            return Some(format!("{name} has '{}'; use {}", excerpt(other), entries.join(" or ")));
        }
        if list.len() <= max_entries && list.iter().all(|entry| entry.chars().nth(max_chars).is_none()) {
            return None;
        }
        Some(match max_chars {
            usize::MAX => format!("{name} has more than {max_entries} entries; send fewer"),
            _ => format!(
                "{name} has more than {max_entries} entries, or one of more than {max_chars} characters; send less"
            ),
        })
    }
}

impl OptionRow<'_> {
    /// Whether the option has a value.
    pub fn is_set(&self) -> bool {
        match &self.value {
            OptionValue::Text(value, _) => value.is_some(),
            OptionValue::Switch(value) => **value,
            OptionValue::Number(value, ..) => value.is_some(),
            OptionValue::Whole(value, _) => value.is_some(),
            OptionValue::List(list, _) => !list.is_empty(),
            OptionValue::Chunking(value) => value.is_some(),
        }
    }

    /// The value as fields of a form: none where it is absent, several of a list. A chunking strategy has none, since only
    /// this server reads one.
    pub(crate) fn fields(self) -> Vec<(&'static str, String)> {
        let text = match self.value {
            OptionValue::Text(value, _) => value.take(),
            OptionValue::Switch(value) => value.then(|| "true".to_owned()),
            OptionValue::Number(value, ..) => value.map(|value| value.to_string()),
            OptionValue::Whole(value, _) => value.map(|value| value.to_string()),
            OptionValue::List(list, _) => {
                let name = self.alias.unwrap_or(self.name);
                return std::mem::take(list).into_iter().map(|entry| (name, entry)).collect();
            }
            OptionValue::Chunking(_) => None,
        };
        text.map(|text| (self.name, text)).into_iter().collect()
    }

    /// Checks the value. What is blank counts as absent, because SDKs send it.
    ///
    /// # Errors
    /// The value is outside its limits; the error names the option, the value and the remedy.
    pub(crate) fn check(self) -> Result<(), InputError> {
        let param = self.name;
        let fault = match self.value {
            OptionValue::Text(text, most) => {
                text.take_if(|text| text.trim().is_empty());
                let is_long = text.as_ref().is_some_and(|text| text.chars().nth(most).is_some());
                is_long.then(|| format!("{param} has more than {most} characters; send its last part"))
            }
            OptionValue::Switch(_) => None,
            OptionValue::Number(value, range, _) => match *value {
                Some(value) if *range.start() == f32::EPSILON && !range.contains(&value) => {
                    Some(format!("{param} is {value}; it must be above 0 and at most {}", range.end()))
                }
                value => return InputError::check_range(param, value, &range),
            },
            OptionValue::Whole(value, range) => return InputError::check_range(param, *value, &range),
            OptionValue::List(list, limits) => {
                if limits.entries.is_empty() {
                    list.retain(|entry| !entry.trim().is_empty());
                }
                limits.fault(param, list)
            }
            OptionValue::Chunking(strategy) => {
                strategy.take_if(|strategy| strategy.is_auto());
                return strategy.as_ref().map_or(Ok(()), ChunkingStrategy::check);
            }
        };
        fault.map_or(Ok(()), |message| Err(InputError { param, message }))
    }
}
