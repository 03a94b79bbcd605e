//! A conversation: turns through an engine, and the output of the answers.
//!
//! Knows no command-line input but the options of an answer.

use anyhow::Result;
use izwi_core::engine::{
    AudioInput, ChatOptions, Conversation, Engine, EngineCoreRequest, Message, RequestStats, SpeechOptions,
};

use crate::engine::{OutputStream, incomplete, millis};
use crate::interrupt::Interrupt;
use crate::output;
use crate::sound::{Player, Playing};

/// Options of every answer.
#[derive(Debug, clap::Args)]
pub(super) struct AnswerOptions {
    /// System prompt [default: the model's default]
    #[arg(long, value_name = "TEXT")]
    pub(super) instructions: Option<String>,
    /// Random seed; the same seed gives the same answers
    #[arg(long, value_name = "N")]
    pub(super) seed: Option<u64>,
    /// Sampling temperature of the audio, 0 to 2 [default: the model's default]
    #[arg(long, value_name = "T")]
    pub(super) temperature: Option<f32>,
    /// Sampling temperature of the text, 0 to 2 [default: the model's default]
    #[arg(long, value_name = "T")]
    pub(super) text_temperature: Option<f32>,
    /// Maximum number of tokens and frames of one answer
    #[arg(long, value_name = "N")]
    pub(super) max_tokens: Option<usize>,
}

/// A conversation with one model.
pub(super) struct ChatSession<'a> {
    options: &'a AnswerOptions,
    engine: Engine,
    player: Option<Player>,
    pub(super) interrupt: Interrupt,
    conversation: Conversation,
    /// Samples of all answers; `None` if they are not kept.
    samples: Option<Vec<f32>>,
}

impl<'a> ChatSession<'a> {
    /// An empty conversation. `keeps_audio` says whether [`Self::finish`] returns the audio.
    pub(super) fn new(
        options: &'a AnswerOptions,
        engine: Engine,
        player: Option<Player>,
        interrupt: Interrupt,
        keeps_audio: bool,
    ) -> Self {
        let samples = keeps_audio.then(Vec::new);
        Self { options, engine, player, interrupt, conversation: Conversation::new(), samples }
    }

    /// Runs a turn whose message is a recording.
    ///
    /// # Errors
    /// The recording cannot be decoded, or as [`Self::turn`].
    pub(super) async fn recorded_turn(&mut self, recording: AudioInput) -> Result<()> {
        let recording = self.engine.decode_message(recording).await?;
        self.turn(Message::Recording(recording)).await
    }

    /// Runs a turn: the user's message and the answer.
    ///
    /// # Errors
    /// The turn is refused or fails, the answer cannot be printed or played, or the process is interrupted.
    pub(super) async fn turn(&mut self, message: Message) -> Result<()> {
        let forgotten = self.conversation.truncate(self.engine.config().conversation_limits());
        if forgotten > 0 {
            output::status(&format!("the oldest {forgotten} turns are dropped: the context is full"));
        }
        self.conversation.ask(vec![message]);
        let (mut emissions, mut samples, mut has_text) = (Vec::new(), Vec::new(), false);
        let (engine, request) = (&self.engine, self.request());
        let sample_rate_hz = engine.profile().info.sample_rate_hz;
        let device = self.player.as_ref().filter(|player| player.prefers_streams());
        let mut playing: Option<Playing> = None;
        let answer = async {
            let mut chunks = OutputStream::start(engine, request).await?;
            loop {
                let chunk = chunks.next().await?;
                if let Some(text) = &chunk.text {
                    output::print(text)?;
                    has_text = true;
                }
                if let Some(device) = device.filter(|_| !chunk.samples.is_empty()) {
                    let playing = match &mut playing {
                        Some(playing) => playing,
                        none => none.insert(device.open_stream(sample_rate_hz)?),
                    };
                    playing.write(&chunk.samples).await?;
                }
                samples.extend(chunk.samples);
                emissions.extend(chunk.emissions);
                if let Some(stats) = chunk.stats {
                    return Ok(stats);
                }
            }
        };
        let answered = self.interrupt.guard(answer).await;
        if has_text || answered.is_ok() {
            output::print("\n")?;
        }
        let stats = answered?;
        report(&stats);
        self.conversation.answer(emissions, stats.prompt_tokens);
        match (playing, &self.player) {
            (Some(mut playing), _) => self.interrupt.guard(playing.finish()).await?,
            (None, Some(player)) if !samples.is_empty() => {
                player.play_samples(&samples, sample_rate_hz, &mut self.interrupt).await?;
            }
            (None, _) => {}
        }
        if let Some(all) = &mut self.samples {
            all.append(&mut samples);
        }
        Ok(())
    }

    /// The samples of all answers, and their rate in Hz.
    pub(super) fn finish(self) -> (Vec<f32>, u32) {
        (self.samples.unwrap_or_default(), self.engine.profile().info.sample_rate_hz)
    }

    fn request(&self) -> EngineCoreRequest {
        let options = SpeechOptions {
            temperature: self.options.temperature,
            max_tokens: self.options.max_tokens,
            seed: self.options.seed,
            instructions: self.options.instructions.clone(),
            ..SpeechOptions::default()
        };
        let chat = ChatOptions {
            conversation: self.conversation.clone(),
            text_temperature: self.options.text_temperature,
            ..ChatOptions::default()
        };
        EngineCoreRequest::converse(Conversation::new()).with_options(options).with_chat(chat)
    }
}

/// Prints the statistics of an answer.
fn report(stats: &RequestStats) {
    if let Some(warning) = incomplete(stats.finish_reason, "answer") {
        output::status(&format!("warning: {warning}"));
    }
    let first = stats.time_to_first_audio.map(millis);
    let first = first.map_or_else(String::new, |first| format!(", first audio after {first:.0} ms"));
    let seconds = stats.audio_duration.as_secs_f64();
    output::status(&format!("{seconds:.2} s, RTF {:.3}{first}", stats.rtf()));
}
