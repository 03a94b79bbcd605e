//! Combines the sources in order: flag, environment, file, variable of another program, default.
//!
//! A pure function of its arguments. Knows no environment, no disk and no command line.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;

use super::field::{Setting, Value};
use super::file::File;
use super::origin::{Origin, Problem};
use super::table::TABLE;
use super::values::Settings;

/// The sources of values.
pub(crate) struct Sources<'a> {
    /// Values of flags, by name of the setting.
    pub(crate) flags: &'a BTreeMap<&'static str, Vec<String>>,
    /// Looks up a variable of the environment.
    pub(crate) variable: &'a dyn Fn(&str) -> Option<OsString>,
    /// The file; empty if there is none.
    pub(crate) file: &'a File,
    /// The data folder of the platform.
    pub(crate) data_folder: PathBuf,
}

/// The settings and their origins.
#[derive(Debug, Clone)]
pub(crate) struct Resolved {
    /// The values.
    pub(crate) settings: Settings,
    /// The origin of each setting, in the order of the table.
    pub(crate) origins: Vec<(&'static Setting, Origin)>,
}

impl Resolved {
    /// Whether a flag gives the setting of this name.
    pub(crate) fn is_flag(&self, name: &str) -> bool {
        matches!(self.origin(name), Origin::Flag(_))
    }

    /// Whether any source gives the setting of this name.
    pub(crate) fn is_set(&self, name: &str) -> bool {
        *self.origin(name) != Origin::Default
    }

    /// The origin of the setting of this name.
    pub(crate) fn origin(&self, name: &str) -> &Origin {
        let found = self.origins.iter().find(|(setting, _)| setting.name == name);
        found.map_or(&Origin::Default, |(_, origin)| origin)
    }
}

/// Combines the sources.
///
/// # Errors
/// All invalid values in the order of the table, or values that contradict each other.
pub(crate) fn resolve(sources: &Sources<'_>) -> Result<Resolved, Vec<Problem>> {
    let mut settings = Settings::defaults(sources.data_folder.clone());
    settings.remote_models.clone_from(&sources.file.remote_models);
    settings.pipelines.clone_from(&sources.file.pipelines);
    settings.dictation.clone_from(&sources.file.dictation);
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
    // The variable belongs to another program: an invalid value is ignored.
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
    fn flag_overrides_environment_overrides_file_overrides_default() {
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
    fn the_variable_of_another_program_comes_before_the_default() {
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
    fn every_invalid_value_is_named_with_its_source() {
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
    fn contradicting_settings_are_refused() {
        let case =
            Case { flags: &[("block_size", "4294967296"), ("max_blocks", "2")], variables: &[], file: "" };
        assert!(resolved(&case).unwrap_err()[0].message.contains("max_blocks"));
    }

    #[test]
    fn each_row_reads_what_it_wrote() {
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
