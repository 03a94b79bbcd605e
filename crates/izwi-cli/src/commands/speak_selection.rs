//! `izwi speak-selection`: reads the selected text aloud.

use anyhow::Result;

use crate::control::{self, Control, SPEAK_SELECTION};
use crate::desktop;
use crate::interrupt::Interrupt;
use crate::settings::Resolved;
use crate::sink::Target;
use crate::sound::Player;
use crate::speaking::{self, Speaking};
use crate::speech_options::SpeechFlags;
use crate::web_socket::Place;
use crate::{engine, logging, models};

/// Read the selected text aloud
///
/// On Linux the text that is selected in any program, or else that of the clipboard; on macOS and Windows that of the
/// clipboard. A command for a shortcut of the desktop: while it speaks, a second one stops it and speaks nothing. The
/// options are those of `izwi say`. A model that is not installed is pulled first.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    options: SpeechFlags,
    /// Read the clipboard, whatever is selected
    #[arg(long)]
    clipboard: bool,
    /// Use a server that runs already, such as http://127.0.0.1:8080, instead of loading the model; its key is the setting
    /// api_key. The model is its default one unless --model names another
    #[arg(long, value_name = "URL")]
    server: Option<String>,
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
    let Some(mut control) = Control::listen(home, SPEAK_SELECTION)? else {
        control::tell(home, SPEAK_SELECTION)?;
        return Ok(());
    };
    let text = if args.clipboard { desktop::clipboard_text() } else { desktop::selected_text() }?;
    // The first words are heard before the last ones are generated, where a player can.
    let (player, stream) = match Player::find(true) {
        Ok(player) => (player, true),
        Err(_) => (Player::find(false)?, false),
    };
    let (config, store) = match &args.server {
        Some(_) => (engine::local_config(resolved), models::open(&resolved.settings)?),
        None => speaking::choose_model(&args.options, resolved, !args.no_pull)?,
    };
    let (player, json) = (Some(player), args.json);
    let speaking =
        Speaking { options: &args.options, target: Target::None, player, stream, json, store: &store };
    let speak = async |loaded| {
        tokio::select! {
            result = speaking.run(loaded, text) => result,
            () = control.next() => Ok(()),
        }
    };
    let Some(url) = &args.server else {
        let remote = resolved.settings.remote(&config.model);
        return engine::run_model(config, remote, speak);
    };
    let model = resolved.is_flag("model").then(|| config.model.clone());
    let place = Place::of(url, resolved.settings.server.config.api_key.clone())?;
    let threads = config.num_threads;
    let load =
        async |interrupt: &mut Interrupt| interrupt.guard(place.speaker(model.as_deref(), config)).await;
    engine::run_loaded(threads, load, speak)
}
