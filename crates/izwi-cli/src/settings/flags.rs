//! Settings as flags: creates clap arguments from the table, and reads their values.

use std::collections::BTreeMap;

use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command};

use super::field::{Kind, Reach, Section, Setting};
use super::table::TABLE;

/// Which settings are flags of a command.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Chosen {
    /// All of these sections.
    Sections(&'static [Section]),
    /// Those with these names.
    Names(&'static [&'static str]),
}

impl Chosen {
    fn has(self, setting: &Setting) -> bool {
        match self {
            Self::Sections(sections) => sections.contains(&setting.section),
            Self::Names(names) => names.contains(&setting.name),
        }
    }
}

/// Adds the global flags to the root, and the chosen ones to the named commands.
pub(crate) fn add_to(root: Command, commands: &[(&str, Chosen)]) -> Command {
    let everywhere = TABLE.iter().filter(|setting| setting.reach == Reach::Everywhere);
    let mut root = root.args(everywhere.map(|setting| argument(setting).global(true)));
    for (path, chosen) in commands {
        let own: Vec<Arg> = TABLE
            .iter()
            .filter(|setting| setting.reach != Reach::Everywhere && chosen.has(setting))
            .map(argument)
            .collect();
        root = at_path(root, path, own);
    }
    root
}

fn at_path(command: Command, path: &str, args: Vec<Arg>) -> Command {
    let (name, rest) = path.split_once(' ').unwrap_or((path, ""));
    let mut args = Some(args);
    // In place: `mut_subcommand` would move the command to the end of every list.
    command.mut_subcommands(|inner| match args.take_if(|_| inner.get_name() == name) {
        None => inner,
        Some(args) if rest.is_empty() => inner.args(args),
        Some(args) => at_path(inner, rest, args),
    })
}

fn argument(setting: &'static Setting) -> Arg {
    let heading = match (setting.reach, setting.section) {
        (Reach::Everywhere, _) | (_, Section::Top) => "Everywhere",
        (_, Section::Engine) => "Engine",
        (_, Section::Server) => "Server",
    };
    let default = setting.default_text();
    let help = format!("{} [default: {default}] [env: {}]", setting.doc, setting.variable());
    let arg = Arg::new(setting.name)
        .long(setting.flag())
        .value_name(setting.value_name)
        .help(help)
        .help_heading(heading)
        .hide_short_help(setting.reach != Reach::Section)
        .hide_long_help(setting.reach == Reach::Tuning);
    match setting.kind {
        Kind::Switch => arg.num_args(0..=1).require_equals(true).default_missing_value("true"),
        Kind::List => arg.action(ArgAction::Append),
        _ => arg,
    }
}

/// The values on the command line, by name of the setting.
pub(crate) fn given(matches: &ArgMatches) -> BTreeMap<&'static str, Vec<String>> {
    let mut innermost = matches;
    while let Some((_, inner)) = innermost.subcommand() {
        innermost = inner;
    }
    let values = |setting: &Setting| -> Option<Vec<String>> {
        // A command without the flag has no such id.
        let values = innermost.try_get_many::<String>(setting.name).ok()??;
        let from_user = innermost.value_source(setting.name) == Some(ValueSource::CommandLine);
        from_user.then(|| values.cloned().collect())
    };
    TABLE.iter().filter_map(|setting| Some((setting.name, values(setting)?))).collect()
}
