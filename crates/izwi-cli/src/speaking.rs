//! A synthesis and its destinations: a file that grows, standard output, a player, and the report at its end.

use std::time::Duration;

use anyhow::Result;
use izwi_core::engine::{Engine, EngineCoreConfig, StreamingOutput};
use izwi_hub::Store;
use izwi_types::TextNotes;
use serde::Serialize;

use crate::audio_file::AudioFile;
use crate::engine::{Loaded, incomplete, millis};
use crate::progress::SpeechProgress;
use crate::settings::Resolved;
use crate::sink::{self, StdoutStream, Target};
use crate::sound::{Player, Playing};
use crate::speech_options::SpeechFlags;
use crate::synthesis::{self, Speech};
use crate::{engine, models, output, voice_list};

/// The most characters of a text that are shown where its audio ends.
const SHOWN_CHARS: usize = 40;

/// What `--json` prints.
#[derive(Debug, Serialize)]
struct Report {
    /// Absent if no file was written.
    file: Option<String>,
    player: Option<&'static str>,
    model: String,
    device: String,
    seconds: f64,
    samples: u64,
    sample_rate_hz: u32,
    rtf: f32,
    ttfa_ms: Option<f64>,
    generation_ms: f64,
    load_ms: f64,
    /// The same text with this seed gives the same bytes.
    seed: u64,
    finish_reason: &'static str,
    /// What the model says otherwise than it is written, and silence that was heard.
    warnings: Vec<String>,
}

/// The settings of the engine with the model for a voice, and the store. The model is pulled if it may be.
///
/// # Errors
/// The model is not known, or cannot be pulled.
pub(crate) fn choose_model(
    options: &SpeechFlags,
    resolved: &Resolved,
    may_pull: bool,
) -> Result<(EngineCoreConfig, Store)> {
    let mut config = engine::local_config(resolved);
    let store = models::open(&resolved.settings)?;
    // The voices of a remote model are not known before it is asked.
    if !resolved.is_flag("model")
        && resolved.settings.remote(&config.model).is_none()
        && let Some(name) = options.voice()
        && let Some(found) = voice_list::find(&store, name, &config.model, false)
    {
        config.model = found.model;
    }
    models::ensure_known(&store, &resolved.settings, &config.model, may_pull)?;
    Ok((config, store))
}

/// A text to speak, with its options and its destinations.
#[derive(Debug)]
pub(crate) struct Speaking<'a> {
    pub(crate) options: &'a SpeechFlags,
    pub(crate) target: Target,
    pub(crate) player: Option<Player>,
    /// Whether standard output and a player program receive audio while it is generated; a file does anyway.
    pub(crate) stream: bool,
    /// Whether the report is printed as JSON.
    pub(crate) json: bool,
    /// Has the saved voices, and knows what speaks a foreign text.
    pub(crate) store: &'a Store,
}

impl Speaking<'_> {
    /// Speaks a text. What was generated before an interrupt or a failure stays in the file, which is valid.
    ///
    /// # Errors
    /// The model refuses the request or fails, a destination cannot be written, or the process is interrupted.
    pub(crate) async fn run(&self, loaded: Loaded, text: String) -> Result<()> {
        let Loaded { engine, mut interrupt, load_time } = loaded;
        let mut progress = SpeechProgress::new(&text, self.options.speed());
        let request = self.options.request(&engine, self.store.voices(), text.clone())?;
        let mut live = self.start_streams(engine.profile().info.sample_rate_hz)?;
        let plays_at_end = self.player.is_some() && live.playing.is_none();
        let keep = plays_at_end || live.stdout.is_none() && matches!(self.target, Target::Stdout(_));
        let mut warnings = Vec::new();
        let on_chunk = async |chunk: &StreamingOutput| {
            warnings.extend(self.warn(&engine, &chunk.notes));
            progress.update(chunk);
            live.write(&chunk.samples).await
        };
        let spoken = synthesis::synthesize(&engine, request, &mut interrupt, keep, on_chunk).await;
        progress.clear();
        let speech = match spoken {
            Ok(speech) => speech,
            Err(error) => {
                let said = text.get(..progress.said()).unwrap_or_default();
                live.end_early(said, text.chars().count())?;
                return Err(error);
            }
        };

        if let Some(file) = live.file {
            tokio::task::block_in_place(|| file.finish())?;
        }
        match (live.stdout, &self.target) {
            (Some(stdout), _) => stdout.finish()?,
            (None, Target::Stdout(format)) => {
                sink::write_stdout(format, &speech.samples, speech.sample_rate_hz)?;
            }
            (None, Target::File(..) | Target::None) => {}
        }
        match (live.playing, &self.player) {
            (Some(mut playing), _) => {
                interrupt.guard(playing.finish()).await?;
                warnings.extend(gap(playing.missed().unwrap_or_default()));
            }
            (None, Some(player)) => {
                player.play_samples(&speech.samples, speech.sample_rate_hz, &mut interrupt).await?;
            }
            (None, None) => {}
        }
        self.report(&engine, &speech, load_time, warnings)
    }

    /// Tells what the model says otherwise than it is written, and returns the sentences.
    fn warn(&self, engine: &Engine, notes: &TextNotes) -> Vec<String> {
        let model = &engine.profile().model;
        let notes = notes.sentences(model, |language| self.store.speaker_hint(language));
        let sentences: Vec<String> = notes.into_iter().map(|note| note.message).collect();
        for sentence in &sentences {
            output::status(&format!("warning: {sentence}"));
        }
        sentences
    }

    /// Starts the streams that receive audio while it is generated.
    fn start_streams(&self, sample_rate_hz: u32) -> Result<LiveStreams> {
        let file = match &self.target {
            Target::File(path, format) => Some(AudioFile::create(path, format, sample_rate_hz)?),
            Target::Stdout(_) | Target::None => None,
        };
        let stdout = match &self.target {
            Target::Stdout(format) if self.stream => Some(StdoutStream::start(format, sample_rate_hz)?),
            Target::Stdout(_) | Target::File(..) | Target::None => None,
        };
        let player = self.player.as_ref().filter(|player| self.stream || player.prefers_streams());
        let playing = player.map(|player| player.open_stream(sample_rate_hz)).transpose()?;
        Ok(LiveStreams { file, stdout, playing, sample_rate_hz })
    }

    fn report(
        &self,
        engine: &Engine,
        speech: &Speech,
        load_time: Duration,
        warnings: Vec<String>,
    ) -> Result<()> {
        let stats = &speech.stats;
        let seconds = stats.audio_duration.as_secs_f64();
        let ttfa_ms = stats.time_to_first_audio.map(millis);
        if let Some(warning) = incomplete(stats.finish_reason, "speech") {
            output::status(&format!("warning: {warning}"));
        }
        if self.json {
            let file = match &self.target {
                Target::File(path, _) => Some(path.display().to_string()),
                Target::Stdout(_) | Target::None => None,
            };
            return output::print_json(&Report {
                file,
                player: self.player.as_ref().map(Player::name),
                model: engine.profile().model.clone(),
                device: engine.profile().device.clone(),
                seconds,
                samples: stats.samples,
                sample_rate_hz: speech.sample_rate_hz,
                rtf: stats.rtf(),
                ttfa_ms,
                generation_ms: millis(stats.generation_time),
                load_ms: millis(load_time),
                seed: stats.seed,
                finish_reason: stats.finish_reason.label(),
                warnings,
            });
        }
        let first = ttfa_ms.map_or_else(String::new, |ttfa| format!(", first audio after {ttfa:.0} ms"));
        output::status(&format!("{}: {seconds:.2} s, RTF {:.3}{first}", self.target.label(), stats.rtf()));
        Ok(())
    }
}

/// A warning of silence that was heard where audio came too late.
fn gap(missed: Duration) -> Option<String> {
    let ms = missed.as_millis();
    (ms > 0).then(|| {
        let sentence = format!("{ms} ms of silence were heard: the audio was not generated in time");
        output::status(&format!("warning: {sentence}"));
        sentence
    })
}

/// Receivers of audio while it is generated.
#[derive(Debug)]
struct LiveStreams {
    file: Option<AudioFile>,
    stdout: Option<StdoutStream>,
    playing: Option<Playing>,
    sample_rate_hz: u32,
}

impl LiveStreams {
    async fn write(&mut self, samples: &[f32]) -> Result<()> {
        tokio::task::block_in_place(|| {
            self.file.as_mut().map_or(Ok(()), |file| file.write(samples))?;
            self.stdout.as_mut().map_or(Ok(()), |stdout| stdout.write(samples))
        })?;
        match &mut self.playing {
            Some(playing) => playing.write(samples).await,
            None => Ok(()),
        }
    }

    /// Ends the file of a synthesis that was cut off, and tells where: `said` is the part of the text that was spoken, as
    /// far as it is known. A file without audio is left out.
    fn end_early(self, said: &str, text_chars: usize) -> Result<()> {
        let Some(file) = self.file.filter(|file| file.samples() > 0) else { return Ok(()) };
        let seconds = file.samples() as f64 / f64::from(self.sample_rate_hz);
        let path = file.path().display().to_string();
        tokio::task::block_in_place(|| file.finish())?;
        let place = place(said, text_chars).map(|place| format!(", {place}")).unwrap_or_default();
        output::status(&format!("{path} ends after {seconds:.2} s{place}"));
        Ok(())
    }
}

/// Where a text ends of which `said` was spoken; `None` if that is not known.
fn place(said: &str, text_chars: usize) -> Option<String> {
    let count = said.chars().count();
    if count == 0 {
        return None;
    }
    let shown: String = said.split_whitespace().collect::<Vec<_>>().join(" ");
    let shown: String = shown.chars().filter(|c| !c.is_control()).collect();
    let start = shown.char_indices().nth_back(SHOWN_CHARS).map_or(0, |(at, _)| at);
    // The first word of the excerpt may be cut.
    let shown = match shown[start..].split_once(' ') {
        Some((_, rest)) if start > 0 => format!("… {rest}"),
        _ => shown[start..].to_owned(),
    };
    Some(format!("at character {count} of {text_chars}: \"{shown}\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_an_interrupted_text_is_told() {
        assert_eq!(place("", 10), None, "nothing is known");
        assert_eq!(place("Good\nday", 20).unwrap(), "at character 8 of 20: \"Good day\"");
        let long = "The rain has stopped, and the taxi waits\u{1b}[2J outside of the old hotel";
        let told = place(long, 9_000).unwrap();
        assert_eq!(told, "at character 69 of 9000: \"… taxi waits[2J outside of the old hotel\"");
        assert!(place(&"é".repeat(100), 100).unwrap().contains("ééé"));
    }
}
