//! Combines the sources: flag, then environment, then file, then another program's variable, then default.
//!
//! A pure function of what it is given: reads no environment, no disk and no command line.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;

use super::field::{Setting, Value};
use super::file::File;
use super::{Settings, TABLE};

/// Everything that can set something.
pub(crate) struct Sources<'a> {
    /// Values given as flags, by the setting's name.
    pub(crate) flags: &'a BTreeMap<&'static str, Vec<String>>,
    /// The environment.
    pub(crate) variable: &'a dyn Fn(&str) -> Option<OsString>,
    /// The file, where there is one.
    pub(crate) file: &'a File,
    /// The platform's data folder for Izwi.
    pub(crate) data_folder: PathBuf,
}

/// Where a value came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Origin {
    /// The command line; the flag without dashes.
    Flag(String),
    /// A variable.
    Environment(String),
    /// A line of the configuration file.
    File(PathBuf, usize),
    /// The program.
    Default,
}

impl Origin {
    /// The line, for what came from a file.
    pub(crate) fn line(&self) -> usize {
        if let Self::File(_, line) = self { *line } else { 0 }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag(name) => write!(f, "--{name}"),
            Self::Environment(name) => f.write_str(name),
            Self::File(path, line) => write!(f, "{}:{line}", path.display()),
            Self::Default => f.write_str("default"),
        }
    }
}

/// Something that was set and cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Problem {
    /// Where it was set.
    pub(crate) origin: Origin,
    /// What is wrong and what would be right.
    pub(crate) message: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.origin {
            // Values that do not fit together: no single place is wrong.
            Origin::Default => f.write_str(&self.message),
            origin => write!(f, "{origin}: {}", self.message),
        }
    }
}

/// The settings, and for each of the table where its value came from.
#[derive(Debug, Clone)]
pub(crate) struct Resolved {
    /// The values.
    pub(crate) settings: Settings,
    /// In the table's order.
    pub(crate) origins: Vec<(&'static Setting, Origin)>,
}

impl Resolved {
    /// Whether the command line itself gives the setting of this name.
    pub(crate) fn is_flag(&self, name: &str) -> bool {
        let by_flag = |origin: &Origin| matches!(origin, Origin::Flag(_));
        self.origins.iter().any(|(setting, origin)| setting.name == name && by_flag(origin))
    }
}

#[cfg(test)]
impl Resolved {
    /// Where the setting of this name came from.
    pub(crate) fn origin(&self, name: &str) -> &Origin {
        let found = self.origins.iter().find(|(setting, _)| setting.name == name);
        found.map_or(&Origin::Default, |(_, origin)| origin)
    }
}

/// Combines the sources.
///
/// # Errors
/// Every value that cannot be used, in the table's order, or that does not fit with the others.
pub(crate) fn resolve(sources: &Sources<'_>) -> Result<Resolved, Vec<Problem>> {
    let mut settings = Settings::defaults(sources.data_folder.clone());
    let mut origins = Vec::with_capacity(TABLE.len());
    let mut problems = Vec::new();
    for setting in TABLE {
        let origin = match given(setting, sources) {
            None => Origin::Default,
            Some((origin, value)) => {
                if let Err(message) = value.and_then(|value| (setting.set)(&mut settings, &value)) {
                    problems.push(Problem { origin: origin.clone(), message });
                }
                origin
            }
        };
        origins.push((setting, origin));
    }
    if problems.is_empty()
        && let Err(error) = settings.engine.validate()
    {
        problems.push(Problem { origin: Origin::Default, message: error.to_string() });
    }
    if problems.is_empty() { Ok(Resolved { settings, origins }) } else { Err(problems) }
}

type Given = (Origin, Result<Value, String>);

/// The value of the first source that has one.
fn given(setting: &'static Setting, sources: &Sources<'_>) -> Option<Given> {
    let flag = || {
        let texts = sources.flags.get(setting.name)?;
        Some((Origin::Flag(setting.flag()), setting.kind.parse_texts(texts)))
    };
    let variable = |name: &str| {
        let text = (sources.variable)(name).filter(|text| !text.is_empty())?;
        let value = match text.to_str() {
            Some(text) => setting.kind.parse_variable(text),
            None => Err("the value is not UTF-8".to_owned()),
        };
        Some((Origin::Environment(name.to_owned()), value))
    };
    let file = || {
        let entry = sources.file.entries.iter().find(|entry| entry.setting.name == setting.name)?;
        Some((entry.origin.clone(), Ok(entry.value.clone())))
    };
    // What other programs understand by their variable is theirs: a value of no use here is passed over.
    let foreign = || {
        let mut scratch = Settings::defaults(PathBuf::new());
        variable(setting.foreign_variable?)
            .filter(|(_, value)| value.as_ref().is_ok_and(|value| (setting.set)(&mut scratch, value).is_ok()))
    };
    flag().or_else(|| variable(&setting.variable())).or_else(file).or_else(foreign)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::file;
    use super::*;

    struct Case {
        flags: &'static [(&'static str, &'static str)],
        variables: &'static [(&'static str, &'static str)],
        file: &'static str,
    }

    fn resolved(case: &Case) -> Result<Resolved, Vec<Problem>> {
        let mut flags: BTreeMap<&'static str, Vec<String>> = BTreeMap::new();
        for (name, value) in case.flags {
            flags.entry(name).or_default().push((*value).to_owned());
        }
        let variable = |name: &str| {
            case.variables.iter().find(|(key, _)| *key == name).map(|(_, value)| OsString::from(value))
        };
        let file = file::parse(Path::new("c.toml"), case.file).unwrap();
        resolve(&Sources { flags: &flags, variable: &variable, file: &file, data_folder: "/data".into() })
    }

    #[track_caller]
    fn check(case: &Case, name: &str, value: &str, origin: &str) {
        let resolved = resolved(case).unwrap();
        let setting = TABLE.iter().find(|setting| setting.name == name).unwrap();
        assert_eq!((setting.get)(&resolved.settings).to_string(), value);
        assert_eq!(resolved.origin(name).to_string(), origin);
    }

    #[test]
    fn flag_beats_environment_beats_file_beats_default() {
        const FLAG: &[(&str, &str)] = &[("port", "1")];
        const VARIABLE: &[(&str, &str)] = &[("IZWI_PORT", "2")];
        const FILE: &str = "[server]\nport = 3\n";
        check(&Case { flags: FLAG, variables: VARIABLE, file: FILE }, "port", "1", "--port");
        check(&Case { flags: &[], variables: VARIABLE, file: FILE }, "port", "2", "IZWI_PORT");
        check(&Case { flags: &[], variables: &[("IZWI_PORT", "")], file: FILE }, "port", "3", "c.toml:2");
        check(&Case { flags: &[], variables: &[], file: "" }, "port", "8080", "default");
        check(&Case { flags: &[], variables: &[], file: "" }, "home", "/data", "default");
    }

    #[test]
    fn another_programs_variable_is_the_last_before_the_default() {
        const FOREIGN: &[(&str, &str)] = &[("RAYON_NUM_THREADS", "3")];
        const FILE: &str = "[engine]\nthreads = 5\n";
        check(&Case { flags: &[], variables: FOREIGN, file: "" }, "threads", "3", "RAYON_NUM_THREADS");
        check(&Case { flags: &[], variables: FOREIGN, file: FILE }, "threads", "5", "c.toml:2");
        let nonsense = Case { flags: &[], variables: &[("RAYON_NUM_THREADS", "0")], file: FILE };
        check(&nonsense, "threads", "5", "c.toml:2");
        let nonsense = Case { flags: &[], variables: &[("RAYON_NUM_THREADS", "-")], file: "" };
        assert_eq!(resolved(&nonsense).unwrap().origin("threads"), &Origin::Default);
        let nonsense = Case { flags: &[], variables: &[("RUST_LOG", "a=b=c")], file: "" };
        assert_eq!(resolved(&nonsense).unwrap().origin("log_level"), &Origin::Default);
    }

    #[test]
    fn every_bad_value_is_named_with_its_source() {
        let case = Case {
            flags: &[("threads", "0"), ("enable_preemption", "maybe")],
            variables: &[("IZWI_PORT", "eighty"), ("IZWI_LOG_FORMAT", "xml")],
            file: "",
        };
        let problems: Vec<String> = resolved(&case).unwrap_err().iter().map(ToString::to_string).collect();
        assert_eq!(
            problems,
            [
                "IZWI_LOG_FORMAT: 'xml' is not text or json",
                "--threads: '0' is not a whole number from 1 to 1024",
                "--enable-preemption: 'maybe' is not true or false",
                "IZWI_PORT: 'eighty' is not a whole number from 0 to 65535",
            ]
        );
    }

    #[test]
    fn settings_that_do_not_fit_together_are_refused() {
        let case =
            Case { flags: &[("block_size", "4294967296"), ("max_blocks", "2")], variables: &[], file: "" };
        assert!(resolved(&case).unwrap_err()[0].message.contains("max_blocks"));
    }

    #[test]
    fn each_row_reads_back_what_it_wrote() {
        let defaults = Settings::defaults("/data".into());
        for setting in TABLE {
            let value = (setting.get)(&defaults);
            if value == Value::Unset {
                continue;
            }
            let mut settings = Settings::defaults("/elsewhere".into());
            (setting.set)(&mut settings, &value).unwrap();
            assert_eq!((setting.get)(&settings), value, "{}", setting.name);
        }
    }

    #[test]
    fn names_are_unique_for_flags_and_variables() {
        let mut names: Vec<&str> = TABLE.iter().map(|setting| setting.name).collect();
        names.sort_unstable();
        let count = names.len();
        names.dedup();
        assert_eq!(names.len(), count);
    }
}
