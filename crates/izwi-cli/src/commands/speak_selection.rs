//! `izwi speak-selection`: reads the selected text aloud.

use anyhow::Result;

use crate::control::{self, Control};
use crate::desktop;
use crate::settings::Resolved;
use crate::sink::Target;
use crate::sound::Player;
use crate::speaking::{self, Speaking};
use crate::speech_options::SpeechFlags;
use crate::{engine, logging};

/// The name under which a command that speaks listens.
const NAME: &str = "speak-selection";

/// Read the selected text aloud
///
/// On Linux the text that is selected in any program, or else that of the clipboard; on macOS and Windows that of the
/// clipboard. A command for a shortcut of the desktop: while it speaks, a second one stops it and speaks nothing. The
/// options are those of `izwi say`. A model that is not installed is pulled first.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    options: SpeechFlags,
    /// Print a JSON report to standard output
    #[arg(long)]
    json: bool,
    /// Fail if the model is not installed, instead of pulling it
    #[arg(long)]
    no_pull: bool,
}

pub(crate) fn run(args: &Args, resolved: &Resolved) -> Result<()> {
    logging::begin(&resolved.settings, "warn");
    let home = &resolved.settings.home;
    let Some(mut control) = Control::listen(home, NAME)? else {
        control::tell(home, NAME)?;
        return Ok(());
    };
    let text = desktop::selected_text()?;
    // The first words are heard before the last ones are generated, where a player can.
    let (player, stream) = match Player::find(true) {
        Ok(player) => (player, true),
        Err(_) => (Player::find(false)?, false),
    };
    let (config, store) = speaking::choose_model(&args.options, resolved, !args.no_pull)?;
    let remote = resolved.settings.remote(&config.model);
    let (player, json) = (Some(player), args.json);
    let speaking =
        Speaking { options: &args.options, target: Target::None, player, stream, json, store: &store };
    engine::run_model(config, remote, async |loaded| {
        tokio::select! {
            result = speaking.run(loaded, text) => result,
            () = control.next() => Ok(()),
        }
    })
}
