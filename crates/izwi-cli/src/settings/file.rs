//! The configuration file: parses TOML to values of known settings, and reports errors by line.
//!
//! Knows no disk: the caller passes the text.

use std::path::{Path, PathBuf};

use izwi_types::similar;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::dictation;
use super::dictation_profile::DictationProfile;
use super::field::{Section, Setting, Value};
use super::keys::Fault;
use super::origin::{Origin, Problem};
use super::pipeline_model::PipelineModel;
use super::pipelines;
use super::remote;
use super::remote_model::RemoteModel;
use super::table::TABLE;
use super::values::Settings;

/// The values of a file.
#[derive(Debug, Clone, Default)]
pub(crate) struct File {
    /// In the order of the file.
    pub(crate) entries: Vec<Entry>,
    /// The models that other servers run.
    pub(crate) remote_models: Vec<RemoteModel>,
    /// The chat models that are composed of others.
    pub(crate) pipelines: Vec<PipelineModel>,
    /// How text is dictated into programs.
    pub(crate) dictation: Vec<DictationProfile>,
}

/// One value.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    /// The setting.
    pub(crate) setting: &'static Setting,
    /// Its value.
    pub(crate) value: Value,
    /// The file and the line, from 1.
    pub(crate) origin: Origin,
}

/// Parses the text of the file at `path`.
///
/// # Errors
/// All unknown keys, with suggestions, and all values of a wrong type or out of range, in the order of the file; or the
/// first syntax error.
pub(crate) fn parse(path: &Path, text: &str) -> Result<File, Vec<Problem>> {
    let mut reader = Reader { path: path.to_path_buf(), text, file: File::default(), problems: Vec::new() };
    match DeTable::parse(text) {
        Ok(table) => reader.top(table.get_ref()),
        Err(error) => {
            let at = error.span().map_or(0, |span| span.start);
            reader.problem(at, error.message().to_owned());
        }
    }
    // The parser sorts by key.
    reader.file.entries.sort_by_key(|entry| entry.origin.line());
    reader.problems.sort_by_key(|problem| problem.origin.line());
    if reader.problems.is_empty() { Ok(reader.file) } else { Err(reader.problems) }
}

struct Reader<'t> {
    path: PathBuf,
    text: &'t str,
    file: File,
    problems: Vec<Problem>,
}

impl Reader<'_> {
    fn top(&mut self, table: &DeTable<'_>) {
        for (key, value) in table {
            let name: &str = key.get_ref();
            let at = key.span().start;
            match name {
                remote::TABLES => {
                    let models = self.tables(name, at, value.get_ref(), remote::parse);
                    models.into_iter().for_each(|(at, model)| {
                        if self.is_new(name, at, &model.config.name) {
                            self.file.remote_models.push(model);
                        }
                    });
                    continue;
                }
                pipelines::TABLES => {
                    let models = self.tables(name, at, value.get_ref(), pipelines::parse);
                    models.into_iter().for_each(|(at, model)| {
                        if self.is_new(name, at, model.name()) {
                            self.file.pipelines.push(model);
                        }
                    });
                    continue;
                }
                dictation::TABLES => {
                    let profiles = self.tables(name, at, value.get_ref(), dictation::parse);
                    self.file.dictation.extend(profiles.into_iter().map(|(_, profile)| profile));
                    continue;
                }
                _ => {}
            }
            let section = Section::ALL.into_iter().find(|section| section.name() == name && !name.is_empty());
            match (section, value.get_ref()) {
                (Some(section), DeValue::Table(inner)) => self.section(section, inner),
                (Some(_), _) => {
                    self.problem(key.span().start, format!("'{name}' is a table: write [{name}] on a line"));
                }
                (None, _) => self.setting(Section::Top, key, value),
            }
        }
    }

    /// Reads tables that may occur several times, each with where it begins.
    fn tables<M>(
        &mut self,
        name: &str,
        at: usize,
        value: &DeValue<'_>,
        parse: fn(&DeTable<'_>, usize, Origin) -> Result<M, Vec<Fault>>,
    ) -> Vec<(usize, M)> {
        let no_tables = || format!("{name} are tables: write [[{name}]] on a line");
        let Some(items) = value.as_array() else {
            self.problem(at, no_tables());
            return Vec::new();
        };
        let mut models = Vec::new();
        for item in items {
            let at = item.span().start;
            let Some(table) = item.get_ref().as_table() else {
                self.problem(at, no_tables());
                continue;
            };
            match parse(table, at, Origin::File(self.path.clone(), self.line(at))) {
                Err(problems) => problems.into_iter().for_each(|(at, message)| self.problem(at, message)),
                Ok(model) => models.push((at, model)),
            }
        }
        models
    }

    /// Whether no other model has a name; one that is given twice is a problem.
    fn is_new(&mut self, tables: &str, at: usize, name: &str) -> bool {
        let remotes = self.file.remote_models.iter().map(|model| model.config.name.as_str());
        let is_new =
            remotes.chain(self.file.pipelines.iter().map(PipelineModel::name)).all(|known| known != name);
        if !is_new {
            self.problem(at, format!("{tables}: name: '{name}' is given twice; choose another name"));
        }
        is_new
    }

    fn section(&mut self, section: Section, table: &DeTable<'_>) {
        for (key, value) in table {
            self.setting(section, key, value);
        }
    }

    fn setting(
        &mut self,
        section: Section,
        key: &Spanned<std::borrow::Cow<'_, str>>,
        value: &Spanned<DeValue<'_>>,
    ) {
        let name: &str = key.get_ref();
        let known = TABLE.iter().find(|setting| setting.section == section && setting.name == name);
        let Some(setting) = known else {
            return self.problem(key.span().start, unknown(section, name));
        };
        let parsed = setting.kind.parse_toml(value.get_ref()).and_then(|value| {
            // The field may refuse values that its type allows.
            (setting.set)(&mut Settings::defaults(PathBuf::new()), &value)?;
            Ok(value)
        });
        match parsed {
            Ok(value) => {
                let origin = Origin::File(self.path.clone(), self.line(key.span().start));
                self.file.entries.push(Entry { setting, value, origin });
            }
            Err(message) => self.problem(value.span().start, format!("{}: {message}", setting.key())),
        }
    }

    fn problem(&mut self, at: usize, message: String) {
        self.problems.push(Problem { origin: Origin::File(self.path.clone(), self.line(at)), message });
    }

    fn line(&self, at: usize) -> usize {
        let before = self.text.as_bytes().get(..at).unwrap_or_default();
        before.iter().filter(|byte| **byte == b'\n').count() + 1
    }
}

/// The message for an unknown key.
fn unknown(section: Section, name: &str) -> String {
    if let Some(elsewhere) = TABLE.iter().find(|setting| setting.name == name) {
        return format!("'{name}' does not belong here: it is {}", place(elsewhere));
    }
    let here = TABLE.iter().filter(|setting| setting.section == section).map(|setting| setting.name);
    let sections = Section::ALL.into_iter().map(Section::name).filter(|name| !name.is_empty());
    let tables = sections.chain([remote::TABLES, pipelines::TABLES, dictation::TABLES]);
    let names: Vec<&str> =
        if section == Section::Top { here.chain(tables).collect() } else { here.collect() };
    let mut near = similar(name, names);
    if near.is_empty() {
        near = similar(name, TABLE.iter().map(|setting| setting.name));
    }
    match near.as_slice() {
        [] => format!("unknown key '{name}'; `izwi config show` lists all"),
        near => format!("unknown key '{name}': did you mean {}?", near.join(", ")),
    }
}

fn place(setting: &Setting) -> String {
    match setting.section {
        Section::Top => format!("'{}' at the top, before any table", setting.name),
        section => format!("'{}' in [{}]", setting.name, section.name()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(text: &str) -> Vec<String> {
        let problems = parse(Path::new("c.toml"), text).unwrap_err();
        problems.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn all_tables_are_parsed() {
        let text =
            "home = \"/h\"\n[engine]\nmax_batch_size = 0x10\nenable_preemption = false\n[server]\nport = 1\n";
        let file = parse(Path::new("c.toml"), text).unwrap();
        let entries: Vec<String> = file
            .entries
            .iter()
            .map(|entry| format!("{}={} {}", entry.setting.key(), entry.value, entry.origin))
            .collect();
        assert_eq!(
            entries,
            [
                "home=/h c.toml:1",
                "engine.max_batch_size=16 c.toml:3",
                "engine.enable_preemption=false c.toml:4",
                "server.port=1 c.toml:6"
            ]
        );
    }

    #[test]
    fn unknown_keys_get_suggestions_and_lines() {
        assert_eq!(
            problems("[engine]\n\nmax_batchsize = 8\n[server]\nprt = 1\n"),
            [
                "c.toml:3: unknown key 'max_batchsize': did you mean max_batch_size?",
                "c.toml:5: unknown key 'prt': did you mean port?"
            ]
        );
        assert_eq!(
            problems("port = 1\n"),
            ["c.toml:1: 'port' does not belong here: it is 'port' in [server]"]
        );
        assert_eq!(problems("[servr]\nport = 1\n"), ["c.toml:1: unknown key 'servr': did you mean server?"]);
        assert_eq!(problems("zzz = 1\n"), ["c.toml:1: unknown key 'zzz'; `izwi config show` lists all"]);
        assert_eq!(problems("engine = 1\n"), ["c.toml:1: 'engine' is a table: write [engine] on a line"]);
    }

    #[test]
    fn invalid_values_list_the_valid_ones() {
        let policies = izwi_core::engine::SchedulingPolicy::LABELS.join(" or ");
        let lifo = format!("c.toml:3: engine.scheduling_policy: 'lifo' is not {policies}");
        assert_eq!(
            problems("[engine]\nthreads = \"many\"\nscheduling_policy = \"lifo\"\ndevice = \"gpu\"\n"),
            [
                "c.toml:2: engine.threads: a value of type string is not a whole number from 1 to 1024",
                lifo.as_str(),
                "c.toml:4: engine.device: device 'gpu' is unknown; use auto, cpu, metal, metal:N, cuda or cuda:N"
            ]
        );
        assert_eq!(
            problems("[server]\napi_key = 12345\n"),
            ["c.toml:2: server.api_key: a value of type integer is not a text"],
            "a key is not shown"
        );
        assert_eq!(
            problems("[server]\nport = -1\n"),
            ["c.toml:2: server.port: -1 is not a whole number from 0 to 65535"]
        );
        assert_eq!(
            problems("[server]\nport = 65536\n"),
            ["c.toml:2: server.port: '65536' is not a whole number from 0 to 65535"]
        );
    }

    #[test]
    fn a_syntax_error_is_reported_with_its_line() {
        let found = problems("[engine]\nthreads = = 1\n");
        assert!(found[0].starts_with("c.toml:2: "), "{found:?}");
    }
}
