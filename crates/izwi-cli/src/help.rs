//! What the help shows: common flags in the short one, all that a command means in the long one, and every flag that it takes with
//! `--help-all`; and the remedy for a command that does not exist. Knows no command.

use std::ffi::{OsStr, OsString};

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, ArgAction, Command};
use izwi_types::suggest;

use crate::failure;

/// Stands for the long help with every flag.
const HELP_ALL: &str = "help-all";
/// At the end of the short help of a command with more flags.
const MORE: &str = "`--help` lists all options, `--help-all` those of the scheduler and of limits too.";
/// At the end of the long help of such a command.
const EVEN_MORE: &str = "Settings of the scheduler and of limits belong into the settings file (`izwi config init` writes one); as \
    flags, `--help-all` lists them.";

/// Adds `--help-all` to all commands, and a remark to those for which it lists more.
pub(crate) fn prepare(root: Command) -> Command {
    let flag = Arg::new(HELP_ALL)
        .long(HELP_ALL)
        .global(true)
        .action(ArgAction::SetTrue)
        .help("Print help with every flag, those of the scheduler and of limits too")
        .help_heading("Everywhere");
    remark(root.arg(flag))
}

fn remark(command: Command) -> Command {
    let has_more = command.get_arguments().any(Arg::is_hide_long_help_set);
    let command = if has_more { command.after_help(MORE).after_long_help(EVEN_MORE) } else { command };
    command.mut_subcommands(remark)
}

/// The same command line with every flag in its help.
pub(crate) fn in_full(command: Command) -> Command {
    let shown = command.mut_args(|arg| arg.hide_long_help(false).hide_short_help(false));
    shown.after_help("").after_long_help("").mut_subcommands(in_full)
}

/// Replaces `--help-all` by `--help`; whether it was there.
pub(crate) fn take_help_all(arguments: &mut [OsString]) -> bool {
    let flag = OsString::from(format!("--{HELP_ALL}"));
    // What stands behind `--` is no flag.
    let end = arguments.iter().position(|argument| argument == "--").unwrap_or(arguments.len());
    let found = arguments[..end].iter_mut().find(|argument| **argument == flag);
    found.is_some_and(|argument| {
        *argument = OsString::from("--help");
        true
    })
}

/// The error of a command that does not exist, with those that do; `None` for other errors of the arguments.
pub(crate) fn unknown_command(
    error: &clap::Error,
    root: &Command,
    arguments: &[OsString],
) -> Option<anyhow::Error> {
    if error.kind() != ErrorKind::InvalidSubcommand {
        return None;
    }
    let Some(ContextValue::String(name)) = error.get(ContextKind::InvalidSubcommand) else { return None };
    let (mut command, mut path) = (root, root.get_name().to_owned());
    for argument in arguments.iter().skip(1).take_while(|argument| *argument != OsStr::new(name)) {
        if let Some(inner) = command.find_subcommand(argument) {
            path = format!("{path} {}", inner.get_name());
            command = inner;
        }
    }
    let listed = command.get_subcommands().filter(|inner| !inner.is_hide_set());
    let names: Vec<&str> = listed.flat_map(Command::get_name_and_visible_aliases).collect();
    let hint = suggest(name, "commands", names);
    Some(failure::usage(
        format!("'{name}' is no command of `{path}`"),
        format!("{hint}; see `{path} --help`"),
    ))
}
