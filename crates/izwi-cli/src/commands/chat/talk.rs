//! The conversation itself: turns through an engine, and where the answers go.

use anyhow::{Context as _, Result};
use izwi_core::engine::{ChatOptions, Conversation, Engine, EngineCoreRequest, Message, RequestStats};

use super::{Args, report};
use crate::failure::Failure;
use crate::interrupt::Interrupt;
use crate::player::Player;
use crate::{output, sink};

/// A conversation under way.
pub(super) struct Talk<'a> {
    args: &'a Args,
    pub(super) engine: Engine,
    player: Option<Player>,
    conversation: Conversation,
    /// All that the model has said, where it is kept.
    samples: Vec<f32>,
}

impl<'a> Talk<'a> {
    /// Nobody has said anything.
    pub(super) fn new(args: &'a Args, engine: Engine, player: Option<Player>) -> Self {
        Self { args, engine, player, conversation: Conversation::new(), samples: Vec::new() }
    }

    /// One turn of the user's and the answer to it.
    ///
    /// # Errors
    /// The turn is refused or fails, the answer cannot be printed or played, or the process was interrupted.
    pub(super) async fn turn(&mut self, message: Message, interrupt: &mut Interrupt) -> Result<()> {
        let forgotten = self.conversation.truncate(self.engine.config().conversation_limits());
        if forgotten > 0 {
            output::say(&format!("the oldest {forgotten} turns are forgotten: there is no more room"));
        }
        self.conversation.ask(vec![message]);
        let (_, mut chunks) = tokio::select! {
            accepted = self.engine.generate_streaming(self.request()) => accepted?,
            () = interrupt.requested() => return Err(Failure::Interrupted.into()),
        };
        let (mut said, mut samples) = (Vec::new(), Vec::new());
        let stats: RequestStats = loop {
            let chunk = tokio::select! {
                chunk = chunks.recv() => chunk,
                () = interrupt.requested() => return Err(Failure::Interrupted.into()),
            };
            let chunk = chunk.context("the engine ended before the answer did")?;
            if let Some(text) = &chunk.text {
                output::print(text)?;
            }
            samples.extend(chunk.samples);
            said.extend(chunk.emissions);
            if let Some(stats) = chunk.stats {
                break stats;
            }
        };
        output::print("\n")?;
        if let Some(error) = &stats.error {
            anyhow::bail!("the model failed: {error}");
        }
        report(&stats);
        self.conversation.answer(said, stats.prompt_tokens);
        self.play(&samples, interrupt).await?;
        if self.args.output.is_some() {
            self.samples.append(&mut samples);
        }
        Ok(())
    }

    /// All that the model has said, and its rate in Hz.
    pub(super) fn finish(self) -> (Vec<f32>, u32) {
        (self.samples, self.engine.profile().info.sample_rate_hz)
    }

    fn request(&self) -> EngineCoreRequest {
        let mut params = self.engine.profile().default_params();
        params.sampling.temperature = self.args.temperature.unwrap_or(params.sampling.temperature);
        params.max_tokens = self.args.max_tokens.unwrap_or(params.max_tokens);
        params.seed = self.args.seed.or(params.seed);
        let mut request = EngineCoreRequest::converse(Conversation::new()).with_params(params);
        request.instructions.clone_from(&self.args.instructions);
        request.with_chat(ChatOptions {
            conversation: self.conversation.clone(),
            own_sampling: self.args.temperature.is_none(),
            text_temperature: self.args.text_temperature,
        })
    }

    async fn play(&self, samples: &[f32], interrupt: &mut Interrupt) -> Result<()> {
        let Some(player) = self.player.as_ref().filter(|_| !samples.is_empty()) else { return Ok(()) };
        let folder = tempfile::tempdir().context("cannot make a folder for the player's file")?;
        let file = folder.path().join("izwi.wav");
        sink::write_file(&file, samples, self.engine.profile().info.sample_rate_hz)?;
        player.play_file(&file, interrupt).await
    }
}
