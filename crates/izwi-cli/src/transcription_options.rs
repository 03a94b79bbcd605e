//! The options of a transcription as flags, made of the table that declares them.
//!
//! Knows no recording and no model.

use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use izwi_core::engine::TranscriptionOptions;
use izwi_types::{ChunkingStrategy, OptionFlag, OptionRow, OptionValue};

/// The options that the flags set. Those without a flag are absent.
#[derive(Debug)]
pub(crate) struct TranscriptionFlags(pub(crate) TranscriptionOptions);

/// The flag of a row.
fn arg(row: &OptionRow<'_>) -> Option<Arg> {
    let OptionFlag { name, value, help } = row.flag?;
    let arg = Arg::new(name).long(name).help(help);
    let valued = arg.clone().value_name(value);
    Some(match &row.value {
        OptionValue::Switch(_) => arg.action(ArgAction::SetTrue),
        OptionValue::List(_, limits) if !limits.entries.is_empty() => arg.action(ArgAction::SetTrue),
        // Its entries have no comma.
        OptionValue::List(..) if value.contains(',') => valued.action(ArgAction::Append).value_delimiter(','),
        OptionValue::List(..) => valued.action(ArgAction::Append),
        OptionValue::Number(..) => valued.value_parser(value_parser!(f32)),
        OptionValue::Whole(..) => valued.value_parser(value_parser!(u64)),
        OptionValue::Text(..) | OptionValue::Chunking(_) => valued,
    })
}

/// Sets the value of a row from its flag.
fn set(row: OptionRow<'_>, matches: &ArgMatches) {
    let Some(OptionFlag { name, value: entry, .. }) = row.flag else { return };
    match row.value {
        OptionValue::Text(value, _) => *value = matches.get_one(name).cloned(),
        OptionValue::Switch(value) => *value = matches.get_flag(name),
        OptionValue::Number(value, ..) => *value = matches.get_one(name).copied(),
        OptionValue::Whole(value, _) => *value = matches.get_one(name).copied(),
        OptionValue::List(list, limits) if !limits.entries.is_empty() => {
            list.extend(matches.get_flag(name).then(|| entry.to_owned()));
        }
        OptionValue::List(list, _) => {
            list.extend(matches.get_many::<String>(name).into_iter().flatten().cloned())
        }
        OptionValue::Chunking(value) => *value = matches.get_one(name).cloned().map(ChunkingStrategy::Named),
    }
}

impl clap::Args for TranscriptionFlags {
    fn augment_args(command: Command) -> Command {
        TranscriptionOptions::default().rows().iter().filter_map(arg).fold(command, Command::arg)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl clap::FromArgMatches for TranscriptionFlags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut options = TranscriptionOptions::default();
        options.rows().into_iter().for_each(|row| set(row, matches));
        Ok(Self(options))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use clap::{Args as _, FromArgMatches as _};

    use super::*;

    #[test]
    fn every_flag_is_in_the_options() {
        let command = TranscriptionFlags::augment_args(Command::new("transcribe").no_binary_name(true));
        let line = "--languages de,en --languages fr --words --translate --prompt Izwi --beam-size 3 --patience 2 \
             --length-penalty 0.5 --inverse-normalization --keyword a,b";
        let matches = command.clone().try_get_matches_from(line.split_whitespace()).unwrap();
        let TranscriptionFlags(options) = TranscriptionFlags::from_arg_matches(&matches).unwrap();
        let expected = TranscriptionOptions {
            languages: ["de", "en", "fr"].map(str::to_owned).to_vec(),
            inverse_normalization: true,
            keywords: vec!["a,b".to_owned()],
            translate: true,
            prompt: Some("Izwi".to_owned()),
            beam_size: Some(3),
            patience: Some(2.0),
            length_penalty: Some(0.5),
            ..TranscriptionOptions::default()
        };
        assert_eq!(options, expected.with_words());
        let matches = command.try_get_matches_from(Vec::<String>::new()).unwrap();
        let TranscriptionFlags(options) = TranscriptionFlags::from_arg_matches(&matches).unwrap();
        assert_eq!(options, TranscriptionOptions::default());
    }
}
